"""Sorted score rows of train queries: their mean, and the positions of the steepest drops (QuRe fig. 7-8).

A run stores them before training and after the warm-up, for the report and for the claims about them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from negbench.metrics.drops import drops, steepest
from negbench.metrics.ranks import at_most, check_scores, count, ranked_scores
from negbench.metrics.score_curves import ScoreCurves, octave_positions
from negbench.mining.task import MiningTask
from negbench.scoring.tiles import Corpus, tile_rows, tiled_relevance

MOVES_SCORES = False  # only observes a run: draws from none of its random streams

_SEED = 0x5C0E  # of the sample


def sample_queries(task: MiningTask, count: int) -> Tensor:
    """Return [`count`] int64 queries of a task, or all of fewer: the same in every run on one train split."""
    return torch.randperm(len(task.queries), generator=torch.Generator().manual_seed(_SEED))[:count]


@torch.no_grad()
def score_curves(task: MiningTask, sample: int = 500) -> ScoreCurves:
    """Compute score curves of a sample of the task's queries.

    Draws only from its own generator: the sample depends on the number of queries alone.

    Args:
        task: queries and corpora.
        sample: S, at most; fewer where there are fewer queries.

    Raises:
        NegbenchError: a score is NaN.
    """
    rows = sample_queries(task, sample)
    order: list[Tensor] = []
    lengths: list[Tensor] = []
    drop_positions: list[Tensor] = []
    scores: list[Tensor] = []
    for block in rankings(task.shard(rows)):
        order.append(block.rows)
        lengths.append(block.length)
        drop_positions.append(steepest(block.drops))
        scores.append(block.scores[:, octave_positions(int(block.length.min()))])
    back = torch.cat(order).argsort()
    shortest = min(block.shape[1] for block in scores)
    mean = torch.cat([block[:, :shortest] for block in scores]).double().mean(0)
    return ScoreCurves(
        rows.numpy(), torch.cat(lengths)[back].numpy(), torch.cat(drop_positions)[back].numpy(), mean.numpy()
    )


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
            with ties counted against the model, and the position of the first image below it.
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
        """[b, n - 1] drop after each position below the target (QuRe eq. 5), -1 elsewhere."""
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
            scores = check_scores(tiled_relevance(task.queries[rows.to(task.queries.device)], images).cpu())
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
