"""Build the page of a comparison from its folder."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from negbench.analysis.answer import AnswerText, answer_of, divide_lines
from negbench.analysis.columns import READ
from negbench.analysis.findings import SHOWN_SETTINGS, Findings, read_findings
from negbench.analysis.frame import StoredRun, first_run, shared_value
from negbench.analysis.kinds import draws_answer
from negbench.analysis.leader import FOLDED, sort_alike
from negbench.analysis.regime_card import in_words, last_cards
from negbench.analysis.temperature import temperatures_of
from negbench.analysis.unchanged import files_made_here, forget
from negbench.analysis.words import capitalize, in_points, join_names, label_of, percent, seeds_text, shorten_names
from negbench.errors import NegbenchError
from negbench.grid.axis import AXES
from negbench.loop.step_plan import StepPlan
from negbench.machine.files import without_folders
from negbench.machine.received import read_text
from negbench.plugins.registry import registry
from negbench.report import figures
from negbench.report.along import budgets_chart, dial_charts, matrix_chart
from negbench.report.charts import Chart, Form
from negbench.report.claims import claims_page, is_of_claims
from negbench.report.figures import ChartData
from negbench.report.kinds_chart import kinds_chart
from negbench.report.page import Examples, Note, Page, PageSection, Part, Terms, chapters, write_page
from negbench.report.published import PublishedRow, rows_beside
from negbench.report.tables import Table, tables, with_temperature_start
from negbench.report.zone import zone_chart

GALLERIES = 2
HEADLINES = 3  # as many stand above what to do: of two losses, and of both
FROM_RANKS = "computed from the ranks of the folder, which nobody can prove; its own answer and tables were not used"
_OWN_DATA = (
    Note("`negbench init FOLDER` reads your files and writes a recipe that asks this question of them."),
    Note(
        "`negbench audit --recipe FOLDER/recipe.toml` shows what each strategy would draw from them, without training."
    ),
    Note(
        "`negbench mine --recipe FOLDER/recipe.toml --strategy NAME --out negatives.parquet` writes negatives for your "
        "own trainer, once a comparison has said that they help."
    ),
)
_SELECTED = {"last": "the last", "dev": "the best on a part of train", "val": "the best on the reported split itself"}


def write_report(runs: Path, name: str, galleries: int = GALLERIES, form: Form = "svg") -> list[Path]:
    """Write the report of a comparison, or of claims, into its folder.

    Args:
        runs: runs folder.
        name: of the comparison.
        galleries: number of best, of worst and of random queries shown; 0 leaves galleries out.
        form: of figures, beside SVG.

    Returns:
        Paths written, `report/index.html` first.

    Raises:
        RunError: no such comparison, or none of its runs is finished yet.
    """
    folder = runs / name
    if is_of_claims(folder):
        return write_page(folder / "report", claims_page(folder), form)
    findings = read_findings(runs, name)
    made_here = files_made_here(runs, name)
    answer = None
    if made_here:
        lines = [line for line in read_text(folder / "answer.md").splitlines() if line]
        answer = divide_lines(lines, findings)
    else:
        forget(folder)  # what it tells of the page is no longer so
    page = comparison_page(folder, findings, tables(findings), galleries, answer)
    if not made_here:
        page = replace(page, facts=(*page.facts, ("numbers", FROM_RANKS)))
    earlier_page = read_text(folder / "report/index.html") if "report/index.html" in made_here else ""
    return write_page(folder / "report", page, form, earlier_page)


def comparison_page(
    folder: Path,
    findings: Findings,
    page_tables: Sequence[Table],
    galleries: int = GALLERIES,
    answer: AnswerText | None = None,
) -> Page:
    """Build the page of the comparison in this folder; figures of runs show published settings, or each row's own.

    Args:
        folder: of the comparison.
        findings: its results.
        page_tables: its tables.
        galleries: as for `write_report`.
        answer: of these results; default: `answer_of(findings)`.
    """
    rows = [row for row in findings.verdicts if row.settings in SHOWN_SETTINGS]
    chart_data = figures.chart_data_of(sort_alike(findings.shown_groups, rows), rows) if findings.shown_groups else []
    retrieved, drawn, missing = _galleries(chart_data, galleries)
    why = draws_answer(sort_alike(findings.shown_groups, findings.main_verdicts))
    top, below = _split_answer(answer or answer_of(findings))
    return Page(
        title=f"negbench: {folder.name}",
        subtitle="Which negatives should the model be trained against? Everything that the table does not name is "
        "fixed: for a seed, all strategies share initial weights, batches and epochs.",
        header=header_of(sort_alike(findings.groups, findings.verdicts)),
        answer=(*top, *(line for line in below if line not in why)),
        facts=_facts(findings),
        lead=len(top),
        chapters=chapters(
            result=_result_sections(findings, page_tables, chart_data),
            why=[
                PageSection("draws", "Where the strategies draw", "", tuple(Note(line) for line in why)),
                *_charts(chart_data),
                _section("behaviour", "Behaviour, cost and regime", page_tables),
                PageSection("strategies", "What each strategy draws", "", _strategy_lines(findings.groups)),
            ],
            **{"your-data": [PageSection("own", "With pictures, captions and triplets of yours", "", _OWN_DATA)]},
            examples=[retrieved, drawn],
            details=_detail_sections(findings, page_tables, chart_data, missing),
        ),
    )


def _section(
    key: str, title: str, page_tables: Sequence[Table], before: Sequence[Part] = (), text: str = ""
) -> PageSection:
    """Build a section of these parts, followed by the tables that belong to it."""
    tables_of_section = [table for table in page_tables if table.section == key]
    return PageSection(key, title, text, (*before, *tables_of_section))


def _result_sections(
    findings: Findings, page_tables: Sequence[Table], chart_data: Sequence[ChartData]
) -> list[PageSection]:
    """Build the sections of the result: the charts of the comparison's own axes, then the leader table."""
    best: list[Chart] = []
    along_dials: list[Chart] = []
    matrix: list[Chart] = []
    if findings.point_axes and findings.verdicts:
        first, *along_dials = dial_charts(findings.point_axes, findings.main_verdicts)
        best = [first]
    if findings.systems and findings.verdicts:
        matrix = [matrix_chart(findings.main_verdicts)]
    budgets = budgets_chart(findings.groups, findings.main_verdicts)
    zone = zone_chart(findings.groups, findings.main_verdicts)
    return [
        _section("best", "Best strategy at each point", page_tables, best),
        _section("lines", "Along the dials", page_tables, along_dials),
        _section("matrix", "Effect of other negatives on each system", page_tables, matrix),
        _section("budgets", "After how many steps", page_tables, [budgets] if budgets else []),
        _section("zone", "Where in the ranking", page_tables, [zone] if zone else []),
        _section("leader", "Who is best", page_tables, _leader(findings, chart_data)),
    ]


def _detail_sections(
    findings: Findings, page_tables: Sequence[Table], chart_data: Sequence[ChartData], missing: Sequence[Note]
) -> list[PageSection]:
    """Build the folded sections: tests, published numbers, what is left out, and all runs."""
    text = ""
    if findings.verdicts:
        first = findings.verdicts[0]
        text = READ["tests"].format(level=first.alpha, margin=in_points(first.margin))
    notes = [Note(line) for line in findings.notes()]
    return [
        _section("tests", "Tests", page_tables, text=text),
        _published_section(chart_data),
        PageSection("notes", "What is left out", "", (*notes, *missing)),
        _cells(findings),
    ]


def _split_answer(answer: AnswerText) -> tuple[Sequence[str], Sequence[str]]:
    """Return the lines of the answer on the page's first screen, and those below.

    On top stand the headlines, then what to do. Above many headlines stands what to do alone: the forest, which shows
    them, would leave the first screen.
    """
    if answer.to_do and len(answer.headlines) > HEADLINES:
        return answer.to_do, [*answer.headlines, *answer.below]
    return [*answer.headlines, *answer.to_do], answer.below


# --- tables ------------------------------------------------------------------------------------------------------


def _leader(findings: Findings, chart_data: Sequence[ChartData]) -> list[Part]:
    """Return what stands above the leader table: what is missing, and the forest plots."""
    cells = findings.document["cells"]
    finished = {run.folder.run_id for run in findings.runs}
    unfinished = Counter(cell["strategy"] for cell in cells if cell["run"] not in finished)  # or its run is gone
    above: list[Part] = []
    if unfinished:
        text = f"{unfinished.total()} of {len(cells)} cells are not finished and missing from this page: "
        strategies = join_names([f"{count} of {name}" for name, count in unfinished.items()])
        above.append(Note(f"{text}{strategies}. All runs, at the end, says why.", missing=True))
    if not findings.verdicts:
        above.append(Note("No tests were computed for this comparison: `statistics.json` is absent.", missing=True))
    above += [Note(f"{capitalize(text)}.", missing=True) for text in findings.differing_computation()]
    for data in chart_data:
        above += figures.forests(data)
    return above


def _published_section(chart_data: Sequence[ChartData]) -> PageSection:
    """Build the section of published numbers on exactly the splits and protocols of this comparison."""
    tables: dict[str, Part] = {}
    for data in chart_data:
        run = first_run(data.groups[0])
        identity = run.manifest["dataset"]["val"].rpartition("-")[0]
        metrics = run.result["metrics"]
        rows = rows_beside(run.manifest, metrics)
        if rows:
            sentences = [f"{row.paper}: {row.citation}" for row in rows]
            sentences += [f"{row.source}: {row.about}" for row in rows if row.about]
            sentences += [f"the runs compared here, {remark}" for remark in run.manifest["dataset"]["remarks"]]
            text = "; ".join(dict.fromkeys(sentences)) + "."
            title = f"Published on {identity}, split {rows[0].split}"
            tables[identity] = Table(f"published-{identity}", title, _published_frame(rows, metrics), text)
    return PageSection("published", "Published numbers", READ["published"], tuple(tables.values()))


def _published_frame(rows: Sequence[PublishedRow], metrics: Iterable[str]) -> pd.DataFrame:
    """Build the table of printed rows, with the columns of those metrics that any of them has."""
    columns = []
    for metric in metrics:
        if any(metric in row.metrics for row in rows):
            columns.append(metric)
    lines = []
    for row in rows:
        line = {"source": row.source, "row": row.row, "backbone": row.backbone, "negatives": row.negatives}
        line |= {label_of(metric): percent(row.metrics.get(metric), 2) for metric in columns}
        line["note"] = f"{row.note} (secondary)" if row.secondary else row.note
        lines.append(line)
    return pd.DataFrame(lines)


def _cells(findings: Findings) -> PageSection:
    """Build the section of all runs, finished or not."""
    results = {run.folder.run_id: run.result for run in findings.runs}
    rows = []
    for cell in findings.document["cells"]:
        row = {name: cell[name] for name in AXES if cell.get(name)}
        row |= {"seed": cell["seed"], "run": cell["run"] or "-"}
        result = results.get(cell["run"])
        if result is None:
            row["main metric"] = "-"
            row["epoch"] = "-"
            row["remarks"] = without_folders(cell["error"] or "not finished", prose=True)
        else:
            row["main metric"] = percent(result["metrics"][result["main_metric"]], 2)
            row["epoch"] = f"{result['reported_epoch']} ({result['selected_on']})"
            row["remarks"] = "; ".join(result["remarks"]) or "-"
        rows.append(row)
    table = Table("cells", "Runs of this comparison", pd.DataFrame(rows), "", FOLDED)
    text = "Each folder holds the run's configuration, points, per-query ranks and weights."
    return PageSection("cells", "All runs", text, (with_temperature_start(table, findings.runs),))


def _strategy_lines(groups: Sequence[pd.DataFrame]) -> tuple[Terms, ...]:
    """Return a line on what each strategy draws, of a combined one its parts' lines; nothing without strategies."""
    lines = dict[str, str]()
    for group in groups:
        label = shared_value(group, "strategy")
        try:
            parts = registry.describe_parts("strategies", first_run(group).config.strategy.name)
        except NegbenchError:  # of a plug-in that is not given, or not installed here
            lines[label] = "a plug-in that was not given to this report."
            continue
        if len(parts) == 1:
            lines[label] = parts[0].summary
        else:
            lines[label] = " ".join(f"{part.name}: {part.summary}" for part in parts)
    return (Terms("strategy", lines),) if lines else ()


# --- figures -----------------------------------------------------------------------------------------------------


def _charts(chart_data: Sequence[ChartData]) -> list[PageSection]:
    """Build a section for each kind of chart, with one chart per data set and backbone."""
    kinds: list[tuple[str, str, Callable[[ChartData], Chart | None]]] = [
        ("false-negatives", "False negatives", figures.false_negatives),
        ("kinds", "Kinds of negatives", kinds_chart),
        ("training", "Training", figures.training),
        ("pool-sizes", "Pool sizes", figures.pool_sizes),
        ("score-curves", "Score curves", figures.score_curves),
    ]
    sections = []
    for key, title, draw in kinds:
        charts = []
        for data in chart_data:
            chart = draw(data)
            if chart is not None and data.where:
                chart = replace(chart, title=f"{chart.title} ({data.where})")
            if chart is not None:
                charts.append(chart)
        sections.append(PageSection(key, title, "", tuple(charts)))
    return sections


# --- galleries ---------------------------------------------------------------------------------------------------


def _galleries(chart_data: Sequence[ChartData], count: int) -> tuple[PageSection, PageSection, list[Note]]:
    """Build the sections of retrieved images and of drawn negatives, and list what cannot be shown."""
    val: list[Part] = []
    train: list[Part] = []
    missing = list[str]()
    if count and chart_data:
        from negbench.report.gallery import gallery  # the only part of a report that rebuilds models

        for data in chart_data:
            examples = gallery(data, count)
            missing += examples.missing
            for part, cards in ((val, examples.val), (train, examples.train)):
                if cards and data.where:
                    part.append(Note(data.where))
                if cards:
                    part.append(Examples(cards, examples.pictures))
    return (
        PageSection("gallery", "Retrieved", READ["retrieved"], tuple(val)),
        PageSection("negatives", "Negatives drawn", READ["drawn"], tuple(train)),
        [Note(text, missing=True) for text in dict.fromkeys(missing)],
    )


# --- facts -------------------------------------------------------------------------------------------------------


def header_of(groups: Sequence[pd.DataFrame]) -> tuple[str, ...]:
    """Return the data sets, backbones and losses, seeds, epochs, the last run's date, and negbench's version."""
    runs: list[StoredRun] = []
    for group in groups:
        runs += list(group["stored"])
    epochs = sorted({run.config.train.epochs or 0 for run in runs})
    ended = max((run.folder.path / "result.json").stat().st_mtime for run in runs)
    worlds = {run.manifest["dataset"].get("world") for run in runs} - {None, ""}
    short = shorten_names(shared_value(group, "dataset") for group in groups)  # without the world of each seed
    data = "; ".join(short.values())
    if len(worlds) > 1:
        data += " (generated, a world for each seed)"
    elif worlds:
        data += " (generated)"
    return (
        data,
        _few("backbone", [shared_value(group, "backbone") for group in groups]),
        _few("loss", [shared_value(group, "loss") for group in groups]),
        seeds_text(len(group) for group in groups),
        f"{' or '.join(str(count) for count in epochs)} epochs",
        f"{datetime.fromtimestamp(ended, tz=UTC):%Y-%m-%d}",
        f"negbench {runs[0].manifest['versions']['negbench']}",
    )


def _facts(findings: Findings) -> tuple[tuple[str, str], ...]:
    """Return what identifies the page's runs; each distinct value once."""
    configs = [run.config for run in findings.runs]
    manifests = [run.manifest for run in findings.runs]
    datasets = {_dataset(manifest["dataset"]): manifest["dataset"] for manifest in manifests}
    seeds = sorted({config.seed for config in configs})
    facts = {"runs": f"{len(configs)} finished; seeds {', '.join(str(seed) for seed in seeds)}"}
    facts |= _facts_of_data(datasets)
    facts["backbone"] = _backbones(manifests)
    facts["temperature"] = temperatures_of(findings.runs)
    facts["epochs"] = _once(config.train.epochs for config in configs)
    regimes = last_cards(findings.groups)
    facts["regime"] = _once(f"{name}: {in_words(cards)}" for name, cards in regimes.items())
    facts["steps"] = _once(plan for plan in findings.step_plans() if plan != str(StepPlan()))
    facts["reported epoch"] = _once(_SELECTED[config.eval.select] for config in configs)
    facts["code"] = _once(manifest["code"] for manifest in manifests)
    packages = [f"{package} {' and '.join(versions)}" for package, versions in findings.versions().items()]
    facts["versions"] = ", ".join(packages)
    partial = [name for name, dataset in datasets.items() if dataset["partial"]]
    if partial:
        facts["partial"] = f"images are missing: {_once(partial)} is not the published benchmark"
    remarks: list[str] = []
    for dataset in datasets.values():
        remarks += dataset["remarks"]
    facts["remarks"] = _once(remarks)
    return tuple((title, text) for title, text in facts.items() if text)


def _facts_of_data(datasets: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return what identifies the data sets (name -> a manifest's section), by title."""
    sections = list(datasets.values())
    names = "; ".join(datasets)
    worlds = dict.fromkeys(section.get("world") or "" for section in sections)
    if any(worlds):
        names += f"; worlds {', '.join(worlds)}"
    train = []
    for section in sections:
        train.append(f"{section['train_queries']:,} queries, corpus {_sizes(section['corpus'])}")
    return {
        "data set": names,
        "gallery": "; ".join(_sizes(section["gallery"]) for section in sections),
        "train": "; ".join(train),
        "source": _once(section["source"] for section in sections if section.get("source")),
        "licence": _once(section["licence"] for section in sections if section.get("licence")),
        "text": _once(section["text_template"] for section in sections),
    }


def _backbones(manifests: Sequence[Mapping[str, Any]]) -> str:
    """Name the backbones, each with the hashes of the initial weights that its runs had."""
    weights: dict[str, set[str]] = {}
    for manifest in manifests:
        backbone = manifest["backbone"]
        weights.setdefault(_backbone(backbone), set()).add(backbone["sha256"][:12])
    return "; ".join(f"{name}, initial weights {', '.join(sorted(hashes))}" for name, hashes in weights.items())


def _once(values: Iterable[object]) -> str:
    """'first; second': each distinct value once."""
    return "; ".join(dict.fromkeys(str(value) for value in values))


def _sizes(sizes: Mapping[str, int]) -> str:
    return " / ".join(f"{name} {size:,}" for name, size in sizes.items())


def _dataset(dataset: Mapping[str, Any]) -> str:
    """Return a data set's name: what is missing stands in it, its world does not."""
    if dataset["partial"] and "named" in dataset:
        return str(dataset["named"])
    return str(dataset.get("kind", dataset["val"]))


def _backbone(backbone: Mapping[str, Any]) -> str:
    revision = f" {backbone['revision']}" if backbone["revision"] else ""
    return f"{backbone['name']}, {backbone['weights']}{revision}, {backbone['parameters']:,} parameters"


def _few(axis: str, values: Sequence[str]) -> str:
    """'loss info-nce', 'loss bradley-terry or info-nce', or '3 values of loss'."""
    names = list(dict.fromkeys(values))
    return f"{axis} {' or '.join(names)}" if len(names) < 3 else f"{len(names)} values of {axis}"
