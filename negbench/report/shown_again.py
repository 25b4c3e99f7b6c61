"""Show a command's finished result again from a cache, as long as nothing that it depends on has changed.

A command that finds everything computed would import torch and plan every run again to learn that. Once a command has
ended, it is therefore called a second time, silently, and what this call prints is cached. It depends on the options
and their recipe, on negbench's code, on which packages are installed, on every file of the result and of its runs, and
on how the console prints: all are compared first. Where runs read other files (data, weights, lists) or plug-ins are
named, only planning checks these: nothing is cached then.
"""

import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from rich.console import Console

from negbench.display import NOTE_FORMAT, log, notes
from negbench.errors import DataError, NegbenchError, RunError
from negbench.grid.comparison import FINAL, RATES, ComparisonFolder
from negbench.machine import files
from negbench.machine.contents import stamp
from negbench.machine.received import read_bytes
from negbench.machine.signals import UNTIL, Stopped
from negbench.plugins import syntax
from negbench.settings.layers import read_recipe
from negbench.settings.options import Compare, Study
from negbench.store.copies import NOTE as COPY_NOTE
from negbench.store.runfolder import RunFolder

_PARTS = ("negbench", "negbench.strategies", "negbench.backbones", "negbench.recipes")  # where negbench's files lie
# beginnings of the names of variables that planning reads; those of MLflow and of the hub concern what is not cached
_VARIABLES = ("NEGBENCH_", "CUDA_")
_SUFFIXES = ("", RATES, FINAL)  # of the folders that one command writes
_CREATES_STUDY = b'{"op_code":0,'  # beginning of a line of an Optuna journal
_CHANGING = (files.SUMS, COPY_NOTE)  # each copy to MLflow adds to them; the store itself is asked each time

CommandOptions = TypeVar("CommandOptions", Compare, Study)


class _Printed(BaseModel):
    """What a command prints when all is computed, and what that depends on.

    Attributes:
        folder: name of the result's folder.
        conditions: hash of code, recipe, variables and console.
        folders: name of each folder that the command writes -> hash of its files and of those of its runs.
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
    collector = _Collector()
    with collector.beside_handlers():
        path = command(options, console)
    with suppress(NegbenchError, OSError, KeyboardInterrupt, Stopped):  # the result is complete; it is only not cached
        if not collector.warned and _may_be_cached(options, path):
            # a second call prints other lines than the one that computed ("already finished"): call it now, silently
            printed = _print_second_call(options, console, command, conditions, path)
            if printed is not None:
                files.write_json(file, printed.model_dump())
    return path


def _file_of(options: CommandOptions) -> Path:
    """Return the cache's file: one for each command line and current folder.

    An option that was given at its default value counts, as it overrides a recipe. `repr` also spells what is no UTF-8.
    """
    given = {name: getattr(options, name) for name in sorted(options.model_fields_set)}
    runs = files.runs_dir(options.runs_dir)
    command = repr([type(options).__name__, str(Path.cwd()), str(runs), given])
    digest = hashlib.sha256(command.encode()).hexdigest()
    return files.cache_dir() / "printed" / f"{digest}.json"


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
    """Whether what is printed depends only on what is compared, and a second call has nothing to compute.

    Args:
        options: of the command.
        path: folder of the result.
    """
    recipe = _recipe_of(options)
    merged = options.over(recipe.get(type(options).__name__.lower()), "recipe")
    if options.plugin or recipe.get("plugins"):
        return False
    if merged.executor != "pool":  # other machines may still compute
        return False
    if merged.budget is not None:  # each call has it anew
        return False
    if isinstance(merged, Compare):
        if merged.tuned is not None:  # its trials lie in studies of their own
            return False
    elif merged.storage is not None or _has_failed_trials(path):  # these are tried again
        return False
    runs = _runs_of(path)
    return bool(runs) and not any(_depends_on_files(run) for run in runs)


def _recipe_of(options: CommandOptions) -> dict[str, Any]:
    """Return the recipe's settings; {} without one."""
    return {} if options.recipe is None else read_recipe(options.recipe)


def _has_failed_trials(study: Path) -> bool:
    """Whether a study has trials that its next call tries again."""
    from negbench.tuning.book import open_book

    return open_book(study.parent, study.name).counts()["failed"] > 0


def _depends_on_files(run: Path) -> bool:
    """Whether a finished run depends on files that do not come with negbench."""
    from negbench.loop.runs import DATA, depends_on_files
    from negbench.settings.config import resolve

    return depends_on_files(resolve(RunFolder(run).config), DATA)


def _print_second_call(
    options: CommandOptions,
    console: Console,
    command: Callable[[CommandOptions, Console], Path],
    conditions: str,
    path: Path,
) -> _Printed | None:
    """Call the command a second time, and return what it prints, to be cached.

    None if the next call may print something else: if this one warns, e.g. of an MLflow store that does not answer, or
    if another command has changed the result meanwhile.
    """
    collector = _Collector()
    folders = _hash_folders(path)
    with collector.instead_of_handlers(), console.capture() as capture:
        command(options, console)
    if collector.warned or _hash_folders(path) != folders:
        return None
    return _Printed(folder=path.name, conditions=conditions, folders=folders, notes=collector.notes, text=capture.get())


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
        if record.msg == NOTE_FORMAT:
            self.notes += map(str, record.args or ())
        else:
            self.warned = True

    @contextmanager
    def beside_handlers(self) -> Iterator[None]:
        """Collect the warnings of this block, which are printed, too."""
        log.addHandler(self)
        try:
            yield
        finally:
            log.removeHandler(self)

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
    """Hash code and recipe, the variables that planning reads, and how the console prints."""
    variables = []
    for name, value in sorted(os.environ.items()):
        if name.startswith(_VARIABLES) and name != UNTIL:  # a time limit changes nothing that is finished
            variables.append([name, value])
    lines: list[object] = [console.width, console.is_terminal, console.soft_wrap, console.quiet]
    prints = [*lines, console.color_system, console.encoding, log.level]
    conditions = [_hash_code(), _recipe_of(options), variables, prints]
    return hashlib.sha256(json.dumps(conditions, default=str).encode()).hexdigest()


def _hash_code() -> str:
    """Hash negbench's files, and which packages are installed."""
    digest = hashlib.sha256(json.dumps([sys.version, _packages()]).encode())
    for part in _PARTS:
        init = syntax.locate(part)
        assert init is not None, part
        for path in sorted(init.parent.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(init.parent)} {files.sha256_of(path)}\n".encode())
    return digest.hexdigest()


def _packages() -> list[object]:
    """Return the folder of each installed package's metadata, whose name holds the version, with its time."""
    packages: list[object] = []
    for folder in map(Path, sys.path):
        if folder.is_dir():
            metadata = [path for path in folder.iterdir() if path.suffix in (".dist-info", ".egg-info")]
            packages += [[str(path), stamp(path)] for path in sorted(metadata)]
    return packages


def _is_current(cached: _Printed, runs: Path) -> bool:
    """Whether the folders and their runs hold what they held; not if one is damaged, which the command reports."""
    try:
        return _hash_folders(runs / cached.folder) == cached.folders
    except (OSError, NegbenchError):
        return False


def _hash_folders(path: Path) -> dict[str, str]:
    """Hash the folder of a result and those that its command writes beside it: their files, and those of their runs.

    Raises:
        NegbenchError: a file is damaged.
        OSError: a file is missing.
    """
    stamps = [[str(run), _stamps_in(run)] for run in _runs_of(path)]
    hashes = {}
    for folder in _folders_of(path):
        rows = [stamps, _contents_in(folder)]
        hashes[folder.name] = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
    return hashes


def _folders_of(path: Path) -> list[Path]:
    """Return the folder of a result, and those that its command writes beside it."""
    folders = [path.with_name(path.name + suffix) for suffix in _SUFFIXES]
    return [folder for folder in folders if folder.is_dir()]


def _runs_of(path: Path) -> list[Path]:
    """Return the folders of the runs of a result: of its cells and, of a study, of its trials.

    Raises:
        NegbenchError: a cell has no run, or its comparison.json is damaged.
    """
    runs: dict[Path, None] = {}
    for folder in _folders_of(path):
        if (folder / "comparison.json").exists():
            for row in ComparisonFolder(folder).cells():
                if row["run"] is None:
                    raise RunError(f"{folder}: a cell is not finished")
                runs[folder.parent / row["run"]] = None
        runs |= dict.fromkeys(sorted(folder.glob("cells/*/")))
    return list(runs)


def _contents_in(folder: Path) -> list[list[str]]:
    """Return path and hash of each file of a folder and of its page: a command may write them anew, equal in content.

    Raises:
        DataError: a file does not fit the hash that is listed beside it, or is a link that leads out.
    """
    damaged = files.flaws_in(folder)
    if damaged.missing or damaged.damaged:
        raise DataError(f"{folder} is damaged")
    rows = []
    for path in sorted([*folder.glob("*"), *folder.glob("report/**/*")]):
        if path.is_file() and path.name not in _CHANGING:
            content = _hash_journal(path) if path.name == "optuna.journal" else files.sha256_of(path)
            rows.append([path.relative_to(folder).as_posix(), content])
    return rows


def _hash_journal(path: Path) -> str:
    """Hash an Optuna journal without the lines that create the study, of which each opening adds one."""
    lines = read_bytes(path).splitlines()
    return hashlib.sha256(b"\n".join(line for line in lines if not line.startswith(_CREATES_STUDY))).hexdigest()


def _stamps_in(run: Path) -> list[list[object]]:
    """Return name, kind, size, times and inode of each file of a run, which nothing writes once it is finished."""
    rows: list[list[object]] = []
    for path in sorted(run.iterdir()):
        status = path.lstat()  # of a link itself: one that was put in place of a file is found
        rows.append([path.name, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino])
    return rows
