"""What a study ends with: tables on the terminal and in its folder, its page, its MLflow parent."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console

from negbench import files, statistics
from negbench.analysis.words import bracket, label_of, p_text, percent, plain, signed
from negbench.display import Grid
from negbench.errors import RunError, without_secrets
from negbench.report.charts import MARKERS, PALETTE, Chart, Panel
from negbench.report.page import Note, Page, PageSection, Table, write_page
from negbench.report.views import trials_shown
from negbench.statistics import Interval
from negbench.tracking import Summary, Tracker
from negbench.tuning.book import Book
from negbench.tuning.claimed import read_best_world
from negbench.tuning.final import Final, ListedPoint, finished, front, listed_points
from negbench.tuning.importance import importance
from negbench.tuning.spec import StudySpec, pruner_options, sampler_options

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

_BEST = 5  # trials on the terminal


# --- lines and tables --------------------------------------------------------------------------------------------


def header(book: Book, trials: int) -> list[str]:
    """What is searched, how, and where it is stored."""
    spec = book.spec
    size = f"{trials} trials of {len(spec.seeds)} seed{'s' if len(spec.seeds) > 1 else ''}"
    if spec.claims:
        lines = [f"{book.name}: worlds of {spec.base['dataset']['name']} for {_claims_text(spec)}, {size}"]
    else:
        lines = [
            f"{book.name}: {spec.base['strategy']['name']} on {spec.base['dataset']['name']}, {size}, scored on a dev "
            f"part of train ({100 * spec.base['eval']['dev_fraction']:.0f} %); val stays closed"
        ]
    lines += [f"  {knob.key} = {knob.text()}   (default {knob.default})" for knob in spec.space.knobs]
    if clipped := [knob.key for knob in spec.space.knobs if not spec.space.points and knob.start != knob.default]:
        lines.append(f"  trial 0 is not quite the default: the ranges of {', '.join(clipped)} leave it out")
    lines.append(f"  sampler {_called(spec.sampler, sampler_options(spec))}; pruner {pruner_text(spec)}")
    return lines


def _claims_text(spec: StudySpec) -> str:
    """'claims 1, 2, 3'."""
    return f"claim{'s' if len(spec.claims) > 1 else ''} {', '.join(map(str, spec.claims))}"


def pruner_text(spec: StudySpec) -> str:
    """The pruner with its options, or why nothing is pruned."""
    if spec.pruner == "none":
        return "none"
    if spec.space.points:
        return "none (every listed point is computed to its end)"
    if spec.claims:
        return "none (a claim needs all of its runs)"
    if spec.minimise is not None:
        return "none (two objectives)"
    return _called(spec.pruner, pruner_options(spec))


def _called(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value}' for key, value in arguments.items())})" if arguments else name


def trials_frame(book: Book) -> pd.DataFrame:
    """Every trial: number, state, objectives in percent, knobs, costs."""
    rows = []
    for trial in book.frozen():
        values = trial.values or []
        row: dict[str, Any] = {"trial": trial.number, "state": trial.state.name.lower()}
        row["support %" if book.spec.claims else "recall %"] = f"{100 * values[0]:.2f}" if values else "-"
        if book.spec.minimise is not None:
            row[book.spec.minimise] = f"{values[1]:.5g}" if len(values) > 1 else "-"
        row |= {knob.key: plain(trial.params.get(knob.key)) for knob in book.spec.space.knobs}
        if book.spec.claims:
            verdicts = list(trial.user_attrs.get("verdicts", {}).values())
            row |= {verdict: verdicts.count(verdict) for verdict in ("confirmed", "refuted", "undecided")}
        else:
            row["epochs"] = len(trial.intermediate_values) or "-"
        row["seconds"] = plain(trial.user_attrs.get("seconds"))
        row["why"] = trial.user_attrs.get("error", "")
        rows.append(row)
    return pd.DataFrame(rows)


def points_frame(rows: Sequence[ListedPoint]) -> pd.DataFrame:
    """A table of listed points: verdict and difference to the default in points, mean in percent with its interval."""
    found = []
    for row in rows:
        line: dict[str, Any] = {key.split(".")[-1]: plain(value) for key, value in row.point.items()}
        line |= _tested(row.test, "default") | {"recall %": percent(row.summary.mean, 2)}
        line |= {"95 % interval": bracket(*_ends(row.summary)), "seeds": row.summary.seeds}
        found.append(line)
    return pd.DataFrame(found)


def final_frame(final: Final) -> pd.DataFrame:
    """The best beside the default."""
    rows = []
    for name, found, test in (("default", final.default, None), ("best trial", final.best, final.test)):
        means = {f"{label_of(final.metric)} %": percent(found.mean, 2), "95 % interval": bracket(*_ends(found))}
        rows.append({"": name} | _tested(test, "-") | means)
    return pd.DataFrame(rows)


def _tested(test: statistics.Comparison | None, none: str) -> dict[str, str]:
    if test is None:
        return {"verdict": none, "difference": "-", "p": "-"}
    return {
        "verdict": test.verdict,
        "difference": signed(test.difference, *_ends(test)),
        "p": p_text(test.p_adjusted),
    }


def _ends(found: Any) -> tuple[float, float]:
    return found.interval.low, found.interval.high


def importance_frame(book: Book) -> pd.DataFrame:
    """Knobs, most important first."""
    rows = [{"knob": key, "importance %": f"{100 * share:.1f}"} for key, share in importance(book).items()]
    return pd.DataFrame(rows, columns=["knob", "importance %"])


# --- the page ----------------------------------------------------------------------------------------------------

_QUARTERS = ("best quarter", "second", "third", "last quarter")


def study_page(book: Book) -> Page:
    """The page of a study: what was found, history, importance, the plane of the band, parallel coordinates, trials.

    Raises:
        RunError: no trial is finished.
    """
    if not finished(book):
        raise RunError(f"study '{book.name}' has no finished trial yet")
    spec, counts = book.spec, book.counts()
    sections = [_found(book), _history(book), _knobs(book), _pareto(book)]
    what = spec.objective.capitalize()
    text = f"{what}; of a pruned trial, its last." if spec.prunes else f"{what}."
    shown = Table("trials", "All trials", trials_frame(book), text)
    sections.append(PageSection("trials", "Trials", "", (shown,), folded=True))
    ended = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return Page(
        title=f"negbench: study {book.name}",
        subtitle=_subtitle(spec),
        answer=_answer(book),
        facts=(("trials", ended), *_facts(spec), ("look", dashboard_command(book))),
        sections=tuple(section for section in sections if section is not None),
    )


def _subtitle(spec: StudySpec) -> str:
    if spec.claims:
        return (
            f"Worlds searched for one in which {_claims_text(spec)} hold. A trial is a world: the claims' runs in it, "
            "and how well they support the claims: for each the weakest of its tests (0.5 at the bound, near 1 where "
            "it is confirmed), the mean over the claims of a paper, of the paper that fares worst."
        )
    return (
        f"What the papers set by hand, searched for {spec.base['strategy']['name']}. Trials are scored on a "
        "dev part of train; the reported split was closed to them."
    )


def _answer(book: Book) -> tuple[str, ...]:
    """What tuning is worth: the best trial, and its difference to the default where that was measured."""
    done, final = finished(book), read_final(book.folder)
    best = ", ".join(f"{key.split('.')[-1]} = {plain(value)}" for key, value in done[0].params.items())
    value = percent(done[0].values[0])
    if book.spec.claims:
        found = read_best_world(book.folder)
        told = f"The best of {len(done)} worlds: {best} (support {value} %)."
        return (told,) if found is None else (told, found.line() + ".")
    told = f"The best of {len(done)} finished trials: {best} (recall {value} % on the dev part)."
    if final is None:
        return (told,)
    test = final.test
    return told, (
        f"On val with fresh seeds it has {label_of(final.metric)} {percent(final.best.mean)} %, "
        f"{signed(test.difference, *_ends(test))} points against the default: {test.verdict}."
    )


def _facts(spec: StudySpec) -> list[tuple[str, str]]:
    base = spec.base
    own = [
        ("strategy", str(base["strategy"]["name"])),
        ("loss, backbone, data set", ", ".join(str(base[key]["name"]) for key in ("loss", "backbone", "dataset"))),
        ("dev part", f"{100 * base['eval']['dev_fraction']:.0f} % of train"),
    ]
    world = [
        ("claims", ", ".join(map(str, spec.claims))),
        ("backbone, data set", ", ".join(str(base[key]["name"]) for key in ("backbone", "dataset"))),
    ]
    return [
        *(world if spec.claims else own),
        ("seeds of a trial", ", ".join(map(str, spec.seeds))),
        ("sampler", _called(spec.sampler, sampler_options(spec))),
        ("pruner", pruner_text(spec)),
    ]


def _found(book: Book) -> PageSection:
    """The best beside the default, or the table of listed points."""
    rows, final = listed_points(book) if book.spec.space.points else [], read_final(book.folder)
    parts: list[Table | Note] = []
    if book.spec.claims:
        return _found_world(book)
    if rows:
        text = "Means over queries of the dev part and seeds; p-values are corrected for the size of the table."
        parts.append(Table("points", "Listed points against the default", points_frame(rows), text))
    if final is not None:
        seeds = ", ".join(map(str, final.seeds))
        text = f"On val, trained on all of train, with seeds that no trial used ({seeds}); the runs are the comparison "
        parts.append(
            Table("final", "The best trial beside the default", final_frame(final), f"{text}`{final.comparison}`.")
        )
    elif not rows:
        default = finished(book)[0].number == 0
        told = "The default is the best trial." if default else "The best trial was not run on fresh seeds."
        parts.append(Note(told, missing=not default))
    return PageSection("found", "What was found", "", tuple(parts))


def _found_world(book: Book) -> PageSection:
    """The claims in the best world, on fresh seeds."""
    world = read_best_world(book.folder)
    if world is None:
        return PageSection(
            "found", "What was found", "", (Note("The best world was not tried on fresh seeds.", missing=True),)
        )
    rows = [{"#": row.number, "claim": row.words, "verdict": row.verdict, "why": row.reason} for row in world.rows]
    text = f"Trial {world.trial} with seeds that no trial used; the runs are the comparison `{world.comparison}`."
    return PageSection("found", "What was found", "", (Table("final", "The claims there", pd.DataFrame(rows), text),))


def _points(groups: Sequence[tuple[str, Sequence[Any]]], x: Callable[[Any], float], book: Book) -> Any:
    """Trials by x and recall, a colour and marker for each group; returns what draws them."""

    def draw(axes: Axes) -> None:
        for index, (name, trials) in enumerate(groups):
            if trials:
                heights = [100 * t.values[0] for t in trials]
                color, marker = PALETTE[index], MARKERS[index]
                axes.plot([x(t) for t in trials], heights, marker, color=color, label=name)
        axes.set(ylabel=f"{book.spec.objective} (%)")

    return draw


def _history(book: Book) -> PageSection:
    """Recall of each trial, the best so far, and the curves by epoch."""
    trials = [t for t in book.frozen() if t.values]
    states = [(name, [t for t in trials if t.state.name == state]) for state, name in _ENDED]
    done = states[0][1]
    points = _points(states, lambda t: t.number, book)

    def by_trial(axes: Axes) -> None:
        points(axes)
        best = np.maximum.accumulate([100 * t.values[0] for t in done])
        axes.plot([t.number for t in done], best, color=PALETTE[2], label="best so far")
        axes.set(xlabel="trial")

    def by_epoch(axes: Axes) -> None:
        for index, (name, mine) in enumerate(states):
            for trial in mine:
                steps = sorted(trial.intermediate_values.items())
                heights = [100 * value for _, value in steps]
                axes.plot([step + 1 for step, _ in steps], heights, color=PALETTE[index], linewidth=0.9, label=name)
        axes.set(xlabel="epoch (of all seeds)", ylabel=f"{book.spec.objective} (%)")

    panels = [Panel("By trial", by_trial)]
    if any(trial.intermediate_values for trial in trials):
        panels.append(Panel("By epoch", by_epoch))
    what = book.spec.objective.capitalize()
    text = f"{what}, n = {len(trials)} trials of {len(book.spec.seeds)} seeds."
    chart = Chart("history", what, text, tuple(panels), across=2)
    return PageSection("history", "History", "", (chart,))


_ENDED = (("COMPLETE", "finished"), ("PRUNED", "pruned"))


def _knobs(book: Book) -> PageSection | None:
    """Importance, the plane of two knobs, parallel coordinates; of finished trials."""
    shares, done = importance(book), finished(book)
    combinations = math.prod(len(knob.choices) for knob in book.spec.space.knobs)
    listed = bool(book.spec.space.points) and len(book.spec.space.points) < combinations  # knobs that move together
    if len(done) < len(_QUARTERS) or not shares or listed:
        return None
    quarters = [
        (name, [t for place, t in enumerate(done) if place * len(_QUARTERS) // len(done) == index])
        for index, name in enumerate(_QUARTERS)
    ]

    def bars(axes: Axes) -> None:
        names = list(shares)[::-1]
        axes.barh(names, [100 * shares[name] for name in names], color=PALETTE[0], height=0.6)
        axes.set(xlabel="share of the variance (%)")

    bar = Panel("", bars, 0.3 * len(shares) + 0.2)
    parts: list[Table | Chart] = [
        Chart("importance", "How much each knob matters", f"{_FANOVA} n = {len(done)} trials.", (bar,), across=1),
        Table("importance", "Importance", importance_frame(book)),
    ]
    if pair := plane(book, shares):
        parts.append(_plane(book, pair, quarters))
    parts.append(_parallel(book, quarters))
    return PageSection("knobs", "Knobs", "", tuple(parts))


_FANOVA = (
    "fANOVA over the finished trials: a forest fitted to a few dozen points ranks knobs, and measures nothing exactly. "
    "What two knobs explain only together is in neither share."
)


def _parallel(book: Book, quarters: Sequence[tuple[str, Sequence[Any]]]) -> Chart:
    """Each trial a line through the places of its knobs in their ranges to that of its recall among all."""
    keys = [knob.key for knob in book.spec.space.knobs]
    recalls = [trial.values[0] for _, trials in quarters for trial in trials]
    low, span = min(recalls), (max(recalls) - min(recalls)) or 1.0

    def draw(axes: Axes) -> None:
        for index in reversed(range(len(quarters))):  # the best are drawn last, on top
            name, trials = quarters[index]
            for trial in trials:
                heights = [_place(book, key, trial.params[key]) for key in keys] + [(trial.values[0] - low) / span]
                axes.plot(range(len(heights)), heights, color=PALETTE[index], linewidth=1, label=name)
        axes.set_xticks(range(len(keys) + 1), [*(key.split(".")[-1] for key in keys), book.spec.objective.split()[0]])
        axes.set(ylabel="place in the knob's range")

    what = book.spec.objective
    text = f"One line per finished trial (n = {len(recalls)}): lowest value 0, highest 1; colours by {what}."
    return Chart("parallel", "Parallel coordinates", text, (Panel("", draw),), across=1)


def plane(book: Book, shares: Mapping[str, float]) -> tuple[str, str] | None:
    """The two knobs of the plane: start and width of the band, else the two numbers that matter most."""
    space = book.spec.space
    ranges = [knob.key for knob in space.knobs if not knob.choices]
    if space.band is not None and {f"strategy.{space.band.start}", space.band.key} <= set(ranges):
        return f"strategy.{space.band.start}", space.band.key
    first = [key for key in shares if key in ranges]
    return (first[0], first[1]) if len(first) > 1 else None


def _plane(book: Book, pair: tuple[str, str], quarters: Sequence[tuple[str, Sequence[Any]]]) -> Chart:
    """The trials in the plane of two knobs, over recall between them."""
    done, (across, up) = [trial for _, trials in quarters for trial in trials], pair
    knobs = {knob.key: knob for knob in book.spec.space.knobs}

    def draw(axes: Axes) -> None:
        between(
            axes,
            np.array([[float(t.params[key]) for key in pair] for t in done]),
            np.array([[_place(book, key, t.params[key]) for key in pair] for t in done]),
            np.array([100 * t.values[0] for t in done]),
        )
        for index, (name, trials) in enumerate(quarters):
            places = [[float(t.params[key]) for t in trials] for key in pair]
            axes.plot(*places, MARKERS[index], color=PALETTE[index], label=name)
        axes.set(xlabel=across, ylabel=up)
        axes.set_xscale("log" if knobs[across].log else "linear")
        axes.set_yscale("log" if knobs[up].log else "linear")

    title = "Plane of the band" if book.spec.space.band else "Plane of the two knobs that matter most"
    text = (
        f"Trials by {across} and {up}, n = {len(done)}. Shaded: {book.spec.objective} between them, linear, whatever "
        "their other knobs; darker is higher."
    )
    return Chart("plane", title, text, (Panel("", draw, 2.6),), across=1)


def between(axes: Axes, at: Array, places: Array, values: Array) -> None:
    """Shade the plane between points `at` [n, 2] by their values [n], linear in each triangle of their `places` [n, 2]
    in the unit square; nothing where they lie on one line.
    """
    from matplotlib.tri import Triangulation

    try:
        triangles = Triangulation(*places.T).triangles
    except (RuntimeError, ValueError):  # fewer than three places, or all on one line
        return
    if np.ptp(values) > 0:
        axes.tricontourf(Triangulation(at[:, 0], at[:, 1], triangles), values, levels=8, cmap="Blues", alpha=0.7)


def _place(book: Book, key: str, value: Any) -> float:
    """A value's place in its knob's range, 0 to 1; choices lie at equal distances."""
    knob = next(knob for knob in book.spec.space.knobs if knob.key == key)
    if knob.choices:
        return float(knob.choices.index(value) / max(1, len(knob.choices) - 1))
    low, high = float(knob.low or 0), float(knob.high or 0)
    if knob.log:
        return math.log(value / low) / math.log(high / low)
    return float((value - low) / (high - low))


def _pareto(book: Book) -> PageSection | None:
    if book.spec.minimise is None:
        return None
    best = {t.number for t in front(book)}
    parts = [(name, [t for t in finished(book) if (t.number in best) == inside]) for name, inside in _SIDES]
    points = _points(parts, lambda t: t.values[1], book)

    def draw(axes: Axes) -> None:
        points(axes)
        axes.set(xlabel=str(book.spec.minimise))

    text = (
        f"Recall and {book.spec.minimise} of n = {len(finished(book))} finished trials: up and to the left is better."
    )
    chart = Chart("pareto", "Recall and its cost", text, (Panel("", draw),), across=1)
    return PageSection("pareto", "Pareto front", "Nobody on the front is beaten on both by any other trial.", (chart,))


_SIDES = (("front", True), ("beaten", False))


# --- the end -----------------------------------------------------------------------------------------------------


def finish(console: Console, runs: Path, book: Book, final: Final | None, tracking_uri: str | None) -> None:
    """Print what was found, write the study's page, and close its MLflow parent."""
    rows = listed_points(book) if book.spec.space.points else []
    done = finished(book)
    if final is not None:
        files.write_json(book.folder / "final.json", asdict(final))
    if rows:
        console.print(Grid(points_frame(rows), f"{book.name}: on the dev part, against the default"))
    else:
        _print_trials(console, book)
    if final is not None:
        seeds = f"seed{'s' if len(final.seeds) > 1 else ''} {', '.join(map(str, final.seeds))}"
        title = f"on val, fresh {seeds}; the runs are comparison {final.comparison}"
        console.print(Grid(final_frame(final), title))
    elif (world := read_best_world(book.folder)) is not None:
        console.print(world.line(), highlight=False, soft_wrap=True)
    elif done and done[0].number == 0 and not rows:
        console.print("the default is the best trial: nothing to compare it with", highlight=False)
    page, *written = write_page(book.folder / "report", study_page(book))
    _close_parent(runs, book, rows, final, tracking_uri, written)
    console.print(f"stored {book.folder}", highlight=False, soft_wrap=True)
    console.print(f"page   {page}", highlight=False, soft_wrap=True)
    console.print(f"look   {dashboard_command(book)}", highlight=False, soft_wrap=True)


def _print_trials(console: Console, book: Book) -> None:
    best = [trial.number for trial in (front(book) if book.spec.minimise else finished(book)[:_BEST])]
    frame = trials_frame(book).drop(columns=["state", "why"]).set_index("trial", drop=False).loc[best]
    what = "Pareto front" if book.spec.minimise else f"best {len(best)} trials"
    console.print(Grid(frame, f"{book.name}: {what}"))
    if len(shares := importance_frame(book)):
        console.print(Grid(shares, "how much each knob matters (fANOVA)"))


def read_final(folder: Path) -> Final | None:
    """final.json; None where there is none."""
    path = folder / "final.json"
    if not path.exists():
        return None
    value = files.read_json(path)

    def with_intervals(kind: Any, told: dict[str, Any]) -> Any:
        return kind(**{**told, **{key: Interval(**told[key]) for key in ("interval", "models")}})

    means = {name: with_intervals(statistics.Summary, value[name]) for name in ("default", "best")}
    test = with_intervals(statistics.Comparison, value["test"])
    return Final(**{**value, **means, "test": test, "seeds": tuple(value["seeds"])})


def dashboard_command(book: Book) -> str:
    """What opens the study in optuna's own pages."""
    return f"optuna-dashboard --host 127.0.0.1 {shlex.quote(without_secrets(book.url))}"


# --- MLflow ------------------------------------------------------------------------------------------------------


def _close_parent(
    runs: Path,
    book: Book,
    rows: Sequence[ListedPoint],
    final: Final | None,
    tracking_uri: str | None,
    written: Sequence[Path],
) -> None:
    tracker, note, spec = Tracker.open(runs, tracking_uri), book.folder / "mlflow.json", book.spec
    params: dict[str, Any] = {"sampler": _called(spec.sampler, sampler_options(spec)), "pruner": pruner_text(spec)}
    params |= {"seeds": ",".join(map(str, spec.seeds)), "minimise": spec.minimise or "", "sampler_seed": spec.seed}
    params |= {f"space/{knob.key}": knob.text() for knob in spec.space.knobs}
    metrics = {f"trials/{state}": float(count) for state, count in book.counts().items()}
    if done := finished(book):
        metrics |= {
            "best/support" if spec.claims else "best/recall": done[0].values[0],
            "best/trial": float(done[0].number),
        }
    metrics |= {f"importance/{key}": share for key, share in importance(book).items()}
    if final is not None:
        metrics |= {"final/default": final.default.mean, "final/best": final.best.mean}
        metrics |= {"final/difference": final.test.difference, "final/p_value": final.test.p_value}
    tracker.describe(note, params, metrics)
    objective, knobs = f"objective/{'support' if spec.claims else 'recall'}", [knob.key for knob in spec.space.knobs]
    seen = trials_shown(objective, knobs, "\n\n".join(_answer(book)))
    tracker.close_parent(note, book.name, [_summary(book, row) for row in rows], written, seen)


def _summary(book: Book, row: ListedPoint) -> Summary:
    name = ", ".join(f"{key.split('.')[-1]}={plain(value)}" for key, value in row.point.items())
    metrics = {"mean/recall": row.summary.mean, "seeds": float(row.summary.seeds)}
    metrics |= {"interval/low": row.summary.interval.low, "interval/high": row.summary.interval.high}
    if row.test is not None:
        metrics |= {"difference": row.test.difference, "p_adjusted": row.test.p_adjusted}
    tags = {"study": book.name, "strategy": str(book.spec.base["strategy"]["name"]), "trial": str(row.trial)}
    return Summary(f"mean: {name}", tags, dict(row.point), metrics)
