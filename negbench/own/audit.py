"""What strategies would draw, without any training: false negatives, hardness, diversity, fallbacks.

A strategy is applied to the scores of one model, untrained or a run's, over a sample of the train queries. Whether an
image is a false negative is known where the data set lists more relevant images than the target; elsewhere a judge, any
backbone, calls an image a false negative where it looks like the target.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from negbench.command_options import Audit, SubjectOptions
from negbench.config import ResolvedConfig, build_config, is_score_file, resolved
from negbench.contracts import Strategy, check_option
from negbench.data.scene import Scenes, threads
from negbench.display import notes, stages
from negbench.errors import OptionError
from negbench.files import atomic_write, runs_dir, write_json
from negbench.grid.axes import expand, label
from negbench.layers import layers_of
from negbench.mining.composite import slots_of
from negbench.mining.planes import planes_read
from negbench.mining.regime import regime
from negbench.own.audit_rows import AuditRow, batch_row, corpus_row
from negbench.own.subject import Judge, Subject, judge_of, open_subject
from negbench.registry import constructor_of, option_defaults, registry
from negbench.runfolder import RunFolder, find_run
from negbench.systems.system import with_system

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class AuditResult:
    """What strategies would draw of one split as one model scores it."""

    backbone: str
    dataset: str  # identity
    model: str  # "untrained", or the run
    truth: bool  # whether the data set knows more relevant images than the target
    judge: str  # "" or the judge with its threshold
    options: dict[str, int]  # queries, draws, refresh, seed
    regime: dict[str, float]  # the sampled queries' card: `negbench.mining.regime.Regime.summary`
    rows: list[AuditRow]
    remarks: list[str]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def frame(self) -> pd.DataFrame:
        """One row a strategy, with what was audited."""
        import pandas as pd

        head = {"backbone": self.backbone, "dataset": self.dataset, "model": self.model, "judge": self.judge}
        return pd.DataFrame([head | asdict(row) for row in self.rows])

    def __repr__(self) -> str:
        """What was audited, and a row a strategy."""
        rows = self.frame().drop(columns=["backbone", "dataset", "model", "judge"])
        return f"audit of {self.backbone}, {self.model}, on {self.dataset}\n{rows.to_string(index=False)}"


# --- the command ---------------------------------------------------------------------------------------------------


def run_audit(asked: Audit) -> AuditResult:
    """Load data and model, apply the strategies, write files where asked for; notes what had to be left out.

    Raises:
        NegbenchError: a user's mistake; see `open_subject`, `judge_of` and `audit`.
    """
    config, strategies, folder = configured(asked, asked.strategies, judge=asked.judge)
    judged = config.mining.judge
    cosine = judged is None or not is_score_file(judged)
    check_option("--threshold", asked.threshold, not cosine or -1 <= asked.threshold <= 1, "a cosine, -1 to 1")
    reads = {name for strategy in strategies.values() for name in planes_read(strategy, config.mining)}
    with stages("audit") as display:
        reads |= set() if judged is None else {"judge"}
        subject = open_subject(config, asked.split, asked, display, folder, reads=reads)
        judge = None if judged is None else judge_of(subject, asked.threshold)
        with display.stage("mine"):
            found = audit(subject, strategies, asked, judge=judge, skip_oracles=asked.strategies is None)
    notes(found.remarks)
    if asked.out is not None:
        write_audit(found, asked.out)
    return found


def configured(
    asked: SubjectOptions, strategies: Any, *, judge: str | None = None
) -> tuple[ResolvedConfig, dict[str, Strategy], RunFolder | None]:
    """The configuration that all strategies share, the strategies by label, and the run whose weights are taken.

    Notes what the backbone or the data set does not support of a recipe's system.

    Args:
        asked: model, data set and seed.
        strategies: names, tables or text as `negbench.grid.axes.expand` takes them; None: the run's, or all.
        judge: of `mining.judge`; None: that of the configuration.

    Raises:
        NegbenchError: a user's mistake.
    """
    recipe, *flags = layers_of(asked)
    recipe.pop("seed", None)  # that of its runs
    layers = [recipe, *flags, {} if judge is None else {"mining": {"judge": judge}}]
    folder = None if asked.run is None else find_run(runs_dir(asked.runs_dir), asked.run)
    if folder is not None:
        folder.check_plugins()
    base: list[Any] = [{"seed": asked.seed}] if folder is None else [folder.config.model_dump(mode="json")]
    given: list[Any] = [{}]
    if strategies is not None or folder is None:
        given = [{"strategy": section} for section in expand("strategies", strategies or "all")]
    scenes = Scenes()
    wholes = [with_system([*base, *layers, layer], scenes) for layer in given]
    notes(dict.fromkeys(remark for _, remarks in wholes for remark in remarks))
    configs = [resolved(build_config([whole])) for whole, _ in wholes]
    found: dict[str, Strategy] = {}
    for config in configs:
        chosen = config.strategy
        defaults = option_defaults(constructor_of("strategies", registry.get("strategies", chosen.name)))
        name = label({"name": chosen.name, **chosen.options}, defaults)
        if name in found:
            raise OptionError(f"--strategy names {name} twice")
        found[name] = registry.make("strategies", chosen.name, **chosen.options)
    return configs[0], found, folder


# --- strategies on a subject ---------------------------------------------------------------------------------------


def audit(
    subject: Subject,
    strategies: Mapping[str, Strategy],
    options: Audit,
    *,
    judge: Judge | None = None,
    skip_oracles: bool = False,
) -> AuditResult:
    """Apply strategies to a subject.

    Args:
        subject: of `open_subject`, with the same options.
        strategies: label -> strategy, either scope.
        options: draws, refresh, seed.
        judge: adds the judged rates.
        skip_oracles: leave out, with a remark, the oracles where there is no ground truth, instead of OptionError.

    Raises:
        OptionError: an oracle without ground truth, or nothing left to audit.
        NegbenchError: a strategy that breaks its contract.
    """
    truth = subject.task.relevant is not None
    rows, remarks = [], []
    with threads(subject.config.compute.threads), tempfile.TemporaryDirectory() as folder:
        for number, (label, strategy) in enumerate(strategies.items()):
            if "target" not in (slots := slots_of(strategy)):
                remarks.append(f"left out {label}: not auditable: it changes the {slots[0]}, not only the target")
                continue
            try:
                if strategy.scope == "corpus":
                    file = Path(folder) / f"{number}.bits"
                    rows.append(corpus_row(subject, label, strategy, options, judge, file))
                else:
                    rows.append(batch_row(subject, label, strategy, options, judge))
            except OptionError as error:
                if truth or not skip_oracles or not strategy.reads_truth:
                    raise
                remarks.append(f"left out {label}: {error}")
        if not rows:
            raise OptionError("; ".join(remarks))
        card = regime(subject.task, subject.val, sample=len(subject.rows))
    return AuditResult(
        backbone=subject.config.backbone.name,
        dataset=subject.dataset.identity,
        model=subject.model,
        truth=truth,
        judge="" if judge is None else judge.name,
        options=options.model_dump(include={"queries", "draws", "refresh", "seed"}),
        regime=card.summary(),
        rows=rows,
        remarks=[*subject.remarks, *remarks],
    )


def write_audit(found: AuditResult, folder: Path) -> None:
    """Write audit.csv (one row a strategy) and audit.json ({"audits": [the result]})."""
    with atomic_write(folder / "audit.csv") as file:
        file.write(found.frame().to_csv(index=False))
    write_json(folder / "audit.json", {"audits": [found.plain()]})
