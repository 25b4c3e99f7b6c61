"""Sorted score rows of train queries: their mean, and the places of the steepest drops (QuRe fig. 7-8).

A run stores them before training and after the warm-up, for the report and for the claims about them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from negbench.machine.files import atomic_write, intact
from negbench.machine.received import npz_arrays
from negbench.metrics.drops import drops, steepest
from negbench.metrics.ranks import at_most, checked_scores, count, ranked_scores
from negbench.mining.task import MiningTask
from negbench.scoring.tiles import Corpus, tile_rows, tiled_relevance

MOVES_SCORES = False  # only observes a run: draws from none of its random streams

_SEED = 0x5C0E  # of the sample

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curves:
    """The steepest drops of S sampled queries.

    A *place* is a 0-based rank among the target and the images allowed as negatives, by descending score, ties by
    corpus index; -1 where there is none. A ranking of n images has places 0 ... n - 1.
    """

    queries: Ints  # [S] index of each sampled query in its split
    length: Ints  # [S] n, images ranked
    drops: Ints  # [S, 2] places before the steepest and the second steepest drop below the target (QuRe eq. 5)
    scores: Floats  # [P] mean score over the queries at the places `spaced(P)`

    @property
    def shares(self) -> Floats:
        """[S, 2] the drops' places as shares of their query's ranking; NaN where there is none."""
        return np.where(self.drops >= 0, self.drops / np.maximum(self.length - 1, 1)[:, None], np.nan)

    def save(self, path: Path) -> None:
        """Write as npz: the same curves give the same bytes."""
        with atomic_write(path, "wb") as file:
            np.savez_compressed(file, **{f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    @classmethod
    def load(cls, path: Path) -> Curves:
        """Read what `save` wrote; raise NegbenchError if the file is missing or damaged."""
        with intact(path) as file, npz_arrays(file) as stored:
            scores = stored["scores"] if "scores" in stored else np.empty(0)  # earlier runs have none
            return cls(stored["queries"], stored["length"], stored["drops"], scores)


def spaced(length: int) -> Ints:
    """Return P places below `length`, an eighth of an octave apart, from 0; a smaller `length` gives fewer."""
    places: Ints = np.unique((2 ** (np.arange(8 * 32) / 8)).astype(np.int64)) - 1
    return places[places < length]


def file_name(moment: str) -> str:
    """Return the file name, in a run's folder, of the curves at a moment: "start" or "warm"."""
    return f"curves-{moment}.npz"


def sampled(task: MiningTask, count: int) -> Tensor:
    """Return [`count`] int64 queries of a task, or all of fewer: the same in every run on one train split."""
    return torch.randperm(len(task.queries), generator=torch.Generator().manual_seed(_SEED))[:count]


@torch.no_grad()
def score_curves(task: MiningTask, sample: int = 500) -> Curves:
    """Compute score curves of a sample of the task's queries.

    Draws only from its own generator: the sample depends on the number of queries alone.

    Args:
        task: queries and corpora.
        sample: S, at most; fewer where there are fewer queries.

    Raises:
        NegbenchError: a score is NaN.
    """
    rows = sampled(task, sample)
    parts = [
        (block.rows, block.length, steepest(block.drops), block.scores[:, spaced(int(block.length.min()))])
        for block in rankings(task.shard(rows))
    ]
    *each, scores = zip(*parts, strict=True)
    order, length, places = (torch.cat(values) for values in each)
    back, shortest = order.argsort(), min(block.shape[1] for block in scores)
    mean = torch.cat([block[:, :shortest] for block in scores]).double().mean(0)
    return Curves(rows.numpy(), length[back].numpy(), places[back].numpy(), mean.numpy())


@dataclass(frozen=True, eq=False)
class Rankings:
    """b queries with their corpus of n images sorted; on the CPU.

    Attributes:
        rows: [b] int64 queries of the task.
        table: [b, n] float32 scores, by position in the corpus.
        allowed: [b, n] bool, the images allowed as negatives.
        scores: [b, n] float32, those of the target and of the images allowed, by descending score; -inf after them.
        length: [b] int64, their number.
        reached: [b] int64, number of them that score at least as high as the target, itself included: the target's rank
            with ties counted against the model, and the place of the first image below it.
        local: [N] int64, position of each image of the task in the corpus, or -1.
    """

    rows: Tensor
    table: Tensor
    allowed: Tensor
    scores: Tensor
    length: Tensor
    reached: Tensor
    local: Tensor

    @property
    def drops(self) -> Tensor:
        """[b, n - 1] drop after each place below the target (QuRe eq. 5), -1 elsewhere."""
        return drops(self.scores, self.reached[:, None], (self.length - self.reached)[:, None])


def rankings(task: MiningTask) -> Iterator[Rankings]:
    """Yield every query of a task once, in blocks of one gallery group.

    Raises:
        NegbenchError: a score is NaN.
    """
    group = task.group.cpu()
    for index, columns in enumerate(task.groups):
        columns = columns.cpu()
        local = torch.full((len(task.candidates),), -1)
        local[columns] = torch.arange(len(columns))
        images = Corpus.of(task.candidates, columns)
        for rows in (group == index).nonzero()[:, 0].split(tile_rows(len(columns))):
            if not len(rows):
                continue
            scores = checked_scores(tiled_relevance(task.queries[rows.to(task.queries.device)], images).cpu())
            target = local[task.target.cpu()[rows]][:, None]
            ranked = torch.ones_like(scores, dtype=torch.bool)
            if task.excluded is not None:
                ranked = ~task.excluded.select(rows).mask(local, len(columns))
            ranked.scatter_(1, target, True)
            yield Rankings(
                rows=rows,
                table=scores,
                allowed=ranked.scatter(1, target, False),
                scores=ranked_scores(scores, ranked),
                length=count(ranked),
                reached=count(ranked & at_most(scores.gather(1, target), scores)),
                local=local,
            )
