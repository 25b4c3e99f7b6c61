"""Training objective: maps a batch to a scalar loss, for strategies of either scope and any loss."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from negbench.contracts import (
    AspectScores,
    Backbone,
    BankStrategy,
    BatchStrategy,
    Loss,
    LossInput,
    QueryInputs,
    ScoreView,
    Slot,
    Strategy,
    SyntheticStrategy,
)
from negbench.contracts.optional import HasSubQueries, Outline, SubQuery
from negbench.contracts.scores import paired_relevance, relevance
from negbench.data.batch_size import EMBED_BATCH
from negbench.data.scene import EncodedSplits, Tokens
from negbench.datasets.dataset import Dataset
from negbench.errors import OptionError
from negbench.loop.chosen import OF_TARGETS, ChoiceInputs, choose, of_slot, slot_scores
from negbench.loop.hybrid import HybridTerms, LossScalars, Members, check_hybrid
from negbench.loop.memory import Memory
from negbench.loop.mining_task import planes_read
from negbench.loop.slots import LossExtras, SlotNegatives, full_precision, join_members, loss_of_slots
from negbench.loop.training_calls import TrainingCalls
from negbench.mining.composite import Composite, batch_rule, batch_rules, shares_draws
from negbench.mining.filters import Filters
from negbench.mining.mined import BatchPools
from negbench.mining.planes import Plane, batch_planes
from negbench.settings.config import HybridConfig, MiningConfig

HARDEST = 10  # negatives of a query


@dataclass(frozen=True)
class Batch:
    """Queries of one training step, with their drawn negatives and texts.

    Attributes:
        rows: [B] int64 train queries.
        negatives: [B, M] int64 corpus columns drawn for them; None for batch strategies.
        tokens: tokenised texts of the rows, from `Split.texts` or `Split.tokens`.
        keep: for batch strategies, how many negatives to keep of each query's pool, at random; None keeps all.
        seed: [B] int64, each query's random stream, for `keep` and for synthetic negatives.
        clean: [B] bool, the queries that the loss is of; None: all. The targets of the others stay negatives.
    """

    rows: Tensor
    negatives: Tensor | None
    tokens: Tokens
    keep: int | None = None
    seed: Tensor | None = None
    clean: Tensor | None = None


@dataclass(frozen=True)
class StepResult:
    """Scalar `loss` with its gradient, the number of negatives used, and what is known about them.

    `pools` are a batch strategy's. `shared` is [B, 2] float32: how many of a query's negatives were drawn for others,
    and how many of those are known to be relevant to it; None if no draws are shared, or no relevant images are known.
    """

    loss: Tensor
    negative_count: int
    pools: BatchPools | None
    shared: Tensor | None = None


@dataclass(frozen=True)
class _Scores:
    """Scores of a step: positives [B], negatives by slot, and further inputs of some losses.

    `members` holds what they were computed from, for the hybrid terms; `shared` is as in `StepResult`.
    """

    positive: Tensor
    slots: dict[Slot, SlotNegatives]
    extras: LossExtras
    pools: BatchPools | None
    members: Members
    shared: Tensor | None = None

    def of_rows(self, rows: Tensor) -> Self:
        """Return the scores with the negatives and candidates of these rows, [B] bool, alone: others add to no loss."""
        in_loss = rows.to(self.positive.device)[:, None]
        slots = {slot: replace(part, mask=part.mask & in_loss) for slot, part in self.slots.items()}
        extras = self.extras if self.extras.mask is None else replace(self.extras, mask=self.extras.mask & in_loss)
        return replace(self, slots=slots, extras=extras)


@dataclass(frozen=True)
class _Chosen:
    """A batch strategy's choice: [B] positives, negatives by slot, pools of one slot, and what each slot allows.

    `images` are the int64 corpus columns of the slots whose columns are images.
    """

    positive: Tensor
    slots: dict[Slot, SlotNegatives]
    pools: BatchPools
    allowed: dict[Slot, Tensor]
    images: dict[Slot, Tensor]


@dataclass(frozen=True)
class _Images:
    """Embedded images: `columns` [C] int64 of the corpus, distinct, and their `tokens` [C, T, D]."""

    columns: Tensor
    tokens: Tensor


@dataclass(frozen=True)
class _Others:
    """Draws of all B queries of a batch as negatives of each: M draws a query.

    Attributes:
        columns: [B M] int64 images, in the order of the draws; one that is drawn twice occurs twice.
        scores: [B, B M].
        mask: [B, B M] bool, which are a query's further negatives; False for its own draws.
        tokens: [K, T, D] of the different images among them.
        token_rows: [B M] int64, the row of each one's tokens.
    """

    columns: Tensor
    scores: Tensor
    mask: Tensor
    tokens: Tensor
    token_rows: Tensor


@dataclass(frozen=True)
class _Queries:
    """References and texts of a batch, its queries [B, D], and sub-queries by aspect."""

    inputs: QueryInputs
    query: Tensor
    subs: dict[str, SubQuery]


def check_objective(
    strategy: Strategy,
    loss: Loss,
    hybrid: HybridConfig,
    backbone: Backbone | Outline,
    dataset: Dataset,
    mining: MiningConfig,
) -> None:
    """Check a run's objective before any image is encoded.

    Raises:
        OptionError: a loss or a bank over the corpus without stored features, two temperatures for one term, hybrid
            terms together with a bank, a learned bias or a guide, a guide without scores of all negatives, or several
            positives that may be negatives too.
        DataError, NegbenchError: as `check_hybrid`.
    """
    outline = Outline.of(backbone)
    check_hybrid(hybrid, outline, dataset)
    LossScalars.of(hybrid, loss)
    if loss.candidate_set == "relevant":
        _check_positives(loss, dataset, mining)
    banks = [rule for rule in batch_rules(strategy) if isinstance(rule, BankStrategy)]
    if hybrid.active and banks:
        raise OptionError(
            "hybrid.alpha and hybrid.beta need triples of the batch, and the bank of "
            f"{type(strategy).__name__} has none: --set hybrid.alpha=0 --set hybrid.beta=0"
        )
    if loss.reads:
        _check_guided(strategy, loss, hybrid)
    if hybrid.active and loss.start_bias is not None:
        raise OptionError(
            "hybrid.alpha and hybrid.beta add terms in which the learned bias of "
            f"{type(loss).__name__} has no meaning: --set hybrid.alpha=0 --set hybrid.beta=0"
        )
    corpus_bank = any(not bank.queue for bank in banks)
    if (loss.candidate_set == "corpus" or corpus_bank) and not outline.frozen_images:
        who = f"the bank of {type(strategy).__name__}" if corpus_bank else "loss.kl_over = 'corpus'"
        raise OptionError(
            f"{who} scores the whole corpus in every step, which needs stored image features, and "
            f"backbone '{outline.name}' trains its image encoder: freeze it, or use "
            + ("a strategy with a queue" if corpus_bank else "'batch'")
        )


def _check_guided(strategy: Strategy, loss: Loss, hybrid: HybridConfig) -> None:
    """Raise OptionError unless the guide of the loss can score all negatives of a strategy: they must be images."""
    name = type(loss).__name__
    rules = batch_rules(strategy)
    synthetic = any(isinstance(rule, SyntheticStrategy) for rule in rules)
    unscored: set[Slot] = set()
    for rule in rules:
        unscored |= {*rule.corrupts} - {*OF_TARGETS}
    if synthetic or unscored:
        what = "made from embeddings" if synthetic else f"of slot {' and '.join(sorted(unscored))}"
        raise OptionError(
            f"{name} needs the guide's score of every negative, and it has none of those {what}: use a strategy whose "
            "negatives are images of the corpus"
        )
    if hybrid.active:
        raise OptionError(
            f"hybrid.alpha and hybrid.beta add terms on texts, of which {name}'s guide has no scores: "
            "--set hybrid.alpha=0 --set hybrid.beta=0"
        )


def _check_positives(loss: Loss, dataset: Dataset, mining: MiningConfig) -> None:
    """Raise OptionError if a loss of several positives has none besides the targets, or may have them as negatives."""
    name = type(loss).__name__
    if dataset.answers is None:
        raise OptionError(
            f"{name} takes known relevant images as further positives, and {dataset.identity} knows of none besides "
            "the targets: use info-nce, or list them in a column `relevant`"
        )
    if not mining.exclude_relevant:
        raise OptionError(
            f"{name} takes known relevant images as positives, so they must not be negatives: "
            "--set mining.exclude_relevant=true"
        )


def check_galleries(strategy: Strategy, train: Dataset) -> None:
    """Check that every part of a strategy suits the smallest gallery of the train queries.

    Raises:
        OptionError: e.g. a window of ranks outside the gallery.
    """
    for part in strategy.members if isinstance(strategy, Composite) else (strategy,):
        part.check_gallery(smallest_gallery(train))


def smallest_gallery(train: Dataset) -> int:
    """Return the number of images in the smallest gallery of the queries."""
    used = {query.group for query in train.queries}
    return min(len(columns) for name, columns in train.groups.items() if name in used)


class Objective(nn.Module):
    """Loss of a batch under a strategy.

    Its parameters are those of the backbone and of `scalars`; an optimizer gets the latter from
    `parameter_groups`, and a checkpoint must hold them. Embeddings are computed in the surrounding autocast precision,
    scores and losses in float32: bfloat16 cannot tell 0.800 from 0.802, a factor of 1.2 at temperature 0.01.

    Attributes:
        hardest_share: share of the loss's gradient, by size, that a query's ten negatives with the highest scores
            get in the step after `see`: mean over the queries with more than ten target negatives; NaN without any.

    Args:
        calls: of the backbone that is trained.
        strategy: of either scope.
        loss: of any kind.
        scene: data and features.
        mining: which images may be negatives.
        hybrid: hybrid terms, temperatures, and how slots are combined.
        offline: planes of the scene's train queries, computed before the run (`offline_planes`).

    Raises as `check_objective` does.
    """

    def __init__(
        self,
        calls: TrainingCalls,
        strategy: Strategy,
        loss: Loss,
        scene: EncodedSplits,
        mining: MiningConfig,
        hybrid: HybridConfig | None = None,
        offline: Mapping[str, Plane] | None = None,
    ) -> None:
        super().__init__()
        hybrid = hybrid or HybridConfig()
        backbone = calls.backbone
        check_objective(strategy, loss, hybrid, backbone, scene.train.dataset, mining)
        self.backbone = backbone
        self.strategy = strategy
        self.loss = loss
        self.calls = calls
        self.scene = scene
        self.mining = mining
        self.reads = planes_read(strategy, mining)
        self.filters = Filters.of(mining)
        self.offline = offline or {}
        self.slots = hybrid.slots
        self.memory = Memory()
        self.device = backbone.device
        self.scalars = LossScalars.of(hybrid, loss).to(self.device)
        self.hardest_share = math.nan
        self.hybrid: HybridTerms | None = None
        if hybrid.active:
            self.hybrid = HybridTerms(hybrid, calls, loss, scene.train.dataset, strategy)

    def use_epoch(self, scene: EncodedSplits, hardest_share: float = math.nan) -> None:
        """Switch to another epoch's train split, which has the same images.

        Args:
            scene: of the epoch.
            hardest_share: if the epoch is resumed, as its first steps found it.
        """
        if self.hybrid is not None and scene.train is not self.scene.train:
            self.hybrid.read(scene.train.dataset)
        self.scene = scene
        self.hardest_share = hardest_share

    def use_strategy(self, strategy: Strategy) -> None:
        """Switch to another part of the strategy that the objective was created with."""
        self.strategy = strategy
        if self.hybrid is not None:
            self.hybrid.strategy = strategy

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return AdamW groups of the parameters outside the backbone: the scalars, at the full rate, without decay."""
        scalars = list(self.scalars.parameters())
        return [{"params": scalars, "lr": lr, "weight_decay": 0.0}] if scalars else []

    def temperature(self, term: str) -> Tensor:
        """Return the term's own temperature ("icm": the loss on images; "tcm", "ritm", "titm") or the backbone's."""
        return self.scalars(term) if term in self.scalars.log else self.backbone.bounded_temperature

    @property
    def divisor(self) -> float:
        """The current divisor of scores in the loss on images: its own `tau`, or the temperature passed to it."""
        return float(self.temperature("icm").detach()) if self.loss.tau is None else self.loss.tau

    def forward(self, batch: Batch, step: int = 0) -> StepResult:
        """Score the batch's positives and negatives in step number `step`, and apply the loss."""
        self.calls.step = step
        scores = self._corpus_scores(batch) if batch.negatives is not None else self._batch_scores(batch)
        if batch.clean is not None:
            scores = scores.of_rows(batch.clean)
        if "target" in scores.slots and math.isnan(self.hardest_share):
            self._watch_hardest(scores.slots["target"], batch.keep)
        with full_precision(self.device):
            value = loss_of_slots(
                self.loss, self.slots, scores.positive, scores.slots, self.temperature("icm"), scores.extras
            )
        if self.hybrid is not None:
            value = value + self.hybrid(scores.members, self.temperature)
        count = sum(int(part.mask.sum()) for part in scores.slots.values())
        return StepResult(value, count, scores.pools, scores.shared)

    def _watch_hardest(self, negatives: SlotNegatives, keep: int | None) -> None:
        """Have the backward pass set `hardest_share`, if the queries may have more than ten negatives.

        Args:
            negatives: of slot "target".
            keep: as in `Batch`.
        """
        scores = negatives.scores
        most = scores.shape[1] if keep is None else min(scores.shape[1], keep)
        if most > HARDEST and scores.requires_grad:
            # detached: a hook that holds its own tensor keeps the step's graph alive
            scores.register_hook(partial(self._note_share, scores.detach(), negatives.mask))

    def _note_share(self, scores: Tensor, mask: Tensor, gradient: Tensor) -> None:
        """Set `hardest_share` from negatives' scores, their bool mask and the loss's gradient in them, all [B, M]."""
        many = mask.sum(1) > HARDEST
        if many.any():
            scores = scores[many]
            mask = mask[many]
            sizes = gradient[many].abs().where(mask, 0)  # elsewhere it may be the target's
            hardest = scores.where(mask, -math.inf).topk(HARDEST).indices
            self.hardest_share = float((sizes.gather(1, hardest).sum(1) / sizes.sum(1)).nanmean())

    def _queries(self, batch: Batch) -> _Queries:
        pictures = self.scene.train.references[batch.rows]
        tokens = {name: value.to(self.device) for name, value in batch.tokens.items()}
        inputs = QueryInputs(batch.rows, pictures, self._features(pictures), tokens)
        query = self.calls.queries(inputs)
        subs: dict[str, SubQuery] = {}
        if self.loss.uses_aspects and isinstance(self.backbone, HasSubQueries):
            subs = self.calls.sub_queries(inputs)
        return _Queries(inputs, query, subs)

    def _features(self, pictures: Tensor) -> Tensor:
        """Return [B, L, C] features of pictures [B] int64: stored, or computed with gradients if fine-tuned."""
        if self.scene.frozen:
            return self.scene.source(pictures)
        return self.calls.image_features(self.scene.source, pictures)

    def _embed_candidates(self, columns: Tensor, *, sparing: bool = False) -> Tensor:
        """Return [C, T, D] candidate tokens of corpus images; those of many stored features pass in parts.

        `sparing`: `_spare` follows.
        """
        pictures = self.scene.train.images[columns]
        if sparing or (len(columns) > EMBED_BATCH and self.scene.frozen):
            return self.calls.many_candidates(self.scene.source, pictures, sparing=sparing)
        return self.calls.candidates(self._features(pictures), pictures)

    # --- corpus strategies: one positive and M drawn negatives a query --------------------------------------------

    def _corpus_scores(self, batch: Batch) -> _Scores:
        assert batch.negatives is not None
        queries = self._queries(batch)
        targets = self.scene.train.dataset.target_columns[batch.rows]
        columns = torch.cat([targets[:, None], batch.negatives], dim=1)  # [B, 1 + M]
        needed = torch.cat([columns.flatten(), self._further_images(batch.rows)])
        distinct, position = torch.unique(needed, return_inverse=True)
        position = position[: columns.numel()].reshape(columns.shape)
        images = _Images(distinct, self._embed_candidates(distinct, sparing=self._sparing))
        with full_precision(self.device):
            tokens = _rows_of(images.tokens, position.to(self.device))  # [B, 1 + M, T, D]
            scores = paired_relevance(queries.query, tokens)
            others = self._draws_of_others(batch, queries, tokens[:, 0], images, position[:, 1:])
        positive = scores[:, 0]
        guide = self._guide_scores(batch.rows, distinct)
        if guide is not None:
            guide = guide.gather(1, position[:, 1:].to(guide.device))
        drawn = SlotNegatives(scores[:, 1:], torch.ones_like(scores[:, 1:], dtype=torch.bool), guide=guide)
        if others is not None:
            guide = self._guide_scores(batch.rows, others.columns)
            drawn = SlotNegatives.side_by_side([drawn, SlotNegatives(others.scores, others.mask, guide=guide)])
        slots: dict[Slot, SlotNegatives] = {"target": drawn}
        choice = None
        rule = batch_rule(self.strategy)
        if rule is not None:  # a union adds members of the batch to the draws
            choice = self._choose(rule, batch, queries, tokens[:, 0])
            slots = join_members(drawn, choice.slots)
        with full_precision(self.device):
            aspects = _aspects_of_draws(queries, tokens, others, choice)
            extras = self._extras(aspects, batch, queries.query, images, choice, others)
        if self._sparing:
            self._spare(positive, slots, extras, position.unique())
        allowed = {} if choice is None else choice.allowed
        if self.hybrid is not None and "target" not in allowed:
            allowed |= {"target": self._allowed_members("target", batch)}
        members = Members(queries.inputs, tokens[:, 0], allowed)
        shared = None if others is None else self._count_shared(batch, others)
        return _Scores(positive, slots, extras, None, members, shared)

    def _draws_of_others(
        self, batch: Batch, queries: _Queries, targets: Tensor, images: _Images, position: Tensor
    ) -> _Others | None:
        """Return the draws of the batch's other queries as each query's negatives; None unless the strategy shares.

        Args:
            batch: of B queries with M draws each.
            queries: their queries.
            targets: [B, T, D] tokens of their targets.
            images: what was embedded.
            position: [B, M] index of each draw among `images`.
        """
        if not shares_draws(self.strategy):
            return None
        split = self.scene.train
        rows = batch.rows
        used, token_rows = position.flatten().unique(return_inverse=True)
        columns = images.columns[used]
        tokens = images.tokens[used.to(images.tokens.device)]
        scores = relevance(queries.query, tokens)
        allowed = split.allowed_images(rows, columns, self.mining)
        if self.filters.active:
            positive = paired_relevance(queries.query, targets[:, None])
            with_targets = torch.cat([split.dataset.target_columns[rows], columns])
            planes = self._planes(rows, queries.inputs, with_targets, torch.cat([targets, tokens]).detach())
            view = ScoreView(
                scores=torch.cat([positive, scores], dim=1).detach(),
                target=torch.zeros(len(rows), dtype=torch.int64, device=scores.device),
                allowed=torch.cat([torch.zeros_like(allowed[:, :1]), allowed], dim=1).to(scores.device),
                temperature=self.divisor,
                dim=queries.query.shape[1],
                planes={name: of_slot(plane, "bank") for name, plane in planes.items()},
            )
            allowed &= self.filters.keep(view)[:, 1:].to(allowed.device)
        query = torch.arange(len(rows))
        drawn_for = query.repeat_interleave(position.shape[1])
        mask = allowed[:, token_rows] & (drawn_for[None, :] != query[:, None])
        columns = columns[token_rows]
        token_rows = token_rows.to(scores.device)
        return _Others(columns, scores[:, token_rows], mask.to(scores.device), tokens, token_rows)

    def _count_shared(self, batch: Batch, others: _Others) -> Tensor | None:
        """Return `StepResult.shared`."""
        answers = self.scene.train.dataset.answers
        relevant = self.scene.train.relevant_images(batch.rows, others.columns)
        if answers is None or relevant is None:
            return None
        has_answers = answers.lengths[batch.rows] > 0  # of the others only the target is known to be relevant
        mask = others.mask.cpu() & has_answers[:, None]
        return torch.stack([mask.sum(1), (mask & relevant).sum(1)], dim=1).float()

    # --- batch strategies: the batch's own members, in each slot that the strategy corrupts -----------------------

    def _batch_scores(self, batch: Batch) -> _Scores:
        queries = self._queries(batch)
        targets = self.scene.train.dataset.target_columns[batch.rows]
        embedded = self._embed_candidates(targets)
        assert isinstance(self.strategy, BatchStrategy)
        choice = self._choose(self.strategy, batch, queries, embedded)
        with full_precision(self.device):
            aspects = []
            for name, sub in queries.subs.items():
                scores = relevance(sub.embeddings.float(), embedded)
                aspects.append(AspectScores(name, scores.diagonal(), scores, sub.weight, sub.present))
            columns = self._further_images(batch.rows)
            if len(columns):
                tokens = self._embed_candidates(columns, sparing=self._sparing)
            elif self.loss.candidate_set == "pair":  # reads no candidates
                tokens = embedded
            else:
                columns, first = _first_of_each(targets)
                tokens = embedded[first.to(embedded.device)]
            extras = self._extras(aspects, batch, queries.query, _Images(columns, tokens), choice)
        if self._sparing:
            self._spare(choice.positive, choice.slots, extras, used=columns[:0])
        members = Members(queries.inputs, embedded, choice.allowed)
        return _Scores(choice.positive, choice.slots, extras, choice.pools, members)

    def _choose(self, rule: BatchStrategy, batch: Batch, queries: _Queries, embedded: Tensor) -> _Chosen:
        """Let a batch strategy choose among the batch's members and the images of its bank."""
        split = self.scene.train
        by_slot = slot_scores(self.calls, queries.inputs, queries.query, embedded, rule.corrupts)
        corrupts: set[Slot] = {*rule.corrupts} - {"bank"}
        if "triple" in corrupts:  # its negatives are made of those of the modification
            corrupts.add("modification")
        allowed = {slot: self._allowed_members(slot, batch) for slot in corrupts}
        columns = split.dataset.target_columns[batch.rows]
        tokens = embedded.detach()
        bank = None
        images: dict[Slot, Tensor] = {"target": columns}
        if isinstance(rule, BankStrategy):
            images["bank"], bank, allowed["bank"] = self._bank(rule, batch.rows, tokens)
            columns = torch.cat([columns, images["bank"]])
            tokens = torch.cat([tokens, bank])
            with full_precision(self.device):
                by_slot["bank"] = relevance(queries.query, bank)
        planes = self._planes(batch.rows, queries.inputs, columns, tokens)
        inputs = ChoiceInputs(
            temperature=self.divisor,
            queries=queries.query,
            bank=bank,
            relevant=split.relevant_images(batch.rows, columns),
            kinds=split.dataset.kind_table(batch.rows, columns) if split.dataset.kinds else None,
            planes=planes,
            filters=self.filters,
            keep=batch.keep,
            seed=batch.seed,
        )
        slots, pools = choose(rule, by_slot, allowed, inputs)
        return _Chosen(by_slot["target"].diagonal(), slots, pools, allowed, images)

    def _planes(self, rows: Tensor, inputs: QueryInputs, columns: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Return name -> [B, C] further scores of images, of `columns` [C] int64 with `tokens` [C, T, D]."""
        with full_precision(self.device):
            planes = batch_planes(self.reads, self.calls, inputs, tokens)
        return planes | {name: plane.block(rows, columns) for name, plane in self.offline.items()}

    def _guide_scores(self, rows: Tensor, columns: Tensor) -> Tensor | None:
        """Return [B, C] scores of images [C] by the run's guide; None if the loss reads none."""
        if "guide" not in self.loss.reads:
            return None
        return self.offline["guide"].block(rows, columns)

    def _bank(self, rule: BankStrategy, rows: Tensor, target_tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the bank: [K] int64 columns, [K, T, D] embeddings without a gradient, [B, K] bool allowed images.

        Args:
            rule: says what the bank holds.
            rows: [B] queries.
            target_tokens: [B, T, D] tokens of their targets; a queue appends them first, as XBM does.
        """
        split = self.scene.train
        if rule.queue:
            self.memory.push(target_tokens, split.dataset.target_columns[rows], rule.queue)
            columns = self.memory.columns
            tokens = self.memory.tokens
            return columns, tokens, split.allowed_images(rows, columns, self.mining)
        columns = self._gallery(rows)
        with torch.no_grad():
            tokens = self._embed_candidates(columns)
        allowed = split.allowed_images(rows, columns, self.mining) & self._in_own_group(rows, columns)
        return columns, tokens, allowed

    def _allowed_members(self, slot: Slot, batch: Batch) -> Tensor:
        """Return `Split.batch_allowed` under the run's mining options."""
        return self.scene.train.batch_allowed(slot, batch.rows, self.mining)

    # --- further inputs of some losses -----------------------------------------------------------------------------

    @cached_property
    def _in_group(self) -> Tensor:
        """[G, N] bool: which images each gallery group has."""
        dataset = self.scene.train.dataset
        members = torch.zeros(len(dataset.groups), len(dataset.images), dtype=torch.bool)
        for row, columns in zip(members, dataset.groups.values(), strict=True):
            row[columns] = True
        return members

    def _in_own_group(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return [B, C] bool: which images are in a query's own gallery group."""
        return self._in_group[self.scene.train.dataset.group_index[rows]][:, columns]

    def _further_images(self, rows: Tensor) -> Tensor:
        """Return [C] int64 columns of the images that the loss needs besides the batch's targets and negatives."""
        kind = self.loss.candidate_set
        if kind == "corpus":
            return self._gallery(rows)
        answers = self.scene.train.dataset.answers
        if kind == "relevant" and answers is not None:
            relevant: Tensor = answers.select(rows).values
            columns: Tensor = relevant.unique()
            return columns
        return torch.empty(0, dtype=torch.int64)

    def _gallery(self, rows: Tensor) -> Tensor:
        """Return [C] int64 columns of the rows' gallery groups."""
        groups = self.scene.train.dataset.group_index[rows].unique()
        return self._in_group[groups].any(0).nonzero().squeeze(1)

    def _negative_images(self, batch: Batch, choice: _Chosen | None, others: _Others | None) -> Tensor:
        """Return [B, N] bool: images drawn as negatives, for the query or others, or chosen by a batch strategy."""
        negative = torch.zeros(len(batch.rows), len(self.scene.train.images), dtype=torch.bool)
        if batch.negatives is not None:
            negative.scatter_(1, batch.negatives, True)
        if choice is not None:
            for slot in choice.images.keys() & choice.slots.keys():
                columns = choice.images[slot]
                mask = choice.slots[slot].mask[:, : len(columns)]  # without synthetic negatives
                row, member = mask.cpu().nonzero(as_tuple=True)
                negative[row, columns[member]] = True
        if others is not None:
            row, member = others.mask.cpu().nonzero(as_tuple=True)
            negative[row, others.columns[member]] = True
        return negative

    def _extras(
        self,
        aspects: list[AspectScores],
        batch: Batch,
        query: Tensor,
        images: _Images,
        choice: _Chosen | None,
        others: _Others | None = None,
    ) -> LossExtras:
        """Combine the aspects with the candidates, besides the negatives, that the loss ranks the target against.

        Args:
            aspects: scores under sub-queries.
            batch: of B queries.
            query: [B, D].
            images: distinct ones; the batch's targets, the query's corpus or its relevant images among them are
                candidates.
            choice: a batch strategy's choice, if any; these images and the drawn ones are not candidates.
            others: draws of other queries that are negatives of a query, if any: not candidates either.
        """
        targets = self.scene.train.dataset.target_columns[batch.rows]
        guide = self._guide_scores(batch.rows, targets)
        extras = LossExtras(aspects, bias=self.scalars.bias, guide=None if guide is None else guide.diagonal())
        if self.loss.candidate_set == "pair":
            return extras
        mask = self._candidates(batch, images.columns, choice, others)
        tokens = images.tokens
        if self.loss.candidate_set == "relevant":
            columns = mask.any(0)
        elif self.loss.candidate_set == "batch":
            columns = torch.isin(images.columns, targets)
        else:
            columns = torch.ones(len(images.columns), dtype=torch.bool)
        if not bool(columns.all()):
            tokens = tokens[columns.to(tokens.device)]
            mask = mask[:, columns]
        return replace(extras, candidates=relevance(query, tokens), mask=mask.to(query.device))

    def _candidates(self, batch: Batch, columns: Tensor, choice: _Chosen | None, others: _Others | None) -> Tensor:
        """Return [B, C] bool: which of the images [C] are a query's candidates; arguments as of `_extras`."""
        train = self.scene.train
        rows = batch.rows
        if self.loss.candidate_set == "relevant":
            relevant = train.relevant_images(rows, columns)
            assert relevant is not None  # `_check_positives`
            return relevant & (columns[None, :] != train.dataset.target_columns[rows][:, None])
        mask = train.allowed_images(rows, columns, self.mining)
        mask &= ~self._negative_images(batch, choice, others)[:, columns]
        if self.loss.candidate_set == "corpus":
            mask &= self._in_own_group(rows, columns)
        return mask

    @property
    def _sparing(self) -> bool:
        """Whether images of the corpus that weigh little get no gradient of their own."""
        return self.loss.least_weight > 0 and torch.is_grad_enabled()

    def _spare(self, positive: Tensor, slots: Mapping[Slot, SlotNegatives], extras: LossExtras, used: Tensor) -> None:
        """Leave out the gradient of candidates that weigh less than `least_weight` for every query.

        Args:
            positive: [B] scores of the targets.
            slots: negatives by slot.
            extras: holds the scores of the candidates.
            used: indices of the candidates that are a query's target or a negative, too.
        """
        home = slots["target"] if "target" in slots else next(iter(slots.values()))
        assert extras.candidates is not None
        assert extras.mask is not None
        with torch.no_grad(), full_precision(self.device):
            inputs = LossInput(
                positive=positive,
                negatives=home.scores,
                mask=home.mask,
                weights=torch.ones_like(home.scores) if home.weights is None else home.weights,
                temperature=self.temperature("icm"),
                candidates=extras.candidates,
                candidate_mask=extras.mask,
            )
            light = self.loss.candidate_weights(inputs).amax(0) < self.loss.least_weight
        light[used.to(light.device)] = False
        self.calls.spare(light)


def _aspects_of_draws(
    queries: _Queries, tokens: Tensor, others: _Others | None, choice: _Chosen | None
) -> list[AspectScores]:
    """Score the targets and negatives of slot "target" under each sub-query.

    Args:
        queries: B queries with their sub-queries.
        tokens: [B, 1 + M, T, D] of each query's target and draws.
        others: draws of other queries that are negatives, if any.
        choice: members of the batch that are negatives, if any.
    """
    aspects = []
    for name, sub in queries.subs.items():
        embeddings = sub.embeddings.float()
        parts = [paired_relevance(embeddings, tokens)]
        if others is not None:
            parts.append(relevance(embeddings, others.tokens)[:, others.token_rows])
        if choice is not None and "target" in choice.slots:
            parts.append(relevance(embeddings, tokens[:, 0]))
        scores = torch.cat(parts, dim=1)
        aspects.append(AspectScores(name, scores[:, 0], scores[:, 1:], sub.weight, sub.present))
    return aspects


def _rows_of(table: Tensor, index: Tensor) -> Tensor:
    """Return `table[index]`; on a CPU by copying rows, whose gradients add up twice as fast, in the same order."""
    if table.device.type != "cpu":  # there such a sum has no fixed order
        return table[index]
    return table.index_select(0, index.flatten()).view(*index.shape, *table.shape[1:])


def _first_of_each(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Return the [C] distinct int64 columns among [B], and the [C] position of each one's first occurrence."""
    distinct, position = torch.unique(columns, return_inverse=True)
    indices = torch.arange(len(columns))
    return distinct, torch.full_like(distinct, len(columns)).scatter_reduce_(0, position, indices, "amin")
