"""Maps: the points and their cells, who is ahead where, crossings against closed forms, the folder read again."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from negbench.cli.main import run as negbench
from negbench.errors import OptionError
from negbench.files import read_json
from negbench.grid.map import Design, Dial, parse_dial, point_label
from negbench.report import map as report
from negbench.scoring.stored import Values
from negbench.statistics import Pairs, pairs
from negbench.tracking import Tracker

DIALS = ("train.lr=0.003,0.03", "train.epochs=1,2")


# --- dials ---------------------------------------------------------------------------------------------------------


def test_dials_are_read_as_set_reads() -> None:
    assert parse_dial("dataset.twins=1, 2,4") == Dial("dataset.twins", (1, 2, 4))
    assert parse_dial("train.precision=fp32,bf16") == Dial("train.precision", ("fp32", "bf16"))
    assert parse_dial("train.lr=1e-3,0.01").numeric
    assert not parse_dial("mining.replacement=true,false").numeric
    assert point_label([Dial("a.x", (1,)), Dial("b.y", ("s",))], (1, "s")) == "x=1, y=s"


@pytest.mark.parametrize("text", ["twins=1,2", "dataset.twins", "dataset.twins=", "dataset.twins=1,1", "a.b.c=1"])
def test_a_dial_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--dial"):
        parse_dial(text)


def test_a_design_is_all_combinations_or_a_sample_of_them(tmp_path: Path) -> None:
    dials = [Dial("a.x", (1, 2)), Dial("a.y", ("s", "t", "u")), Dial("a.z", (0.5, 1.5))]
    whole = Design.of(dials)
    assert whole.points == tuple(itertools.product((1, 2), ("s", "t", "u"), (0.5, 1.5)))
    assert whole.whole
    some = Design.of(dials, 5)
    assert len(set(some.points)) == 5
    assert set(some.points) < set(whole.points)
    assert not some.whole
    assert Design.of(dials, 5) == some != Design.of(dials, 5, seed=1)
    assert set(Design.of(dials, 11).points) < set(whole.points)
    some.write(tmp_path)
    assert Design.read(tmp_path) == some
    with pytest.raises(OptionError, match="fewer than the 12 points"):
        Design.of(dials, 12)


# --- who is ahead ----------------------------------------------------------------------------------------------------


def standings(point: str, **values: np.ndarray[Any, Any]) -> list[report.Standing]:
    table = {name: Values(each, tuple(range(len(each))), None) for name, each in values.items()}
    found = pairs({name: each.values for name, each in table.items()}, generator=np.random.default_rng(0))
    return report._standings(
        point, table, found, dict.fromkeys([(point, name) for name in values], (1.0, 0.5, 0.5)), 0.05
    )


def hits(seed: int, rate: float, shape: tuple[int, int] = (5, 1500)) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(seed).random(shape) < rate).astype(float)


def test_the_best_and_those_it_does_not_beat() -> None:
    found = report.MapResults(
        "recall_at_10",
        Design.of([Dial("d.x", (1,))]),
        tuple(standings("x=1", a=hits(0, 0.5), b=hits(1, 0.2), c=hits(2, 0.5))),
        (),
    )
    point = found.at((1,))
    assert {each.strategy for each in point[:2]} == {"a", "c"} == set(report.unbeaten(point))
    assert point[2].strategy == "b"
    assert point[2].behind == pytest.approx(point[0].mean - point[2].mean)
    assert 0 < point[2].behind_low < point[2].behind < point[2].behind_high
    assert point[0].behind == 0
    assert math.isnan(point[0].behind_low)
    assert "1 points" in report.answer(found)[0]
    assert "in 1 it is not decided" in report.answer(found)[0]


# --- crossings -------------------------------------------------------------------------------------------------------


def test_zeros_by_hand() -> None:
    x = np.array([0.0, 1.0, 3.0])
    found = report._zero(x, np.array([[-1.0, 1.0, 2.0], [3.0, 1.0, -1.0], [-1.0, -2.0, -3.0], [2.0, -2.0, 2.0]]))
    assert found[:2] == pytest.approx([0.5, 2.0])
    assert math.isnan(found[2])
    assert found[3] == pytest.approx(0.5)  # the first of two


def test_dials_that_double_are_read_on_a_logarithmic_scale() -> None:
    x, back = report.scale_of([1, 2, 4, 8])
    assert np.diff(x) == pytest.approx([math.log(2)] * 3)
    assert back(x[2]) == pytest.approx(4)
    assert report.scale_of([-1, 0, 4])[0].tolist() == [-1, 0, 4]
    assert report.scale_of([10, 20, 30])[0].tolist() == [10, 20, 30]


def crossing(tables: dict[float, tuple[float, float]], spread: float = 0.0) -> list[report.Crossing]:
    """Crossings of two strategies with these means at each value of a dial; each query repeats the mean, plus noise."""
    generator = np.random.default_rng(1)
    dial = Dial("d.x", tuple(tables))
    values, tested = dict[str, dict[str, Values]](), dict[str, Pairs]()
    for value, means in tables.items():
        label = point_label([dial], (value,))
        noise = [spread * generator.normal(size=(4, 300)) for _ in means]
        values[label] = {n: Values(m + e, (0, 1, 2, 3), None) for n, m, e in zip("ab", means, noise, strict=True)}
        tested[label] = pairs({n: v.values for n, v in values[label].items()}, generator=np.random.default_rng(0))
    return report._crossings([dial], values, tested)


def test_a_crossing_lies_where_the_lines_do() -> None:
    """a - b is -2, -1, 1 (percent) at 10, 20, 30: on a straight line it is 0 at 25."""
    (found,) = crossing({10: (0.30, 0.32), 20: (0.30, 0.31), 30: (0.32, 0.31)})
    assert (found.before, found.after) == ("b", "a")
    assert found.at == pytest.approx(25)
    assert (found.low, found.high) == pytest.approx((25, 25))
    assert found.share == 1
    assert found.decided
    assert crossing({10: (0.30, 0.32), 20: (0.30, 0.31)}) == []


def test_a_crossing_of_noise_is_not_decided() -> None:
    (found,) = crossing({10: (0.30, 0.301), 20: (0.301, 0.30)}, spread=0.5)
    assert not found.decided
    assert found.low < found.at < found.high
    assert found.share < 1


def test_the_interval_of_a_crossing_covers() -> None:
    """True crossing at 20: of 60 repetitions, about 95 % of the intervals hold it (0.85 allows for 60 and 4 seeds)."""
    inside = 0
    for seed in range(60):
        generator = np.random.default_rng(seed)
        gaps = []
        for value in (10, 30):
            shift = generator.normal(size=(4, 1)) * 0.01
            gap = 0.002 * (value - 20) + shift + 0.2 * generator.normal(size=(4, 400))
            gaps.append(report._resampled(Values(gap, (0, 1, 2, 3), None), Values(0 * gap, (0, 1, 2, 3), None)))
        zeros = report._zero(np.array([10.0, 30.0]), np.stack(gaps, axis=1))
        low, high = np.nanquantile(zeros, [0.025, 0.975])
        inside += low <= 20 <= high
    assert inside / 60 >= 0.85


# --- the command -----------------------------------------------------------------------------------------------------


def test_a_map_from_the_command_line(
    tmp_path: Path, vector_sets: list[str], capsys: pytest.CaptureFixture[str], words_of: Callable[[Path], str]
) -> None:
    sets = [part for text in vector_sets for part in ("--set", text)]
    command = ["map", "--strategies", "all-corpus,top-k", "--seeds", "2", "--runs-dir", str(tmp_path), *sets]
    dials = [part for text in DIALS for part in ("--dial", text)]
    assert negbench([*command, *dials]) == 0
    out = capsys.readouterr().out
    assert "4 points x 2 strategies x 2 seeds: 16 cells, 0 of them finished before" in out
    folder = tmp_path / "map"
    table = pd.read_csv(folder / "map.csv")
    assert len(table) == 8
    cells = read_json(folder / "comparison.json")["cells"]
    assert {cell["point"] for cell in cells} == {f"lr={lr}, epochs={e}" for lr in (0.003, 0.03) for e in (1, 2)}
    for cell in cells:
        config = read_json(tmp_path / cell["run"] / "config.json")["config"]
        assert cell["point"] == f"lr={config['train']['lr']}, epochs={config['train']['epochs']}"
    result = {cell["run"]: read_json(tmp_path / cell["run"] / "result.json") for cell in cells}
    for row in table.itertuples():
        mine = [result[c["run"]] for c in cells if (c["point"], c["strategy"]) == (row.point, row.strategy)]
        assert row.mean == pytest.approx(np.mean([found["metrics"][found["main_metric"]] for found in mine]))
    assert (folder / "map.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "along-lr.png").exists()
    page = words_of(folder / "report" / "index.html")
    for line in read_json(folder / "answer.json")["answer"]:
        assert line.split(",")[0] in page
    client = Tracker.open(tmp_path).client()
    experiment = client.get_experiment_by_name("map")
    (parent,) = client.search_runs([experiment.experiment_id], "tags.`negbench.kind` = 'comparison'")
    assert parent.data.tags["mlflow.note.content"] == "\n\n".join(read_json(folder / "answer.json")["answer"])
    view = json.loads(json.loads(experiment.tags["mlflow.sharedViewState.cells"])["state"])
    assert "tags.`point`" in view["selectedColumns"]
    assert len(client.search_runs([experiment.experiment_id], view["searchFilter"])) == 16
    trained = {run: (tmp_path / run / "result.json").stat().st_mtime_ns for run in result}
    assert negbench([*command, *dials, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {run: (tmp_path / run / "result.json").stat().st_mtime_ns for run in result} == trained  # found finished
    assert document["answer"] == read_json(folder / "answer.json")["answer"]
    assert len(document["map"]) == len(pd.read_csv(folder / "map.csv")) > 0
    assert negbench(["report", "map", "--runs-dir", str(tmp_path)]) == 0


def test_a_point_that_cannot_be_is_left_out_and_named(
    tmp_path: Path, vector_sets: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [part for text in vector_sets for part in ("--set", text)]
    command = ["map", "--strategies", "all-corpus", "--seeds", "1", "--runs-dir", str(tmp_path), *sets]
    assert negbench([*command, "--dial", "train.batch_size=16,1", "--set", "train.epochs=1"]) == 0
    told = capsys.readouterr()
    assert "there is no world at batch_size=1: train.batch_size = 1" in told.err
    out = told.out + told.err
    assert "1 points x 1 strategies x 1 seeds: 1 cells" in out
    assert negbench([*command, "--dial", "train.batch_size=1"]) == 2
    assert "train.batch_size = 1" in capsys.readouterr().err


def test_a_map_without_a_dial_says_what_is_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert negbench(["map", "--runs-dir", str(tmp_path)]) == 2
    assert "no dial: give --dial" in capsys.readouterr().err
    assert negbench(["map", "--dial", "train.epochs=1,2", "--dial", "train.epochs=3", "--runs-dir", str(tmp_path)]) == 2
    assert "none twice" in capsys.readouterr().err
