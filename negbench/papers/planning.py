"""Plan the runs that claims need, compute the missing ones, and judge the claims by the finished ones."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from negbench.analysis.frame import read_results
from negbench.campaign.driver import Course, Round
from negbench.campaign.seeds import look_by_look
from negbench.display import Display, duration, notes, progress
from negbench.errors import NegbenchError, OptionError
from negbench.grid.axis import GroupKey, group_key
from negbench.grid.cells import Cell, Outcome, plan_cells
from negbench.grid.comparison import ComparisonFolder, check_name, default_name
from negbench.grid.looks import Looks
from negbench.loop.runs import DATA, plan_run
from negbench.machine.files import read_json, runs_dir
from negbench.papers.claim import Claim, select_claims, settings
from negbench.papers.evidence import Evidence, lacking
from negbench.papers.judge import JudgedClaim, combine_lengths, judge
from negbench.papers.table import write_judged
from negbench.settings.command_options import Claims
from negbench.settings.config import ResolvedConfig, build_config
from negbench.settings.layers import layers_of, recipe_settings
from negbench.settings.options import parse_seeds
from negbench.store.runfolder import RunFolder
from negbench.systems.system import PLAIN, with_system

Layer = Mapping[str, Any]

LONG = ", long"  # ends the label of a setting's runs at the second length
FREE_SECTIONS = ("backbone", "dataset", "train", "eval", "compute", "plugins")  # the claims fix all else


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
        return dict(read_json(self.path / "claims.json"))

    def __repr__(self) -> str:
        """The verdict on each claim."""
        lines = [f"{judged.claim.number}: {judged.verdict}: {judged.claim.words}" for judged in self.claims]
        return "\n".join([f"claims {self.path.name}: {self.about}", *lines])


@dataclass(frozen=True)
class ClaimsPlan:
    """The runs that claims need, look by look; without `--until` there is one look.

    Attributes:
        options: of the command.
        claims: to judge.
        looks: after which seeds the claims are judged.
        config: configuration of one run, for what all share: backbone and data set.
        lacking: number of a claim -> what the data lack for it; its settings have no cells.
        undefined: settings that this backbone or data set does not support -> why.
        remarks: parts of the systems that the backbone or data set does not support, one line each.
        caches: end of a length's labels -> values measured at earlier looks.
    """

    options: Claims
    claims: tuple[Claim, ...]
    looks: Looks
    config: ResolvedConfig
    lacking: Mapping[int, str]
    undefined: dict[str, str] = field(default_factory=dict)
    remarks: dict[str, None] = field(default_factory=dict)
    caches: dict[str, dict[Any, Any]] = field(default_factory=dict)

    @property
    def runs(self) -> Path:
        """The runs folder."""
        return runs_dir(self.options.runs_dir)

    @property
    def ends(self) -> dict[str, Layer]:
        """End of the labels of a length's runs -> its layer."""
        layers: dict[str, Layer] = {"": {}}
        if self.options.long:
            layers[LONG] = {"train": {"epochs": self.options.long}}
        return layers

    @cached_property
    def cells(self) -> list[Cell]:
        """Cells of the first look; the label `system` names the setting, with `LONG` at the end at the second length.

        All settings of one seed, then the next; planning them fills `undefined` and `remarks`.
        """
        cells: list[Cell] = []
        seeds = self.looks.first
        names: list[str] = []
        for claim in self.claims:
            if claim.number not in self.lacking:
                names += claim.settings
        with progress("plan") as display:
            for name in dict.fromkeys(names):
                for end in self.ends:
                    try:
                        cells += self._plan_setting(name, end, display)
                    except NegbenchError as error:
                        self.undefined[name + end] = str(error)
        return sorted(cells, key=lambda cell: seeds.index(cell.seed))

    def _plan_setting(self, name: str, end: str, display: Display) -> list[Cell]:
        """Plan a setting's runs at one length, and note what its system lacks here.

        Raises:
            NegbenchError: the backbone or data set does not support the setting.
        """
        base = base_layers(self.options)
        changes = dict(settings()[name])
        system_layer, remarks = with_system([*base, {"system": changes.pop("system")}], DATA)
        layers = [system_layer, *base, changes, self.ends[end]]
        configs = [build_config([*layers, {"seed": seed}]) for seed in self.looks.first]
        cells = plan_cells(configs, self.runs, display, DATA, [{"system": name + end} for _ in configs])
        self.remarks.update(dict.fromkeys(remarks))
        return cells

    @cached_property
    def folder(self) -> ComparisonFolder:
        """Lists the runs; claims.md and claims.json are written there."""
        kind = "claims-" if self.options.until is None else "claims-decided-"
        path = self.runs / (self.options.name or default_name(self.cells).replace("compare-", kind))
        check_name(path, "claims")
        return ComparisonFolder(path, {"kind": "claims"})

    def line(self) -> str:
        """Return a line that says how many runs the first look needs and how many are finished."""
        distinct = {cell.hash: cell for cell in self.cells}.values()
        finished = sum(cell.action(self.runs) == "reuse" for cell in distinct)
        need = "s need" if len(self.claims) > 1 else " needs"
        seeds = len(self.looks.first)
        return f"{len(self.claims)} claim{need} {len(distinct)} runs ({seeds} seeds), {finished} already finished"

    def course(self) -> Course:
        """Note what the systems lack here, and ask for the runs that the claims need, look by look."""
        first = Round(self.folder, self.cells)
        notes(self.remarks)
        return look_by_look(first, self.looks if self.options.until else None, self.open_settings)

    def dry_run(self) -> list[str]:
        """Say what is undecided after the first look, and what deciding it costs, if its runs are finished."""
        finished = [cell for cell in self.cells if cell.action(self.runs) == "reuse"]
        if len(finished) < len(self.cells):
            return []
        outcomes = [Outcome(cell, cell.folder, None, True) for cell in finished]
        groups = {group_key(cell.labels) for cell in finished}
        _, text = self.open_settings(outcomes, groups)
        return [f"after {len(self.looks.first)} seeds {text}"]

    def write(self, outcomes: Sequence[Outcome]) -> JudgedClaims:
        """Judge the claims by all outcomes, and write claims.md and claims.json."""
        names = {outcome.run_id for outcome in outcomes if outcome.run_id}
        seconds = sum(self._seconds_of(name) for name in names)
        about = f"{self.about}; {len(names)} runs"
        claims = self.judge_claims(outcomes)
        write_judged(claims, self.folder.path, about)
        return JudgedClaims(claims, f"{about}, {duration(seconds)} of computing", self.folder.path)

    def _seconds_of(self, run_id: str) -> float:
        """Return the computing time of a run, all stages together."""
        return float(sum(RunFolder(self.runs / run_id).result["seconds"].values()))

    @property
    def about(self) -> str:
        """Data set, backbone, epochs and seeds."""
        seeds = ", ".join(str(seed) for seed in self.looks.first)
        if len(self.looks.counts) > 1:
            seeds += f" and more until decided, {self.looks.most} at most"
        epochs = f", {self.config.train.epochs} and {self.options.long} epochs" if self.options.long else ""
        return f"data set {self.config.dataset.name}, backbone {self.config.backbone.name}{epochs}, seeds {seeds}"

    def open_settings(self, outcomes: Sequence[Outcome], running: Collection[GroupKey]) -> tuple[set[GroupKey], str]:
        """Return, for `look_by_look`, the settings of undecided claims' undecided tests, and a line on their cost."""
        group_of_setting = {cell.labels["system"]: group_key(cell.labels) for cell in self.cells}
        numbers: dict[int, None] = {}  # of the undecided claims
        groups = set[GroupKey]()
        for end, claims in self._judge_by_length(outcomes).items():
            for judged in claims:
                if judged.verdict != "undecided":
                    continue
                numbers[judged.claim.number] = None
                for answer in judged.answers:
                    if answer.verdict != "undecided":
                        continue
                    groups_of_test = {group_of_setting[name + end] for name in answer.test.all_settings}
                    if groups_of_test <= set(running):
                        groups |= groups_of_test
        if not numbers:
            return groups, "all claims are decided"
        are = "claims are" if len(numbers) > 1 else "claim is"
        text = f"{len(numbers)} {are} undecided ({', '.join(str(number) for number in numbers)})"
        seconds = []
        for outcome in outcomes:
            if outcome.run_id is not None and group_key(outcome.cell.labels) in groups:
                seconds.append(self._seconds_of(outcome.run_id))
        if seconds:
            runs_left = self.looks.most * len(groups) - len(seconds)
            rest = sum(seconds) / len(seconds) * runs_left
            text += f": {duration(rest)} of computing to {self.looks.most} seeds"
        return groups, text

    def judge_claims(self, outcomes: Sequence[Outcome]) -> list[JudgedClaim]:
        """Return every claim's verdict, over both lengths if there are two."""
        by_length = self._judge_by_length(outcomes)
        if LONG not in by_length:
            return by_length[""]
        return [combine_lengths(short, long) for short, long in zip(by_length[""], by_length[LONG], strict=True)]

    def _judge_by_length(self, outcomes: Sequence[Outcome]) -> dict[str, list[JudgedClaim]]:
        """Return the end of the labels -> every claim's verdict at that length."""
        failed: dict[str, str] = {}
        for outcome in outcomes:
            seed = outcome.cell.seed
            if outcome.run_id is None and seed in self.looks.first:
                failed[outcome.cell.labels["system"]] = f"seed {seed} failed: {outcome.error}"
        undefined = {**self.undefined, **failed}
        results = read_results(self.runs, self.folder.document(outcomes)["cells"])
        worlds = {run.manifest["dataset"].get("world") for run in results["stored"]}
        is_long = results["system"].str.endswith(LONG)
        by_length: dict[str, list[JudgedClaim]] = {}
        count = len(self.ends)
        with progress("judge") as display:
            for end in self.ends:
                rows = results[is_long] if end else results[~is_long]
                rows = rows.assign(system=rows["system"].str.removesuffix(LONG))
                evidence = Evidence(rows, display, len(worlds) > 1, self.caches.setdefault(end, {}))
                reasons = {name.removesuffix(end): text for name, text in undefined.items() if name.endswith(end)}
                by_length[end] = []
                for claim in self.claims:
                    missing = self.lacking.get(claim.number)
                    judged = judge(claim, evidence, self.looks, lacking=missing, undefined=reasons, lengths=count)
                    by_length[end].append(judged)
        return by_length


def plan_claims(options: Claims) -> ClaimsPlan:
    """Look up which claims the data can test, and when they are judged.

    Raises:
        NegbenchError: a backbone, data set or training that cannot run at all.
    """
    first = parse_seeds(options.seeds)
    claims = select_claims(options.only)
    base = base_layers(options)
    looks = Looks.of(options, first) or Looks(first, len(first))
    system = recipe_settings(options.recipe).get("system", PLAIN)  # all else must run with the recipe's
    system_layer, _ = with_system([*base, {"system": system}], DATA)
    config = plan_run(build_config([system_layer, *base]), DATA).config
    if options.long is not None and options.long <= config.train.epochs:
        raise OptionError(f"--long {options.long} must be more than train.epochs={config.train.epochs}")
    missing = {}
    for claim in claims:
        why = lacking(claim.needs, config, DATA)
        if why is not None:
            missing[claim.number] = why
    return ClaimsPlan(options, claims, looks, config, missing)


def base_layers(options: Claims) -> list[Layer]:
    """Return the layers of backbone, data set, training and `loss.tau`, which claims leave open.

    A recipe's `system` and `seed` are read elsewhere.

    Raises:
        OptionError: the recipe or `--set` sets anything else.
    """
    recipe, *flags = layers_of(options)
    recipe = {key: value for key, value in recipe.items() if key not in ("system", "seed")}
    for layer in (recipe, *flags):
        key = _fixed_key(layer)
        if key is not None:
            may = f"set only {', '.join(FREE_SECTIONS[:-1])}, loss.tau"
            if layer is recipe:
                may = f"a recipe for them may {may}"
            raise OptionError(f"claims fix {key}; {may}")
    return [recipe, *flags]


def _fixed_key(layer: Layer) -> str | None:
    """Return the first key of a layer that claims fix; None if there is none."""
    for section in layer:
        sets_tau_alone = section == "loss" and list(layer[section]) == ["tau"]
        if section not in FREE_SECTIONS and not sets_tau_alone:
            return section
    if "num_negatives" in layer.get("train", {}):
        return "train.num_negatives"
    return None
