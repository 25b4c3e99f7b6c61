"""Cached embeddings and scores of the model between two epochs, for mining, scoring and records."""

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from negbench.contracts import Strategy
from negbench.data.scene import EncodedSplits, Split
from negbench.datasets.dataset import QueryRanks
from negbench.loop.mining_task import mining_task, planes_read
from negbench.loop.objective import Objective
from negbench.loop.types import OpenRun, State
from negbench.mining.task import MiningTask
from negbench.scoring import evaluation

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class Scored:
    """A model's results on the scored split; `concentration` is the length of the mean query, 1 if all are equal."""

    ranks: QueryRanks
    metrics: dict[str, float]
    concentration: float


class ModelCache:
    """Per-model cache, cleared when the weights change; what is shared at the start is kept by the scene.

    A refresh and the regime card share the embeddings of the train split; the card, the curve and the result share the
    ranks.

    Args:
        run: holds the backbone.
        objective: the run's.
        state: gives the epoch.

    Attributes:
        due: splits that are embedded with the current weights (`expect_embedded`).
    """

    def __init__(self, run: OpenRun, objective: Objective, state: State) -> None:
        self.run = run
        self.objective = objective
        self.state = state
        self.due: Sequence[Split] = ()
        self._values: dict[Hashable, Any] = {}

    def clear(self) -> None:
        """Forget everything: the weights are about to change."""
        self._values.clear()
        self.due = ()

    def expect_embedded(self, *splits: Split | None) -> None:
        """Say which splits are embedded with the current weights; None, and pairs drawn anew, do not count."""
        distinct = dict.fromkeys(splits)
        self.due = [split for split in distinct if split is not None and not split.dataset.redraws]

    def once(self, key: Hashable, make: Callable[[], Value], stage: str = "", note: str = "") -> Value:
        """Return what `make` made for this model, timed as `stage`.

        What has a stage is shared by the runs that begin with the same weights; its seconds count for each of them.
        """
        if stage and self.state.step == 0:
            settings = self.run.config.model_dump_json(include={"compute", "eval", "mining"})
            return self._once_untrained((key, settings), make, stage, note)
        if key not in self._values:
            with self.run.display.stage(stage, note=note) if stage else nullcontext():
                self._values[key] = make()
        value: Value = self._values[key]
        return value

    def _once_untrained(self, key: Hashable, make: Callable[[], Value], stage: str, note: str) -> Value:
        """Return what `make` made for the initial weights, in whichever run; count the seconds that it took then."""
        untrained = self.run.scene.untrained
        seconds = self.run.display.seconds
        before = seconds.get(stage, 0.0)
        value: Value
        if key in untrained:
            value, taken_seconds = untrained[key]
            seconds[stage] = before + taken_seconds
        else:
            with self.run.display.stage(stage, note=note):
                value = make()
            untrained[key] = value, seconds.get(stage, 0.0) - before
        return value

    def scene_to_mine(self) -> EncodedSplits:
        """Return the scene to mine: the epoch's own if epochs redraw pairs; other texts do not change what is mined."""
        run = self.run
        if not run.scene.train.dataset.redraws:
            return run.scene

        def draw_pairs() -> EncodedSplits:
            return run.scene.at_epoch(run.backbone, self.state.epoch, run.config)

        return self.once("pairs", draw_pairs)

    def task(self, scene: EncodedSplits, strategy: Strategy | None = None) -> MiningTask:
        """Embed the train split with the current model, with the planes that the strategy reads."""
        run = self.run
        split = scene.train
        mining = run.config.mining
        offline = self.objective.offline
        divisor = self.objective.divisor
        reads = () if strategy is None else planes_read(strategy, mining)
        embeddings = self.embeddings(split)
        return mining_task(
            run.backbone, scene, mining, reads=reads, offline=offline, temperature=divisor, embeddings=embeddings
        )

    def embeddings(self, split: Split) -> evaluation.Embeddings:
        """Embed a split with the current model; with further wordings of its texts where they are judged.

        A picture or a gallery that several splits share, such as that of train and of the dev part carved from it,
        passes the backbone once.
        """
        return self.once(("embeddings", id(split)), lambda: self._embed(split))

    def _embed(self, split: Split) -> evaluation.Embeddings:
        run = self.run
        embed = partial(evaluation.embed, run.backbone, run.scene, split, wordings=self._reads_wordings(split))
        if run.scene.frozen:
            return embed(candidates=self._find_candidates(split))
        splits = self._together(split)
        if len(splits) == 1:
            return embed()
        by_split = evaluation.embed_together(run.backbone, run.scene, splits)
        for other, embeddings in zip(splits, by_split, strict=True):
            self._values["embeddings", id(other)] = embeddings
        return by_split[splits.index(split)]

    def _find_candidates(self, split: Split) -> Tensor | None:
        """Return the candidates of a split with the same images, if there is one that is embedded."""
        for other in self._splits:
            embeddings: evaluation.Embeddings | None = self._values.get(("embeddings", id(other)))
            if embeddings is not None and torch.equal(other.images, split.images):
                return embeddings.candidates
        return None

    def _together(self, split: Split) -> list[Split]:
        """Return the expected splits that are embedded with this one, itself included, in their order.

        They share pictures with it, or with one that does. Which they are depends on what is expected alone, never on
        which is asked for first: a resumed run asks in another order, and has the same bits.
        """
        if split not in self.due or self._reads_wordings(split):
            return [split]
        together = [split]
        last = list[Split]()
        while len(together) > len(last):  # until no further split shares a picture with these
            last = together
            together = [other for other in self.due if other in last or self._shares(other, last)]
        return together

    def _shares(self, other: Split, splits: Sequence[Split]) -> bool:
        """Whether a split has a picture of these splits, and texts that can stand in one table with theirs."""
        if self._reads_wordings(other) or self._token_shapes(other) != self._token_shapes(splits[0]):
            return False
        pictures = torch.cat([part for split in splits for part in (split.images, split.references)])
        return bool(torch.isin(torch.cat([other.images, other.references]), pictures).any())

    def _token_shapes(self, split: Split) -> dict[str, torch.Size]:
        """Return the shapes of a text's tokens."""
        return {name: tokens.shape[1:] for name, tokens in split.texts(self.run.backbone).items()}

    def _reads_wordings(self, split: Split) -> bool:
        """Whether further wordings of a split's texts count now, and there are some."""
        if split is not self.run.scene.val or not self._judges:
            return False
        return any(query.wordings for query in split.dataset.queries)

    @property
    def _splits(self) -> list[Split]:
        """The run's splits."""
        scene = self.run.scene
        return [part for part in (scene.train, scene.val, scene.dev, scene.also) if part is not None]

    @property
    def _judges(self) -> bool:
        """Whether the scored split's mistakes and wordings count now: before training and at its end."""
        run = self.run
        return run.config.eval.reported and self.state.epoch in (0, run.config.train.epochs)

    def scores(self) -> Scored:
        """Return ranks and metrics on the scored split."""
        run = self.run
        scene = self.run.scene

        def make() -> Scored:
            embeddings = self.embeddings(scene.val)
            if self._judges:
                ranks = evaluation.rank_judged(scene.val, embeddings)
            else:
                ranks = evaluation.rank(scene.val, embeddings.queries, embeddings.candidates)
            return Scored(ranks, scene.val.dataset.summarise(ranks), float(embeddings.queries.mean(0).norm()))

        return self.once("scored", make, "evaluate", f"epoch {self.state.epoch}/{run.config.train.epochs}")

    def dev(self) -> dict[str, float] | None:
        """Return metrics on the dev part; None if there is none or if it is the scored split."""
        run = self.run
        scene = self.run.scene
        if scene.dev is None or scene.dev is scene.val:
            return None
        dev = scene.dev

        def make() -> dict[str, float]:
            with run.display.stage("evaluate"):
                return evaluation.measure(dev, self.embeddings(dev))

        return self.once("dev", make)

    def also(self) -> dict[str, float]:
        """Return metrics on the data set that `eval.also` names, with its name in front; none if it names none."""
        run = self.run
        split = self.run.scene.also
        if split is None:
            return {}
        with run.display.stage("evaluate", note=split.dataset.card.name):
            values = evaluation.measure(split, self.embeddings(split))
        return {f"{split.dataset.card.name}/{name}": value for name, value in values.items() if not math.isnan(value)}
