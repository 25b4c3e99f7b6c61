"""Build the page of a claims run from claims.json alone: every claim with its published and measured effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from negbench.claims.measure import POINTS
from negbench.loop.record import versions
from negbench.machine.files import read_json
from negbench.report.charts import GREY, PALETTE, Chart, Panel
from negbench.report.page import Page, PageSection, chapters
from negbench.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Test = Mapping[str, Any]  # of claims.json, with the number of its claim

_VERDICTS = {  # colour and marker
    "supported": (PALETTE[2], "^"), "refuted": (PALETTE[1], "v"), "depends on the length": (GREY, "D"),
    "no effect": (PALETTE[0], "s"), "undecided": (GREY, "o"), "premise absent": (GREY, "*"),
    "not testable": (GREY, "x"),
}  # fmt: skip


def is_of_claims(folder: Path) -> bool:
    """Whether the folder holds judged claims, with runs of their own."""
    names = ("comparison.json", "claims.json")
    return all((folder / name).exists() for name in names) and read_json(folder / names[0])["kind"] == "claims"


def claims_page(folder: Path) -> Page:
    """Build the page of the claims that were judged in this folder."""
    document = read_json(folder / "claims.json")
    claims = document["claims"]
    answer = "; ".join(
        f"{len(numbers)} {verdict} ({', '.join(numbers)})"
        for verdict in dict.fromkeys(c["verdict"] for v in _VERDICTS for c in claims if c["verdict"].startswith(v))
        if (numbers := [str(claim["id"]) for claim in claims if claim["verdict"] == verdict])
    )
    day = datetime.fromtimestamp((folder / "claims.json").stat().st_mtime, tz=UTC)
    rows = [{"#": claim["id"], "verdict": claim["verdict"], "claim": claim["words"],
             "published effect": claim["published"], "measured effect": "\n".join(claim["measured"]),
             "source": claim["source"]} for claim in claims]  # fmt: skip
    text = "Percent and points unless another unit is named; brackets: simultaneous 95 % intervals of a claim's tests. "
    text += "A claim is refuted if one of its tests is, and supported if all are; no effect: inside half a point."
    tests = [test | {"id": claim["id"]} for claim in claims for test in claim["tests"]]
    points = [test for test in tests if test["unit"] == POINTS.name and test["low"] is not None]
    forest = (_forest(points, len(tests) - len(points)),) * bool(points)
    sentences = ("claim", "published effect", "measured effect", "source")
    table = Table("claims", "Published and measured effects", pd.DataFrame(rows), text, wrapped=sentences)
    return Page(
        title=f"negbench: {folder.name}",
        subtitle="What the papers claim about negatives; each claim is tested on its own runs.",
        header=(document["about"], f"{len(claims)} claims", f"{day:%Y-%m-%d}", f"negbench {versions()['negbench']}"),
        answer=(f"Of {len(claims)} claims: {answer}.",),
        facts=(("data set, backbone, seeds", document["about"]),),
        chapters=chapters(result=[PageSection("claims", "Claims", "", (*forest, table))]),
    )  # fmt: skip


def _forest(tests: Sequence[Test], others: int) -> Chart:
    """Draw estimates and intervals of the tests in points, claim by claim."""

    def draw(axes: Axes) -> None:
        for y, test in enumerate(tests):
            color, marker = _VERDICTS[test["test_verdict"]]
            value, low, high = (test[key] * test["scale"] for key in ("value", "low", "high"))
            sign, bound = test["supports"].split()[:2]
            axes.plot([float(bound)], [y], sign, color=GREY, alpha=0.5)
            axes.plot([low, high], [y, y], color=color, linewidth=1.6)
            axes.plot([value], [y], marker, color=color, markersize=5.5)
            if y and test["id"] != tests[y - 1]["id"]:
                axes.axhline(y - 0.5, color=GREY, linewidth=0.5, linestyle=":")
        labels = [f"{test['id']}  {test['test'].partition(' (')[0]}" for test in tests]
        axes.set_yticks(range(len(tests)), labels)
        axes.set(ylim=(len(tests) - 0.4, -0.6), xlabel=POINTS.name)
        axes.axvline(0, color=GREY, linewidth=1)
        axes.grid(visible=False, axis="y")

    text = "Estimate and interval of each test, labelled by its claim's number. The grey arrow starts at the bound and "
    text += f"points in the direction that the claim predicts. n = {len(tests)} tests; the table has "
    text += f"{others} more, in other units or without a result."
    drawn = {test["test_verdict"] for test in tests}
    legend = tuple((marker, color, word) for word, (color, marker) in _VERDICTS.items() if word in drawn)
    panel = Panel("", draw, 0.2 * len(tests) + 0.3)
    return Chart("effects", "Measured effects in points", text, (panel,), 1, legend, full=True)
