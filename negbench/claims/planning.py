"""Plans the runs that claims need, and judges the claims by the finished ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from negbench.claims.claim import Claim, settings
from negbench.claims.evidence import Evidence, lacking
from negbench.claims.judge import Finding, judge
from negbench.command_options import Claims
from negbench.config import ResolvedConfig, build_config
from negbench.data.scene import Scenes
from negbench.display import Display
from negbench.errors import NegbenchError, OptionError
from negbench.grid.cells import Cell, Outcome, plan
from negbench.grid.comparison import ComparisonFolder
from negbench.loop.runs import plan_run
from negbench.runfolder import RunFolder
from negbench.systems.system import PLAIN, system

Layer = Mapping[str, Any]

HELD = ("backbone", "dataset", "train", "eval", "compute", "plugins")  # the claims name all else themselves


@dataclass(frozen=True)
class ClaimsPlan:
    """What the claims need.

    Attributes:
        claims: that are judged.
        config: of one of the runs, for what they share: backbone and data set.
        seeds: of every setting.
        cells: seed by seed; the label `system` names the setting.
        lacking: number of a claim -> what the data lack for it; its settings have no cells.
        undefined: settings that cannot be on this backbone and data set -> why.
        remarks: what the systems are without here, a line each.
    """

    claims: tuple[Claim, ...]
    config: ResolvedConfig
    seeds: tuple[int, ...]
    cells: list[Cell] = field(default_factory=list)
    lacking: dict[int, str] = field(default_factory=dict)
    undefined: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def base_layers(asked: Claims) -> list[Layer]:
    """Layers of backbone, data set and training, which the claims leave open; the rest of a recipe is left out.

    Raises:
        OptionError: `--set` of anything else.
    """
    recipe, *flags = asked.layers()
    for layer in flags:
        others = [key for key in layer if key not in HELD]
        others += ["train.num_negatives"] if "num_negatives" in layer.get("train", {}) else []
        if others:
            raise OptionError(f"claims fix {others[0]} themselves; set {', '.join(HELD[:-1])} only")
    return [held_layer(recipe), *flags]


def held_layer(layer: Layer) -> dict[str, Any]:
    """What a layer sets of backbone, data set and training."""
    kept = {key: value for key, value in layer.items() if key in HELD}
    if "train" in kept:
        kept["train"] = {key: value for key, value in kept["train"].items() if key != "num_negatives"}
    return kept


def plan_claims(
    claims: Sequence[Claim], base: Sequence[Layer], seeds: Sequence[int], runs: Path, display: Display, scenes: Scenes
) -> ClaimsPlan:
    """Resolve every setting that the claims need.

    Args:
        claims: to be judged.
        base: of `base_layers`.
        seeds: of every setting.
        runs: runs folder.
        display: shows the progress.
        scenes: keeps what was loaded.

    Raises:
        NegbenchError: a backbone, data set or training that cannot run at all.
    """
    own, _ = system(PLAIN).layer(base, scenes)
    found = ClaimsPlan(tuple(claims), plan_run(build_config([own, *base]), scenes).config, tuple(seeds))
    for claim in claims:
        why = lacking(claim.needs, found.config, scenes)
        if why is not None:
            found.lacking[claim.number] = why
    wanted = [name for claim in claims if claim.number not in found.lacking for name in claim.settings]
    for name in dict.fromkeys(wanted):
        try:
            layers, remarks = layers_of(name, base, scenes)
            configs = [build_config([*layers, {"seed": seed}]) for seed in seeds]
            found.cells.extend(plan(configs, runs, display, scenes, [{"system": name}] * len(configs)))
        except NegbenchError as error:
            found.undefined[name] = str(error)
            continue
        found.remarks.extend(remark for remark in remarks if remark not in found.remarks)
    found.cells.sort(key=lambda cell: seeds.index(cell.seed))  # one seed of all, then the next
    return found


def layers_of(name: str, base: Sequence[Layer], scenes: Scenes) -> tuple[list[Layer], tuple[str, ...]]:
    """A setting's configuration layers over `base`, and what the system is without on its backbone and data set."""
    changes = {key: value for key, value in settings()[name].items() if key != "system"}
    own, remarks = system(str(settings()[name]["system"])).layer(base, scenes)
    return [own, *base, changes], remarks


def outcomes_in(folder: ComparisonFolder, cells: Sequence[Cell]) -> list[Outcome]:
    """The cells that are finished in a comparison, found by their hash.

    Raises:
        NegbenchError: there is no such comparison.
    """
    run_of = {row["hash"]: row["run"] for row in folder.cells() if row["run"] is not None}
    return [Outcome(cell, run_of[cell.hash], None, True) for cell in cells if cell.hash in run_of]


def findings(found: ClaimsPlan, outcomes: Sequence[Outcome], runs: Path, display: Display) -> list[Finding]:
    """Every claim's verdict from the cells that are finished.

    Args:
        found: what was planned.
        outcomes: of its cells; a cell without one has no run.
        runs: runs folder.
        display: shows when models are applied.
    """
    finished: dict[str, dict[int, RunFolder]] = {}
    failed: dict[str, str] = {}
    for outcome in outcomes:
        setting = outcome.cell.labels["system"]
        if outcome.run_id is None:
            failed[setting] = f"seed {outcome.cell.seed} failed: {outcome.error}"
        else:
            finished.setdefault(setting, {})[outcome.cell.seed] = RunFolder(runs / outcome.run_id)
    undefined = {**found.undefined, **failed}
    for setting in dict.fromkeys(cell.labels["system"] for cell in found.cells):
        missing = [str(seed) for seed in found.seeds if seed not in finished.get(setting, {})]
        if missing:
            undefined.setdefault(setting, f"no finished run of seed {', '.join(missing)}")
    evidence = Evidence(finished, display)
    return [
        judge(claim, evidence, found.seeds, lacking=found.lacking.get(claim.number), undefined=undefined)
        for claim in found.claims
    ]
