"""Published behaviours against runs whose numbers were written by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from negbench.config import build_config, resolved
from negbench.mining.behaviours import published_behaviours
from negbench.runfolder import RunFolder

CARD = {"band_start_median": 0.9, "false_negatives": 0.02, "false_negatives_above": 0.1}


def finished(
    path: Path,
    strategy: str,
    *,
    sizes: tuple[float, ...] = (),
    cards: tuple[dict[str, Any], ...] = (CARD, CARD),
    metric: tuple[float, ...] = (),
    loss: tuple[float, ...] = (),
    behaviour: dict[str, Any] | None = None,
    refreshes: tuple[int, ...] = (2, 4),
) -> RunFolder:
    """A run folder: pool sizes by refresh, cards of which the last is the end's, curves by epoch."""
    folder = RunFolder(path)
    config = resolved(build_config([{"strategy": strategy}]))
    folder.write_manifest({"config": config.model_dump(mode="json"), "dataset": {"scored": "val"}})
    points = [{"step": 0, "epoch": -1, "val/main": 0.99}]  # the untrained model is no part of the training
    points += [{"step": epoch, "epoch": epoch, "val/main": value} for epoch, value in enumerate(metric)]
    points += [{"step": epoch, "epoch": epoch, "train/loss": value} for epoch, value in enumerate(loss)]
    folder.write_metrics(points)
    folder.write_result(
        {
            "main_metric": "main",
            "refresh_epochs": list(refreshes),
            "behaviour": behaviour or {},
            "behaviour_by_refresh": [{"epoch": 2.0 * n, "pool_size": size} for n, size in enumerate(sizes)],
            "regime": cards[-1],
            "regime_by_refresh": list(cards[:-1]),
        }
    )
    return folder


def marks(folder: RunFolder) -> list[Any]:
    """(shown, value) of each."""
    return [(found.shown, found.value) for found in published_behaviours(folder)]


def card(**values: float | None) -> dict[str, Any]:
    return {**CARD, **values}


def test_sets_shrink(tmp_path: Path) -> None:
    assert marks(finished(tmp_path / "a", "dqe", sizes=(9, 7, 5)))[0] == (True, pytest.approx(-2))
    assert marks(finished(tmp_path / "b", "dqe", sizes=(5, 4, 9)))[0] == (False, pytest.approx(2))
    (shown, value), *_ = marks(finished(tmp_path / "c", "dqe", sizes=(5,)))
    assert shown is None
    assert math.isnan(value)


def test_the_band_rises_after_the_warm_up(tmp_path: Path) -> None:
    start, up, end = card(band_start_median=0.9), card(band_start_median=0.3), card(band_start_median=0.95)
    assert marks(finished(tmp_path / "a", "qure", cards=(start, up, end)))[1] == (True, pytest.approx(0.6))
    assert marks(finished(tmp_path / "b", "qure", cards=(up, start, up)))[1] == (False, pytest.approx(-0.6))
    assert marks(finished(tmp_path / "c", "qure", cards=(start, up)))[1][0] is None  # up is the end's
    unknown = card(band_start_median=None)
    assert marks(finished(tmp_path / "d", "qure", cards=(start, unknown, up)))[1][0] is None


def test_curves_that_fall_late(tmp_path: Path) -> None:
    up, fallen = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6), (0.1, 0.5, 0.6, 0.55, 0.54, 0.53)
    for strategy, curve, want in (
        ("top-k", up, (False, 0.0)),
        ("top-k", fallen, (True, 0.07)),
        ("top-k", (*up, 0.597), (False, 0.003)),  # no more than noise
        ("after-target", up, (False, 0.1)),
        ("after-target", fallen, (True, -0.01)),
        ("all-corpus", up, (True, 0.1)),
        ("all-corpus", fallen, (False, -0.01)),
    ):
        (found,) = marks(finished(tmp_path / f"{strategy}{len(curve)}{curve[-1]}", strategy, metric=curve))
        assert found == (want[0], pytest.approx(want[1], abs=1e-9))


def test_what_a_redefinition_does(tmp_path: Path) -> None:
    metric, loss = (0.1, 0.2, 0.5, 0.6, 0.7), (5.0, 4.0, 4.5, 3.5, 3.0)
    lifts, raises, above = marks(finished(tmp_path / "a", "cirqrs", metric=metric, loss=loss, refreshes=(2,)))
    assert lifts == (True, pytest.approx(0.3 - 0.1))
    assert raises == (True, pytest.approx(0.5 + 1.0))
    assert above == (False, 0.1)
    flat, *_ = marks(finished(tmp_path / "b", "cirqrs", metric=(0.1, 0.3, 0.4, 0.6, 0.8), refreshes=(2,)))
    assert flat == (False, pytest.approx(0.1 - 0.2))
    mostly = card(false_negatives_above=0.6)
    assert marks(finished(tmp_path / "c", "cirqrs", cards=(CARD, mostly)))[2] == (True, 0.6)
    unknown = card(false_negatives_above=None)
    assert [shown for shown, _ in marks(finished(tmp_path / "d", "cirqrs", cards=(mostly, unknown)))] == [None] * 3


def test_draws_against_random_ones(tmp_path: Path) -> None:
    clean = {"false_negative_rate_draws": 0.005, "band_mean": 0.6}
    _, cleaner, harder = marks(finished(tmp_path / "a", "dqe", behaviour=clean))
    assert cleaner == (True, pytest.approx(0.015))
    assert harder == (False, pytest.approx(-0.1))
    dirty = {"false_negative_rate_draws": 0.03, "band_mean": 0.2}
    assert [shown for shown, _ in marks(finished(tmp_path / "b", "dqe", behaviour=dirty))][1:] == [False, True]
    unknown = {"false_negative_rate_draws": None, "band_mean": None}
    assert [shown for shown, _ in marks(finished(tmp_path / "c", "dqe", behaviour=unknown))][1:] == [None, None]


def test_of_other_strategies_nothing_is_published(tmp_path: Path) -> None:
    assert published_behaviours(finished(tmp_path / "a", "in-batch")) == []
    names = [found.source for found in published_behaviours(finished(tmp_path / "b", "dqe"))]
    assert names == ["DQE-CIR fig. 7", "DQE-CIR sec. 3.3", "DQE-CIR sec. 3.3"]
