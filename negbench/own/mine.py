"""Negatives of a data set, by name, as a model sees it: for a trainer of one's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from negbench.config import ResolvedConfig
from negbench.contracts import Strategy, check_option
from negbench.data.scene import threads
from negbench.display import notes, stages
from negbench.errors import OptionError
from negbench.files import atomic_write
from negbench.mining.mine import mine
from negbench.mining.planes import planes_read
from negbench.own.subject import AuditOptions, open_subject
from negbench.runfolder import RunFolder

ENDINGS = (".parquet", ".jsonl")


@dataclass(frozen=True)
class NamedNegatives:
    """What was mined: a row a query, and means over the queries.

    `frame` holds query, reference, text, target (ids and words of the data set), negatives (a list of image ids), and
    the fields of `negbench.mining.mine.Mined`.
    """

    frame: pd.DataFrame
    summary: dict[str, float]
    model: str


def mine_dataset(
    config: ResolvedConfig,
    strategy: Strategy,
    *,
    split: str = "train",
    folder: RunFolder | None = None,
    draws: int = 1,
    seed: int = 0,
    refresh: int = 0,
) -> NamedNegatives:
    """Apply a corpus strategy to a split as one model scores it.

    Args:
        config: resolved; its backbone, data set and mining count.
        strategy: who may be drawn.
        split: whose queries and images.
        folder: finished run, whose weights are taken; None leaves the backbone untrained.
        draws: negatives of each query.
        seed: of the draws.
        refresh: what a strategy with a schedule is told.

    Raises:
        OptionError: a batch strategy, or an option out of range.
        NegbenchError: see `open_subject` and `mine`.
    """
    check_option("--draws", draws, draws >= 1, "at least 1")
    if strategy.scope != "corpus":
        raise OptionError(f"{type(strategy).__name__} chooses among the members of a batch: it cannot be mined ahead")
    options = AuditOptions(queries=0, refresh=refresh, seed=seed)
    with stages("mine") as display:
        reads = planes_read(strategy, config.mining)
        subject = open_subject(config, split, options, display, folder, reads=reads)
        notes(subject.remarks)
        queries, images = subject.dataset.queries, subject.dataset.images
        with threads(config.compute.threads), display.stage("mine", total=len(queries)) as advance:
            mined = mine(
                subject.task,
                strategy,
                refresh=refresh,
                draws=draws,
                generator=options.generator("draws"),
                progress=advance,
            )
    names = {
        "query": [query.id for query in queries],
        "reference": [query.reference for query in queries],
        "text": [query.text for query in queries],
        "target": [query.target for query in queries],
        "negatives": [[images[column] for column in row] for row in mined.negatives.tolist()],
    }
    return NamedNegatives(
        pd.DataFrame(names).join(mined.frame().drop(columns="negatives")), mined.summary(), subject.model
    )


def check_out(path: Path) -> None:
    """Raise OptionError unless negatives can be written under this name."""
    if path.suffix not in ENDINGS:
        raise OptionError(f"--out {path}: want a name that ends in {' or '.join(ENDINGS)}")


def write_negatives(frame: pd.DataFrame, path: Path) -> None:
    """As .parquet, or as .jsonl: an object a query."""
    if path.suffix == ".parquet":
        with atomic_write(path, "wb") as file:
            frame.to_parquet(file, index=False)
    else:
        with atomic_write(path) as file:
            frame.to_json(file, orient="records", lines=True, force_ascii=False)
