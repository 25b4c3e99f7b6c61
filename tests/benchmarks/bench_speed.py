"""Processor time of commands in this tree and at an earlier commit: bench_speed.py [--before 990ae813] [--rounds 2]

Both trees run every row in turn, each in processes of its own with one thread; printed are the least seconds of each,
their ratio, and whether all ranks and weights so far have the same bits. The recipe is `zone-1.toml` beside this file.
"""

import argparse
import itertools
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MAPPED = {"strategies": "strategies", "backbones": "backbones", "recipes": "runs/recipes"}  # as in pyproject.toml
ROWS = {
    "three runs, 200 steps": "compare --no-report --name one --strategies in-batch,qure,top-k --epochs 40 --seeds 1",
    "HyCoLe, 100 steps": "compare --no-report --name two --strategies hycole,all-corpus --epochs 20 --seeds 1",
    "nine short runs": "compare --name three --strategies all-corpus,qure,top-k --epochs 6 --seeds 3",
    "the same, shown again": "compare --name three --strategies all-corpus,qure,top-k --epochs 6 --seeds 3",
    "its report": "report three",
    "a dry run": "compare --dry-run --name four --strategies all-corpus,qure,top-k --epochs 6 --seeds 3",
    "--help": "--help",
}


def tree_of(commit: str, folder: Path) -> Path:
    """Write a commit's files to a folder, with the links that installing the package would make."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    for name, target in MAPPED.items():
        (folder / "negbench" / name).symlink_to(folder / target)
    return folder


def seconds_of(tree: Path, command: str, runs: Path) -> float:
    """Run a command of a tree; return the processor seconds of it and its children."""
    words = command.split()
    if words[0] == "compare":
        words += ["--recipe", str(HERE / "zone-1.toml")]
    if words[0] != "--help":
        words += ["--runs-dir", str(runs)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(tree)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's modules are compiled once
    program = [sys.executable, "-c", "from negbench.cli.main import main; main()", *words]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(program, cwd=runs, env=environment, check=False, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{tree}: {command}\n{done.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def bits_of(runs: Path) -> dict[str, bytes]:
    """Return the bytes of every run's ranks and weights, by the run's name without its hash."""
    bits = {}
    for file in runs.glob("*/*"):
        data = file.read_bytes() if file.name in ("ranks.parquet", "model.safetensors") else b""
        if file.name == "ranks.parquet":  # which may have further columns
            data = pd.read_parquet(file, columns=["query", "target_rank", "gallery_size"]).to_csv().encode()
        if file.name == "model.safetensors":  # its header, whose length comes first, names the run
            data = data[8 + int.from_bytes(data[:8], "little") :]
        if data:
            epochs = json.loads((file.parent / "config.json").read_bytes())["config"]["train"]["epochs"]
            bits[f"{file.parent.name[:-9]} {epochs} {file.name}"] = data
    return bits


def main() -> None:
    """Parse the options and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", default="990ae813")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "tree").mkdir()
        trees = {"before": tree_of(options.before, folder / "tree"), "after": ROOT}
        print(f"{'':<26}{'before':>9}{'after':>9}{'ratio':>8}  bits", flush=True)
        for row, command in ROWS.items():
            least = dict.fromkeys(trees, math.inf)
            for (name, tree), turn in itertools.product(trees.items(), range(options.rounds)):
                runs = folder / f"{name}-{turn}"
                runs.mkdir(exist_ok=True)
                least[name] = min(least[name], seconds_of(tree, command, runs))
            before = bits_of(folder / "before-0")
            after = bits_of(folder / "after-0")
            differ = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
            same = f"{len(before)} equal"
            if differ:
                same = f"{len(differ)} of {len(before)} differ: {differ[0]}"
            ratio = least["after"] / least["before"]
            print(f"{row:<26}{least['before']:>8.2f}s{least['after']:>8.2f}s{ratio:>8.2f}  {same}", flush=True)


if __name__ == "__main__":
    main()
