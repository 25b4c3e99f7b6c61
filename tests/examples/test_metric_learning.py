from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

pytest.importorskip("pytorch_metric_learning", reason="PyTorch Metric Learning is not installed: pip install '.[dev]'")


def _triplets(*found: torch.Tensor) -> set[tuple[int, ...]]:
    return set(zip(*(part.tolist() for part in found), strict=True))


def test_semi_hard_triplets_are_those_of_its_own_miner(example: Callable[[str], ModuleType]) -> None:
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.miners import TripletMarginMiner

    generator = torch.Generator().manual_seed(0)
    embeddings, labels = torch.randn(24, 8, generator=generator), torch.arange(24) % 6
    own = TripletMarginMiner(margin=0.2, type_of_triplets="semihard", distance=CosineSimilarity())
    want = _triplets(*own(embeddings, labels))
    ours = example("metric_learning").StrategyMiner("semi-hard:margin=0.2", draws=40)  # more than any pool holds
    assert _triplets(*ours(embeddings, labels)) == want
    assert want


def test_references_and_a_loss(example: Callable[[str], ModuleType]) -> None:
    from pytorch_metric_learning.losses import TripletMarginLoss

    generator = torch.Generator().manual_seed(1)
    embeddings, labels = torch.randn(8, 4, generator=generator).requires_grad_(), torch.arange(8) % 4
    memory, known = torch.randn(20, 4, generator=generator), torch.arange(20) % 4
    miner = example("metric_learning").StrategyMiner("top-k:k=3", draws=2)
    anchors, positives, negatives = miner(embeddings, labels, memory, known)
    assert len(anchors) == 8 * 5 * 2
    assert (labels[anchors] == known[positives]).all()
    assert (labels[anchors] != known[negatives]).all()
    TripletMarginLoss()(embeddings, labels, (anchors, positives, negatives), memory, known).backward()
    assert embeddings.grad is not None
    assert embeddings.grad.abs().sum() > 0


def test_one_label_alone_has_no_triplet(example: Callable[[str], ModuleType]) -> None:
    found = example("metric_learning").StrategyMiner("top-k")(torch.randn(4, 3), torch.zeros(4))
    assert [len(part) for part in found] == [0, 0, 0]
