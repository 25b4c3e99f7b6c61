"""Learning rates chosen per group: by hand from the trials' results, reused, printed; `--lr`."""

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from negbench import api
from negbench.data.scene import Scenes
from negbench.errors import NegbenchError, OptionError
from negbench.grid.compare import plan_comparison
from negbench.grid.executors import Here
from negbench.loop import runs as loop_runs
from negbench.loop.runs import plan_run
from negbench.machine.files import read_json
from negbench.settings.config import build_config, resolved
from negbench.settings.layers import set_layer
from negbench.settings.options import Compare
from negbench.store.runfolder import RunFolder

BY = (0.3, 1.0, 3.0)
DOCUMENTED = 0.2  # too high, so that another one is chosen


def asked_of(vector_sets: list[str], runs: Path, **given: Any) -> Compare:
    sets = (*vector_sets, f"train.lr={DOCUMENTED}")
    varied = tuple(dial.split("=")[0] for dial in given.get("dials", ()))
    varied += ("train.lr",) * (given.get("lr") not in (None, "grid", "fixed"))
    sets = tuple(text for text in sets if not (varied and text.startswith(varied)))
    options = {"strategies": "all-corpus,top-k", "seeds": "3,1", "name": "c", "sets": sets}
    return Compare(**{**options, "runs_dir": runs, "tracking_uri": "none", "report": False, **given})


@pytest.fixture(scope="module")
def computed(vector_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("rates")
    api.compare(asked_of(vector_sets, runs))
    return runs


def trials_by_hand(vector_sets: list[str], strategy: str, runs: Path) -> dict[float, float]:
    """Return, for each rate, the main metric of the run that `negbench run --set ...` makes with the first seed."""
    by_rate = {}
    for factor in BY:
        texts = [*vector_sets, f"train.lr={factor * DOCUMENTED:.6g}", "eval.reported=false", "eval.dev_fraction=0.2"]
        config = build_config([*map(set_layer, texts), {"strategy": {"name": strategy}, "seed": 3}])
        digest = plan_run(config, Scenes()).hash
        (folder,) = runs.glob(f"*-{digest[:8]}")
        result = RunFolder(folder).result
        by_rate[resolved(config).train.lr] = result["metrics"][result["main_metric"]]
    return by_rate


def test_every_group_runs_at_the_best_of_its_trials(vector_sets: list[str], computed: Path) -> None:
    document = read_json(computed / "c" / "comparison.json")
    rates = {}
    for each in document["rates"]:
        strategy = each["labels"]["strategy"]
        tried = trials_by_hand(vector_sets, strategy, computed)
        assert [tuple(pair) for pair in each["tried"]] == sorted(tried.items())
        best = max(tried.values())
        assert tried[each["lr"]] == best
        assert each["lr"] == DOCUMENTED or tried[DOCUMENTED] < best  # among equals the documented rate wins
        assert each["seed"] == 3
        rates[strategy] = each["lr"]
    assert set(rates) == {"all-corpus", "top-k"}
    assert set(rates.values()) != {DOCUMENTED}
    assert len(document["cells"]) == 4
    for cell in document["cells"]:
        config = RunFolder(computed / cell["run"]).config
        assert config.train.lr == rates[cell["strategy"]]
        assert config.eval.reported
    assert len(list(computed.glob("*/result.json"))) == 6 + 4


def test_what_was_chosen_is_told_and_found_again(
    vector_sets: list[str], computed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_comparison(asked_of(vector_sets, computed), computed)
    trials = "first 6 trials of the learning rate, 6 already finished"
    assert plan.line().endswith(f"4 already finished; {trials}")
    answer = api.compare(asked_of(vector_sets, computed)).answer
    (line,) = [line for line in answer if line.startswith("Learning rates")]
    for each in read_json(computed / "c" / "comparison.json")["rates"]:
        assert f"{each['lr']:g} for" in line
        assert each["labels"]["strategy"] in line
    assert "with seed 3" in line
    assert len(list(computed.glob("*/result.json"))) == 10
    monkeypatch.setattr(Here, "run", None)  # nothing is computed
    assert api.compare(asked_of(vector_sets, computed)).cells["run"].notna().all()


def test_more_seeds_keep_the_rates_of_the_first(vector_sets: list[str], computed: Path) -> None:
    plan = plan_comparison(asked_of(vector_sets, computed), computed)
    rates = {each["labels"]["strategy"]: each["lr"] for each in plan.folder.about["rates"]}
    more = plan.more([7, 8])
    assert [cell.seed for cell in more] == [7, 7, 8, 8]
    assert all(cell.config.train.lr == rates[cell.labels["strategy"]] for cell in more)


def test_a_trial_that_is_lost_or_failed_is_no_candidate(vector_sets: list[str], computed: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(computed, runs)
    for each in read_json(runs / "c" / "comparison.json")["rates"]:
        strategy = each["labels"]["strategy"]
        rates = plan_comparison(asked_of(vector_sets, runs), runs).rates
        assert rates is not None
        folders = {cell.config.train.lr: cell.folder for cell in rates.cells if cell.labels["strategy"] == strategy}
        (runs / str(folders[each["lr"]]) / "result.json").unlink()
        left = {rate: value for rate, value in each["tried"] if rate != each["lr"]}
        about = plan_comparison(asked_of(vector_sets, runs), runs).folder.about["rates"]
        (row,) = [now for now in about if now["labels"]["strategy"] == strategy]
        assert left[row["lr"]] == max(left.values())
        assert dict(row["tried"])[each["lr"]] is None


def test_failed_trials_end_the_command(
    vector_sets: list[str], computed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cells run at the configured rate then; a rerun tries the others."""
    real = loop_runs.train

    def failing(cell: Any, folder: Any, log: Any) -> Any:
        if cell.config.strategy.name == "top-k" and not cell.config.eval.reported:
            raise NegbenchError("mend this")
        return real(cell, folder, log)

    monkeypatch.setattr(loop_runs, "train", failing)
    with pytest.raises(NegbenchError, match="3 of 10 cells failed"):
        api.compare(asked_of(vector_sets, tmp_path))
    documents = [read_json(tmp_path / "c" / "comparison.json")]
    monkeypatch.undo()
    api.compare(asked_of(vector_sets, tmp_path))
    documents += [read_json(runs / "c" / "comparison.json") for runs in (tmp_path, computed)]
    assert all(cell["run"] for document in documents for cell in document["cells"])
    assert documents[0] != documents[1] == documents[2]


def test_along_dials_and_with_systems_every_group_has_trials(vector_sets: list[str], tmp_path: Path) -> None:
    dials = plan_comparison(asked_of(vector_sets, tmp_path, dials=("train.epochs=1,2",)), tmp_path)
    assert dials.rates is not None
    assert len(dials.rates.cells) == 2 * 2 * 3
    systems = plan_comparison(asked_of(vector_sets, tmp_path, systems="qure"), tmp_path)
    assert systems.rates is not None
    assert len(systems.rates.trials) == len({(c.labels["system"], c.labels["strategy"]) for c in systems.cells})


def test_a_value_is_the_rate_of_all(vector_sets: list[str], tmp_path: Path) -> None:
    by_lr = plan_comparison(asked_of(vector_sets, tmp_path, lr="2e-3"), tmp_path)
    sets = (*vector_sets, "train.lr=0.002")
    by_set = plan_comparison(asked_of(vector_sets, tmp_path, lr="fixed", sets=sets), tmp_path)
    assert [cell.hash for cell in by_lr.cells] == [cell.hash for cell in by_set.cells]
    assert by_lr.rates is None


def test_a_recipe_may_fix_the_rate_and_names_stay_apart(vector_sets: list[str], tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text('[compare]\nlr = "fixed"\nseeds = 1\n', encoding="utf-8")
    common: dict[str, Any] = {"strategies": "top-k", "sets": tuple(vector_sets), "runs_dir": tmp_path}
    asked = (Compare(seeds=1, **common), Compare(recipe=recipe, **common), Compare(seeds=1, tuned=2, **common))
    grid, fixed, tuned = (api.plan_compare(each, api._silent())[0] for each in asked)
    assert grid.rates is not None
    assert fixed.rates is None
    assert fixed.folder.path.name == f"{grid.folder.path.name}-lr-fixed"
    assert tuned.folder.path.name == f"{grid.folder.path.name}-tuned"
    assert grid.trials.path.name == f"{grid.folder.path.name}-rates"


def test_what_looks_for_rates_itself_has_one(vector_sets: list[str], tmp_path: Path) -> None:
    for given in ({"tuned": 2}, {"dials": ("train.lr=1,2",)}):
        for lr in (None, "fixed"):
            assert plan_comparison(asked_of(vector_sets, tmp_path, lr=lr, **given), tmp_path).rates is None


def test_where_val_chooses_the_epoch_the_dev_part_does_in_trials(vector_sets: list[str], tmp_path: Path) -> None:
    asked = asked_of(vector_sets, tmp_path, sets=(*vector_sets, "eval.select=val"))
    plan = plan_comparison(asked, tmp_path)
    assert {cell.config.eval.select for cell in plan.cells} == {"val"}
    assert plan.rates is not None
    assert {(cell.config.eval.select, cell.config.eval.reported) for cell in plan.rates.cells} == {("dev", False)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lr": "fast"}, "--lr 'fast': expected grid, fixed, or a number above 0, e.g. 1e-3"),
        ({"lr": -1}, "expected grid, fixed"),
        ({"lr": "grid", "tuned": 2}, "--tuned and --dial train.lr already search the learning rate"),
        ({"lr": 0.1, "dials": ("train.lr=1,2",)}, "already search the learning rate"),
    ],
)
def test_mistakes(vector_sets: list[str], tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        plan_comparison(asked_of(vector_sets, tmp_path, **given), tmp_path)


def test_rates_that_differ_are_a_column(computed: Path) -> None:
    rates = {each["labels"]["strategy"]: each["lr"] for each in read_json(computed / "c" / "comparison.json")["rates"]}
    table = pd.read_csv(computed / "c" / "table.csv")
    assert ("lr" in table) == (len(set(rates.values())) > 1)
    training = pd.read_csv(computed / "c" / "training.csv").set_index("strategy")
    assert training["lr"].to_dict() == rates
