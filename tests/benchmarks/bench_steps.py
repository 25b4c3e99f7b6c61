"""Steps of negbench's own loop at a chosen size, on made pictures with random weights; also stopped and resumed.

    python tests/benchmarks/bench_steps.py                                     # toy size, seconds on a CPU
    python tests/benchmarks/bench_steps.py --backbone blip2 --size vit_l --batch 32 --steps 200    # on a GPU: minutes
    python tests/benchmarks/bench_steps.py --backbone clip --size ViT-B-32 --steps 2 --epochs 3 --stop-in 4

It writes annotations and JPEGs of 450 x 600 pixels, and computes epochs of `qure` from them: pictures are decoded
and encoded, val is scored, pools are mined, and `--steps` steps are taken an epoch. With `--stop-in N` the run gets
SIGTERM (`--signal KILL`: SIGKILL) in its Nth step and is started again; then it is computed once more without a stop,
and the last line says whether weights, ranks and curves of both have the same bits. The lines before say what the steps
took, and the estimate of their memory.

On a machine with a GPU, five minutes:

1. Copy the repository there. Where no package can be installed, bring these as wheels, besides torch, transformers,
   numpy, pandas, pyarrow, scipy, safetensors, Pillow, rich and typer: pydantic, pydantic-core, annotated-types and
   typing-inspection; for `--backbone clip` also open_clip_torch, ftfy, wcwidth and torchvision. `--packages` prints the
   distributions that a run imported. MLflow and Optuna are not needed.
2. `PYTHONPATH=. python tests/benchmarks/bench_steps.py --backbone blip2 --size vit_l --batch 32 --steps 200 --pictures
   300`, and with `--backbone blip --size large`. The memory at most should be below the estimate of a step.
3. Append the GPU that the last lines name to negbench/loop/gpus.toml: `--dry-run` then tells hours on such GPUs.
4. `make gpu`, or `python -m pytest -m gpu` where pytest is: what docs/performance.md lists as not measured.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from negbench.display import Display
from negbench.loop.checkpoint import TrainingParts
from negbench.loop.objective import Batch
from negbench.loop.runs import DATA, RunContext, compute_or_reuse, open_run
from negbench.loop.step_memory import Architecture, StepRows, step_memory, step_operations
from negbench.loop.types import Callbacks, State
from negbench.machine.free_memory import size
from negbench.machine.signals import Stopped, stop_on_signals
from negbench.settings.config import RunConfig
from negbench.settings.layers import parse_plugin
from negbench.store.runfolder import RunFolder
from negbench.systems.system import load_config

WORDS = ("red", "longer", "with sleeves", "more formal", "striped", "without collar", "shiny", "darker")


def write_data(folder: Path, pictures: int, queries: int) -> Path:
    """Write pictures and a file of triplets; a fifth of the pictures is val's. Return the file."""
    file = folder / "triplets.csv"
    if file.exists():
        return file
    (folder / "images").mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for number in range(pictures):
        corners = random.integers(0, 256, (8, 6, 3), dtype=np.uint8)
        picture = Image.fromarray(corners).resize((450, 600), Image.Resampling.BICUBIC)
        picture.save(folder / "images" / f"{number:06}.jpg", quality=90)
    train = pictures - pictures // 5
    rows = ["reference,text,target,split"]
    for split, first, last, count in (("train", 0, train, queries), ("val", train, pictures, pictures // 10)):
        for _ in range(count):
            reference, target = random.choice(np.arange(first, last), 2, replace=False)
            text = " and ".join(random.choice(WORDS, 2, replace=False))
            rows.append(f"images/{reference:06}.jpg,{text},images/{target:06}.jpg,{split}")
    file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return file


def configuration(options: argparse.Namespace, file: Path) -> RunConfig:
    """Return the run's configuration: a refresh at its start."""
    option = "size"
    if options.backbone == "clip" and options.size != "toy":
        option = "model"
    sets = [
        f"backbone.{option}={options.size}",
        "backbone.init=random",
        f"dataset.file='{file}'",
        f"train.epochs={options.epochs}",
        f"train.batch_size={options.batch}",
        "schedule.refresh_epochs=[0]",
        "eval.every=1",
        *options.sets,
    ]
    if options.backbone == "clip":
        sets.append("backbone.frozen=false")
    flags = {"strategy": parse_plugin("qure"), "backbone": {"name": options.backbone}, "dataset": {"name": "triplets"}}
    return load_config(flags=flags, sets=sets)


def compute(options: argparse.Namespace, folder: Path) -> None:
    """Compute the run, or resume it; print a line for each step, and what they took."""
    times: list[float] = []
    started = time.perf_counter()

    def note_step(parts: TrainingParts, state: State, batch: Batch) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter())
        print(f"step {state.step + 1} after {times[-1] - started:.1f} s", flush=True)

    config = configuration(options, write_data(folder, options.pictures, options.steps * options.batch))
    stop_on_signals()
    context = replace(
        RunContext.open(folder / options.runs, "none"), cache=DATA, callbacks=Callbacks(stepped=note_step)
    )
    try:
        result = compute_or_reuse(config, context)
    except Stopped as error:
        print(f"stopped by {error}", flush=True)
        raise SystemExit(error.code) from None
    steps = np.diff(times)
    seconds = 0.0
    if len(steps):
        seconds = float(np.median(steps))
        print(f"{len(times)} steps; median {seconds:.3f} s, {options.batch / seconds:.1f} queries per second")
    print(f"seconds by stage: {result.details['seconds']}; {result.details['peak_memory_mib']} MiB at most")
    print(f"metrics: {result.details['metrics']}")
    tell_estimate(config, seconds)
    if options.packages:
        print("packages:", ", ".join(imported_distributions()))


def tell_estimate(config: RunConfig, seconds: float) -> None:
    """Print the estimate of a step's memory, and the speed of steps that took so many seconds; 0: not known."""
    before = time.process_time()
    run = open_run(config, Display(), DATA)
    parts = step_memory(run, run.step_plan)
    listed = ", ".join(f"{name} {size(count)}" for name, count in parts.items())
    took = time.process_time() - before
    print(f"estimate of a step: {size(sum(parts.values()))} ({listed}), in {took:.1f} processor seconds")
    if seconds == 0:
        return
    rows = StepRows.of(run.config, run.scene.train.dataset, run.backbone)
    operations = sum(step_operations(Architecture.of(run), rows, run.step_plan).values())
    speed = operations / seconds / 1e12
    print(f"speed of the steps: {speed:.3g} * 10^12 operations a second")
    if run.precision.device.type == "cuda":
        name = torch.cuda.get_device_name(run.precision.device)
        backbone = run.backbone.identity.name
        print("for negbench/loop/gpus.toml:")
        print(f'[[gpu]]\nname = "{name}"\ntflops = {speed:.3g}\nsource = "bench_steps.py, {backbone}"')


def imported_distributions() -> list[str]:
    """Return the distributions whose packages this process has imported."""
    packages = {name.partition(".")[0] for name in sys.modules}
    distributions = set[str]()
    for package, names in packages_distributions().items():
        if package in packages:
            distributions.update(names)
    return sorted(distributions)


def stop_and_resume(arguments: list[str], folder: Path, options: argparse.Namespace) -> None:
    """Start the run in a process of its own, stop it in a step, start it again, and compare with a whole one."""
    command = [sys.executable, __file__, *arguments, "--folder", str(folder), "--once"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        for line in first.stdout:
            print("first: ", line, end="", flush=True)
            if line.startswith(f"step {options.stop_in - 1} "):
                first.send_signal(signal.Signals[f"SIG{options.signal}"])
    print(f"first:  exit code {first.returncode}", flush=True)
    follow("second", command)
    follow("whole", [*command, "--runs", "whole"])
    parts = run_of(folder / "runs")
    whole = run_of(folder / "whole")
    print(f"the resumed run has the bits of the whole one: {differences(parts, whole) or 'yes'}")


def follow(name: str, command: list[str]) -> None:
    """Run a command and print its lines; end with its exit code if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    print("".join(f"{name}: {line}\n" for line in done.stdout.splitlines()), end="")
    print(f"{name}: exit code {done.returncode}", flush=True)
    if done.returncode:
        raise SystemExit(done.returncode)


def run_of(runs: Path) -> RunFolder:
    """Return the only run in a folder."""
    (result,) = runs.glob("*/result.json")
    return RunFolder(result.parent)


def differences(one: RunFolder, other: RunFolder) -> str:
    """Name what two runs differ in; empty if their weights, ranks and curves have the same bits."""
    differing = []
    weights = one.weights()
    others = other.weights()
    changed = [name for name, value in weights.items() if not torch.equal(value, others[name])]
    if changed:
        differing.append(f"{len(changed)} of {len(weights)} tensors of weights")
    if not one.ranks().equals(other.ranks()):
        differing.append("ranks")
    if one.metrics() != other.metrics():
        differing.append("curves")
    return ", ".join(differing)


def main(arguments: list[str] | None = None) -> None:
    """Parse the options, and compute once, or twice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", choices=["blip2", "blip", "clip"], default="blip2")
    parser.add_argument("--size", default="toy", help="of random weights; of clip: toy, or open_clip's name of a model")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6, help="of an epoch")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--pictures", type=int, default=60)
    parser.add_argument("--stop-in", type=int, default=0, help="step in which the run is stopped; 0: never")
    parser.add_argument("--signal", choices=["TERM", "KILL"], default="TERM", help="that stops it")
    parser.add_argument("--set", dest="sets", action="append", default=[], help="as of negbench run")
    parser.add_argument("--folder", type=Path, help="of pictures and run; default: a temporary one")
    parser.add_argument("--packages", action="store_true", help="print the distributions that are imported")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--runs", default="runs", help=argparse.SUPPRESS)
    words = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if options.stop_in and not options.once:
            stop_and_resume(words, folder, options)
        else:
            compute(options, folder)


if __name__ == "__main__":
    main()
