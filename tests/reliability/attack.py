"""Kills grids and studies at random moments, gives the same command again, and compares the tables. `make attack`.

    python tests/reliability/attack.py [--kills N] [--seed S]

Each command is first computed undisturbed. Then, in new runs folders, it is killed up to four times: by kill -9 to the
command, to one of its processes or to all of them, or by a signal. Given again it must end with exit code 0, the same
metrics of the same runs, no half-written file and no process left. Prints one line a command; exit code 1 where
anything differs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from negbench.testing.vector_files import write_vectors

TRAINING = ("train.epochs=6", "train.batch_size=16", "train.lr=0.03", "schedule.n_def=2")
GRID = "compare --strategies qure,in-batch --losses bradley-terry --seeds 2 --name attacked --no-report"
STUDY = "study --strategy dqe --trials 6 --seeds 1 --final-seeds 0 --name attacked --sampler"
COMMANDS = (
    GRID,
    f"{GRID} --workers 2",
    f"{STUDY} random",
    f"{STUDY} tpe",
)
WAYS = ("kill -9", "kill -9 to one process", "kill -9 to all", "SIGTERM", "SIGINT to all")
SECONDS = 600


def start(command: str, sets: list[str], runs: Path) -> subprocess.Popen[bytes]:
    """The command in a session of its own; what it tells is in a file beside its runs folder."""
    arguments = [sys.executable, "-m", "negbench", *command.split(), *sets, "--runs-dir", str(runs)]
    with runs.with_suffix(".log").open("ab") as told:
        return subprocess.Popen(arguments, stdout=told, stderr=told, start_new_session=True)


def finished(process: subprocess.Popen[bytes]) -> int:
    """Its exit code; a command that hangs is an error."""
    return process.wait(SECONDS)


def table(runs: Path) -> dict[str, Any]:
    """Run or trial -> its metrics, by the names of their folders."""
    found = {}
    for path in sorted({*runs.rglob("result.json")} - {*(runs / "artifacts").rglob("result.json")}):  # MLflow's copies
        found[str(path.parent.relative_to(runs))] = json.loads(path.read_text(encoding="utf-8"))["metrics"]
    return found


def has_checkpoint(runs: Path) -> bool:
    return any(runs.rglob("checkpoint.pt")) or any(runs.rglob("result.json"))


def living(session: int) -> list[psutil.Process]:
    """Processes of a session."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def strike(process: subprocess.Popen[bytes], way: str, chance: random.Random) -> None:
    """End a command in one of `WAYS`; where not all of it is killed, wait until the rest has noticed."""
    with suppress(ProcessLookupError, IndexError, psutil.Error):
        if way == "kill -9 to one process":
            chance.choice(living(process.pid)).kill()
        elif way == "kill -9 to all":
            os.killpg(process.pid, signal.SIGKILL)
        elif way == "SIGINT to all":
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGTERM if way == "SIGTERM" else signal.SIGKILL)
    finished(process)
    deadline = time.monotonic() + 20
    while left := living(process.pid):
        if time.monotonic() > deadline:
            raise AssertionError(f"{way}: still alive 20 s later: {[each.cmdline() for each in left]}")
        time.sleep(0.05)


def attacked(command: str, sets: list[str], runs: Path, chance: random.Random, most: int, span: float) -> Counter[str]:
    """Kill a command up to `most` times, then let it end; which way how often, and how many after a checkpoint."""
    ways = Counter[str]()
    for _ in range(most):
        process, wait = start(command, sets, runs), chance.uniform(0.0, span)
        if chance.random() < 0.7:  # most of them while something is computed
            while process.poll() is None and not has_checkpoint(runs):
                time.sleep(0.01)
            wait *= 0.3
        with suppress(subprocess.TimeoutExpired):
            process.wait(wait)
        if process.poll() is not None:
            break
        way = chance.choice(WAYS)
        ways["after a checkpoint"] += has_checkpoint(runs)
        strike(process, way, chance)
        ways[way] += 1
    code = finished(start(command, sets, runs))
    if code != 0:
        raise AssertionError(f"{dict(ways)}: exit code {code}: {runs.with_suffix('.log').read_text()[-500:]}")
    return ways


def main() -> int:
    """Run it; exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    chance, wrong, kills = random.Random(asked.seed), 0, asked.kills // len(COMMANDS)
    with tempfile.TemporaryDirectory(prefix="attack-") as name:
        place = Path(name)
        os.environ["NEGBENCH_CACHE"] = str(place / "cache")
        data = write_vectors(place)
        sets = list(itertools.chain(*(["--set", text] for text in (*data, *TRAINING))))
        for number, command in enumerate(COMMANDS):
            begun = time.monotonic()
            assert finished(start(command, sets, place / f"straight-{number}")) == 0
            span, want = time.monotonic() - begun, table(place / f"straight-{number}")
            ways, differing = Counter[str](), 0
            for attempt in itertools.count():
                struck = sum(ways[way] for way in WAYS)
                if struck >= kills:
                    break
                runs = place / f"{number}-{attempt}"
                try:
                    ways += attacked(command, sets, runs, chance, min(4, kills - struck), span)
                    found = table(runs)
                    differ = sorted(name for name in {*want, *found} if want.get(name) != found.get(name))
                    assert not differ, f"another table: {', '.join(differ)}"
                    assert not list(runs.rglob("*.partial")), "a half-written file is left"
                except (AssertionError, subprocess.TimeoutExpired) as error:
                    differing += 1
                    print(f"seed {asked.seed}, {command}, attempt {attempt}: {error}", flush=True)
            wrong += differing
            told = ", ".join(f"{count} {way}" for way, count in sorted(ways.items()))
            print(f"{command}: {told}; {len(want)} runs, {differing} attempts differ", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
