"""Checks of `negbench doctor`: versions, devices, folders, stored files, runs and their MLflow store."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from negbench.analysis.words import plural
from negbench.errors import NegbenchError
from negbench.machine.files import SUMS, cache_dir, flaws_in, runs_dir, sweep
from negbench.machine.hardware import cores, has_gpu_driver
from negbench.machine.versions import versions
from negbench.settings.command_options import Doctor
from negbench.store.parents import restore
from negbench.store.runfolder import RunFolder, needed_files
from negbench.store.tracking import Tracker


@dataclass(frozen=True)
class Remark:
    """One line of a check-up: the part checked, and whether it is a problem."""

    part: str
    text: str
    problem: bool = False


def examine(options: Doctor) -> Iterator[Remark]:
    """Check one part after the other, and remove what killed processes left."""
    runs = runs_dir(options.runs_dir)
    store = _store(runs, options.tracking_uri)
    parts = {"versions": _versions(), "device": _devices(), "runs": _runs(runs), "data": _data(), "mlflow": store}
    if options.names_run:
        parts["run"] = _run(options)
    for part, checks in parts.items():
        try:
            for text, problem in checks:
                yield Remark(part, text, problem)
        except NegbenchError as error:
            yield Remark(part, str(error), True)


def _versions() -> Iterator[tuple[str, bool]]:
    yield ", ".join(f"{name} {number}" for name, number in versions().items()), False


def _devices() -> Iterator[tuple[str, bool]]:
    """Report the cores and threads, and each GPU with its free memory."""
    about = "options of `negbench run` here, such as --backbone blip2, tell what that run takes"
    threads = os.environ.get("OMP_NUM_THREADS")
    limit = f", OMP_NUM_THREADS={threads}" if threads else ""
    yield f"CPU, {cores()} {plural(cores(), 'core')}{limit}; float32; {about}", False
    if not has_gpu_driver():
        return
    import torch

    from negbench.loop.precision import automatic

    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        precision = automatic(torch.device("cuda", number))
        name = torch.cuda.get_device_name(number)
        yield f"{name}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free; train.precision=auto is {precision}", False


def _run(options: Doctor) -> Iterator[tuple[str, bool]]:
    """Say what a run with these options takes on this machine, and what of its weights and data is missing."""
    from negbench.grid.axes import labels_of_config
    from negbench.loop.run_forecast import forecast_lines
    from negbench.loop.runs import DATA, plan_run
    from negbench.systems.system import config_of

    remarks: list[str] = []
    with DATA.lenient() as lacking:
        config = plan_run(config_of(options, remarks.append), DATA).config
        lines = forecast_lines(config, DATA)
    labels = labels_of_config(config)
    length = f"{config.train.epochs} {plural(config.train.epochs or 0, 'epoch')}"
    yield f"{labels['strategy']}, {labels['loss']}, {labels['backbone']}, seed {config.seed}, {length}:", False
    for text in remarks:
        yield text, False
    for text in lacking.values():
        yield text, True
    for text in lines:
        yield text, False
    if not lines:
        yield (
            f"backbone '{config.backbone.name}' is small: a step fits, and `negbench run --dry-run` tells the time",
            False,
        )


def _room(folder: Path) -> tuple[str, bool]:
    """Check that the folder, or its nearest existing parent, can be written, and report its free space."""
    absolute = folder.absolute()
    nearest = next(path for path in (absolute, *absolute.parents) if path.exists() or path.is_symlink())
    if not nearest.is_dir():
        return f"{nearest} is not a folder", True
    free = shutil.disk_usage(nearest).free
    if not os.access(nearest, os.W_OK):
        return f"{folder} cannot be written", True
    return f"{folder}: {free / 2**30:.1f} GiB free", free < 2**30


def _runs(runs: Path) -> Iterator[tuple[str, bool]]:
    """Report runs by status, leftovers, and damaged files."""
    yield _room(runs)
    counts = Counter(RunFolder(path.parent).status for path in runs.glob("*/config.json"))
    if counts:
        yield f"{counts.total()} runs: {', '.join(f'{count} {status}' for status, count in counts.items())}", False
    sealed: list[Path] = []
    leftovers = []
    for folder, _, names in os.walk(runs):
        path = Path(folder)
        if SUMS in names:
            sealed.append(path)
        if any(name.startswith(".") and name.endswith(".partial") for name in names):
            leftovers += sweep(path)
    if leftovers:
        yield f"{len(leftovers)} half-written files of killed processes removed", False
    for path in sorted(sealed):
        flaws = flaws_in(path)
        lost = needed_files(flaws.missing)
        if lost and RunFolder(path).status == "finished":
            yield f"run {path.name} has lost {', '.join(lost)}", True
        for name in flaws.damaged:
            yield f"{path / name} is damaged; the command that reads it says what to do", True


def _data() -> Iterator[tuple[str, bool]]:
    """Report the folder of data sets, and the cache with its damaged files."""
    root = os.environ.get("NEGBENCH_DATA")
    if root:
        is_folder = Path(root).is_dir()
        flaw = "" if is_folder else ", which is not a folder"
        yield f"NEGBENCH_DATA is {root}{flaw}", not is_folder
    text, problem = _room(cache_dir())
    yield f"cache {text}", problem
    for folder in sorted({path.parent for path in cache_dir().rglob(SUMS)}):
        for name in flaws_in(folder).damaged:
            yield f"{folder / name} is damaged; it is made again when it is needed", False


def _store(runs: Path, uri: str | None) -> Iterator[tuple[str, bool]]:
    """Whether the store answers; ends what killed processes left running there, and copies what it lacks."""
    tracker = Tracker.open(runs, uri)
    if not tracker.enabled:
        yield "no copy is kept", False
        return
    if not tracker.may_exist:
        yield "no store yet", False
        return
    for line in (*restore(tracker), f"{tracker.printable_uri} answers"):
        yield line, False
