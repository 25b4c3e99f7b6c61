"""Write negatives for your own trainer to a file, from embeddings in files or from a data set."""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from negbench.checks.audit import configured
from negbench.checks.subject import generator_of, open_subject
from negbench.data.scene import threads
from negbench.display import notes, stages
from negbench.errors import DataError, OptionError, UnknownNameError, quoted
from negbench.machine.files import atomic_write
from negbench.machine.room import check_unpacked, device_named
from negbench.mining.filters import Filters
from negbench.mining.mine import mine
from negbench.mining.planes import planes_read
from negbench.own.miner import Miner
from negbench.settings.command_options import Audit, Mine
from negbench.settings.config import MiningConfig, build_config
from negbench.settings.layers import parse_set, plugin_layer, set_layer

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
                subject.task_of(strategy),
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
    assert asked.strategy is not None
    assert asked.queries is not None
    assert asked.images is not None
    assert asked.targets is not None
    mining = _settings(asked.sets)
    miner = Miner(
        asked.strategy,
        draws=asked.draws,
        seed=asked.seed,
        refreshes=asked.refresh,
        normalize=not asked.dot,
        device=device_named(asked.device),
        filters=Filters.of(mining),
    )
    _, queries = _vectors("--queries", asked.queries)
    names, images = _vectors("--images", asked.images)
    table, by_name = _rows(_targets(asked.targets), names, asked)
    known: dict[str, Any] = {name: table[name].tolist() for name in _LISTS if name in table}
    if mining.exclude_relevant:
        if "relevant" not in known:
            raise OptionError(f"mining.exclude_relevant: {asked.targets} has no column 'relevant'")
        pairs = zip(known.get("excluded", [()] * len(table)), known["relevant"], strict=True)
        known["excluded"] = [[*one, *other] for one, other in pairs]
    with stages("mine") as display, display.stage("mine", total=len(table)) as advance:
        mined = miner.refresh(queries, images, table["target"].to_numpy(), **known, progress=advance)
    frame = mined.frame()
    frame.insert(0, "query", np.arange(len(frame)))
    frame.insert(1, "target", table["target"].to_numpy())
    if by_name:
        frame["target"] = [names[row] for row in frame["target"]]
        frame["negatives"] = [[names[column] for column in row] for row in frame["negatives"]]
    return MinedNegatives(frame, mined.summary())


_SETTINGS = ("mining.exclude_relevant", "mining.margin", "mining.relative_margin")


def _settings(sets: Sequence[str]) -> MiningConfig:
    """Return the filters of `--set`; refuse settings that embeddings in files leave without effect."""
    for text in sets:
        if (key := ".".join(parse_set(text)[0])) not in _SETTINGS:
            raise UnknownNameError("setting", key, _SETTINGS, where="mining from embeddings in files")
    return build_config([{"strategy": "in-batch"}, *map(set_layer, sets)]).mining


def _vectors(flag: str, file: Path) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Read embeddings and, from .npz and .parquet, their names; [] where a file has none."""
    names: Any = ()
    try:
        if file.suffix == ".parquet":
            table = pd.read_parquet(file)
            wide = [column for column in table if len(table) and isinstance(table[column].iloc[0], np.ndarray)]
            if len(wide) != 1:
                raise ValueError(f"expected one column of lists, not {len(wide)}")
            names = next((table[column] for column in ("id", "ids") if column in table), ())
            vectors = np.stack([np.stack(cell) if cell.dtype == object else cell for cell in table[wide[0]]])
        else:
            with file.open("rb") as opened:
                arrays = np.load(opened, allow_pickle=False)
                vectors = arrays
                if not isinstance(arrays, np.ndarray):
                    check_unpacked(file)
                    key = next((key for key in ("ids", "texts") if key in arrays), None)
                    others = [name for name in arrays.files if name != key]
                    if len(others) != 1:
                        raise ValueError(f"expected one array besides ids, not {', '.join(others) or 'none'}")
                    names, vectors = arrays[key] if key else (), arrays[others[0]]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{flag} {file}: cannot be read: {error}") from error
    if len(names) and len(names) != len(vectors):
        raise DataError(f"{flag} {file}: {len(names)} names, but {len(vectors)} embeddings")
    return [str(name) for name in names], vectors


def _targets(file: Path) -> pd.DataFrame:
    """Read column `target`, and from a table also `excluded` and `relevant`, if present."""
    try:
        if file.suffix != ".parquet":
            return pd.DataFrame({"target": np.load(file, allow_pickle=False)})
        table = pd.read_parquet(file)
        if "target" not in table:
            raise ValueError(f"no column 'target' among {', '.join(map(str, table.columns))}")
        for name in set(_LISTS) & set(table):
            table[name] = [() if cell is None else cell for cell in table[name]]
    except (OSError, ValueError, TypeError, EOFError) as error:
        raise DataError(f"--targets {file}: cannot be read: {error}") from error
    return table


def _rows(table: pd.DataFrame, names: Sequence[str], asked: Mine) -> tuple[pd.DataFrame, bool]:
    """Replace ids of images by their rows; return the table, and whether it held ids."""
    by_name = bool(len(table)) and isinstance(table["target"].iloc[0], str)
    if not by_name:
        return table, False
    row = {name.replace("\\", "/"): index for index, name in enumerate(names)}  # the table keeps the file's own ids

    def found(name: object) -> int:
        index = row.get(str(name).replace("\\", "/"))
        if index is None:
            like = f"its ids are like {quoted(names[0])}" if names else "it has no ids"
            raise DataError(f"--targets {asked.targets}: {quoted(name)} is not in {asked.images}: {like}")
        return index

    rows = {"target": [found(name) for name in table["target"]]}
    lists = {name: [[found(each) for each in cell] for cell in table[name]] for name in _LISTS if name in table}
    return pd.DataFrame({**rows, **lists}), True
