import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from negbench.api import make_strategy
from negbench.contracts.splitmix import splitmix
from negbench.errors import NegbenchError
from negbench.metrics.ragged import Ragged
from negbench.mining.mine import mine
from negbench.mining.task import MiningTask
from negbench.own.miner import Miner
from negbench.settings.layers import parse_plugin

Q, N, D = 30, 40, 8


def _world(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return embeddings of queries and images, and the row of each query's target."""
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(Q, D, generator=generator)
    images = 3 * torch.randn(N, D, generator=generator)
    return queries, images, torch.randint(N, (Q,), generator=generator)


def _unit(values: Tensor) -> Tensor:
    return values / values.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize("strategy", ["top-k:k=7", "qure:variant=release", "simans:k=9", "all-corpus"])
def test_it_is_the_engines_mining(strategy):
    queries, images, targets = _world()
    excluded = [[target - target % 2] for target in targets.tolist()]
    relevant = [[(target + 2) % N] if row % 2 else [] for row, target in enumerate(targets.tolist())]
    with_targets = []
    for target, images_of_query in zip(targets.tolist(), relevant, strict=True):
        with_targets.append([target, *images_of_query] if images_of_query else [])
    mined = Miner(strategy, draws=4, seed=5, refreshes=2).refresh(
        queries, images, targets, excluded=excluded, relevant=relevant
    )
    task = MiningTask(
        queries=_unit(queries),
        candidates=_unit(images)[:, None],
        target=targets,
        group=targets * 0,
        groups=[torch.arange(N)],
        excluded=Ragged.of(excluded),
        relevant=Ragged.of(with_targets),
    )
    seed = int(splitmix(torch.tensor(5), torch.tensor(2))) & (2**63 - 1)
    generator = torch.Generator().manual_seed(seed)
    want = mine(task, make_strategy(**parse_plugin(strategy)), refresh=2, draws=4, generator=generator)
    assert torch.equal(mined.negatives, want.negatives)
    for field in ("pool_size", "hardness", "fallback", "false_negative_rate_pool", "target_rank"):
        assert torch.equal(getattr(mined, field).nan_to_num(-1), getattr(want, field).nan_to_num(-1)), field
    for row, negatives in enumerate(mined.negatives.tolist()):
        assert set(negatives).isdisjoint(excluded[row]), f"query {row}"


def test_numpy_torch_and_precision_agree():
    queries, images, targets = _world()
    want = Miner("top-k:k=5", draws=3).refresh(queries, images, targets).negatives
    of_numpy = Miner("top-k:k=5", draws=3).refresh(queries.numpy(), images.numpy(), targets.numpy().astype(np.int32))
    doubles = Miner("top-k:k=5", draws=3, device="cpu").refresh(
        queries.double().requires_grad_(), images.double()[:, None], targets.tolist()
    )
    assert torch.equal(of_numpy.negatives, want)
    assert torch.equal(doubles.negatives, want)


@pytest.mark.gpu
def test_a_device_gives_the_same():
    on_cpu = _world()
    on_gpu = [values.cuda() for values in on_cpu]
    want = Miner("top-k:k=5", draws=3).refresh(*on_cpu).negatives
    assert torch.equal(Miner("top-k:k=5", draws=3).refresh(*on_gpu).negatives, want)
    assert torch.equal(Miner("top-k:k=5", draws=3, device="cuda").refresh(*on_cpu).negatives, want)


def _pool(query: Tensor, images: Tensor, target: Tensor) -> set[int]:
    """Return the eight images other than the target with the highest cosines."""
    cosines = _unit(images) @ _unit(query)
    return set(cosines.scatter(0, target, -9.0).topk(8).indices.tolist())


def test_overlap_is_that_of_the_pools_of_two_refreshes():
    queries, images, targets = _world()
    moved = queries + 0.5 * _world(1)[0]
    miner = Miner("top-k:k=8", draws=2, seed=3)
    assert miner.refresh(queries, images, targets).overlap.isnan().all()
    overlap = miner.refresh(moved, images, targets).overlap
    assert miner.refreshes == 2
    for row in range(Q):
        before = _pool(queries[row], images, targets[row])
        after = _pool(moved[row], images, targets[row])
        assert float(overlap[row]) == pytest.approx(len(before & after) / len(before | after)), row


def test_a_refresh_that_changes_no_pool_is_stale():
    queries, images, targets = _world()
    miner = Miner("top-k:k=8", draws=2)
    miner.refresh(queries, images, targets)
    with pytest.warns(UserWarning, match="stale pools: this refresh changed no pool; was the model trained"):
        assert miner.refresh(queries, images, targets).stale


def test_another_task_has_no_earlier_pools_to_compare_with():
    queries, images, targets = _world()
    miner = Miner("top-k:k=8", draws=2)
    miner.refresh(queries, images, targets)
    assert miner.refresh(queries[:9], images, targets[:9]).overlap.isnan().all()
    assert miner.refreshes == 2


def test_draws_depend_on_the_seed_and_the_number_of_the_refresh():
    queries, images, targets = _world()
    moved = queries + 0.5 * _world(1)[0]
    miner = Miner("top-k:k=8", draws=2, seed=3)
    miner.refresh(queries, images, targets)
    second = miner.refresh(moved, images, targets).negatives
    begun_at_second = Miner("top-k:k=8", draws=2, seed=3, refreshes=1).refresh(moved, images, targets)
    assert torch.equal(begun_at_second.negatives, second)
    of_another_seed = Miner("top-k:k=8", draws=2, seed=4, refreshes=1).refresh(moved, images, targets)
    assert not torch.equal(of_another_seed.negatives, second)


def test_the_count_of_refreshes_reaches_the_strategy():
    miner = Miner("cirqrs:n_neg=16")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sizes = [int(miner.refresh(*_world()).pool_size.max()) for _ in range(3)]
    assert sizes == [16, 8, 4]


_QUERIES, _IMAGES, _TARGETS = _world()


MISTAKES: list[tuple[dict[str, Any], str]] = [
    (
        {"query_embeddings": _QUERIES.where(torch.arange(Q)[:, None] != 3, torch.nan)},
        r"query_embeddings row 3 holds NaN or infinity.*\(1 such rows\)",
    ),
    ({"image_embeddings": _IMAGES / 0}, r"image_embeddings row 0 holds NaN or infinity.*\(40 such rows\)"),
    ({"query_embeddings": _QUERIES * 1e30}, "query_embeddings row 0 .* longer than 1e19"),
    ({"image_embeddings": _IMAGES * 1e-16}, "image_embeddings row 0 is the zero vector or nearly so"),
    ({"image_embeddings": _IMAGES * (torch.arange(N) != 6)[:, None]}, "image_embeddings row 6 is the zero vector"),
    ({"query_embeddings": _QUERIES[:, :5]}, r"with the same D, got \(30, 5\) and \(40, 8\)"),
    ({"query_embeddings": _QUERIES[0]}, r"query_embeddings must be numbers, \[rows, width\], got \(8,\)"),
    ({"image_embeddings": _IMAGES.to(torch.complex64)}, r"image_embeddings must be numbers.*complex64"),
    ({"image_embeddings": np.array([["a"]])}, r"image_embeddings: its vectors must be numbers, got <U1"),
    ({"query_embeddings": _QUERIES[:0]}, r"query_embeddings must be numbers.*\(0, 8\)"),
    ({"targets": _TARGETS[:4]}, r"targets must be 30 whole numbers, got \(4,\) int64"),
    ({"targets": _TARGETS.float()}, r"targets must be 30 whole numbers, got \(30,\) float32"),
    (
        {"targets": torch.where(torch.arange(Q) == 2, _TARGETS + N, _TARGETS)},
        r"targets: query 2 names image \d+, expected 0 ... 39",
    ),
    ({"targets": _TARGETS * 0 - 1}, "targets: query 0 names image -1, expected 0 ... 39"),
    ({"excluded": [[1]]}, "excluded must have a row for each of the 30 queries, got 1"),
    ({"excluded": [[1], [99], *[[]] * 28]}, "excluded: query 1 names an image outside 0 ... 39"),
    ({"relevant": [[-1], *[[]] * 29]}, "relevant: query 0 names an image outside 0 ... 39"),
    ({"excluded": [list(range(N))] * Q}, r"query \d+: no image of its corpus"),
]


@pytest.mark.parametrize(("changes", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_a_mistake_is_one_line(changes, message):
    arguments = {"query_embeddings": _QUERIES, "image_embeddings": _IMAGES, "targets": _TARGETS, **changes}
    with pytest.raises(NegbenchError, match=message) as error:
        Miner("top-k").refresh(**arguments)
    assert "\n" not in str(error.value)


def test_bad_options_are_one_line(mistakes, subtests):
    for case in mistakes["miner"]:
        with subtests.test(case["message"]), pytest.raises(NegbenchError, match=case["message"]):
            Miner(**case["given"])
