"""Kill commands at random moments, rerun the command, and compare the tables. `make attack`.

    python -m tests.reliability.attack [--kills N] [--seed S] [--only TEXT]

Each command is first computed undisturbed (those that contain TEXT; `data fetch`, which needs npm and a registry, only
if TEXT is given). Then, in new runs folders, the commands take turns: one is killed up to six times, by kill -9 to the
command, to one of its processes or to all of them, or by one or two signals. Rerun, it must end with exit code 0, the
same metrics of the same runs, no half-written or damaged file, nothing that MLflow calls running and no process left.
Prints a line per attempt, with the kills so far; exit code 1 if anything differs.
"""

import argparse
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from tests.vector_files import write_vectors

TRAINING = ("train.epochs=6", "train.batch_size=16", "train.lr=0.03", "schedule.n_def=2")
GRID = "compare --lr fixed --strategies qure,in-batch --losses bradley-terry --name attacked --no-report"
STUDY = "study --strategy dqe --trials 6 --seeds 1 --final-seeds 0 --name attacked --sampler"
COMMANDS = (  # [NAME=VALUE] is a variable of the environment
    f"{GRID} --seeds 2",
    f"{GRID} --seeds 2 --workers 2",
    f"{GRID} --until decided --max-seeds 5 --workers 2",
    f"{STUDY} random",
    f"{STUDY} random --workers 2",
    f"{STUDY} tpe",
    f"{GRID.replace('--lr fixed', '--lr grid')} --seeds 1",
    f"{GRID} --seeds 1 --tuned 3",
    "claims --only 5 --seeds 2 --name attacked",
    f"{GRID} --seeds 2 --tracking-uri none [NEGBENCH_LOCKS=soft]",
)
FILES = (  # commands that write into {own}, a folder of data
    "init {own}/vectors",
    "embed {own}/pictures --encoder {own}/encoder.py:Encoder --overwrite",
    "mine --queries {own}/vectors/texts.npz --images {own}/vectors/images.npz --targets {own}/t.npy "
    "--strategy qure --draws 3 --out {own}/n.parquet",
    "report one --runs-dir {own}/runs",
    "data fetch emoji --out {own}/emoji",
)
ENCODER = """
import numpy as np
class Encoder:
    def encode_image(self, images):
        return np.stack([np.asarray(image, dtype=np.float32).mean((0, 1)) + 1 for image in images])
    def encode_text(self, texts):
        return np.array([[len(text), 1.0] for text in texts], dtype=np.float32)
"""
SIGNALS = ("SIGTERM", "SIGHUP", "SIGINT to all")
WAYS = ("kill -9", "kill -9 to one process", "kill -9 to all", *SIGNALS, *(f"{way}, twice" for way in SIGNALS))
SECONDS = 900  # a command that takes longer counts as hung


def hear() -> None:
    """Restore the signals that nohup and background shells ignore."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def start(command: str, sets: list[str], runs: Path) -> psutil.Popen:
    """Start the command in its own session, with its output in a file beside its runs folder."""
    variables = dict(re.findall(r"\[(\w+)=(\w+)\]", command))
    words = re.sub(r"\[\w+=\w+\]", "", command.format(own=runs / "own")).split()
    if command not in FILES:
        if command.startswith("claims"):  # which set their own schedule
            sets = [text for text in sets if not text.startswith("schedule")]
        for text in sets:
            words += ["--set", text]
        words += ["--runs-dir", str(runs)]
    words = [str(Path(sys.executable).with_name("negbench")), *words]
    with runs.with_suffix(".log").open("ab") as log:
        how: dict[str, Any] = {"stdout": log, "stderr": log, "env": os.environ | variables}
        return psutil.Popen(words, **how, start_new_session=True, preexec_fn=hear)


def table(runs: Path) -> dict[str, Any]:
    """Return the metrics of every run and trial, by the paths of their folders, and the contents of data folders."""
    metrics: dict[str, Any] = {}
    for path in sorted((runs / "own").rglob("*")):
        if path.is_file() and path.parent.name != "__pycache__":
            text = path.read_bytes().replace(str(runs).encode(), b"RUNS").replace(f">{runs.name}<".encode(), b">RUNS<")
            lines = [line for line in text.split(b"\n") if b"which rewrites this file" not in line]  # holds a digest
            metrics[str(path.relative_to(runs))] = hashlib.sha256(b"\n".join(lines)).hexdigest()
    for path in sorted({*runs.rglob("result.json")} - {*(runs / "artifacts").rglob("result.json")}):  # MLflow's copies
        metrics[str(path.parent.relative_to(runs))] = json.loads(path.read_text(encoding="utf-8"))["metrics"]
    return metrics


def flaws(runs: Path, want: dict[str, Any]) -> list[str]:
    """Return what is wrong in the runs folder of a command that succeeded."""
    from negbench.machine.files import SUMS, flaws_in

    metrics = table(runs)
    wrong = [f"another table: {name}" for name in sorted({*want, *metrics}) if want.get(name) != metrics.get(name)]
    wrong += [f"half-written: {path}" for path in runs.rglob("*.partial")]
    for sums in runs.rglob(SUMS):
        wrong += [f"damaged: {sums.parent / name}" for name in flaws_in(sums.parent).damaged]
    if not (runs / "mlflow.db").exists():
        return wrong
    with closing(sqlite3.connect(runs / "mlflow.db")) as store:
        running = store.execute("select name from runs where status = 'RUNNING' and lifecycle_stage = 'active'")
        wrong += [f"MLflow: {name} is running" for (name,) in running]
    return wrong


def new_runs(runs: Path, data: Path) -> Path:
    """Return a new runs folder with a copy of the data folder, for the commands that write there."""
    shutil.copytree(data, runs / "own")
    return runs


def write_data(data: Path) -> list[str]:
    """Write vectors, targets of `mine`, an encoder, pictures and a comparison; return the runs' `--set` values."""
    import numpy as np
    from PIL import Image

    sets = write_vectors(data / "vectors")
    rows = [json.loads(line) for line in (data / "vectors" / "triplets.jsonl").read_text(encoding="utf-8").splitlines()]
    np.save(data / "t.npy", np.array([row["target"] for row in rows]))
    (data / "encoder.py").write_text(ENCODER, encoding="utf-8")
    (data / "pictures").mkdir()
    for number in range(12):
        Image.new("RGB", (8, 8), (20 * number, 0, 9)).save(data / "pictures" / f"p{number}.png")
    lines = "".join(f"p{number},more {number},p{number + 1}\n" for number in range(11))
    (data / "pictures" / "rows.csv").write_text(f"reference,text,target\n{lines}", encoding="utf-8")
    sets += TRAINING
    comparison = f"{GRID.replace('attacked', 'one')} --seeds 1 --tracking-uri none"
    assert start(comparison, sets, data / "runs").wait(SECONDS) == 0, (data / "runs.log").read_text()
    return sets


def has_checkpoint(runs: Path) -> bool:
    return any(runs.rglob("checkpoint.pt")) or any(runs.rglob("result.json"))


def living(session: int) -> list[psutil.Process]:
    """Return the running processes of a session."""
    processes = list[psutil.Process]()
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


def strike(process: psutil.Popen, way: str, chance: random.Random) -> None:
    """End a command in one of `WAYS`; if some of it survives the kill, wait until the rest has ended."""
    kind, _, twice = way.partition(", ")
    name, _, whom = kind.partition(" to ")
    for _ in range(2 if twice else 1):
        processes = living(process.pid) or [process]
        one = chance.choice(processes)
        for victim in {"": [process], "one process": [one], "all": processes}[whom]:
            with suppress(psutil.Error):
                victim.send_signal(signal.SIGKILL if name == "kill -9" else signal.Signals[name])
        with suppress(psutil.TimeoutExpired):
            process.wait(chance.choice((0.1, 2.0)))
    process.wait(SECONDS)
    deadline = time.monotonic() + 60
    survivors = living(process.pid)
    while survivors:
        if time.monotonic() > deadline:
            commands = [survivor.cmdline() for survivor in survivors]
            raise AssertionError(f"{way}: still alive a minute later: {commands}")
        time.sleep(0.05)
        survivors = living(process.pid)


def attack(
    command: str, sets: list[str], runs: Path, chance: random.Random, most: int, seconds: float, ways: Counter[str]
) -> None:
    """Kill a command up to `most` times, then let it end; count the ways, and the kills after a checkpoint.

    Args:
        command, sets, runs: as of `start`.
        chance: decides when and how.
        most: kills.
        seconds: what the command takes undisturbed.
        ways: the counts so far, which it adds to.
    """
    for _ in range(most):
        process = start(command, sets, runs)
        wait = chance.uniform(0.0, seconds)
        if command not in FILES and chance.random() < 0.8:  # most kills come while something is computed
            while process.poll() is None and not has_checkpoint(runs):
                time.sleep(0.02)
            wait *= 0.3
        with suppress(psutil.TimeoutExpired):
            process.wait(wait)
            break
        fewest = min(ways[way] for way in WAYS)
        way = chance.choice([way for way in WAYS if ways[way] == fewest])
        ways["after a checkpoint"] += has_checkpoint(runs)
        ways[way] += 1
        strike(process, way, chance)
    code = start(command, sets, runs).wait(SECONDS)
    assert code == 0, f"exit code {code}: {runs.with_suffix('.log').read_text()[-500:]}"


@dataclass(frozen=True)
class Undisturbed:
    """What a command takes, and what it computes, if nothing kills it."""

    seconds: float
    table: dict[str, Any]


def run_undisturbed(command: str, sets: list[str], runs: Path) -> Undisturbed:
    """Run a command to its end, and print what it took."""
    begun = time.monotonic()
    assert start(command, sets, runs).wait(SECONDS) == 0, runs.with_suffix(".log").read_text()
    seconds = time.monotonic() - begun
    results = table(runs)
    print(f"{command}: {len(results)} results in {seconds:.0f} s", flush=True)
    return Undisturbed(seconds, results)


def main() -> int:
    """Run the attack and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="commands that contain this text")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    wrong = 0
    ways = Counter[str]()
    folder = Path(tempfile.mkdtemp(prefix="attack-"))
    os.environ["NEGBENCH_CACHE"] = str(folder / "cache")
    sets = write_data(folder / "own")
    commands = [text for text in (*FILES, *COMMANDS) if options.only in text]
    if not options.only:
        commands = [text for text in commands if "data fetch" not in text]
    undisturbed = []
    for number, command in enumerate(commands):
        runs = new_runs(folder / f"straight-{number}", folder / "own")
        undisturbed.append(run_undisturbed(command, sets, runs))
    for attempt in itertools.count():
        struck = sum(ways[way] for way in WAYS)
        if struck >= options.kills:
            break
        number = attempt % len(commands)
        before = ways.copy()
        runs = new_runs(folder / f"{attempt}-{number}", folder / "own")
        try:
            most = min(6, options.kills - struck)
            attack(commands[number], sets, runs, chance, most, undisturbed[number].seconds, ways)
            problems = flaws(runs, undisturbed[number].table)
        except (AssertionError, psutil.TimeoutExpired) as error:
            problems = [str(error)]
        wrong += bool(problems)
        ended = ", ".join(f"{count} {way}" for way, count in sorted((ways - before).items()))
        print(
            f"{sum(ways[way] for way in WAYS)} kills: {commands[number]}: {ended or 'none'}: {problems or 'the same'}",
            flush=True,
        )
        if not problems:
            shutil.rmtree(runs)
    print(f"seed {options.seed}: {dict(sorted(ways.items()))}; {wrong} attempts differ", flush=True)
    if not wrong:
        shutil.rmtree(folder)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
