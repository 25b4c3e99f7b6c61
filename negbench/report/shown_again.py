"""Show a command's finished result again as it was printed, if nothing that it depends on has changed.

A command that finds everything computed would import torch and plan every run again to learn that. What it printed is
therefore stored in the user's own cache. It depends on the options and their recipe, on the code, negbench's and that
of installed packages, on the stored runs, and on how the console prints: each of them is compared first. Where runs
read files, data, weights, lists or plug-ins, only planning checks these: nothing is stored then.
"""

import hashlib
import json
import logging
import os
import site
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from rich.console import Console

from negbench.analysis.stored_trials import trial_runs
from negbench.analysis.unchanged import files_made_here, inputs_of
from negbench.display import NOTE, log, notes
from negbench.errors import NegbenchError
from negbench.grid.comparison import ComparisonFolder
from negbench.machine import files
from negbench.machine.contents import stamp
from negbench.plugins import syntax
from negbench.settings.layers import read_recipe
from negbench.settings.options import Compare, Study
from negbench.store.runfolder import RunFolder

_PARTS = ("negbench", "negbench.strategies", "negbench.backbones", "negbench.recipes")  # where negbench's files lie
_VARIABLES = ("NEGBENCH_", "CUDA_")  # beginnings of the names of variables that commands read
_TIME_LIMIT = "NEGBENCH_UNTIL"  # of `--max-hours`: it changes nothing that is finished
_COPY_NOTE = "mlflow.json"  # says what the MLflow store has, which is asked each time
_READ_OF_RUN = ("config.json", "result.json", "metrics.jsonl")  # what tables are made from
_BESIDE = ("", "-rates", "-final")  # what the names of folders that one command writes add to that of its result

Shown = TypeVar("Shown", Compare, Study)


class _Printed(BaseModel):
    """What a command printed, and what it depends on.

    Attributes:
        folder: name of the result's folder.
        conditions: hash of code, recipe, variables and console.
        results: folder -> hash of its files and of its runs'.
        notes: remarks that it logged.
        text: what it printed, with the console's colours.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    folder: str
    conditions: str
    results: dict[str, str]
    notes: list[str]
    text: str


def show(options: Shown, console: Console, command: Callable[[Shown, Console], Path]) -> Path:
    """Print the result of a command: as it was printed if nothing has changed, else by calling the command.

    Args:
        options: of the command.
        console: where to print.
        command: computes what is missing, prints, and returns the folder of the result.

    Returns:
        The folder of the result.

    Raises:
        NegbenchError: as the command.
    """
    if log.isEnabledFor(logging.DEBUG):  # prints times, which are others each time
        return command(options, console)
    file = _file_of(options)
    conditions = _hash_conditions(options, console)
    runs = files.runs_dir(options.runs_dir)
    stored = _read(file)
    if stored is not None and stored.conditions == conditions:
        with _locked([runs / name for name in stored.results]):
            if _hash_results(runs, stored.folder) == stored.results:
                _print_again(stored, runs, console, options.tracking_uri)
                return runs / stored.folder
    path = command(options, console)
    with suppress(NegbenchError):  # the result is there; only what it prints is not stored
        if _needs_only_code(options, runs, path.name):
            printed = _print_into(options, console, command, conditions)
            if printed is not None:
                files.write_text(file, printed.model_dump_json())
    return path


def _file_of(options: Shown) -> Path:
    """Return the file that holds what the command printed: one for each command line and folder."""
    runs = files.runs_dir(options.runs_dir)
    command = [type(options).__name__, str(Path.cwd()), str(runs), options.model_dump_json()]
    return files.cache_dir() / "printed" / f"{hashlib.sha256(json.dumps(command).encode()).hexdigest()}.json"


def _read(file: Path) -> _Printed | None:
    """Return what is stored; None if nothing is, or if it is damaged."""
    try:
        return _Printed.model_validate(files.read_json(file))
    except (OSError, NegbenchError, ValidationError):
        return None


def _print_again(printed: _Printed, runs: Path, console: Console, tracking_uri: str | None) -> None:
    """Print what is stored, and copy what the MLflow store lacks, as the command does."""
    notes(printed.notes)
    for name in printed.results:
        ComparisonFolder(runs / name).parent(tracking_uri).complete()
    console.file.write(printed.text)
    console.file.flush()


def _print_into(
    options: Shown, console: Console, command: Callable[[Shown, Console], Path], conditions: str
) -> _Printed | None:
    """Call a command that has just ended once more, and return what it would print; None if that may soon be wrong.

    It may if the command warns, e.g. of an MLflow store that does not answer.
    """
    collector = _Collector()
    with collector.in_place_of_handlers(), console.capture() as capture:
        path = command(options, console)
    if collector.warned:
        return None
    return _Printed(
        folder=path.name,
        conditions=conditions,
        results=_hash_results(path.parent, path.name),
        notes=collector.notes,
        text=capture.get(),
    )


class _Collector(logging.Handler):
    """Collects notes instead of printing them.

    Attributes:
        notes: remarks that were logged by `notes`.
        warned: whether anything else was logged.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.notes: list[str] = []
        self.warned = False

    def emit(self, record: logging.LogRecord) -> None:
        """Collect a record."""
        if record.msg == NOTE:
            self.notes += map(str, record.args or ())
        else:
            self.warned = True

    @contextmanager
    def in_place_of_handlers(self) -> Iterator[None]:
        """Get in this block all that is logged; nothing reaches the terminal, and no progress is shown."""
        level = log.level
        propagate = log.propagate
        handlers = log.handlers
        log.handlers = [self]
        log.propagate = False
        log.setLevel(max(level, logging.WARNING))
        try:
            yield
        finally:
            log.handlers = handlers
            log.propagate = propagate
            log.setLevel(level)


# --- what it depends on ----------------------------------------------------------------------------------------------


def _hash_conditions(options: Shown, console: Console) -> str:
    """Hash code and recipe, the variables that commands read, and how the console prints."""
    recipe = {} if options.recipe is None else read_recipe(options.recipe)
    variables = []
    for name, value in sorted(os.environ.items()):
        if name.startswith(_VARIABLES) and name != _TIME_LIMIT:
            variables.append([name, value])
    prints = [console.width, console.color_system, console.is_terminal, console.soft_wrap, console.quiet, log.level]
    conditions = [_hash_code(), recipe, variables, prints]
    return hashlib.sha256(json.dumps(conditions, default=str).encode()).hexdigest()


def _hash_code() -> str:
    """Hash negbench's files, and what tells whether a package was installed or removed."""
    packages = [stamp(folder) for folder in (*site.getsitepackages(), site.getusersitepackages())]
    digest = hashlib.sha256(json.dumps([sys.version, sys.path, packages]).encode())
    for part in _PARTS:
        init = syntax.locate(part)
        assert init is not None, part
        for path in sorted(init.parent.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(init.parent)} {files.sha256_of(path)}\n".encode())
    return digest.hexdigest()


def _hash_results(runs: Path, name: str) -> dict[str, str]:
    """Hash each folder that a command writes, with its runs; none if one is damaged, which the command reports."""
    hashes = {}
    for ending in _BESIDE:
        folder = runs / f"{name}{ending}"
        if folder.is_dir():
            try:
                hashes[folder.name] = _hash_result(folder)
            except (OSError, NegbenchError):
                return {}
    return hashes


def _hash_result(folder: Path) -> str:
    """Hash one folder: the content of each file that it lists, its page, a study's journal, and what its runs hold.

    Ranks, weights and draws are not read: as in planning, their sizes and the hashes beside them are compared.
    """
    rows: list[object] = []
    for file in sorted({*files.names_in(folder), "study.json", "optuna.journal"} - {_COPY_NOTE}):
        rows.append([file, _content_of(folder / file)])
    if (folder / "comparison.json").exists():
        runs = folder.parent
        document = ComparisonFolder(folder).read()
        rows += inputs_of(runs, document)
        rows += files_made_here(runs, folder.name)  # the page's, too: none if one was changed
        for run in _runs_of(document):
            rows += [_content_of(runs / run / file) for file in _READ_OF_RUN]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _content_of(file: Path) -> str:
    """Return the SHA-256 of a file; empty if there is none."""
    return files.sha256_of(file) if file.exists() else ""


def _runs_of(document: Mapping[str, Any]) -> list[str]:
    """Return the names of the finished runs of a comparison, its trials' included, each once."""
    cells = [row["run"] for row in document["cells"] if row["run"]]
    return list(dict.fromkeys([*cells, *trial_runs(document)]))


@contextmanager
def _locked(folders: Sequence[Path]) -> Iterator[None]:
    """Hold the locks of those of the folders that exist, as the command that writes them does."""
    with ExitStack() as locks:
        for folder in folders:
            if folder.is_dir():
                locks.enter_context(ComparisonFolder(folder).lock())
        yield


def _needs_only_code(options: Shown, runs: Path, name: str) -> bool:
    """Whether options, code and runs determine all that is printed: no run reads files, none is computed elsewhere."""
    from negbench.loop.runs import DATA, reads_files
    from negbench.settings.config import resolve

    if options.executor != "pool" or (isinstance(options, Study) and options.storage is not None):
        return False
    if isinstance(options, Compare) and options.tuned is not None:
        return False
    names: dict[str, None] = {}
    for ending in _BESIDE:
        folder = runs / f"{name}{ending}"
        if (folder / "comparison.json").exists():
            document = ComparisonFolder(folder).read()
            if any(row["run"] is None for row in document["cells"]):
                return False
            names |= dict.fromkeys(_runs_of(document))
    return not any(reads_files(resolve(RunFolder(runs / run).config), DATA) for run in names)
