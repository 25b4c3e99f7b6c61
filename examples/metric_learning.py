"""Any strategy of negbench as a miner of PyTorch Metric Learning; needs pytorch-metric-learning.

    miner = StrategyMiner("simans:a=50")
    loss_of = losses.TripletMarginLoss()
    loss = loss_of(embeddings, labels, miner(embeddings, labels))

With `ref_emb` and `ref_labels` (a `CrossBatchMemory`, say) negatives come from there.
"""

from __future__ import annotations

from pytorch_metric_learning.miners import BaseMiner
from torch import Tensor

import negbench


class StrategyMiner(BaseMiner):  # type: ignore[misc]
    """Triplets (anchor, positive, negative): every pair of one label is a query, other labels are its candidates.

    Pairs for which the strategy finds nothing give no triplet. Scores are cosines.

    Args:
        strategy: corpus strategy of negbench, by name with options or an instance.
        draws: negatives of each pair.
        seed: of the draws, which differ from batch to batch.
    """

    def __init__(self, strategy: str | negbench.Strategy, *, draws: int = 1, seed: int = 0) -> None:
        super().__init__()
        self.strategy, self.draws, self.seed = strategy, draws, seed
        self.batches = 0

    def mine(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Called by the base class, without gradients."""
        same = labels[:, None] == ref_labels[None]
        pairs = same.clone()
        if embeddings is ref_emb:
            pairs.fill_diagonal_(False)
        anchors, positives = (pairs & ~same.all(1, keepdim=True)).nonzero(as_tuple=True)
        self.batches += 1
        if not len(anchors):
            return anchors, positives, positives.clone()
        found = negbench.Miner(self.strategy, draws=self.draws, seed=self.seed + self.batches).refresh(
            embeddings[anchors], ref_emb, positives, excluded=[same[row].nonzero()[:, 0].tolist() for row in anchors]
        )
        some = (found.mined.fallback == 0).to(anchors.device)
        anchors, positives = (part[some].repeat_interleave(self.draws) for part in (anchors, positives))
        return anchors, positives, found.negatives.to(anchors.device)[some].flatten()
