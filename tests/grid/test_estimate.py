"""The estimate: counts by closed forms, seconds of the right size, and no trace left in models or generators."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from negbench.cli.compare import build_grid
from negbench.config import build_config, resolved
from negbench.display import Display
from negbench.features import store as features
from negbench.grid import compare, estimate
from negbench.loop import train as engine
from negbench.scene import load_backbone


def cells_of(toy_sets: list[str], runs: Path, strategies: str, *sets: str, seeds: str = "1") -> list[compare.Cell]:
    axes = {"strategies": strategies, "losses": None, "backbones": None, "datasets": None, "seeds": seeds}
    return compare.plan(build_grid(axes, {}, None, [*toy_sets, *sets], None), runs, Display())


def test_nothing_is_left_behind(toy_sets: list[str], tmp_path: Path) -> None:
    parts = compare.Parts()
    axes = {"strategies": "qure,hycole", "losses": None, "backbones": None, "datasets": None, "seeds": "1"}
    cells = compare.plan(build_grid(axes, {}, None, toy_sets, None), tmp_path, Display(), parts)
    before = torch.get_rng_state()
    found = estimate.estimate(cells, workers=1, parts=parts)
    assert torch.equal(before, torch.get_rng_state())
    assert not list(tmp_path.iterdir())
    kept, fresh = parts.backbone(cells[0].config), load_backbone(cells[0].config.backbone, 0)
    for (name, value), other in zip(kept.state_dict().items(), fresh.state_dict().values(), strict=True):
        assert torch.equal(value, other), name
    assert len(found.by_cell) == 2
    assert all(seconds > 0 for seconds in found.by_cell)


def test_longer_runs_take_longer(toy_sets: list[str], tmp_path: Path) -> None:
    """What a run adds grows with epochs; what the estimate measures is noisy, so the counts are compared, not times."""
    (short,) = cells_of(toy_sets, tmp_path, "in-batch", "train.epochs=2")
    parts = compare.Parts()
    sample = estimate._Sample(short.config, parts)
    few, many = (
        sample.run_seconds(resolved(build_config([short.config.model_dump(mode="json"), {"train": {"epochs": e}}])))
        for e in (10, 20)
    )
    assert few > 0
    steps = -(-len(sample.train.queries) // 16)
    queries, images = len(sample.val.queries), len(sample.val.images)
    pairs = sum(12 * len(columns) for columns in sample.val.groups.values())
    point = queries * sample.per_query + images * sample.per_image + pairs * sample.per_scored
    step = next(iter(sample._steps.values()))
    each = steps * step + point + estimate._EPOCH_SECONDS + sample.checkpoint_seconds
    assert many - few == pytest.approx(10 * each)


@pytest.mark.slow
def test_within_a_factor_of_the_truth(toy_sets: list[str], tmp_path: Path) -> None:
    """Processor time, on a machine that others use; a factor of two is meant on an idle one."""
    cells = cells_of(toy_sets, tmp_path, "qure,in-batch", "train.epochs=40", "schedule.n_def=8", seeds="2")
    compare.compute(cells[:2], name="warm", runs=tmp_path / "warm", tracking_uri="none")
    found = estimate.estimate(cells, workers=1, tracked=False)
    started = time.process_time()
    compare.compute(cells, name="c", runs=tmp_path, tracking_uri="none")
    spent = time.process_time() - started
    assert found.seconds / 3 < spent < 3 * found.seconds
    stored = sum(file.stat().st_size for file in tmp_path.glob("*-s[01]-*/*"))
    assert found.disk_bytes / 2 < stored < 2 * found.disk_bytes


def test_images_to_encode(toy_sets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path / "cache"))
    cells = cells_of(toy_sets, tmp_path, "qure,in-batch", "backbone.weights='shipped'", seeds="2")
    found = estimate.estimate(cells, workers=1)
    dataset = compare.Parts().splits(cells[0].config)
    files = {image: part.files.path(image) for part in dataset for image in part.all_images if part.files}
    distinct = len(set(features.content_hashes(files, tmp_path / "other").values()))
    assert found.images == distinct > 0  # once, for four cells
    assert found.feature_bytes == distinct * 64 * 2
    assert f"{distinct} images to encode" in found.line()
    compare.encode(cells, Display())
    after = estimate.estimate(cells, workers=1)
    assert after.images == 0
    assert "encode" not in after.line()


def test_workers_share_the_work(toy_sets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate._Sample, "run_seconds", lambda *_: 100.0)
    monkeypatch.setattr(estimate._Sample, "encoding", lambda *_: (0, 0.0, 0))
    monkeypatch.setattr(estimate.os, "cpu_count", lambda: 4)
    cells = cells_of(toy_sets, tmp_path, "in-batch,qure,top-k,dqe")
    alone = estimate.estimate(cells, workers=1, tracked=False)
    assert alone.seconds == 400
    assert alone.line().startswith("about 7 min with 1 worker, ")
    idle = 50 + estimate._WORKER_SECONDS
    assert estimate.estimate(cells, workers=2, tracked=False).seconds == 200 + idle
    assert estimate.estimate(cells, workers=64, tracked=False).seconds == 100 + idle
    tracked = estimate.estimate(cells, workers=1)
    assert tracked.seconds > alone.seconds
    assert tracked.disk_bytes > alone.disk_bytes


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (40, "40 s"), (89.4, "89 s"), (120, "2 min"), (5400, "1.5 h"), (36000, "10.0 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert estimate._duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(10, "1 MiB"), (5 * 2**20, "5 MiB"), (3 * 2**29, "1.5 GiB")])
def test_sizes(count: float, text: str) -> None:
    assert estimate._size(count) == text


def test_the_plan_knows_a_run_s_hash(toy_sets: list[str], tmp_path: Path) -> None:
    """Without encoding anything, also where the train split loses its dev part."""
    (cell,) = cells_of(toy_sets, tmp_path, "in-batch", "eval.select=dev")
    opened = engine.open_run(cell.config, Display(), engine.Scenes())
    assert cell.hash == opened.hash
    assert cell.data == opened.scene.identity
