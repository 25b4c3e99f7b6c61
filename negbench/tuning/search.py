"""Run a study: compute its trials, then compare the best with the default."""

from dataclasses import dataclass, replace

from negbench.analysis.verdicts import Rules
from negbench.analysis.words import label_of
from negbench.campaign.driver import Course, Done, Round
from negbench.campaign.seeds import epochs_of_looks
from negbench.data.scene import DataCache
from negbench.display import Display, notes
from negbench.errors import NegbenchError, OptionError
from negbench.grid.cells import Cell, plan_cells
from negbench.grid.comparison import ComparisonFolder
from negbench.grid.looks import Looks
from negbench.grid.setting_trials import DEV_FRACTION, generates_dev
from negbench.loop.remarks import check_idle
from negbench.loop.runs import DATA, plan_run
from negbench.machine import files
from negbench.metrics.part_name import whole_name
from negbench.settings.config import build_config, resolve
from negbench.settings.layers import layers_of, read_recipe
from negbench.settings.options import Study
from negbench.systems.system import with_system
from negbench.tuning.book import StudyStore, open_book
from negbench.tuning.final import best_and_default, final_cells
from negbench.tuning.search_space import SearchSpace, build_space
from negbench.tuning.spec import LEAST, MODELS, STARTUP, StudySpec, resolve_metric
from negbench.tuning.trials import Job, TrialSearch

_TRIALS = 40


@dataclass(frozen=True)
class StudyPlan:
    """A study before it is computed.

    Attributes:
        job: what is searched, how, and where.
        fresh: seeds of the final runs, above those of the trials.
        looks: of the final runs.
    """

    job: Job
    fresh: tuple[int, ...]
    looks: Looks | None = None

    @property
    def rules(self) -> Rules:
        """How the best is compared with the default."""
        default = f"{self.job.spec.config.strategy.name} default"
        return Rules(default, metric=self.job.spec.metric or None, looks=self.looks)

    def first(self) -> Round:
        """Return the round of the trials, without their search: which runs follow, and what is searched."""
        spec = self.job.spec
        folder = self.job.folder
        trials = self.job.trials
        runs = folder.parent
        name = folder.name
        configs = [spec.space.config(spec.config, {}, seed) for seed in spec.seeds]
        trial = plan_cells(configs, folder / "cells", Display(), DATA)
        trial = [replace(cell, folder=cell.folder and f"{name}/cells/{cell.folder}") for cell in trial]
        final = []
        if self.fresh:
            final = final_cells(spec, {"default": {}}, runs, self.fresh)
        ended = 0
        if (folder / "study.json").exists():
            counts = open_book(runs, name, self.job.storage).counts()
            ended = counts["finished"] + counts["pruned"] + counts["failed"]
        epochs = trial[0].config.train.epochs
        further_trials = max(0, trials - max(1, ended))
        later_epochs = float(epochs * (further_trials * len(spec.seeds) + len(final)))
        if self.looks is not None:
            later_epochs += 2 * epochs_of_looks(final, self.looks, len(self.fresh))
        return Round(
            ComparisonFolder(folder),
            ahead=[*final, *trial],
            later_epochs=later_epochs,
            words=self._header(ended, trial[0]),
        )

    def _header(self, ended: int, trial: Cell) -> list[str]:
        """Return lines that say what is searched, and how; `trial` is a cell of one."""
        spec = self.job.spec
        trials = self.job.trials
        name = self.job.folder.name
        size = f"{trials} trials of {len(spec.seeds)} seed{'s' if len(spec.seeds) > 1 else ''}"
        if ended:
            size += f", {ended} already ended"
        dev = f"a dev part of train ({100 * spec.config.eval.dev_fraction:.0f} %)"
        if generates_dev(spec.config):
            dev = "fresh queries generated for it"
        strategy = spec.base["strategy"]["name"]
        _, missing = whole_name(trial.labels["dataset"])
        dataset = spec.base["dataset"]["name"] + missing
        by = f" by {label_of(spec.metric)}" if spec.metric else ""
        lines = [f"{name}: {strategy} on {dataset}, {size}, scored{by} on {dev}; no trial reads val"]
        for searched in spec.space.ranges:
            lines.append(f"  {searched.key} = {searched.text()}   (default {searched.default})")
        if spec.space.clipped:
            clipped = ", ".join(spec.space.clipped)
            lines.append(f"  trial 0 differs from the default, which lies outside the range of {clipped}")
        model = ""
        if spec.sampler in MODELS:
            model = f" (its model draws from trial {STARTUP} on, once {LEAST} have finished)"
        with_choices = [searched.key for searched in spec.space.ranges if searched.choices]
        if spec.sampler == "cmaes" and with_choices:
            model += f", except {', '.join(with_choices)}, drawn at random"
        return [*lines, f"  sampler {spec.sampler}{model}; pruner {spec.pruner}"]


def plan_study(options: Study) -> StudyPlan:
    """Complete the options from the recipe's table [study], build the search space, and note what does nothing here.

    Raises:
        NegbenchError: an unknown key, a value of the wrong type, or invalid settings.
    """
    table = read_recipe(options.recipe).get("study") if options.recipe else None
    options = options.over(table, "study")
    layer, remarks = with_system([{"eval": {"dev_fraction": DEV_FRACTION}}, *layers_of(options)], DataCache())
    base = build_config([layer])
    grid = options.sampler == "grid"
    space = build_space(base, search=options.search, fix=options.fix, grid=grid)
    if options.sampler == "cmaes" and all(searched.choices for searched in space.ranges):
        raise OptionError(
            "--sampler cmaes models ranges only, and every searched option is a list of values: use tpe or gp"
        )
    rows = [("a trial", corner, resolve(corner)) for corner in space.corners(base)]
    idle_fixes = _idle_fixes(options, space, build_space(base, search=options.search, grid=grid)) if options.fix else []
    notes([*remarks, *check_idle(rows, options.sets, DATA), *idle_fixes])
    metric = ""
    pruner = options.pruner
    if options.metric is not None:
        card = plan_run(base, DATA).card
        metric = resolve_metric(options.metric, card)
        if pruner != "none" and metric and metric not in card.metrics:
            notes([f"no trial is pruned: curves over training have no {label_of(metric)}"])
            pruner = "none"
    spec = StudySpec.of(base, space, seeds=options.seeds, sampler=options.sampler, pruner=pruner, metric=metric)
    first = max(spec.seeds) + 1
    fresh = tuple(range(first, first + options.final_seeds))
    trials = options.trials or _TRIALS
    if grid:
        points = len(spec.queued_points)
        trials = min(options.trials or points, points)
    name = options.name or f"study-{spec.config.strategy.name}-{spec.digest}"
    job = Job(files.runs_dir(options.runs_dir) / name, spec, options.storage, trials, options.tracking_uri)
    return StudyPlan(job, fresh, Looks.of(options, fresh))


def _idle_fixes(options: Study, space: SearchSpace, unfixed: SearchSpace) -> list[str]:
    """Remark on each --fix of a key that the search would not vary without it, `unfixed`.

    Raises:
        OptionError: --search names the key, too.
    """
    remarks = []
    for key in options.fix:
        if space.varies(key):
            raise OptionError(f"--fix {key} and --search {key}: leave one of them out")
        if not unfixed.varies(key):
            remarks.append(f"--fix {key} does nothing: the search does not vary it")
    return remarks


def search_settings(plan: StudyPlan, book: StudyStore) -> Course:
    """Ask for the missing trials, then for the best and the default on fresh seeds; a rerun resumes."""
    search = TrialSearch([(book, plan.job)])
    yield plan.first().with_search(search)
    if search.errors:
        raise NegbenchError(f"{search.errors[0]}; rerun the command to resume")
    if not plan.fresh:
        return Done(ComparisonFolder(book.folder))
    return (yield from best_and_default(book, plan.fresh, plan.rules))
