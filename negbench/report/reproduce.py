"""What it takes to reproduce a published table: its recipe, data, weights and steps, and the printed numbers."""

import json
import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from negbench.analysis.words import label_of, markdown
from negbench.datasets.submission import HasTestServer
from negbench.plugins.registry import registry
from negbench.report.published import PATH
from negbench.settings.layers import read_recipe, recipes
from negbench.systems.system import system

INTRODUCTION = PATH.with_name("reproduce.md").read_text(encoding="utf-8")


def reproduction(name: str) -> str:
    """Return, as Markdown, what a recipe needs and each table that it reproduces; "" if no paper has its backbone."""
    book = json.loads(PATH.read_text(encoding="utf-8"))
    tables = [table for table in book["tables"] if table.get("recipe") == name]
    method = book["quoted"].get(name)
    if method is not None:  # other papers print its numbers
        tables = [_only(table, method) for table in book["tables"] if _quotes(table, method, name)]
    recipe = read_recipe(recipes()[name])
    section = recipe.get("backbone", {})
    backbone = ", ".join(str(section[key]) for key in ("name", "model", "weights") if key in section)
    if backbone not in book["backbones"]:
        return ""
    verb = "compare" if "compare" in recipe else "run"
    dataset = recipe["dataset"]["name"]
    needs = book["backbones"][backbone]
    lines = [
        f"## {name}\n",
        f"- `negbench {verb} --recipe {name} --data-root DIR`",
        f"- data: {dataset}; weights: {backbone}",
        f"- memory: {_memory(needs, book['images'].get(dataset))}",
        f"- {_steps(recipe, book['train_queries'].get(dataset), needs.get('queries_per_second'))}",
    ]
    if not tables:
        lines.append("- no table: a figure without printed numbers, or a question of ours")
    for table in tables:
        lines += _table(table, dataset)
    return "\n".join([*lines, ""])


def _steps(recipe: Mapping[str, Any], queries: int | None, rate: float | None) -> str:
    """Say how long a recipe trains.

    Args:
        recipe: its sections.
        queries: number of the data set's training queries; None where it is not known.
        rate: queries per second of the backbone; None where it was not measured.
    """
    defaults = system(recipe["system"]).objective.get("train", {}) if "system" in recipe else {}
    train = {**defaults, **recipe["train"]}
    text = f"{train['epochs']} epochs in batches of {train['batch_size']}"
    if queries is None:
        return text
    batches = queries / train["batch_size"]
    steps = train["epochs"] * (math.floor(batches) if train.get("drop_last") else math.ceil(batches))
    text += f": {steps:,} steps over {queries:,} training queries"
    if "compare" in recipe:
        text += ", for each row and seed"
    if rate:
        text += f"; about {train['epochs'] * queries / rate / 3600:.1g} hours of training on one H200"
    return text


def reproduction_page() -> str:
    """Return the page of all recipes that reproduce a table."""
    pages = [reproduction(name) for name in recipes()]
    return "\n".join([INTRODUCTION, *(page for page in pages if "| method |" in page)])


def _quotes(table: Mapping[str, Any], method: str, recipe: str) -> bool:
    """Return whether a table of a paper has a row of this method, on the data of its recipe."""
    if "secondary" in table or table["dataset"] != read_recipe(recipes()[recipe])["dataset"]["name"]:
        return False
    return any(row["row"] == method for row in table["rows"])


def _only(table: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Return the table with this method's row alone."""
    return {**table, "rows": [row for row in table["rows"] if row["row"] == method]}


def _memory(backbone: Mapping[str, float], images: int | None) -> str:
    """Return the memory of weights, gradients and moments (float32), and the disk space of stored features."""
    whole = backbone["parameters"]
    trained = backbone["trained"]
    counts = f"{whole / 1e6:,.0f} M parameters, {trained / 1e6:,.0f} M trained"
    text = f"{4 * (whole + 3 * trained) / 1e9:.1f} GB for {counts}"
    if "stored_bytes" not in backbone or images is None:
        return text
    return f"{text}; disk: {images * backbone['stored_bytes'] / 1e9:.0f} GB of features for {images:,} images"


def _table(table: Mapping[str, Any], trained: str) -> list[str]:
    """Return a table's printed rows, and where its numbers stand beside one's own."""
    unit = "" if table["unit"] == "percent" else ", as printed"
    head = f"\n**{table['paper']} {table['table']}**, {table['dataset']} {table['split']}@{table['protocol']}{unit}"
    name = table["dataset"]
    if any("cirqrs" in column for column in table["columns"]):
        where = f"`negbench evaluate --ranks FILE --dataset {name} --metric cirqrs --scorer RUN` prints its columns."
    elif issubclass(registry.get("datasets", name), HasTestServer) and table["split"] != "val":
        where = f"`negbench evaluate RUN --dataset {name} --split {table['split']} --submission DIR` writes the file"
        where += " for the closed split's server; no result on val stands beside these rows."
    elif name != trained:
        where = f"`negbench evaluate RUN --dataset {name}` prints one's own numbers."
    elif table.get("beside", True):
        where = "The report of a run or comparison prints these rows beside one's own."
    else:
        where = "A run has another gallery, so no report prints these rows beside it."
    note = f" In print: {table['note']}." if "note" in table else ""
    rows = []
    for row in table["rows"]:
        values = ["-" if value is None else f"{value:g}" for value in row["values"]]
        rows.append([row["row"], *values])
    frame = pd.DataFrame(rows, columns=["method", *(label_of(column) for column in table["columns"])])
    return [f"{head}. {where}{note}\n", markdown(frame)]
