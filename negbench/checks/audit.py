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

from negbench.checks.subject import Subject, generator_of, open_subject
from negbench.contracts import Strategy
from negbench.data.scene import DataCache, threads
from negbench.display import notes, progress
from negbench.errors import OptionError
from negbench.grid.axes import axis_of, label
from negbench.loop.mining_task import planes_read
from negbench.machine.files import runs_dir
from negbench.mining.mine import mine
from negbench.mining.planes import Plane, images_of
from negbench.mining.regime import regime
from negbench.mining.window import unjudged, window
from negbench.plugins.registry import option_defaults, registry
from negbench.settings.command_options import Audit, SubjectOptions
from negbench.settings.config import ResolvedConfig, build_config, resolved
from negbench.settings.layers import layers_of
from negbench.store.runfolder import RunFolder, find_run
from negbench.systems.system import with_system

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
    window: str  # strategy that draws from the likely best place in the ranking; '' where none was judged
    rows: list[dict[str, Any]]
    remarks: list[str]

    def plain(self) -> dict[str, Any]:
        """Return the result as plain values, for JSON."""
        return asdict(self)

    def frame(self) -> "pd.DataFrame":
        """Return one row per strategy, with backbone, data set and model."""
        import pandas as pd

        head = {"backbone": self.backbone, "dataset": self.dataset, "model": self.model}
        return pd.DataFrame([head | row for row in self.rows])


def run_audit(asked: Audit) -> AuditResult:
    """Load data and model, apply the strategies, and report what had to be left out.

    Raises:
        NegbenchError: a user's mistake; see `open_subject` and `audit`.
    """
    config, strategies, folder = configured(asked, asked.strategies)
    reads = {name for strategy in strategies.values() for name in planes_read(strategy, config.mining)}
    reads |= set() if config.mining.judge is None else {"judge"}
    with progress("audit") as display:
        subject = open_subject(config, asked.split, asked, display, folder, reads=reads)
        with display.stage("mine"):
            audited = audit(subject, strategies, asked, skip_oracles=asked.strategies is None)
    notes(audited.remarks)
    return audited


def configured(asked: SubjectOptions, strategies: Any) -> tuple[ResolvedConfig, dict[str, Strategy], RunFolder | None]:
    """Return the strategies' common configuration, the strategies by label, and the run whose weights are used.

    Reports the parts of a recipe's system that the backbone or the data set does not support.

    Args:
        asked: model, data set and seed.
        strategies: names, tables or text as `negbench.grid.axes.expand` takes them; None: the run's, or all
            corpus strategies.

    Raises:
        NegbenchError: a user's mistake, such as a batch strategy.
    """
    recipe, *flags = layers_of(asked)
    recipe.pop("seed", None)  # the seed of its runs, not of the audit
    folder = None if asked.run is None else find_run(runs_dir(asked.runs_dir), asked.run)
    if folder is not None:
        folder.check_plugins()
    base: list[Any] = [{"seed": asked.seed}] if folder is None else [folder.config.model_dump(mode="json")]
    given: list[Any] = [{}]
    if strategies is not None or folder is None:
        given = [{"strategy": section} for section in axis_of("strategy", strategies or "all", [recipe, *flags])]
    if strategies is None and folder is None:
        given = [layer for layer in given if registry.make("strategies", layer["strategy"]["name"]).scope == "corpus"]
    cache = DataCache()
    wholes = [with_system([*base, recipe, *flags, layer], cache) for layer in given]
    notes(dict.fromkeys(remark for _, remarks in wholes for remark in remarks))
    configs = [resolved(build_config([whole])) for whole, _ in wholes]
    by_label: dict[str, Strategy] = {}
    for config in configs:
        chosen = config.strategy
        name = label({"name": chosen.name, **chosen.options}, option_defaults(registry.get("strategies", chosen.name)))
        if name in by_label:
            raise OptionError(f"--strategy names {name} twice")
        by_label[name] = registry.make("strategies", chosen.name, **chosen.options)
        if by_label[name].scope != "corpus":
            raise OptionError(f"strategy {name} chooses among the members of a batch: it cannot be mined ahead")
    return configs[0], by_label, folder


def audit(
    subject: Subject, strategies: Mapping[str, Strategy], options: Audit, *, skip_oracles: bool = False
) -> AuditResult:
    """Apply corpus strategies to a subject.

    Args:
        subject: from `open_subject`, with the same options.
        strategies: label -> strategy.
        options: draws, refresh, seed.
        skip_oracles: without ground truth, leave out oracles with a remark instead of raising OptionError.

    Raises:
        OptionError: an oracle without ground truth.
        NegbenchError: a strategy that breaks its contract.
    """
    truth, negatives = subject.task.relevant is not None, subject.config.train.draws
    images = images_of(subject.task.candidates).cpu()
    rows, remarks = list[dict[str, Any]](), list(subject.remarks)
    with threads(subject.config.compute.threads):
        for name, strategy in strategies.items():
            if strategy.reads_truth and skip_oracles and not truth:
                remarks.append(f"left out {name}: no image beyond the target is known to be relevant")
                continue
            draws, generator = options.draws, generator_of(options, "draws")
            mined = mine(subject.task_of(strategy), strategy, refresh=options.refresh, draws=draws, generator=generator)
            spread = float(diversity(images[mined.negatives]).mean())
            judged = likeness(subject.task.planes.get("judge"), mined.negatives)
            rows.append({"strategy": name, **mined.summary(), "diversity": spread, **judged})
        card = regime(subject.task, subject.val, sample=len(subject.rows))
    loss, best = subject.config.loss, ""
    if subject.model == "untrained":
        if why := unjudged(loss.name, loss.options, negatives):
            remarks.append(f"no window of ranks is named: {why}")
        else:
            best = window(card.target_rank_median, negatives, card.images, loss.options.get("tau"))
    names = subject.config.backbone.name, subject.dataset.identity, subject.model
    asked = options.model_dump(include={"draws", "refresh", "seed"}) | {"queries": len(subject.rows)}
    return AuditResult(*names, truth, asked, card.summary(), best, rows, remarks)


def likeness(judge: Plane | None, drawn: Tensor) -> dict[str, float]:
    """Return mean, 10 % and 90 % quantile of a judge's scores of [Q, M] drawn negatives; nothing without known ones."""
    rows = [] if judge is None else [judge.block(torch.tensor([row]), columns) for row, columns in enumerate(drawn)]
    scores = torch.cat(rows).double().cpu().flatten() if rows else torch.empty(0)
    known = scores[scores.isfinite()].numpy()
    if not len(known):
        return {}
    low, high = np.quantile(known, (0.1, 0.9))
    return {"likeness": float(known.mean()), "likeness_10": float(low), "likeness_90": float(high)}


def diversity(drawn: Tensor) -> Tensor:
    """Return [Q] float64, 1 - mean cosine over all pairs of a query's negatives [Q, M, D], unit-norm, M >= 2."""
    drawn, count = drawn.double(), drawn.shape[1]
    pairs = drawn.sum(1).square().sum(1) - drawn.square().sum((1, 2))
    return 1 - pairs / (count * (count - 1))
