"""Settings that do nothing: a run is refused, a comparison names the rows."""

import json
from pathlib import Path
from typing import Any

import pytest

from negbench import api, audit
from negbench.errors import DataError, OptionError
from negbench.loop.remarks import check_idle, idle_exclusions
from negbench.loop.runs import DATA
from negbench.settings.config import resolve
from negbench.settings.options import Run, Study
from negbench.systems.system import load_config
from negbench.tuning.search import plan_study

SMALL = (
    "backbone.name=vectors", "dataset.name=vectors", "dataset.train_images=60", "dataset.train_queries=32",
    "dataset.val_images=40", "train.epochs=8",
)  # fmt: skip
NONE_LEFT = "a warm-up of 1 epoch leaves none of 1 to the pools"


def idle(*sets: str, rules: str = "qure", **flags: Any) -> list[str]:
    """Check a comparison of these strategies."""
    rows = []
    for name in rules.split(","):
        config = load_config(flags={"strategy": {"name": name}, **flags}, sets=(*SMALL, *sets))
        rows.append((name, config, resolve(config)))
    return check_idle(rows, sets, DATA)


def test_what_no_row_can_use_is_refused(subtests, mistakes):
    for case, message in mistakes["idle"].items():
        with subtests.test(case):
            setting, rules = case.split()
            with pytest.raises(OptionError) as caught:
                idle(setting, rules=rules)
            assert message in str(caught.value)
    assert idle("mining.exclude_relevant=true", rules="all-corpus,qure") == []  # generated worlds know what is


def test_a_comparison_names_the_rows_in_one_remark():
    rules = "qure,top-k,all-corpus"
    assert idle("train.epochs=1", rules=rules) == [
        f"strategy does nothing for qure, top-k: {NONE_LEFT}: train longer, or take it out with schedule.warmup=0"
    ]
    assert idle(schedule={"n_def": 50}) == [  # a recipe's, which may fit other lengths
        "schedule.n_def does nothing for qure: 8 epochs have room for 8 definitions, not for 50"
    ]
    assert idle("schedule.n_def=6", "schedule.refresh_every=1", rules=rules) == []
    assert idle("schedule.n_def=3", rules="qure,all-corpus") == []  # once, as documented, and another reads it
    assert idle("mining.replacement=true", rules="in-batch,qure") == [
        "mining.replacement does nothing for in-batch: it draws from each batch anew"
    ]
    assert idle("mining.guide=vectors", "mining.guide_margin=0.1", rules=rules) == []
    assert idle("eval.dev_fraction=0.3", rules=rules) == []  # learning rates may be chosen on it


def test_run_study_and_audit_refuse(tmp_path, mistakes, subtests):
    options = Run(runs_dir=tmp_path, tracking_uri="none")
    for text, message in mistakes["idle-run"].items():
        with subtests.test(text=text):
            setting, rule = text.split()
            with pytest.raises(OptionError, match=message):
                api.run(strategy=rule, sets=(*SMALL, setting), options=options)
    with pytest.raises(OptionError, match=r"schedule\.n_def does nothing for qure: schedule\.refresh_epochs overrides"):
        idle("schedule.n_def=3", "schedule.refresh_epochs=[2,4]")
    with pytest.raises(OptionError, match="exclude_subset does nothing for a trial"):
        plan_study(Study(strategy="top-k", sets=(*SMALL, "mining.exclude_subset=true")))


def test_only_what_excludes_a_further_image_counts(subtests, tmp_path, vector_sets):
    """`mine` on own files: targets alone, then one query that knows a second answer."""
    (file,) = (text.split("'")[1] for text in vector_sets if text.startswith("dataset.file="))
    rows = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]
    images = [row["target"] for row in rows if row["split"] == "train"]
    own_file = tmp_path / "t.jsonl"
    for relevant, idle_settings in (
        ([], ["mining.exclude_relevant"]),
        ([images[0]], ["mining.exclude_relevant"]),
        (images[:2], []),
    ):
        with subtests.test(relevant=len(relevant)):
            first = next(row for row in rows if row["split"] == "train")
            lines = [{**row, "relevant": relevant if row is first else []} for row in rows]
            own_file.write_text("".join(f"{json.dumps(row)}\n" for row in lines), encoding="utf-8")
            sets = [*vector_sets, f"dataset.file='{own_file}'", "mining.exclude_relevant=true"]
            config = load_config(flags={"strategy": {"name": "all-corpus"}}, sets=sets)
            dataset = DATA.dataset(resolve(config).dataset, "train", images=False)
            assert [setting for setting, _ in idle_exclusions(config.mining, dataset)] == idle_settings
    with pytest.raises(OptionError, match="exclude_subset: no query of triplets train has a group"):
        audit(dataset=f"{own_file}", strategies="all-corpus", sets=(*vector_sets[2:], "mining.exclude_subset=true"))


def test_a_run_says_what_its_data_lack_before_what_does_nothing(monkeypatch):
    def miss_images(*_: Any) -> Any:
        raise DataError("images are missing")

    run = Run(strategy="qure", sets=(*SMALL, "schedule.warmup=8"))
    with pytest.raises(OptionError, match="a warm-up of 8 epochs leaves none of 8"):
        api.plan_of(run)
    monkeypatch.setattr("negbench.loop.runs.plan_run", miss_images)
    with pytest.raises(DataError, match="missing"):
        api.plan_of(run)


def test_one_run_of_one_epoch_is_a_smoke_test(monkeypatch):
    """Its pools stay the whole corpus: a remark for one run; a comparison of such runs is refused."""
    lines: list[str] = []
    monkeypatch.setattr("negbench.api.notes", lines.extend)
    assert api.plan_of(Run(strategy="qure", sets=(*SMALL, "train.epochs=1"))).hash
    assert lines == [
        f"strategy does nothing for this run: {NONE_LEFT}: train longer, or take it out with schedule.warmup=0"
    ]
    with pytest.raises(OptionError, match="strategy does nothing for qure"):
        idle("train.epochs=1")


@pytest.mark.parametrize(("excluded", "effect"), [("true", "left out of the ranking"), ("false", "a right answer")])
def test_a_query_that_lists_its_own_reference_is_remarked(tmp_path, excluded, effect):
    row = {"reference": "a", "text": "t", "target": "b", "split": "val"}
    rows = [{**row, "relevant": ["a", "c"]}, {**row, "text": "u", "relevant": ["c"]}]
    file = tmp_path / "t.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    data = api.load_dataset("triplets", file=file, split="val", images=False, exclude_reference=excluded == "true")
    assert f"1 val queries list their own reference as relevant: it is {effect}" in data.remarks
