"""Pools and bands found by selection and counts equal, bit for bit, those of fully sorted rows.

Tested with torch alone, and with the compiled passes where numba is installed.
"""

import importlib.util
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from negbench.contracts import ScoreView
from negbench.errors import NegbenchError
from negbench.machine import files
from negbench.machine.files import SUMS
from negbench.metrics import _numba, compiled, ranks
from negbench.metrics.drops import between_drops
from negbench.metrics.ranks import at_most, descending, less, nearest_below, positions, tally, top_columns
from negbench.strategies.qure import Qure

ROWS, COLUMNS = 12, 700
NUMBA = importlib.util.find_spec("numba") is not None
needs_numba = pytest.mark.skipif(not NUMBA, reason="numba is not installed")


def use_path(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let selections and counts be done by torch, or by the compiled passes."""
    monkeypatch.setattr(compiled, "SMALLEST", 0 if path == "compiled" else 2**62)
    monkeypatch.setattr(ranks, "_BINS", COLUMNS - 1)  # in bins, as longer rows


@pytest.fixture(params=["torch", pytest.param("compiled", marks=needs_numba)])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    use_path(request.param, monkeypatch)
    return str(request.param)


def rows_by_kind() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    scores = torch.randn(ROWS, COLUMNS, generator=generator)
    one = torch.tensor([333])
    two = torch.tensor([5, 600])
    ends = torch.tensor([[1.0], [-1.0]])
    return {
        "random": scores,
        "tied": (scores * 4).round() / 4,
        "negative": -scores.abs() - 1,
        "half": scores.half(),
        "bfloat16": scores.bfloat16(),
        "double": scores.double() + 1e-12 * torch.randn(ROWS, COLUMNS, generator=generator).double(),
        "equal": torch.full((ROWS, COLUMNS), -0.25),
        "two values": torch.where(scores > 0, 0.5, -0.0),
        "one outlier": torch.zeros(ROWS, COLUMNS).index_copy(1, one, ends.repeat(ROWS // 2, 1)),
        "rising": torch.arange(COLUMNS).float().expand(ROWS, -1) / COLUMNS,
        "two outliers": scores.index_fill(1, two, 40.0) - scores.new_tensor([100.0] + [0.0] * (COLUMNS - 1)),
        "clustered": scores * 1e-6 + torch.arange(COLUMNS) % 5,
        "lopsided": -(scores.double().exp() ** 8).float(),
        "subnormal": scores * 1e-40,
        "huge": scores * 1e37,
    }


KINDS = rows_by_kind()


def view_of(kind: str, refresh: int = 0) -> ScoreView:
    """Return a view: a third of the columns excluded, nearly all in the last rows; targets at both ends and between."""
    scores = KINDS[kind]
    generator = torch.Generator().manual_seed(8)
    allowed = torch.rand(ROWS, COLUMNS, generator=generator) > 0.33
    for row, count in ((-1, 3), (-2, 1), (-3, 30)):
        allowed[row] = torch.arange(COLUMNS) < count
    target = torch.randint(COLUMNS, (ROWS,), generator=generator)
    target[0] = scores[0].argmax()
    target[1] = scores[1].argmin()
    return ScoreView(scores, target, allowed, refresh)


def below(view: ScoreView) -> Tensor:
    return view.allowed & (view.scores < view.positive[:, None])


def sorted_qure(strategy: Qure, view: ScoreView) -> Tensor:
    """Return the pools row by row: sort the row and walk over all real drops in a stable descending order."""
    pool = torch.zeros_like(view.allowed)
    position = positions(view.scores, below(view))
    order = descending(view.scores)
    for row in range(ROWS):
        columns = order[row][below(view)[row, order[row]]]
        values = view.scores[row, columns].to(torch.promote_types(view.scores.dtype, torch.float32))
        drops = values[:-1] - values[1:]
        walk = [at for at in drops.argsort(descending=True, stable=True).tolist() if drops[at] > 0]
        gap = 0 if strategy.variant == "paper" else strategy.consecutive_threshold
        pairs = [(a, b) for a, b in pairwise(walk) if abs(a - b) > gap]
        if pairs:
            low, high = sorted(pairs[0])
            pool[row] = (position[row] > low) & (position[row] <= high)
    return pool


QURES = (Qure(), *(Qure(variant="release", consecutive_threshold=t) for t in (0, 1, 60, 500)))


@pytest.mark.usefixtures("path")
def test_pools_are_those_of_sorted_rows():
    for kind in KINDS:
        view = view_of(kind, refresh=2)
        for strategy in QURES:
            assert torch.equal(strategy.pool(view), sorted_qure(strategy, view)), f"{kind}, {strategy}"


@pytest.mark.usefixtures("path")
def test_windows_are_those_of_sorted_rows():
    for kind in KINDS:
        view = view_of(kind)
        generator = torch.Generator().manual_seed(9)
        position = positions(view.scores, view.allowed)
        near = positions(view.scores, below(view))[1:]
        start = torch.randint(0, COLUMNS, (ROWS,), generator=generator)
        stop = torch.randint(0, COLUMNS + 5, (ROWS,), generator=generator)  # may lie below start or behind the end
        want = view.allowed & (position >= start[:, None]) & (position < stop[:, None])
        assert torch.equal(view.window(view.allowed, stop, start), want), kind
        want = near.argmin(1).where(near.amin(1) == 0, -1)
        rows = torch.arange(1, ROWS)
        assert torch.equal(nearest_below(view.scores, rows, view.allowed[1:], view.positive), want), kind
        for k in (0, 1, 3, 20, 21, 22, COLUMNS, COLUMNS + 1):
            assert torch.equal(view.window(view.allowed, k), view.allowed & (position < k)), f"{kind}, k={k}"


@pytest.mark.usefixtures("path")
def test_the_best_columns_are_those_of_sorted_rows():
    for kind in KINDS:
        scores = KINDS[kind].float()
        for k in (1, 20, 300, COLUMNS):
            assert torch.equal(top_columns(scores, k), descending(scores)[:, :k]), f"{kind}, k={k}"


@needs_numba
def test_without_a_folder_for_machine_code_torch_does_it(subtests, tmp_path, monkeypatch, request):
    (tmp_path / "file").write_bytes(b"")
    use_path("compiled", monkeypatch)
    request.addfinalizer(compiled._load_kernels.cache_clear)
    for folder, fits in ((tmp_path / "file", False), (tmp_path / "new", True)):
        with subtests.test(folder=folder.name):
            monkeypatch.setenv("NEGBENCH_CACHE", str(folder))
            compiled._load_kernels.cache_clear()
            assert (compiled.kernels(torch.zeros(2, 3)) is not None) == fits


@needs_numba
def test_machine_code_is_kept_and_what_is_not_listed_is_compiled_again(subtests, tmp_path, monkeypatch):
    """The files themselves stay sound: one that numba must not read is only taken from the list."""
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path))

    def hits() -> int:
        add_one = _numba.compiled(_add_one)
        assert add_one(1) == 2
        return sum(add_one.stats.cache_hits.values())

    assert [hits(), hits()] == [0, 1]
    (sums,) = tmp_path.rglob(SUMS)
    whole = sums.read_text()
    for unlisted in (".nbi", ".nbc"):
        with subtests.test(unlisted=unlisted):
            sums.write_text("".join(line for line in whole.splitlines(keepends=True) if unlisted not in line))
            assert [hits(), hits()] == [0, 1]
    with monkeypatch.context() as full:
        full.setattr(files, "lock_file", refuse)
        assert hits() == 0


def _add_one(number):
    return number + 1


def refuse(path: Path) -> None:
    raise NegbenchError(f"cannot write {path.parent}")


def test_the_compiled_passes_are_what_runs(path):
    assert (compiled.kernels(torch.zeros(2, 3)) is None) == (path == "torch")
    assert compiled.kernels(torch.zeros(2, 3).double()) is None
    assert compiled.kernels(torch.zeros(3, 2).T) is None


def same_drops(scores: Tensor, eligible: Tensor, apart: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    use_path("torch", monkeypatch)
    want = between_drops(scores, eligible, apart)
    use_path("compiled", monkeypatch)
    return torch.equal(between_drops(scores, eligible, apart), want)


@needs_numba
@pytest.mark.parametrize("kind", KINDS)
def test_drops_are_those_of_torch(kind, monkeypatch):
    """Compiled drops equal torch's on many rows, because drops that differ in the last bit only are rare."""
    generator = torch.Generator().manual_seed(10)
    for width in (1, 2, 3, 17, 3000):
        columns = torch.randint(COLUMNS, (40, width), generator=generator)
        scores = KINDS[kind].float()[torch.arange(40) % ROWS].gather(1, columns)
        scores = scores + (width == 3000) * 1e-3 * torch.randn(scores.shape, generator=generator)
        eligible = torch.rand(scores.shape, generator=generator) > torch.rand(40, 1, generator=generator)
        for apart in (0, 1, 3, 40):
            assert same_drops(scores, eligible, apart, monkeypatch), (width, apart)


@needs_numba
@pytest.mark.parametrize("apart", [0, 1, 3, 10])
def test_drops_that_hardly_differ(subtests, apart, monkeypatch):
    """Compiled drops equal torch's where a walk follows slowly falling drops, beyond what bins separate at once."""
    generator = torch.Generator().manual_seed(15)
    for spread in (0.001, 0.01, 0.03, 0.1):
        with subtests.test(spread=spread):
            falls = 1 - 0.01 * torch.arange(70) + spread * torch.randn(200, 70, generator=generator)
            scores = -falls.cumsum(1)[:, torch.randperm(70, generator=generator)]
            assert same_drops(scores, scores < 0, apart, monkeypatch)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_comparisons_are_those_of_torch(subtests, dtype):
    one = torch.tensor([[0.2, 0.0, torch.nan], [-1.0, torch.inf, 0.3]]).to(dtype)
    other = torch.tensor([[-0.0], [0.3]]).to(dtype)
    for compare, plain in ((less, torch.lt), (at_most, torch.le)):
        with subtests.test(compare=compare.__name__):
            assert torch.equal(compare(one, other), plain(one, other))
            assert torch.equal(compare(other, one), plain(other, one))
            assert torch.equal(compare(one, 0.2), plain(one, 0.2))
            assert torch.equal(compare(0.2, one), plain(torch.full_like(one, 0.2), one))


@pytest.mark.usefixtures("path")
def test_counts_of_a_pool():
    for kind in KINDS:
        view = view_of(kind)
        generator = torch.Generator().manual_seed(11)
        pool = view.allowed & (torch.rand(ROWS, COLUMNS, generator=generator) > 0.5)
        pool |= view.allowed & (pool.sum(1, keepdim=True) == 0)
        for members in (pool, view.allowed):
            drawn = members.int().argmax(1)
            counts = tally(view.scores, view.allowed, members, view.target, drawn)
            for row in range(ROWS):
                scores = view.scores[row][view.allowed[row]]
                inside = view.scores[row][members[row]]
                assert counts.size[row] == len(inside), f"{kind}, row {row}"
                assert counts.reached[row] == (scores >= view.positive[row]).sum(), f"{kind}, row {row}"
                assert counts.ahead[row] == (scores > view.scores[row, drawn[row]]).sum(), f"{kind}, row {row}"
                if len(inside) < len(scores):  # the ends of a full pool are unused
                    assert counts.first[row] == (scores > inside.max()).sum(), f"{kind}, row {row}"
                    assert counts.last[row] == (scores >= inside.min()).sum() - 1, f"{kind}, row {row}"
