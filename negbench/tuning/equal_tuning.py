"""Equal tuning: every strategy of a comparison gets the same number of trials on a dev part.

The budget is equal in trials; the searched options and the seconds, which differ, are reported. Negatives per query and
step are not searched, because the strategies of a table share their number. Musgrave et al. (A Metric Learning Reality
Check, ECCV 2020) and Gulrajani and Lopez-Paz (In Search of Lost Domain Generalization, ICLR 2021) compare this way.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from optuna.trial import TrialState

from negbench.analysis.deciding import open_strategies
from negbench.analysis.tuned_gain import TUNED, Tuning
from negbench.analysis.verdicts import Rules
from negbench.campaign.compare import compare_cells
from negbench.campaign.driver import Course, Round, SearchRound
from negbench.campaign.plan import ComparisonPlan
from negbench.campaign.seeds import look_by_look
from negbench.display import progress
from negbench.grid.axis import KEY, Value
from negbench.grid.cells import Cell, plan_cells
from negbench.grid.setting_trials import DEV_FRACTION
from negbench.loop.runs import DATA
from negbench.machine.files import check_name
from negbench.machine.grouping import group_by
from negbench.settings.config import RunConfig, resolve
from negbench.tuning.book import StudyStore
from negbench.tuning.final import completed_trials
from negbench.tuning.search_space import build_space, strategy_ranges
from negbench.tuning.spec import StudySpec, resolve_metric
from negbench.tuning.trials import Job, TrialSearch

SEED = 10_000  # of the trials, or the first one above the comparison's seeds
_NEGATIVES = "train.num_negatives"


@dataclass(frozen=True, eq=False)
class Combination:
    """One strategy, loss, backbone and data set: its labels, one configuration per seed, and its study's settings.

    `spec` is None if the strategy has nothing to tune.
    """

    labels: dict[str, str]
    configs: tuple[RunConfig, ...]
    spec: StudySpec | None


def combinations(cells: Sequence[Cell], metric: str | None = None) -> list[Combination]:
    """Return the combinations of a comparison, each with its study's settings.

    Args:
        cells: its cells.
        metric: by which trials are scored, as `find_metric` takes it; None: the data set's main metric.

    Raises:
        OptionError: the configuration selects epochs on the split that trials keep closed.
    """
    seed = max([SEED, *(cell.seed + 1 for cell in cells)])
    result = []
    for labels, members in group_by(cells, _combination_key).items():
        first = members[0]
        spec = _spec(first.config_as_read, seed, resolve_metric(metric, first.run.card))
        configs = tuple(cell.config_as_read for cell in members)
        result.append(Combination(dict(zip(KEY, labels, strict=True)), configs, spec))
    return result


def _combination_key(cell: Cell) -> tuple[str, ...]:
    return tuple(cell.labels[key] for key in KEY)


def _spec(config: RunConfig, seed: int, metric: str) -> StudySpec | None:
    """Return settings for trials of one seed, all scored on the same dev part; None if nothing is searched."""
    evaluation = config.eval
    if "dev_fraction" not in evaluation.model_fields_set:
        evaluation = evaluation.model_copy(update={"dev_fraction": DEV_FRACTION})
    base = config.model_copy(update={"seed": seed, "eval": evaluation})
    if strategy_ranges(base, resolve(base)).keys() <= {_NEGATIVES}:
        return None
    return StudySpec.of(base, build_space(base, fix=[_NEGATIVES]), metric=metric)


def compare_and_tune(planned: ComparisonPlan, rules: Rules, searches: Sequence[Combination], uri: str | None) -> Course:
    """Ask for a comparison's default cells, then for the trials, then for every strategy at its own best trial.

    Args:
        planned: the comparison.
        rules: how strategies are compared.
        searches: its combinations, from `combinations`.
        uri: MLflow store of the trials.
    """
    trials = int(planned.options.tuned or 0)
    runs = planned.folder.path.parent
    count = len(planned.cells)
    for combination in searches:
        if combination.spec is not None:
            count += trials * len(combination.spec.seeds)
    later_epochs = float(planned.cells[0].config.train.epochs * count)  # no other axis goes with equal tuning
    default = yield from compare_cells(planned, rules, later_epochs)
    words = default.words
    tunable = [combination for combination in searches if combination.spec is not None]
    studies = [_open_study(combination, planned.folder.path, trials, uri) for combination in tunable]
    search = TrialSearch(studies)
    if studies:
        yield SearchRound(planned.folder, later_epochs=later_epochs, words=words, search=search)
        words = ()
    results = []
    for combination in searches:
        if combination.spec is None:
            results.append(_result(combination, None, ""))
        else:
            number = tunable.index(combination)
            book, _ = studies[number]
            results.append(_result(combination, book, search.errors.get(number, "")))
    seeds = list(dict.fromkeys(cell.seed for cell in planned.cells))
    cells = _plan_best(results, seeds, runs)
    tuned_by: dict[str, Any] = {"trials": trials, "tunings": [asdict(tuning) for tuning, _ in results]}
    if planned.options.metric is not None:
        tuned_by["metric"] = planned.options.metric
    about = {"tuned": tuned_by}
    folder = replace(planned.folder, about={**planned.folder.about, **about})
    first = Round(folder, cells, default.outcomes, words=words)
    done = yield from look_by_look(first, rules.looks, open_strategies(planned.folder, rules))
    failures = [f"{tuning.labels['strategy']}: {tuning.error}" for tuning, _ in results if tuning.error]
    return replace(done, outcomes=[*default.outcomes, *done.outcomes], errors=failures)


def _plan_best(results: Sequence[tuple[Tuning, Sequence[RunConfig]]], seeds: Sequence[int], runs: Path) -> list[Cell]:
    """Plan the cells of every strategy at its own best trial; none of a strategy whose search failed."""
    configs = []
    columns = []
    for tuning, best in results:
        for seed in seeds:
            if best:
                configs.append(best[0].model_copy(update={"seed": seed}))
                columns.append(_columns(tuning))
    with progress("plan") as display:
        return plan_cells(configs, runs, display, DATA, columns)


def _columns(tuning: Tuning) -> dict[str, Value]:
    """Return the columns of a tuned strategy's cells: the labels of its default, and whether trials failed."""
    columns: dict[str, Value] = {**tuning.labels, "settings": TUNED}
    if tuning.failed:
        columns["failed_trials"] = f"{tuning.failed} of {tuning.trials}"
    return columns


def _open_study(combination: Combination, folder: Path, trials: int, uri: str | None) -> tuple[StudyStore, Job]:
    """Open a combination's study, which is one as of `negbench study`, named 'NAME-tune-STRATEGY-DIGEST'."""
    spec = combination.spec
    assert spec is not None
    name = f"{folder.name}-tune-{combination.configs[0].strategy.name}-{spec.digest}"
    job = Job(folder.with_name(check_name(name, "the study's name")), spec, None, trials, uri)
    return job.open(), job


def _result(combination: Combination, book: StudyStore | None, error: str) -> tuple[Tuning, list[RunConfig]]:
    """Return a combination's tuning, and one configuration per seed on the whole of train.

    These are the defaults if nothing was tuned, and none if the search failed.
    """
    if combination.spec is None or book is None:
        return Tuning(combination.labels), list(combination.configs)
    spec = combination.spec
    # An earlier budget may have been larger.
    completed = [trial for trial in completed_trials(book) if trial.number < book.trials]
    ended = [trial for trial in book.frozen()[: book.trials] if trial.state.is_finished()]
    tuning = Tuning(
        combination.labels,
        study=book.name,
        knobs=tuple(searched.key for searched in spec.space.ranges),
        trials=len(ended),
        failed=sum(trial.state == TrialState.FAIL for trial in ended),
        seconds=round(sum(trial.user_attrs.get("seconds", 0.0) for trial in ended), 3),
    )
    default = next((trial for trial in completed if trial.number == 0), None)
    if error or default is None:
        return replace(tuning, error=error or "its default was not computed"), []
    best = completed[0]
    configs = [spec.space.config(config, best.params, config.seed, closed=False) for config in combination.configs]
    same = resolve(configs[0]).identity() == resolve(combination.configs[0]).identity()
    tuned = {} if same else spec.space.plain(spec.config, best.params)
    return replace(tuning, default=default.value, best=best.value, found=tuned), configs
