"""`--temperature grid`: settings chosen by hand-made trials and by real ones, resumed, told, refused."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest

from negbench import api
from negbench.campaign.plan import ComparisonPlan, plan_comparison
from negbench.data.scene import DataCache
from negbench.errors import OptionError
from negbench.grid.executors import InProcess
from negbench.grid.setting import ChosenSetting, TrialSetting, best_setting
from negbench.grid.setting_trials import GroupTrials, SettingGrid, SettingTrials
from negbench.machine.files import read_json
from negbench.settings.options import Compare
from negbench.store.runfolder import RunFolder
from negbench.worlds.synthetic import Spec, ensure

RATE = 0.5  # the configured one
TEMPERATURES = ("learned", 0.07, 0.1, 0.15, 0.3)
BOTH = SettingGrid(rates=True, temperatures=True)


def options_of(vector_sets: Sequence[str], runs: Path, **changes: Any) -> Compare:
    options = {
        "strategies": "all-corpus,top-k",
        "losses": "info-nce",
        "seeds": [3],
        "name": "c",
        "sets": (*vector_sets, f"train.lr={RATE}"),
        "temperature": "grid",
    }
    return Compare(**{**options, "runs_dir": runs, "tracking_uri": "none", "report": False, **changes})


class MadeTrials(SettingTrials):
    """Trials whose means are made by a function of strategy, rate and temperature."""

    value: ClassVar[Callable[[str, float, Any], float | None]]

    def _choose_for_group(self, trials: GroupTrials, runs: Path) -> ChosenSetting:
        labels = {axis: label for axis, label in trials.cells[0].labels.items() if axis != "settings"}
        settings = sorted(trials.by_setting)
        means = {setting: type(self).value(labels["strategy"], setting.lr, setting.temperature) for setting in settings}
        finished = {setting: mean for setting, mean in means.items() if mean is not None}
        best = best_setting(finished, TrialSetting(RATE, "learned"))
        return ChosenSetting(labels, (3,), best, tuple(means.items()))


def near(best: dict[str, tuple[float, Any]]) -> Callable[[str, float, Any], float]:
    """Return means that fall with the steps from a strategy's best rate and temperature; learned stands before 0.07."""
    rates = [0.15 / 9, 0.05, 0.15, 0.5, 1.5, 4.5, 13.5]
    temperatures = ["learned", 0.0175, 0.035, 0.07, 0.1, 0.15, 0.3, 0.6, 1.2]

    def mean(strategy: str, rate: float, temperature: Any) -> float:
        best_rate, best_temperature = best[strategy]
        steps_of_rate = abs(rates.index(rate) - rates.index(best_rate))
        steps_of_temperature = abs(temperatures.index(temperature) - temperatures.index(best_temperature))
        return 0.9 - 0.01 * steps_of_rate - 0.02 * steps_of_temperature

    return mean


@pytest.fixture(scope="module")
def first(vector_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> SettingTrials:
    """Return the trials of two strategies before any is finished."""
    trials = plan_comparison(options_of(vector_sets, tmp_path_factory.mktemp("none")), Path("none")).trials
    assert trials is not None
    return trials


INSIDE = {"all-corpus": (0.5, 0.1), "top-k": (0.5, 0.15)}
TABLES = {  # best pairs of both strategies -> the rates and the fixed temperatures that all try
    "no end is best": (INSIDE, [0.15, 0.5, 1.5], [0.07, 0.1, 0.15, 0.3]),
    "learned is no end": ({**INSIDE, "top-k": (0.5, "learned")}, [0.15, 0.5, 1.5], [0.07, 0.1, 0.15, 0.3]),
    "one asks for a higher temperature": (
        {**INSIDE, "top-k": (0.5, 0.3)},
        [0.15, 0.5, 1.5],
        [0.07, 0.1, 0.15, 0.3, 0.6],
    ),
    "one asks for a rate, one for a temperature": (
        {"all-corpus": (1.5, 0.1), "top-k": (0.5, 0.07)},
        [0.15, 0.5, 1.5, 4.5],
        [0.035, 0.07, 0.1, 0.15, 0.3],
    ),
    "twice at most": ({**INSIDE, "top-k": (0.5, 1.2)}, [0.15, 0.5, 1.5], [0.07, 0.1, 0.15, 0.3, 0.6, 1.2]),
}


@pytest.mark.parametrize(("best", "rates", "temperatures"), TABLES.values(), ids=TABLES)
def test_all_strategies_try_all_pairs_and_each_gets_its_best(monkeypatch, first, best, rates, temperatures):
    monkeypatch.setattr(MadeTrials, "value", staticmethod(near(best)), raising=False)
    grown = MadeTrials(first.by_group, grid=BOTH).extend(Path("none"), DataCache())
    pairs = {TrialSetting(rate, temperature) for rate in rates for temperature in ("learned", *temperatures)}
    for group, trials in grown.by_group.items():
        tried = [BOTH.setting(cell.config) for cell in trials.cells]
        assert len(tried) == len(pairs), group
        assert set(tried) == pairs, group
    choices = {(row.labels["strategy"], row.labels["settings"]): row for row in grown.choose(Path("none"))}
    for strategy, (rate, temperature) in best.items():
        assert choices[strategy, "own"].setting == TrialSetting(rate, temperature), strategy
        assert not choices[strategy, "own"].common, strategy
        assert choices[strategy, "common"].common, strategy


def test_the_common_pair_has_the_highest_mean_over_the_strategies(monkeypatch, first):
    """Both have 177 points at (0.5, 0.1), and 170 where top-k is best."""
    means = {
        ("all-corpus", 0.5, 0.1): 0.9,
        ("top-k", 0.5, 0.1): 0.87,
        ("all-corpus", 1.5, 0.15): 0.8,
        ("top-k", 1.5, 0.15): 0.9,
    }
    monkeypatch.setattr(MadeTrials, "value", staticmethod(lambda *setting: means.get(setting, 0.5)), raising=False)
    rows = MadeTrials(first.by_group, grid=BOTH).choose(Path("none"))
    settings = {(row.labels["strategy"], row.labels["settings"]): row.setting for row in rows}
    common = TrialSetting(0.5, 0.1)
    assert settings == {
        ("all-corpus", "common"): common,
        ("top-k", "common"): common,
        ("all-corpus", "own"): common,
        ("top-k", "own"): TrialSetting(1.5, 0.15),
    }


def test_of_equal_means_the_configured_setting_is_taken():
    configured = TrialSetting(0.5, 0.1)
    equal = [TrialSetting(rate, tau) for rate in (0.15, 0.5, 1.5) for tau in TEMPERATURES]
    assert best_setting(dict.fromkeys(equal, 0.4), configured) == configured
    without = [setting for setting in equal if setting.temperature != 0.1]
    assert best_setting(dict.fromkeys(without, 0.4), configured) == TrialSetting(0.5, "learned")


ROWS = {
    "a rate": ChosenSetting({"strategy": "a"}, (3, 1), TrialSetting(0.5), ((TrialSetting(0.5), 0.25),)),
    "a pair": ChosenSetting(
        {"strategy": "a", "settings": "own"},
        (3,),
        TrialSetting(0.5, 0.07),
        ((TrialSetting(0.5, "learned"), None), (TrialSetting(0.5, 0.07), 0.25)),
        ((TrialSetting(0.5, 0.07), ("run",)),),
    ),
}


@pytest.mark.parametrize("choice", ROWS.values(), ids=ROWS)
def test_comparison_json_gives_a_choice_back(choice):
    assert ChosenSetting.read(choice.plain()) == choice


def test_rows_of_rates_alone_are_as_they_were():
    assert list(ROWS["a rate"].plain()) == [
        *("labels", "seeds", "lr", "tried", "runs", "queries", "generated", "metric", "common")
    ]
    assert ROWS["a rate"].plain()["tried"] == ((0.5, 0.25),)


@pytest.fixture(scope="module")
def computed(vector_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Compare, Path, list[str]]:
    """Return a comparison that was killed after three trials, and run again: its options, runs, and its answer."""
    runs = tmp_path_factory.mktemp("temperatures")
    options = options_of(vector_sets, runs, lr="fixed")
    run_tasks = InProcess.run

    def run_three_tasks(self: InProcess, function: Any, tasks: Sequence[Any]) -> Iterator[Any]:
        yield from run_tasks(self, function, tasks[:3])
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InProcess, "run", run_three_tasks)
        with pytest.raises(KeyboardInterrupt):
            api.compare(options)
    assert len(list(runs.glob("*/result.json"))) == 3
    return options, runs, api.compare(options).answer


def finished_runs(runs: Path) -> list[RunFolder]:
    return [RunFolder(path.parent) for path in sorted(runs.glob("*/result.json"))]


def trials_in(runs: Path) -> list[RunFolder]:
    return [run for run in finished_runs(runs) if not run.config.eval.reported]


def temperature_of(run: RunFolder) -> Any:
    return run.config.loss.options.get("tau") or "learned"


def means_of_trials(runs: Path) -> dict[str, dict[Any, float]]:
    """Return the metric of each trial: strategy -> temperature -> value."""
    means: dict[str, dict[Any, float]] = {}
    for run in trials_in(runs):
        value = run.result["metrics"][run.result["main_metric"]]
        means.setdefault(run.config.strategy.name, {})[temperature_of(run)] = value
    return means


def chosen_rows(runs: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rows of comparison.json that say what was chosen, by strategy and settings."""
    rows = read_json(runs / "c" / "comparison.json")["rates"]
    return {(row["labels"]["strategy"], row["labels"]["settings"]): row for row in rows}


def test_with_a_fixed_rate_all_runs_have_it(computed):
    _, runs, _ = computed
    assert {run.config.train.lr for run in finished_runs(runs)} == {RATE}


def test_the_temperature_of_the_best_trial_is_chosen(computed):
    """By hand from the trials' results."""
    _, runs, _ = computed
    means = means_of_trials(runs)
    rows = chosen_rows(runs)
    assert len(rows) == 4
    for (strategy, settings), row in rows.items():
        assert [temperature for _, temperature, _ in row["tried"]][:5] == [*TEMPERATURES], strategy
        assert {tau: value for _, tau, value in row["tried"]} == pytest.approx(means[strategy]), strategy
        if settings == "own":
            assert means[strategy][row["temperature"]] == max(means[strategy].values()), strategy
    averages = {tau: (mean + means["all-corpus"][tau]) / 2 for tau, mean in means["top-k"].items()}
    assert {averages[row["temperature"]] for row in rows.values() if row["common"]} == {max(averages.values())}


def test_the_chosen_temperature_is_that_of_the_runs(computed):
    """The table's rows share the loss, whichever temperature it has."""
    _, runs, _ = computed
    rows = chosen_rows(runs)
    for cell in read_json(runs / "c" / "comparison.json")["cells"]:
        run = RunFolder(runs / cell["run"])
        assert temperature_of(run) == rows[cell["strategy"], cell["settings"]]["temperature"], cell
        assert cell["loss"] == "info-nce", cell


def test_a_rerun_shares_the_trials(computed, monkeypatch):
    options, runs, answer = computed
    trials = trials_in(runs)
    assert len(trials) == len({run.run_id for run in trials})
    assert len(trials) == sum(len(row["tried"]) for row in chosen_rows(runs).values() if not row["common"])
    monkeypatch.setattr(InProcess, "run", None)  # nothing is computed
    assert api.compare(options).answer == answer
    assert any("Temperatures, chosen by R@10" in line for line in answer)
    assert any("in the rows of common settings" in line for line in answer)


def test_the_table_of_settings_has_a_column_for_each(computed):
    options, runs, _ = computed
    printed = pd.read_csv(runs / "c" / "settings.csv").set_index("strategy")
    verdicts = api.compare(options).verdicts
    means = {(row.strategy, row.settings): row.mean for row in verdicts.itertuples() if row.main}
    for strategy in ("all-corpus", "top-k"):
        for settings in ("common", "own"):
            mean, *_ = printed.loc[strategy, f"at the {settings} one"].split()
            assert float(mean) == pytest.approx(means[strategy, settings], abs=0.06), (strategy, settings)


def test_the_dry_run_counts_trials_and_rows(vector_sets, tmp_path):
    plan = plan_comparison(options_of(vector_sets, tmp_path, seeds="3,1"), tmp_path)
    assert plan.line() == (
        "8 cells (2 strategies x 2 seeds x 2 settings), 0 already finished; first 60 trials of the learning rate and "
        "the temperature, 0 already finished"
    )
    assert plan.trials is not None
    epochs = plan.cells[0].config.train.epochs
    assert plan.trials.further_epochs() == 2 * (7 * 9 - 15) * 2 * epochs  # strategies, settings more, seeds


def hashes(plan: ComparisonPlan) -> list[str]:
    return [cell.hash for cell in plan.cells]


def test_a_run_at_the_configured_setting_is_that_of_a_comparison_without_the_grid(vector_sets, tmp_path):
    plain = plan_comparison(options_of(vector_sets, tmp_path, temperature=None, lr="fixed"), tmp_path)
    grid = plan_comparison(options_of(vector_sets, tmp_path), tmp_path)
    assert plain.trials is None
    assert sorted(hashes(grid)) == sorted(2 * hashes(plain))


def test_a_fixed_temperature_drops_the_options_of_a_learned_one(vector_sets, tmp_path):
    sets = (*vector_sets, "train.temperature_rate=3", "train.temperature_least=0.02")
    trials = plan_comparison(options_of(vector_sets, tmp_path, sets=sets, lr="fixed"), tmp_path).trials
    assert trials is not None
    options = {BOTH.setting(cell.config).temperature: cell.config.train.temperature_rate for cell in trials.cells}
    assert options == {"learned": 3, 0.07: 1, 0.1: 1, 0.15: 1, 0.3: 1}


def test_a_configured_temperature_is_tried_first_and_no_part_of_the_loss_s_name(vector_sets, tmp_path):
    sets = (*vector_sets, "loss.tau=0.05")
    plan = plan_comparison(options_of(vector_sets, tmp_path, sets=sets, lr="fixed"), tmp_path)
    assert {cell.labels["loss"] for cell in plan.cells} == {"info-nce"}
    assert plan.trials is not None
    tried = [BOTH.setting(cell.config).temperature for cell in plan.trials.cells[:6]]
    assert tried == [0.05, *TEMPERATURES]


def test_mistakes(vector_sets, tmp_path, mistakes, subtests):
    for case in mistakes["temperature_grid"]:
        with subtests.test(**case["given"]):
            with pytest.raises(OptionError) as error:
                plan_comparison(options_of(vector_sets, tmp_path, **case["given"]), tmp_path)
            assert str(error.value).startswith(case["message"])


def test_temperatures_of_the_hybrid_terms_are_not_chosen(tmp_path):
    root = ensure(tmp_path, Spec(world=1, twins=2, train_images=12, train_queries=8, val_images=10, val_queries=6))
    sets = ("train.lr=0.001", "train.batch_size=4", "hybrid.alpha=0.4")
    axes = {"backbones": "tiny", "datasets": [{"name": "synthetic", "root": str(root)}], "strategies": "in-batch"}
    with pytest.raises(OptionError, match=r"hybrid terms learn temperatures of their own"):
        plan_comparison(options_of(sets, tmp_path, **axes), tmp_path)
    shared = options_of((*sets, "hybrid.temperature=backbone"), tmp_path, **axes)
    assert plan_comparison(shared, tmp_path).trials is not None
