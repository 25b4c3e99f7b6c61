"""Audit what corpus strategies would draw, without training: false negatives, hardness, diversity, fallbacks.

A strategy is applied to the scores of one model, untrained or a run's, over a sample of the train queries. False
negatives are known only if the data set lists more relevant images than the target.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from negbench.contracts import PlaneName, Strategy
from negbench.data.scene import threads
from negbench.display import notes, progress
from negbench.loop.mining_task import planes_read
from negbench.mining.measured_gain import where_mining_gained
from negbench.mining.mine import mine
from negbench.mining.planes import Plane, images_of
from negbench.mining.regime import regime
from negbench.mining.window import why_unjudged, window
from negbench.own.scored_split import ScoredSplit, configure, generator_of, open_split
from negbench.settings.command_options import Audit

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class AuditResult:
    """Audit of strategies: what each would draw from one split scored by one model.

    A row holds the strategy's label, `Mined.summary` of its pools and draws, and `diversity`: 1 - mean cosine between
    the drawn negatives of a query, all pairs, in the audited model's own embeddings (an image's is the normalised mean
    of its candidate tokens). With a judge (`mining.judge`) also the `likeness` of the drawn negatives to their targets:
    mean, 10 % and 90 % quantile of the judge's scores.
    """

    backbone: str
    dataset: str  # identity
    model: str  # "untrained", or the run
    truth: bool  # whether the data set lists more relevant images than the target
    options: dict[str, int]  # queries, draws, refresh, seed
    regime: dict[str, float]  # the sampled queries' card: `negbench.mining.regime.Regime.summary`
    window: str  # strategy that draws from the likely best part of the ranking; '' where none was judged
    rows: list[dict[str, Any]]
    remarks: list[str]
    gained: str = ""  # what was measured beside such a batch, after as many passes; '' where nothing was

    def plain(self) -> dict[str, Any]:
        """Return the result as plain values, for JSON."""
        return asdict(self)

    def frame(self) -> "pd.DataFrame":
        """Return one row per strategy, with backbone, data set and model."""
        import pandas as pd

        head = {"backbone": self.backbone, "dataset": self.dataset, "model": self.model}
        return pd.DataFrame([head | row for row in self.rows])


def run_audit(options: Audit) -> AuditResult:
    """Load data and model, apply the strategies, and report what had to be left out.

    Raises:
        NegbenchError: a user's mistake; see `open_split` and `audit`.
    """
    config, strategies, folder = configure(options, options.strategies)
    reads: set[PlaneName] = set()
    for strategy in strategies.values():
        reads.update(planes_read(strategy, config.mining))
    if config.mining.judge is not None:
        reads.add("judge")
    with progress("audit") as display:
        scored = open_split(config, options.split, display, folder, reads, queries=options.queries, seed=options.seed)
        with display.stage("mine"):
            result = audit(scored, strategies, options, skip_oracles=options.strategies is None)
    notes(result.remarks)
    return result


def audit(
    scored: ScoredSplit, strategies: Mapping[str, Strategy], options: Audit, *, skip_oracles: bool = False
) -> AuditResult:
    """Apply corpus strategies to a scored split.

    Args:
        scored: from `open_split`, with the same options.
        strategies: label -> strategy.
        options: draws, refresh, seed.
        skip_oracles: without ground truth, leave out oracles with a remark instead of raising OptionError.

    Raises:
        OptionError: an oracle without ground truth.
        NegbenchError: a strategy that breaks its contract.
    """
    truth = scored.task.relevant is not None
    negatives = scored.config.train.draws
    images = images_of(scored.task.candidates).cpu()
    rows: list[dict[str, Any]] = []
    remarks = list(scored.remarks)
    with threads(scored.config.compute.threads):
        for name, strategy in strategies.items():
            if strategy.reads_truth and skip_oracles and not truth:
                remarks.append(f"left out {name}: no image beyond the target is known to be relevant")
                continue
            mined = mine(
                scored.task_of(strategy),
                strategy,
                refresh=options.refresh,
                draws=options.draws,
                generator=generator_of(options.seed, "draws"),
            )
            row = {"strategy": name, **mined.summary()}
            row["diversity"] = float(diversity(images[mined.negatives]).mean())
            rows.append(row | likeness(scored.task.planes.get("judge"), mined.negatives))
        card = regime(scored.task, scored.val, sample=len(scored.rows))

    loss = scored.config.loss
    best = ""
    if scored.model == "untrained":
        why = why_unjudged(loss.name, loss.options, negatives)
        if why:
            remarks.append(f"no window of ranks is named: {why}")
        else:
            best = window(card.target_rank_median, negatives, card.images, loss.options.get("tau"))
    return AuditResult(
        backbone=scored.config.backbone.name,
        dataset=scored.dataset.full_name,
        model=scored.model,
        truth=truth,
        options=options.model_dump(include={"draws", "refresh", "seed"}) | {"queries": len(scored.rows)},
        regime=card.summary(),
        window=best,
        rows=rows,
        remarks=remarks,
        gained=where_mining_gained(scored.config.train.batch_size, scored.config.train.epochs),
    )


def likeness(judge: Plane | None, negatives: Tensor) -> dict[str, float]:
    """Return mean, 10 % and 90 % quantile of a judge's scores of [Q, M] drawn negatives; {} if it knows no score."""
    if judge is None or not len(negatives):
        return {}
    rows = [judge.block(torch.tensor([row]), columns) for row, columns in enumerate(negatives)]
    scores = torch.cat(rows).double().cpu().flatten()
    finite = scores[scores.isfinite()].numpy()
    if not len(finite):
        return {}
    low, high = np.quantile(finite, (0.1, 0.9))
    return {"likeness": float(finite.mean()), "likeness_10": float(low), "likeness_90": float(high)}


def diversity(negatives: Tensor) -> Tensor:
    """Return [Q] float64, 1 - mean cosine over all pairs of a query's negatives [Q, M, D], unit-norm, M >= 2."""
    count = negatives.shape[1]
    negatives = negatives.double()
    pairs = negatives.sum(1).square().sum(1) - negatives.square().sum((1, 2))
    return 1 - pairs / (count * (count - 1))
