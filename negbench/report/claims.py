"""Build the page of a claims run from claims.json alone: every claim with its published and measured effect."""

from datetime import UTC, datetime
from pathlib import Path

from negbench.machine.files import read_json
from negbench.machine.versions import versions
from negbench.papers.table import STYLES, effects
from negbench.report.page import Page, PageSection, chapters
from negbench.report.tables import Table


def is_of_claims(folder: Path) -> bool:
    """Whether the folder holds judged claims, with runs of their own."""
    comparison = folder / "comparison.json"
    if not comparison.exists() or not (folder / "claims.json").exists():
        return False
    return bool(read_json(comparison)["kind"] == "claims")


def claims_page(folder: Path) -> Page:
    """Build the page of the claims that were judged in this folder."""
    document = read_json(folder / "claims.json")
    claims = document["claims"]
    numbers: dict[str, list[str]] = {}  # verdict -> its claims; verdicts in the order of `STYLES`
    for style in STYLES:
        for claim in claims:
            if claim["verdict"].startswith(style):
                numbers.setdefault(claim["verdict"], []).append(str(claim["id"]))
    answer = "; ".join(f"{len(ids)} {verdict} (no. {', '.join(ids)})" for verdict, ids in numbers.items())
    day = datetime.fromtimestamp((folder / "claims.json").stat().st_mtime, tz=UTC)
    text = "Percent and points unless another unit is named; brackets: simultaneous 95 % intervals of a claim's tests. "
    text += "A claim is refuted if one of its tests is, and supported if all are; no effect: inside half a point."
    sentences = ("claim", "published effect", "measured effect", "source")
    table = Table("claims", "Published and measured effects", effects(claims), text, wrapped=sentences)
    return Page(
        title=f"negbench: {folder.name}",
        subtitle="What the papers claim about negatives; each claim is tested on its own runs.",
        header=(document["about"], f"{len(claims)} claims", f"{day:%Y-%m-%d}", f"negbench {versions()['negbench']}"),
        answer=(f"Of {len(claims)} claims: {answer}.",),
        facts=(("runs", document["about"]),),
        chapters=chapters(result=[PageSection("claims", "Claims", "", (table,))]),
    )  # fmt: skip
