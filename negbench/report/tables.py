"""All tables of a comparison in one list: the terminal prints them, files store them, and the page shows them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal, get_args

import pandas as pd

from negbench.analysis.answer import warm_ups
from negbench.analysis.columns import ABOUT, COLUMNS, GAP, NEGATIVES, READ_LEADER, constant_columns, metric_column
from negbench.analysis.findings import Findings
from negbench.analysis.frame import StoredRun
from negbench.analysis.leader import FOLDED, leader_tables, measured_tables, sort_by_negatives, verdict_frame
from negbench.analysis.pivots import READ_SIGNS, matrix_frame, points_frame, settings_frame
from negbench.analysis.stored_trials import read_chosen_settings
from negbench.analysis.temperature import starts_of, temperatures_of
from negbench.analysis.verdict_record import TABLE_AXES, Verdict
from negbench.analysis.verdicts import beside_batch
from negbench.analysis.words import capitalize, csv_text, escape_markup, join_names, label_of, markdown, shorten_names
from negbench.display import NUMBER, is_number
from negbench.errors import UnknownNameError, printable
from negbench.grid.axis import AXES, short_names
from negbench.machine.grouping import group_by
from negbench.settings.config import LEARNED
from negbench.settings.options import Report, parse_epochs

_FORMS = {
    "table": ("csv", "md", "tex"),
    "settings": ("csv", "md"),
    "behaviour": ("csv", "md"),
}  # of files; the others are CSV alone
_TAU_LEARNED = r"\btau=learned\b"  # a learned temperature in a point or a setting


@dataclass(frozen=True, eq=False)
class Table:
    """A table of formatted text.

    Args:
        name: of its file, `NAME.csv`, which holds all tables of this name.
        title: what the cells hold, with units.
        frame: the table.
        text: how to read it, on the page.
        folded: columns that are shown beside the table instead where all rows have the same value.
        best: columns whose highest number is bold, among rows that differ in the strategy alone.
        wrapped: columns of sentences, which the page breaks into lines.
        where: distinguishes tables of one name, such as a data set's name.
        section: of the comparison's page.
        detail: whether the terminal prints it only with -v.
        numbers: unrounded numbers of all tables of this name, for the file; None: the file holds the text.
        caption: how its rows were trained, wherever it is shown.
        apart: columns whose values divide the rows into blocks.
    """

    name: str
    title: str
    frame: pd.DataFrame
    text: str = ""
    folded: tuple[str, ...] = ()
    best: tuple[str, ...] = ()
    wrapped: tuple[str, ...] = ()
    where: str = ""
    section: str = ""
    detail: bool = False
    numbers: pd.DataFrame | None = None
    caption: str = ""
    apart: tuple[str, ...] = (*TABLE_AXES, NEGATIVES.title)

    @property
    def key(self) -> str:
        """Identify it on the page and among the page's files."""
        if not self.where:
            return self.name
        return self.name + re.sub(r"[^\w.@-]+", "-", f"-{self.where}")

    @cached_property
    def blocks(self) -> pd.Series:
        """Number the rows' blocks in their order; rows of one have the same values of the columns `apart`."""
        keys = [name for name in self.apart if name in self.frame]
        if not keys:
            return pd.Series(0, self.frame.index)
        codes = {name: pd.factorize(self.frame[name])[0] for name in keys}
        return pd.DataFrame(codes, self.frame.index).groupby(keys).ngroup()

    @cached_property
    def bold(self) -> frozenset[tuple[int, str]]:
        """Rows and columns of the highest numbers of each block, where its numbers differ."""
        bold = set[tuple[int, str]]()
        for column in self.best:
            if column not in self.frame:
                continue
            keys = self.frame[column].map(sort_key)
            for _, block in keys[keys != ""].astype(float).groupby(self.blocks):
                if block.nunique() > 1:
                    bold |= {(int(row), column) for row in block.index[block == block.max()]}
        return frozenset(bold)

    @property
    def constant(self) -> dict[str, str]:
        """Folded columns with the same value in every row, and that value."""
        return constant_columns(self.frame, self.folded)

    @property
    def common(self) -> list[str]:
        """What all rows have in common: the folded columns, and how they were trained."""
        parts = [f"{name} {value}" for name, value in self.constant.items()]
        if self.caption:
            parts.append(self.caption)
        return parts

    @property
    def visible_frame(self) -> pd.DataFrame:
        """The frame without folded and empty columns, and without data sets that points tell; their names are short."""
        hidden = list(self.constant)
        for name in self.frame.columns:
            if self.frame[name].astype(str).isin(["-", ""]).all():
                hidden.append(name)
        if {"point", "dataset"} <= {*self.frame} and self.frame.groupby("point")["dataset"].nunique().max() == 1:
            hidden.append("dataset")
        frame = self.frame.drop(columns=hidden, errors="ignore")
        if "dataset" in frame:
            frame = frame.replace({"dataset": shorten_names(frame["dataset"])})
        return frame


def tables(findings: Findings) -> list[Table]:
    """Build all tables of a comparison, in the order of the terminal and of the page's sections."""
    all_tables = [*_axis_tables(findings), *_dataset_tables(findings)]
    all_tables += _test_tables([*findings.verdicts, *findings.gains])
    return [with_temperature_start(table, findings.runs) for table in all_tables]


def with_temperature_start(table: Table, runs: Sequence[StoredRun]) -> Table:
    """Say where a learned temperature starts, in a table with `tau=learned` or a column `tau`.

    If all of these runs start alike, each such cell says it; the caption says it in any case.
    """
    frame = table.frame
    is_learned = LEARNED in set(frame.get("tau", ()))
    for column in frame:
        is_learned = is_learned or bool(frame[column].astype(str).str.contains(_TAU_LEARNED).any())
    if not is_learned:
        return table
    starts = starts_of(runs)
    if len(starts) == 1:
        frame = frame.replace(_TAU_LEARNED, f"tau={starts[0]}", regex=True)
        if "tau" in frame:
            frame = frame.assign(tau=frame["tau"].replace(LEARNED, starts[0]))
    caption = table.caption
    text = temperatures_of(runs)
    if text not in caption:
        caption = f"{caption}, {text}" if caption else text
    return replace(table, frame=frame, caption=caption)


def _axis_tables(findings: Findings) -> Iterator[Table]:
    """Yield the tables that dials and systems add."""
    metric = label_of(findings.main_verdicts[0].metric) if findings.main_verdicts else ""
    caption = _shared_labels(findings.results)
    if findings.point_axes and findings.verdicts:
        title = f"{metric} at every point; in brackets the ranks that the pairwise tests allow"
        text = (
            "Strategies with overlapping ranks are not separated; intervals are simultaneous over all pairs of a point."
        )
        frame = points_frame(findings.point_axes, findings.main_verdicts, findings.groups)
        folded = tuple(short_names(findings.point_axes))
        yield Table("points", title, frame, text, folded, section="best", caption=caption)
    settings = [chosen for chosen in read_chosen_settings(findings.document) if chosen.setting.temperature is not None]
    if settings and findings.verdicts:
        title = f"{metric} of every strategy at the common rate and temperature of its table, and at its own"
        text = "In brackets the ranks that the pairwise tests allow; then the difference from the baseline in points"
        frame = settings_frame(sort_by_negatives(findings.main_verdicts), settings)
        yield Table("settings", f"{title}; {READ_SIGNS}", frame, f"{text}.", FOLDED, section="leader")
    if findings.systems and findings.verdicts:
        title = f"{metric}: points against each system with its own negatives; {READ_SIGNS}"
        text = "Intervals are simultaneous within a column."
        yield Table("matrix", title, matrix_frame(findings.main_verdicts), text, section="matrix", caption=caption)


def _shared_labels(results: pd.DataFrame) -> str:
    """Name the loss and the backbone, with their options, of a table without columns for them; '' for several."""
    parts = []
    for axis in ("loss", "backbone"):
        labels = results[axis].unique()
        if len(labels) == 1:
            parts.append(f"{axis} {labels[0]}")
    return ", ".join(parts)


def _dataset_tables(findings: Findings) -> Iterator[Table]:
    """Yield the leader table of each data set, and its tables on behaviour, regime, training and cost."""
    leaders = leader_tables(findings.groups, findings.verdicts)
    numbers = measured_tables(findings.groups)
    best = tuple(metric_column(name).title for name in findings.runs[0].result["metrics"])
    text = f"{READ_LEADER['text']}{warm_ups(findings.groups)}".rstrip()
    if findings.verdicts:
        text += READ_LEADER["tested"]
    if any(verdict.baseline_asked for verdict in findings.verdicts):
        text += READ_LEADER["against"]
    is_detail = bool(findings.point_axes or findings.systems)  # another table is the result
    for dataset, leader in leaders.items():
        where = dataset if len(leaders) > 1 else ""
        on = f" on {where}" if where else ""
        rows = [row for row in findings.main_verdicts if dataset in ("", row.dataset)]
        block_columns = TABLE_AXES if rows and beside_batch(rows) else (*TABLE_AXES, NEGATIVES.title)
        table = partial(Table, where=where, folded=FOLDED, apart=block_columns)
        title = f"Leader table{on}: {_units(rows)}"
        results = findings.results
        results_there = results[results["dataset"] == dataset]
        runs = (results if results_there.empty else results_there)["stored"]
        yield table(
            "table", title, leader["quality"], text,
            best=best, section="leader", detail=is_detail, caption=temperatures_of(runs),
        )  # fmt: skip
        for name, about in ABOUT.items():
            frame = leader[name]
            if len(frame):
                yield table(
                    name, about["title"] + on, frame, about["text"],
                    section="behaviour", detail=True, numbers=numbers[name],
                )  # fmt: skip


def _units(rows: Sequence[Verdict]) -> str:
    """Say what a leader table's cells hold."""
    text = "percent, mean ± standard deviation over seeds"
    if not rows:
        return text
    first = rows[0]
    baselines = {row.baseline for row in rows if row.baseline and row.baseline_asked}
    baseline = first.baseline if len(baselines) == 1 else "the baseline"
    if beside_batch(rows):
        text += f"; the difference of {label_of(first.metric)} from {baseline}"
    else:
        text += f"; {label_of(first.metric)} behind the best with as many negatives"
        if baselines:
            text += f", and its difference from {baseline},"
    level = f"{100 * (1 - first.alpha):g} %"
    return f"{text} in points, with simultaneous {level} intervals and a margin of {100 * first.margin:g}"


def _test_tables(rows: Sequence[Verdict]) -> Iterator[Table]:
    """Yield all test results, metric by metric."""
    numbers = pd.DataFrame([row.flat() for row in rows])
    folded = (*FOLDED, "baseline", "queries")
    for metric in dict.fromkeys(row.metric for row in rows):
        frame = verdict_frame([row for row in rows if row.metric == metric])
        yield Table(
            "statistics", f"Tests on {label_of(metric)}", frame, "", folded, where=metric, section="tests",
            detail=True, numbers=numbers,
        )  # fmt: skip


def files_of(all_tables: Sequence[Table]) -> dict[str, str]:
    """Return file name -> content of all tables: one file for the tables of one name, in each of its forms."""
    texts = {}
    for name, parts in group_by(all_tables, lambda table: table.name).items():
        for form in _FORMS.get(name, ("csv",)):
            texts[f"{name}.{form}"] = _file_text(parts, form)
    return texts


def _file_text(parts: Sequence[Table], form: str) -> str:
    """Return the content of the file of tables of one name, in one form."""
    if form == "csv":
        numbers = parts[0].numbers
        return csv_text(pd.concat([part.frame for part in parts]) if numbers is None else numbers)
    if form == "md":
        texts = []
        for part in parts:
            head = f"### {part.where}\n\n" if part.where else ""
            texts.append(head + markdown(part.frame))
        return "\n".join(texts)
    return "\n".join(paper_table(part, "latex") for part in parts)


def sort_key(value: object) -> str:
    """Return a cell's sort key: its leading number (without '<'), '' for a gap ('-'), else its text."""
    text = str(value).strip()
    if text in ("-", "", "nan"):
        return ""
    match = NUMBER.match(text)
    return match.group(1).replace(",", "") if match else text.lower()


# --- for papers --------------------------------------------------------------------------------------------------

_LATEX = str.maketrans(
    {c: "\\" + c for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
)


Paper = Literal["latex", "markdown"]

# a difference -> the words of its test, which say if an earlier look decided it
_TESTS = {GAP.title: COLUMNS["standing"].title, COLUMNS["difference"].title: COLUMNS["verdict"].title}
_LOOK = re.compile(r" \(after \d+ seeds\)")


def paper_table(table: Table, form: Paper, columns: Sequence[str] = (), epochs: Sequence[int] = ()) -> str:
    """Write a leader table for a paper: what differs between rows, and these columns, in blocks; the best is bold.

    Args:
        table: a leader table.
        form: LaTeX needs booktabs.
        columns: besides the axes that differ [default: the tested metric and what is behind the best].
        epochs: training budgets to keep [default: all].

    Raises:
        UnknownNameError: a column or a budget that the table lacks.
    """
    _check_names("--columns", columns, list(table.frame.columns))
    _check_names("--epochs", epochs, list(table.frame.get("epochs", [])))
    frame = table.frame
    if epochs:
        frame = frame[frame["epochs"].isin([str(budget) for budget in epochs])]
    frame = frame.loc[table.blocks[frame.index].sort_values(kind="stable").index]
    differing = [name for name in (*AXES, NEGATIVES.title) if name in frame and frame[name].nunique() > 1]
    labels = [*(name for name in differing if name != "strategy"), "strategy"]
    metric = next((name for name in frame if name in table.best), "strategy")
    difference = GAP.title if GAP.title in frame else "difference"
    values = [name for name in columns or (metric, difference) if name in frame and name not in labels]
    texts = _paper_texts(table, frame, [*labels, *values], values, form)
    caption = _paper_caption(table, frame, values)
    if form == "markdown":
        return f"{escape_markup(caption)}\n\n{markdown(texts)}"
    sides = "".join("r" if is_number(frame[name].tolist()) else "l" for name in texts)
    latex = texts.rename(columns=_latex).to_latex(
        index=False, escape=False, column_format=sides, caption=_latex(caption), label=f"tab:{table.key}"
    )
    lines = _rule_between_blocks(latex.splitlines(), table.blocks[frame.index].tolist())
    lines.insert(1, r"\centering\small\setlength{\tabcolsep}{4pt}")  # six columns fit a page
    return "\n".join(lines) + "\n"


def _check_names(flag: str, names: Sequence[object], valid_names: Sequence[str]) -> None:
    """Raise UnknownNameError for the first of the names that is not a valid one."""
    for name in names:
        if str(name) not in valid_names:
            raise UnknownNameError(flag, str(name), list(dict.fromkeys(valid_names)))


def _paper_texts(
    table: Table, frame: pd.DataFrame, names: Sequence[str], values: Sequence[str], form: Paper
) -> pd.DataFrame:
    """Return the cells of these columns as they are written: each value that the table shows in bold is bold."""
    cells = frame[list(names)].copy()
    for name, words in _TESTS.items():
        if name in values and words in frame and words not in values:
            pairs = zip(frame[name], frame[words], strict=True)
            cells[name] = [_with_look(str(difference), str(verdict)) for difference, verdict in pairs]
    if form == "latex":
        bold = r"\textbf{%s}"
        texts = cells.map(_latex)
    else:
        bold = "**%s**"
        texts = cells.map(str)
    for row, name in table.bold:
        if row in texts.index and name in values:
            texts.loc[row, name] = bold % texts.loc[row, name]
    return texts


def _paper_caption(table: Table, frame: pd.DataFrame, values: Sequence[str]) -> str:
    """Say what the values are, what is bold, and what all rows share."""
    _, _, units = table.title.partition(": ")
    parts = units.split("; ")
    about = [part for part in parts if GAP.title in values or GAP.title not in part]
    bold = {column for row, column in table.bold if row in frame.index}
    highest = [name for name in values if name in bold]
    if highest:
        among = " between two lines" if table.blocks[frame.index].nunique() > 1 else ""
        about.append(f"bold: the highest {join_names(highest)}{among}")
    same = replace(table, frame=frame, folded=FOLDED).common
    if same:
        about.append(f"all rows: {', '.join(same)}")
    return f"{capitalize('; '.join(about))}."


def _rule_between_blocks(lines: Sequence[str], blocks: Sequence[object]) -> list[str]:
    """Return the lines of a LaTeX table with a rule between rows of two blocks (one for each row)."""
    first = lines.index(r"\midrule") + 1
    end = first + len(blocks)
    rows: list[str] = []
    before = blocks[0] if blocks else None
    for line, block in zip(lines[first:end], blocks, strict=True):
        if block != before:
            rows.append(r"\midrule")
        rows.append(line)
        before = block
    return [*lines[:first], *rows, *lines[end:]]


def _with_look(difference: str, words: str) -> str:
    """Return a difference with what the words of its test say of the look that decided it: ' (after 3 seeds)'."""
    look = _LOOK.search(words)
    return difference if look is None else difference + look.group()


def leader_text(findings: Findings, options: Report) -> str:
    """Write the leader tables of a comparison as LaTeX or Markdown, with the columns and budgets asked for."""
    forms = [form for form in get_args(Paper) if getattr(options, form)]
    columns = [name.strip() for name in options.columns.split(",") if name.strip()]
    leaders = [table for table in tables(findings) if table.name == "table"]
    epochs = parse_epochs(options.epochs)
    texts = []
    for form in forms:
        texts += [paper_table(leader, form, columns, epochs) for leader in leaders]
    return "\n".join(texts)


def _latex(text: object) -> str:
    return printable(str(text)).translate(_LATEX)
