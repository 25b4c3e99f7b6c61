"""`negbench claims` from end to end on the vector world: computing, rereading, user errors."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from negbench.cli.main import run as negbench
from negbench.display import duration
from negbench.papers.planning import plan_claims
from negbench.settings.command_options import Claims
from negbench.store.runfolder import RunFolder
from tests.made import without
from tests.runs import flags_of


@pytest.fixture(scope="module")
def world(vector_sets: list[str]) -> list[str]:
    """Return flags of the vector world for three epochs, without its schedule, as the claims set their own."""
    return flags_of([*without(vector_sets, "schedule.", "train.epochs="), "train.epochs=3"])


def until_decided(world: list[str], runs: Path) -> list[str]:
    """Return a command; claims 5 and 8 share a setting, 29 and 34 have no runs."""
    words = ["claims", "--only", "3,5,8,12,14,29,34", "--until", "decided", "--seeds", "2", "--max-seeds", "3"]
    return [*words, "--name", "c", *world, "--runs-dir", str(runs), "--tracking-uri", "none"]


@pytest.fixture(scope="module")
def computed(world: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    assert negbench(until_decided(world, runs)) == 0
    return runs


def claims_of(folder: Path) -> dict[int, dict[str, object]]:
    claims = json.loads((folder / "claims.json").read_text())["claims"]
    return {claim["id"]: claim for claim in claims}


def test_claims_are_judged_or_say_why_not(computed):
    claims = claims_of(computed / "c")
    assert list(claims) == [3, 5, 8, 12, 14, 29, 34]
    verdicts = {"supported", "refuted", "no effect", "undecided", "premise absent"}
    assert {claims[number]["verdict"] for number in (3, 5, 8, 12, 14)} <= verdicts
    assert (claims[29]["verdict"], claims[34]["verdict"]) == ("not testable", "not testable")
    assert "--dataset fashioniq" in str(claims[34]["reason"])
    assert "'hycole-slow': unknown option" in str(claims[29]["reason"])


def test_the_estimate_of_a_claim_is_the_difference_of_its_runs(computed):
    metrics: dict[str, list[float]] = {}  # setting -> the main metric of each seed
    for cell in json.loads((computed / "c" / "comparison.json").read_text())["cells"]:
        folder = RunFolder(computed / cell["run"])
        assert (folder.path / "result.json").exists(), cell["run"]
        metrics.setdefault(cell["system"], []).append(folder.result["metrics"][folder.result["main_metric"]])
    (test,) = claims_of(computed / "c")[5]["tests"]  # type: ignore[misc]
    count = test["seeds"]  # claim 8 may have added one to "cirqrs"
    assert len(metrics["include"]) == count
    difference = sum(metrics["cirqrs"][:count]) / count - sum(metrics["include"]) / count
    assert test["value"] == pytest.approx(difference)
    assert test["low"] <= difference <= test["high"]


def test_the_page_shows_every_claim(computed, words_of):
    claims = claims_of(computed / "c")
    page = computed / "c" / "report" / "index.html"
    text = words_of(page)
    assert re.search(r"Of 7 claims: .*2 not testable \(no. 29, 34\)\.", text)
    for number, claim in claims.items():
        row = text.index(f'<td data-sort="{number}" class="number">{number}</td><td')
        cells = text[row : text.index("</tr>", row)]
        assert f'class="verdict {claim["verdict"]}">{claim["verdict"]}<' in cells, number
        texts = [str(claim[key]) for key in ("words", "published", "source")]
        texts += claim["measured"]  # type: ignore[operator]
        assert [text for text in texts if text not in cells] == [], number


def test_the_page_is_made_again_alike(computed):
    page = computed / "c" / "report" / "index.html"
    before = page.read_bytes()
    page.unlink()
    assert negbench(["report", "c", "--runs-dir", str(computed)]) == 0
    assert page.read_bytes() == before


def test_runs_that_are_there_are_not_computed_again(computed, world, document, run_command):
    common = ["--runs-dir", str(computed), "--tracking-uri", "none", *world]
    command = ["claims", "--only", "5,12", "--seeds", "2", "--name", "d", *common]
    out = run_command(*command).out
    assert "2 claims need 6 runs (2 seeds), 6 already finished" in out
    assert max(len(line) for line in out.splitlines() if line.startswith(("│", "┃"))) == 80
    assert [claim["id"] for claim in document(*command)["claims"]] == [5, 12]


# --- until decided -----------------------------------------------------------------------------------------------


def test_settings_of_undecided_tests_run_on(computed, world, run_command):
    claims = claims_of(computed / "c")
    cells = json.loads((computed / "c" / "comparison.json").read_text())["cells"]
    seeds = Counter(cell["system"] for cell in cells)
    in_question = []
    of_absent_premises = []
    for claim in claims.values():
        tests: list[Any] = [test for test in claim["tests"] if test["seeds"]]  # type: ignore[attr-defined]
        if claim["verdict"] == "premise absent":
            of_absent_premises += tests
        else:
            in_question += tests
    all_tests = in_question + of_absent_premises
    assert {test["seeds"] for test in all_tests} == {2, 3}
    assert {test["seeds"] for test in in_question if test["test_verdict"] == "undecided"} == {3}
    assert {test["seeds"] for test in of_absent_premises} == {2}  # of a decided claim they do not run on
    for name, count in seeds.items():
        assert count == max(test["seeds"] for test in all_tests if name in test["settings"].split()), name


def test_given_again_the_command_computes_nothing_and_replays_the_looks(computed, world, run_command):
    command = until_decided(world, computed)
    before = (computed / "c" / "claims.json").read_bytes()
    output = " ".join(run_command(*command).out.split())
    assert (computed / "c" / "claims.json").read_bytes() == before
    assert "look 1, 2 seeds: " in output
    assert "look 2, 3 seeds: " in output
    assert " of computing to 3 seeds" in " ".join(run_command(*command, "--dry-run").out.split())


def test_a_recipe_gives_backbone_data_and_training_only(tmp_path, vector_sets):
    recipe = tmp_path / "r.toml"
    recipe.write_text("[train]\nepochs = 3\n")
    sets = without(vector_sets, "schedule.", "train.epochs=")
    plan = plan_claims(Claims(only="24", seeds=1, recipe=recipe, sets=sets, runs_dir=tmp_path))
    trainings = {cell.labels["system"]: cell.config.train for cell in plan.cells}
    assert {name: (train.num_negatives, train.epochs) for name, train in trainings.items()} == {
        "qure": (1, 3),
        "cirqrs": (1, 3),
        "in-batch": (None, 3),
    }


def test_a_second_length_has_runs_of_its_own(vector_sets, tmp_path, run_command):
    """Claim 8 compares two settings; a claim undecided at one length goes on at that length alone."""
    sets = flags_of([*without(vector_sets, "schedule.", "train.epochs="), "train.epochs=2"])
    command = ["claims", "--only", "8", "--seeds", "1", "--name", "l", *sets, "--long", "3"]
    out = " ".join(run_command(*command, "--runs-dir", tmp_path, "--tracking-uri", "none").out.split())
    cells = json.loads((tmp_path / "l" / "comparison.json").read_text())["cells"]
    epochs: dict[str, set[int]] = {}
    for cell in cells:
        epochs.setdefault(cell["system"], set()).add(RunFolder(tmp_path / cell["run"]).config.train.epochs)
    assert epochs == {"cirqrs": {2}, "fixed": {2}, "cirqrs, long": {3}, "fixed, long": {3}}
    (claim,) = claims_of(tmp_path / "l").values()
    assert [test["test"].partition(":")[0] for test in claim["tests"]] == ["short", "long"]  # type: ignore[attr-defined]
    assert "2 and 3 epochs" in out
    seconds = 0.0
    for cell in cells:
        seconds += sum(RunFolder(tmp_path / cell["run"]).result["seconds"].values())
    assert f"; 4 runs, {duration(seconds)} of computing" in out
    assert json.loads((tmp_path / "l" / "claims.json").read_text())["about"].endswith("; 4 runs")


def test_claims_of_a_recipe_with_a_system(toy_root, tmp_path, run_command):
    """The recipe's way of computing (recomputed towers) stops no setting whose towers are frozen."""
    flags = flags_of(["backbone.model=null", "backbone.weights=null", "backbone.init=random", "backbone.size=toy"])
    command = ["claims", "--recipe", "hycole-fashioniq", "--data-root", str(toy_root), "--only", "24,29", *flags]
    plan = run_command(*command, "--dry-run", "--runs-dir", tmp_path, "--tracking-uri", "none").out
    # 24: qure, cirqrs and in-batch; 29: slow, still and fast
    assert "2 claims need 18 runs (3 seeds), 0 already finished" in plan


@pytest.mark.parametrize("recipe", ["claims-world", "claims-world-few"])
def test_its_own_worlds_can_be_judged(recipe, tmp_path, run_command):
    small = ["dataset.train_images=400", "dataset.val_images=60", "dataset.train_queries=40", "dataset.val_queries=20"]
    command = ["claims", "--recipe", recipe, "--only", "5,6", "--dry-run", "--runs-dir", str(tmp_path)]
    assert "2 claims need" in run_command(*command, *flags_of(small)).out


def test_claims_at_a_fixed_temperature(vector_sets, tmp_path):
    """HyCoLe-HNM, with a temperature for each term, cannot be judged at one."""
    sets = (*without(vector_sets, "schedule.", "train.epochs="), "train.epochs=3", "loss.tau=0.01")
    plan = plan_claims(Claims(only="1,25,27", sets=sets, runs_dir=tmp_path))
    losses = {(cell.config.loss.name, cell.config.loss.options["tau"]) for cell in plan.cells}
    assert losses == {("bradley-terry", 0.01), ("margin-kl", 0.01)}
    assert "loss.tau = 0.01 fixes the temperature" in plan.undefined["hycole"]


def test_mistakes(world, tmp_path, expect_error, mistakes, subtests):
    shorter = {" ".join([*world, "--long", "3"]): "--long 3 must be more than train.epochs=3"}
    for arguments, says in (mistakes["claims"] | shorter).items():
        with subtests.test(arguments):
            expect_error(["claims", *arguments.split(), "--runs-dir", str(tmp_path)], says)
