"""Seeds until a comparison is decided: the looks, the verdicts that freeze at them, and the cells that are computed."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import negbench
from negbench.analysis.differences import Differences, decided, seeded
from negbench.analysis.prices import floor_of, more_seeds, seeds_for
from negbench.analysis.statistics import Design, Difference, ValueTable, against, pairs
from negbench.cli.main import run as command
from negbench.errors import NegbenchError, OptionError
from negbench.files import read_json
from negbench.grid.looks import Looks
from negbench.options import Compare, parse_budget
from negbench.scoring.stored import Values

FILES = ("table.csv", "statistics.csv", "statistics.json", "behaviour.csv")


def looks_of(**given: Any) -> Looks:
    found = Looks.of(Compare(until="decided", **given), given.get("seeds", 3))
    assert found is not None
    return found


# --- when --------------------------------------------------------------------------------------------------------


def test_looks_are_fixed_in_advance_and_spend_all_of_alpha() -> None:
    assert looks_of().counts == (3, 5, 8, 12, 18, 27, 40, 60)
    assert looks_of(seeds=4, max_seeds=10).counts == (4, 5, 8, 10)
    assert looks_of(seeds=5, max_seeds=5).counts == (5,)
    for looks in (looks_of(), looks_of(seeds=4, max_seeds=10), looks_of(max_seeds=3)):
        assert sum(looks.shares) == pytest.approx(1)
        spent = [sum(looks.shares[: n + 1]) for n in range(len(looks.counts))]
        assert spent == pytest.approx([(count / looks.most) ** 0.5 for count in looks.counts])
    assert looks_of(seeds="7,1,0", max_seeds=6).seeds(6) == (7, 1, 0, 2, 3, 4)
    assert Looks.of(Compare(), 3) is None


@pytest.mark.parametrize("given", [{"seeds": 1}, {"seeds": 9, "max_seeds": 8}])
def test_looks_need_seeds(given: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="--until decided starts with"):
        looks_of(**given)


def test_a_budget_is_a_time() -> None:
    assert [parse_budget(text) for text in ("90s", "30m", "1.5h")] == [90, 1800, 5400]
    with pytest.raises(OptionError, match="want a number and its unit"):
        Compare(budget="30")


# --- verdicts ----------------------------------------------------------------------------------------------------


def values_of(gaps: list[float], counts: list[int], sd: float = 0.003) -> dict[str, Values]:
    """Strategy k is `gaps[k]` better, and has `counts[k]` seeds."""
    rng = np.random.default_rng(3)
    easy, most = rng.random((1, 400)), max(counts)
    noise = {k: sd * rng.standard_normal((most, 1)) + 0.02 * rng.standard_normal((most, 400)) for k in range(len(gaps))}
    return {
        f"s{k}": Values((gap + easy + noise[k])[:count], tuple(range(count)), None)
        for k, (gap, count) in enumerate(zip(gaps, counts, strict=True))
    }


def brute_force(values: dict[str, Values], looks: Looks) -> tuple[dict[Any, Difference], dict[Any, Difference]]:
    """Differences to s0 and of all pairs: at each look every test anew, of each the first that decides."""
    first: tuple[dict[Any, Difference], dict[Any, Difference]] = ({}, {})
    for count, share in zip(looks.counts, looks.shares, strict=True):
        mine = {name: each.of_seeds(range(count)) for name, each in values.items()}
        design = Design(alpha=0.05 * share, margin=0.01, draws=round(4000 / share**0.5))
        table = ValueTable({n: each.values for n, each in mine.items()}, design, {n: e.seeds for n, e in mine.items()})
        generator = seeded(mine, "")
        found = against(table, "s0", generator), pairs(table, generator).differences
        for kept, new in zip(first, found, strict=True):
            for pair, each in new.items():
                if pair not in kept or (kept[pair].verdict == "undecided" and kept[pair].seeds < each.seeds):
                    kept[pair] = each
    return first


def test_replayed_looks_are_those_of_a_plain_loop() -> None:
    looks = Looks((0, 1, 2), 12)
    values = values_of([0.0, 0.05, 0.012, 0.0], [12, 3, 12, 8])
    found, (baseline, every) = decided(values, "s0", looks, margin=0.01, alpha=0.05), brute_force(values, looks)
    assert {each.seeds for each in every.values()} > {3}  # decided at different looks
    assert {each.verdict for each in baseline.values()} >= {"better", "equal"}
    for mine, want in ((found.against, baseline), (found.pairs.differences, every)):
        assert {
            pair: (each.interval.low, each.interval.high, each.verdict, each.seeds) for pair, each in mine.items()
        } == {pair: (each.interval.low, each.interval.high, each.verdict, each.seeds) for pair, each in want.items()}
    assert all((each.p_adjusted <= 0.05) == (each.verdict in ("better", "worse")) for each in found.against.values())


def test_a_decided_pair_keeps_its_verdict_whatever_comes_later() -> None:
    """Six later seeds in which s1 is as much worse as it was better."""
    looks = Looks((0, 1, 2), 12)
    values = values_of([0.0, 0.05, 0.0], [12, 12, 12])
    turned = values["s1"].values.copy()
    turned[3:] -= 0.1
    late = {**values, "s1": Values(turned, values["s1"].seeds, None)}
    first = {name: each.of_seeds(range(3)) for name, each in late.items()}
    before, after = (decided(each, "s0", looks, margin=0.01, alpha=0.05) for each in (first, late))
    assert before.against["s1"].verdict == "better"
    assert after.against["s1"] == before.against["s1"]
    assert after.means["s1"].seeds == 12


def test_one_look_is_the_table_as_it_was() -> None:
    values = values_of([0.0, 0.05, 0.01], [5, 5, 5])
    one = decided(values, "s0", Looks(tuple(range(5)), 5), margin=0.01, alpha=0.05)
    design = Design(margin=0.01)
    table = ValueTable({name: each.values for name, each in values.items()}, design)
    assert one.against == against(table, "s0", seeded(values, ""))


# --- prices ------------------------------------------------------------------------------------------------------


def difference_of(values: dict[str, Values]) -> Difference:
    found: Differences = decided(values, "s0", Looks(tuple(range(20)), 20), margin=0.01, alpha=0.05)
    return found.against["s1"]


def test_prices_are_those_of_the_widths_that_come() -> None:
    """Where seeds alone vary, a half width falls with the root of their number; where queries do, there is a floor."""
    alone = difference_of(values_of([0.0, 0.0], [20, 20], sd=0.02))
    half = (alone.interval.high - alone.interval.low) / 2
    assert seeds_for(alone, half, nested=True) == pytest.approx(20, rel=0.05)
    assert seeds_for(alone, half / 2, nested=True) == pytest.approx(80, rel=0.05)
    assert floor_of(alone, nested=True) == 0
    floor = floor_of(alone, nested=False)
    assert 0 < floor < half / 4
    assert seeds_for(alone, floor * 0.99, nested=False) == np.inf
    assert seeds_for(alone, floor * 1.01, nested=False) > 1000
    assert more_seeds(alone, 4 * half, nested=True) == 1  # as good as decided


# --- cells -------------------------------------------------------------------------------------------------------

ASKED = ("--strategies", "qure,in-batch,all-corpus", "--max-seeds", "8", "--margin", "12")


def flags_of(vector_sets: list[str], runs: Path, *more: str) -> list[str]:
    sets = [part for text in (*vector_sets, "train.epochs=2") for part in ("--set", text)]
    asked = ["compare", "--until", "decided", *ASKED, "--runs-dir", str(runs), "--tracking-uri", "none"]
    return [*asked, "--name", "c", "--no-report", "--no-audit", *sets, *more]


def cells_of(runs: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for cell in read_json(runs / "c" / "comparison.json")["cells"]:
        found.setdefault(cell["strategy"], []).append(cell["seed"])
    return found


def test_open_strategies_run_on_and_decided_ones_stop(
    vector_sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(flags_of(vector_sets, tmp_path)) == 0
    out, cells = capsys.readouterr().out, cells_of(tmp_path)
    rows = {r["strategy"]: r for r in read_json(tmp_path / "c" / "statistics.json")["rows"] if r["main"]}
    others = [row for row in rows.values() if row["verdict"] != "baseline"]
    for row in others:
        assert cells[row["strategy"]] == list(range(row["paired_seeds"]))
        assert row["verdict"] != "undecided" or row["paired_seeds"] == 8
    assert len(cells["in-batch"]) == max(row["paired_seeds"] for row in others)
    assert len({row["paired_seeds"] for row in others}) > 1  # they stopped at different looks
    for row in others:
        assert row["undecided"] == (["in-batch"] if row["verdict"] == "undecided" else [])
    assert "look 1, 3 seeds: " in out
    assert "more seeds" in out
    assert command(flags_of(vector_sets, tmp_path)) == 0  # computes nothing
    assert cells_of(tmp_path) == cells


def test_a_spent_budget_ends_after_a_finished_look(
    vector_sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(flags_of(vector_sets, tmp_path, "--budget", "0s")) == 0
    assert {len(seeds) for seeds in cells_of(tmp_path).values()} == {3}
    assert "look 2" not in capsys.readouterr().out


def test_a_strategy_that_fails_leaves(vector_sets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from negbench.loop import runs as loop_runs

    real = loop_runs.train

    def failing(cell: Any, folder: Any, log: Any) -> Any:
        if cell.config.strategy.name == "qure" and cell.config.seed == 2:
            raise NegbenchError("mend this")
        return real(cell, folder, log)

    monkeypatch.setattr(loop_runs, "train", failing)
    assert command(flags_of(vector_sets, tmp_path)) == 2
    assert cells_of(tmp_path)["qure"] == [0, 1, 2]
    monkeypatch.undo()
    assert command(flags_of(vector_sets, tmp_path)) == 0
    assert command(flags_of(vector_sets, tmp_path / "straight")) == 0
    assert cells_of(tmp_path) == cells_of(tmp_path / "straight")


@pytest.mark.slow
def test_killed_halfway_with_two_workers_it_ends_with_the_same_table(
    vector_sets: list[str], tmp_path: Path, start_command: Callable[[list[str]], Any]
) -> None:
    assert command(flags_of(vector_sets, tmp_path / "straight")) == 0
    total = sum(len(seeds) for seeds in cells_of(tmp_path / "straight").values())
    killed = flags_of(vector_sets, tmp_path / "killed", "--workers", "2")
    process, deadline = start_command(killed), time.monotonic() + 200
    for _ in itertools.count():
        if len(list((tmp_path / "killed").glob("*/result.json"))) > total / 2:
            break
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert len(list((tmp_path / "killed").glob("*/result.json"))) < total
    assert command(killed) == 0
    for name in FILES:
        first, second = ((tmp_path / where / "c" / name).read_bytes() for where in ("straight", "killed"))
        assert first == second, name


def test_python_takes_the_same_options(vector_sets: list[str], tmp_path: Path) -> None:
    asked = Compare(
        strategies=["qure", "in-batch"],
        sets=(*vector_sets, "train.epochs=1"),
        until="decided",
        max_seeds=3,
        pairs="all",
        runs_dir=tmp_path,
        tracking_uri="none",
        report=False,
        audit=False,
    )
    assert negbench.compare(asked).name.startswith("decided-")
