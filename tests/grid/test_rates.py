"""Learning rates chosen per group: by hand from the trials' results, reused, printed; `--lr`."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from negbench import api
from negbench.campaign.plan import plan_comparison
from negbench.data.scene import DataCache
from negbench.errors import OptionError
from negbench.grid.executors import Here
from negbench.grid.rates import choose, paired_error
from negbench.loop.runs import plan_run
from negbench.machine.files import read_json
from negbench.scoring.values import Values
from negbench.settings.config import build_config, resolved
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
    if given.get("lr") not in (None, "grid", "fixed"):
        varied += ("train.lr",)
    sets = tuple(text for text in sets if not (varied and text.startswith(varied)))
    options = {"strategies": "all-corpus,top-k", "seeds": "3,1", "name": "c", "sets": sets}
    return Compare(**{**options, "runs_dir": runs, "tracking_uri": "none", "report": False, **given})


@pytest.fixture(scope="module")
def computed(vector_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("rates")
    api.compare(asked_of(vector_sets, runs))
    return runs


def trials_by_hand(vector_sets: list[str], strategy: str, rates: list[float], runs: Path) -> dict[float, RunFolder]:
    """Return, for each rate, the run that `negbench run --set ...` makes with the first seed."""
    by_rate = {}
    for rate in rates:
        texts = [*vector_sets, f"train.lr={rate}", "eval.reported=false", "eval.dev_fraction=0.3", "eval.every=2"]
        config = build_config([*map(set_layer, texts), {"strategy": {"name": strategy}, "seed": 3}])
        (folder,) = runs.glob(f"*-{plan_run(config, DataCache()).hash[:8]}")
        by_rate[resolved(config).train.lr] = RunFolder(folder)
    return by_rate


def hits_of(run: RunFolder) -> Any:
    return (run.ranks()["target_rank"] <= 10).to_numpy(float)


def error_by_hand(first: RunFolder, second: RunFolder) -> float:
    gaps = hits_of(first) - hits_of(second)
    return float(np.std(gaps, ddof=1)) / math.sqrt(len(gaps))


def test_every_group_runs_at_a_rate_within_one_error_of_its_best_trial(vector_sets, computed):
    document = read_json(computed / "c" / "comparison.json")
    rates = {}
    for each in document["rates"]:
        strategy, tried = each["labels"]["strategy"], dict(each["tried"])
        assert {DOCUMENTED, *(round(by * DOCUMENTED, 6) for by in BY)} <= tried.keys()
        runs = trials_by_hand(vector_sets, strategy, list(tried), computed)
        hand = {rate: run.result["metrics"][run.result["main_metric"]] for rate, run in runs.items()}
        assert tried == pytest.approx(hand)
        top = max(hand, key=lambda rate: hand[rate])
        near = [r for r in hand if hand[top] - hand[r] <= error_by_hand(runs[top], runs[r]) + 1e-9]
        assert each["lr"] == min(near, key=lambda rate: abs(math.log(rate / DOCUMENTED)))
        second = sorted(hand, key=lambda rate: -hand[rate])[1]
        assert each["error"] == pytest.approx(error_by_hand(runs[top], runs[second]), abs=0.01)  # ties: another second
        assert (each["seed"], each["queries"], each["generated"]) == (3, 14, False)
        rates[strategy] = each["lr"]
    assert DOCUMENTED not in rates.values()
    assert set(rates) == {"all-corpus", "top-k"}
    assert ("lr" in pd.read_csv(computed / "c" / "table.csv")) == (len(set(rates.values())) > 1)  # if they differ
    assert pd.read_csv(computed / "c" / "training.csv").set_index("strategy")["lr"].to_dict() == rates
    for cell in document["cells"]:
        config = RunFolder(computed / cell["run"]).config
        assert config.train.lr == rates[cell["strategy"]]
        assert config.eval.reported
    assert len(list(computed.glob("*/result.json"))) == sum(len(each["tried"]) for each in document["rates"]) + 4


def test_rates_are_chosen_by_the_metric_of_the_verdicts_and_reports_judge_by_any(vector_sets, tmp_path, said):
    """R@3 is stored nowhere: it follows from the ranks of the trials and of the runs."""
    asked = asked_of(vector_sets, tmp_path, metric="R@3", seeds="3,1", strategies="all-corpus,top-k")
    comparison = api.compare(asked)
    document = read_json(tmp_path / "c" / "comparison.json")
    cells = read_json(tmp_path / "c-rates" / "comparison.json")["cells"]
    for each in document["rates"]:
        assert each["metric"] == "R@3"
        for rate, value in each["tried"]:
            own = [
                RunFolder(tmp_path / cell["run"])
                for cell in cells
                if cell["strategy"] == each["labels"]["strategy"] and cell["settings"] == f"lr={rate:g}"
            ]
            frame = own[0].ranks()
            found = (frame["target_rank"] <= 3).groupby(frame["group"]).mean().mean()
            assert value in (pytest.approx(found), pytest.approx((frame["target_rank"] <= 3).mean()))
    assert any("Learning rates, chosen by R@3 on" in line for line in comparison.answer)
    out = said("report", "c", "--runs-dir", tmp_path, "--metric", "nDCG@2").out
    assert "nDCG@2" in out
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
    assert "chosen on 14 queries carved from train (fewer than 1,000)" in answer
    assert f"({100 * chosen['error']:.1f} points)" in answer
    assert "lowest tried" not in answer
    planned = plan_comparison(asked, tmp_path).rates
    ((place, (own, *others)),) = planned.trials.items()
    low, high, higher, _ = others
    again = replace(planned, trials={place: (own, low, high, higher)}).grown(tmp_path, DataCache())
    assert [cell.hash for cell in again.cells] == [cell.hash for cell in planned.cells]
    full = replace(planned, trials={place: (own, low, low, high, higher)})  # five trials, the best of which is the last
    assert full.chosen(tmp_path)[place].beyond == pytest.approx(0.54)
    assert full.grown(tmp_path, DataCache()) == full


def test_the_error_is_paired_within_strata_and_by_cluster():
    """Against loops over strata and clusters."""
    first, second = np.random.default_rng(0).integers(0, 2, (2, 1, 60)).astype(float)
    strata, clusters = np.array(["a"] * 20 + ["b"] * 40), np.array([f"c{i // 3}" for i in range(60)])
    sums = []
    for cluster in np.unique(clusters):
        total = 0.0
        for q in np.flatnonzero(clusters == cluster):
            own = strata == strata[q]
            total += (first[0, q] - second[0, q] - (first - second)[0, own].mean()) / own.sum() / 2
        sums.append(total)
    by_hand = math.sqrt(sum(each**2 for each in sums) * 20 / 19)
    one, two = (Values(values, (0,), strata, clusters) for values in (first, second))
    assert paired_error(one, two) == pytest.approx(by_hand)
    assert choose({}, 0.5) == (0.5, None)  # all trials failed
    plain = paired_error(Values(first, (0,), None), Values(second, (0,), None))
    assert plain == pytest.approx(np.std(first - second, ddof=1) / math.sqrt(60))


def test_generated_data_have_fresh_queries_for_the_trials(tmp_path):
    """Train stays whole, and no query or image of the dev split is of train or val."""
    sets = ("dataset.train_images=90", "dataset.train_queries=60", "dataset.val_images=90")
    asked = Compare(recipe=Path("world-small"), strategies="top-k", seeds=[2], lr="grid", sets=sets, runs_dir=tmp_path)
    plan = plan_comparison(asked, tmp_path)
    cache, config = DataCache(), plan.rates.cells[0].config
    splits = cache.splits(config)
    reported = cache.splits(plan.cells[0].config)
    assert splits.val is splits.dev
    assert splits.train.identity == reported.train.identity
    assert len(splits.val.queries) >= 1000
    assert not {*splits.val.all_images} & {*reported.train.all_images, *reported.val.all_images}
    assert config.dataset.options["world"] == 2


def test_what_was_chosen_is_told_kept_for_more_seeds_and_found_again(vector_sets, computed, monkeypatch):
    plan = plan_comparison(asked_of(vector_sets, computed), computed)
    count = sum(len(each["tried"]) for each in plan.folder.about["rates"])
    trials = f"first {count} trials of the learning rate, {count} already finished"
    assert plan.line().endswith(f"4 already finished; {trials}")
    rates = {each["labels"]["strategy"]: each["lr"] for each in plan.folder.about["rates"]}
    more = [cell.at_seed(7, computed, DataCache()) for cell in plan.cells if cell.seed == 3]
    again = [
        cell for cell in plan_comparison(asked_of(vector_sets, computed, seeds="3,7"), computed).cells if cell.seed == 7
    ]
    assert [(cell.hash, cell.labels, cell.remarks) for cell in more] == [(c.hash, c.labels, c.remarks) for c in again]
    assert all(cell.config.train.lr == rates[cell.labels["strategy"]] for cell in more)
    answer = api.compare(asked_of(vector_sets, computed)).answer
    (line,) = [line for line in answer if line.startswith("Learning rates")]
    assert all(f"{rate:g} for" in line and strategy in line for strategy, rate in rates.items())
    assert "with seed 3" in line
    assert len(list(computed.glob("*/result.json"))) == 4 + count
    monkeypatch.setattr(Here, "run", None)  # nothing is computed
    assert api.compare(asked_of(vector_sets, computed)).cells["run"].notna().all()


def test_a_trial_that_is_lost_or_failed_is_no_candidate(vector_sets, computed, tmp_path):
    runs = tmp_path / "runs"
    shutil.copytree(computed, runs)
    for each in read_json(runs / "c" / "comparison.json")["rates"]:
        strategy = each["labels"]["strategy"]
        rates = plan_comparison(asked_of(vector_sets, runs), runs).rates
        folders = {cell.config.train.lr: cell.folder for cell in rates.cells if cell.labels["strategy"] == strategy}
        (runs / str(folders[each["lr"]]) / "result.json").unlink()
        about = plan_comparison(asked_of(vector_sets, runs), runs).folder.about["rates"]
        (row,) = [now for now in about if now["labels"]["strategy"] == strategy]
        assert row["lr"] != each["lr"]
        assert dict(row["tried"])[each["lr"]] is None


def test_along_dials_and_budgets_and_with_systems_every_group_has_trials(vector_sets, tmp_path):
    dials = plan_comparison(asked_of(vector_sets, tmp_path, dials=("train.epochs=1,2",)), tmp_path)
    assert len(dials.rates.cells) == 2 * 2 * 3
    budgets = plan_comparison(asked_of(vector_sets, tmp_path, epochs="2,4"), tmp_path)
    assert {(c.labels["epochs"], c.config.train.epochs) for c in budgets.rates.cells} == {("2", 2), ("4", 4)}
    assert [each["labels"]["epochs"] for each in budgets.folder.about["rates"]] == ["2", "2", "4", "4"]
    systems = plan_comparison(asked_of(vector_sets, tmp_path, systems="qure"), tmp_path)
    assert len(systems.rates.trials) == len({(c.labels["system"], c.labels["strategy"]) for c in systems.cells})


def test_a_value_is_the_rate_of_all(vector_sets, tmp_path):
    by_lr = plan_comparison(asked_of(vector_sets, tmp_path, lr="2e-3"), tmp_path)
    sets = (*vector_sets, "train.lr=0.002")
    by_set = plan_comparison(asked_of(vector_sets, tmp_path, lr="fixed", sets=sets), tmp_path)
    assert [cell.hash for cell in by_lr.cells] == [cell.hash for cell in by_set.cells]
    assert by_lr.rates is None
    for given in ({"tuned": 2}, {"dials": ("train.lr=1,2",)}):  # these look for rates themselves
        for lr in (None, "fixed"):
            assert plan_comparison(asked_of(vector_sets, tmp_path, lr=lr, **given), tmp_path).rates is None


def test_a_recipe_may_fix_the_rate_and_names_stay_apart(vector_sets, tmp_path):
    recipe = tmp_path / "r.toml"
    recipe.write_text('[compare]\nlr = "fixed"\nseeds = 1\n', encoding="utf-8")
    common: dict[str, Any] = {"strategies": "top-k", "sets": tuple(vector_sets), "runs_dir": tmp_path}
    asked = (Compare(seeds=1, **common), Compare(recipe=recipe, **common), Compare(seeds=1, tuned=2, **common))
    grid, fixed, tuned = (api.plan_compare(each, print)[0] for each in asked)
    assert grid.rates is not None
    assert fixed.rates is None
    assert fixed.folder.path.name == f"{grid.folder.path.name}-lr-fixed"
    assert tuned.folder.path.name == f"{grid.folder.path.name}-tuned"
    assert grid.trials.path.name == f"{grid.folder.path.name}-rates"


def test_where_val_chooses_the_epoch_the_dev_part_does_in_trials(vector_sets, tmp_path):
    plan = plan_comparison(asked_of(vector_sets, tmp_path, sets=(*vector_sets, "eval.select=val")), tmp_path)
    assert {cell.config.eval.select for cell in plan.cells} == {"val"}
    assert {(cell.config.eval.select, cell.config.eval.reported) for cell in plan.rates.cells} == {("dev", False)}


def test_mistakes(vector_sets, tmp_path, mistakes):
    for case in mistakes["rates"]:
        with pytest.raises(OptionError, match=case["message"]):
            plan_comparison(asked_of(vector_sets, tmp_path, **case["given"]), tmp_path)
