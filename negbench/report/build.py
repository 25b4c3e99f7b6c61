"""What the report of a comparison or of a run holds, put together from their folders."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from negbench.errors import NegbenchError
from negbench.files import read_json
from negbench.grid.comparison import KEY, ComparisonFolder, Group, groups_of
from negbench.report import figures
from negbench.report.charts import Chart
from negbench.report.curve import label_of
from negbench.report.figures import Runs
from negbench.report.gallery import gallery
from negbench.report.leader import bracket, leader_tables
from negbench.report.page import Cards, Choice, Note, Page, Part, Section, Table, write_page
from negbench.report.published import rows_beside
from negbench.report.study import study_page
from negbench.report.verdicts import Row
from negbench.runfolder import RunFolder, find_run
from negbench.study.book import open_book

GALLERIES = 2


def write_report(runs: Path, name: str, galleries: int = GALLERIES) -> list[Path]:
    """Write the report of a comparison, of a study, or of a single run, into its folder.

    Args:
        runs: runs folder.
        name: of a comparison, a study, or of a run as `find_run` takes it.
        galleries: best, worst and random queries shown, each so many; 0 leaves galleries and maps out.

    Returns:
        Paths written, `report/index.html` first.

    Raises:
        RunError: no such comparison, study or run, or none finished yet.
    """
    if (runs / name / "study.json").exists():
        folder, page = runs / name, study_page(open_book(runs, name))
    elif (runs / name / "comparison.json").exists() or not _is_run(runs, name):
        folder, page = runs / name, comparison_page(runs, name, galleries)
    else:
        found = find_run(runs, name)
        folder, page = found.path, run_page(found, galleries)
    return write_page(folder / "report", page)


def _is_run(runs: Path, name: str) -> bool:
    """Whether `name` can only mean a run; a name that is neither is answered with the known comparisons."""
    return (Path(name) / "config.json").exists() or any(name in p.parent.name for p in runs.glob("*/config.json"))


def comparison_page(runs: Path, name: str, galleries: int) -> Page:
    """The page of a comparison."""
    groups = groups_of(runs, name)
    cells = ComparisonFolder(runs / name).cells()
    sections = [_leader(groups, runs / name, cells), _statistics(runs / name), _audit(runs / name)]
    parts = figures.parts_of(groups)
    sections += [_published(parts), *_charts(parts), *_galleries(parts, galleries), _cells(groups, cells)]
    return Page(
        title=f"negbench: {name}",
        subtitle="Which negatives should the model be trained against? Everything but what the table names is held "
        "fixed: initial weights, batches and epochs are the same for every strategy of a seed.",
        facts=_facts(groups),
        sections=tuple(section for section in sections if section is not None),
    )


def run_page(folder: RunFolder, galleries: int) -> Page:
    """The page of one finished run."""
    result, manifest, config = folder.result, folder.manifest, folder.config
    labels = {"strategy": config.strategy.name, "loss": config.loss.name, "backbone": config.backbone.name}
    group = Group({**labels, "dataset": manifest["dataset"]["val"]}, (folder,))
    parts = figures.parts_of([group])
    sections = [_metrics(result, labels["strategy"]), _published(parts), *_charts(parts)]
    sections += [*_galleries(parts, galleries), _settings(folder)]
    return Page(
        title=f"negbench: {folder.run_id}",
        subtitle=f"One run of {labels['strategy']} under {labels['loss']}; one seed says nothing about the spread "
        "between seeds.",
        facts=_facts([group]),
        sections=tuple(section for section in sections if section is not None),
    )


# --- tables ------------------------------------------------------------------------------------------------------


def _leader(groups: Sequence[Group], folder: Path, cells: Sequence[Mapping[str, Any]]) -> Section:
    rows = _rows(folder)
    left = sum(1 for cell in cells if cell["run"] is None)
    parts: list[Part] = []
    if left:
        parts.append(Note(f"{left} of {len(cells)} cells are not finished and not in this page.", missing=True))
    if not rows:
        parts.append(Note("No tests were computed for this comparison: `statistics.json` is absent.", missing=True))
    tables = leader_tables(groups, rows)
    for number, (dataset, table) in enumerate(tables.items(), 1):
        key, where = (f"-{number}", f" on {dataset}") if len(tables) > 1 else ("", "")
        quality = "Percent: mean ± standard deviation over seeds, best first." + (_TESTED if rows else "")
        cost = "Means over seeds of one run; seconds depend on the machine and its load."
        parts += [
            Table(f"leader{key}", f"Quality{where}", table.quality, quality, _FOLDED),
            Table(f"behaviour{key}", f"What the strategies did{where}", table.behaviour, _BEHAVIOUR, _FOLDED),
            Table(f"cost{key}", f"Cost{where}", table.cost, cost, _FOLDED),
        ]
    return Section("leader", "Leader table", "", tuple(parts))


def _rows(folder: Path) -> list[Row]:
    """statistics.json; empty where there is none. Gaps, which JSON writes as null, are NaN again."""
    path = folder / "statistics.json"
    if not path.exists():
        return []
    try:
        plain: list[dict[str, Any]] = read_json(path)
        known = [{k: math.nan if v is None else v for k, v in row.items()} for row in plain]
        return [Row(**row) for row in known]  # type: ignore[arg-type]  # as `Row.plain` wrote them
    except (TypeError, AttributeError) as error:
        raise NegbenchError(f"{path} is of another version of negbench: run the comparison again ({error})") from error


_FOLDED = ("loss", "backbone", "dataset", "seeds")
_TESTED = (
    " Interval, difference to the baseline and verdict are of the main metric. Letters: a strategy's own, and behind "
    "`>` those that it beats."
)


_BEHAVIOUR = (
    "Means over refreshes (batch strategies: over epochs) and seeds. Band: where in the ranking the pool lies, 0 % is "
    "the highest score. FN: share known to be relevant, of the pool and of the draws. Hardness: the target's score "
    "minus the negative's; small or negative is hard."
)


def _statistics(folder: Path) -> Section | None:
    rows = _rows(folder)
    if not rows:
        return None
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.metric, []).append(row)
    tables: dict[str, Chart | Table] = {
        label_of(metric): Table(
            "tests-" + metric.replace("/", "-"), f"Tests on {label_of(metric)}", _tests(mine), "", _TEST_FOLDED
        )
        for metric, mine in found.items()
    }
    rule = f"level {rows[0].alpha:g}, margin {100 * rows[0].margin:g} points"
    text = (
        "Every strategy against the baseline of its data set, loss and backbone, in points. Intervals and p-values "
        "count both the queries and the seeds. `tied`: the interval lies inside the margin, so a difference would not "
        "matter; `underpowered`: neither a difference nor its absence is shown. Detectable: the true difference that "
        f"would be found with a power of 80 %. {rule[0].upper()}{rule[1:]}."
    )
    if len(tables) == 1:
        return Section("tests", "Tests", text, tuple(tables.values()))
    return Section("tests", "Tests", text, (Choice("tests", "Metric", tables),))


_TEST_FOLDED = ("loss", "backbone", "dataset", "baseline", "seeds")


def _tests(rows: Sequence[Row]) -> pd.DataFrame:
    """Rows of one metric as a table prints them: points, gaps as '-', the best mean first."""
    shown = []
    for row in sorted(rows, key=lambda r: (r.dataset, r.backbone, r.loss, -r.mean, r.strategy)):
        line: dict[str, object] = {key: getattr(row, key) for key in KEY}
        line |= {"mean": _digits(row.mean, 100, 2), "mean interval": bracket(row.low, row.high)}
        line |= {"baseline": row.baseline or "-", "difference": _digits(row.difference, 100, 2)}
        line |= {"difference interval": bracket(row.diff_low, row.diff_high) if row.compared else "-"}
        line |= {"p (Holm)": _digits(row.p_adjusted, 1, 4), "verdict": row.verdict, "letters": row.letters or "-"}
        line |= {"p": _digits(row.p_value, 1, 4), "effect size": _digits(row.effect_size, 1, 3)}
        line |= {"detectable": _digits(row.minimum_detectable, 100, 2), "seeds": str(row.seeds)}
        shown.append(line)
    return pd.DataFrame(shown)


def _digits(value: Any, factor: float, digits: int) -> str:
    if value is None or not np.isfinite(float(value)):
        return "-"
    return f"{factor * float(value):.{digits}f}"


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and not np.isfinite(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | dict):
        return json.dumps(value)
    return str(value)


def _audit(folder: Path) -> Section | None:
    """The audits of `negbench audit --out` into the comparison's folder, where there are any."""
    path = folder / "audit.json"
    if not path.exists():
        return None
    parts: list[Part] = []
    for number, audit in enumerate(read_json(path)["audits"], 1):
        judge = f"; judged by {audit['judge']}" if audit["judge"] else ""
        text = f"{audit['backbone']}, {audit['model']}, on {audit['dataset']}{judge}."
        parts.append(Table(f"audit-{number}", "What strategies would draw", _audited(audit["rows"]), text))
        parts += [Note(remark) for remark in audit["remarks"]]
    text = "Without any training: pools and draws of every strategy from one model's scores."
    return Section("audit", "False-negative audit", text, tuple(parts)) if parts else None


def _audited(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows of an audit as a table prints them; columns that hold nothing are left out, shares are in percent."""
    frame = pd.DataFrame(rows).dropna(axis="columns", how="all")
    shown = {}
    for column in frame.columns:
        share = "_rate" in column or column.startswith("band")
        name = column.replace("false_negative_rate", "FN").replace("_", " ") + (" %" if share else "")
        shown[name] = [_digits(v, 100, 2) if share else _cell(v) for v in frame[column]]
    return pd.DataFrame(shown)


def _published(parts: Sequence[Runs]) -> Section | None:
    """Published numbers on exactly the split and protocol of a data set here; None where there are none."""
    tables: dict[str, Part] = {}
    for runs in parts:
        run = runs.groups[0].runs[0]
        identity, metrics = run.manifest["dataset"]["val"].rpartition("-")[0], run.result["metrics"]
        rows = rows_beside(run.manifest, metrics)
        if rows:
            columns = [metric for metric in metrics if any(metric in row.metrics for row in rows)]
            frame = pd.DataFrame(
                [
                    {"source": row.source, "row": row.row, "backbone": row.backbone, "negatives": row.negatives}
                    | {label_of(metric): _digits(row.metrics.get(metric), 100, 2) for metric in columns}
                    | {"note": row.note + " (secondary)" * row.secondary}
                    for row in rows
                ]
            )
            about = [f"{row.source}: {row.about}" for row in rows if row.about]
            text = "; ".join(dict.fromkeys([*(f"{row.paper}: {row.citation}" for row in rows), *about])) + "."
            title = f"Published on {identity}, split {rows[0].split}"
            tables[identity] = Table(f"published-{identity}", title, frame, text)
    if not tables:
        return None
    text = (
        "Numbers of other people, as printed, in percent. They come of other code, backbones and schedules, and often "
        "of an epoch chosen on this very split, so they are no rows of the tables above."
    )
    return Section("published", "Published numbers", text, tuple(tables.values()))


def _metrics(result: Mapping[str, Any], strategy: str) -> Section:
    columns = {strategy: result["metrics"]}
    columns |= {name.replace("_", " "): values for name, values in result["baselines"].items()}
    frame = pd.DataFrame(
        [
            {"metric": label_of(metric)}
            | {name: _digits(values.get(metric), 100, 2) for name, values in columns.items()}
            for metric in result["metrics"]
        ]
    )
    behaviour = pd.DataFrame([{k: _cell(v) for k, v in row.items()} for row in result["behaviour_by_refresh"]])
    parts: list[Part] = [
        Table("metrics", "Metrics", frame, "Percent; beside the run the untrained model and either modality alone.")
    ]
    if len(behaviour):
        titled = behaviour.rename(columns=lambda c: c.replace("_", " "))
        parts.append(Table("behaviour", "What the strategy did at each refresh", titled))
    parts += [Note(remark, missing=True) for remark in result["remarks"]]
    return Section("metrics", "Metrics", "", tuple(parts))


def _cells(groups: Sequence[Group], cells: Sequence[Mapping[str, Any]]) -> Section:
    runs = {run.run_id: run for group in groups for run in group.runs}
    rows = []
    for cell in cells:
        run = runs.get(cell["run"]) if cell["run"] else None
        row = {name: cell[name] for name in KEY} | {"seed": cell["seed"], "run": cell["run"] or "-"}
        if run is None:
            rows.append({**row, "main metric": "-", "epoch": "-", "remarks": cell["error"] or "not finished"})
        else:
            value = run.result["metrics"][run.result["main_metric"]]
            remarks = "; ".join(run.result["remarks"]) or "-"
            epoch = f"{run.result['reported_epoch']} ({run.result['selected_on']})"
            rows.append({**row, "main metric": f"{100 * value:.2f}", "epoch": epoch, "remarks": remarks})
    return Section(
        "cells", "All runs", "Each folder holds the run's configuration, points, per-query ranks and weights.",
        (Table("cells", "Runs of this comparison", pd.DataFrame(rows), "", _FOLDED),),
    )  # fmt: skip


def _settings(folder: RunFolder) -> Section:
    frame = pd.DataFrame([{"key": k, "value": "-" if v is None else str(v)} for k, v in folder.config.flat().items()])
    return Section("settings", "Settings", "", (Table("settings", "Resolved configuration", frame),))


# --- figures -----------------------------------------------------------------------------------------------------


def _charts(parts: Sequence[Runs]) -> list[Section | None]:
    several = len(parts) > 1
    names = [f"{runs.dataset}, {runs.backbone}" if several else "" for runs in parts]

    def gathered(key: str, title: str, text: str, draw: Any) -> Section | None:
        """One chart per data set and backbone; a choice where there are several."""
        found = [(name, chart) for name, runs in zip(names, parts, strict=True) if (chart := draw(runs)) is not None]
        found = [(name, chart) for name, chart in found if chart.panels]
        if not found:
            return None
        if len(found) == 1:
            return Section(key, title, text, (found[0][1],))
        return Section(key, title, text, (Choice(key, "Data set and backbone", dict(found)),))

    return [
        gathered("training", "Training", "", figures.training),
        gathered("loss", "Loss", "", figures.loss_curve),
        gathered("pools", "Pools", "How many images a negative may be drawn from.", figures.pools),
        gathered("false-negatives", "False negatives", "", figures.false_negatives),
        _scores(parts, names),
        gathered("heat-map", "Strategies and losses", "", figures.heat_map),
        gathered("trade-offs", "Trade-offs", "", figures.trade_offs) if _compares(parts) else None,
    ]


def _compares(parts: Sequence[Runs]) -> bool:
    return any(len(runs.groups) > 1 for runs in parts)


def _scores(parts: Sequence[Runs], names: Sequence[str]) -> Section:
    charts: dict[str, Chart | Table] = {}
    for runs, name in zip(parts, names, strict=True):
        charts |= {f"{title} ({name})" if name else title: chart for title, chart in figures.score_curves(runs).items()}
    shown: tuple[Part, ...] = (Note("The runs kept no score curves.", missing=True),)
    if len(charts) == 1:
        shown = tuple(charts.values())
    elif charts:
        shown = (Choice("scores", "Strategy and loss", charts),)
    text = (
        "Train queries against their corpus, before training, just before the first refresh after the warm-up, and at "
        "the end. A strategy without a refresh of its own has no middle panel."
    )
    return Section("scores", "Score curves", text, shown)


# --- galleries ---------------------------------------------------------------------------------------------------


def _galleries(parts: Sequence[Runs], count: int) -> list[Section | None]:
    if count == 0:
        return []
    maps: dict[str, Chart | Table] = {}
    val: list[Part] = []
    train: list[Part] = []
    for runs in parts:
        found = gallery(runs, count)
        missing: list[Part] = [Note(text, missing=True) for text in found.missing]
        where = f"{runs.dataset}, {runs.backbone}"
        several: list[Part] = [Note(where)] if len(parts) > 1 else []
        val += [*several, *([] if found.val else missing), *([Cards(found.val)] if found.val else [])]
        train += [*several, *missing, *([Cards(found.train)] if found.train else [])]
        maps |= {f"{title} ({where})" if len(parts) > 1 else title: chart for title, chart in found.maps.items()}
    first = "The model of each strategy's first seed, under the first loss of the table."
    legend = "Solid outline: the target. Dashed outline: known to be relevant as well."
    return [
        Section("map", "Map of the queries", first, (Choice("map", "Strategy", maps),)) if maps else None,
        Section("gallery", "Retrieved", f"Queries of the reported split. {first} {legend}", tuple(val)),
        Section(
            "negatives",
            "Negatives drawn",
            "Train queries: what the trained model retrieves from the corpus, and negatives that the strategy drew, "
            f"with their scores when they were mined. {legend} A dashed negative is a false one.",
            tuple(train),
        ),
    ]


# --- facts -------------------------------------------------------------------------------------------------------


def _facts(groups: Sequence[Group]) -> tuple[tuple[str, str], ...]:
    """What identifies the page's runs; where they differ, each value once."""
    runs = [run for group in groups for run in group.runs]
    manifests = [run.manifest for run in runs]
    datasets = {m["dataset"]["val"]: m["dataset"] for m in manifests}
    backbones: dict[str, set[str]] = {}
    for manifest in manifests:
        backbones.setdefault(_backbone(manifest["backbone"]), set()).add(manifest["backbone"]["sha256"][:12])
    rows = [
        ("runs", f"{len(runs)} finished; seeds {', '.join(map(str, sorted({run.config.seed for run in runs})))}"),
        ("data set", _joined(datasets)),
        ("gallery", _joined(_sizes(d["gallery"]) for d in datasets.values())),
        ("train", _joined(f"{d['train_queries']:,} queries, corpus {_sizes(d['corpus'])}" for d in datasets.values())),
        ("text", _joined({d["text_template"]: 0 for d in datasets.values()})),
        ("backbone", _joined(f"{name}, initial weights {', '.join(sorted(h))}" for name, h in backbones.items())),
        ("epochs", _joined({run.config.train.epochs: 0 for run in runs})),
        ("reported epoch", _joined({_selection(run.config.eval.select): 0 for run in runs})),
        ("code", _joined({m["code"]: 0 for m in manifests})),
        ("versions", ", ".join(f"{name} {version}" for name, version in manifests[0]["versions"].items())),
    ]
    partial = [name for name, d in datasets.items() if d["partial"]]
    remarks = dict.fromkeys(text for d in datasets.values() for text in d["remarks"])
    if partial:
        rows.append(("partial", f"images are missing: {_joined(partial)} is not the published benchmark"))
    if remarks:
        rows.append(("remarks", "; ".join(remarks)))
    return tuple(rows)


def _sizes(sizes: Mapping[str, int]) -> str:
    return " / ".join(f"{name} {size:,}" for name, size in sizes.items())


def _backbone(backbone: Mapping[str, Any]) -> str:
    revision = f" {backbone['revision']}" if backbone["revision"] else ""
    return f"{backbone['name']}, {backbone['weights']}{revision}, {backbone['parameters']:,} parameters"


def _selection(select: str) -> str:
    return {
        "last": "the last",
        "dev": "the best on a part of train",
        "val": "the best on the reported split itself",
    }[select]


def _joined(values: Any) -> str:
    return "; ".join(str(value) for value in values)
