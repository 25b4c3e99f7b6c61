"""HyCoLe's hybrid terms: text composition and cross-modal matching, from texts that only training sees.

HyCoLe-HNM (Wang et al., Findings of EMNLP 2022), sec. 2.2-2.3. With T_r and T_t the privileged texts of reference and
target, L the run's loss (InfoNCE in the paper) on negatives from the batch, and f the backbone's composition::

    total = ICM + alpha * TCM + beta * (RITM + TITM)                                                    (eq. 5)

    ICM   the run's own loss: f(reference, modification) against the target image, corrupted by the strategy    (eq. 3)
    TCM   the same for texts: f(T_r, modification) against T_t                                                  (eq. 4)
    RITM  L of matching reference image and T_r, the sum of both directions                                     (eq. 1)
    TITM  the same for target image and T_t                                                                     (eq. 1)

Published: alpha 0.4, beta 0.1, and a trainable temperature for each of the four, initially e^-1 (`LossScalars`).
ICM and TCM add one softmax per corrupted slot; the body of eq. 3 and 4 is damaged in our copy of the paper, and
`hybrid.slots = "joint"` is the other reading.
Departures: the paper does not mention masking equal members of a batch. Here a text, reference or target that equals
the query's own is not a negative, nor is anything that the run excludes. A term skips queries without the texts that
it needs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from negbench.contracts import Backbone, Calls, ComposesTexts, Loss, Outline, QueryInputs, Slot, Strategy, relevance
from negbench.data.scene import Tokens, allowed_triples, frozen_texts
from negbench.datasets.dataset import Dataset
from negbench.errors import DataError, NegbenchError, OptionError
from negbench.loop.slots import SlotNegatives, choose_triples, loss_of_slots
from negbench.mining.composite import slots_of
from negbench.settings.config import OWN_TEMPERATURES, HybridConfig

MIN_TEMPERATURE = 0.01  # CLIP's bound


def check_hybrid(config: HybridConfig, backbone: Backbone | Outline, dataset: Dataset) -> None:
    """Check the hybrid terms before any image is encoded.

    Raises:
        DataError: no query of the train split has both privileged texts.
        NegbenchError: alpha > 0 with a backbone that does not compose texts.
    """
    if not config.active:
        return
    if not any(query.reference_text and query.target_text for query in dataset.queries):
        raise DataError(
            f"hybrid.alpha and hybrid.beta need texts of reference and target, and {dataset.card.name} "
            f"{dataset.split} has none (FashionIQ: add its asin2attr.CATEGORY.train.json files): "
            "add them, or --set hybrid.alpha=0 --set hybrid.beta=0"
        )
    outline = Outline.of(backbone)
    if config.alpha > 0 and not issubclass(outline.kind, ComposesTexts):
        raise NegbenchError(
            f"backbone '{outline.name}' has no text composition: --set hybrid.alpha=0, or --backbone clip"
        )


class LossScalars(nn.Module):
    """What a run trains besides its backbone: a temperature for each term, and the bias of a loss that has one.

    A term's temperature (HyCoLe-HNM eq. 1, 3, 4) is initially e^-1, and at least 0.01 (as CLIP's). At the bound the
    gradient is that of the unbounded value, so that a temperature can rise again.

    Args:
        terms: that have a temperature of their own.
        start_bias: where the bias starts; None: there is none.
    """

    def __init__(self, terms: Sequence[str], start_bias: float | None = None) -> None:
        super().__init__()
        self.log = nn.ParameterDict({term: nn.Parameter(torch.tensor(-1.0)) for term in terms})
        self.bias = None if start_bias is None else nn.Parameter(torch.tensor(start_bias))

    @classmethod
    def of(cls, config: HybridConfig, loss: Loss) -> Self:
        """Return the scalars that a run trains; no temperature if all terms use the backbone's.

        Raises:
            OptionError: `hybrid.temperature = "own"` with a loss that fixes `tau`.
        """
        if config.temperature == OWN_TEMPERATURES and loss.tau is not None:
            raise OptionError(
                f"hybrid.temperature = 'own', but loss.tau = {loss.tau} fixes the temperature: leave one of them out"
            )
        of_backbone = config.temperature == "backbone" or (config.temperature == "auto" and not config.active)
        if of_backbone or loss.tau is not None or not loss.uses_temperature:
            return cls((), loss.start_bias)
        names: tuple[str, ...] = ("icm",)
        if config.alpha > 0:
            names += ("tcm",)
        if config.beta > 0:
            names += ("ritm", "titm")
        return cls(names, loss.start_bias)

    def temperatures(self) -> dict[str, float]:
        """Return term -> temperature, for records."""
        return {term: float(self(term).detach()) for term in self.log}

    def forward(self, term: str) -> Tensor:
        """Return the term's temperature, a scalar > 0; raise KeyError for a term without one."""
        free: Tensor = self.log[term].exp()
        return free + (free.clamp(min=MIN_TEMPERATURE) - free).detach()


@dataclass(frozen=True)
class Members:
    """Inputs, targets and masks of a batch, as computed for the loss on images.

    Attributes:
        inputs: the queries, with their references and modifications.
        target: [B, T, D] candidate tokens of the target images.
        allowed: slot -> [B, B] bool, which members may corrupt the triple in that slot ([B, B, B] for "triple",
            which also needs "modification").
    """

    inputs: QueryInputs
    target: Tensor
    allowed: Mapping[Slot, Tensor]


@dataclass(frozen=True)
class _Texts:
    """Privileged texts of Q queries: tokens, which queries have one, and a number that equal texts share."""

    tokens: Tokens
    present: Tensor
    number: Tensor

    @classmethod
    def of(cls, texts: Sequence[str | None], backbone: Backbone) -> Self:
        numbers: dict[str, int] = {}
        filled = [text or "" for text in texts]
        number = torch.tensor([numbers.setdefault(text, len(numbers)) for text in filled], dtype=torch.int64)
        tokens = frozen_texts(backbone, backbone.tokenize(filled))
        return cls(tokens, torch.tensor([bool(text) for text in filled]), number)

    def rows(self, rows: Tensor, device: torch.device) -> "_Texts":
        """Select a batch's rows, with the tokens on `device`."""
        tokens = {name: value[rows].to(device) for name, value in self.tokens.items()}
        return _Texts(tokens, self.present[rows], self.number[rows])

    @property
    def distinct(self) -> Tensor:
        """[B, B] bool: column j has a text, and it is not row i's."""
        return (self.number[:, None] != self.number[None, :]) & self.present[None, :]


class HybridTerms:
    """alpha * TCM + beta * (RITM + TITM) of a batch; a term skips queries without the texts that it needs.

    Args:
        config: the two weights, and how several slots enter TCM.
        calls: of the backbone, which scores, and tokenises the privileged texts once.
        loss: the run's.
        dataset: the train split.
        strategy: the run's; TCM corrupts its slots with every member of the batch ("triple": with those it chooses).

    Raises as `check_hybrid` does.
    """

    def __init__(self, config: HybridConfig, calls: Calls, loss: Loss, dataset: Dataset, strategy: Strategy) -> None:
        check_hybrid(config, calls.backbone, dataset)
        self.config = config
        self.calls = calls
        self.loss = loss
        self.strategy = strategy
        self.read(dataset)

    def read(self, dataset: Dataset) -> None:
        """Switch to the texts of another epoch's train split."""
        self._reference = _Texts.of([query.reference_text for query in dataset.queries], self.calls.backbone)
        self._target = _Texts.of([query.target_text for query in dataset.queries], self.calls.backbone)

    def __call__(self, members: Members, temperature: Callable[[str], Tensor]) -> Tensor:
        """Return the weighted sum, a scalar; `temperature` maps "tcm", "ritm" and "titm" to their temperatures."""
        device = members.target.device
        inputs = members.inputs
        reference = self._reference.rows(inputs.rows, device)
        target = self._target.rows(inputs.rows, device)
        embedded = self.calls.text_queries(target.tokens, inputs.rows, "target text")
        total = embedded.new_zeros(())
        if self.config.alpha > 0:
            composed = self._text_composition(members, reference, target, embedded, temperature("tcm"))
            total = total + self.config.alpha * composed
        if self.config.beta > 0:
            images = self.calls.candidates(inputs.features, inputs.pictures)
            texts = self.calls.text_queries(reference.tokens, inputs.rows, "reference text")
            ritm = self._matching(texts, images, reference, temperature("ritm"))
            titm = self._matching(embedded, members.target, target, temperature("titm"))
            total = total + self.config.beta * (ritm + titm)
        return total

    def _text_composition(
        self, members: Members, reference: _Texts, target: _Texts, embedded: Tensor, temperature: Tensor
    ) -> Tensor:
        """Return TCM: the loss of composed texts against target texts, corrupted in the strategy's slots."""
        corrupts = slots_of(self.strategy)
        device = embedded.device
        cross: Any = None
        if set(corrupts) - {"target", "query"}:
            # cross[r, p] composes text r with modification p
            cross = self.calls.cross_texts(reference.tokens, members.inputs)
            composed = cross.diagonal().T
        else:
            composed = self.calls.compose_texts(reference.tokens, members.inputs)
        rows = (reference.present & target.present)[:, None]
        with torch.autocast(device.type, enabled=False):
            scores = composed @ embedded.T
            slots: dict[Slot, SlotNegatives] = {}
            for slot in corrupts:
                if slot == "triple":
                    slots[slot] = self._triples(members, reference, target, cross, embedded, rows)
                    continue
                if slot == "target":
                    negatives = scores
                    valid = target.distinct
                elif slot == "query":
                    negatives = scores.T
                    valid = target.distinct & rows.T
                elif slot == "modification":
                    negatives = torch.einsum("ijd,id->ij", cross, embedded)
                    valid = torch.ones_like(rows)
                else:
                    assert slot == "reference"  # `check_objective`: no bank
                    negatives = torch.einsum("jid,id->ij", cross, embedded)
                    valid = reference.distinct
                mask = members.allowed[slot].cpu() & valid & rows
                slots[slot] = SlotNegatives(negatives, mask.to(device))
            return loss_of_slots(self.loss, self.config.slots, scores.diagonal(), slots, temperature)

    def _triples(
        self, members: Members, reference: _Texts, target: _Texts, cross: Tensor, embedded: Tensor, rows: Tensor
    ) -> SlotNegatives:
        """Let the strategy choose among the triples whose texts all exist, for the queries that have both texts."""
        same_reference = reference.number[:, None] == reference.number[None, :]
        same_target = target.number[:, None] == target.number[None, :]
        allowed = allowed_triples(same_reference, ~members.allowed["modification"].cpu(), same_target)
        allowed = allowed & members.allowed["triple"].cpu() & reference.present[:, None, None] & target.present
        cube = relevance(cross.flatten(0, 1), embedded[:, None]).view(*cross.shape[:2], -1)
        negatives = choose_triples(self.strategy, cube, allowed.to(cube.device))
        return replace(negatives, mask=negatives.mask & rows.to(cube.device))

    def _matching(self, embedded: Tensor, images: Tensor, texts: _Texts, temperature: Tensor) -> Tensor:
        """Return RITM or TITM: text-to-image plus image-to-text loss.

        Args:
            embedded: [B, D] texts.
            images: [B, T, D].
            texts: what was embedded.
            temperature: of the term.
        """
        with torch.autocast(embedded.device.type, enabled=False):
            scores = relevance(embedded, images)
            positive = scores.diagonal()
            mask = (texts.distinct & texts.present[:, None]).to(scores.device)
            to_image = self.loss(positive, scores, mask, temperature=temperature)
            to_text = self.loss(positive, scores.T, mask, temperature=temperature)
            return to_image + to_text
