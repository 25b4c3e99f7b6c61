"""Statistics of a comparison: they are those of negbench.statistics on the right values, and only of like with like."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from negbench import statistics
from negbench.analysis.answer import answers
from negbench.analysis.leader import leader_table, leader_tables, measured, verdict_frame
from negbench.analysis.verdicts import Rules, VerdictRow, VerdictTable, calibrated, rows_of, tables_of
from negbench.config import build_config
from negbench.errors import OptionError, UnknownNameError
from negbench.files import write_json
from negbench.grid.comparison import KEY, Group
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.ragged import Ragged
from negbench.registry import registry
from negbench.runfolder import RunFolder
from negbench.scoring.stored import Values

SUMMARISE = registry.get("datasets", "fashioniq").summarise  # type: ignore[attr-defined]


def ranks_of(seed: int, better: float, queries: int = 120) -> QueryRanks:
    """FashionIQ ranks; the queries have difficulties of their own, and `better` moves all of them up."""
    difficulty = np.random.default_rng(0).standard_normal(queries)
    noise = np.random.default_rng(seed).standard_normal(queries)
    rank = torch.from_numpy(np.ceil(np.exp(2.6 - better + difficulty + 0.3 * noise))).long()
    return QueryRanks(
        query=tuple(f"q{i}" for i in range(queries)),
        group=tuple(("dress", "shirt", "toptee")[i % 3] for i in range(queries)),
        target_rank=rank,
        gallery_size=torch.full((queries,), 500),
        relevant_ranks=Ragged.of([[r] for r in rank.tolist()]),
    )


def group_of(
    runs: Path, strategy: str, better: float, *, seeds: tuple[int, ...] = (0, 1, 2), dataset: str = "f@1", **labels: str
) -> Group:
    """A group of finished runs, as folders."""
    folders = []
    for seed in seeds:
        name = f"{strategy}-{'-'.join(labels.values())}-{dataset}-{seed}"
        folder = RunFolder(runs / name)
        config = build_config([{"strategy": {"name": "qure"}, "dataset": {"name": "fashioniq"}, "seed": seed}])
        folder.write_manifest({"config": config.model_dump(mode="json")})
        ranks = ranks_of(seed + 100 * len(strategy), better)
        folder.write_ranks(ranks.to_frame())
        result = {
            "metrics": SUMMARISE(ranks),
            "main_metric": "average/recall",
            "behaviour": {"pool_size": 10.0 + seed, "overlap": math.nan},
            "negatives_seen": 100,
            "seconds": {"train": 2.0 + seed},
            "peak_memory_mib": {"process": 500.0 + seed},
        }
        folder.write_result(result)
        folders.append(folder)
    found = {"strategy": strategy, "loss": "bradley-terry", "backbone": "tiny", "dataset": dataset, **labels}
    return Group({k: found[k] for k in KEY}, tuple(folders))


def rows_by_strategy(table: VerdictTable, rules: Rules, metric: str = "average/recall") -> dict[str, Any]:
    return {row.strategy: row for row in rows_of(table, rules) if row.metric == metric}


def test_values_are_matrices_of_seeds_and_queries(tmp_path: Path) -> None:
    (table,) = tables_of([group_of(tmp_path, "qure", 0.5, seeds=(4, 7))])
    assert table.main == "average/recall"
    assert list(table.values) == ["average/recall", "average/recall_at_10", "average/recall_at_50"]
    found = table.values["average/recall_at_10"]["qure"]
    assert found.seeds == (4, 7)
    want = [[float(rank <= 10) for rank in ranks_of(s + 400, 0.5).target_rank.tolist()] for s in (4, 7)]
    assert found.values.tolist() == want
    assert found.strata is not None
    assert found.strata.tolist() == list(ranks_of(0, 0).group)


def test_rows_are_those_of_the_statistics(tmp_path: Path) -> None:
    groups = [group_of(tmp_path, "in-batch", 0.0), group_of(tmp_path, "a", 0.8), group_of(tmp_path, "twin", 0.02)]
    (table,) = tables_of(groups)
    rows = rows_by_strategy(table, Rules())
    assert rows["in-batch"].verdict == "baseline"
    assert math.isnan(rows["in-batch"].difference)
    assert rows["a"].verdict == "better"
    assert rows["in-batch"].beaten_by == ("a",)
    assert rows["a"].beaten_by == ()
    assert rows["twin"].verdict in ("tied", "underpowered")
    for group in groups:
        row = rows[group.labels["strategy"]]
        per_seed = group.values("metrics", "average/recall")
        assert row.mean == pytest.approx(np.mean(per_seed))
        assert row.sd == pytest.approx(np.std(per_seed, ddof=1))
        assert row.low < row.mean < row.high
    difference = np.mean(groups[1].values("metrics", "average/recall")) - rows["in-batch"].mean
    assert rows["a"].difference == pytest.approx(difference)
    assert rows["a"].diff_low < difference < rows["a"].diff_high
    values = table.values["average/recall"]
    want = statistics.compare_table(
        {name: mine.values for name, mine in values.items()},
        "in-batch",
        generator=np.random.default_rng(5),
        strata=values["a"].strata,
    )
    for comparison in want:  # another stream of random numbers: equal up to their noise
        row = rows[comparison.name]
        assert row.effect_size == pytest.approx(comparison.effect_size)
        assert row.minimum_detectable == pytest.approx(comparison.minimum_detectable)
        assert row.p_value == pytest.approx(comparison.p_value, abs=0.03)
        assert row.diff_low == pytest.approx(comparison.interval.low, abs=0.01)


def test_the_same_cells_give_the_same_rows_and_other_cells_do_not_matter(tmp_path: Path) -> None:
    first = [group_of(tmp_path, "in-batch", 0.0), group_of(tmp_path, "a", 0.1)]
    other = [group_of(tmp_path, "a", 0.3, dataset="f@2"), group_of(tmp_path, "in-batch", 0.0, loss="info-nce")]
    alone = [row.plain() for table in tables_of(first) for row in rows_of(table, Rules())]
    mixed = [row.plain() for table in tables_of([*other, *first[::-1]]) for row in rows_of(table, Rules())]
    assert json.dumps(alone)[1:-1] in json.dumps(mixed)
    assert {(r["dataset"], r["loss"], r["baseline"]) for r in mixed} == {
        ("f@1", "bradley-terry", "in-batch"),
        ("f@1", "info-nce", "in-batch"),
        ("f@2", "bradley-terry", "a"),
    }


def test_baseline_margin_and_alpha(tmp_path: Path) -> None:
    groups = [group_of(tmp_path, name, b) for name, b in (("all-corpus", 0.0), ("in-batch", 0.0), ("z(k=3)", 0.5))]
    (table,) = tables_of(groups)
    assert rows_by_strategy(table, Rules("z"))["in-batch"].verdict == "worse"
    assert rows_by_strategy(table, Rules("z"))["z(k=3)"].verdict == "baseline"
    assert rows_by_strategy(table, Rules(margin=0.9))["z(k=3)"].verdict == "better"  # its interval excludes 0
    assert rows_by_strategy(table, Rules(margin=0.9))["in-batch"].verdict == "baseline"
    assert rows_by_strategy(table, Rules(margin=0.9))["all-corpus"].verdict == "tied"
    wide, narrow = (rows_by_strategy(table, Rules(alpha=a))["z(k=3)"] for a in (0.01, 0.5))
    assert wide.diff_low < narrow.diff_low < narrow.diff_high < wide.diff_high
    (smaller,) = tables_of([groups[0], groups[2]])
    assert rows_by_strategy(smaller, Rules())["z(k=3)"].baseline == "all-corpus"
    counted = [group_of(tmp_path, name, b) for name, b in (("a x5", 0.5), ("in-batch x1", 0.0), ("in-batch x5", 0.1))]
    (table,) = tables_of(counted)
    assert rows_by_strategy(table, Rules())["a x5"].baseline == "in-batch x1"
    lost = rows_by_strategy(smaller, Rules("in-batch"))  # its cells failed: nothing else takes its place
    assert {row.verdict for row in lost.values()} == {"not compared"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((None, -0.1, 0.05), "--margin must be points, at least 0 and below 100, got -0.1"),
        ((None, math.nan, 0.05), "--margin"),
        ((None, 0.5, 0.0), "--alpha must be between 0 and 1, got 0.0"),
        ((None, 0.5, 1.0), "--alpha"),
    ],
)
def test_flags_are_checked(flags: tuple[Any, float, float], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Rules.of_flags(*flags)


def test_the_baseline_is_one_of_the_strategies() -> None:
    Rules("top-k").check(["qure", "top-k(k=5)"])
    with pytest.raises(UnknownNameError, match="unknown --baseline 'top': did you mean 'top-k'"):
        Rules("top").check(["qure", "top-k"])
    with pytest.raises(UnknownNameError):
        Rules("top-k").check(["top-k(k=5)", "top-k(k=6)"])
    assert Rules.of_flags(None, 0.5, 0.05) == Rules(None, 0.005, 0.05, None)


def test_seeds_that_are_not_common(tmp_path: Path) -> None:
    groups = [group_of(tmp_path, "in-batch", 0.0, seeds=(0, 1, 2))]
    groups += [group_of(tmp_path, "half", 0.5, seeds=(1, 2, 3)), group_of(tmp_path, "none", 0.5, seeds=(7,))]
    (table,) = tables_of(groups)
    rows = rows_by_strategy(table, Rules())
    assert rows["half"].paired_seeds == 2
    assert rows["half"].seeds == 3
    assert rows["none"].verdict == "not compared"
    assert math.isnan(rows["none"].sd)
    assert rows["none"].beaten_by == ()


def test_one_query_in_a_category_leaves_no_statistics(tmp_path: Path) -> None:
    values = {"a": Values(np.zeros((2, 3)), (0, 1), np.array(["x", "x", "y"]))}
    assert rows_of(VerdictTable("d", "l", "b", "m", {"m": values}), Rules()) == []


def test_leader_table_has_interval_and_verdict(tmp_path: Path) -> None:
    groups = [group_of(tmp_path, "in-batch", 0.0), group_of(tmp_path, "a", 0.8)]
    rows = [row for table in tables_of(groups) for row in rows_of(table, Rules())]
    quality = leader_table(groups, rows).quality.set_index("strategy")
    main = {row.strategy: row for row in rows if row.main}
    assert quality.loc["a", "verdict"] == "better"
    assert quality.loc["a", "interval"] == f"[{100 * main['a'].low:.2f}, {100 * main['a'].high:.2f}]"
    assert str(quality.loc["a", "difference"]).startswith(f"{100 * main['a'].difference:+.2f} [")
    assert quality.loc["in-batch", "beaten by"] == "a"
    assert quality.loc["in-batch", "difference"] == "-"
    assert "verdict" not in leader_table(groups).quality
    two = leader_tables([*groups, group_of(tmp_path, "a", 0.8, dataset="f@2")], rows)
    assert [list(t.quality["dataset"].unique()) for t in two.values()] == [["f@1"], ["f@2"]]


@pytest.mark.parametrize("seed", range(12))
def test_the_printed_verdict_says_what_the_printed_interval_says(tmp_path: Path, seed: int) -> None:
    """Random tables of FashionIQ ranks: better and worse exactly where the numbers in brackets exclude 0."""
    draw = np.random.default_rng(seed)
    groups = [group_of(tmp_path, "in-batch", 0.0, seeds=(0, 1, 2))]
    for i in range(4):
        count = int(draw.integers(1, 4))
        groups.append(group_of(tmp_path, f"s{'x' * i}", float(draw.normal(0, 0.4)), seeds=tuple(range(count))))
    rules = Rules(alpha=float(draw.choice([0.05, 0.2])), margin=float(draw.choice([0.005, 0.1])))
    rows = [row for table in tables_of(groups) for row in rows_of(table, rules)]
    seen = [*leader_table(groups, rows).quality.to_dict("records"), *verdict_frame(rows).to_dict("records")]
    assert len(seen) == 5 + 15
    for line in seen:
        if line["verdict"] == "baseline":
            assert line["difference"] == "-"
            continue
        low, high = (float(end) for end in str(line["difference"]).split("[")[1].rstrip("]").split(","))
        assert (line["verdict"] == "better") == (low > 0)
        assert (line["verdict"] == "worse") == (high < 0)
        inside = -100 * rules.margin <= low <= 0 <= high <= 100 * rules.margin
        assert (line["verdict"] == "tied") == inside
    for row in rows:
        assert 0 <= row.low <= row.mean <= row.high <= 1


def test_the_metric_can_be_chosen(tmp_path: Path) -> None:
    groups = [group_of(tmp_path, n, b, loss=loss) for n, b in (("in-batch", 0.0), ("a", 0.8)) for loss in ("x", "y")]
    for given in ("average/recall_at_50", "average R@50", "R@50"):
        tables = tables_of(groups, Rules(metric=given))
        assert [table.main for table in tables] == ["average/recall_at_50"] * 2
    assert [table.main for table in tables_of(groups)] == ["average/recall"] * 2
    rows = [row for table in tables for row in rows_of(table, Rules())]
    assert {row.metric for row in rows if row.main} == {"average/recall_at_50"}
    assert tables_of(groups, Rules(metric="dress/recall_at_10"))[0].main == "dress/recall_at_10"
    with pytest.raises(UnknownNameError, match="unknown --metric 'R@7'"):
        tables_of(groups, Rules(metric="R@7"))
    with pytest.raises(UnknownNameError, match="unknown --metric 'R@7'"):
        Rules(metric="R@7").check(["a"], [["average/recall_at_10"]])
    Rules(metric="R@10").check(["a"], [["average/recall_at_10"]])


def counted(group: Group, seen: int) -> Group:
    """The group, with runs that know their train queries and met so many negatives."""
    for run in group.runs:
        manifest = {**run.manifest, "dataset": {"train_queries": 50, "corpus": {"all": 200}}}
        manifest["config"]["train"]["epochs"] = 4
        run.write_manifest(manifest)
        run.write_result({**run.result, "negatives_seen": seen * 50 * 4})
    return Group(group.labels, tuple(RunFolder(run.path) for run in group.runs))


def test_equal_negatives_are_compared_first(tmp_path: Path) -> None:
    groups = [
        counted(group_of(tmp_path, "in-batch", 1.0), 63),
        counted(group_of(tmp_path, "weak", 0.0), 1),
        counted(group_of(tmp_path, "strong", 0.9), 1),
    ]
    rows = [row for table in tables_of(groups) for row in rows_of(table, Rules())]
    assert {row.strategy: row.negatives for row in rows} == {"in-batch": 63, "weak": 1, "strong": 1}
    table = leader_table(groups, rows)
    assert list(table.quality["strategy"]) == ["strong", "weak", "in-batch"]
    for frame in (table.quality, table.behaviour, table.cost, verdict_frame([r for r in rows if r.main])):
        assert list(frame["negatives"]) == ["1", "1", "63"]
    first, loss, sure, *_ = answers(groups, rows)["f@1"]
    assert first == "Of 2 strategies with 1 negative per query and step, strong is beaten by none of the others."
    assert loss.startswith("bradley-terry: highest average recall: strong ")
    assert ". With 63 negatives: in-batch" in loss
    others = [groups[0], counted(group_of(tmp_path, "other", 0.5), 63), groups[1]]
    _, told, *_ = answers(others, [row for table in tables_of(others) for row in rows_of(table, Rules())])["f@1"]
    assert ". With 1 negative: weak" in told
    alone = [row for row in rows if row.strategy == "weak"]
    assert answers([groups[1]], alone)["f@1"][0].startswith("weak alone has 1 negative per query and step")
    assert loss.endswith("% (the baseline).")
    assert "1 worse" in sure


def test_too_few_seeds_are_said(tmp_path: Path) -> None:
    alike = [("in-batch", 0.0), ("twin", 0.02)]

    def told(seeds: tuple[int, ...]) -> str:
        groups = [group_of(tmp_path / str(len(seeds)), name, better, seeds=seeds) for name, better in alike]
        rows = [row for table in tables_of(groups) for row in rows_of(table, Rules())]
        return " ".join(answers(groups, rows)["f@1"])

    assert "One seed: the intervals (95 %) are of these very models" in told((0,))
    assert "2 seeds cannot tell: the smallest difference they would show is about" in told((0, 1))
    assert "cannot tell" not in told((0, 1, 2, 3, 4))
    assert "none is shown to beat another" in told((0, 1))


def test_a_saturated_metric_is_said(tmp_path: Path) -> None:
    groups = [group_of(tmp_path, name, 6.0) for name in ("in-batch", "a")]
    rows = [row for table in tables_of(groups) for row in rows_of(table, Rules())]
    assert any("is saturated" in line and "--metric" in line for line in answers(groups, rows)["f@1"])


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    groups = [group_of(tmp_path, n, b) for n, b in (("in-batch", 0.0), ("a", 0.8))]
    rows = [row for table in tables_of(groups) for row in rows_of(table, Rules())]
    write_json(tmp_path / "x.json", [row.plain() for row in rows])
    read = [VerdictRow.read(found) for found in json.loads((tmp_path / "x.json").read_text())]
    assert repr([row.plain() for row in read]) == repr([row.plain() for row in rows])  # NaN equals NaN as a text


def test_measured_numbers(tmp_path: Path) -> None:
    behaviour, cost = measured([group_of(tmp_path, "a", 0.8, seeds=(0, 2))])
    assert behaviour.loc[0, "pool_size"] == 11
    assert math.isnan(behaviour.loc[0, "overlap"])
    assert cost.loc[0, ["train_seconds", "total_seconds", "peak_memory_process_mib"]].tolist() == [3, 3, 502]


def test_infinite_effects_are_written(tmp_path: Path) -> None:
    values = {"a": Values(np.ones((1, 8)), (0,), None), "b": Values(np.zeros((1, 8)), (0,), None)}
    rows = rows_of(VerdictTable("d", "l", "b", "m", {"m": values}), Rules("b"))
    assert math.isinf(rows[0].effect_size)
    write_json(tmp_path / "x.json", [row.plain() for row in rows])
    assert json.loads((tmp_path / "x.json").read_text())[0]["effect_size"] is None


def test_calibration_of_the_design() -> None:
    generator = np.random.default_rng(0)
    difficulty = generator.random(60)
    runs = (generator.random((6, 60)) < difficulty).astype(float)

    def table(count: int) -> VerdictTable:
        return VerdictTable("d", "l", "b", "m", {"m": {"in-batch": Values(runs[:count], tuple(range(count)), None)}})

    own, model = calibrated(table(6), Rules()), calibrated(table(2), Rules())
    assert own is not None
    assert model is not None
    assert (own.seeds, own.queries, own.source) == (3, 60, "the baseline's own runs")
    assert (model.seeds, model.source) == (2, "a model of hits and misses")
    for found in (own, model):
        assert found.simulations == 1000
        assert found.rejection <= 0.05 + 3 * found.sd
        assert 0 <= found.power["0.01"] <= found.power["0.02"] + 0.05
        assert f"{found.rejection:.1%}" in found.line()
    assert calibrated(table(6), Rules("absent")) is None
    assert calibrated(table(2), Rules()) == model


def test_statistics_csv_reads_back(tmp_path: Path) -> None:
    import io

    import pandas as pd

    rows = [r for t in tables_of([group_of(tmp_path, n, 0.1) for n in ("a", "bb")]) for r in rows_of(t, Rules())]
    text = pd.DataFrame([row.plain() for row in rows]).to_csv(index=False)
    read = list(csv.DictReader(io.StringIO(text)))
    assert [r["strategy"] for r in read] == ["a", "bb"] * 3
    assert float(read[1]["difference"]) == pytest.approx(rows[1].difference)
