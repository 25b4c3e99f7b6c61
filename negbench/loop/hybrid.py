"""HyCoLe's hybrid terms: text composition and cross-modal matching, from texts that only training sees.

With T_r and T_t the privileged texts of reference and target, and L the run's loss on negatives from the batch::

    total = L(image composition) + alpha * TCM + beta * (RITM + TITM)

    TCM   L of compose(T_r, modification) against the embedding of T_t, corrupted in the strategy's slots
    RITM  L of matching reference image and T_r, the mean over both directions
    TITM  the same of target image and T_t

HyCoLe-HNM (Wang et al., Findings of EMNLP 2022) publishes alpha 0.4 and beta 0.1. Its paper was not at hand: the names
and the weights of the terms are its own, their form is our reading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from negbench.config import HybridConfig
from negbench.contracts import Backbone, Loss, Slot, relevance
from negbench.datasets.dataset import Dataset
from negbench.errors import DataError

Tokens = dict[str, Tensor]


def check_hybrid(config: HybridConfig, backbone: Backbone, dataset: Dataset) -> None:
    """What can be known before any image is encoded.

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
            "add them, or set both to 0"
        )
    if config.alpha > 0 and type(backbone).compose_texts is Backbone.compose_texts:
        backbone.compose_texts((), ())  # raises


@dataclass(frozen=True)
class Members:
    """A batch as its images' side has it already.

    Attributes:
        rows: [B] int64 train queries, on the CPU.
        tokens: of their modifications, on the model's device.
        reference: [B, L, C] features of the reference images.
        target: [B, T, D] candidate tokens of the target images.
        allowed: slot -> [B, B] bool, which members corrupt the triple in that slot.
    """

    rows: Tensor
    tokens: Mapping[str, Tensor]
    reference: Tensor
    target: Tensor
    allowed: Mapping[Slot, Tensor]


@dataclass(frozen=True)
class _Texts:
    """Privileged texts of Q queries: tokens, which queries have one, and a number that equal texts share."""

    tokens: Tokens
    present: Tensor
    number: Tensor

    @classmethod
    def of(cls, texts: Sequence[str | None], backbone: Backbone) -> _Texts:
        numbers: dict[str, int] = {}
        filled = [text or "" for text in texts]
        number = torch.tensor([numbers.setdefault(text, len(numbers)) for text in filled], dtype=torch.int64)
        return cls(backbone.tokenize(filled), torch.tensor([bool(text) for text in filled]), number)

    def rows(self, rows: Tensor, device: torch.device) -> _Texts:
        """Those of a batch, the tokens on `device`."""
        tokens = {name: value[rows].to(device) for name, value in self.tokens.items()}
        return _Texts(tokens, self.present[rows], self.number[rows])

    @property
    def distinct(self) -> Tensor:
        """[B, B] bool: column j has a text, and it is not row i's."""
        return (self.number[:, None] != self.number[None, :]) & self.present[None, :]


class HybridTerms:
    """alpha * TCM + beta * (RITM + TITM) of a batch. Queries without a text take no part in the terms that need it.

    Args:
        config: the two weights.
        backbone: scores, and tokenises the privileged texts once.
        loss: the run's.
        dataset: the train split.
        corrupts: slots of the run's strategy.

    Raises as `check_hybrid` does.
    """

    def __init__(
        self, config: HybridConfig, backbone: Backbone, loss: Loss, dataset: Dataset, corrupts: Sequence[Slot]
    ) -> None:
        check_hybrid(config, backbone, dataset)
        self.config, self.backbone, self.loss, self.corrupts = config, backbone, loss, tuple(corrupts)
        self._reference = _Texts.of([query.reference_text for query in dataset.queries], backbone)
        self._target = _Texts.of([query.target_text for query in dataset.queries], backbone)

    def __call__(self, members: Members) -> Tensor:
        """Scalar."""
        device = members.target.device
        reference, target = (texts.rows(members.rows, device) for texts in (self._reference, self._target))
        embedded = self.backbone.text_embeddings(target.tokens)
        total = embedded.new_zeros(())
        if self.config.alpha > 0:
            total = total + self.config.alpha * self._text_composition(members, reference, target, embedded)
        if self.config.beta > 0:
            images = self.backbone.candidates(members.reference)
            reference_match = self._matching(self.backbone.text_embeddings(reference.tokens), images, reference)
            total = total + self.config.beta * (reference_match + self._matching(embedded, members.target, target))
        return total

    def _text_composition(self, members: Members, reference: _Texts, target: _Texts, embedded: Tensor) -> Tensor:
        """TCM: what a composed text scores against the target's text, and the same triple corrupted slot by slot."""
        by_slot: dict[Slot, Tensor] = {}
        if set(self.corrupts) - {"target"}:
            # cross[r, p] composes text r with modification p, and is scored against the target that the triple keeps
            cross = self.backbone.cross_texts(reference.tokens, members.tokens)
            composed = cross.diagonal().T
            by_slot["modification"] = torch.einsum("ijd,id->ij", cross, embedded)
            by_slot["reference"] = torch.einsum("jid,id->ij", cross, embedded)
        else:
            composed = self.backbone.compose_texts(reference.tokens, members.tokens)
        by_slot["target"] = composed @ embedded.T
        valid = {
            "target": target.distinct,
            "reference": reference.distinct,
            "modification": torch.ones_like(target.distinct),
        }
        rows = (reference.present & target.present)[:, None]
        mask = torch.cat([members.allowed[slot].cpu() & valid[slot] & rows for slot in self.corrupts], dim=1)
        negatives = torch.cat([by_slot[slot] for slot in self.corrupts], dim=1)
        return self._loss(by_slot["target"].diagonal(), negatives, mask)

    def _matching(self, texts: Tensor, images: Tensor, own: _Texts) -> Tensor:
        """RITM or TITM: [B, D] texts with [B, T, D] images, text to image and image to text."""
        scores = relevance(texts, images)
        mask = own.distinct & own.present[:, None]
        return (self._loss(scores.diagonal(), scores, mask) + self._loss(scores.diagonal(), scores.T, mask)) / 2

    def _loss(self, positive: Tensor, negatives: Tensor, mask: Tensor) -> Tensor:
        mask = mask.to(negatives.device)
        return self.loss(positive.float(), negatives.float(), mask, temperature=self.backbone.temperature)
