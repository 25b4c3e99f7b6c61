"""Plans the runs that claims need, computes those that are missing, and judges the claims by the finished ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from negbench.claims.claim import Claim, chosen, settings
from negbench.claims.evidence import Evidence, lacking
from negbench.claims.judge import Finding, judge
from negbench.claims.table import write_findings
from negbench.command_options import Claims
from negbench.config import ResolvedConfig, build_config
from negbench.data.scene import Scenes
from negbench.display import Display, notes, stages
from negbench.errors import NegbenchError, OptionError
from negbench.files import runs_dir
from negbench.grid.cells import SCENES, Cell, Outcome, plan
from negbench.grid.comparison import ComparisonFolder, check_place, default_name, groups_of
from negbench.grid.compute import computed, executor_of
from negbench.layers import layers_of, merged, set_layer
from negbench.loop.runs import plan_run
from negbench.options import parse_seeds
from negbench.runfolder import RunFolder
from negbench.systems.system import PLAIN, system

Layer = Mapping[str, Any]

HELD = ("backbone", "dataset", "train", "eval", "compute", "plugins")  # the claims fix all else


@dataclass(frozen=True)
class ClaimsPlan:
    """What the claims need.

    Attributes:
        claims: that are judged.
        config: of one of the runs, for what they share: backbone and data set.
        seeds: of every setting.
        cells: seed by seed; the label `system` names the setting, or its variant.
        lacking: number of a claim -> what the data lack for it; its settings have no cells.
        undefined: settings that this backbone or data set does not support -> why.
        remarks: what the backbone or data set does not support of the systems, and how many images shares are.
    """

    claims: tuple[Claim, ...]
    config: ResolvedConfig
    seeds: tuple[int, ...]
    cells: list[Cell] = field(default_factory=list)
    lacking: dict[int, str] = field(default_factory=dict)
    undefined: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class JudgedClaims:
    """Verdicts.

    Attributes:
        findings: one for each claim.
        about: data set, backbone and seeds.
        files: claims.md and claims.json.
        outcomes: of the runs, failed ones included.
    """

    findings: list[Finding]
    about: str
    files: list[Path]
    outcomes: list[Outcome]


def judge_claims(asked: Claims, say: Callable[[str], None]) -> JudgedClaims:
    """Compute the runs that are missing, or read those of `asked.compare`; judge, and write claims.md and claims.json.

    Args:
        asked: options.
        say: prints how many runs are needed, before they are computed.

    Raises:
        NegbenchError: a user's mistake. A run that fails is in `outcomes`, and its claims are not testable.
    """
    runs, seeds, named, base = runs_dir(asked.runs_dir), asked.seeds, chosen(asked.only), base_layers(asked)
    if asked.compare is not None:
        finished = [run for group in groups_of(runs, asked.compare) for run in group.runs]
        seeds = sorted({run.config.seed for run in finished}) if seeds is None else seeds
    with stages("plan") as display:
        plan = plan_claims(named, base, parse_seeds(3 if seeds is None else seeds), runs, display, SCENES)
    notes(plan.remarks)
    if asked.compare is not None:
        folder = ComparisonFolder(runs / asked.compare)
        run_of = {row["hash"]: row["run"] for row in folder.cells() if row["run"] is not None}
        outcomes = [Outcome(cell, run_of[cell.hash], None, True) for cell in plan.cells if cell.hash in run_of]
    else:
        path = runs / (asked.name or default_name(plan.cells).replace("compare-", "claims-"))
        check_place(path, "claims")
        folder = ComparisonFolder(path, {"kind": "claims"})
        outcomes = _compute(asked, plan, folder, say)
    with stages("judge") as display:
        findings = _findings(plan, outcomes, runs, display)
    about = f"{plan.config.dataset.name}, {plan.config.backbone.name}, seeds {', '.join(map(str, plan.seeds))}"
    return JudgedClaims(findings, about, write_findings(findings, folder.path, about), outcomes)


def _compute(asked: Claims, plan: ClaimsPlan, folder: ComparisonFolder, say: Callable[[str], None]) -> list[Outcome]:
    runs = folder.path.parent
    executor = executor_of(asked.executor, asked.address, asked.workers, runs)
    distinct = {cell.hash: cell for cell in plan.cells}.values()
    done = sum(cell.step(runs, asked.overwrite) == "reuse" for cell in distinct)
    say(
        f"{len(plan.claims)} claims need {len(distinct)} runs ({len(plan.seeds)} seeds), {done} of them finished before"
    )
    return computed(folder, plan.cells, executor=executor, tracking_uri=asked.tracking_uri, overwrite=asked.overwrite)


def base_layers(asked: Claims) -> list[Layer]:
    """Layers of backbone, data set and training, which the claims leave open; the rest of a recipe is left out.

    Raises:
        OptionError: `--set` of anything else.
    """
    recipe, *flags = layers_of(asked)
    for layer in flags:
        others = [key for key in layer if key not in HELD]
        others += ["train.num_negatives"] if "num_negatives" in layer.get("train", {}) else []
        if others:
            raise OptionError(f"claims fix {others[0]} themselves; set {', '.join(HELD[:-1])} only")
    kept = {key: value for key, value in recipe.items() if key in HELD}
    if "train" in kept:
        kept["train"] = {key: value for key, value in kept["train"].items() if key != "num_negatives"}
    return [kept, *flags]


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
            setting, *swept = name.split()
            own, remarks = system(str(settings()[setting]["system"])).layer(base, scenes)
            changes = {key: value for key, value in settings()[setting].items() if key != "system"}
            changes, shares = in_images(merged([changes, *map(set_layer, swept)]), found.config, scenes)
            configs = [build_config([own, *base, changes, {"seed": seed}]) for seed in seeds]
            found.cells.extend(plan(configs, runs, display, scenes, [{"system": name}] * len(configs)))
        except NegbenchError as error:
            found.undefined[name] = str(error)
            continue
        found.remarks.extend(remark for remark in (*remarks, *shares) if remark not in found.remarks)
    found.cells.sort(key=lambda cell: seeds.index(cell.seed))  # one seed of all, then the next
    return found


def in_images(layer: Layer, config: ResolvedConfig, scenes: Scenes) -> tuple[dict[str, Any], list[str]]:
    """The layer with a strategy's '0.6%' as a number of images of the train gallery, at least 1; a remark on each."""
    groups = scenes.dataset(config.dataset, "train", images=False).groups.values()
    gallery = sum(map(len, groups)) / len(groups)
    options, remarks = dict(layer.get("strategy", {})), list[str]()
    for key, value in options.items():
        if isinstance(value, str) and value.endswith("%"):
            options[key] = max(1, round(gallery * float(value[:-1]) / 100))
            remarks.append(f"a pool of {value} of the train gallery is {options[key]} of {gallery:,.0f} images")
    return {**layer, **({"strategy": options} if options else {})}, remarks


def _findings(found: ClaimsPlan, outcomes: Sequence[Outcome], runs: Path, display: Display) -> list[Finding]:
    """Every claim's verdict; a cell without an outcome has no run."""
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
    worlds = {run.manifest["dataset"].get("world") for runs_of in finished.values() for run in runs_of.values()}
    evidence = Evidence(finished, display, len(worlds) > 1)
    return [
        judge(claim, evidence, found.seeds, lacking=found.lacking.get(claim.number), undefined=undefined)
        for claim in found.claims
    ]
