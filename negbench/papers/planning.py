"""Plan the runs that claims need, compute the missing ones, and judge the claims by the finished ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from negbench.campaign.driver import Course, Round
from negbench.campaign.seeds import looked
from negbench.data.scene import DataCache
from negbench.display import Display, duration, notes, stages
from negbench.errors import NegbenchError, OptionError
from negbench.grid.axes import AxisValue
from negbench.grid.cells import Cell, Outcome, plan
from negbench.grid.comparison import ComparisonFolder, GroupKey, check_name, default_name, group_key
from negbench.grid.looks import Looks
from negbench.loop.runs import DATA, plan_run
from negbench.machine.files import read_json, runs_dir
from negbench.papers.claim import Claim, selected_claims, settings
from negbench.papers.evidence import Evidence, lacking
from negbench.papers.judge import JudgedClaim, at_both, judge
from negbench.papers.table import write_judged
from negbench.settings.command_options import Claims
from negbench.settings.config import ResolvedConfig, build_config
from negbench.settings.layers import layers_of, recipe_settings
from negbench.settings.options import parse_seeds
from negbench.store.runfolder import RunFolder
from negbench.systems.system import PLAIN, with_system

Layer = Mapping[str, Any]

LONG = ", long"  # ends the label of a setting's runs at the second length
HELD = ("backbone", "dataset", "train", "eval", "compute", "plugins")  # the claims fix all else


@dataclass(frozen=True)
class ClaimsPlan:
    """The runs that claims need.

    Attributes:
        claims: claims to judge.
        config: configuration of one run, for what all share: backbone and data set.
        cells: seed by seed; the label `system` names the setting, with `LONG` at the end at the second length.
        lacking: number of a claim -> what the data lack for it; its settings have no cells.
        undefined: settings that this backbone or data set does not support -> why.
        remarks: components of the systems that the backbone or data set does not support, one line each.
    """

    claims: tuple[Claim, ...]
    config: ResolvedConfig
    cells: list[Cell] = field(default_factory=list)
    lacking: dict[int, str] = field(default_factory=dict)
    undefined: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class JudgedClaims:
    """Verdicts on claims.

    Attributes:
        claims: one for each claim.
        about: data set, backbone, seeds, and how long the runs took.
        path: the folder, with claims.md and claims.json.
    """

    claims: list[JudgedClaim]
    about: str
    path: Path

    def plain(self) -> dict[str, Any]:
        """Return the verdicts with their tests, for JSON."""
        document: dict[str, Any] = read_json(self.path / "claims.json")
        return document

    def __repr__(self) -> str:
        """The verdict on each claim."""
        lines = [f"{one.claim.number}: {one.verdict}: {one.claim.words}" for one in self.claims]
        return "\n".join([f"claims {self.path.name}: {self.about}", *lines])


@dataclass(frozen=True)
class ClaimsWork:
    """Judges claims look by look; without `--until` there is one look.

    Attributes:
        asked: options.
        plan: plan for the first look's seeds.
        looks: after which seeds the claims are judged.
        folder: lists the runs; claims.md and claims.json are written there.
        known: values measured at earlier looks.
    """

    asked: Claims
    plan: ClaimsPlan
    looks: Looks
    folder: ComparisonFolder
    known: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, asked: Claims, say: Callable[[str], None]) -> ClaimsWork:
        """Plan the first look, and say how many runs it needs."""
        runs, first = runs_dir(asked.runs_dir), parse_seeds(asked.seeds)
        looks = Looks.of(asked, first) or Looks(first, len(first))
        plan = _planned(asked, runs, first)
        notes(plan.remarks)
        distinct = {cell.hash: cell for cell in plan.cells}.values()
        done = sum(cell.step(runs) == "reuse" for cell in distinct)
        need = "s need" if len(plan.claims) > 1 else " needs"
        say(f"{len(plan.claims)} claim{need} {len(distinct)} runs ({len(first)} seeds), {done} already finished")
        kind = "claims-" if asked.until is None else "claims-decided-"
        path = runs / (asked.name or default_name(plan.cells).replace("compare-", kind))
        check_name(path, "claims")
        return cls(asked, plan, looks, ComparisonFolder(path, {"kind": "claims"}))

    @property
    def runs(self) -> Path:
        """The runs folder."""
        return self.folder.path.parent

    def course(self) -> Course:
        """Ask for the runs that the claims need, look by look."""
        looks = self.looks if self.asked.until else None
        return looked(Round(self.folder, self.plan.cells), looks, self.more, self.undecided)

    def outlook(self) -> list[str]:
        """Say what is undecided after the first look, and what deciding it costs, if its runs are finished."""
        finished = [cell for cell in self.plan.cells if cell.step(self.runs) == "reuse"]
        if len(finished) < len(self.plan.cells):
            return []
        outcomes = [Outcome(cell, cell.folder, None, True) for cell in finished]
        places = {group_key(cell.labels) for cell in finished}
        return [f"after {len(self.looks.first)} seeds {self.undecided(outcomes, places)[1]}"]

    def more(self, seeds: Sequence[int]) -> list[Cell]:
        """Return the cells of other seeds."""
        return _planned(self.asked, self.runs, seeds).cells

    def written(self, outcomes: Sequence[Outcome]) -> JudgedClaims:
        """Judge the claims by all outcomes, and write claims.md and claims.json."""
        names = {outcome.run_id for outcome in outcomes if outcome.run_id}
        taken = sum(sum(RunFolder(self.runs / name).result["seconds"].values()) for name in names)
        about, judged = f"{self.about}; {len(names)} runs", self.judged(outcomes)
        write_judged(judged, self.folder.path, about)
        return JudgedClaims(judged, f"{about}, {duration(taken)} of computing", self.folder.path)

    @property
    def about(self) -> str:
        """Data set, backbone, epochs and seeds."""
        seeds = ", ".join(map(str, self.looks.first))
        seeds += f" and more until decided, {self.looks.most} at most" * (len(self.looks.counts) > 1)
        epochs = f", {self.plan.config.train.epochs} and {self.asked.long} epochs" if self.asked.long else ""
        return f"{self.plan.config.dataset.name}, {self.plan.config.backbone.name}{epochs}, seeds {seeds}"

    def undecided(self, outcomes: Sequence[Outcome], running: Collection[GroupKey]) -> tuple[set[GroupKey], str]:
        """Return, for `looked`, the settings of undecided claims' undecided tests, and a line on their cost."""
        place = {cell.labels["system"]: group_key(cell.labels) for cell in self.plan.cells}
        by_length = self._by_length(outcomes)
        left_open = [(end, f) for end, judged in by_length.items() for f in judged if f.verdict == "undecided"]
        claims = list({one.claim.number: one for _, one in left_open}.values())
        needed = [
            {place[name + end] for name in answer.test.needed}
            for end, one in left_open
            for answer in one.answers
            if answer.verdict == "undecided"
        ]
        left = set[tuple[str, ...]]().union(*(places for places in needed if places <= {*running}))
        if not claims:
            return left, "all claims are decided"
        done = [
            outcome for outcome in outcomes if outcome.run_id is not None and group_key(outcome.cell.labels) in left
        ]
        took = sum(sum(RunFolder(self.runs / str(o.run_id)).result["seconds"].values()) for o in done)
        numbers = ", ".join(str(one.claim.number) for one in claims)
        text = f"{len(claims)} claim{'s are' if len(claims) > 1 else ' is'} undecided ({numbers})"
        if done:
            rest = took / len(done) * (self.looks.most * len(left) - len(done))
            text += f": {duration(rest)} of computing to {self.looks.most} seeds"
        return left, text

    def judged(self, outcomes: Sequence[Outcome]) -> list[JudgedClaim]:
        """Return every claim's verdict, over both lengths if there are two."""
        short, *long = self._by_length(outcomes).values()
        return [at_both(*pair) for pair in zip(short, *long, strict=True)] if long else short

    def _by_length(self, outcomes: Sequence[Outcome]) -> dict[str, list[JudgedClaim]]:
        """Return the end of the labels -> every claim's verdict at that length."""
        finished: dict[str, dict[int, RunFolder]] = {}
        failed: dict[str, str] = {}
        for outcome in outcomes:
            setting, seed = outcome.cell.labels["system"], outcome.cell.seed
            if outcome.run_id is not None:
                finished.setdefault(setting, {})[seed] = RunFolder(self.runs / outcome.run_id)
            elif seed in self.looks.first:
                failed[setting] = f"seed {seed} failed: {outcome.error}"
        undefined = {**self.plan.undefined, **failed}
        worlds = {run.manifest["dataset"].get("world") for runs_of in finished.values() for run in runs_of.values()}
        lacking = self.plan.lacking
        with stages("judge") as display:
            ends = ("", LONG) if self.asked.long else ("",)
            found = {}
            for end in ends:
                runs = {
                    name.removesuffix(LONG): of for name, of in finished.items() if name.endswith(LONG) == bool(end)
                }
                evidence = Evidence(runs, display, len(worlds) > 1, self.known.setdefault(end, {}))
                why = {name.removesuffix(end): text for name, text in undefined.items() if name.endswith(end)}
                found[end] = [
                    judge(c, evidence, self.looks, lacking=lacking.get(c.number), undefined=why, lengths=len(ends))
                    for c in self.plan.claims
                ]
            return found


def _planned(asked: Claims, runs: Path, seeds: Sequence[int]) -> ClaimsPlan:
    own = str(recipe_settings(asked.recipe).get("system", PLAIN))
    with stages("plan") as display:
        return plan_claims(selected_claims(asked.only), base_layers(asked), seeds, runs, display, DATA, asked.long, own)


def base_layers(asked: Claims) -> list[Layer]:
    """Return the layers of backbone, data set and training, which claims leave open.

    A recipe's `system` and `seed` are read elsewhere.

    Raises:
        OptionError: the recipe or `--set` sets anything else.
    """
    recipe, *flags = layers_of(asked)
    kept = {key: value for key, value in recipe.items() if key not in ("system", "seed")}
    for layer in (kept, *flags):
        others = [key for key in layer if key not in HELD]
        others += ["train.num_negatives"] if "num_negatives" in layer.get("train", {}) else []
        if others:
            may = f"{'a recipe for them may ' * (layer is kept)}set only {', '.join(HELD[:-1])}"
            raise OptionError(f"claims fix {others[0]}; {may}")
    return [kept, *flags]


def plan_claims(
    claims: Sequence[Claim],
    base: Sequence[Layer],
    seeds: Sequence[int],
    runs: Path,
    display: Display,
    cache: DataCache,
    long: int | None = None,
    shared: str = PLAIN,
) -> ClaimsPlan:
    """Resolve every setting that the claims need.

    Args:
        claims: claims to judge.
        base: layers from `base_layers`.
        seeds: seeds of every setting.
        runs: runs folder.
        display: shows the progress.
        cache: caches loaded data and backbones.
        long: epochs of the second length, if any.
        shared: the system with which backbone, data set and training must run: the recipe's.

    Raises:
        NegbenchError: a backbone, data set or training that cannot run at all.
    """
    own, _ = with_system([*base, {"system": shared}], cache)
    claims_plan = ClaimsPlan(tuple(claims), plan_run(build_config([own, *base]), cache).config)
    for claim in claims:
        why = lacking(claim.needs, claims_plan.config, cache)
        if why is not None:
            claims_plan.lacking[claim.number] = why
    ends: dict[str, Layer] = {"": {}}
    if long is not None:
        if long <= claims_plan.config.train.epochs:
            raise OptionError(f"--long {long} must be more than train.epochs={claims_plan.config.train.epochs}")
        ends[LONG] = {"train": {"epochs": long}}
    wanted = [name for claim in claims if claim.number not in claims_plan.lacking for name in claim.settings]
    for name, end in itertools.product(dict.fromkeys(wanted), ends):
        try:
            own, remarks = with_system([*base, {"system": settings()[name]["system"]}], cache)
            changes = {key: value for key, value in settings()[name].items() if key != "system"}
            configs = [build_config([own, *base, changes, ends[end], {"seed": seed}]) for seed in seeds]
            choices = [AxisValue(labels={"system": name + end})] * len(configs)
            claims_plan.cells.extend(plan(configs, runs, display, cache, choices))
        except NegbenchError as error:
            claims_plan.undefined[name + end] = str(error)
            continue
        claims_plan.remarks.extend(remark for remark in remarks if remark not in claims_plan.remarks)
    claims_plan.cells.sort(key=lambda cell: seeds.index(cell.seed))  # all settings of one seed, then the next
    return claims_plan
