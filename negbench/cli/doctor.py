"""`negbench doctor`: this machine, what killed processes left, which files are damaged, and a trial run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from negbench.cli import options

Finding = tuple[str, bool]  # a line, and whether it is a problem


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "doctor",
        help="Check versions, devices, disk, stores, every stored file; clear what killed processes left; a trial run.",
        epilog="Example: negbench doctor --no-trial",
    )(doctor)


def doctor(
    trial: Annotated[bool, typer.Option("--trial/--no-trial", help="Compute a run of a few seconds, twice.")] = True,
    runs_dir: options.RunsDir = None,
    tracking_uri: options.TrackingUri = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of lines.")] = False,
) -> None:
    """Print one line after the other; exit code 2 where something is wrong."""
    import json

    from negbench import files
    from negbench.errors import NegbenchError

    runs, found = files.runs_dir(runs_dir), list[dict[str, str | bool]]()

    def note(title: str, line: str, wrong: bool) -> None:
        found.append({"part": title, "text": line, "problem": wrong})
        if not as_json:
            typer.echo(f"{title:9} {'PROBLEM: ' if wrong else ''}{line}")

    parts: dict[str, Callable[[], Iterator[Finding]]] = {
        "versions": _versions,
        "device": _devices,
        "runs": lambda: _runs(runs),
        "cache": _cache,
        "mlflow": lambda: _store(runs, tracking_uri),
    }
    if trial:
        parts["trial"] = _trial
    for title, part in parts.items():
        try:
            for line, wrong in part():
                note(title, line, wrong)
        except NegbenchError as error:
            note(title, str(error), True)
    problems = sum(bool(each["problem"]) for each in found)
    if as_json:
        typer.echo(json.dumps({"problems": problems, "findings": found}, indent=2))
    if problems:
        raise NegbenchError(f"the doctor found {problems} problem{'s' * (problems > 1)}: see above")


def _versions() -> Iterator[Finding]:
    from negbench.loop.record import versions

    yield ", ".join(f"{name} {number}" for name, number in versions().items()), False


def _devices() -> Iterator[Finding]:
    import os

    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield f"CPU, {cores} cores, {torch.get_num_threads()} threads; float32", False
    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        precision = "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
        name = torch.cuda.get_device_name(number)
        yield f"{name}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free; train.precision=auto is {precision}", False


def _room(folder: Path) -> Iterator[Finding]:
    """Whether the folder, or the one it will be made in, can be written, and how much."""
    import os
    import shutil

    there = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.exists())
    free = shutil.disk_usage(there).free
    writes = os.access(there, os.W_OK)
    what = f"{folder}: {free / 2**30:.1f} GiB free" if writes else f"{folder} cannot be written"
    yield what, not writes or free < 2**30


def _runs(runs: Path) -> Iterator[Finding]:
    """Runs by status, leftovers, damaged files."""
    from collections import Counter

    from negbench.files import SUMS, damaged_in, sweep
    from negbench.runfolder import RunFolder

    yield from _room(runs)
    places = sorted({path.parent for path in runs.rglob(SUMS)}) if runs.exists() else []
    found = [RunFolder(path.parent) for path in sorted(runs.glob("*/config.json"))]
    if found:
        counts = Counter(folder.status for folder in found)
        yield (
            f"{len(found)} run{'s' * (len(found) > 1)}: "
            + ", ".join(f"{count} {status}" for status, count in counts.items()),
            False,
        )
    if old := sum(folder.path not in places for folder in found):
        yield f"{old} runs of an older version have no {SUMS}: damage to them cannot be seen", False
    removed = [path for place in (runs, *places) for path in sweep(place)]
    if removed:
        yield f"{len(removed)} half-written files of killed processes removed", False
    for place in places:
        for name in damaged_in(place):
            yield f"{place / name} is damaged; the command that reads it says what to do", True


def _cache() -> Iterator[Finding]:
    from negbench.files import cache_dir

    root = cache_dir()
    yield from _room(root)
    shards = list((root / "features").glob("*/*.safetensors"))
    if shards:
        size = sum(path.stat().st_size for path in shards) / 2**20
        keys = len({path.parent for path in shards})
        yield f"features of {keys} backbones, {size:,.0f} MiB; `negbench encode --verify` compares them", False


def _store(runs: Path, uri: str | None) -> Iterator[Finding]:
    """Whether the store answers; ends what killed processes left running there."""
    from negbench.tracking import Tracker, first_line

    tracker = Tracker.open(runs, uri)
    if not tracker.enabled or (uri is None and not (runs / "mlflow.db").exists()):
        yield "no store yet" if tracker.enabled else "no copy is kept", False
        return
    try:
        mended = tracker.mend()
    except Exception as error:  # of whatever kind the store's driver raises
        yield f"{tracker.shown} does not answer: {first_line(error)}", True
        return
    yield f"{tracker.shown} answers", False
    if mended:
        yield f"ended there, as their process is gone: {', '.join(mended)}", False


def _trial() -> Iterator[Finding]:
    """A run on vectors made here, twice: it must learn, and give the same bits."""
    import tempfile
    import time

    from negbench.loop.runs import Bench, run_config
    from negbench.systems.system import load_config
    from negbench.testing.vectors import write_vectors

    with tempfile.TemporaryDirectory(prefix="negbench-doctor-") as name:
        sets = [*write_vectors(Path(name) / "data"), "train.epochs=4", "train.batch_size=16", "train.lr=0.03"]
        config = load_config(flags={"strategy": {"name": "qure"}}, sets=[*sets, "schedule.n_def=2"])
        started = time.monotonic()
        results = [run_config(config, Bench.open(Path(name) / str(number), "none")) for number in range(2)]
        spent = time.monotonic() - started
        main = str(results[0].details["main_metric"])
        before, after = results[0].details["baselines"]["untrained"][main], results[0].metrics[main]
        yield f"two runs in {spent:.1f} s: {main} {before:.3f} untrained, {after:.3f} trained", after <= before
        same = results[0].folder.metrics() == results[1].folder.metrics()
        yield "the same numbers both times" if same else "two runs of one configuration gave other numbers", not same
