"""Verdicts of a comparison: those of negbench.analysis.statistics on the right values, only of like with like."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.random import default_rng

from negbench.analysis.answer import answer_of, open_pairs
from negbench.analysis.differences import differences
from negbench.analysis.findings import Findings
from negbench.analysis.frame import folders_of, known_numbers, results_frame, shared_value
from negbench.analysis.leader import leader_table, leader_tables, measured_tables, sort_by_negatives, verdict_frame
from negbench.analysis.statistics import Design, ValueTable, against
from negbench.analysis.verdict_record import Estimate, Verdict
from negbench.analysis.verdicts import OVER_ALL, Rules, VerdictTable, join_over_all, tables_of, verdicts_of
from negbench.analysis.words import with_interval
from negbench.errors import UnknownNameError
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.ragged import Ragged
from negbench.plugins.registry import registry
from negbench.scoring.values import Values
from negbench.settings.config import build_config
from negbench.store.runfolder import RunFolder
from tests.made import RESULT, again, verdict
from tests.made import group as group_from

LABELS = {"dataset": "d", "loss": "l", "backbone": "b"}


def answer_lines(groups: Sequence[pd.DataFrame], rows: Sequence[Verdict]) -> list[str]:
    return answer_of(Findings(pd.concat(groups) if groups else results_frame([]), {}, tuple(rows))).lines


def ranks_of(seed: int, better: float, queries: int = 120) -> QueryRanks:
    """Return FashionIQ ranks; each query has its own difficulty, and `better` improves all of them."""
    difficulty = np.random.default_rng(0).standard_normal(queries)
    noise = np.random.default_rng(seed).standard_normal(queries)
    ranks = torch.from_numpy(np.ceil(np.exp(2.6 - better + difficulty + 0.3 * noise))).long()
    return QueryRanks(
        query=tuple(f"q{number}" for number in range(queries)),
        group=tuple(("dress", "shirt", "toptee")[number % 3] for number in range(queries)),
        target_rank=ranks,
        gallery_size=torch.full((queries,), 500),
        relevant_ranks=Ragged.of([[rank] for rank in ranks.tolist()]),
    )


def group_of(
    runs: Path, strategy: str, better: float, *, seeds: tuple[int, ...] = (0, 1, 2), dataset: str = "f@1", **labels: str
) -> pd.DataFrame:
    """Return a group of finished runs, as folders."""
    folders = []
    for seed in seeds:
        folder = RunFolder(runs / f"{strategy}-{'-'.join(labels.values())}-{dataset}-{seed}")
        config = build_config([{"strategy": {"name": "qure"}, "dataset": {"name": "fashioniq"}, "seed": seed}])
        gallery = {"dataset": {"gallery": {"dress": 1000}}}
        folder.write_manifest({"config": config.model_dump(mode="json"), "hash": "0" * 64, **gallery})
        ranks = ranks_of(seed + 100 * len(strategy), better)
        folder.write_ranks(ranks.to_frame())
        result = {
            "metrics": registry.get("datasets", "fashioniq").summarise(ranks),  # type: ignore[attr-defined]
            "main_metric": "average/recall",
            "behaviour": {"pool_size": 10.0 + seed, "overlap": math.nan},
            "negatives_seen": 100,
            "seconds": {"train": 2.0 + seed},
            "peak_memory_mib": {"process": 500.0 + seed},
        }
        folder.write_result({**RESULT, **result})
        folders.append(folder)
    by_axis = {"strategy": strategy, "loss": "bradley-terry", "backbone": "tiny", "dataset": dataset, **labels}
    facts = {"plugin": strategy.split("(")[0].split()[0]}  # of hand-made labels
    return group_from(by_axis, folders, **facts)


def main_rows(groups: Sequence[pd.DataFrame], baseline: str | None = None) -> list[Verdict]:
    """Return the rows of the main metric of all tables; the other metrics are not tested."""
    rows = []
    for table in tables_of(groups, main_only=True):
        rows += verdicts_of(table, Rules(baseline))
    return rows


def rows_by_strategy(table: VerdictTable, rules: Rules) -> dict[str, Any]:
    """Return the rows of the main metric."""
    of_main_metric = replace(table, values={table.main_metric: table.values[table.main_metric]})
    return {row.strategy: row for row in verdicts_of(of_main_metric, rules)}


def test_values_are_matrices_of_seeds_and_queries(tmp_path):
    (table,) = tables_of([group_of(tmp_path, "qure", 0.5, seeds=(4, 7))])
    assert table.main_metric == "average/recall"
    assert list(table.values) == ["average/recall", "average/recall_at_10", "average/recall_at_50"]
    hits = table.values["average/recall_at_10"]["qure"]
    assert hits.seeds == (4, 7)
    ranks = np.stack([ranks_of(404, 0.5).target_rank, ranks_of(407, 0.5).target_rank])
    assert hits.values.tolist() == (ranks <= 10).astype(float).tolist()
    assert hits.strata.tolist() == list(ranks_of(0, 0).group)


@pytest.fixture(scope="module")
def better_and_twin(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Return groups of a baseline, of a better strategy, and of one as good; their table; its rows by strategy."""
    folder = tmp_path_factory.mktemp("better-and-twin")
    groups = [group_of(folder, name, better) for name, better in (("in-batch", 0.0), ("a", 0.8), ("twin", 0.02))]
    (table,) = tables_of(groups)
    return SimpleNamespace(groups=groups, table=table, rows=rows_by_strategy(table, Rules()))


def test_a_row_has_its_verdict_its_rank_and_who_beats_it(better_and_twin):
    rows = better_and_twin.rows
    assert rows["in-batch"].verdict == "baseline"
    assert rows["in-batch"].against_baseline is None
    assert rows["a"].verdict == "better"
    assert rows["in-batch"].beaten_by == ("a",)
    assert rows["a"].beaten_by == ()
    assert rows["twin"].verdict in ("equal", "undecided")
    assert (rows["a"].ranks, rows["in-batch"].ranks, rows["twin"].ranks) == ("1", "2-3", "2-3")


def test_a_row_has_the_mean_of_its_seeds_and_their_deviation(better_and_twin):
    for group in better_and_twin.groups:
        row = better_and_twin.rows[shared_value(group, "strategy")]
        per_seed = known_numbers(group, "metrics/average/recall")
        assert row.mean.value == pytest.approx(np.mean(per_seed)), row.strategy
        assert row.sd == pytest.approx(np.std(per_seed, ddof=1)), row.strategy
        assert row.mean.low < row.mean.value < row.mean.high, row.strategy


def test_a_row_has_the_test_of_the_statistics(better_and_twin):
    rows = better_and_twin.rows
    of_a = known_numbers(better_and_twin.groups[1], "metrics/average/recall")
    difference = np.mean(of_a) - rows["in-batch"].mean.value
    assert rows["a"].against_baseline.value == pytest.approx(difference)
    assert rows["a"].against_baseline.low < difference < rows["a"].against_baseline.high
    values = better_and_twin.table.values["average/recall"]
    design = Design(values["a"].strata)
    table = ValueTable({name: of_name.values for name, of_name in values.items()}, design)
    want = against(table, "in-batch", default_rng(5))
    for name, contrast in want.items():  # another stream of random numbers: equal up to their noise
        row = rows[name]
        assert row.minimum_detectable == pytest.approx(contrast.minimum_detectable, abs=0.01), name
        assert row.against_baseline.p == pytest.approx(contrast.p_adjusted, abs=0.03), name
        assert row.against_baseline.low == pytest.approx(contrast.interval.low, abs=0.01), name


def test_numbers_of_a_row_are_rounded_and_infinite_ones_unknown(better_and_twin):
    tiny = replace(better_and_twin.rows["a"], mean=Estimate(np.float64(-1e-11), -math.inf, 1.0)).round_numbers()
    assert (str(tiny.mean.value), str(tiny.mean.low)) == ("0.0", "nan")  # numpy's floats are rounded, too


def test_the_same_cells_give_the_same_rows_and_other_cells_do_not_matter(tmp_path):
    first = [group_of(tmp_path, "in-batch", 0.0), group_of(tmp_path, "a", 0.1)]
    other = [group_of(tmp_path, "a", 0.3, dataset="f@2"), group_of(tmp_path, "in-batch", 0.0, loss="info-nce")]
    alone = [row.flat() for row in main_rows(first)]
    mixed = [row.flat() for row in main_rows([*other, *first[::-1]])]
    assert json.dumps(alone).strip("[]") in json.dumps(mixed)
    want = {("f@1", "bradley-terry", "in-batch"), ("f@1", "info-nce", "in-batch"), ("f@2", "bradley-terry", "a")}
    assert {(row["dataset"], row["loss"], row["baseline"]) for row in mixed} == want


@pytest.fixture
def one_seed(tmp_path: Path) -> list[pd.DataFrame]:
    """Return groups of one seed: of two strategies as good as each other, and of a better one."""
    strategies = {"all-corpus": 0.0, "in-batch": 0.0, "z(k=3)": 0.5}
    return [group_of(tmp_path, name, better, seeds=(0,)) for name, better in strategies.items()]


def test_a_baseline_that_is_asked_for(one_seed):
    (table,) = tables_of(one_seed)
    rows = rows_by_strategy(table, Rules("z"))
    assert (rows["in-batch"].verdict, rows["z(k=3)"].verdict) == ("worse", "baseline")


def test_within_a_wide_margin_what_excludes_zero_is_better_all_else_equal(one_seed):
    (table,) = tables_of(one_seed)
    rows = rows_by_strategy(table, Rules(margin=0.9))
    assert rows["z(k=3)"].verdict == "better"
    assert (rows["in-batch"].verdict, rows["all-corpus"].verdict) == ("baseline", "equal")


def test_a_small_alpha_widens_the_interval(one_seed):
    (table,) = tables_of(one_seed)
    wide = rows_by_strategy(table, Rules(alpha=0.01))["z(k=3)"].against_baseline
    narrow = rows_by_strategy(table, Rules(alpha=0.5))["z(k=3)"].against_baseline
    assert wide.low < narrow.low < narrow.high < wide.high


def test_without_the_batch_the_whole_corpus_is_the_baseline(one_seed):
    all_corpus, _, z = one_seed
    (table,) = tables_of([all_corpus, z])
    assert table.baseline(Rules()) == "all-corpus"
    rows = rows_by_strategy(table, Rules("in-batch"))  # its cells failed: nothing replaces it
    assert {row.verdict for row in rows.values()} == {"not compared"}


def test_of_several_numbers_of_negatives_the_smallest_batch_is_the_baseline(tmp_path):
    groups = [group_of(tmp_path, name, 0.0, seeds=(0,)) for name in ("a x5", "in-batch x1", "in-batch x5")]
    (table,) = tables_of(groups)
    assert table.baseline(Rules()) == "in-batch x1"


def test_the_baseline_is_one_of_the_strategies():
    window = "shifted-top-k(start=1, stop=3)"
    assert Rules("shifted-top-k:start=1:stop=3").choose({"top-k": "top-k", window: "shifted-top-k"}) == window
    with pytest.raises(UnknownNameError, match="unknown --baseline 'top': did you mean 'top-k'"):
        Rules("top").check({"qure": "qure", "top-k": "top-k"})
    assert Rules("top-k").choose({"top-k(k=5)": "top-k", "top-k(k=6)": "top-k"}) is None


def test_seeds_that_are_not_common(tmp_path):
    groups = [group_of(tmp_path, "in-batch", 0.0, seeds=(0, 1, 2))]
    groups += [group_of(tmp_path, "half", 0.5, seeds=(1, 2, 3)), group_of(tmp_path, "none", 0.5, seeds=(7,))]
    (table,) = tables_of(groups)
    rows = rows_by_strategy(table, Rules())
    assert rows["half"].paired_seeds == 2
    assert rows["half"].seeds == 3
    assert rows["none"].verdict == "not compared"
    assert math.isnan(rows["none"].sd)
    assert rows["none"].beaten_by == ()


def test_one_query_in_a_category_leaves_no_statistics(tmp_path):
    values = {"a": Values(np.zeros((2, 3)), (0, 1), np.array(["x", "x", "y"]))}
    assert verdicts_of(VerdictTable(LABELS, "m", {"m": values}), Rules()) == []


def test_leader_table_has_interval_and_verdict(tmp_path):
    groups = [group_of(tmp_path, "in-batch", 0.0), group_of(tmp_path, "a", 0.8)]
    rows = main_rows(groups, "in-batch")
    quality = leader_table(groups, rows)["quality"].set_index("strategy")
    main = {row.strategy: row for row in rows if row.main}
    assert quality["against the best"].to_dict() == {"a": "best", "in-batch": "worse"}
    assert list(quality["seeds"]) == [3, 3]
    gap = main["in-batch"].behind_best
    behind = f"{100 * gap.value:+.2f} [{100 * gap.low:.2f}, {100 * gap.high:.2f}]"
    assert quality["behind the best"].to_dict() == {"a": "-", "in-batch": behind}
    assert quality.loc["a", "verdict"] == "better"
    ends = f"[{100 * main['a'].mean.low:.2f}, {100 * main['a'].mean.high:.2f}]"
    assert quality.loc["a", "mean"] == f"{100 * main['a'].mean.value:.2f} {ends}"
    assert str(quality.loc["a", "difference"]).startswith(f"{100 * main['a'].against_baseline.value:+.2f} [")
    assert quality.loc["in-batch", "beaten by"] == "a"
    assert quality.loc["in-batch", "difference"] == "-"


def test_a_leader_table_has_a_verdict_only_if_a_baseline_was_asked_for(tmp_path):
    groups = [group_of(tmp_path, "in-batch", 0.0), group_of(tmp_path, "a", 0.8)]
    quality = leader_table(groups, main_rows(groups))["quality"]
    assert {"verdict", "difference"}.isdisjoint(quality)
    assert "verdict" not in leader_table(groups)["quality"]


def test_each_data_set_has_a_leader_table(tmp_path):
    groups = [group_of(tmp_path, "in-batch", 0.0), group_of(tmp_path, "a", 0.8)]
    rows = main_rows(groups, "in-batch")
    by_dataset = leader_tables([*groups, group_of(tmp_path, "a", 0.8, dataset="f@2")], rows)
    assert [list(table["quality"]["dataset"].unique()) for table in by_dataset.values()] == [["f@1"], ["f@2"]]


def printed_interval(text: object) -> tuple[float, float]:
    """Return the ends in a text such as "+1.71 [0.08, 3.35]"."""
    low, high = str(text).partition("[")[2].rstrip("]").split(",")
    return float(low), float(high)


def check_standing(line: dict[str, Any], margin: float) -> None:
    """Check what a printed line says against the best, by the printed interval."""
    strategy = line["strategy"]
    if "[" not in str(line["behind the best"]):
        assert line["against the best"] in ("best", "highest"), strategy
        return
    low, high = printed_interval(line["behind the best"])
    assert (line["against the best"] == "worse") == (low > 0), strategy
    assert (line["against the best"] == "equal") == (-margin <= low <= 0 <= high <= margin), strategy


def check_verdict(line: dict[str, Any], margin: float) -> None:
    """Check what a printed line says against the baseline, by the printed interval."""
    strategy = line["strategy"]
    if line["verdict"] == "baseline":
        assert line["difference"] == "-", strategy
        return
    low, high = printed_interval(line["difference"])
    assert (line["verdict"] == "better") == (low > 0), strategy
    assert (line["verdict"] == "worse") == (high < 0), strategy
    assert (line["verdict"] == "equal") == (-margin <= low <= 0 <= high <= margin), strategy


@pytest.mark.parametrize("seed", [1, 5])  # together they have every verdict and standing, level and margin
def test_the_printed_verdict_says_what_the_printed_interval_says(tmp_path, seed):
    """On random FashionIQ ranks, verdicts are better or worse exactly where the printed interval excludes 0."""
    draw = np.random.default_rng(seed)
    groups = [group_of(tmp_path, "in-batch", 0.0, seeds=(0, 1, 2))]
    for i in range(4):
        count = int(draw.integers(1, 4))
        groups.append(group_of(tmp_path, f"s{'x' * i}", float(draw.normal(0, 0.4)), seeds=tuple(range(count))))
    rules = Rules("in-batch", alpha=float(draw.choice([0.05, 0.2])), margin=float(draw.choice([0.005, 0.1])))
    (table,) = tables_of(groups)
    rows = verdicts_of(table, rules)
    lines = [*leader_table(groups, rows)["quality"].to_dict("records"), *verdict_frame(rows).to_dict("records")]
    assert len(lines) == 5 + 15
    for line in lines:
        check_standing(line, 100 * rules.margin)
        check_verdict(line, 100 * rules.margin)
    for row in rows:
        assert 0 <= row.mean.low <= row.mean.value <= row.mean.high <= 1, row.strategy


def test_a_metric_that_only_ranks_give_has_its_deviation(tmp_path):
    """The runs store no R@20: its column comes from the verdict, and reads as the others."""
    groups = [group_of(tmp_path, "in-batch", 0.0), group_of(tmp_path, "a", 0.8)]
    (table,) = tables_of(groups, Rules(metric="R@20"), main_only=True)
    rows = verdicts_of(table, Rules())
    quality = leader_table(groups, rows)["quality"].set_index("strategy")
    for row in rows:
        assert quality.loc[row.strategy, "R@20"] == f"{100 * row.mean.value:.2f} ± {100 * row.sd:.2f}", row.strategy
    for name in ("in-batch", "a"):
        assert "±" in quality.loc[name, "R@50"], name


def test_the_metric_can_be_chosen(tmp_path, subtests):
    groups = []
    for name in ("in-batch", "a"):
        for loss in ("x", "y"):
            groups.append(group_of(tmp_path, name, 0.0, loss=loss, seeds=(0,)))
    for metric in ("average/recall_at_50", "average R@50", "R@50"):
        with subtests.test(metric=metric):
            tables = tables_of(groups, Rules(metric=metric), main_only=True)
            assert [table.main_metric for table in tables] == ["average/recall_at_50"] * 2
    assert [table.main_metric for table in tables_of(groups)] == ["average/recall"] * 2
    assert {row.metric for row in verdicts_of(tables[0], Rules()) if row.main} == {"average/recall_at_50"}
    assert tables_of(groups, Rules(metric="dress/recall_at_10"))[0].main_metric == "dress/recall_at_10"
    with pytest.raises(UnknownNameError, match="unknown --metric 'Q@7'"):
        tables_of(groups, Rules(metric="Q@7"))
    with pytest.raises(UnknownNameError, match="unknown --metric 'Q@7'"):
        Rules(metric="Q@7").check({"a": "a"}, [["average/recall_at_10"]])
    Rules(metric="R@10").check({"a": "a"}, [["average/recall_at_10"]])


def with_negatives(group: pd.DataFrame, negatives: int) -> pd.DataFrame:
    """Return the group with this number of negatives per query and step in its runs."""
    for run in folders_of(group):
        run.write_result({**run.result, "negatives_per_query": negatives})
    return again(group)


@pytest.fixture(scope="module")
def unequal(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Return groups of the batch with 63 negatives, the best, and of two strategies with one; and their rows."""
    folder = tmp_path_factory.mktemp("unequal")
    groups = [
        with_negatives(group_of(folder, "in-batch", 1.0), 63),
        with_negatives(group_of(folder, "weak", 0.0), 1),
        with_negatives(group_of(folder, "strong", 0.9), 1),
    ]
    return SimpleNamespace(groups=groups, rows=main_rows(groups))


def test_tables_are_in_the_order_of_negatives(unequal):
    groups = unequal.groups
    rows = unequal.rows
    assert {row.strategy: row.negatives for row in rows} == {"in-batch": 63, "weak": 1, "strong": 1}
    table = leader_table(groups, rows)
    assert list(table["quality"]["strategy"]) == ["strong", "weak", "in-batch"]
    for frame in (table["quality"], table["behaviour"], table["cost"], verdict_frame([r for r in rows if r.main])):
        assert list(frame["negatives"]) == ["1", "1", "63"], list(frame)


def test_equal_negatives_are_compared_first(unequal):
    groups = unequal.groups
    rows = unequal.rows
    first, losers, *_, sure = answer_lines(groups, rows)
    order, numbers = first.split(" Whatever the number of negatives, ")  # in-batch is the highest of all
    assert re.match(r"average recall with 1 negative per query and step[^:]*: strong \(", order)
    assert " %) is best; weak is " in order
    assert order.endswith(" points worse.")
    values = tables_of(groups)[0].values["average/recall"]
    key = "/".join([*(part for part in rows[0].table_key if part), "average/recall"])
    test = differences(values, "in-batch", key=key).pairs.of("strong", "weak")  # though in-batch is ahead of both
    gap = with_interval(test.value, test.interval.low, test.interval.high).removeprefix("+")
    assert losers == f"Behind strong: weak by {gap} points."
    assert numbers.startswith("in-batch with 63 (")
    (strong,) = [row for row in rows if row.strategy == "strong" and row.main]
    assert f" %) is {100 * strong.behind_highest.value:.2f} [" in numbers
    assert sure.startswith("Against the best with as many negatives: 1 worse.")


def test_a_baseline_with_other_negatives_is_said(unequal):
    groups = unequal.groups
    rows = main_rows(groups, "in-batch")
    (line,) = [line for line in answer_lines(groups, rows) if line.startswith("Against in-batch, ")]
    assert " These intervals hold together for all differences from in-batch, the others for all pairs. " in line
    assert line.endswith(" The baseline has 63 negatives per query and step, but strong and weak 1.")
    quality = leader_table(groups, rows)["quality"].set_index("strategy")
    assert quality.loc["weak", "verdict"] == "worse (1 against 63 negatives)"


def test_the_answer_where_no_two_strategies_have_as_many_negatives(unequal):
    in_batch, weak, _ = unequal.groups
    rows = [row for row in unequal.rows if row.strategy != "strong"]
    first, *_ = answer_lines([in_batch, weak], rows)
    assert first.startswith("Whatever the number of negatives, in-batch with 63 (")  # no two have as many
    first, *_ = answer_lines([in_batch, weak], [replace(row, against_highest=None) for row in rows])
    assert first.endswith(" %) follows.")
    first, *_ = answer_lines([weak], [row for row in rows if row.strategy == "weak"])
    assert first.endswith(" %) is the only strategy.")


def test_fewer_images_than_asked_for_are_marked(tmp_path):
    """Draws of 16 from sets of 6: 14.4 distinct images would be enough."""
    groups = []
    for name, better, distinct in (("a", 0.8, 6.0), ("in-batch", 0.0, 16.0), ("enough", 0.0, 14.4)):
        group = group_of(tmp_path, name, better, seeds=(0,))
        (run,) = folders_of(group)
        run.write_manifest({**run.manifest, "config": {**run.manifest["config"], "train": {"num_negatives": 16}}})
        run.write_result({**run.result, "behaviour": {"distinct": distinct}, "negatives_per_query": 15.5})
        groups.append(again(group))
    rows = main_rows(groups, "in-batch")
    assert {row.negatives for row in rows} == {16.0}
    assert {row.strategy: row.marked_label for row in rows} == {
        "a": "a (6 distinct)", "in-batch": "in-batch", "enough": "enough",
    }  # fmt: skip
    line = leader_table(groups, rows)["quality"].set_index("strategy").loc["a"]
    assert (line["negatives"], line["distinct"]) == ("16", "6.0")
    assert (line["against the best"], line["verdict"]) == ("best (6 distinct)", "better (6 distinct)")
    answer = " ".join(answer_lines(groups, rows))
    assert re.match(r"average recall with 16 negatives per query and step[^:]*: a \(6 distinct\) \(", answer)
    assert "a (6 distinct) +" in answer.split("Against in-batch, ")[1]


def row(strategy: str, mean: float, **facts: Any) -> Verdict:
    """Return a row with numbers chosen by hand."""
    defaults = {"covers": "other seeds", "negatives": 1.0, "margin": 0.005, "alpha": 0.05}
    return verdict(strategy=strategy, mean=mean, **{**LABELS, **defaults, **facts})


def test_budgets_are_in_the_order_of_numbers():
    rows = [row("a", 0.5, epochs="25"), row("a", 0.5, epochs="4")]
    assert [verdict.epochs for verdict in sort_by_negatives(rows)] == ["4", "25"]


def test_the_answer_says_who_is_best_who_loses_and_what_is_undecided(golden):
    highest = row("x", 0.5, standing="highest")
    equal = row("same", 0.498, standing="equal", gap=0.002, gap_low=-0.001, gap_high=0.004)
    undecided = row("open", 0.49, standing="undecided", gap=0.01, gap_low=-0.02, gap_high=0.04)
    worse = row("last", 0.4, standing="worse", gap=0.1, gap_low=0.08, gap_high=0.12)
    below_the_margin = replace(undecided, against_best=replace(undecided.against_best, high=0.004))
    at_the_margin = replace(undecided, against_best=replace(undecided.against_best, high=0.005))
    cases = {
        "of each kind": [highest, equal, undecided, worse],
        "ahead of all": [replace(highest, standing="best"), worse],
        "bounded": [highest, below_the_margin, at_the_margin],
        "unrecorded": [row("x", 0.5, negatives=math.nan), row("y", 0.4, negatives=math.nan)],
        "two losses": [highest, equal, undecided, worse, row("x", 0.5, loss="other")],
        "over all": [highest, row("x", 0.5, dataset=OVER_ALL)],
    }
    golden("comparison", {case: answer_lines([], rows) for case, rows in cases.items()})


def test_the_price_of_what_is_undecided_is_said(tmp_path):
    """The answer gives the seeds that decide the last pair, and their computing time: 4 seeds of 3 s per strategy."""
    groups = [group_of(tmp_path, name, 0.5) for name in ("x", "y")]  # their runs took 2, 3 and 4 s
    pair = {"more_seeds": 4.0, "seeds": 3, "loss": "bradley-terry", "backbone": "tiny", "dataset": "f@1"}
    rows = [row("x", 0.5, undecided=("y",), **pair), row("y", 0.49, undecided=("x",), **pair)]
    assert open_pairs(groups, rows) == ("1 pair is undecided; about 4 more seeds (24 s of computing) should decide it")
    assert open_pairs(groups, rows[:1]).startswith("1 pair is undecided")  # the other strategy's row is elsewhere
    too_few_queries = [replace(one, more_seeds=-1.0) for one in rows]
    assert open_pairs(groups, too_few_queries) == "1 pair is undecided; it needs more queries, not seeds"
    assert open_pairs(groups, [replace(one, undecided=()) for one in rows]) == ""
    assert answer_lines(groups, rows)[1] == f"{open_pairs(groups, rows)}."


def test_too_few_seeds_are_said(tmp_path):
    def answer_text(seeds: tuple[int, ...]) -> str:
        runs = tmp_path / str(len(seeds))
        groups = [group_of(runs, "in-batch", 0.0, seeds=seeds), group_of(runs, "twin", 0.02, seeds=seeds)]
        return " ".join(answer_lines(groups, main_rows(groups)))

    assert "With one seed, the 95 % intervals hold for other queries of these trained models" in answer_text((0,))
    two = answer_text((0, 1))
    assert "1 pair is undecided; " in two
    assert " is undecided against it. " in two
    assert "hold for other seeds and other queries, not for other models" in two


def test_a_saturated_metric_is_said(tmp_path):
    groups = [group_of(tmp_path, name, 6.0) for name in ("in-batch", "a")]
    lines = answer_lines(groups, main_rows(groups))
    assert any("is saturated" in line and "--metric" in line for line in lines)


@pytest.fixture(scope="module")
def two_data_sets(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Return groups of two strategies on two data sets, of one on the first alone; their tables; the one over all."""
    folder = tmp_path_factory.mktemp("two-data-sets")
    groups = []
    for name, better in (("in-batch", 0.0), ("a", 0.4)):
        for dataset in ("f@1", "f@2"):
            groups.append(group_of(folder, name, better, seeds=(0, 1, 2), dataset=dataset))
    groups.append(group_of(folder, "only-here", 0.4, dataset="f@1"))
    tables = tables_of(groups, main_only=True)
    (whole,) = join_over_all(tables)
    rows = {row.strategy: row for row in verdicts_of(whole, Rules())}
    return SimpleNamespace(groups=groups, tables=tables, whole=whole, rows=rows)


def test_over_all_weighs_every_data_set_the_same(two_data_sets):
    whole = two_data_sets.whole
    rows = two_data_sets.rows
    assert whole.labels == {"dataset": OVER_ALL, "loss": "bradley-terry", "backbone": "tiny"}
    assert rows.keys() == {"in-batch", "a"}
    for name, combined in rows.items():
        means = []  # of the two data sets, whose three categories have equally many queries
        for table in two_data_sets.tables:
            means.append(table.values[table.main_metric][name].values.mean())
        assert combined.mean.value == pytest.approx(np.mean(means)), name
        assert combined.queries == 240, name
    assert rows["a"].verdict == "better"


def test_over_all_of_tables_with_strata_and_without():
    generator = np.random.default_rng(0)
    few = generator.random((2, 10))
    other = generator.random((2, 10))
    many = generator.random((2, 400))
    strata = np.array(["x", "y"] * 5)
    of_few = VerdictTable({**LABELS, "dataset": "few"}, "m", {"m": {"s": Values(few, (0, 1), strata)}})
    labels = {**LABELS, "dataset": "few", "backbone": "c"}
    of_other = VerdictTable(labels, "m", {"m": {"s": Values(other, (0, 1), strata)}})
    of_many = VerdictTable({**LABELS, "dataset": "many"}, "n", {"n": {"s": Values(many[::-1], (1, 0), None)}})
    (joined,) = join_over_all([of_few, of_other, of_many])
    (row,) = verdicts_of(joined, Rules())
    assert (row.metric, row.queries) == ("m and n", 410)
    by_seed = (few.mean(axis=1) + other.mean(axis=1) + many.mean(axis=1)) / 3  # both strata have five queries
    assert row.mean.value == pytest.approx(np.mean(by_seed))
    assert row.sd == pytest.approx(np.std(by_seed, ddof=1))
    assert join_over_all([of_few]) == []


def test_the_same_queries_again_are_no_new_queries(two_data_sets):
    _, table = two_data_sets.tables
    copies = [replace(table, labels={**table.labels, "backbone": str(number)}) for number in range(4)]
    (joined,) = join_over_all(copies)
    of_one = differences(table.values[table.main_metric], "in-batch")
    of_four = differences(joined.values[joined.main_metric], "in-batch")
    assert of_four.against["a"] == of_one.against["a"]


def test_the_table_over_all_stands_below_those_of_the_data_sets(two_data_sets):
    _, second = two_data_sets.tables
    rows = [*two_data_sets.rows.values(), *rows_by_strategy(second, Rules()).values()]
    printed = leader_tables(two_data_sets.groups, rows)
    assert list(printed) == ["f@1", "f@2", OVER_ALL]
    over_both = printed[OVER_ALL]["quality"]
    assert list(over_both["strategy"]) == ["a", "in-batch"]
    assert over_both.loc[0, "against the best"] == "best"


def test_measured_numbers(tmp_path):
    frames = measured_tables([group_of(tmp_path, "a", 0.8, seeds=(0, 2))])
    assert frames["behaviour"].loc[0, "pool_size"] == 11
    assert math.isnan(frames["behaviour"].loc[0, "overlap"])
    assert frames["cost"].loc[0, ["train_seconds", "peak_memory_process_mib"]].tolist() == [3, 502]
    assert frames["regime"].empty


def test_of_two_strategies_the_pair_is_the_test_against_the_baseline():
    matrices = {name: default_rng(number).random((3, 40)) for number, name in enumerate("ab")}
    values = {name: Values(matrix, (0, 1, 2), None) for name, matrix in matrices.items()}
    table = ValueTable(matrices)
    for baseline in values:
        assert differences(values, baseline).against == against(table, baseline, table.generator()), baseline


def test_clusters_and_worlds_of_each_seed_reach_the_statistics():
    generator = default_rng(0)
    shared = np.repeat(generator.normal(size=20), 10)  # twenty clusters, each with one shared difference
    a = 0.1 + shared + 0.1 * generator.normal(size=(3, 200))
    b = 0.1 * generator.normal(size=(3, 200))
    clusters = np.repeat(np.arange(20), 10).astype(str)

    def values(matrix: Any, **design: Any) -> Values:
        return Values(matrix, (0, 1, 2), None, **design)

    def width(**design: Any) -> float:
        difference = differences({"a": values(a, **design), "b": values(b, **design)}, "b").against["a"]
        return difference.interval.high - difference.interval.low

    assert width(clusters=clusters) > 2 * width()
    assert width(nested=True) != width()
    clustered = VerdictTable({**LABELS, "dataset": "0"}, "m", {"m": {"s": values(a, clusters=clusters)}})
    plain = VerdictTable({**LABELS, "dataset": "1"}, "m", {"m": {"s": values(b)}})
    (joined,) = join_over_all([clustered, plain])
    assert len(set(joined.values["m"]["s"].clusters)) == 20 + 200  # without clusters, every query is its own
