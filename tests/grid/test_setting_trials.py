"""Learning rates chosen per group: by hand from the trials' results, reused, printed; `--lr`."""

import math
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

from negbench import api
from negbench.campaign.plan import plan_comparison
from negbench.data.scene import DataCache
from negbench.errors import OptionError
from negbench.grid.executors import InProcess
from negbench.grid.setting import ChosenSetting, TrialSetting, best_setting
from negbench.grid.setting_trials import GroupTrials, SettingTrials
from negbench.loop.runs import plan_run
from negbench.machine.files import read_json
from negbench.settings.config import build_config, resolve
from negbench.settings.layers import set_layer
from negbench.settings.options import Compare
from negbench.store.runfolder import RunFolder
from tests.made import without

BY = (0.3, 1.0, 3.0)
DOCUMENTED = 0.5  # another one is chosen


def asked_of(vector_sets: list[str], runs: Path, **given: Any) -> Compare:
    sets = (*vector_sets, f"train.lr={DOCUMENTED}")
    varied = tuple(dial.split("=")[0] for dial in given.get("dials", ()))
    if "epochs" in given:
        varied += ("train.epochs",)
    if given.get("lr") not in (None, "grid", "common", "fixed"):
        varied += ("train.lr",)
    sets = tuple(text for text in sets if not (varied and text.startswith(varied)))
    options = {"strategies": "all-corpus,top-k", "seeds": "3,1", "name": "c", "sets": sets}
    return Compare(**{**options, "runs_dir": runs, "tracking_uri": "none", "report": False, **given})


@pytest.fixture(scope="module")
def computed(vector_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("rates")
    api.compare(asked_of(vector_sets, runs))
    return runs


def trials_by_hand(
    vector_sets: list[str], strategy: str, rates: list[float], runs: Path
) -> dict[float, list[RunFolder]]:
    """Return, for each rate, the runs that `negbench run --set ...` makes with the seeds 3 and 1."""
    by_rate: dict[float, list[RunFolder]] = {}
    closed = ("eval.reported=false", "eval.dev_fraction=0.3", "eval.dev_seed=3", "eval.every=2")
    for rate, seed in product(rates, (3, 1)):
        layers = [set_layer(text) for text in (*vector_sets, f"train.lr={rate}", *closed)]
        config = build_config([*layers, {"strategy": {"name": strategy}, "seed": seed}])
        (folder,) = runs.glob(f"*-{plan_run(config, DataCache()).hash[:8]}")
        by_rate.setdefault(resolve(config).train.lr, []).append(RunFolder(folder))
    return by_rate


def main_metric(run: RunFolder) -> float:
    return float(run.result["metrics"][run.result["main_metric"]])


def test_every_group_runs_at_the_rate_with_the_highest_mean_over_seeds(vector_sets, computed):
    document = read_json(computed / "c" / "comparison.json")
    rates = {}
    for each in document["rates"]:
        strategy, tried = each["labels"]["strategy"], dict(each["tried"])
        assert {DOCUMENTED, *(round(by * DOCUMENTED, 6) for by in BY)} <= tried.keys(), strategy
        runs = trials_by_hand(vector_sets, strategy, list(tried), computed)
        hand = {rate: float(np.mean([main_metric(run) for run in own])) for rate, own in runs.items()}
        assert tried == pytest.approx(hand), strategy
        assert dict(each["runs"]) == {rate: [run.run_id for run in own] for rate, own in runs.items()}, strategy
        highest = [rate for rate in hand if hand[rate] == pytest.approx(max(hand.values()))]
        assert each["lr"] == min(highest, key=lambda rate: abs(math.log(rate / DOCUMENTED))), strategy
        assert (each["seeds"], each["queries"], each["generated"]) == ([3, 1], 14, False), strategy
        assert (each["metric"], each["common"]) == ("recall_at_10", False), strategy
        rates[strategy] = each["lr"]
    assert len({tuple(dict(each["tried"])) for each in document["rates"]}) == 1  # all strategies, the same rates
    assert DOCUMENTED not in rates.values()
    assert set(rates) == {"all-corpus", "top-k"}
    assert ("lr" in pd.read_csv(computed / "c" / "table.csv")) == (len(set(rates.values())) > 1)  # if they differ
    assert pd.read_csv(computed / "c" / "training.csv").set_index("strategy")["lr"].to_dict() == rates
    for cell in document["cells"]:
        config = RunFolder(computed / cell["run"]).config
        assert config.train.lr == rates[cell["strategy"]], cell["run"]
        assert config.eval.reported, cell["run"]
    trials = sum(2 * len(each["tried"]) for each in document["rates"])
    assert len(list(computed.glob("*/result.json"))) == trials + 4


def best_of_rates(means: dict[float, float], configured: float) -> float:
    return best_setting({TrialSetting(rate): mean for rate, mean in means.items()}, TrialSetting(configured)).lr


def test_the_highest_mean_is_taken_and_of_equal_ones_the_nearest():
    assert best_of_rates({0.3: 0.5, 1.0: 0.4, 3.0: 0.6}, 1.0) == 3.0
    assert best_of_rates({0.1: 0.5, 1.0: 0.5 + 1e-13, 9.0: 0.5}, 2.0) == 1.0  # 0.5 is 0.5, whatever a sum's order
    assert best_of_rates({0.5: 0.7, 2.0: 0.7}, 1.0) == 0.5
    assert best_of_rates({}, 0.5) == 0.5  # all trials failed


def test_rates_are_chosen_by_the_metric_of_the_verdicts_and_reports_judge_by_any(vector_sets, tmp_path, run_command):
    """R@3 is stored nowhere: it follows from the ranks of the trials and of the runs."""
    asked = asked_of(vector_sets, tmp_path, metric="R@3", seeds="3,1", strategies="all-corpus,top-k")
    comparison = api.compare(asked)
    document = read_json(tmp_path / "c" / "comparison.json")
    cells = read_json(tmp_path / "c-rates" / "comparison.json")["cells"]
    for each in document["rates"]:
        assert each["metric"] == "average/recall_at_3", each["labels"]
        for rate, value in each["tried"]:
            found = []
            for cell in cells:
                if cell["strategy"] == each["labels"]["strategy"] and cell["settings"] == f"lr={rate:g}":
                    frame = RunFolder(tmp_path / cell["run"]).ranks()
                    found.append((frame["target_rank"] <= 3).groupby(frame["group"]).mean().mean())
            assert len(found) == 2, each["labels"]
            assert value == pytest.approx(np.mean(found)), each["labels"]
    assert any("Learning rates, chosen by average R@3 on" in line for line in comparison.answer)
    out = run_command("report", "c", "--runs-dir", tmp_path, "--metric", "nDCG@2").out
    assert "Learning rates, chosen by average R@3, not by average nDCG@2, on" in " ".join(out.split())
    assert "R@3" not in out.split("answer")[0]
    rows = comparison.statistics
    assert set(rows[rows["main"]]["metric"]) <= {"recall_at_3", "average/recall_at_3"}


def test_the_grid_goes_on_while_its_end_is_best_at_most_twice(vector_sets, tmp_path):
    """From a rate too low to one too high."""
    sets = (*without(vector_sets, "schedule.n_def"), "train.lr=0.02")
    asked = asked_of(vector_sets, tmp_path, strategies="all-corpus", seeds=[3], lr="grid", sets=sets)
    answer = " ".join(api.compare(asked).answer)
    (chosen,) = read_json(tmp_path / "c" / "comparison.json")["rates"]
    rates, values = zip(*chosen["tried"], strict=True)
    assert rates == (0.006, 0.02, 0.06, 0.18, 0.54)
    assert values[0] < values[1] < values[2] < values[3] > values[4]
    assert (
        "chosen by R@10 on 14 queries carved from train (fewer than 1,000) with seed 3: 0.18 for all-corpus" in answer
    )
    assert "lowest tried" not in answer
    trials = plan_comparison(asked, tmp_path).trials
    ((group, of_group),) = trials.by_group.items()
    cells = of_group.cells
    for count in (3, 4, 5):
        planned = replace(of_group, by_setting=dict(list(of_group.by_setting.items())[:count]))
        again = replace(trials, by_group={group: planned}).extend(tmp_path, DataCache())
        assert [cell.hash for cell in again.cells] == [cell.hash for cell in cells], f"the first {count} trials"
    assert trials.further_epochs() == 2 * cells[0].config.train.epochs  # at the low end, which is not asked for


class MadeTrials(SettingTrials):
    """Trials whose means are made: (strategy, rate) -> mean; a trial without one is not finished."""

    values: ClassVar[dict[tuple[str, float], float]] = {}

    def _pick(self, trials: GroupTrials, runs: Path) -> ChosenSetting:
        rates = sorted(trials.by_setting)
        labels = {axis: label for axis, label in trials.cells[0].labels.items() if axis != "settings"}
        tried = tuple((rate, self.values.get((labels["strategy"], rate.lr))) for rate in rates)
        known = {rate: value for rate, value in tried if value is not None}
        return ChosenSetting(labels, (3, 1), best_setting(known, TrialSetting(DOCUMENTED)), tried)


CURVES = {  # of top-k; all-corpus is best at the configured rate, 0.5
    "no end is best": ({0.15: 1, 0.5: 3, 1.5: 2}, [0.15, 0.5, 1.5]),
    "one strategy asks": ({0.15: 1, 0.5: 2, 1.5: 3, 4.5: 2}, [0.15, 0.5, 1.5, 4.5]),
    "it asks twice": ({0.15: 1, 0.5: 2, 1.5: 3, 4.5: 4, 13.5: 5}, [0.15, 0.5, 1.5, 4.5, 13.5]),
    "at the other end": ({0.05: 1, 0.15: 3, 0.5: 2, 1.5: 1}, [0.05, 0.15, 0.5, 1.5]),
    "an unfinished strategy does not ask": ({0.15: 1, 1.5: 3}, [0.15, 0.5, 1.5]),
}


@pytest.mark.parametrize(("curve", "rates"), CURVES.values(), ids=CURVES)
def test_all_strategies_try_the_same_rates(vector_sets, tmp_path, monkeypatch, curve, rates):
    values = {("top-k", rate): value / 10 for rate, value in curve.items()}
    values |= {("all-corpus", rate): 0.5 - abs(math.log(rate / 0.5)) / 10 for rate in (0.05, 0.15, 0.5, 1.5, 4.5, 13.5)}
    monkeypatch.setattr(MadeTrials, "values", values)
    trials = plan_comparison(asked_of(vector_sets, tmp_path), tmp_path).trials
    grown = MadeTrials(trials.by_group).extend(tmp_path, DataCache())
    for group, of_group in grown.by_group.items():
        found = [(cell.config.train.lr, cell.seed) for cell in of_group.cells]
        assert sorted(found) == sorted(product(rates, (3, 1))), group
    assert grown.extend(tmp_path, DataCache()) == grown


def test_a_common_rate_has_the_highest_mean_over_the_strategies(vector_sets, tmp_path, monkeypatch):
    own = {"all-corpus": (0.5, 0.4, 0.2), "top-k": (0.1, 0.3, 0.4)}
    made = {(name, rate): value for name, row in own.items() for rate, value in zip((0.15, 0.5, 1.5), row, strict=True)}
    monkeypatch.setattr(MadeTrials, "values", made)
    trials = plan_comparison(asked_of(vector_sets, tmp_path, lr="common"), tmp_path).trials
    assert trials.common
    chosen = MadeTrials(trials.by_group, common=True).choose(tmp_path)
    assert {each.labels["strategy"]: each.setting.lr for each in chosen} == {"all-corpus": 0.5, "top-k": 0.5}
    assert all(each.common for each in chosen)
    apart = MadeTrials(trials.by_group).choose(tmp_path)
    assert {each.labels["strategy"]: each.setting.lr for each in apart} == {"all-corpus": 0.15, "top-k": 1.5}
    monkeypatch.setattr(MadeTrials, "values", {key: value for key, value in made.items() if key != ("top-k", 0.5)})
    chosen = MadeTrials(trials.by_group, common=True).choose(tmp_path)
    assert {each.setting.lr for each in chosen} == {1.5}  # of 0.15 and 1.5, the nearer one: both have 0.3
    monkeypatch.setattr(MadeTrials, "values", {})
    assert {each.setting.lr for each in MadeTrials(trials.by_group, common=True).choose(tmp_path)} == {DOCUMENTED}


def test_generated_data_have_fresh_queries_for_the_trials(tmp_path):
    """Train stays whole, and no query or image of the dev split is of train or val."""
    sets = ("dataset.train_images=90", "dataset.train_queries=60", "dataset.val_images=90")
    asked = Compare(recipe=Path("world-small"), strategies="top-k", seeds=[2], lr="grid", sets=sets, runs_dir=tmp_path)
    plan = plan_comparison(asked, tmp_path)
    cache, config = DataCache(), plan.trials.cells[0].config
    splits = cache.splits(config)
    reported = cache.splits(plan.cells[0].config)
    assert splits.val is splits.dev
    assert splits.train.identity == reported.train.identity
    assert len(splits.val.queries) >= 1000
    assert not {*splits.val.all_images} & {*reported.train.all_images, *reported.val.all_images}
    assert config.dataset.options["world"] == 2


def test_what_was_chosen_is_told_kept_for_more_seeds_and_found_again(vector_sets, computed, monkeypatch):
    plan = plan_comparison(asked_of(vector_sets, computed), computed)
    count = sum(2 * len(each["tried"]) for each in plan.folder.about["rates"])
    trials = f"first {count} trials of the learning rate, {count} already finished"
    assert plan.line().endswith(f"4 already finished; {trials}")
    rates = {each["labels"]["strategy"]: each["lr"] for each in plan.folder.about["rates"]}
    more = [cell.at_seed(7, computed, DataCache()) for cell in plan.cells if cell.seed == 3]
    for cell in more:
        strategy = cell.labels["strategy"]
        fixed = plan_comparison(asked_of(vector_sets, computed, seeds=[7], lr=rates[strategy]), computed)
        (again,) = (other for other in fixed.cells if other.labels["strategy"] == strategy)
        assert (cell.hash, cell.labels, cell.remarks) == (again.hash, again.labels, again.remarks), strategy
    assert all(cell.config.train.lr == rates[cell.labels["strategy"]] for cell in more)
    answer = api.compare(asked_of(vector_sets, computed)).answer
    (line,) = [line for line in answer if line.startswith("Learning rates")]
    assert all(f"{rate:g} for" in line and strategy in line for strategy, rate in rates.items())
    assert "with seeds 3 and 1" in line
    assert len(list(computed.glob("*/result.json"))) == 4 + count
    monkeypatch.setattr(InProcess, "run", None)  # nothing is computed
    assert api.compare(asked_of(vector_sets, computed)).cells["run"].notna().all()


def test_a_trial_that_is_lost_or_failed_is_no_candidate(vector_sets, computed, tmp_path):
    runs = tmp_path / "runs"
    shutil.copytree(computed, runs)
    for each in read_json(runs / "c" / "comparison.json")["rates"]:
        strategy = each["labels"]["strategy"]
        rates = plan_comparison(asked_of(vector_sets, runs), runs).trials
        folders = {cell.config.train.lr: cell.folder for cell in rates.cells if cell.labels["strategy"] == strategy}
        (runs / str(folders[each["lr"]]) / "result.json").unlink()
        about = plan_comparison(asked_of(vector_sets, runs), runs).folder.about["rates"]
        (row,) = [now for now in about if now["labels"]["strategy"] == strategy]
        assert row["lr"] != each["lr"], strategy
        assert dict(row["tried"])[each["lr"]] is None, strategy


def test_along_dials_and_budgets_and_with_systems_every_group_has_trials(vector_sets, tmp_path):
    dials = plan_comparison(asked_of(vector_sets, tmp_path, dials=("train.epochs=1,2",)), tmp_path)
    assert len(dials.trials.cells) == 2 * 2 * 3 * 2
    budgets = plan_comparison(asked_of(vector_sets, tmp_path, epochs="2,4"), tmp_path)
    assert {(c.labels["epochs"], c.config.train.epochs) for c in budgets.trials.cells} == {("2", 2), ("4", 4)}
    assert [each["labels"]["epochs"] for each in budgets.folder.about["rates"]] == ["2", "2", "4", "4"]
    systems = plan_comparison(asked_of(vector_sets, tmp_path, systems="qure"), tmp_path)
    assert len(systems.trials.by_group) == len({(c.labels["system"], c.labels["strategy"]) for c in systems.cells})


def test_a_value_is_the_rate_of_all(vector_sets, tmp_path, subtests):
    by_lr = plan_comparison(asked_of(vector_sets, tmp_path, lr="2e-3"), tmp_path)
    sets = (*vector_sets, "train.lr=0.002")
    by_set = plan_comparison(asked_of(vector_sets, tmp_path, lr="fixed", sets=sets), tmp_path)
    assert [cell.hash for cell in by_lr.cells] == [cell.hash for cell in by_set.cells]
    assert by_lr.trials is None
    for given in ({"tuned": 2}, {"dials": ("train.lr=1,2",)}):  # these look for rates themselves
        for lr in (None, "fixed"):
            with subtests.test(lr=lr, **given):
                assert plan_comparison(asked_of(vector_sets, tmp_path, lr=lr, **given), tmp_path).trials is None


def test_a_recipe_may_fix_the_rate_and_names_stay_apart(vector_sets, tmp_path):
    recipe = tmp_path / "r.toml"
    recipe.write_text('[compare]\nlr = "fixed"\nseeds = 1\n', encoding="utf-8")
    common: dict[str, Any] = {"strategies": "top-k", "sets": tuple(vector_sets), "runs_dir": tmp_path}
    asked = (Compare(seeds=1, **common), Compare(recipe=recipe, **common), Compare(seeds=1, tuned=2, **common))
    grid, fixed, tuned = (api.plan_compare(each, print)[0] for each in asked)
    assert grid.trials is not None
    assert fixed.trials is None
    assert fixed.folder.path.name == f"{grid.folder.path.name}-lr-fixed"
    assert tuned.folder.path.name == f"{grid.folder.path.name}-tuned"
    assert grid.trials_folder.path.name == f"{grid.folder.path.name}-rates"


def test_where_val_chooses_the_epoch_the_dev_part_does_in_trials(vector_sets, tmp_path):
    plan = plan_comparison(asked_of(vector_sets, tmp_path, sets=(*vector_sets, "eval.select=val")), tmp_path)
    assert {cell.config.eval.select for cell in plan.cells} == {"val"}
    assert {(cell.config.eval.select, cell.config.eval.reported) for cell in plan.trials.cells} == {("dev", False)}


def test_mistakes(vector_sets, tmp_path, mistakes, subtests):
    for case in mistakes["rates"]:
        with subtests.test(case["message"]), pytest.raises(OptionError, match=case["message"]):
            plan_comparison(asked_of(vector_sets, tmp_path, **case["given"]), tmp_path)
