"""The only types that cross modules: ScoreView, Strategy, Loss, Backbone, Query; and how fields declare ranges."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from negbench.errors import NegbenchError, OptionError, UnknownNameError, quoted
from negbench.errors import check_option as check_option  # plug-ins find all they need here
from negbench.metrics.drops import between_drops
from negbench.metrics.ranks import descending, window

if TYPE_CHECKING:
    from PIL.Image import Image

# what is corrupted; "triple": all three at once; "query": the target is kept and looks for its own among the queries;
# "bank": the target again, by images that are remembered or all of the corpus, without a gradient through them
Slot = Literal["reference", "modification", "target", "triple", "query", "bank"]
Scope = Literal["corpus", "batch"]
CandidateSet = Literal["pair", "batch", "corpus"]

# second scores of every query and image, which a strategy declares in `reads` and a view hands out (`ScoreView.plane`)
PlaneName = Literal["target", "reference", "text", "image", "initial", "guide", "judge"]
PLANES: tuple[PlaneName, ...] = get_args(PlaneName)

DEFAULT_TEMPERATURE = 0.07  # CLIP's and BLIP-2's initial value


# --- search ranges -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Range:
    """Where `negbench study` may move a field: [low, high] (both included), or one of `choices`."""

    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: tuple[Any, ...] = ()


def tunable(
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    log: bool = False,
    choices: Sequence[Any] = (),
) -> Any:
    """Dataclass field with a default and, beside it, the range that `negbench study` searches.

    Example: ``k: int = tunable(100, low=10, high=1000, log=True)``.
    """
    if (low is None) != (high is None) or (low is None) == (not choices):
        raise ValueError("tunable() takes either low and high, or choices")
    return field(default=default, metadata={"range": Range(low=low, high=high, log=log, choices=tuple(choices))})


def tunable_ranges(cls: type) -> dict[str, Range]:
    """Name -> range of every tunable field of a dataclass, in the order of declaration."""
    return {f.name: f.metadata["range"] for f in dataclasses.fields(cls) if "range" in f.metadata}


# --- queries -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Query:
    """One composed query: a reference image, a modification text, and what is known to answer it.

    `target` is None where the labels are closed (CIRR test1, CIRCO test). `relevant` holds every image known to satisfy
    the query, the target first; it is empty where only the target is known. Images are named by id, never by path.
    """

    id: str
    reference: str
    text: str
    target: str | None = None
    group: str = ""
    relevant: tuple[str, ...] = ()
    captions: tuple[str, ...] = ()  # the raw annotation(s) that `text` was made from
    subset: tuple[str, ...] = ()  # CIRR: the other members of the image group
    aspects: tuple[str, ...] = ()  # CIRCO: semantic aspects
    reference_text: str | None = None  # privileged texts (HyCoLe), used in training only
    target_text: str | None = None
    # queries of one cluster are alike, so statistics draw whole clusters again; no part of the text that a hash is of
    cluster: str = field(default="", repr=False)


# --- strategies --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScoreView:
    """What a strategy may look at: a block of B queries against N images (or the batch against itself).

    Args:
        scores: [B, N] float of any sign, higher is better; cosine before the temperature.
        target: [B] int64, column of each query's positive.
        allowed: [B, N] bool, columns that may be a negative; default: everything but the target. The target is always
            taken out, so after construction this is a tensor that strategies can use as it is.
        refresh: 0-based count of this refresh.
        relevant: [B, N] bool ground truth; only strategies that declare `reads_truth` are given it.
        temperature: > 0, what the run's loss divides scores by at this moment (its `tau`, or the learned one).
        dim: width D of the embeddings that the scores come from; 0 where they come from none (a table by hand).
        planes: name -> [B, N] float, what the strategy declares in `reads`; read it with `plane`.

    Raises:
        ValueError: a shape or dtype that is not as above, or a target outside the columns.
    """

    scores: Tensor
    target: Tensor
    allowed: Tensor = None  # type: ignore[assignment]  # resolved below
    refresh: int = 0
    relevant: Tensor | None = None
    temperature: float = DEFAULT_TEMPERATURE
    dim: int = 0
    planes: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.scores.ndim != 2 or not self.scores.is_floating_point():
            raise ValueError(
                f"scores must be a [B, N] float tensor, got {tuple(self.scores.shape)} {self.scores.dtype}"
            )
        rows, columns = self.scores.shape
        if self.target.shape != (rows,) or self.target.dtype != torch.int64:
            raise ValueError(
                f"target must be a [{rows}] int64 tensor, got {tuple(self.target.shape)} {self.target.dtype}"
            )
        if rows and (int(self.target.min()) < 0 or int(self.target.max()) >= columns):
            raise ValueError(
                f"target must lie in 0..{columns - 1}, got {int(self.target.min())}..{int(self.target.max())}"
            )
        for name in ("allowed", "relevant"):
            mask = getattr(self, name)
            if mask is not None and (mask.shape != self.scores.shape or mask.dtype != torch.bool):
                raise ValueError(
                    f"{name} must be a {tuple(self.scores.shape)} bool tensor, got {tuple(mask.shape)} {mask.dtype}"
                )
        for name, plane in self.planes.items():
            if plane.shape != self.scores.shape or not plane.is_floating_point():
                raise ValueError(
                    f"plane {name} must be a {tuple(self.scores.shape)} float tensor, "
                    f"got {tuple(plane.shape)} {plane.dtype}"
                )
        allowed = torch.ones_like(self.scores, dtype=torch.bool) if self.allowed is None else self.allowed.clone()
        allowed.scatter_(1, self.target[:, None], False)
        object.__setattr__(self, "allowed", allowed)

    @property
    def positive(self) -> Tensor:
        """[B], the target's score."""
        return self.scores.gather(1, self.target[:, None]).squeeze(1)

    def plane(self, name: PlaneName) -> Tensor:
        """[B, N] float: other scores of the same queries and images, in the order of `scores`.

        - "target": cosine of each image to the query's target image; "reference": to its reference image. An image is
          the normalised mean of its candidate tokens, under the current model.
        - "text", "image": what the query scores by its text alone, and by its reference image alone, now.
        - "initial": the composed query under the weights as loaded, before any training.
        - "guide": under another backbone, or in a file of scores (`mining.guide`).
        - "judge": cosine to the target image in the eyes of another backbone, or a file of scores (`mining.judge`).

        A file need not score every pair: a missing one is NaN, which compares as false with anything.

        Raises:
            NegbenchError: the strategy does not declare the plane in `reads`, or the view has none.
        """
        if name not in self.planes:
            raise NegbenchError(
                f"plane '{name}' is not in this view (it has {', '.join(self.planes) or 'none'}): "
                "name it in the strategy's `reads`, or hand it to the ScoreView"
            )
        return self.planes[name]

    @cached_property
    def order(self) -> Tensor:
        """[B, N] int64: columns by descending score, ties by corpus index; sorted once, shared by all readers.

        A sort costs several times what the scores did: `window` and `between_drops` do without it.
        """
        return descending(self.scores)

    def window(self, eligible: Tensor, stop: Tensor | int, start: Tensor | int = 0) -> Tensor:
        """[B, N] bool: the eligible images at the places start, ..., stop - 1 among themselves, by descending score.

        Ties are broken by corpus index; so `window(eligible, k)` is the k highest-scored, or all where there are fewer.

        Args:
            eligible: [B, N] bool.
            stop: one number, or [B] int64.
            start: the same, >= 0.
        """
        return window(self.scores, eligible, start, stop)

    def between_drops(self, eligible: Tensor, apart: int = 0) -> Tensor:
        """[B, N] bool: the eligible images between two steep drops of the ranking (`metrics.drops.between_drops`)."""
        return between_drops(self.scores, eligible, apart)


@dataclass(frozen=True, eq=False)
class Epoch:
    """What the order of an epoch's queries may depend on.

    Args:
        number: 0-based.
        target: [Q] int64, column of each train query's target.
        size: queries in a batch.
        generator: the run's stream of batches; the only source of randomness.
        embed: returns [Q, D], the composed queries of the model as it is now.
    """

    number: int
    target: Tensor
    size: int
    generator: torch.Generator
    embed: Callable[[], Tensor]

    @cached_property
    def queries(self) -> Tensor:
        """[Q, D] unit norm, under the current model, on the CPU; computed where it is read."""
        return self.embed().cpu()


@dataclass(frozen=True)
class Embedded:
    """What a strategy that `synthesizes` is shown of a step: B queries and the K images of its bank, no gradients.

    Args:
        view: of the slot "bank"; [B, 1 + K] columns, the target in column 0.
        pool: [B, 1 + K], what the strategy's `pool` answered.
        queries: [B, D] unit norm.
        images: [K, T, D] candidate tokens of unit norm.
        random: returns [B, n] float64 in (0, 1) for any n: numbers of each query's own stream, new ones at every call.
    """

    view: ScoreView
    pool: Tensor
    queries: Tensor
    images: Tensor
    random: Callable[[int], Tensor]


@dataclass(frozen=True)
class Strategy(ABC):
    """Chooses which images may be drawn as negatives. A frozen dataclass whose fields are its hyperparameters.

    A corpus strategy is one function of a score row. It never stores pools or views (the scores of a large corpus are
    overwritten by those of the next queries), draws, nor touches a data set, a model, a configuration or a global
    random generator: `negbench.mining` streams, draws, falls back and counts for all.
    A batch strategy gets the batch's own [B, B] score matrix, once for each slot it corrupts, and is used whole.

    The slot "triple" is every (r_a, m_b, t_c) of the batch, a, b, c not all equal. Its scores do not depend on the
    query, so the strategy is asked once for all: the view is one row [1, B^3], column (a B + b) B + c, whose target is
    the first query's triple; no query's own triple is allowed. A batch of 64 has 262,144 columns: 1 MiB of scores.

    The slot "query" is the target slot read the other way: row i keeps target i, and column j is query j. With
    `corrupts = ("target", "query")` a loss runs in both directions.

    The slot "bank" has K columns of images that need not be in the batch, embedded without a gradient: the targets of
    the last steps (`queue`), or all images of the query's gallery, in every step anew. Its view is [B, 1 + K], the
    target in column 0.
    """

    scope: ClassVar[Scope] = "corpus"
    corrupts: ClassVar[tuple[Slot, ...]] = ("target",)
    n_def: ClassVar[int] = 6  # published number of pool definitions; a run may override it
    schedule: ClassVar[Literal["multiples", "equal"]] = "multiples"  # when: `negbench.config.refresh_epochs`
    reads_truth: ClassVar[bool] = False  # True: `view.relevant` holds the ground truth (the oracle_* strategies)
    # further scores that `view.plane` must have, each computed only because it stands here; of targets, so a batch
    # strategy that reads any corrupts no slot but "target" and "query" (whose planes are transposed as the scores are)
    reads: ClassVar[tuple[PlaneName, ...]] = ()
    reads_losses: ClassVar[bool] = False  # True: `query_weights` weighs the queries of each epoch
    several_positives: ClassVar[bool] = False  # True: `positives` finds further ones, which a loss must take
    synthesizes: ClassVar[bool] = False  # True: `synthetic` makes negatives that are no image's, of the slot "bank"
    # two tunable fields of which the first must stay below the second: a study searches start and width
    band: ClassVar[tuple[str, str] | None] = None

    switches: ClassVar[tuple[int, ...]] = ()  # epochs at which another stage begins

    def __init_subclass__(cls, **options: Any) -> None:
        """UnknownNameError or OptionError where a class declares a scope, slot, plane or schedule that there is not."""
        super().__init_subclass__(**options)
        declared: tuple[tuple[str, str, Any, tuple[str, ...]], ...] = (
            ("scope", "scope", cls.scope, get_args(Scope)),
            ("corrupts", "slot", cls.corrupts, get_args(Slot)),
            ("reads", "plane", cls.reads, PLANES),
            ("schedule", "schedule", cls.schedule, ("multiples", "equal")),
        )
        for name, kind, value, known in declared:
            said = (value,) if name in ("scope", "schedule") else value
            if not isinstance(said, tuple) or (name == "corrupts" and not said):
                raise OptionError(f"{cls.__name__}.{name} must be a tuple of {', '.join(known)}, got {quoted(value)}")
            for each in said:
                if each not in known:
                    raise UnknownNameError(kind, str(each), known, where=f"{cls.__name__}.{name}")

    @property
    def stages(self) -> tuple[tuple[int, Strategy], ...]:
        """First epoch and strategy of each stage of a run, one for each of `switches` after the first.

        `NAME:EPOCHS>NAME` makes such a strategy of any two.
        """
        return ((0, self),)

    @property
    def every_part(self) -> list[Strategy]:
        """The strategy of each stage, and what stands beside it."""
        return [part for _, stage in self.stages for part in (stage, stage.beside) if part is not None]

    @property
    def beside(self) -> Strategy | None:
        """Batch strategy whose choice of the batch's members joins a corpus strategy's own draws in one loss.

        None: a query's loss is of its own draws alone. `in-batch+NAME` gives any corpus strategy such a partner.
        """
        return None

    @property
    def queue(self) -> int:
        """What the slot "bank" holds: so many of the last targets, the step's own among them; 0: the whole gallery."""
        return 0

    def order(self, epoch: Epoch) -> Tensor:
        """[Q] int64, a permutation of the train queries: each `epoch.size` in turn are a batch."""
        return torch.randperm(len(epoch.target), generator=epoch.generator)

    def query_weights(self, losses: Tensor) -> Tensor:
        """How much each query counts in the coming epoch; asked where `reads_losses`.

        Args:
            losses: [Q] float64, of each query when it was last trained on; NaN before.

        Returns:
            [Q] float64 >= 0, in proportion within a batch; a batch of zeros moves nothing.
        """
        return torch.ones_like(losses)

    @abstractmethod
    def pool(self, view: ScoreView) -> Tensor:
        """Pool of every query.

        Returns:
            [B, N] bool mask, or float weights >= 0 (drawn in proportion), True or > 0 only where `view.allowed`. An
            all-False row is an empty pool: mining then applies the fallback and counts it.
        """

    def positives(self, view: ScoreView) -> Tensor:
        """Which columns answer each query, beside the target: asked where `several_positives`, of a batch strategy.

        In the slots "target" and "query"; in any other the target is the one positive.

        Returns:
            [B, N] float weights: > 0 at the target, and >= 0 where `view.allowed` and not in the pool.
        """
        return torch.zeros_like(view.scores).scatter_(1, view.target[:, None], 1.0)

    def synthetic(self, embedded: Embedded) -> tuple[Tensor, Tensor]:
        """Negatives made of embeddings: asked in every step where `synthesizes`, after `pool` of the slot "bank".

        They join that slot's negatives with weight 1; the query, not they, has a gradient in their scores.

        Returns:
            [B, S, T, D] candidate tokens of unit norm, and [B, S] bool, which of them there are.
        """
        raise NotImplementedError(f"{type(self).__name__} synthesizes no negatives")


# --- losses ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AspectScores:
    """Scores under one sub-query (DQE-CIR eq. 7-8).

    Args:
        name: of the aspect.
        positive: [B].
        negatives: [B, M], of the same negatives as the query's own.
        weight: scalar, learned, >= 0.
        present: [B] bool, whether the query's text has a word of the aspect; default: every row's does.
    """

    name: str
    positive: Tensor
    negatives: Tensor
    weight: Tensor
    present: Tensor = None  # type: ignore[assignment]  # resolved below

    def __post_init__(self) -> None:
        if self.present is None:
            object.__setattr__(self, "present", torch.ones_like(self.positive, dtype=torch.bool))


@dataclass(frozen=True)
class LossInput:
    """What a loss is a function of, checked and complete: B queries, M negatives and C further candidates of each.

    Attributes:
        positive: [B] scores of the targets, any sign, before the temperature.
        negatives: [B, M] scores of the negatives that the strategy chose.
        mask: [B, M] bool, False where there is no negative.
        weights: [B, M] float >= 0.
        temperature: scalar > 0.
        aspects: scores under sub-queries.
        candidates: [B, C] scores of images that the loss ranks the target against though no strategy chose them.
        candidate_mask: [B, C] bool.
        positives: [B, P] scores of all positives, the target among them; [B, 1], the target, for most losses.
        positive_weights: [B, P] float >= 0; where 0, there is no positive.
    """

    positive: Tensor
    negatives: Tensor
    mask: Tensor
    weights: Tensor
    temperature: Tensor | float
    aspects: Sequence[AspectScores]
    candidates: Tensor
    candidate_mask: Tensor
    positives: Tensor
    positive_weights: Tensor


@dataclass(frozen=True)
class Loss(ABC):
    """A function of the positive's and the negatives' scores; it never chooses negatives. A frozen dataclass.

    `tau=None` takes the temperature that the caller passes (the backbone's learned one), or 0.07 where none is passed;
    a number fixes it.
    """

    uses_aspects: ClassVar[bool] = False
    uses_positives: ClassVar[bool] = False  # True: it takes several positives of a query
    # True: `value` holds under `torch.func.vmap` (no branch on a score, nothing random), see `Backbone.stackable`
    stackable: ClassVar[bool] = False
    # False for a published formula that falls where some negative's score rises: importance weights that are shares of
    # their sum (HCL), the complement of a softmax (RCL)
    monotone: ClassVar[bool] = True
    uses_temperature: ClassVar[bool] = True  # False: the loss reads no temperature, and refuses `tau`
    tau: float | None = None

    def __post_init__(self) -> None:
        fixed = isinstance(self.tau, int | float) and self.tau > 0
        check_option("tau", self.tau, self.tau is None or fixed, "> 0 or left out")

    @property
    def candidate_set(self) -> CandidateSet:
        """Which images a run scores for the loss beside the negatives; a loss that takes any says so here.

        "pair": none; "batch": the other targets of the batch; "corpus": all images of the query's gallery group.
        """
        return "pair"

    def __call__(
        self,
        positive: Tensor,
        negatives: Tensor,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
        *,
        temperature: Tensor | float | None = None,
        aspects: Sequence[AspectScores] = (),
        candidates: Tensor | None = None,
        candidate_mask: Tensor | None = None,
        positives: Tensor | None = None,
        positive_weights: Tensor | None = None,
    ) -> Tensor:
        """Loss of a batch.

        Args:
            positive: [B] scores of the targets, any sign, before the temperature.
            negatives: [B, M] scores of the negatives.
            mask: [B, M] bool, False where there is no negative; a row without any adds nothing.
            weights: [B, M] float >= 0, how much each negative counts (1 = as published).
            temperature: scalar > 0, used unless the loss fixes `tau`.
            aspects: sub-query scores; only losses with `uses_aspects` take them.
            candidates: [B, C] scores of further candidates, none of them a negative of the same row; only losses
                whose `candidate_set` is not "pair" take them.
            candidate_mask: [B, C] bool, False where there is none; default: all are there.
            positives: [B, P] scores of all positives, the target among them; default: the target alone. Only losses
                with `uses_positives` take them.
            positive_weights: [B, P] float >= 0, in proportion; 0 where there is none; default: all are 1.

        Returns:
            Scalar tensor, differentiable in positive, negatives, temperature, aspects, candidates and positives.

        Raises:
            ValueError: shapes that do not fit, or aspects, candidates or positives handed to a loss without use for
                them.
        """
        if positive.ndim != 1 or negatives.ndim != 2 or negatives.shape[0] != positive.shape[0]:
            raise ValueError(
                f"want positive [B] and negatives [B, M], got {tuple(positive.shape)} and {tuple(negatives.shape)}"
            )
        if aspects and not self.uses_aspects:
            raise ValueError(f"{type(self).__name__} has no term for aspects")
        if candidates is not None and self.candidate_set == "pair":
            raise ValueError(f"{type(self).__name__} has no use for candidates beside the negatives")
        if positives is not None and not self.uses_positives:
            raise ValueError(f"{type(self).__name__} takes one positive a query")
        candidates = negatives[:, :0] if candidates is None else candidates
        positives = positive[:, None] if positives is None else positives
        for name, table in (("candidates", candidates), ("positives", positives)):
            if table.ndim != 2 or len(table) != len(positive):
                raise ValueError(f"{name} must be [{len(positive)}, {name[0].upper()}], got {tuple(table.shape)}")
        if self.tau is not None:
            temperature = self.tau
        given = LossInput(
            positive=positive,
            negatives=negatives,
            mask=_or_ones("mask", mask, negatives, torch.bool),
            weights=_or_ones("weights", weights, negatives, negatives.dtype),
            temperature=DEFAULT_TEMPERATURE if temperature is None else temperature,
            aspects=aspects,
            candidates=candidates,
            candidate_mask=_or_ones("candidate_mask", candidate_mask, candidates, torch.bool),
            positives=positives,
            positive_weights=_or_ones("positive_weights", positive_weights, positives, positives.dtype),
        )
        return self.value(given)

    @abstractmethod
    def value(self, given: LossInput) -> Tensor:
        """The formula itself, on checked and completed arguments (see `__call__`)."""


def _or_ones(name: str, tensor: Tensor | None, like: Tensor, dtype: torch.dtype) -> Tensor:
    """`tensor`, or ones shaped as `like`; ValueError where it has another shape."""
    if tensor is None:
        return torch.ones_like(like, dtype=dtype)
    if tensor.shape != like.shape:
        raise ValueError(f"{name} must be {tuple(like.shape)}, got {tuple(tensor.shape)}")
    return tensor


# --- backbones ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BackboneIdentity:
    """What a backbone really is; stands in every result (never a nickname)."""

    name: str  # registry key
    weights: str  # hub id, file name, "random:SEED" or "shipped"
    revision: str  # hub revision, "local" or ""
    sha256: str  # of the initial parameters and buffers, by sorted name
    parameters: int
    trainable_parameters: int
    embedding_dim: int  # D
    tokens_per_image: int  # T
    preprocessing: str  # e.g. "target-pad 1.25, bicubic 224, mean/std clip"
    composition: str = ""  # how reference and text are fused
    activation: str = ""  # resolved, e.g. "quick_gelu" (open_clip's silent trap)
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SubQuery:
    """A query's part for one aspect of its text, such as its colours (DQE-CIR eq. 1).

    Args:
        embeddings: [B, D], unit norm; the zero vector where the text has no word of the aspect.
        weight: scalar >= 0, learned: how much the part adds to the query, and its loss to the total (eq. 8).
        present: [B] bool, which texts have such a word.
    """

    embeddings: Tensor
    weight: Tensor
    present: Tensor


TextBatch = Sequence[str] | Mapping[str, Tensor]  # raw strings, or what `Backbone.tokenize` made of them


class Backbone(nn.Module, ABC):
    """A composed-image-retrieval model. Subclasses live one family per file in `backbones/`.

    Shapes: B images or queries, L stored feature rows of width C per image, T candidate tokens, D embedding width.
    `image_features` is the part that is frozen: its output is stored once per (weights, preprocessing, image set) and
    shared by every run. A fine-tuned backbone sets `frozen_images = False`; then nothing is stored, and
    `image_features` runs, with gradients, in every step.

    Subclasses offer a classmethod `load(*, option=default, ...)` whose keyword-only parameters are the backbone's
    options; heavy imports belong inside it.
    """

    frozen_images: bool = True
    # True: whatever depends on a trained parameter holds under `torch.func.vmap` (no branch on a value, no buffer that
    # moves, nothing random), so that `negbench.loop.stacked` trains many models in one computation
    stackable: bool = False
    learned_from: tuple[str, ...] = ()  # data sets whose images alone its weights know; empty: none is named
    provides_features: ClassVar[bool] = False  # True: has no image encoder, and `features_of` answers for the store
    # PIL image (any mode) -> [3, H, W] float32 pixels: deterministic, and pickles small, for worker processes
    transform: Callable[[Image], Tensor]
    # what a run uses where neither flag nor recipe says otherwise; keys are those of RunConfig's section [train]
    recommended: ClassVar[Mapping[str, float | int]] = {}

    @property
    @abstractmethod
    def identity(self) -> BackboneIdentity:
        """Resolved identity; its `sha256` is that of the weights as loaded, before any training."""

    @property
    @abstractmethod
    def feature_key(self) -> str:
        """Hash of what determines `image_features` (the frozen weights, preprocessing, storage precision)."""

    def preprocess(self, image: Image) -> Tensor:
        """PIL image (any mode) -> [3, H, W] float32 pixels; deterministic."""
        return self.transform(image)

    def features_of(self, ids: Sequence[str]) -> Tensor:
        """[len, L, C] features of images by id; only where `provides_features`.

        Raises:
            NegbenchError: a backbone that encodes pixels.
        """
        raise NegbenchError(f"backbone '{self.identity.name}' encodes pixels and holds no features by id")

    @abstractmethod
    def image_features(self, pixels: Tensor) -> Tensor:
        """[B, 3, H, W] -> [B, L, C], what the store keeps."""

    @abstractmethod
    def candidates(self, features: Tensor) -> Tensor:
        """[B, L, C] -> [B, T, D], unit norm."""

    @abstractmethod
    def queries(self, features: Tensor, text: TextBatch) -> Tensor:
        """Reference features [B, L, C] and B texts -> composed query embeddings [B, D], unit norm."""

    @abstractmethod
    def text_queries(self, text: TextBatch) -> Tensor:
        """B texts -> [B, D] unit-norm embeddings without any image: the text-only baseline."""

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """B strings -> dict of tensors whose first dimension is B; rows can be indexed and passed back as `text`."""

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode; then every module is back in its own mode (a frozen tower may differ from the rest)."""
        training = [module for module in self.modules() if module.training]
        if training:  # else it is what it is to be, as between the epochs of a stack
            self.eval()
        try:
            yield
        finally:
            for module in training:
                module.training = True

    def frozen_text(self, tokens: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What stands for tokenised texts once all is computed that no training changes; here the tokens themselves.

        Other names say that something was. Rows of it are passed as `text`, as those of the tokens are. Like the
        features, it is shared by all backbones of one `feature_key` and the same options.
        """
        return dict(tokens)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    @property
    @abstractmethod
    def temperature(self) -> Tensor:
        """Learned temperature, scalar > 0; divides scores in training losses only."""

    def cross_queries(self, features: Tensor, text: TextBatch, *, chunk: int = 1024) -> Tensor:
        """Every reference with every text: [R, L, C] and P texts -> [R, P, D], for HyCoLe's corrupted triples.

        The default runs `queries` on all R * P pairs in chunks; a family with a cheap fusion overrides it.
        """
        tokens = self.tokenize(text) if not isinstance(text, Mapping) else text
        count = next(iter(tokens.values())).shape[0]
        rows = torch.arange(features.shape[0], device=features.device).repeat_interleave(count)
        columns = torch.arange(count, device=features.device).repeat(features.shape[0])
        parts = [
            self.queries(features[r], {name: t[c] for name, t in tokens.items()})
            for r, c in zip(rows.split(chunk), columns.split(chunk), strict=True)
        ]
        return torch.cat(parts).reshape(features.shape[0], count, -1)

    def text_embeddings(self, text: TextBatch) -> Tensor:
        """B descriptions of images -> [B, D], unit norm, comparable with `candidates`; `text_queries` by default."""
        return self.text_queries(text)

    def compose_texts(self, reference_text: TextBatch, modification: TextBatch) -> Tensor:
        """B texts that describe the references and B modifications -> [B, D], unit norm: HyCoLe's text composition.

        Optional: only a family whose fusion works on embeddings has it.

        Raises:
            NegbenchError: a backbone without.
        """
        raise NegbenchError(
            f"backbone '{self.identity.name}' has no text composition: set hybrid.alpha=0, or take clip or tiny"
        )

    def cross_texts(self, reference_text: TextBatch, modification: TextBatch, *, chunk: int = 1024) -> Tensor:
        """Every reference text with every modification: R and P texts -> [R, P, D], as `cross_queries` for images.

        The default runs `compose_texts` on all R * P pairs in chunks; a family with a cheap fusion overrides it.
        """
        first, second = (t if isinstance(t, Mapping) else self.tokenize(t) for t in (reference_text, modification))
        references, count = (next(iter(t.values())).shape[0] for t in (first, second))
        rows = torch.arange(references).repeat_interleave(count)
        columns = torch.arange(count).repeat(references)
        parts = [
            self.compose_texts({name: t[r] for name, t in first.items()}, {name: t[c] for name, t in second.items()})
            for r, c in zip(rows.split(chunk), columns.split(chunk), strict=True)
        ]
        return torch.cat(parts).reshape(references, count, -1)

    def sub_queries(self, features: Tensor, text: TextBatch) -> dict[str, SubQuery]:
        """Aspect name -> sub-query of the B queries (DQE-CIR eq. 1). None by default."""
        return {}

    def parameter_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """AdamW groups; default: one group of all that requires a gradient."""
        return [{"params": [p for p in self.parameters() if p.requires_grad], "lr": lr, "weight_decay": weight_decay}]


def relevance(queries: Tensor, candidates: Tensor) -> Tensor:
    """Scores of every query against every image: max over the image's tokens of the dot product (QuRe eq. 1).

    Args:
        queries: [B, D].
        candidates: [N, T, D].

    Returns:
        [B, N].
    """
    count, tokens, width = candidates.shape
    if queries.device.type == "cpu" and not torch.is_grad_enabled():  # a table a token: no maximum over short rows
        best = queries @ candidates[:, 0].T
        for token in candidates.unbind(1)[1:]:
            torch.maximum(best, queries @ token.T, out=best)
        return best
    scores = queries @ candidates.reshape(count * tokens, width).T
    return scores if tokens == 1 else scores.reshape(-1, count, tokens).amax(-1)


def paired_relevance(queries: Tensor, candidates: Tensor) -> Tensor:
    """Scores of each query against its own M images: [B, D] and [B, M, T, D] -> [B, M]."""
    return torch.einsum("bd,bmtd->bmt", queries, candidates).amax(-1)
