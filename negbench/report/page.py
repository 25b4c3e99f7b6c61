"""A self-contained HTML page of chapters; its tables and figures are also written as files beside it.

A page opens with its answer. Its chapters are the result, the reasons, the reader's own data, examples, and details;
only details are folded. A section has a title, an explanation, and parts: tables, charts, notes, examples, and terms,
to which tables link. Other modules choose the contents
for a comparison, a run or a study.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from negbench.analysis.words import csv_text
from negbench.display import is_number
from negbench.machine.files import atomic_write, check_links, sweep, write_text
from negbench.report.charts import Chart, Form, picture
from negbench.report.examples import Example, Pictures
from negbench.report.tables import Table, sort_key

if TYPE_CHECKING:
    from jinja2 import Template

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Note:
    """A remark; `missing` marks content that the page lacks."""

    text: str
    missing: bool = False


@dataclass(frozen=True, eq=False)
class Examples:
    """Queries with images, and the pictures that they show."""

    examples: tuple[Example, ...]
    pictures: Pictures


@dataclass(frozen=True)
class Terms:
    """Names with a line on each; where a table names one in its column `column`, the name links to its line.

    Args:
        column: of tables, such as "strategy".
        lines: name -> its line.
    """

    column: str
    lines: Mapping[str, str]

    def anchor(self, name: str) -> str:
        """Return the id of a name's line: the column, and the name's position in the list."""
        return f"{self.column}-{list(self.lines).index(name) + 1}"


Part = Table | Chart | Note | Examples | Terms


@dataclass(frozen=True)
class PageSection:
    """A heading within a chapter."""

    key: str
    title: str
    text: str
    parts: tuple[Part, ...]


Chapters = Mapping[str, Sequence[PageSection]]


def chapters(**sections: Iterable[PageSection | None]) -> Chapters:
    """Return chapters by name, without empty sections and chapters."""
    chapters_by_name = {}
    for name, sections_of_chapter in sections.items():
        chapter = [section for section in sections_of_chapter if section is not None and section.parts]
        if chapter:
            chapters_by_name[name] = chapter
    return chapters_by_name


@dataclass(frozen=True)
class Page:
    """Contents of a page: the answer's first lines on top, its others below the first section, and the facts last.

    `header`: what was compared, when and with which version, on one line. `chapters`: "details" are folded. `lead`: how
    many lines of the answer stand on top.
    """

    title: str
    subtitle: str
    header: tuple[str, ...]
    answer: tuple[str, ...]
    chapters: Chapters
    facts: tuple[tuple[str, str], ...]
    lead: int = 1


def write_page(folder: Path, page: Page, form: Form = "svg", before: str = "") -> list[Path]:
    """Write `index.html`, `tables/*` and `figures/*`, as SVG and in this form; returns their paths, the page first.

    `before`: an earlier page of the same charts, whose pictures are not drawn again.

    Raises:
        NegbenchError: the folder cannot be written.
    """
    check_links(folder.parent)
    for part_folder in (folder, folder / "tables", folder / "figures"):
        sweep(part_folder)  # a killed process may have left something
    written = [folder / "index.html"]
    figures = dict(re.findall(r'id="figure-([^"]+)">(.*?)</figure>', before, re.DOTALL))
    for chart in _all(page, Chart):
        pictures = re.findall(r'"data:image/svg\+xml;base64,([^"]+)"', figures.get(chart.key, ""))
        if len(pictures) == 2:  # the narrow one, where there are two, stands first
            chart.pictures["svg", True] = base64.b64decode(pictures[0])
        if pictures:
            chart.pictures["svg", False] = base64.b64decode(pictures[-1])
    for table in _all(page, Table):
        written.append(write_text(folder / "tables" / f"{table.key}.csv", csv_text(table.frame)))
    forms: list[Form] = ["svg"] if form == "svg" else ["svg", form]
    for chart in _all(page, Chart):
        for ending in forms:
            path = folder / "figures" / f"{chart.key}.{ending}"
            with atomic_write(path, "wb") as file:
                file.write(picture(chart, ending, False))
            written.append(path)
    write_text(folder / "index.html", html(page))
    return written


@cache
def _template() -> Template:
    """Load the page's template, with the functions that it calls."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(sort_key=sort_key, is_number=is_number, drawn=_data_uri, wide=_wide)
    environment.globals["kind"] = _kind

    def markup(text: str) -> Markup:
        return Markup(_prose(text))

    environment.filters["prose"] = markup
    return environment.get_template("page.html.j2")


def html(page: Page) -> str:
    """Render the page with style, script and figures inline; its content policy forbids network access."""
    from markupsafe import Markup

    pictures: dict[str, tuple[str, int, int]] = {}
    for examples in _all(page, Examples):
        pictures |= examples.pictures.images
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return _template().render(
        page=page,
        pictures=pictures,
        terms={part.column: part for part in _all(page, Terms)},
        policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        style=Markup((_HERE / "style.css").read_text(encoding="utf-8")),
        script=Markup(script),
    )


def fragment(page: Page) -> str:
    """Render the answer, and the tables, figures and notes of the result, as HTML for a notebook's cell."""
    lines = [f"<p>{_prose(line)}</p>" for line in page.answer]
    for part in chain.from_iterable(section.parts for section in page.chapters.get("result", ())):
        if isinstance(part, Chart) and find_spec("matplotlib"):
            title = escape(part.title)
            text = escape(part.text)
            style = "max-width: 100%; height: auto"
            lines.append(f'<p>{title}</p><img style="{style}" alt="{title}. {text}" src="{_data_uri(part)}">')
        elif isinstance(part, Table):
            table = part.visible_frame.to_html(index=False, border=0)
            lines.append(f"<p>{_prose(part.title)}</p><div style='overflow-x: auto; white-space: nowrap'>{table}</div>")
        elif isinstance(part, Note):
            lines.append(f"<p>{_prose(part.text)}</p>")
    return f"<div>{''.join(lines)}</div>"


def _all(page: Page, kind: type[Any]) -> Iterator[Any]:
    """Yield every part of a kind."""
    for section in chain.from_iterable(page.chapters.values()):
        yield from (part for part in section.parts if isinstance(part, kind))


def _wide(chart: Chart, narrow: bool = False) -> int:
    """Return the width (pixels) at which the chart's letters are nearly as large as the page's."""
    (points,) = re.findall(rb'<svg [^>]*?width="([\d.]+)pt"', picture(chart, "svg", narrow))
    return round(1.5 * float(points))


def _data_uri(chart: Chart, narrow: bool = False) -> str:
    """Return the chart as a data URI."""
    return "data:image/svg+xml;base64," + base64.b64encode(picture(chart, "svg", narrow)).decode("ascii")


# kept on one line: a hyphenated name (a longer one would not fit a phone), a number and its interval
_WHOLE = re.compile(
    r"(?<![\w-])(?=[\w-]{1,30}(?![\w-]))\w+(?:-\w+)+"
    r"|[+-]?[\d.]+ \[[+-]?[\d.]+, [+-]?[\d.]+\]"
)
_JOINT = re.compile(r"(?:(?<=\w)|(?<=</span>))([+|:]|&gt;)(?=[\w<])")  # in combined names: in-batch+qure


def _kind(part: object) -> str:
    """Return the name of a part's class, as the template asks for it: 'table', 'chart'."""
    return type(part).__name__.lower()


def _prose(text: str) -> str:
    """Escape text for HTML: backticks become code, names and intervals stay on one line, combined names may break."""
    text = _WHOLE.sub(r'<span class="whole">\g<0></span>', escape(text))
    text = _JOINT.sub(r"\1<wbr>", text)
    text = re.sub(r"(?<=\d) %", "&nbsp;%", text)
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
