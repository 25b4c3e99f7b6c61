"""Show a command's finished result again from a cache, as long as nothing that it depends on has changed.

A command that finds everything computed would import torch and plan every run again to learn that. Once a command has
ended, it is therefore called a second time, silently, and what this call prints is cached. It depends on the options
and their recipe, on the code, negbench's and that of installed packages, on the stored runs, and on how the console
prints: all are compared first. Where runs read files (data, weights, lists, plug-ins), only planning checks these:
nothing is cached then.
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

from negbench.analysis.unchanged import files_made_here
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
_COPY_NOTE = "mlflow.json"  # lists what was copied to MLflow; the store itself is asked each time
_READ_OF_RUN = ("config.json", "result.json", "metrics.jsonl")  # what tables are made from
_TRIALS = "-rates"
_SUFFIXES = ("", _TRIALS, "-final")  # of the folders that one command writes

CommandOptions = TypeVar("CommandOptions", Compare, Study)


class _Printed(BaseModel):
    """What a command prints when all is computed, and what that depends on.

    Attributes:
        folder: name of the result's folder.
        conditions: hash of code, recipe, variables and console.
        folders: name of each folder that the command writes -> hash of its files and its runs' files.
        notes: remarks that it logs.
        text: what it prints, with the console's colours.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    folder: str
    conditions: str
    folders: dict[str, str]
    notes: list[str]
    text: str


def show_or_compute(
    options: CommandOptions, console: Console, command: Callable[[CommandOptions, Console], Path]
) -> Path:
    """Print a result from the cache if nothing that it depends on has changed; else call the command, and cache it.

    Args:
        options: of the command.
        console: where to print.
        command: computes what is missing, prints, and returns the folder of the result.

    Returns:
        The folder of the result.

    Raises:
        NegbenchError: as the command.
    """
    if log.isEnabledFor(logging.DEBUG):  # also prints times, which differ each time
        return command(options, console)
    file = _file_of(options)
    conditions = _hash_conditions(options, console)
    runs = files.runs_dir(options.runs_dir)
    cached = _read(file)
    if cached is not None and cached.conditions == conditions:
        with _locked([runs / name for name in cached.folders]):
            if _is_current(cached, runs):
                _print_cached(cached, runs, console, options.tracking_uri)
                return runs / cached.folder
    path = command(options, console)
    with suppress(NegbenchError, OSError):  # the result is complete; it is only not cached
        if _may_be_cached(options, path):
            # a second call prints other lines than the one that computed ("already finished"): call it now, silently
            printed = _print_second_call(options, console, command, conditions)
            if printed is not None:
                files.write_text(file, printed.model_dump_json())
    return path


def _file_of(options: CommandOptions) -> Path:
    """Return the cache's file: one for each command line and current folder."""
    runs = files.runs_dir(options.runs_dir)
    command = [type(options).__name__, str(Path.cwd()), str(runs), options.model_dump_json()]
    return files.cache_dir() / "printed" / f"{hashlib.sha256(json.dumps(command).encode()).hexdigest()}.json"


def _read(file: Path) -> _Printed | None:
    """Return what is cached; None if nothing is, or if it is damaged."""
    try:
        return _Printed.model_validate(files.read_json(file))
    except (OSError, NegbenchError, ValidationError):
        return None


@contextmanager
def _locked(folders: Sequence[Path]) -> Iterator[None]:
    """Hold the locks of those of the folders that exist, as the command that writes them does."""
    with ExitStack() as locks:
        for folder in folders:
            if folder.is_dir():
                locks.enter_context(ComparisonFolder(folder).lock())
        yield


def _print_cached(cached: _Printed, runs: Path, console: Console, tracking_uri: str | None) -> None:
    """Print what is cached, and copy what the MLflow store lacks, as the command does."""
    notes(cached.notes)
    for name in cached.folders:
        ComparisonFolder(runs / name).parent(tracking_uri).complete()
    console.file.write(cached.text)
    console.file.flush()


def _may_be_cached(options: CommandOptions, path: Path) -> bool:
    """Whether what is printed depends only on what is hashed: no cell is missing, and no run or trial reads files.

    Args:
        options: of the command.
        path: folder of the result.
    """
    from negbench.loop.runs import DATA, depends_on_files
    from negbench.settings.config import resolve

    if options.executor != "pool":  # other machines may still compute
        return False
    if isinstance(options, Study) and options.storage is not None:  # its trials lie in a database
        return False
    if isinstance(options, Compare) and options.tuned is not None:  # its trials lie in studies of their own
        return False
    runs = path.parent
    names: dict[str, None] = {}
    for folder in _folders_of(path):
        if (folder / "comparison.json").exists():
            document = ComparisonFolder(folder).read()
            if any(row["run"] is None for row in document["cells"]):
                return False
            if folder.name != path.name + _TRIALS and not files_made_here(runs, folder.name):
                return False
            names |= dict.fromkeys(_runs_of(document))
    return not any(depends_on_files(resolve(RunFolder(runs / run).config), DATA) for run in names)


def _print_second_call(
    options: CommandOptions, console: Console, command: Callable[[CommandOptions, Console], Path], conditions: str
) -> _Printed | None:
    """Call the command a second time, and return what it prints, to be cached.

    None if it warns, e.g. of an MLflow store that does not answer: the next call may print something else.
    """
    collector = _Collector()
    with collector.instead_of_handlers(), console.capture() as capture:
        path = command(options, console)
    if collector.warned:
        return None
    return _Printed(
        folder=path.name, conditions=conditions, folders=_hash_folders(path), notes=collector.notes, text=capture.get()
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
    def instead_of_handlers(self) -> Iterator[None]:
        """Collect the warnings of this block instead of printing them; progress is off, too."""
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


def _hash_conditions(options: CommandOptions, console: Console) -> str:
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
    """Hash negbench's files, and the times of the folders of packages, which change where one is installed."""
    packages = [stamp(folder) for folder in (*site.getsitepackages(), site.getusersitepackages())]
    digest = hashlib.sha256(json.dumps([sys.version, sys.path, packages]).encode())
    for part in _PARTS:
        init = syntax.locate(part)
        assert init is not None, part
        for path in sorted(init.parent.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(init.parent)} {files.sha256_of(path)}\n".encode())
    return digest.hexdigest()


def _is_current(cached: _Printed, runs: Path) -> bool:
    """Whether the folders and their runs hold what they held; not if one is damaged, which the command reports."""
    try:
        return _hash_folders(runs / cached.folder) == cached.folders
    except (OSError, NegbenchError):
        return False


def _hash_folders(path: Path) -> dict[str, str]:
    """Hash the folder of a result, and those that its command writes beside it, with their runs."""
    return {folder.name: _hash_folder(folder) for folder in _folders_of(path)}


def _folders_of(path: Path) -> list[Path]:
    """Return the folder of a result, and those that its command writes beside it."""
    folders = [path.with_name(path.name + suffix) for suffix in _SUFFIXES]
    return [folder for folder in folders if folder.is_dir()]


def _hash_folder(folder: Path) -> str:
    """Hash one folder: the content of each file that it lists, its page, a study's journal, and what its runs hold.

    Ranks, weights and draws are not read: as in planning, their sizes and the hashes beside them are compared, which
    `files_made_here` does.
    """
    rows: list[object] = []
    for file in sorted({*files.names_in(folder), "study.json", "optuna.journal"} - {_COPY_NOTE}):
        rows.append([file, _content_of(folder / file)])
    if (folder / "comparison.json").exists():
        runs = folder.parent
        document = ComparisonFolder(folder).read()
        rows += files_made_here(runs, folder.name)  # [] if one of them, or a run, was changed, or made elsewhere
        for run in _runs_of(document):
            rows += [_content_of(runs / run / file) for file in _READ_OF_RUN]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _content_of(file: Path) -> str:
    """Return the SHA-256 of a file; empty if there is none."""
    return files.sha256_of(file) if file.exists() else ""


def _runs_of(document: Mapping[str, Any]) -> list[str]:
    """Return the names of a comparison's finished runs, each once; its trials are cells of a folder of their own."""
    return list(dict.fromkeys(row["run"] for row in document["cells"] if row["run"]))
