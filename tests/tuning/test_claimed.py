"""Studies of worlds: support against closed forms, a study from the command line, what cannot be searched."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from negbench.claims.claim import chosen, claims
from negbench.claims.judge import ALPHA, Answer, Estimate, Finding, Verdict
from negbench.cli.main import run as negbench
from negbench.files import read_json
from negbench.tuning.claimed import BestWorld, ClaimRow, claim_support, score, support


def answer(number: int, value: float, low: float, high: float) -> Answer:
    test = chosen(str(number))[0].tests[0]
    return Answer(test, "undecided", Estimate(value, low, high, math.nan))


def finding(number: int, *values: float | None, half: float = 0.02, verdict: Verdict = "undecided") -> Finding:
    claim = chosen(str(number))[0]
    found = [
        Answer(test, "not testable")
        if v is None
        else Answer(test, "undecided", Estimate(v, v - half, v + half, math.nan))
        for test, v in zip(claim.tests, values, strict=False)
    ]
    return Finding(claim, verdict, "why", tuple(found))


# --- support -------------------------------------------------------------------------------------------------------


def test_support_is_the_normal_share_on_the_side_that_confirms() -> None:
    """Claim 5 is confirmed above 0: an estimate that just excludes it has the level's tail on the other side."""
    half = 0.02
    assert support(answer(5, 0.0, -half, half), 1) == pytest.approx(0.5)
    assert support(answer(5, half, 0.0, 2 * half), 1) == pytest.approx(1 - ALPHA / 2)
    assert support(answer(5, -half, -2 * half, 0.0), 1) == pytest.approx(ALPHA / 2)
    z = half / (half / stats.norm.ppf(1 - ALPHA / 4 / 2))
    assert support(answer(5, half, 0.0, 2 * half), 4) == pytest.approx(stats.norm.cdf(z))


def test_support_where_small_is_right() -> None:
    """Claim 3's first test is confirmed below 0.01."""
    assert support(answer(3, 0.01, 0.0, 0.02), 2) == pytest.approx(0.5)
    assert support(answer(3, -0.01, -0.02, 0.0), 2) == pytest.approx(1 - support(answer(3, 0.03, 0.02, 0.04), 2))  # type: ignore[operator]
    assert support(answer(3, 0.005, 0.005, 0.005), 2) == 1
    assert support(answer(3, 0.02, math.nan, math.nan), 2) == 0.25


def test_a_claim_is_its_weakest_test_and_a_study_its_weakest_paper() -> None:
    four = claim_support(finding(4, 0.5, 0.5, -0.5, 0.0))
    assert four == pytest.approx(0, abs=1e-9)
    assert claim_support(finding(4, 0.5, None, 0.5, 0.0)) is None
    qure, cirqrs = finding(4, 0.5, 0.5, 0.5, 0.0), finding(5, 0.0)
    assert score([qure, cirqrs]) == pytest.approx(0.5)
    assert score([qure]) > 0.8
    assert chosen("5")[0].papers == ("cirqrs",)
    assert score([qure, finding(4, None)]) == score([qure])
    with pytest.raises(Exception, match="none of the claims can be tested here: why"):
        score([finding(4, None)])


def test_every_claim_names_its_papers() -> None:
    assert {claim.number for claim in claims() if not claim.papers} == {18}
    assert chosen("qure") == tuple(claim for claim in claims() if "qure" in claim.papers)
    assert chosen("4,qure")[0].number == 4
    assert len(chosen("qure,cirqrs,dqe,hycole")) == 33
    assert chosen("1")[0].papers == ("qure", "cirqrs")


def test_found_means_that_all_that_can_be_tested_hold() -> None:
    rows = [ClaimRow(n, "w", "s", v, "") for n, v in ((1, "confirmed"), (2, "not testable"), (3, "confirmed"))]
    world = BestWorld(0, {"dataset.twins": 2}, (5, 6), "x-final", tuple(rows))
    assert world.line() == "2 of 2 testable claims are confirmed on fresh seeds (5, 6) at twins=2: all hold: found"
    worse = BestWorld(0, {}, (5,), "x", (rows[0], ClaimRow(4, "w", "s", "undecided", "")))
    assert worse.line().endswith("not all hold: not found")


# --- the command -----------------------------------------------------------------------------------------------------


def test_a_study_of_worlds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two worlds, the best again on fresh seeds; the same command goes on."""
    small = ["train_images=60", "train_queries=40", "val_images=60", "val_queries=40"]
    sets = [part for text in small for part in ("--set", f"dataset.{text}")]
    sets += ["--set", "train.epochs=5"]
    command = ["study", "--claims", "5", "--search", "backbone.tokens=1|4", "--trials", "2", "--sampler", "random"]
    command += ["--seeds", "2", "--final-seeds", "2", "--name", "worlds", "--runs-dir", str(tmp_path), *sets]
    assert negbench(command) == 0
    out = capsys.readouterr().out
    assert "worlds of vectors for claim 5, 2 trials of 2 seeds" in out
    assert "of 1 testable claims are confirmed on fresh seeds (2, 3)" in out
    world: Any = read_json(tmp_path / "worlds" / "claims.json")
    assert world["seeds"] == [2, 3]
    assert [row["number"] for row in world["rows"]] == [5]
    runs = {row["run"] for row in read_json(tmp_path / "worlds-final" / "comparison.json")["cells"]}
    configs = [read_json(tmp_path / run / "config.json")["config"] for run in runs]
    assert {config["seed"] for config in configs} == {2, 3}
    assert {config["backbone"]["tokens"] for config in configs} == {world["point"]["backbone.tokens"]}
    assert {config["strategy"]["name"] for config in configs} == {"cirqrs", "top-k"}
    page = (tmp_path / "worlds" / "report" / "index.html").read_text(encoding="utf-8")
    assert "support of the claims" in page
    assert "The claims there" in page
    assert negbench(command) == 0
    assert "[2/2]" not in capsys.readouterr().out  # nothing is computed again


def test_what_no_dial_can_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["study", "--claims", "5", "--runs-dir", str(tmp_path)]
    assert negbench(base) == 2
    assert "no dial is named: --search" in capsys.readouterr().err
    assert negbench([*base, "--search", "strategy.k=1:5"]) == 2
    assert "strategy.k" in capsys.readouterr().err
    assert negbench([*base, "--search", "train.num_negatives=1:5"]) == 2
    assert "the claims fix it themselves" in capsys.readouterr().err
    assert negbench(["study", "--claims", "99", "--search", "backbone.tokens=1|4", "--runs-dir", str(tmp_path)]) == 2
    assert "--claims" in capsys.readouterr().err
