"""Write negatives for your own trainer to a file, from embeddings in files or from a data set."""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from negbench.checks.audit import configured
from negbench.checks.subject import generator_of, open_subject
from negbench.data.scene import threads
from negbench.datasets._read import Reader
from negbench.datasets._row_files import CELLS, ENDINGS, FileRow, names_of, read_rows, unwritten
from negbench.datasets._triplet_files import SEPARATOR
from negbench.display import notes, stages
from negbench.errors import DataError, OptionError, UnknownNameError, quoted
from negbench.machine.files import atomic_write
from negbench.machine.room import check_unpacked, device_named
from negbench.metrics.equal_rows import Copies
from negbench.mining.filters import Filters
from negbench.mining.mine import mine
from negbench.mining.mined import NO_FALLBACK
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
    `negbench.mining.mine.Mined`; for a data set also reference and text, and ids instead of rows. `images` counts
    the candidates; `source` names the data set and the model.
    """

    frame: pd.DataFrame
    summary: dict[str, float]
    images: int
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
            # without columns of unknown numbers: `datasets` takes a column of nulls for one of no numbers
            frame.dropna(axis="columns", how="all").to_json(file, orient="records", lines=True, force_ascii=False)
    return mined


def copies(candidates: Tensor, target: Tensor) -> list[str]:
    """Say how many targets [Q] have the same embedding as another of [N, ...] images; nothing where none has."""
    same = Copies.of(candidates.reshape(len(candidates), -1, candidates.shape[-1]))
    count = int(torch.isin(target, torch.cat(same)).sum())
    what = f"{count:,} of {len(target):,} targets have the same embedding as another image, which may be drawn"
    return [f"{what}: leave such copies out with --set mining.max_target=0.999"] * bool(count)


def _distinct(frame: pd.DataFrame) -> pd.DataFrame:
    """Drop repeated negatives of each query, with their scores: draws repeat if a pool holds fewer images."""
    distinct = frame.copy()
    drawn = zip(frame["negatives"], frame["scores"], strict=True)
    kept: list[dict[Any, float]] = [dict(zip(names, scores, strict=True)) for names, scores in drawn]
    distinct["negatives"] = pd.Series([list(row) for row in kept], dtype=object)
    distinct["scores"] = pd.Series([list(row.values()) for row in kept], dtype=object)
    return distinct


def _shaped(frame: pd.DataFrame, asked: Mine) -> pd.DataFrame:
    """Convert the table to the requested format; rows of fixed length omit queries with too few, or that fell back."""
    if asked.format == "triplets":
        named = [name for name in ("query", "reference", "text", "target", "fallback") if name in frame]
        long = frame[[*named, "negatives", "scores"]].explode(["negatives", "scores"])
        return long.rename(columns={"negatives": "negative", "scores": "score"}).astype({"score": float})
    if asked.format != "sentence-transformers":
        return frame
    full = frame[(frame["negatives"].map(len) == asked.draws) & (frame["fallback"] == NO_FALLBACK)]
    if full.empty:
        raise DataError(f"no query has {asked.draws} different negatives without a fallback: lower --draws")
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
        with threads(config.compute.threads), display.stage("draw", total=len(queries)) as advance:
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
    notes(copies(subject.task.candidates, subject.task.target))
    return MinedNegatives(frame, mined.summary(), len(images), source)


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
    known, by_name = _targets(asked, names)
    target = known.pop("target")
    with stages("mine") as display, display.stage("draw", total=len(target)) as advance:
        mined = miner.refresh(
            queries, images, target, **known, exclude_relevant=mining.exclude_relevant, progress=advance
        )
    notes(copies(torch.as_tensor(images), torch.from_numpy(target)))
    frame = mined.frame()
    frame.insert(0, "query", np.arange(len(frame)))
    frame.insert(1, "target", target)
    if by_name:
        frame["target"] = [names[row] for row in frame["target"]]
        frame["negatives"] = [[names[column] for column in row] for row in frame["negatives"]]
    return MinedNegatives(frame, mined.summary(), len(images))


_SETTINGS = ("mining.exclude_relevant", "mining.margin", "mining.relative_margin", "mining.max_target")


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


def _targets(asked: Mine, names: Sequence[str]) -> tuple[dict[str, Any], bool]:
    """Read `target`, and from a table also the lists `excluded` and `relevant`; ids of images become their rows.

    Returns:
        The columns, and whether targets are ids.
    """
    file = asked.targets
    assert file is not None
    if file.suffix.lower() in ENDINGS:
        rows = read_rows(Reader(file.absolute().parent), file.absolute())
    else:
        try:
            array = np.load(file, allow_pickle=False)
            values = array.tolist()
            if array.ndim != 1:
                raise ValueError(f"expected [Q] rows or ids, got {array.shape}")
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"--targets {file}: cannot be read: {error}") from error
        rows = [FileRow(f"{file}: row {number}", number, {"target": value}) for number, value in enumerate(values, 1)]
    has = names_of(rows[0].values if rows else {})
    if "target" not in has:
        raise DataError(f"--targets {file}: no column 'target' among {', '.join(has)}")
    row_of = {name.replace("\\", "/"): index for index, name in enumerate(names)}  # the table keeps the file's own ids
    cells = file.suffix.lower() in CELLS

    def found(value: Any, where: str) -> Any:
        index = row_of.get(value.replace("\\", "/")) if isinstance(value, str) else value
        if index is not None:
            return index  # of other types, `Miner` takes whole numbers only
        if cells and not names and value.strip().isdecimal():
            return int(value)
        parts = {mark: [part.strip() for part in str(value).split(mark)] for mark in ("|", ",", ";", "\t", " ")}
        if mark := next((mark for mark, each in parts.items() if len(each) > 1 and {*each} <= {*row_of}), None):
            better = f"put {SEPARATOR!r} there" if cells else "write a list"
            raise DataError(f"{where}: {quoted(value)} is {len(parts[mark])} images with {mark!r} between: {better}")
        like = f"its ids are like {quoted(names[0])}" if names else "it has no ids"
        raise DataError(f"{where}: {quoted(value)} is not in {asked.images}: {like}")

    def listed(row: FileRow, name: str) -> list[Any]:
        where, value = f"--targets {row.where}, column '{name}'", unwritten(row.values.get(name))
        if isinstance(value, str) and cells:
            value = [part.strip() for part in value.split(SEPARATOR) if part.strip()]
        if not isinstance(value, list | None):
            raise DataError(f"{where}: expected a list, got {quoted(value)}")
        return [found(each, where) for each in value or ()]

    lists = {name: [listed(row, name) for row in rows] for name in _LISTS if name in has}
    given = [row.values["target"] for row in rows]
    targets = [found(value, f"--targets {row.where}") for value, row in zip(given, rows, strict=True)]
    try:
        column = np.array(targets)
    except ValueError as error:
        raise DataError(f"--targets {file}, column 'target': expected a row or an id in each cell") from error
    return {"target": column, **lists}, bool(names) and isinstance(given[0], str)
