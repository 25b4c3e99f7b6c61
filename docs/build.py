"""MkDocs hook: pages generated from docstrings, cards, recipes of systems, README and notebooks.

Nothing is written beside the site: pages are handed to MkDocs as they are made. `make docs` runs it.
"""

from __future__ import annotations

import base64
import importlib
import inspect
import json
import math
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import negbench
from negbench.analysis.words import label_of, percent, shorten_names, with_interval
from negbench.cli.explain import Option, fixed_numbers
from negbench.cli.list_ import explain_plugin
from negbench.contracts import BatchStrategy, ScoreView, Strategy
from negbench.plugins.registry import KINDS, registry
from negbench.report.charts import PALETTE, Chart, Panel, picture
from negbench.report.reproduce import reproduction_page
from negbench.settings.config import flatten
from negbench.settings.options import Options
from negbench.systems.system import System, systems

ROOT = Path(__file__).parents[1]
TITLES = {"strategies": "Strategies", "losses": "Losses", "backbones": "Backbones", "datasets": "Data sets"}
CONCEPTS = ("concepts", "regimes", "statistics", "field", "published")
API = ("commands", "options", "results", "mining", "strategies", "models", "data", "testing", "statistics")
COMPARE = ("ten_minutes", "emoji", "own_data", "reading_a_comparison", "share")
MINE = ("other_trainers", "own_encoder", "false_negatives", "judged_negatives")
PLUG_IN = ("own_strategy", "own_loss", "own_backbone")
RESULTS = ("findings", "findings_tables", "claims", "reproduce", "cards/index")
INTERNALS = ("architecture", "performance", "scaling", "reliability")
IMAGES, QUERY_TARGET = 300, 24  # of the picture of a pool


# --- what MkDocs calls -------------------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the navigation; show doctests as code."""
    config.markdown_extensions.append(DoctestExtension())  # type: ignore[arg-type]
    kinds = [{TITLES[kind]: [f"{kind}/index.md", *(f"{kind}/{name}.md" for name in names(kind))]} for kind in KINDS]
    kinds.append({"Systems": ["systems/index.md", *(f"systems/{name}.md" for name in systems())]})
    config.nav = [
        {"Start": ["index.md"]},
        {"Compare": [f"howto/{name}.md" for name in COMPARE]},
        {"Mine": [f"howto/{name}.md" for name in MINE]},
        {"Plug in": [*(f"howto/{name}.md" for name in PLUG_IN), "contributing.md"]},
        {"Results": [f"{name}.md" for name in RESULTS]},
        {
            "Reference": [
                *(f"{name}.md" for name in CONCEPTS),
                *kinds,
                {"API": ["api/index.md", *(f"api/{name}.md" for name in API)]},
            ]
        },
        {"Internals": [f"{name}.md" for name in INTERNALS]},
    ]
    return config


class Doctests(Preprocessor):
    """Fence examples, from `>>> ` to the next blank line: to Markdown they are quotes within quotes."""

    def run(self, lines: list[str]) -> list[str]:
        """Fence examples in the lines of a page or docstring."""
        example = re.compile(r"^( *)>>> .*(?:\n\1\S.*)*", re.MULTILINE)
        return example.sub(r"\1```pycon\n\g<0>\n\1```", "\n".join(lines)).split("\n")


class DoctestExtension(Extension):
    """Python-Markdown extension that runs before its own fences."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Register the preprocessor."""
        md.preprocessors.register(Doctests(md), "doctests", 50)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for path, text in pages():
        if (known := files.get_file_from_path(path)) is not None:
            files.remove(known)
        files.append(File.generated(config, path, content=text))
    for script in [file for file in files if file.src_uri.endswith(".py")]:
        files.remove(script)
    return files


def pages() -> Iterator[tuple[str, str]]:
    """Yield path below docs/ and Markdown of every generated page."""
    yield "contributing.md", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").replace("](docs/", "](")
    yield "api/options.md", options_page()
    yield "reproduce.md", reproduction_page()
    yield "cards/index.md", cards_page()
    for kind in KINDS:
        yield f"{kind}/index.md", index(kind)
        for name in names(kind):
            yield f"{kind}/{name}.md", plugin_page(kind, name)
    rows = [(f"[{s.name}]({s.name}.md)", f"{s.title}: {s.summary}", s.paper) for s in systems().values()]
    yield "systems/index.md", "# Systems\n\n" + table(("system", "what", "source"), rows)
    for name, system in systems().items():
        yield f"systems/{name}.md", system_page(system)
    for name in (*COMPARE, *MINE, *PLUG_IN):
        script = ROOT / "docs" / "howto" / f"{name}.py"
        if script.exists():
            yield f"howto/{name}.md", notebook(script.read_text(encoding="utf-8"), script.name)


def cards_page() -> str:
    """Return how to contribute result cards, and a table of all of them, a row for each strategy."""
    folder = ROOT / "docs" / "cards"
    rows = []
    for path in sorted(folder.glob("*.json")):
        card = json.loads(path.read_text(encoding="utf-8"))
        rows += [_card_row(path.stem, card["settings"], row) for row in card.get("rows", ())]
    head = ("card", "rule", "data", "negatives", "epochs", "temperature", "metric", "mean %", "points behind the best")
    return (folder / "index.md").read_text(encoding="utf-8") + "\n" + table(head, rows)


def _card_row(name: str, shared: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[str, ...]:
    settings, test = {**shared, **row["settings"]}, row["test"] or {}
    metric = test.get("metric") or next(iter(row["metrics"]))
    values = row["metrics"].get(metric) or [math.nan]
    gap = [math.nan if test.get(key) is None else test[key] for key in ("gap", "gap_low", "gap_high")]
    return (
        f"[{name}]({name}.json)",
        f"{row['strategy']} ({row['loss']})",
        next(iter(shorten_names([row["dataset"]]).values())),
        "-" if row["negatives"] is None else f"{row['negatives']:.3g}",
        str(settings.get("train.epochs", "-")),
        str(settings.get("loss.tau") or "the backbone's"),
        label_of(metric),
        percent(sum(values) / len(values)),
        with_interval(*gap),
    )


def names(kind: str) -> list[str]:
    """Return the names of a kind's built-in plug-ins."""
    return [name for name, plugin in registry.plugins(kind).items() if plugin.origin == "built-in"]


# --- plug-ins and systems ----------------------------------------------------------------------------------------


def index(kind: str) -> str:
    """List the plug-ins of one kind in a table."""
    built_in = [d for d in registry.describe(kind) if d.origin == "built-in"]
    rows = [(f"[{d.name}]({d.name}.md)", d.summary, d.paper or "none named") for d in built_in]
    return f"# {TITLES[kind]}\n\n" + table(("name", "what", "source"), rows)


def plugin_page(kind: str, name: str) -> str:
    """Describe one plug-in: docstrings of its file and class, options, pool or card."""
    described, section, options = explain_plugin(kind, name)
    cls = registry.get(kind, name)
    module = importlib.import_module(cls.__module__)
    source = Path(str(module.__file__)).relative_to(ROOT)
    parts = [f"# {name}", f"**{described.summary}**", f"Source: {described.paper or 'none named'}. File: `{source}`."]
    rest = (inspect.getdoc(module) or "").partition("\n")[2]
    parts += [prose(rest), "## What it computes" if section in ("strategy", "loss") else "## Class"]
    parts.append(prose(without_arguments(inspect.getdoc(cls) or "")))
    if isinstance(cls, type) and issubclass(cls, Strategy):
        parts.append(strategy_part(name, cls))
    parts.append("## Options")
    if options:
        parts.append(f"As `--set {section}.NAME=VALUE`, or `--{section} {name}:NAME=VALUE`.")
        rows = [(f"`{o.name}`", o.type, f"`{o.default}`", o.range or "-", o.text) for o in options]
        parts.append(table(("option", "type", "default", "tuned in", "what"), rows))
    else:
        parts.append("None.")
    parts += fixed_part(fixed_numbers(kind, name))
    if kind == "datasets" and hasattr(module, "card"):
        parts.append(card_part(module.card))
    return "\n\n".join(part for part in parts if part) + "\n"


def fixed_part(fixed: Mapping[str, Sequence[Option]]) -> list[str]:
    """Show the numbers that draw generated data and that no option changes; nothing without any."""
    if not fixed:
        return []
    parts = ["## Numbers that no option changes"]
    for about, numbers in fixed.items():
        rows = [(f"`{number.name}`", f"`{number.default}`", number.text) for number in numbers]
        parts += [f"{about}:", table(("number", "value", "what"), rows)]
    return parts


def strategy_part(name: str, cls: type[Strategy]) -> str:
    """Show the schedule of a strategy, and the picture of its pool if it has one on a score row."""
    facts = [("scope", cls.scope)]
    if issubclass(cls, BatchStrategy):
        facts += [("corrupts", ", ".join(cls.corrupts))]
    if cls.scope == "corpus":
        facts += [("pools defined", f"{cls.n_def} times, schedule `{cls.schedule}`")]
    if cls.reads:
        facts.append(("reads beside scores", ", ".join(cls.reads)))
    if cls.reads_truth:
        facts.append(("reads the ground truth", "yes: a ceiling, no method"))
    text = facts_list(facts)
    return text if cls.scope != "corpus" else f"{text}\n\n## Its pool on one score curve\n\n{pool_picture(name, cls)}"


def score_row(cls: type[Strategy]) -> ScoreView:
    """Return scores of one query and 300 images: three steps and a long tail, the target at place 25."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(IMAGES, generator=generator).sort(descending=True).values
    scores = 0.15 + 0.35 * noise
    scores[:12] += 0.25
    scores[12:60] += 0.15
    scores[60:140] += 0.07
    relevant = torch.zeros(1, IMAGES, dtype=torch.bool)
    relevant[0, [3, 9, 17, 30, 44, 90]] = True
    planes = {name: (scores + 0.1 * torch.randn(IMAGES, generator=generator))[None] for name in cls.reads}
    target = torch.tensor([QUERY_TARGET])
    truth = {"relevant": relevant, "kinds": (torch.arange(IMAGES) % 7 == 1)[None].to(torch.int8)}
    return ScoreView(scores[None], target, planes=planes, dim=128, **(truth if cls.reads_truth else {}))


def pool_picture(name: str, cls: type[Strategy]) -> str:
    """Draw the curve, the target and each image's weight as an SVG element in the page's colours."""
    view = score_row(cls)
    pool = cls().pool(view)[0].float()
    inside = pool > 0
    ranks = torch.arange(1, IMAGES + 1)

    def draw(axes: Any) -> None:
        scores = view.scores[0]
        axes.plot(ranks, scores, color=PALETTE[7], label="all images")
        axes.scatter(ranks[inside], scores[inside], 2 + 30 * pool[inside] / pool.max().clamp(min=1e-12),
                     color=PALETTE[1], label="pool", zorder=3)  # fmt: skip
        axes.plot([QUERY_TARGET + 1], scores[[QUERY_TARGET]], "D", color=PALETTE[2], label="target", zorder=4)
        if view.relevant is not None:
            known = view.relevant[0]
            axes.plot(ranks[known], scores[known], "x", color=PALETTE[3], label="relevant, not annotated", zorder=4)
        axes.set(xlabel="rank", ylabel="score")

    chart = Chart(f"pool-{name}", f"Pool of {name}", "", (Panel("", draw),))
    drawn = base64.b64encode(picture(chart, "svg", False)).decode("ascii")
    image = f'<img src="data:image/svg+xml;base64,{drawn}" alt="Pool of {name}">'
    weighted = "; larger dots are drawn more often" if len(pool[inside].unique()) > 1 else ""
    reads = f" {', '.join(cls.reads).capitalize()} scores are the row's own with noise." if cls.reads else ""
    text = f"One query against {IMAGES} images, default options: {int(inside.sum())} images are in the pool{weighted}."
    return f'<figure class="pool" markdown="0">{image}</figure>\n\n{text}{reads}'


def card_part(make: Any) -> str:
    """Show a benchmark's card with its published sizes, at default options."""
    hints, given = typing.get_type_hints(make), {}
    for parameter in inspect.signature(make).parameters.values():
        if parameter.default is inspect.Parameter.empty:
            given[parameter.name] = "val" if hints[parameter.name] is str else hints[parameter.name]()
    card = make(**given)
    facts = [("protocol", card.protocol), ("gallery", card.gallery), ("text", card.text_template),
             ("the reference is taken out", "yes" if card.exclude_reference else "no"),
             ("metrics", ", ".join(f"`{name}`" for name in card.metrics)), ("main metric", f"`{card.main}`"),
             ("licence", card.licence), ("data from", card.source)]  # fmt: skip
    sizes = [(split, group, f"{c.queries:,}", f"{c.gallery:,}") for split, groups in card.expected.items()
             for group, c in groups.items()]  # fmt: skip
    parts = ["## Card", facts_list(facts)]
    if sizes:
        parts.append(table(("split", "group", "queries", "gallery"), sizes))
    return "\n\n".join(parts)


def system_page(system: System) -> str:
    """Show what each factor of a published method sets."""
    layers = [
        (factor, layer, "") for factor, layer in (("negatives", system.negatives), ("objective", system.objective))
    ]
    layers += [(part.factor, part.layer, f"{part.what}, where it can be carried") for part in system.parts]
    rows = [(factor, f"`{key}`", f"`{value}`", what) for factor, layer, what in layers for key, value in flatten(layer)]
    strategy = system.negatives.get("strategy", {}).get("name")
    seen = f"Its negatives: [{strategy}](../strategies/{strategy}.md)." if strategy else ""
    head = f"# {system.name}\n\n**{system.title}: {system.summary}**\n\nSource: {system.paper}. {seen}\n\n"
    use = f"```sh\nnegbench run --system {system.name}\n```\n\n"
    return head + use + table(("factor", "key", "value", "what"), rows)


def options_page() -> str:
    """List the fields of every options model that `negbench` exports."""
    exported = (getattr(negbench, name) for name in dir(negbench))
    models = [cls for cls in exported if isinstance(cls, type) and issubclass(cls, Options)]
    parts = [
        "# Options in Python",
        "Fields of the options that functions take; flags and recipe keys have the same names.",
    ]
    for cls in models:
        rows = [(f"`{name}`", "required" if field.is_required() else f"`{field.default}`", field.description or "")
                for name, field in cls.model_fields.items()]  # fmt: skip
        parts += [f"## {cls.__name__}", table(("field", "default", "what"), rows)]
    return "\n\n".join(parts) + "\n"


# --- how-to ------------------------------------------------------------------------------------------------------


def notebook(text: str, name: str) -> str:
    """Turn a script in percent format (`# %%`, `# %% [markdown]`) into a page; editors open it as a notebook."""
    parts = []
    for cell in re.split(r"^# %%", text, flags=re.MULTILINE)[1:]:
        head, _, body = cell.partition("\n")
        if "[markdown]" in head:
            parts.append(re.sub(r"^# ?", "", body, flags=re.MULTILINE).strip())
        else:
            parts.append(f"```python\n{body.strip()}\n```")
    return "\n\n".join(parts) + f"\n\nThis page is `docs/howto/{name}`, which the tests run.\n"


# --- Markdown ----------------------------------------------------------------------------------------------------


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    lines = [list(head), *([str(value) for value in row] for row in rows)]
    cells = [[re.sub(r"\s+", " ", value).replace("|", "\\|") for value in line] for line in lines]
    cells.insert(1, ["---"] * len(cells[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def facts_list(facts: Iterable[tuple[str, str]]) -> str:
    """Return names with their descriptions, a line each."""
    return "\n".join(f"- {name}: {value}" for name, value in facts)


def without_arguments(text: str) -> str:
    """Return a docstring without its Args section, which the table of options holds."""
    return re.sub(r"^(Args|Attributes):\n(?:[ \t]+.*\n?|\n(?=[ \t]))*", "", text, flags=re.MULTILINE)


def prose(text: str) -> str:
    """Return a docstring as Markdown: `Paper:`, `Departures:`, ... begin paragraphs; indented blocks are literal."""
    markdown = []
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = block.split("\n")
        literal = [line.startswith(("    ", "|", "  |")) for line in lines]
        for number, line in enumerate(lines):
            if literal[number] and (number == 0 or not literal[number - 1]):
                markdown.append("\n```text")
            if not literal[number] and number and literal[number - 1]:
                markdown.append("```\n")
            ended = number == 0 or lines[number - 1].endswith((".", ":"))
            begins = re.match(r"([A-Z][\w ,`=\"-]{2,60}):(?= |$)", line) if ended else None
            markdown.append(f"\n**{begins[1]}:**{line[begins.end() :]}" if begins and not literal[number] else line)
        if literal[-1]:
            markdown.append("```")
        markdown.append("")
    return "\n".join(markdown).strip()
