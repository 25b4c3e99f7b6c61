"""What the other processes of a team do, its helpers, from their start to the end of the run (`loop.assemble_team`)."""

import os
import pickle
import signal
import sys
import threading
from dataclasses import replace
from typing import Any

import torch

from negbench.contracts import Strategy
from negbench.data.scene import DataCache, threads
from negbench.display import Display
from negbench.errors import NegbenchError, out_of_memory
from negbench.loop.assemble_team import READY, TeamTask, join
from negbench.loop.checkpoint import seeded_randomness
from negbench.loop.runs import open_run
from negbench.loop.schedule import phases_of
from negbench.loop.train import train_step, training_parts
from negbench.loop.types import State
from negbench.machine.signals import ENDING
from negbench.plugins.registry import registry
from negbench.scoring import evaluation
from negbench.store.runfolder import RunFolder


def help_run(task: TeamTask) -> None:
    """Do what the first process of the run announces, until it ends this process.

    Signals that end a run reach the first process, which may still need this one for a checkpoint.
    """
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_run, daemon=True).start()
    try:
        _help(task)
    except Exception as error:
        message = str(error) if isinstance(error, NegbenchError) else out_of_memory(error)
        _say(message or f"{type(error).__name__}: {error}".splitlines()[0])
        raise SystemExit(2) from None


def _help(task: TeamTask) -> None:
    team = task.team
    if torch.cuda.is_available() and task.run.config.compute.device != "cpu":
        torch.cuda.set_device(team.number)
    display = Display()
    cache = DataCache()
    run = open_run(task.run, display, cache, precision=task.precision)
    config = run.config
    run = replace(run, step_plan=task.plan).in_team(team)
    _say(READY)
    join(team, task.meeting)
    strategy: Strategy = registry.make("strategies", config.strategy.name, **config.strategy.options)
    with threads(config.compute.threads), seeded_randomness(config.seed, run.precision.device):
        parts = training_parts(run, strategy)
        phases = phases_of(strategy, config)
        state = State()
        parts.restore(RunFolder(task.folder))
        while True:
            what, values = team.listen()
            if what == "weights":
                team.share_weights(run.backbone)
            elif what == "embed":
                evaluation.help_embed(run.backbone, run.scene, *values)
            elif what == "epoch":
                phase, pairs_epoch = values
                parts.objective.use_strategy(phases[phase].strategy)
                parts.objective.use_epoch(run.scene.at_epoch(run.backbone, pairs_epoch, config))
                run.backbone.train()
            elif what == "step":
                batch, state.step = values
                train_step(run, parts, state, batch)


def _say(line: str) -> None:
    """Send the first process a line."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _end_with_run() -> None:
    """End this process when the first one has, whose end of the pipe closes."""
    while sys.stdin.buffer.read(1):
        pass
    os._exit(1)


def main() -> None:
    """Read the task, and help."""
    task: Any = pickle.load(sys.stdin.buffer)
    help_run(task)


if __name__ == "__main__":
    main()
