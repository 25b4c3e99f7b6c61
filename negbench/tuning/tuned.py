"""Equal tuning: every strategy of a comparison gets the same number of trials on a dev part.

The budget is equal in trials; the knobs and seconds, which differ, are reported. Negatives per query and step are not
searched, because the strategies of a table share their number. Musgrave et al. (A Metric Learning Reality Check, ECCV
2020) and Gulrajani and Lopez-Paz (In Search of Lost Domain Generalization, ICLR 2021) compare this way.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from optuna.trial import TrialState

from negbench.analysis.tuned_gain import Tuning
from negbench.display import log, stages
from negbench.grid.axes import Choice
from negbench.grid.cells import Cell, Outcome, plan
from negbench.grid.compare import ComparisonPlan
from negbench.grid.comparison import KEY
from negbench.grid.compute import Execution
from negbench.grid.rates import DEV_FRACTION
from negbench.grid.until import Until, computed_until
from negbench.loop.runs import SCENES
from negbench.machine.files import checked_name
from negbench.settings.config import RunConfig, resolved
from negbench.tuning.book import Book
from negbench.tuning.final import finished
from negbench.tuning.space import build_space, own_knobs
from negbench.tuning.spec import StudySpec
from negbench.tuning.trials import Job, note_lost_copies, open_study, serve

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


def combinations(cells: Sequence[Cell]) -> list[Combination]:
    """Return the combinations of a comparison, each with its study's settings.

    Args:
        cells: its cells.

    Raises:
        OptionError: the configuration selects epochs on the split that trials keep closed.
    """
    seed = max([SEED, *(cell.seed + 1 for cell in cells)])
    by_place: dict[tuple[str, ...], list[RunConfig]] = {}
    for cell in cells:
        by_place.setdefault(tuple(cell.labels[key] for key in KEY), []).append(cell.given)
    return [
        Combination(dict(zip(KEY, place, strict=True)), tuple(group), _spec(group[0], seed))
        for place, group in by_place.items()
    ]


def _spec(config: RunConfig, seed: int) -> StudySpec | None:
    """Return settings for trials of one seed, all scored on the same dev part; None if there is no knob."""
    chosen = config.eval
    if "dev_fraction" not in chosen.model_fields_set:
        chosen = chosen.model_copy(update={"dev_fraction": DEV_FRACTION})
    base = config.model_copy(update={"seed": seed, "eval": chosen})
    if not set(own_knobs(base, resolved(base))) - {_NEGATIVES}:
        return None
    return StudySpec.of(base, build_space(base, fix=[_NEGATIVES]))


def computed_tuned(
    planned: ComparisonPlan,
    searches: Sequence[Combination],
    before: Sequence[Outcome],
    until: Until,
    execution: Execution,
) -> tuple[list[Outcome], list[str]]:
    """Run the trials, then every strategy at its own best trial.

    Args:
        planned: the comparison.
        searches: its combinations, from `combinations`.
        before: outcomes of its default cells.
        until: when tuned cells stop getting seeds.
        execution: how trials and cells are computed.

    Returns:
        The outcomes of the tuned cells, and why searches failed.
    """
    trials, folder = int(planned.asked.tuned or 0), planned.folder
    runs = folder.path.parent
    results = tune(searches, runs, folder.path.name, trials, execution)
    tuned = [(tuning, configs[0]) for tuning, configs in results if configs]

    def more(seeds: Sequence[int]) -> list[Cell]:
        configs = [config.model_copy(update={"seed": seed}) for _, config in tuned for seed in seeds]
        choices = [_choice(tuning) for tuning, _ in tuned for _ in seeds]
        with stages("plan") as display:
            return plan(configs, runs, display, SCENES, choices)

    about = {"tuned": {"trials": trials, "tunings": [asdict(tuning) for tuning, _ in results]}}
    folder = replace(folder, about={**folder.about, **about})
    seeds = dict.fromkeys(cell.seed for cell in planned.cells)
    outcomes = computed_until(folder, more(list(seeds)), more, until, execution, before)
    folder.settle([*before, *outcomes])
    return outcomes, [f"{tuning.labels['strategy']}: {tuning.error}" for tuning, _ in results if tuning.error]


def _choice(tuning: Tuning) -> Choice:
    """Return what marks the cells of a tuned strategy."""
    failed = {"failed_trials": f"{tuning.failed} of {tuning.trials}"} if tuning.failed else {}
    return Choice(labels={**tuning.labels, "settings": "tuned"}, facts=failed)


def tune(
    searches: Sequence[Combination], runs: Path, name: str, trials: int, execution: Execution
) -> list[tuple[Tuning, list[RunConfig]]]:
    """Run every combination's trials, log when one ends, and return the configurations of the tuned runs.

    Args:
        searches: combinations from `combinations`.
        runs: runs folder; holds the studies as those of `negbench study`, named 'NAME-tune-STRATEGY-DIGEST'.
        name: name of the comparison.
        trials: number of trials per combination; the first one is the default.
        execution: how trials are computed; each study gets one worker, or several if there are more workers than
            studies.

    Returns:
        For each combination its tuning, and one configuration per seed, on the whole of train: the defaults if
        nothing was tuned, none if the search failed.
    """
    books = dict[int, Book]()
    jobs, places = list[Job](), list[int]()
    for place, each in enumerate(searches):
        if each.spec is not None:
            title = checked_name(f"{name}-tune-{each.configs[0].strategy.name}-{each.spec.digest}", "the study's name")
            books[place], job = open_study(runs, title, each.spec, trials=trials, tracking_uri=execution.tracking_uri)
            jobs.append(job)
            places.append(place)
    several = -(-execution.executor.workers // len(jobs)) if jobs else 0  # per study, so that no process is idle
    errors = dict[int, str]()
    for event in execution.executor.run(serve, jobs * several):
        place = places[event.index % len(jobs)]
        if event.kind == "note":
            log.info("%s, %s", searches[place].labels["strategy"], event.value)
        elif event.kind == "failed":
            errors[place] = str(event.value)
            log.info("%s: %s", searches[place].labels["strategy"], event.value)
    for book in books.values():
        note_lost_copies(book.folder)
    return [_outcome(each, books.get(place), errors.get(place, "")) for place, each in enumerate(searches)]


def _outcome(combination: Combination, book: Book | None, error: str) -> tuple[Tuning, list[RunConfig]]:
    if combination.spec is None or book is None:
        return Tuning(combination.labels), list(combination.configs)
    spec = combination.spec
    done = [trial for trial in finished(book) if trial.number < book.trials]  # an earlier budget may have been larger
    ended = [trial for trial in book.frozen()[: book.trials] if trial.state.is_finished()]
    tried = Tuning(
        combination.labels,
        study=book.name,
        knobs=tuple(knob.key for knob in spec.space.knobs),
        trials=len(ended),
        failed=sum(trial.state == TrialState.FAIL for trial in ended),
        seconds=round(sum(trial.user_attrs.get("seconds", 0.0) for trial in ended), 3),
    )
    default = next((trial for trial in done if trial.number == 0), None)
    if error or default is None:
        return replace(tried, error=error or "its default was not computed"), []
    best = done[0]
    configs = [spec.space.config(config, best.params, config.seed, closed=False) for config in combination.configs]
    same = resolved(configs[0]).identity() == resolved(combination.configs[0]).identity()
    tuned = {} if same else spec.space.plain(spec.config, best.params)
    return replace(tried, default=default.value, best=best.value, found=tuned), configs
