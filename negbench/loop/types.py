"""The types of a run: planned, opened, in training, finished. Every other file of the loop builds on them."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from negbench.contracts import Backbone
from negbench.contracts.card import DatasetCard
from negbench.data.scene import EncodedSplits, Splits
from negbench.loop.identity import config_hash
from negbench.loop.precision import Precision
from negbench.loop.step_plan import StepPlan
from negbench.machine.team import ALONE, Team
from negbench.settings.config import ResolvedConfig

if TYPE_CHECKING:
    from negbench.display import Display

RecordPoint = Callable[[Mapping[str, float], int, int], None]  # values by name, step, epoch (as in metrics.jsonl)


def _nothing(*_: object) -> None:
    pass


@dataclass(frozen=True)
class Callbacks:
    """Callbacks of a run's training; an exception from one ends the run.

    Attributes:
        point: called with every new point of the run's curves.
        refreshed: called with `ModelCache`, `Phase` and `Mined` when pools have been defined and negatives drawn.
        stepped: called with `TrainingParts`, `State` and `Batch` when a step has moved the weights, uncounted yet.
    """

    point: RecordPoint = _nothing
    refreshed: Callable[..., None] = _nothing
    stepped: Callable[..., None] = _nothing


def run_stem(config: ResolvedConfig) -> str:
    """Return the folder name of a run without its hash: the names of its parts, and its seed."""
    dataset = Path(config.dataset.name).stem
    strategy = re.sub(r"[^\w+-]+", "_", config.strategy.name)
    return f"{strategy}-{config.loss.name}-{config.backbone.name}-{dataset}-s{config.seed}"


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """A run identified by its hash, before anything is encoded for it.

    Attributes:
        config: resolved.
        dataset: the scored split as tables name it: without its world, unless the configuration names one.
        card: of the scored split.
        data: identifies all that is read besides code; runs with the same value share features.
        remarks: caveats for readers of its result, as far as known in advance.
        host: name of the machine that planned it.
    """

    config: ResolvedConfig
    dataset: str
    card: DatasetCard
    data: str
    remarks: tuple[str, ...]
    host: str

    @cached_property
    def hash(self) -> str:
        """Hash of the configuration, the code and `data`; computed on first use, because it parses all the code."""
        return config_hash(self.config, data=self.data)

    @property
    def name(self) -> str:
        """Folder name: `run_stem`, and the first 8 digits of the hash."""
        return f"{run_stem(self.config)}-{self.hash[:8]}"


@dataclass(frozen=True, eq=False)
class OpenRun(PlannedRun):
    """A run ready to compute: its backbone in its initial state, its features encoded.

    `check` raises RunError if the files that it reads are not those that were planned.
    """

    splits: Splits
    backbone: Backbone
    scene: EncodedSplits
    precision: Precision
    step_plan: StepPlan
    display: "Display"
    callbacks: Callbacks = field(default_factory=Callbacks)
    team: Team = ALONE
    check: Callable[[], None] = _nothing

    def in_team(self, team: Team) -> "OpenRun":
        """Return the run as one of these processes computes it."""
        return replace(self, team=team, scene=replace(self.scene, team=team))


@dataclass
class State:
    """Training state besides weights, optimizer and random streams; a checkpoint holds all of it."""

    epoch: int = 0  # the next one
    refresh: int = -1  # -1: the warm-up pool
    checkpointed: int = -1  # the refresh at the last checkpoint
    interval_start: int = 0
    negatives: Tensor | None = None  # [Q, draws of the interval] columns; with `mining.redraw=false` those of one epoch
    step: int = 0
    negatives_seen: int = 0
    best: float = -math.inf
    best_epoch: int = -1
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    behaviour: list[dict[str, float]] = field(default_factory=list)  # one summary per refresh (or epoch, batch scope)
    regime: list[dict[str, float]] = field(default_factory=list)  # one card per `observe.regime_epochs`
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    points: list[dict[str, float]] = field(default_factory=list)  # lines of metrics.jsonl
    computed: list[dict[str, int | bool]] = field(default_factory=list)  # how steps were computed, from which epoch on
    generators: dict[str, Tensor] = field(default_factory=dict)
    clean: Tensor | None = None  # [Q] bool: the queries that the epoch's losses are of; None: all (`clean_queries`)
    # of the epoch under way; a checkpoint within an epoch resumes after its last step
    order: Tensor | None = None  # [Q] int64 queries in the order of its batches; None between epochs
    base: Tensor | None = None  # [1] int64 from which its queries' random streams follow; None if none are read
    losses: list[Tensor] = field(default_factory=list)  # of each step, times its rows
    statistics: list[tuple[int, dict[str, float]]] = field(default_factory=list)  # rows and statistics of batches
    hardest_share: float = math.nan  # see `Objective`

    def end_epoch(self) -> None:
        """Go on to the next epoch."""
        self.epoch += 1
        self.forget_steps()

    def forget_steps(self) -> None:
        """Begin the epoch under way anew."""
        self.order = None
        self.base = None
        self.losses = []
        self.statistics = []
        self.hardest_share = math.nan

    def note_plan(self, plan: StepPlan) -> None:
        """Note how steps are computed from the next epoch on, where that is new."""
        last = {**self.computed[-1]} if self.computed else {}
        last.pop("epoch", None)
        if last != vars(plan):
            self.computed.append({"epoch": self.epoch, **vars(plan)})

    def wrap_recorder(self, record_point: RecordPoint) -> RecordPoint:
        """Return a function that stores each point of a curve here, too, before it calls `record_point`."""

        def store_and_record(values: Mapping[str, float], step: int, epoch: int) -> None:
            self.points.append({"step": step, "epoch": epoch, **values})
            record_point(values, step, epoch)

        return store_and_record
