"""What to do beside the batch: every ending from intervals written by hand, and comparisons that end with one."""

import dataclasses
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from negbench.analysis.advice import Setting, recommend
from negbench.analysis.answer import answer_of, divide_lines
from negbench.analysis.findings import Findings
from negbench.analysis.verdict_record import Estimate, Verdict
from negbench.analysis.verdicts import Rules, batch_alone, beside_batch
from negbench.grid.axis import group_key
from negbench.report import build
from negbench.report.figures import chart_data_of, forests
from negbench.report.tables import paper_table, tables
from negbench.store.runfolder import RunFolder
from tests.made import verdict

LABELS = {"dataset": "d", "loss": "info-nce", "backbone": "b", "negatives": 63.0, "margin": 0.01}


def row(name: str, points: tuple[float, float, float] | None = None, mean: float = 0.9, **more: Any) -> Verdict:
    """Return a verdict on a strategy, its difference from the batch in points: value, low, high."""
    plugin = name.partition("(")[0]
    columns = {"strategy": name, "mean": mean, "plugin": plugin, "baseline": "in-batch", **LABELS, **more}
    if points is None:
        return verdict(**columns | {"verdict": "baseline"})
    value, low, high = points
    difference = Estimate(value / 100, low / 100, high / 100, 0.5)
    return dataclasses.replace(verdict(**columns), against_baseline=difference)


def at(*others: Verdict, mean: float = 0.9, temperature: str = "learned", rate: str = "own", **more: Any) -> Setting:
    return Setting(row("in-batch", mean=mean), others, temperature, rate, **more)


RANDOM = row("in-batch+all-corpus", (0.1, -0.4, 0.6))
WORSE = row("in-batch+cirqrs", (-2.0, -3.0, -1.0))
AHEAD = row("in-batch+top-k(k=50)", (2.1, 1.2, 3.0))
LITTLE = row("in-batch+qure", (0.5, 0.2, 0.8))
OPEN = row("in-batch+dqe", (0.8, -0.4, 2.1), more_seeds=12.0, undecided=("in-batch",))
WIDE = row("in-batch+qure", (0.2, -1.0, 1.4), more_seeds=20.0, undecided=("in-batch",))
CASES = {
    "nothing is ahead": [at(RANDOM, WORSE)],
    "a lead inside the margin": [at(RANDOM, LITTLE)],
    "nothing is ahead at any temperature": [at(RANDOM), at(WORSE, mean=0.93, temperature="0.15")],
    "ahead at the best temperature and an own rate": [at(AHEAD), at(AHEAD, OPEN, mean=0.93, temperature="0.15")],
    "the highest of two that are ahead": [
        at(row("in-batch+qure", (1.5, 0.4, 2.6)), AHEAD),
        at(row("in-batch+qure", (3.5, 2.4, 4.6)), AHEAD, mean=0.93, temperature="0.15"),
    ],
    "the age of the pools was compared": [
        at(AHEAD),
        at(row("in-batch+qure", (1.6, 0.4, 2.8)), mean=0.93, temperature="0.15", refresh_every=1),
        at(row("in-batch+qure", (2.4, 1.4, 3.4)), mean=0.93, temperature="0.15", refresh_every=5),
        at(row("in-batch+qure", (-2.0, -4.0, 0.0)), mean=0.93, temperature="0.15", refresh_every=20),
    ],
    "pools that are best renewed in every epoch": [
        at(AHEAD, refresh_every=5),
        at(row("in-batch+qure", (3.6, 2.4, 4.8)), mean=0.93, temperature="0.15", refresh_every=1),
        at(row("in-batch+qure", (2.4, 1.4, 3.4)), mean=0.93, temperature="0.15", refresh_every=5),
    ],
    "one temperature": [at(AHEAD)],
    "one temperature and one rate": [at(AHEAD, rate="0.001")],
    "several temperatures, one rate": [
        at(RANDOM, rate="0.001"),
        at(AHEAD, mean=0.93, temperature="0.15", rate="0.001"),
    ],
    "a loss without a temperature": [at(AHEAD, temperature="none")],
    "ahead only where the batch is not at its best": [at(AHEAD), at(RANDOM, mean=0.93, temperature="0.15")],
    "ahead only at another rate": [at(AHEAD, rate="0.001"), at(RANDOM, mean=0.93, rate="0.003")],
    "two losses, a lead under the better one": [
        at(row("in-batch+qure", (3.5, 2.4, 4.6)), loss="hcl"),
        at(AHEAD, mean=0.93, loss="info-nce"),
    ],
    "two losses, a lead under the other one": [at(AHEAD, loss="hcl"), at(RANDOM, mean=0.93, loss="info-nce")],
    "two losses, one of them at two temperatures": [
        at(RANDOM, temperature="none", loss="hinge"),
        at(RANDOM, mean=0.92, temperature="0.15", loss="info-nce"),
        at(RANDOM, mean=0.93, loss="info-nce"),
    ],
    "one is open": [at(RANDOM, OPEN)],
    "two are open": [at(WORSE, WIDE, OPEN)],
    "one seed": [at(dataclasses.replace(OPEN, seeds=1, more_seeds=math.nan))],
    "too few queries": [at(dataclasses.replace(OPEN, more_seeds=-1.0))],
    "a collapsed row is no hope": [at(dataclasses.replace(OPEN, collapsed=1))],
}


def test_every_ending_follows_from_the_intervals(golden):
    seconds = {group_key(vars(verdict)): 30.0 for verdict in (OPEN, WIDE, row("in-batch"))}
    golden("advice", {case: [recommend(settings, seconds)] for case, settings in CASES.items()})


@pytest.mark.parametrize(
    ("points", "first_words"),
    [
        ((0.9, 0.5, 1.0), "Do not mine"),  # no more than the margin
        ((0.9, 0.5, 1.1), "Tune the temperature first"),  # one temperature was run
        ((0.5, 0.0, 1.1), "Not decided"),  # 0 is no lead
        ((-0.5, -2.1, 1.1), "Not decided"),
        ((-0.5, -2.1, 0.9), "Do not mine"),
    ],
)
def test_an_ending_turns_where_an_end_of_the_interval_passes_the_margin_or_zero(points, first_words):
    assert recommend([at(row("in-batch+qure", points))], {}).startswith(first_words)


def test_a_strategy_that_may_be_ahead_at_another_temperature_alone_changes_nothing():
    text = recommend([at(OPEN), at(RANDOM, mean=0.93, temperature="0.15")], {})
    assert text.startswith("Do not mine: nothing is ahead"), text


@pytest.mark.parametrize(
    ("plugins", "alone"),
    [
        ({"in-batch": "in-batch", "u": "in-batch+qure"}, "in-batch"),
        ({"all-corpus": "all-corpus", "u": "in-batch+all-corpus"}, None),  # the batch alone is missing
        ({"in-batch-both": "in-batch-both", "u": "in-batch-both+qure"}, "in-batch-both"),
        ({"in-batch-both": "in-batch-both", "in-batch": "in-batch", "u": "in-batch-both+qure"}, "in-batch-both"),
        ({"in-batch": "in-batch", "qure": "qure"}, None),
    ],
)
def test_the_batch_is_the_baseline_where_others_stand_beside_it(plugins, alone):
    assert batch_alone(plugins) == alone
    assert Rules().choose(plugins) == (alone or ("in-batch" if "in-batch" in plugins else "all-corpus"))
    other = next(reversed(plugins))
    assert Rules(baseline=other).choose(plugins) == other


def test_a_table_with_another_baseline_is_no_question_about_the_batch():
    rows = [row("in-batch"), RANDOM]
    assert beside_batch(rows)
    assert not beside_batch([dataclasses.replace(verdict, baseline="in-batch+all-corpus") for verdict in rows])
    assert not beside_batch([row("in-batch"), row("qure", (1, 0, 2))])


def check_tables(findings: Findings) -> None:
    """Check that tables compare with the batch alone, whose row is in one block with the others."""
    (leader,) = [table for table in tables(findings) if table.name == "table"]
    assert "against the best" not in leader.frame
    assert leader.frame["verdict"].str.startswith(("baseline", "undecided")).all()
    assert leader.blocks.nunique() == 2  # the losses
    assert "; the difference of R@10 from in-batch in points, with simultaneous 95 % intervals" in leader.title
    header = paper_table(leader, "markdown").splitlines()[2].strip("| ")
    assert [name.strip() for name in header.split("|")] == ["loss", "negatives", "strategy", "R@10", "difference"]


def check_forest(findings: Findings) -> None:
    """Check that the forest is drawn against the batch alone, though it could be against the best of as many."""
    behind = Estimate(-0.01, -0.02, 0.0)
    rows = [dataclasses.replace(row, negatives=15.0, against_best=behind) for row in findings.main_verdicts]
    (forest,) = forests(chart_data_of(findings.groups, rows)[0])
    assert forest.title.endswith("points against in-batch")


def check_draws(findings: Findings) -> None:
    *lines, _what_to_do = answer_of(findings).lines
    (line,) = [line for line in lines if line.startswith("Draws")]
    name = r"in-batch\+top-k\(k=5\)"
    rank = rf"{name} draws from median rank \d+"
    share = rf"[\d.]+ % of the draws of {name} are false negatives, the largest share"
    assert re.fullmatch(rf"Draws \(.*\): {rank}; {share}\.", line), line


def check_answer_on_page(answer: Sequence[str], findings: Findings, folder: Path, monkeypatch: Any) -> None:
    """Check that a page begins with the headlines, the best temperature and what to do, or with the latter alone."""
    headlines = answer[:3]
    *_, temperatures, what_to_do = answer
    page = build.comparison_page(folder, findings, ())
    assert page.answer[: page.lead] == (*headlines, temperatures, what_to_do)
    monkeypatch.setattr(build, "HEADLINES", 2)  # as if they were too many
    page = build.comparison_page(folder, findings, ())
    assert page.answer[: page.lead] == (temperatures, what_to_do)
    assert page.answer[2:5] == tuple(headlines)


def check_stored_lines(findings: Findings) -> None:
    """Check that stored lines are divided as they were written, also those that another version worded."""
    answer = answer_of(findings)
    assert min(map(len, (answer.headlines, answer.below, answer.to_do))) > 0
    assert divide_lines(answer.lines, findings) == answer
    older = [f"{line} Then." for line in answer.lines]
    divided = divide_lines(older, findings)
    assert divided.lines == older
    assert len(divided.headlines) == len(answer.headlines)
    assert len(divided.to_do) == len(answer.to_do)


@pytest.mark.parametrize("axis", ["dial", "losses"])
def test_a_comparison_of_temperatures_ends_with_advice(axis, vector_sets, tmp_path, monkeypatch):
    """A dial holds a learned temperature: the runs of the loss without tau. The answer ends alike on either axis."""
    from negbench.api import compare

    options: dict[str, dict[str, Any]] = {
        "dial": {"dials": ("loss.tau=learned,0.15",), "losses": "info-nce"},
        "losses": {"losses": "info-nce,info-nce:tau=0.15"},
    }
    result = compare(
        strategies="in-batch,in-batch+top-k:k=5", seeds=2, sets=tuple(vector_sets), lr="fixed", runs_dir=tmp_path,
        tracking_uri="none", report=False, name="n", **options[axis],
    )  # fmt: skip
    runs = [RunFolder(tmp_path / name) for name in result.cells["run"]]
    assert sorted({(run.config.loss.options["tau"], run.config.divisor) for run in runs}, key=str) == [
        (0.15, "tau"), (None, "backbone"),
    ]  # fmt: skip
    *_, elsewhere, temperatures, last = result.answer
    assert elsewhere.startswith(
        "Your batch of 24 and 2 passes are no more than those with which mining gained on emoji: "
    )
    assert re.fullmatch(
        r"For the batch alone the best temperature is (learned from 0\.07|0\.15) \(R@10 [\d.]+ %\), "
        r"[\d.-]+ \[.*\] points above (0\.15|learned from 0\.07)\.",
        temperatures,
    )
    assert last.startswith(("Do not mine", "Not decided", "Tune the "))
    for main_row in result.findings.main_verdicts:
        assert (main_row.baseline, main_row.baseline_asked) == ("in-batch", True), main_row.strategy
    if axis == "losses":
        check_tables(result.findings)
        check_forest(result.findings)
        check_draws(result.findings)
        check_stored_lines(result.findings)
        check_answer_on_page(result.answer, result.findings, tmp_path / "n", monkeypatch)
        text = "\n".join(result.answer)
        assert "\ninfo-nce: R@10 beside the batch, after " in f"\n{text}"
        assert "\ninfo-nce(tau=0.15): R@1: " in f"\n{text}"
