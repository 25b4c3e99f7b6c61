"""Write negatives for your own trainer to a file, from embeddings in files or from a data set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from negbench.data.scene import threads
from negbench.display import notes, stages
from negbench.errors import DataError, OptionError
from negbench.machine.files import atomic_write
from negbench.machine.room import device_named
from negbench.mining.mine import mine
from negbench.mining.planes import planes_read
from negbench.own.audit import configured
from negbench.own.miner import Miner
from negbench.own.subject import generator_of, open_subject
from negbench.settings.command_options import Audit, Mine
from negbench.settings.layers import plugin_layer

_LISTS = ("excluded", "relevant")


@dataclass(frozen=True)
class MinedNegatives:
    """Mined negatives: a row per query, and means over the queries.

    `frame` holds query, target, the negatives and their scores (a list each, no negative twice) and the other fields of
    `negbench.mining.mine.Mined`; for a data set also reference and text, and ids instead of rows. `source` names the
    data set and the model.
    """

    frame: pd.DataFrame
    summary: dict[str, float]
    source: str = ""


def write_negatives(asked: Mine) -> MinedNegatives:
    """Mine as requested and write the table: .parquet, or .jsonl with one object per row.

    Raises:
        NegbenchError: a user's mistake: files or options that do not fit, a strategy that cannot be mined ahead.
    """
    mined = _of_dataset(asked) if asked.queries is None else _of_files(asked)
    mined = replace(mined, frame=_distinct(mined.frame))
    frame = _shaped(mined.frame, asked)
    if asked.out.suffix == ".parquet":
        with atomic_write(asked.out, "wb") as file:
            frame.to_parquet(file, index=False)
    else:
        with atomic_write(asked.out) as file:
            frame.to_json(file, orient="records", lines=True, force_ascii=False)
    return mined


def _distinct(frame: pd.DataFrame) -> pd.DataFrame:
    """Drop repeated negatives of each query, with their scores: draws repeat if a pool holds fewer images."""
    distinct = frame.copy()
    drawn = zip(frame["negatives"], frame["scores"], strict=True)
    kept: list[dict[Any, float]] = [dict(zip(names, scores, strict=True)) for names, scores in drawn]
    distinct["negatives"] = pd.Series([list(row) for row in kept], dtype=object)
    distinct["scores"] = pd.Series([list(row.values()) for row in kept], dtype=object)
    return distinct


def _shaped(frame: pd.DataFrame, asked: Mine) -> pd.DataFrame:
    """Convert the table to the requested format; rows of fixed length omit queries with too few negatives."""
    if asked.format == "triplets":
        named = [name for name in ("query", "reference", "text", "target") if name in frame]
        long = frame[[*named, "negatives", "scores"]].explode(["negatives", "scores"])
        return long.rename(columns={"negatives": "negative", "scores": "score"}).astype({"score": float})
    if asked.format != "sentence-transformers":
        return frame
    full = frame[frame["negatives"].map(len) == asked.draws]
    if full.empty:
        raise DataError(f"no query has {asked.draws} different negatives: lower --draws")
    columns = {"anchor": full["text" if "text" in full else "query"], "positive": full["target"]}
    columns |= {f"negative_{place + 1}": full["negatives"].str[place] for place in range(asked.draws)}
    scores = [[own, *others] for own, others in zip(full["positive"], full["scores"], strict=True)]
    return pd.DataFrame({**columns, "score": pd.Series(scores, index=full.index, dtype=object)})


def _of_dataset(asked: Mine) -> MinedNegatives:
    """Apply a corpus strategy to a split scored by one model."""
    config, strategies, folder = configured(asked, asked.strategy)
    if len(strategies) > 1:
        raise OptionError(f"--strategy {asked.strategy}: name one strategy")
    (strategy,) = strategies.values()
    every = Audit(queries=0, seed=asked.seed)
    with stages("mine") as display:
        reads = planes_read(strategy, config.mining)
        subject = open_subject(config, asked.split, every, display, folder, reads=reads)
        notes(subject.remarks)
        queries, images = subject.dataset.queries, subject.dataset.images
        with threads(config.compute.threads), display.stage("mine", total=len(queries)) as advance:
            mined = mine(
                subject.task,
                strategy,
                refresh=asked.refresh,
                draws=asked.draws,
                generator=generator_of(every, "draws"),
                progress=advance,
            )
    names = {
        "query": [query.id for query in queries],
        "reference": [query.reference for query in queries],
        "text": [query.text for query in queries],
        "target": [query.target for query in queries],
        "negatives": [[images[column] for column in row] for row in mined.negatives.tolist()],
    }
    frame = pd.DataFrame(names).join(mined.frame().drop(columns="negatives"))
    source = f"{asked.split} of {config.dataset.name}, scored by {config.backbone.name} ({subject.model})"
    return MinedNegatives(frame, mined.summary(), source)


# --- embeddings in files -------------------------------------------------------------------------------------------


def _of_files(asked: Mine) -> MinedNegatives:
    """Mine from arrays."""
    plugin_layer(asked.plugin)
    assert asked.queries is not None
    assert asked.images is not None
    assert asked.targets is not None
    miner = Miner(
        asked.strategy,
        draws=asked.draws,
        seed=asked.seed,
        refreshes=asked.refresh,
        normalize=not asked.dot,
        device=device_named(asked.device),
    )
    table = _targets(asked.targets)
    known: dict[str, Any] = {name: table[name].tolist() for name in _LISTS if name in table}
    with stages("mine") as display, display.stage("mine", total=len(table)) as advance:
        mined = miner.refresh(
            _array("--queries", asked.queries),
            _array("--images", asked.images),
            table["target"].to_numpy(),
            **known,
            progress=advance,
        )
    frame = mined.frame()
    frame.insert(0, "query", np.arange(len(frame)))
    frame.insert(1, "target", table["target"].to_numpy())
    return MinedNegatives(frame, mined.summary())


def _array(flag: str, file: Path) -> np.ndarray[Any, Any]:
    """Read a .npy file without executing anything in it."""
    try:
        array = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{flag} {file}: cannot be read as .npy: {error}") from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{flag} {file}: holds several arrays; expected one, in a .npy file")
    return array


def _targets(file: Path) -> pd.DataFrame:
    """Read column `target`, and from a table also `excluded` and `relevant`, if present, as lists."""
    try:
        if file.suffix != ".parquet":
            return pd.DataFrame({"target": _array("--targets", file)})
        table = pd.read_parquet(file)
        if "target" not in table:
            raise ValueError(f"no column 'target' among {', '.join(map(str, table.columns))}")
        for name in set(_LISTS) & set(table):
            table[name] = [[] if cell is None else [int(value) for value in cell] for cell in table[name]]
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"--targets {file}: cannot be read: {error}") from error
    return table
