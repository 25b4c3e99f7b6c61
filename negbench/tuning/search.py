"""Run a study: compute its trials, then compare the best with the default."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from negbench.analysis.verdicts import Rules
from negbench.data.scene import Scenes
from negbench.display import Display, log, notes
from negbench.errors import OptionError
from negbench.grid.compute import Execution
from negbench.grid.looks import Looks
from negbench.grid.rates import DEV_FRACTION, generated_dev
from negbench.loop.remarks import check_idle
from negbench.loop.runs import SCENES, open_run
from negbench.machine import files
from negbench.machine.signals import Stopped
from negbench.settings.config import build_config, resolved
from negbench.settings.layers import layers_of, read_recipe
from negbench.settings.options import Study
from negbench.store.parents import Parent
from negbench.store.tracking import Tracker
from negbench.systems.system import with_system
from negbench.tuning.book import Book
from negbench.tuning.final import compare_best
from negbench.tuning.space import build_space
from negbench.tuning.spec import LEAST, MODELS, STARTUP, StudySpec
from negbench.tuning.trials import note_lost_copies, open_study, run_study

_TRIALS = 40


@dataclass(frozen=True)
class StudyPlan:
    """Plan of a study."""

    spec: StudySpec
    trials: int
    fresh: tuple[int, ...]  # seeds of the final runs, above those of the trials
    looks: Looks | None = None  # of the final runs
    remarks: tuple[str, ...] = ()  # what of the settings or of the system does nothing here


def plan_study(asked: Study) -> StudyPlan:
    """Complete the options from the recipe's table [study], and build the search space.

    Raises:
        NegbenchError: an unknown key, a value of the wrong type, or invalid settings.
    """
    asked = asked.over(read_recipe(asked.recipe).get("study") if asked.recipe else None, "study")
    layer, remarks = with_system([{"eval": {"dev_fraction": DEV_FRACTION}}, *layers_of(asked)], Scenes())
    base, grid = build_config([layer]), asked.sampler == "grid"
    space = build_space(base, search=asked.search, fix=asked.fix, grid=grid)
    if asked.sampler == "cmaes" and all(knob.choices for knob in space.knobs):
        raise OptionError("--sampler cmaes models ranges only, and every knob is a list of values: use tpe or gp")
    rows = [("a trial", each, resolved(each)) for each in space.corners(base)]
    remarks = (*remarks, *check_idle(rows, asked.sets, SCENES))
    spec = StudySpec.of(base, space, seeds=asked.seeds, sampler=asked.sampler, pruner=asked.pruner)
    first = max(spec.seeds) + 1
    fresh = tuple(range(first, first + asked.final_seeds))
    size = len(spec.listed) if grid else _TRIALS
    trials = min(asked.trials or size, size) if grid else asked.trials or size
    return StudyPlan(spec, trials, fresh, Looks.of(asked, fresh), remarks)


def study(asked: Study, execution: Execution, say: Callable[[str], None]) -> tuple[Book, Rules | None]:
    """Compute missing trials, then the best and the default on fresh seeds; call it again to resume.

    Args:
        asked: options; plug-ins by name or table.
        execution: how trials and runs are computed.
        say: prints a line about the search; progress goes to the log.

    Returns:
        The study, and the rules that compare its best with the default; None if that was not requested or the default
        is the best.

    Raises:
        NegbenchError: invalid options, a default that cannot be computed, or a storage that fails.
    """
    plan = plan_study(asked)
    spec, trials, uri, executor = plan.spec, plan.trials, execution.tracking_uri, execution.executor
    title = asked.name or f"study-{spec.config.strategy.name}-{spec.digest}"
    runs = files.runs_dir(asked.runs_dir)
    notes(plan.remarks)
    book, job = open_study(runs, title, spec, trials=trials, storage=asked.storage, tracking_uri=uri)
    for line in _header(book, trials):
        say(line)
    started = time.monotonic()

    def notify(text: str) -> None:
        counts = book.counts()
        ended = counts["finished"] + counts["pruned"] + counts["failed"]
        log.info("[%d/%d] %6.1f s  %s", ended, trials, time.monotonic() - started, text)

    if not executor.elsewhere and executor.workers > 1:  # encode once before several workers would
        open_run(spec.space.corners(spec.config)[0], Display(), SCENES)
    try:
        with Parent(Tracker.open(runs, uri), book.folder).working():
            run_study(job, executor, notify)
    except (KeyboardInterrupt, Stopped):
        log.warning("%d of %d trials are finished and kept in %s", book.counts()["finished"], trials, book.folder)
        raise
    note_lost_copies(book.folder)
    log.info("%d trials; this command took %.1f s", trials, time.monotonic() - started)
    if not plan.fresh:
        return book, None
    return book, compare_best(book, runs, plan.fresh, plan.looks, execution, say)


def _header(book: Book, trials: int) -> list[str]:
    """Return lines that say what is searched, and how."""
    spec = book.spec
    size = f"{trials} trials of {len(spec.seeds)} seed{'s' if len(spec.seeds) > 1 else ''}"
    dev = f"a dev part of train ({100 * spec.config.eval.dev_fraction:.0f} %)"
    dev = "fresh queries generated for it" if generated_dev(spec.config) else dev
    lines = [
        f"{book.name}: {spec.base['strategy']['name']} on {spec.base['dataset']['name']}, {size}, scored on {dev}; "
        "no trial reads val"
    ]
    lines += [f"  {knob.key} = {knob.text()}   (default {knob.default})" for knob in spec.space.knobs]
    if clipped := spec.space.clipped:
        lines.append(f"  trial 0 differs from the default, which lies outside the range of {', '.join(clipped)}")
    model = f" (its model draws from trial {STARTUP} on, once {LEAST} have finished)" * (spec.sampler in MODELS)
    if spec.sampler == "cmaes" and (listed := [knob.key for knob in spec.space.knobs if knob.choices]):
        model += f", except {', '.join(listed)}, drawn at random"
    return [*lines, f"  sampler {spec.sampler}{model}; pruner {spec.pruner}"]
