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
from negbench.campaign.plan import ComparisonPlan, plan_comparison
from negbench.data.scene import DataCache
from negbench.errors import OptionError, UnknownNameError
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

FACTORS = (0.3, 1.0, 3.0)  # of the configured rate, which are tried first
DOCUMENTED = 0.5  # another one is chosen


def options_of(vector_sets: list[str], runs: Path, **changes: Any) -> Compare:
    varied = [dial.partition("=")[0] for dial in changes.get("dials", ())]
    if "epochs" in changes:
        varied.append("train.epochs")
    if changes.get("lr") not in (None, "grid", "common", "fixed"):
        varied.append("train.lr")
    sets = without([*vector_sets, f"train.lr={DOCUMENTED}"], *varied)
    options = {"strategies": "all-corpus,top-k", "seeds": "3,1", "name": "c", "sets": sets}
    return Compare(**{**options, "runs_dir": runs, "tracking_uri": "none", "report": False, **changes})


@pytest.fixture(scope="module")
def computed(vector_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("rates")
    api.compare(options_of(vector_sets, runs))
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


@pytest.fixture(scope="module")
def choices(computed: Path) -> dict[str, dict[str, Any]]:
    """Return what comparison.json says of each strategy's rate."""
    rows = read_json(computed / "c" / "comparison.json")["rates"]
    return {row["labels"]["strategy"]: row for row in rows}


def test_every_group_gets_the_rate_with_the_highest_mean_over_seeds(vector_sets, computed, choices):
    """By hand; of equal means that of the rate nearest to the documented one."""
    assert set(choices) == {"all-corpus", "top-k"}
    for strategy, choice in choices.items():
        tried = dict(choice["tried"])
        runs = trials_by_hand(vector_sets, strategy, list(tried), computed)
        names = {}
        means = {}
        for rate, of_rate in runs.items():
            names[rate] = [run.run_id for run in of_rate]
            means[rate] = float(np.mean([main_metric(run) for run in of_rate]))
        assert dict(choice["runs"]) == names, strategy
        assert tried == pytest.approx(means), strategy
        highest = [rate for rate in means if means[rate] == pytest.approx(max(means.values()))]
        assert choice["lr"] == min(highest, key=lambda rate: abs(math.log(rate / DOCUMENTED))), strategy
        assert choice["lr"] != DOCUMENTED, strategy


def test_all_strategies_try_the_documented_rate_and_those_around_it(choices):
    tried = {tuple(dict(choice["tried"])) for choice in choices.values()}
    (rates,) = tried
    assert {DOCUMENTED, *(round(factor * DOCUMENTED, 6) for factor in FACTORS)} <= set(rates)


def test_a_choice_says_by_which_seeds_queries_and_metric(choices):
    for strategy, choice in choices.items():
        assert (choice["seeds"], choice["queries"], choice["generated"]) == ([3, 1], 14, False), strategy
        assert (choice["metric"], choice["common"]) == ("recall_at_10", False), strategy


def test_the_runs_and_the_tables_have_the_chosen_rates(computed, choices):
    rates = {strategy: choice["lr"] for strategy, choice in choices.items()}
    for cell in read_json(computed / "c" / "comparison.json")["cells"]:
        config = RunFolder(computed / cell["run"]).config
        assert config.train.lr == rates[cell["strategy"]], cell["run"]
        assert config.eval.reported, cell["run"]
    assert ("lr" in pd.read_csv(computed / "c" / "table.csv")) == (len(set(rates.values())) > 1)  # if they differ
    assert pd.read_csv(computed / "c" / "training.csv").set_index("strategy")["lr"].to_dict() == rates
    trials = sum(2 * len(choice["tried"]) for choice in choices.values())
    assert len(list(computed.glob("*/result.json"))) == trials + 4


def best_of_rates(means: dict[float, float], configured: float) -> float:
    return best_setting({TrialSetting(rate): mean for rate, mean in means.items()}, TrialSetting(configured)).lr


def test_the_highest_mean_is_taken_and_of_equal_ones_the_nearest():
    assert best_of_rates({0.3: 0.5, 1.0: 0.4, 3.0: 0.6}, 1.0) == 3.0
    assert best_of_rates({0.1: 0.5, 1.0: 0.5 + 1e-13, 9.0: 0.5}, 2.0) == 1.0  # 0.5 is 0.5, whatever a sum's order
    assert best_of_rates({0.5: 0.7, 2.0: 0.7}, 1.0) == 0.5
    assert best_of_rates({}, 0.5) == 0.5  # all trials failed


def test_trials_refuse_a_metric_that_the_data_set_does_not_have(vector_sets, tmp_path):
    """The metric of a choice is read from the card, before any trial is finished."""
    cells = plan_comparison(options_of(vector_sets, tmp_path, strategies="top-k", lr="fixed"), tmp_path).cells
    trials = SettingTrials.of(cells, tmp_path, DataCache())
    with pytest.raises(UnknownNameError, match="--metric"):
        replace(trials, metric="precision").choose(tmp_path)


def test_rates_are_chosen_by_the_metric_of_the_verdicts_and_reports_judge_by_any(vector_sets, tmp_path, run_command):
    """R@3 is stored nowhere: it follows from the ranks of the trials and of the runs."""
    options = options_of(vector_sets, tmp_path, metric="R@3", seeds="3,1", strategies="all-corpus,top-k")
    comparison = api.compare(options)
    trials: dict[tuple[str, str], list[float]] = {}  # strategy and rate -> R@3 of each seed
    for cell in read_json(tmp_path / "c-rates" / "comparison.json")["cells"]:
        ranks = RunFolder(tmp_path / cell["run"]).ranks()
        recall = (ranks["target_rank"] <= 3).groupby(ranks["group"]).mean().mean()
        trials.setdefault((cell["strategy"], cell["settings"]), []).append(recall)
    for choice in read_json(tmp_path / "c" / "comparison.json")["rates"]:
        strategy = choice["labels"]["strategy"]
        assert choice["metric"] == "average/recall_at_3", strategy
        for rate, value in choice["tried"]:
            of_seeds = trials[strategy, f"lr={rate:g}"]
            assert len(of_seeds) == 2, (strategy, rate)
            assert value == pytest.approx(np.mean(of_seeds)), (strategy, rate)
    assert any("Learning rates, chosen by average R@3 on" in line for line in comparison.answer)
    out = run_command("report", "c", "--runs-dir", tmp_path, "--metric", "nDCG@2").out
    assert "Learning rates, chosen by average R@3, not by average nDCG@2, on" in " ".join(out.split())
    assert "R@3" not in out.split("answer")[0]
    rows = comparison.statistics
    assert set(rows[rows["main"]]["metric"]) <= {"recall_at_3", "average/recall_at_3"}


def test_the_grid_goes_on_while_its_end_is_best_at_most_twice(vector_sets, tmp_path):
    """From a rate too low to one too high."""
    sets = (*without(vector_sets, "schedule.n_def"), "train.lr=0.02")
    options = options_of(vector_sets, tmp_path, strategies="all-corpus", seeds=[3], lr="grid", sets=sets)
    answer = " ".join(api.compare(options).answer)
    (chosen,) = read_json(tmp_path / "c" / "comparison.json")["rates"]
    rates, values = zip(*chosen["tried"], strict=True)
    assert rates == (0.006, 0.02, 0.06, 0.18, 0.54)
    assert values[0] < values[1] < values[2] < values[3] > values[4]
    queries = "14 queries carved from train (fewer than 1,000)"
    assert f"chosen by R@10 on {queries} with seed 3: 0.18 for all-corpus" in answer
    assert "lowest tried" not in answer
    trials = plan_comparison(options, tmp_path).trials
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

    def _choose_for_group(self, trials: GroupTrials, runs: Path) -> ChosenSetting:
        labels = {axis: label for axis, label in trials.cells[0].labels.items() if axis != "settings"}
        means = {}
        for setting in sorted(trials.by_setting):
            means[setting] = self.values.get((labels["strategy"], setting.lr))
        finished = {setting: mean for setting, mean in means.items() if mean is not None}
        return ChosenSetting(labels, (3, 1), best_setting(finished, TrialSetting(DOCUMENTED)), tuple(means.items()))


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
    for rate in (0.05, 0.15, 0.5, 1.5, 4.5, 13.5):
        values["all-corpus", rate] = 0.5 - abs(math.log(rate / 0.5)) / 10
    monkeypatch.setattr(MadeTrials, "values", values)
    trials = plan_comparison(options_of(vector_sets, tmp_path), tmp_path).trials
    grown = MadeTrials(trials.by_group).extend(tmp_path, DataCache())
    for group, of_group in grown.by_group.items():
        rates_and_seeds = [(cell.config.train.lr, cell.seed) for cell in of_group.cells]
        assert sorted(rates_and_seeds) == sorted(product(rates, (3, 1))), group
    assert grown.extend(tmp_path, DataCache()) == grown


MEANS = {
    ("all-corpus", 0.15): 0.5,
    ("all-corpus", 0.5): 0.4,
    ("all-corpus", 1.5): 0.2,
    ("top-k", 0.15): 0.1,
    ("top-k", 0.5): 0.3,
    ("top-k", 1.5): 0.4,
}


@pytest.fixture
def common_trials(vector_sets: list[str], tmp_path: Path) -> SettingTrials:
    """Return the trials of a common rate for two strategies, before any is finished."""
    trials = plan_comparison(options_of(vector_sets, tmp_path, lr="common"), tmp_path).trials
    assert trials is not None
    assert trials.common
    return trials


def common_rates(trials: SettingTrials, runs: Path) -> dict[str, float]:
    """Return the rate that each strategy gets if all have the same one."""
    chosen = MadeTrials(trials.by_group, common=True).choose(runs)
    assert [choice.common for choice in chosen] == [True, True]
    return {choice.labels["strategy"]: choice.setting.lr for choice in chosen}


def test_a_common_rate_has_the_highest_mean_over_the_strategies(common_trials, tmp_path, monkeypatch):
    monkeypatch.setattr(MadeTrials, "values", MEANS)
    assert common_rates(common_trials, tmp_path) == {"all-corpus": 0.5, "top-k": 0.5}
    chosen = MadeTrials(common_trials.by_group).choose(tmp_path)  # each strategy its own
    assert {choice.labels["strategy"]: choice.setting.lr for choice in chosen} == {"all-corpus": 0.15, "top-k": 1.5}


def test_a_rate_that_a_strategy_has_not_finished_is_no_common_rate(common_trials, tmp_path, monkeypatch):
    """Of 0.15 and 1.5, which both have 0.3, the nearer one is taken."""
    monkeypatch.setattr(MadeTrials, "values", {key: mean for key, mean in MEANS.items() if key != ("top-k", 0.5)})
    assert common_rates(common_trials, tmp_path) == {"all-corpus": 1.5, "top-k": 1.5}


def test_without_a_finished_trial_the_documented_rate_is_the_common_one(common_trials, tmp_path, monkeypatch):
    monkeypatch.setattr(MadeTrials, "values", {})
    assert common_rates(common_trials, tmp_path) == {"all-corpus": DOCUMENTED, "top-k": DOCUMENTED}


def test_generated_data_have_fresh_queries_for_the_trials(tmp_path):
    """Train stays whole, and no query or image of the dev split is of train or val."""
    sets = ("dataset.train_images=90", "dataset.train_queries=60", "dataset.val_images=90")
    options = Compare(
        recipe=Path("world-small"), strategies="top-k", seeds=[2], lr="grid", sets=sets, runs_dir=tmp_path
    )
    plan = plan_comparison(options, tmp_path)
    cache = DataCache()
    config = plan.trials.cells[0].config
    splits = cache.splits(config)
    reported = cache.splits(plan.cells[0].config)
    assert splits.val is splits.dev
    assert splits.train.identity == reported.train.identity
    assert len(splits.val.queries) >= 1000
    assert not {*splits.val.all_images} & {*reported.train.all_images, *reported.val.all_images}
    assert config.dataset.options["world"] == 2


def test_a_plan_counts_the_finished_trials(vector_sets, computed, choices):
    plan = plan_comparison(options_of(vector_sets, computed), computed)
    count = sum(2 * len(choice["tried"]) for choice in choices.values())
    trials = f"first {count} trials of the learning rate, {count} already finished"
    assert plan.line().endswith(f"4 already finished; {trials}")


@pytest.mark.parametrize("strategy", ["all-corpus", "top-k"])
def test_a_chosen_rate_is_that_of_more_seeds(vector_sets, computed, choices, strategy):
    """A further seed's cell is that of a comparison with this rate."""
    rate = choices[strategy]["lr"]
    plan = plan_comparison(options_of(vector_sets, computed), computed)
    (first,) = [cell for cell in plan.cells if cell.seed == 3 and cell.labels["strategy"] == strategy]
    further = first.at_seed(7, computed, DataCache())
    assert further.config.train.lr == rate
    fixed = plan_comparison(options_of(vector_sets, computed, seeds=[7], lr=rate), computed)
    (cell,) = [cell for cell in fixed.cells if cell.labels["strategy"] == strategy]
    assert (further.hash, further.labels, further.remarks) == (cell.hash, cell.labels, cell.remarks)


def test_a_rerun_tells_the_chosen_rates_and_computes_nothing(vector_sets, computed, choices, monkeypatch):
    finished = set(computed.glob("*/result.json"))
    monkeypatch.setattr(InProcess, "run", None)
    comparison = api.compare(options_of(vector_sets, computed))
    assert comparison.cells["run"].notna().all()
    assert set(computed.glob("*/result.json")) == finished
    (line,) = [line for line in comparison.answer if line.startswith("Learning rates")]
    for strategy, choice in choices.items():
        assert f"{choice['lr']:g} for" in line, strategy
        assert strategy in line, strategy
    assert "with seeds 3 and 1" in line


@pytest.mark.parametrize("strategy", ["all-corpus", "top-k"])
def test_a_trial_that_is_lost_is_no_candidate(vector_sets, computed, choices, tmp_path, strategy):
    runs = Path(shutil.copytree(computed, tmp_path / "runs"))
    rate = choices[strategy]["lr"]
    trials = plan_comparison(options_of(vector_sets, runs), runs).trials
    folders = {cell.config.train.lr: cell.folder for cell in trials.cells if cell.labels["strategy"] == strategy}
    (runs / str(folders[rate]) / "result.json").unlink()
    rows = plan_comparison(options_of(vector_sets, runs), runs).folder.about["rates"]
    (row,) = [row for row in rows if row["labels"]["strategy"] == strategy]
    assert row["lr"] != rate
    assert dict(row["tried"])[rate] is None


def test_along_dials_and_budgets_and_with_systems_every_group_has_trials(vector_sets, tmp_path):
    dials = plan_comparison(options_of(vector_sets, tmp_path, dials=("train.epochs=1,2",)), tmp_path)
    assert len(dials.trials.cells) == 2 * 2 * 3 * 2
    budgets = plan_comparison(options_of(vector_sets, tmp_path, epochs="2,4"), tmp_path)
    assert {(cell.labels["epochs"], cell.config.train.epochs) for cell in budgets.trials.cells} == {("2", 2), ("4", 4)}
    assert [row["labels"]["epochs"] for row in budgets.folder.about["rates"]] == ["2", "2", "4", "4"]
    systems = plan_comparison(options_of(vector_sets, tmp_path, systems="qure"), tmp_path)
    groups = {(cell.labels["system"], cell.labels["strategy"]) for cell in systems.cells}
    assert len(systems.trials.by_group) == len(groups)


def test_a_value_is_the_rate_of_all(vector_sets, tmp_path):
    by_lr = plan_comparison(options_of(vector_sets, tmp_path, lr="2e-3"), tmp_path)
    sets = (*vector_sets, "train.lr=0.002")
    by_set = plan_comparison(options_of(vector_sets, tmp_path, lr="fixed", sets=sets), tmp_path)
    assert [cell.hash for cell in by_lr.cells] == [cell.hash for cell in by_set.cells]
    assert by_lr.trials is None


@pytest.mark.parametrize("lr", [None, "fixed"])
@pytest.mark.parametrize("options", [{"tuned": 2}, {"dials": ("train.lr=1,2",)}], ids=["equal tuning", "a dial"])
def test_a_search_for_rates_of_its_own_has_no_trials(vector_sets, tmp_path, lr, options):
    assert plan_comparison(options_of(vector_sets, tmp_path, lr=lr, **options), tmp_path).trials is None


def test_a_recipe_may_fix_the_rate_and_names_stay_apart(vector_sets, tmp_path):
    recipe = tmp_path / "r.toml"
    recipe.write_text('[compare]\nlr = "fixed"\nseeds = 1\n', encoding="utf-8")

    def plan(**options: Any) -> ComparisonPlan:
        compare = Compare(strategies="top-k", sets=tuple(vector_sets), runs_dir=tmp_path, **options)
        comparison_plan, *_ = api.plan_compare(compare, print)
        return comparison_plan

    grid = plan(seeds=1)
    fixed = plan(recipe=recipe)
    tuned = plan(seeds=1, tuned=2)
    assert grid.trials is not None
    assert fixed.trials is None
    assert fixed.folder.path.name == f"{grid.folder.path.name}-lr-fixed"
    assert tuned.folder.path.name == f"{grid.folder.path.name}-tuned"
    assert grid.trials_folder.path.name == f"{grid.folder.path.name}-rates"


def test_where_val_chooses_the_epoch_the_dev_part_does_in_trials(vector_sets, tmp_path):
    plan = plan_comparison(options_of(vector_sets, tmp_path, sets=(*vector_sets, "eval.select=val")), tmp_path)
    assert {cell.config.eval.select for cell in plan.cells} == {"val"}
    assert {(cell.config.eval.select, cell.config.eval.reported) for cell in plan.trials.cells} == {("dev", False)}


def test_mistakes(vector_sets, tmp_path, mistakes, subtests):
    for case in mistakes["rates"]:
        with subtests.test(case["message"]), pytest.raises(OptionError, match=case["message"]):
            plan_comparison(options_of(vector_sets, tmp_path, **case["given"]), tmp_path)
