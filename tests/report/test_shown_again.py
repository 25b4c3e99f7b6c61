"""A finished result is shown again without planning; whatever may change it is compared first.

The tests count how often the command itself is called: once to compute, once for what is stored, never to show again.
"""

import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from negbench import api
from negbench.display import log
from negbench.machine import files
from negbench.machine.files import cache_dir, sha256_of
from negbench.plugins import syntax
from negbench.plugins.registry import registry
from negbench.report import shown_again
from negbench.settings.options import Compare
from negbench.store.parents import Parent
from negbench.tuning.book import StudyStore
from tests.plugin_file import PLUGIN
from tests.runs import flags_of
from tests.vector_files import write_vectors

WORLD = flags_of(
    [
        "dataset.name=vectors",
        "backbone.name=vectors",
        "dataset.train_images=60",
        "dataset.train_queries=32",
        "dataset.val_images=60",
        "dataset.val_queries=40",
        "train.epochs=2",
        "train.batch_size=16",
    ]
)
DUEL = ("compare", "--strategies", "top-k,in-batch", "--losses", "info-nce", "--seeds", "2", "--no-report")
TWICE = 2  # calls of a command that computes: itself, and what it would print next time


@dataclass
class Scene:
    """A finished comparison of runs without files, and a command that counts how often it is really computed.

    Attributes:
        folder: the current folder; `runs` lies in it.
        run_command: the fixture.
        calls: of `api.compare` and `api.study`.
        study: words of the command of a study.
        flags: of the comparison.
    """

    folder: Path
    run_command: Callable[..., Any]
    calls: list[tuple[Any, ...]]
    study: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=lambda: [*WORLD, "--lr", "fixed", "--name", "duel"])

    def show(self, *more: str) -> Any:
        """Run the command; return what it printed."""
        self.calls.clear()
        return self.run_command(*DUEL, *self.flags, "--tracking-uri", "none", *more)

    def file(self, name: str) -> Path:
        """Return a file of the comparison's first run, or of the comparison."""
        first_run = min(self.folder.glob("runs/*/result.json")).parent
        return first_run / name if (first_run / name).exists() else self.folder / "runs" / "duel" / name


@pytest.fixture
def scene(tmp_path, monkeypatch, run_command, spy_on) -> Scene:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path / "cache"))
    calls = spy_on(api, "compare")
    return Scene(tmp_path, run_command, calls)


@pytest.fixture
def duel(scene) -> Scene:
    """Return the scene after the comparison was computed."""
    scene.show()
    assert len(scene.calls) == TWICE
    return scene


def test_a_comparison_is_shown_again_as_a_plan_in_full_would_show_it(duel):
    again = duel.show()
    assert duel.calls == []
    shutil.rmtree(cache_dir() / "printed")
    in_full = duel.show()
    assert len(duel.calls) == TWICE
    assert (again.out, again.err) == (in_full.out, in_full.err)
    assert "4 already finished" in again.out
    assert "answer" in again.out


def test_notes_are_shown_again(scene, monkeypatch):
    root = shown_again._Collector()
    monkeypatch.setattr(logging.getLogger(), "handlers", [root])
    scene.flags += ["--set", "mining.replacement=true"]  # does nothing for in-batch
    first = scene.show()
    assert len(root.notes) == first.err.count("note: ")  # those of the second call go nowhere
    again = scene.show()
    assert scene.calls == []
    shutil.rmtree(cache_dir() / "printed")
    in_full = scene.show()
    assert "note: " in again.err
    assert again.err == in_full.err


def test_as_json_the_document_is_read_anew(duel):
    first = duel.show("--json")
    assert len(duel.calls) == TWICE
    assert duel.show("--json").out == first.out
    assert duel.calls == []
    assert json.loads(first.out)["comparison"] == "duel"


def _edit_recipe(scene: Scene) -> None:
    recipe = scene.folder / "recipe.toml"
    recipe.write_text(recipe.read_text(encoding="utf-8").replace("beta1 = 0.9", "beta1 = 0.8"), encoding="utf-8")


def _edit_answer(scene: Scene) -> None:
    scene.file("answer.md").write_text("forged", encoding="utf-8")


def _delete_result(scene: Scene) -> None:
    scene.file("result.json").unlink()


def _delete_comparison(scene: Scene) -> None:
    shutil.rmtree(scene.folder / "runs" / "duel")


def _interrupt_another_command(scene: Scene) -> None:
    """Leave a cell without a run, as another command of this name does."""
    path = scene.folder / "runs" / "duel" / "comparison.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    document["cells"][0]["run"] = None
    files.write_json(path, document)


def _overwrite_comparison(scene: Scene) -> None:
    """Let another command use the name."""
    scene.show("--margin", "5")


def _damage_copy(scene: Scene) -> None:
    [path] = (cache_dir() / "printed").iterdir()
    path.write_text(path.read_text(encoding="utf-8")[:-5], encoding="utf-8")


CHANGES = (
    _edit_recipe,
    _edit_answer,
    _delete_result,
    _delete_comparison,
    _interrupt_another_command,
    _overwrite_comparison,
    _damage_copy,
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_a_change_of_what_it_depends_on_is_planned_in_full(change, scene):
    (scene.folder / "recipe.toml").write_text("[train]\nbeta1 = 0.9\n", encoding="utf-8")
    scene.flags += ["--recipe", "recipe.toml"]
    scene.show()
    scene.show()
    assert scene.calls == []
    change(scene)
    scene.show()
    assert len(scene.calls) == TWICE
    scene.show()
    assert scene.calls == []


def test_a_damaged_comparison_is_found(duel):
    path = duel.folder / "runs" / "duel" / "comparison.json"
    path.write_text(path.read_text(encoding="utf-8") + " ", encoding="utf-8")
    error = duel.run_command(*DUEL, *duel.flags, "--tracking-uri", "none", code=2).err
    assert "comparison.json is damaged" in error


def test_ranks_of_another_size_are_found(duel):
    path = duel.file("ranks.parquet")
    path.write_bytes(path.read_bytes()[:-1])
    error = duel.run_command(*DUEL, *duel.flags, "--tracking-uri", "none", code=2).err
    assert "ranks.parquet" in error


def put_digit(path: Path) -> None:
    """Put another last digit into a file, of the same size."""
    content = bytearray(path.read_bytes())
    last = max(index for index, byte in enumerate(content) if chr(byte).isdigit())
    content[last] = ord("1") if content[last] != ord("1") else ord("2")
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("name", ["result.json", "config.json", "metrics.jsonl"])
def test_another_digit_in_a_file_of_a_run_is_found(name, duel):
    put_digit(duel.file(name))
    error = duel.run_command(*DUEL, *duel.flags, "--tracking-uri", "none", code=2).err
    assert name in error


def test_ranks_that_were_exchanged_are_found(duel):
    """Their hash is exchanged, too."""
    first, other = sorted(path.parent for path in duel.folder.glob("runs/top-k*/result.json"))
    shutil.copy(other / "ranks.parquet", first / "ranks.parquet")
    with (first / "SHA256SUMS").open("a", encoding="utf-8") as sums:
        sums.write(f"{sha256_of(first / 'ranks.parquet')}  ranks.parquet\n")
    error = duel.run_command(*DUEL, *duel.flags, "--tracking-uri", "none", code=2).err
    assert "ranks" in error


def test_a_deleted_page_is_drawn_again(scene):
    scene.flags += ["--report"]
    scene.show()
    scene.show()
    assert scene.calls == []
    page = scene.folder / "runs" / "duel" / "report" / "index.html"
    page.unlink()
    scene.show()
    assert len(scene.calls) == TWICE
    assert page.exists()


def test_a_link_in_place_of_the_page_is_found(scene):
    scene.flags += ["--report"]
    scene.show()
    page = scene.folder / "runs" / "duel" / "report" / "index.html"
    page.rename(scene.folder / "index.html")
    page.symlink_to(scene.folder / "index.html")
    error = scene.run_command(*DUEL, *scene.flags, "--tracking-uri", "none", code=2).err
    assert "leads out" in error


@pytest.mark.parametrize(
    ("stand_in", "name"),
    [("stand_in_module", "__init__.py"), ("stand_in_table", "data/table.toml"), ("stand_in_addition", "new.py")],
)
def test_changed_code_is_planned_in_full(stand_in, name, duel, monkeypatch):
    """A package of this test stands for negbench's files."""
    package = duel.folder / "packages" / stand_in
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "data" / "table.toml").touch()
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(shown_again, "_PARTS", (*shown_again._PARTS, stand_in))
    duel.show()
    duel.show()
    assert duel.calls == []
    (package / name).write_text("b = 2", encoding="utf-8")
    duel.show()
    assert len(duel.calls) == TWICE


def test_all_modules_of_negbench_lie_in_the_parts_that_are_hashed(duel):
    folders = []
    for part in shown_again._PARTS:
        init = syntax.locate(part)
        assert init is not None, part
        folders.append(init.parent)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name.partition(".")[0] == "negbench":
            assert any(Path(file).is_relative_to(folder) for folder in folders), name


@pytest.mark.parametrize("again", [False, True], ids=["installed", "installed again"])
def test_an_installed_package_is_planned_in_full(again, duel, monkeypatch):
    """Also one outside of site-packages, and one whose version stays."""
    packages = duel.folder / "packages"
    metadata = packages / "plug_in-1.0.dist-info"
    packages.mkdir()
    if again:
        metadata.mkdir()
    monkeypatch.syspath_prepend(str(packages))
    duel.show()
    duel.show()
    assert duel.calls == []
    if again:
        (metadata / "entry_points.txt").touch()
    else:
        metadata.mkdir()
    duel.show()
    assert len(duel.calls) == TWICE


@pytest.mark.parametrize(
    ("variable", "value", "planned"),
    [("NEGBENCH_DATA", "data", True), ("CUDA_VISIBLE_DEVICES", "-1", True), ("NEGBENCH_UNTIL", "2e10", False)],
)
def test_variables_that_commands_read_are_compared(variable, value, planned, duel, monkeypatch):
    monkeypatch.setenv(variable, value)
    duel.show()
    assert bool(duel.calls) == planned


def test_another_width_is_printed_anew(duel, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    coloured = duel.show()
    assert len(duel.calls) == TWICE
    assert "\x1b[" in coloured.out
    assert duel.show().out == coloured.out
    assert duel.calls == []
    monkeypatch.setenv("COLUMNS", "90")
    duel.show()
    assert len(duel.calls) == TWICE


def test_trials_that_chose_a_rate_are_compared(scene):
    scene.flags = [*WORLD, "--lr", "common", "--name", "duel"]
    scene.show()
    scene.show()
    assert scene.calls == []
    trials = scene.folder / "runs" / "duel-rates" / "comparison.json"
    trial = json.loads(trials.read_text(encoding="utf-8"))["cells"][0]
    (scene.folder / "runs" / trial["run"] / "result.json").unlink()
    scene.show()
    assert len(scene.calls) == TWICE
    trials.unlink()
    scene.show()
    assert len(scene.calls) == TWICE
    assert trials.exists()


def _vectors(scene: Scene) -> list[str]:
    return flags_of([*write_vectors(scene.folder / "own"), "train.epochs=2", "train.batch_size=16"])


def _data_in_files(scene: Scene) -> list[str]:
    return [*_vectors(scene), "--lr=fixed"]


def _times(scene: Scene) -> list[str]:
    return [*WORLD, "--lr=fixed", "-v"]


def _tuning(scene: Scene) -> list[str]:
    return [*WORLD, "--lr=fixed", "--tuned", "1"]


def _tuning_of_a_recipe(scene: Scene) -> list[str]:
    (scene.folder / "recipe.toml").write_text("[compare]\ntuned = 1\n", encoding="utf-8")
    return [*WORLD, "--lr=fixed", "--recipe", "recipe.toml"]


def _budget(scene: Scene) -> list[str]:
    """Each call has it anew."""
    return [*WORLD, "--lr=fixed", "--until", "decided", "--budget", "1s", "--max-seeds", "3"]


def _plug_in_that_no_run_uses(scene: Scene) -> list[str]:
    (scene.folder / "my_rule.py").write_text(PLUGIN, encoding="utf-8")
    return [*WORLD, "--lr=fixed", "--plugin", "my_rule.py"]


def _plug_in_of_a_recipe(scene: Scene) -> list[str]:
    (scene.folder / "my_rule.py").write_text(PLUGIN, encoding="utf-8")
    (scene.folder / "recipe.toml").write_text("plugins = ['my_rule.py']\n", encoding="utf-8")
    return [*WORLD, "--lr=fixed", "--recipe", "recipe.toml"]


NEVER_CACHED = (
    _data_in_files,
    _times,
    _tuning,
    _tuning_of_a_recipe,
    _budget,
    _plug_in_that_no_run_uses,
    _plug_in_of_a_recipe,
)


@pytest.mark.parametrize("make_flags", NEVER_CACHED, ids=lambda make: make.__name__.strip("_"))
def test_what_depends_on_more_is_never_cached(make_flags, scene, monkeypatch):
    monkeypatch.setattr(registry, "_files", {})
    monkeypatch.setattr(registry, "_classes", {})
    scene.flags = [*make_flags(scene), "--name", "duel"]
    scene.show()
    assert len(scene.calls) == 1
    assert not (cache_dir() / "printed").exists()


def test_an_option_at_its_default_overrides_a_recipe(scene):
    (scene.folder / "recipe.toml").write_text("[compare]\nmargin = 7.0\n", encoding="utf-8")
    scene.flags += ["--recipe", "recipe.toml"]
    assert "a margin of 7" in scene.show().out
    assert "a margin of 1" in scene.show("--margin", "1").out
    assert "a margin of 7" in scene.show().out


def test_a_link_in_place_of_a_file_of_a_run_is_found(duel):
    path = duel.file("result.json")
    outside = duel.folder / "result.json"
    path.rename(outside)
    path.symlink_to(outside)
    error = duel.run_command(*DUEL, *duel.flags, "--tracking-uri", "none", code=2).err
    assert "leads out" in error


def test_what_another_command_changes_meanwhile_is_not_cached(scene, monkeypatch):
    collect = shown_again._Collector.instead_of_handlers

    @contextmanager
    def change_then_collect(collector: Any) -> Iterator[None]:
        with collect(collector):
            yield
        (scene.folder / "runs" / "duel" / "note.txt").touch()

    monkeypatch.setattr(shown_again._Collector, "instead_of_handlers", change_then_collect)
    scene.show()
    assert len(scene.calls) == TWICE
    assert not (cache_dir() / "printed").exists()


def test_an_interrupted_second_call_leaves_a_finished_result(scene, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shown_again, "_print_second_call", interrupt)
    assert "answer" in scene.show().out


def test_another_encoding_is_printed_anew(duel, monkeypatch):
    monkeypatch.setattr(Console, "encoding", "ascii")
    duel.show()
    assert len(duel.calls) == TWICE


def test_a_folder_whose_name_is_no_utf_8_has_a_file():
    names = {shown_again._file_of(Compare(runs_dir=Path(name))).name for name in ("runs", "runs\udcff", "runs\udcfe")}
    assert len(names) == 3


def test_a_cache_that_cannot_be_written_costs_nothing_else(scene):
    (scene.folder / "cache").mkdir()
    (scene.folder / "cache" / "printed").write_text("", encoding="utf-8")
    scene.show()
    assert "answer" in scene.show().out
    assert len(scene.calls) == TWICE


def test_a_store_gets_what_it_lacks(scene, spy_on):
    command = [*DUEL, *scene.flags, "--tracking-uri", f"sqlite:///{scene.folder / 'mlflow.db'}"]
    scene.run_command(*command)
    scene.calls.clear()
    completed = spy_on(Parent, "complete")
    scene.run_command(*command)
    assert scene.calls == []
    assert [parent.folder.name for (parent,) in completed] == ["duel"]


def test_after_a_warning_nothing_is_cached(scene):
    """An MLflow store that does not answer may answer next time; it is not waited for twice."""
    first = scene.run_command(*DUEL, *scene.flags, "--tracking-uri", "http://127.0.0.1:9")
    assert "not copied" in first.err
    assert len(scene.calls) == 1
    assert not (cache_dir() / "printed").exists()


def test_after_a_warning_of_the_second_call_nothing_is_cached(scene, monkeypatch):
    compute = api.compare

    def warn_twice(*arguments: Any, **options: Any) -> Any:
        if scene.calls:
            log.warning("another process computes it")
        return compute(*arguments, **options)

    monkeypatch.setattr(api, "compare", warn_twice)
    scene.show()
    assert len(scene.calls) == TWICE
    assert not (cache_dir() / "printed").exists()


def test_results_elsewhere_or_without_runs_may_not_be_cached(duel, monkeypatch):
    path = duel.folder / "runs" / "duel"
    assert shown_again._may_be_cached(Compare(), path)
    assert not shown_again._may_be_cached(Compare(executor="ray"), path)
    monkeypatch.setattr(shown_again, "_runs_of", lambda _: [])
    assert not shown_again._may_be_cached(Compare(), path)


SHOW = """
import json, sys

from negbench.cli.main import run

for line in json.loads(sys.argv[1]):
    assert run(line) == 0
heavy = ("torch", "scipy.stats", "pandas", "optuna")
print(json.dumps([name for name in heavy if name in sys.modules]), file=sys.stderr)
"""


@pytest.mark.slow
def test_showing_again_imports_neither_torch_nor_pandas_nor_optuna(tmp_path):
    small = [*WORLD, "--tracking-uri", "none"]
    study = ["study", "--strategy", "top-k", "--search", "strategy.k=5:40", "--trials", "1", "--final-seeds", "2"]
    lines = json.dumps([[*DUEL, *small, "--lr=fixed"], [*study, *small]])

    def show() -> Any:
        """Run both commands in a process of their own; return what they printed, and what was imported."""
        words = [sys.executable, "-c", SHOW, lines]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout, json.loads(done.stderr.splitlines()[-1])

    computed, imported = show()
    assert "torch" in imported
    printed, imported = show()
    assert imported == []
    assert printed.count("answer") == computed.count("answer") > 0


class TestAStudy:
    """`negbench study`."""

    @pytest.fixture
    def study(self, scene, spy_on) -> Callable[..., Any]:
        scene.calls = spy_on(api, "study")
        command = ["study", "--strategy", "top-k", "--search", "strategy.k=5:40", "--trials", "2", "--name", "s"]
        flags = [*WORLD, "--final-seeds", "2", "--tracking-uri", "none"]

        def show(*more: str) -> Any:
            scene.calls.clear()
            return scene.run_command(*scene.study, *more)

        scene.study = [*command, *flags]

        show()
        assert len(scene.calls) == TWICE
        return show

    def test_is_shown_again(self, study, scene):
        again = study()
        assert scene.calls == []
        shutil.rmtree(cache_dir() / "printed")
        assert study().out == again.out
        assert "what the study found" in again.out

    def test_whose_journal_has_another_line_is_planned_in_full(self, study, scene):
        """A line that creates the study, as each opening adds one, is none."""
        journal = scene.folder / "runs" / "s" / "optuna.journal"
        lines = journal.read_text(encoding="utf-8").splitlines(keepends=True)
        journal.write_text("".join([*lines, lines[0]]), encoding="utf-8")
        study()
        assert scene.calls == []
        study_attribute = '{"op_code":2,"worker_id":"w","study_id":0,"user_attr":{"a":1}}\n'
        journal.write_text("".join([*lines, study_attribute]), encoding="utf-8")
        study()
        assert len(scene.calls) == TWICE

    def test_with_another_final_comparison_is_planned_in_full(self, study, scene):
        answer = scene.folder / "runs" / "s-final" / "answer.md"
        answer.write_text("forged", encoding="utf-8")
        study()
        assert len(scene.calls) == TWICE
        assert "forged" not in answer.read_text(encoding="utf-8")

    def test_whose_trials_are_gone_is_planned_in_full(self, study, scene):
        shutil.rmtree(scene.folder / "runs" / "s" / "cells")
        assert scene.run_command(*scene.study, code=2).err
        assert scene.calls

    def test_whose_list_of_hashes_is_forged_is_planned_in_full(self, study, scene):
        sums = scene.folder / "runs" / "s" / "SHA256SUMS"
        lines = sums.read_text(encoding="utf-8").replace("  study.json", "  study.jsn").splitlines()
        sums.write_text("\n".join([*lines, f"{'1' * 64}  study.json", ""]), encoding="utf-8")
        assert "study.json" in scene.run_command(*scene.study, code=2).err

    def test_with_a_failed_trial_is_never_cached(self, study, scene, monkeypatch):
        """A failed trial is tried again."""
        shutil.rmtree(cache_dir() / "printed")
        counts = dict.fromkeys(("finished", "pruned", "failed", "running", "waiting"), 1)
        monkeypatch.setattr(StudyStore, "counts", lambda _: counts)
        study()
        assert len(scene.calls) == 1
        assert not (cache_dir() / "printed").exists()

    def test_of_files_without_final_runs_is_never_cached(self, scene):
        command = ["study", "--strategy", "top-k", "--search", "strategy.k=5:9", "--trials", "1", "--final-seeds", "0"]
        scene.run_command(*command, *_vectors(scene), "--name", "s", "--tracking-uri", "none")
        assert not (cache_dir() / "printed").exists()

    def test_in_another_storage_is_never_stored(self, study, scene):
        stored = list((cache_dir() / "printed").iterdir())
        study("--name", "t", "--storage", f"sqlite:///{scene.folder / 'optuna.db'}")
        assert len(scene.calls) == 1
        assert list((cache_dir() / "printed").iterdir()) == stored
