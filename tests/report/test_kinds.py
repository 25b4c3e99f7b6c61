"""Draws and mistakes by kind: means of what runs stored, in the figure and in the answer's sentence."""

import math
import re

import numpy as np
import pandas as pd
import pytest

from negbench.analysis import kinds
from negbench.analysis.answer import answer_of
from negbench.analysis.findings import read_findings
from negbench.analysis.frame import folders_of, mean_of, shared_value
from negbench.analysis.kinds import KindShares, draws_answer, kind_shares, kinds_answer
from negbench.analysis.leader import sort_alike
from negbench.analysis.statistics import MeanInterval, mean_over_seeds
from negbench.grid.axis import AXES
from negbench.metrics.fixed import KINDS
from negbench.report.build import comparison_page
from negbench.report.charts import _figure
from negbench.report.figures import chart_data_of
from negbench.report.kinds_chart import kinds_chart
from negbench.report.page import Note

DRAWS_OF_FOUR = "20.0 % of the draws of a, 20.0 % of the draws of b, 20.0 % of the draws of c, 20.0 % of the draws of d"


def test_an_interval_over_seeds_by_hand():
    half = 4.302653 * 0.1 / 3**0.5  # Student's 97.5 % quantile with two degrees of freedom
    assert mean_over_seeds([0.5, 0.6, 0.7]) == pytest.approx((0.6, 0.6 - half, 0.6 + half))
    assert mean_over_seeds([0.1, 0.5]).low == 0
    assert np.isnan(mean_over_seeds([0.2])[1:]).all()


def test_shares_are_the_means_of_what_the_runs_stored(compared):
    findings = read_findings(compared, "small")
    for group in findings.groups:
        shares = kind_shares(group)
        assert [share.kind for share in shares] == list(KINDS[:3]), group
        for share in shares:
            values = np.stack([run.ranks()[f"value:{share.kind}/wrong_at_10"] for run in folders_of(group)])
            assert share.mistakes.mean == pytest.approx(np.nanmean(values, axis=1).mean()), group
            assert share.mistakes.low <= share.mistakes.mean <= share.mistakes.high, group
            means_of_runs = []
            for run in group["stored"]:
                refreshes = run.result["behaviour_by_refresh"]
                means_of_runs.append(np.mean([refresh[f"draws_{share.kind}"] for refresh in refreshes]))
            assert share.drawn.mean == pytest.approx(np.mean(means_of_runs)), group
            assert 0 < share.random < 1, group
        for result in (run.result for run in group["stored"]):
            for row in result["behaviour_by_refresh"]:
                assert row["draws_false"] == pytest.approx(row["false_negative_rate_draws"], abs=1e-6), group


def test_the_figure_shows_them(compared):
    findings = read_findings(compared, "small")
    (runs,) = chart_data_of(sort_alike(findings.groups, findings.verdicts), findings.verdicts)
    chart = kinds_chart(runs)
    groups = [group for _, of_loss in runs.by_loss() for group in of_loss]
    names = [f"{shared_value(group, 'strategy')}, {shared_value(group, 'loss')}" for group in groups]
    for axes in _figure(chart, narrow=True).axes:
        assert [label.get_text() for label in axes.get_yticklabels()] == names, axes.get_title()
    left, right = _figure(chart, narrow=False).axes
    assert [label.get_text() for label in left.get_yticklabels()] == names
    assert [label.get_text() for label in right.get_yticklabels()] == [""] * len(names)
    for axes, estimate in ((left, "drawn"), (right, "mistakes")):
        for index, container in enumerate(axes.containers):
            case = f"{estimate}, {KINDS[index]}"
            means = [getattr(kind_shares(group)[index], estimate).mean for group in groups]
            assert list(container[0].get_xdata()) == pytest.approx([100 * mean for mean in means]), case
            assert container.get_label() == KINDS[index], case
        assert len(axes.containers) == 3, estimate


def test_the_answer_names_the_most_frequent_mistake(compared):
    findings = read_findings(compared, "small")
    groups = sort_alike(findings.shown_groups, findings.main_verdicts)
    (line,) = kinds_answer(groups)
    assert line in answer_of(findings).lines
    group = groups[0]
    most = max(kind_shares(group), key=lambda share: share.mistakes.mean)
    assert f"% are {most.kind} negatives, the most frequent mistake; they are " in line
    assert f"they are {100 * most.drawn.mean:.1f} % of the draws of {shared_value(group, 'strategy')}, " in line
    low, high = (float(end) for end in re.findall(r"[\d.]+", line)[:2])
    assert low <= round(100 * most.mistakes.mean, 1) <= high
    assert line.count("% of the draws of") == 3  # a strategy once, whatever the losses
    assert line.startswith(f"Among the first ten images ({shared_value(group, 'loss')}) ")
    of_one_loss = [other for other in groups if shared_value(other, "loss") == shared_value(group, "loss")]
    assert kinds_answer(of_one_loss) == [line.replace(f" ({shared_value(group, 'loss')})", "")]
    assert kinds_answer([]) == []


@pytest.mark.parametrize(
    ("strategies", "named"),
    [
        (["a"], "20.0 % of the draws of a"),
        (["a", "b", "c", "d"], DRAWS_OF_FOUR),
        (["a", "b", "c", "d", "e", "f"], DRAWS_OF_FOUR),
    ],
)
def test_the_answer_names_the_draws_of_four_strategies_and_those_at_random(strategies, named, monkeypatch):
    share = KindShares("hard", MeanInterval(0.2, 0.1, 0.3), random=0.05, mistakes=MeanInterval(0.4, 0.3, 0.5))
    monkeypatch.setattr(kinds, "known_kinds", lambda group: {"hard/wrong_at_10": "hard"})
    monkeypatch.setattr(kinds, "kind_shares", lambda group: [share])
    columns = {axis: [""] for axis in AXES}
    (line,) = kinds_answer([pd.DataFrame(columns | {"strategy": [name]}) for name in strategies])
    assert line.endswith(f"; they are {named} and 5.0 % of random draws.")


def test_the_answer_says_who_draws_highest_and_lowest_and_whose_draws_are_most_often_false(compared):
    """A check against the runs' own statistics, table for table."""
    findings = read_findings(compared, "small")
    groups = sort_alike(findings.shown_groups, findings.main_verdicts)
    (line,) = draws_answer(groups)
    loss = shared_value(groups[0], "loss")
    ranks = {}
    false_shares = {}
    for group in groups:
        if shared_value(group, "loss") == loss:
            name = shared_value(group, "strategy")
            false_shares[name] = mean_of(group, "behaviour/false_negative_rate_draws")
            rank = mean_of(group, "behaviour/draw_rank_median")
            if not math.isnan(rank):
                ranks[name] = rank
    high = min(ranks, key=ranks.get)
    low = max(ranks, key=ranks.get)
    most = max(false_shares, key=false_shares.get)
    assert f": {high} draws nearest the top of the ranking (median rank {ranks[high]:,.0f}) and " in line
    assert f" and {low} furthest from it ({ranks[low]:,.0f}); " in line
    assert f"{100 * false_shares[most]:.1f} % of the draws of {most} are false negatives, the largest share." in line
    assert line in answer_of(findings).lines


def test_a_page_says_where_strategies_draw_in_a_section_of_its_own(compared):
    """It stands there instead of in the answer."""
    findings = read_findings(compared, "small")
    lines = draws_answer(sort_alike(findings.shown_groups, findings.main_verdicts))
    assert lines
    page = comparison_page(compared / "small", findings, (), galleries=0)
    (section,) = [section for section in page.chapters["why"] if section.key == "draws"]
    assert section.parts == tuple(Note(line) for line in lines)
    assert [line for line in answer_of(findings).lines if line not in lines] == list(page.answer)


@pytest.mark.parametrize(
    ("share", "lines"),
    [
        (0.0004, []),  # it would print as 0.0 %
        (0.0006, ["Draws: 0.1 % of the draws of a are false negatives, the largest share."]),
    ],
)
def test_a_share_of_false_draws_that_rounds_to_nothing_is_no_largest_share(share, lines):
    groups = []
    for name, value in (("a", share), ("b", 0.0)):
        columns = {axis: [""] for axis in AXES} | {"strategy": [name], "seed": [0]}
        groups.append(pd.DataFrame(columns | {"behaviour/false_negative_rate_draws": [value]}))
    assert draws_answer(groups) == lines
