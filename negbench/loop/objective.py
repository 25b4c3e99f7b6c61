"""One training step as a module: a batch's rows to a scalar loss, for strategies of either scope and any loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from negbench.config import HybridConfig, MiningConfig
from negbench.contracts import AspectScores, Backbone, Loss, ScoreView, Slot, Strategy, paired_relevance, relevance
from negbench.loop.hybrid import HybridTerms, Members
from negbench.mining.mine import batch_statistics
from negbench.scene import Scene, Tokens

# stands for "no negative" under an aspect: below every cosine, so that no hinge with a margin below 2 is active there
_NO_SCORE = -4.0


@dataclass(frozen=True)
class Batch:
    """Rows of one step.

    Attributes:
        rows: [B] int64 train queries.
        negatives: [B, M] int64 columns of the corpus drawn for them; None for batch strategies.
        tokens: tokenised texts of the rows.
    """

    rows: Tensor
    negatives: Tensor | None
    tokens: Tokens


@dataclass(frozen=True)
class StepResult:
    """`loss` is a scalar with a gradient; `negatives` counts those seen; `statistics` are means over the batch."""

    loss: Tensor
    negatives: int
    statistics: dict[str, float]


@dataclass(frozen=True)
class _Scores:
    """Scores of a step: positives [B], negatives [B, M] with mask and weights, the same under each aspect.

    `members` is what they were made of, for further terms; None where there are none.
    """

    positive: Tensor
    negatives: Tensor
    mask: Tensor | None
    weights: Tensor | None
    aspects: Sequence[AspectScores]
    statistics: dict[str, float]
    members: Members | None = None


class Objective(nn.Module):
    """Loss of a batch under a strategy.

    A module, so that `accelerate` can wrap it for several processes; its parameters are the backbone's.
    """

    def __init__(
        self,
        backbone: Backbone,
        strategy: Strategy,
        loss: Loss,
        scene: Scene,
        mining: MiningConfig,
        hybrid: HybridConfig | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.strategy = strategy
        self.loss = loss
        self.scene = scene
        self.mining = mining
        self.hybrid: HybridTerms | None = None
        if hybrid is not None and hybrid.active:
            self.hybrid = HybridTerms(hybrid, backbone, loss, scene.train.dataset, strategy.corrupts)

    def forward(self, batch: Batch) -> StepResult:
        """Score the batch's positives and negatives, and apply the loss."""
        scores = self._corpus_scores(batch) if batch.negatives is not None else self._batch_scores(batch)
        value = self.loss(
            scores.positive.float(),
            scores.negatives.float(),
            scores.mask,
            scores.weights,
            temperature=self.backbone.temperature,
            aspects=scores.aspects,
        )
        if self.hybrid is not None and scores.members is not None:
            value = value + self.hybrid(scores.members)
        count = scores.negatives.numel() if scores.mask is None else int(scores.mask.sum())
        return StepResult(value, count, scores.statistics)

    # --- corpus strategies: one positive and M drawn negatives a query --------------------------------------------

    def _corpus_scores(self, batch: Batch) -> _Scores:
        split, device = self.scene.train, self.backbone.temperature.device
        assert batch.negatives is not None
        reference = self.scene.features(self.backbone, split.references[batch.rows])
        tokens = {name: value.to(device) for name, value in batch.tokens.items()}
        query = self.backbone.queries(reference, tokens)
        columns = torch.cat([split.dataset.target_columns[batch.rows][:, None], batch.negatives], dim=1)
        distinct, position = torch.unique(columns, return_inverse=True)
        candidates = self.backbone.candidates(self.scene.features(self.backbone, split.images[distinct]))
        chosen = candidates[position.to(candidates.device)]  # [B, 1 + M, T, D]
        scores = paired_relevance(query, chosen)
        aspects = [
            AspectScores(name, found[:, 0], found[:, 1:], weight)
            for name, (sub, weight) in self._sub_queries(reference, tokens).items()
            for found in [paired_relevance(sub, chosen)]
        ]
        members = None
        if self.hybrid is not None:
            allowed: dict[Slot, Tensor] = {
                "target": split.batch_allowed("target", batch.rows, batch.tokens, self.mining)
            }
            members = Members(batch.rows, tokens, reference, chosen[:, 0], allowed)
        return _Scores(scores[:, 0], scores[:, 1:], None, None, aspects, {}, members)

    # --- batch strategies: the batch's own members, in each slot that the strategy corrupts -----------------------

    def _batch_scores(self, batch: Batch) -> _Scores:
        split, device = self.scene.train, self.backbone.temperature.device
        reference = self.scene.features(self.backbone, split.references[batch.rows])
        tokens = {name: value.to(device) for name, value in batch.tokens.items()}
        query = self.backbone.queries(reference, tokens)
        targets = split.dataset.target_columns[batch.rows]
        candidates = self.backbone.candidates(self.scene.features(self.backbone, split.images[targets]))
        own = torch.arange(len(batch.rows), device=device)
        by_slot: dict[Slot, Tensor] = {"target": relevance(query, candidates)}
        if set(self.strategy.corrupts) - {"target"}:
            # cross[r, p] composes reference r with text p, and is scored against the target that the triple keeps
            cross = self.backbone.cross_queries(reference, tokens)
            by_slot["modification"] = torch.einsum("ijd,itd->ijt", cross, candidates).amax(-1)
            by_slot["reference"] = torch.einsum("jid,itd->ijt", cross, candidates).amax(-1)
        pools, statistics = [], dict[str, float]()
        known = split.batch_relevant(batch.rows)
        allowed = {
            slot: split.batch_allowed(slot, batch.rows, batch.tokens, self.mining) for slot in self.strategy.corrupts
        }
        for slot in self.strategy.corrupts:
            oracle = known if slot == "target" and self.strategy.reads_truth else None
            view = ScoreView(by_slot[slot].detach().float(), own, allowed[slot].to(device), 0, oracle)
            pools.append(self.strategy.pool(view))
            if slot == "target":
                statistics = batch_statistics(view, pools[-1], None if known is None else known.to(device))
        pool = torch.cat([p.float() if any(q.is_floating_point() for q in pools) else p for p in pools], dim=1)
        mask = pool > 0 if pool.is_floating_point() else pool
        negatives = torch.cat([by_slot[slot] for slot in self.strategy.corrupts], dim=1)
        aspects = [
            AspectScores(name, found.diagonal(), self._target_slot_only(found), weight)
            for name, (sub, weight) in self._sub_queries(reference, tokens).items()
            for found in [relevance(sub, candidates)]
        ]
        weights = pool if pool.is_floating_point() else None
        members = Members(batch.rows, tokens, reference, candidates, allowed)
        return _Scores(by_slot["target"].diagonal(), negatives, mask, weights, aspects, statistics, members)

    def _sub_queries(self, reference: Tensor, tokens: Tokens) -> dict[str, tuple[Tensor, Tensor]]:
        return self.backbone.sub_queries(reference, tokens) if self.loss.uses_aspects else {}

    def _target_slot_only(self, found: Tensor) -> Tensor:
        """[B, B * slots]: aspect scores where the target is corrupted; other slots' triples have no sub-query."""
        empty = torch.full_like(found, _NO_SCORE)
        return torch.cat([found if slot == "target" else empty for slot in self.strategy.corrupts], dim=1)
