"""Published numbers: every row adds up or says why not, and is shown only beside its own split and protocol."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from negbench.api import make_strategy
from negbench.benchmarks import cirr, fashioniq, hp_fashioniq
from negbench.benchmarks.fashioniq import FashionIQOptions
from negbench.benchmarks.fashioniq_files import METRICS as FASHIONIQ
from negbench.report import build
from negbench.report.published import PATH, PublishedRow, published_rows, rows_beside
from negbench.settings.layers import parse_plugin


def find(source: str, row: str, dataset: str = "fashioniq") -> PublishedRow:
    rows = {(published.source, published.row, published.dataset): published for published in published_rows()}
    return rows[source, row, dataset]


def test_rows_as_printed():
    """One row of every table equals the printed numbers, typed in again."""
    qure = find("QuRe table 2", "QuRe")
    assert (qure.backbone, qure.split, qure.protocol, qure.secondary) == ("BLIP-2 ViT-L", "val", "original", False)
    percent = [46.80, 69.81, 53.53, 72.87, 57.47, 77.77, 52.60, 73.48, 63.04]
    shares = [value / 100 for value in percent]
    assert dict(qure.metrics) == pytest.approx(dict(zip(FASHIONIQ, shares, strict=True)))
    printed = pd.read_csv(Path(__file__).parents[1] / "golden" / "printed.csv")
    for source, row, dataset, metric, value in printed.itertuples(index=False):
        assert find(source, row, dataset).metrics[metric] == pytest.approx(value), (source, row)


def test_every_row_has_a_name_of_its_own():
    assert len(published_rows()) == 154
    assert len({(row.source, row.row, row.dataset) for row in published_rows()}) == 154


def sums(row: PublishedRow) -> dict[str, tuple[str, ...]]:
    """Return, for every printed mean, the metrics that it is the mean of."""
    recalls = [f"recall_at_{k}" for k in (1, 5, 10, 50)]
    subset_recalls = [f"subset_recall_at_{k}" for k in (1, 2, 3)]
    by_mean = {"average": ("recall_at_5", "subset_recall_at_1"), "overall": (*recalls, *subset_recalls)}
    for name in ("recall", "cirqrs"):
        by_mean[f"average/{name}"] = (f"average/{name}_at_10", f"average/{name}_at_50")
        for k in (10, 50):
            parts = ("dress", "shirt", "toptee")
            by_mean[f"average/{name}_at_{k}"] = tuple(f"{part}/{name}_at_{k}" for part in parts)
    return {whole: parts for whole, parts in by_mean.items() if {whole, *parts} <= set(row.metrics)}


def test_what_does_not_add_up_has_a_note_and_all_else_adds_up():
    """Exactly these rows (section 8 of the collection) differ from their means by more than 0.015 and say so."""
    wrong = set()
    for row in published_rows():
        unit = 1 if "cirqrs" in " ".join(row.metrics) else 100
        for whole, parts in sums(row).items():
            mean = sum(row.metrics[part] for part in parts) / len(parts)
            if abs(mean - row.metrics[whole]) * unit > 0.0151:
                wrong.add((row.source, row.row))
                assert "as printed" in row.note, (row, whole, mean)
    assert wrong == {
        ("QuRe table 2", "CoVR-BLIP"),
        ("QuRe table 3", "CoSMo"),
        ("QuRe table 3", "MGUR"),
        ("DQE-CIR table 1", "DQE-CIR"),
        ("DQE-CIR table 5", "DQE-CIR BLIP"),
        ("DQE-CIR table 5", "DQE-CIR BLIP-2"),
        ("HyCoLe-HNM table 1", "CoSMo"),
    }
    assert "55.55" in find("HyCoLe-HNM table 4", "full").note


def test_rows_name_benchmarks_metrics_and_strategies_that_exist():
    cards = {
        "fashioniq": fashioniq.card(FashionIQOptions(), "val"),
        "cirr": cirr.card("val"),
        "hp-fashioniq": hp_fashioniq.CARD,
    }
    cirqrs = set()
    for part in ("dress", "shirt", "toptee", "average"):
        cirqrs |= {f"{part}/cirqrs", f"{part}/cirqrs_at_10", f"{part}/cirqrs_at_50"}
    for row in published_rows():
        if row.dataset in cards:
            assert set(row.metrics) <= {*cards[row.dataset].metrics, *cirqrs, "overall"}, row
        assert row.secondary == (row.paper == "Papers with Code"), row
        if row.negatives:
            plugin = parse_plugin(row.negatives)
            make_strategy(plugin.pop("name"), **plugin)
    assert find("DQE-CIR table 4", "0.30-0.70", "cirr").negatives == "dqe:alpha=0.3:beta=0.7"


def sources_beside(dataset: str, split: str, protocol: str, metrics: Any) -> set[str]:
    """Return the tables of which rows stand beside a run on this data set."""
    manifest = {"dataset": {"val": f"{dataset}@{protocol}-12345678", "partial": False, "split": split}}
    return {row.source for row in rows_beside(manifest, metrics)}


def test_rows_stand_beside_their_own_protocol_of_fashioniq():
    original = sources_beside("fashioniq", "val", "original", FASHIONIQ)
    assert {"QuRe table 2", "QuRe table 7", "CIRQRS table 4", "CIRQRS table 7", "DQE-CIR table 1"} <= original
    assert [source for source in original if "HyCoLe" in source or "table 6" in source] == []
    assert sources_beside("fashioniq", "val", "val", FASHIONIQ) == {"HyCoLe-HNM table 1", "HyCoLe-HNM table 4"}


def test_rows_stand_beside_their_own_metrics():
    cirqrs = ["average/cirqrs"]
    for part in ("dress", "shirt", "toptee", "average"):
        cirqrs += [f"{part}/cirqrs_at_10", f"{part}/cirqrs_at_50"]
    assert "CIRQRS table 6" in sources_beside("fashioniq", "val", "original", [*FASHIONIQ, *cirqrs])
    of_parts = [name for name in FASHIONIQ if not name.startswith("average")]
    assert not sources_beside("fashioniq", "val", "original", of_parts)


def test_rows_stand_beside_their_own_split():
    assert not sources_beside("fashioniq", "train", "original", FASHIONIQ)
    assert not sources_beside("cirr", "val", "rc2", cirr.card("val").metrics)
    assert {"QuRe table 3", "DQE-CIR table 4"} <= sources_beside("cirr", "test1", "rc2", cirr.card("val").metrics)
    assert not sources_beside("fashion200k", "test", "tirg", ["recall_at_1", "recall_at_10", "recall_at_50", "average"])


def test_rows_stand_beside_whole_data_sets_of_their_own_name():
    dataset = {"val": "fashioniq@original-12345678", "partial": False}
    assert rows_beside({"dataset": dataset}, FASHIONIQ)
    assert not rows_beside({"dataset": {**dataset, "partial": True}}, FASHIONIQ)
    assert not rows_beside({"dataset": {**dataset, "val": "synthetic@twins4.5-seed0-12345678"}}, FASHIONIQ)


def test_a_smaller_gallery_is_said_beside_the_printed_rows():
    remark = "dress val: 50 images, but 3,817 are published"
    data = {"val": "fashioniq@original-12345678", "split": "val", "partial": False, "remarks": [remark]}
    run = SimpleNamespace(manifest={"dataset": data}, result={"metrics": dict.fromkeys(FASHIONIQ, 0.5)})
    runs: Any = SimpleNamespace(groups=[pd.DataFrame({"stored": [run]})])
    (table,) = build._published_section([runs]).parts
    assert table.text.endswith(f"; the runs compared here, {remark}.")


def test_tables_are_whole():
    """Column names are unique, and every percentage lies between 0 and 100."""
    for table in json.loads(PATH.read_text(encoding="utf-8"))["tables"]:
        assert len(set(table["columns"])) == len(table["columns"]), table["paper"]
        assert table["unit"] in ("percent", "plain"), table["paper"]
        for row in table["rows"]:
            values = [value for value in row["values"] if value is not None]
            if table["unit"] == "percent":
                assert [value for value in values if not 0 <= value <= 100] == [], table["paper"]
