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


def asked_of(vector_sets: Sequence[str], runs: Path, **given: Any) -> Compare:
    options = {
        "strategies": "all-corpus,top-k",
        "losses": "info-nce",
        "seeds": [3],
        "name": "c",
        "sets": (*vector_sets, f"train.lr={RATE}"),
        "temperature": "grid",
    }
    return Compare(**{**options, "runs_dir": runs, "tracking_uri": "none", "report": False, **given})


class MadeTrials(SettingTrials):
    """Trials whose means are made by a function of strategy, rate and temperature."""

    value: ClassVar[Callable[[str, float, Any], float | None]]

    def _pick(self, trials: GroupTrials, runs: Path) -> ChosenSetting:
        labels = {axis: label for axis, label in trials.cells[0].labels.items() if axis != "settings"}
        settings = sorted(trials.by_setting)
        made = type(self).value
        tried = tuple((each, made(labels["strategy"], each.lr, each.temperature)) for each in settings)
        known = {setting: value for setting, value in tried if value is not None}
        return ChosenSetting(labels, (3,), best_setting(known, TrialSetting(RATE, "learned")), tried)


def near(best: dict[str, tuple[float, Any]]) -> Callable[[str, float, Any], float]:
    """Return means that fall with the steps from a strategy's best rate and temperature; learned stands before 0.07."""
    rates = [0.15 / 9, 0.05, 0.15, 0.5, 1.5, 4.5, 13.5]
    temperatures = ["learned", 0.0175, 0.035, 0.07, 0.1, 0.15, 0.3, 0.6, 1.2]

    def mean(strategy: str, rate: float, temperature: Any) -> float:
        best_rate, best_temperature = best[strategy]
        apart = abs(temperatures.index(temperature) - temperatures.index(best_temperature))
        return 0.9 - 0.01 * abs(rates.index(rate) - rates.index(best_rate)) - 0.02 * apart

    return mean


@pytest.fixture(scope="module")
def first(vector_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> SettingTrials:
    """The trials of two strategies before any is finished."""
    trials = plan_comparison(asked_of(vector_sets, tmp_path_factory.mktemp("none")), Path("none")).trials
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
    chosen = {(each.labels["strategy"], each.labels["settings"]): each for each in grown.choose(Path("none"))}
    for strategy, pair in best.items():
        assert chosen[strategy, "own"].setting == TrialSetting(*pair), strategy
        assert not chosen[strategy, "own"].common, strategy
        assert chosen[strategy, "common"].common, strategy


def test_the_common_pair_has_the_highest_mean_over_the_strategies(monkeypatch, first):
    """Both have 177 points at (0.5, 0.1), and 170 where top-k is best."""
    made = {("all-corpus", 0.5, 0.1): 0.9, ("top-k", 0.5, 0.1): 0.87, ("all-corpus", 1.5, 0.15): 0.8}
    made[("top-k", 1.5, 0.15)] = 0.9
    monkeypatch.setattr(MadeTrials, "value", staticmethod(lambda *place: made.get(place, 0.5)), raising=False)
    chosen = MadeTrials(first.by_group, grid=BOTH).choose(Path("none"))
    settings = {(each.labels["strategy"], each.labels["settings"]): each.setting for each in chosen}
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


@pytest.mark.parametrize("picked", ROWS.values(), ids=ROWS)
def test_comparison_json_gives_a_choice_back(picked):
    assert ChosenSetting.read(picked.plain()) == picked


def test_rows_of_rates_alone_are_as_they_were():
    assert list(ROWS["a rate"].plain()) == [
        *("labels", "seeds", "lr", "tried", "runs", "queries", "generated", "metric", "common")
    ]
    assert ROWS["a rate"].plain()["tried"] == ((0.5, 0.25),)


@pytest.fixture(scope="module")
def computed(vector_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Compare, Path, list[str]]:
    """A comparison that was killed after three trials, and run again: its options, runs, and its answer."""
    runs = tmp_path_factory.mktemp("temperatures")
    asked = asked_of(vector_sets, runs, lr="fixed")
    whole = InProcess.run

    def killed(self: InProcess, function: Any, tasks: Sequence[Any]) -> Iterator[Any]:
        yield from whole(self, function, tasks[:3])
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InProcess, "run", killed)
        with pytest.raises(KeyboardInterrupt):
            api.compare(asked)
    assert len(list(runs.glob("*/result.json"))) == 3
    return asked, runs, api.compare(asked).answer


def results(runs: Path) -> list[RunFolder]:
    return [RunFolder(path.parent) for path in sorted(runs.glob("*/result.json"))]


def test_the_temperature_of_the_best_trial_is_that_of_the_runs(computed):
    """By hand from the trials' results; all of one rate, as --lr fixed says."""
    _, runs, _ = computed
    means: dict[str, dict[Any, float]] = {}
    for run in results(runs):
        config, result = run.config, run.result
        assert config.train.lr == RATE, run.path.name
        if not config.eval.reported:
            tau = config.loss.options.get("tau") or "learned"
            means.setdefault(config.strategy.name, {})[tau] = result["metrics"][result["main_metric"]]
    document = read_json(runs / "c" / "comparison.json")
    chosen = {(row["labels"]["strategy"], row["labels"]["settings"]): row for row in document["rates"]}
    assert len(chosen) == 4
    for (strategy, settings), row in chosen.items():
        assert [temperature for _, temperature, _ in row["tried"]][:5] == [*TEMPERATURES], strategy
        assert {tau: value for _, tau, value in row["tried"]} == pytest.approx(means[strategy]), strategy
        if settings == "own":
            assert means[strategy][row["temperature"]] == max(means[strategy].values()), strategy
    averages = {tau: sum(row[tau] for row in means.values()) / 2 for tau in means["top-k"]}
    assert {averages[row["temperature"]] for row in chosen.values() if row["common"]} == {max(averages.values())}
    for cell in document["cells"]:
        tau = RunFolder(runs / cell["run"]).config.loss.options.get("tau") or "learned"
        assert tau == chosen[cell["strategy"], cell["settings"]]["temperature"], cell
        assert cell["loss"] == "info-nce", cell  # the table's rows share the loss, whichever temperature it has


def test_a_rerun_shares_the_trials_and_the_tables_have_a_column_for_each_setting(computed, monkeypatch):
    asked, runs, answer = computed
    trials = [run for run in results(runs) if not run.config.eval.reported]
    assert len(trials) == len({run.run_id for run in trials})
    document = read_json(runs / "c" / "comparison.json")
    assert len(trials) == sum(len(row["tried"]) for row in document["rates"] if not row["common"])
    monkeypatch.setattr(InProcess, "run", None)  # nothing is computed
    again = api.compare(asked)
    assert again.answer == answer
    assert any("Temperatures, chosen by R@10" in line for line in answer)
    assert any("in the rows of common settings" in line for line in answer)
    shown = pd.read_csv(runs / "c" / "settings.csv").set_index("strategy")
    means = {(row.strategy, row.settings): row.mean for row in again.verdicts.itertuples() if row.main}
    for strategy in ("all-corpus", "top-k"):
        for settings in ("common", "own"):
            text = shown.loc[strategy, f"at the {settings} one"]
            assert float(text.split()[0]) == pytest.approx(means[strategy, settings], abs=0.06), (strategy, settings)


def test_the_dry_run_counts_trials_and_rows(vector_sets, tmp_path):
    plan = plan_comparison(asked_of(vector_sets, tmp_path, seeds="3,1"), tmp_path)
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
    plain = plan_comparison(asked_of(vector_sets, tmp_path, temperature=None, lr="fixed"), tmp_path)
    grid = plan_comparison(asked_of(vector_sets, tmp_path), tmp_path)
    assert plain.trials is None
    assert sorted(hashes(grid)) == sorted(2 * hashes(plain))


def test_a_fixed_temperature_drops_the_options_of_a_learned_one(vector_sets, tmp_path):
    sets = (*vector_sets, "train.temperature_rate=3", "train.temperature_least=0.02")
    trials = plan_comparison(asked_of(vector_sets, tmp_path, sets=sets, lr="fixed"), tmp_path).trials
    assert trials is not None
    options = {BOTH.setting(cell.config).temperature: cell.config.train.temperature_rate for cell in trials.cells}
    assert options == {"learned": 3, 0.07: 1, 0.1: 1, 0.15: 1, 0.3: 1}


def test_a_configured_temperature_is_tried_first_and_no_part_of_the_loss_s_name(vector_sets, tmp_path):
    sets = (*vector_sets, "loss.tau=0.05")
    plan = plan_comparison(asked_of(vector_sets, tmp_path, sets=sets, lr="fixed"), tmp_path)
    assert {cell.labels["loss"] for cell in plan.cells} == {"info-nce"}
    assert plan.trials is not None
    tried = [BOTH.setting(cell.config).temperature for cell in plan.trials.cells[:6]]
    assert tried == [0.05, *TEMPERATURES]


def test_mistakes(vector_sets, tmp_path, mistakes, subtests):
    for case in mistakes["temperature_grid"]:
        with subtests.test(**case["given"]):
            with pytest.raises(OptionError) as error:
                plan_comparison(asked_of(vector_sets, tmp_path, **case["given"]), tmp_path)
            assert str(error.value).startswith(case["message"])


def test_temperatures_of_the_hybrid_terms_are_not_chosen(tmp_path):
    root = ensure(tmp_path, Spec(world=1, twins=2, train_images=12, train_queries=8, val_images=10, val_queries=6))
    sets = ("train.lr=0.001", "train.batch_size=4", "hybrid.alpha=0.4")
    given = {"backbones": "tiny", "datasets": [{"name": "synthetic", "root": str(root)}], "strategies": "in-batch"}
    with pytest.raises(OptionError, match=r"hybrid terms learn temperatures of their own"):
        plan_comparison(asked_of(sets, tmp_path, **given), tmp_path)
    shared = asked_of((*sets, "hybrid.temperature=backbone"), tmp_path, **given)
    assert plan_comparison(shared, tmp_path).trials is not None
