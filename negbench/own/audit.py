"""What strategies would draw, without any training: false negatives, hardness, diversity, fallbacks, score curves.

A strategy is applied to the scores of one model, untrained or a run's, over a sample of the train queries. Whether an
image is a false negative is known where the data set knows more relevant images than the target; elsewhere a judge, any
backbone, calls an image one where it looks like the target.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from negbench.contracts import Strategy
from negbench.data.scene import Scenes, threads
from negbench.display import Display
from negbench.errors import NegbenchError, OptionError
from negbench.files import DamagedError, atomic_write, read_json, write_json
from negbench.grid.cells import Cell
from negbench.mining.composite import slots_of
from negbench.mining.planes import planes_read
from negbench.mining.regime import regime
from negbench.own.audit_curves import Curve, curves_of
from negbench.own.audit_rows import AuditRow, batch_row, corpus_row
from negbench.own.subject import AuditOptions, Judge, Subject, open_subject
from negbench.registry import registry

if TYPE_CHECKING:
    import pandas as pd

_GRID_QUERIES = 500  # a comparison's audit: a second a strategy at most


@dataclass(frozen=True, repr=False)
class Audit:
    """An audit of one model on one split."""

    backbone: str
    dataset: str  # identity
    model: str  # "untrained", or the run
    truth: bool  # whether the data set knows more relevant images than the target
    judge: str  # "" or the judge with its threshold
    options: AuditOptions
    regime: dict[str, float]  # the sampled queries' card: `negbench.mining.regime.Regime.summary`
    rows: list[AuditRow]
    curves: list[Curve]
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

    def _repr_html_(self) -> str:
        rows = self.frame().drop(columns=["backbone", "dataset", "model", "judge"])
        return f"<h4>audit of {self.backbone}, {self.model}, on {self.dataset}</h4>{rows.to_html(index=False)}"


def audit(
    subject: Subject,
    strategies: Mapping[str, Strategy],
    options: AuditOptions,
    *,
    judge: Judge | None = None,
    skip_oracles: bool = False,
) -> Audit:
    """Apply strategies to a subject.

    Args:
        subject: of `open_subject`, with the same options.
        strategies: label -> strategy, either scope.
        options: draws, refresh, curves, seed.
        judge: adds the judged rates.
        skip_oracles: leave out, with a remark, the oracles where there is no ground truth, instead of OptionError.

    Raises:
        OptionError: an oracle without ground truth, or nothing left to audit.
        NegbenchError: a strategy that breaks its contract.
    """
    truth = subject.task.relevant is not None
    rows, remarks = [], []
    pools: dict[str, NDArray[np.uint8]] = {}
    with threads(subject.config.compute.threads), tempfile.TemporaryDirectory() as folder:
        for number, (label, strategy) in enumerate(strategies.items()):
            if "target" not in (slots := slots_of(strategy)):
                remarks.append(f"left out {label}: it corrupts the {slots[0]}, and an audit scores targets")
                continue
            try:
                if strategy.scope == "corpus":
                    file = Path(folder) / f"{number}.bits"
                    rows.append(corpus_row(subject, label, strategy, options, judge, file))
                    pools[label] = np.load(file)
                else:
                    rows.append(batch_row(subject, label, strategy, options, judge))
            except OptionError as error:
                if truth or not skip_oracles or not strategy.reads_truth:
                    raise
                remarks.append(f"left out {label}: {error}")
        if not rows:
            raise OptionError("; ".join(remarks))
        curves = curves_of(subject, pools, options)
        card = regime(subject.task, subject.val, sample=len(subject.rows))
    return Audit(
        backbone=subject.config.backbone.name,
        dataset=subject.dataset.identity,
        model=subject.model,
        truth=truth,
        judge="" if judge is None else judge.name,
        options=options,
        regime=card.summary(),
        rows=rows,
        curves=curves,
        remarks=[*subject.remarks, *remarks],
    )


def write_audits(audits: Sequence[Audit], folder: Path, key: str = "") -> list[Path]:
    """audit.csv (one row a strategy) and audit.json ({"key", "audits": [...]}, with the score curves).

    Returns:
        The two paths.
    """
    import pandas as pd

    table = folder / "audit.csv"
    with atomic_write(table) as file:
        file.write(pd.concat([found.frame() for found in audits]).to_csv(index=False))
    write_json(folder / "audit.json", {"key": key, "audits": [found.plain() for found in audits]})
    return [table, folder / "audit.json"]


def audit_cells(cells: Sequence[Cell], folder: Path, display: Display, scenes: Scenes) -> list[str]:
    """Audit a grid's strategies on the untrained model, once for each backbone and data set, into the grid's folder.

    An audit of the same cells that lies there already is kept. A backbone or data set that cannot be audited costs a
    remark and no more.

    Args:
        cells: of a comparison.
        folder: where audit.csv and audit.json go.
        display: shows the stages.
        scenes: shares what was loaded before.

    Returns:
        Remarks, one line each.
    """
    members_of: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        members_of.setdefault((cell.labels["backbone"], cell.labels["dataset"]), []).append(cell)
    key = hashlib.sha256(" ".join(sorted(cell.hash for cell in cells)).encode()).hexdigest()
    with suppress(DamagedError):  # it is made again
        if (folder / "audit.json").exists() and read_json(folder / "audit.json")["key"] == key:
            return []
    found, remarks = list[Audit](), list[str]()
    for members in members_of.values():
        first = members[0].config
        options = AuditOptions(queries=_GRID_QUERIES, seed=first.seed)
        chosen = {cell.labels["strategy"]: cell.config.strategy for cell in members}
        strategies = {
            label: registry.make("strategies", plugin.name, **plugin.options) for label, plugin in chosen.items()
        }
        try:
            reads = frozenset().union(*(planes_read(strategy, first.mining) for strategy in strategies.values()))
            subject = open_subject(first, "train", options, display, scenes=scenes, reads=reads)
            done = audit(subject, strategies, options, skip_oracles=True)
        except NegbenchError as error:
            remarks.append(str(error))
            continue
        found.append(replace(done, backbone=members[0].labels["backbone"]))
        remarks += done.remarks
    if found:
        write_audits(found, folder, key)
    return remarks
