"""Write negatives for your own trainer to a file, from embeddings in files or from a data set."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from negbench.data.scene import threads
from negbench.display import duration, notes, progress
from negbench.errors import DataError, OptionError, UnknownNameError, short_repr
from negbench.files.image_files import Spellings
from negbench.files.row_files import ENDINGS, FileRow, check_one, names_of, read_rows
from negbench.files.vector_files import read_list, read_vectors
from negbench.loop.mining_task import planes_read
from negbench.loop.record import peak_memory_mib
from negbench.loop.runs import DATA
from negbench.machine.files import atomic_write
from negbench.machine.heap import keep_memory
from negbench.machine.received import npy_array
from negbench.machine.room import find_device
from negbench.mining.filters import Filters
from negbench.mining.mine import mine
from negbench.mining.mined import NO_FALLBACK, copies_note
from negbench.own.miner import Miner
from negbench.own.scored_split import configure, generator_of, open_split
from negbench.settings.command_options import Mine
from negbench.settings.config import MiningConfig, build_config
from negbench.settings.layers import parse_set, plugin_layer, set_layer

_LISTS = ("excluded", "relevant")
# columns that lack values in some rows or files; JSONL omits them, because `datasets` expects the columns and types of
# the first file in all others
_NOT_IN_JSONL = ("false_negative_rate_pool", "false_negative_rate_draws", "overlap", "kind_draws", "kind_random")
_SAMPLE = 256  # queries of a dry run


@dataclass(frozen=True)
class MinedNegatives:
    """Mined negatives: a row per query, and means over the queries.

    `frame` holds query, target, the negatives and their scores (one list each; from `write_negatives` without repeats)
    and the other fields of `negbench.mining.mined.Mined`; for a data set also reference and text, and ids instead of
    rows. `images` counts the candidates, `kept` the queries in the file, `seconds` those of the mining; `source` names
    the data set and the model.
    """

    frame: pd.DataFrame
    summary: dict[str, float]
    images: int
    seconds: float
    source: str = ""
    kept: int = 0


def write_negatives(options: Mine) -> MinedNegatives:
    """Mine as requested and write the table: .parquet, or .jsonl with one object per row.

    Repeated negatives of a query are dropped, from JSONL also the columns that may lack values (`_NOT_IN_JSONL`).

    Raises:
        NegbenchError: a user's mistake: files or options that do not fit, a strategy that cannot be mined ahead.
    """
    result, _ = _mine_rows(options)
    result = replace(result, frame=_drop_repeats(result.frame))
    frame = _shape_table(result.frame, options)
    notes(copies_note(result.summary, len(result.frame)))
    result = replace(result, kept=frame.index.nunique())
    if options.out.suffix == ".parquet":
        with atomic_write(options.out, "wb") as file:
            frame.to_parquet(file, index=False)
    else:
        with atomic_write(options.out) as file:
            full_columns = frame.drop(columns=[*_NOT_IN_JSONL], errors="ignore")
            full_columns.to_json(file, orient="records", lines=True, force_ascii=False)
    return result


def dry_run(options: Mine) -> list[str]:
    """Mine for a few queries; say what is read, and what mining for all of them takes."""
    result, total = _mine_rows(options, _SAMPLE)
    count = len(result.frame)
    source = result.source or f"{options.queries}, {options.images} and {options.targets}"
    took = f"{duration(result.seconds * total / max(1, count))} of mining, {peak_memory_mib()['process']:,.0f} MiB"
    return [f"reads {source}: {total:,} queries, {result.images:,} images", f"{took} (measured on {count:,} queries)"]


def _mine_rows(options: Mine, sample: int = 0) -> tuple[MinedNegatives, int]:
    """Mine for `sample` queries, or for all if it is 0; also return how many there are."""
    keep_memory()
    if options.queries is None:
        return _mine_dataset(options, sample)
    return _mine_files(options, sample)


def _mine_dataset(options: Mine, sample: int) -> tuple[MinedNegatives, int]:
    """Apply a corpus strategy to a split scored by one model."""
    config, strategies, folder = configure(options, options.strategy)
    if len(strategies) > 1:
        raise OptionError(f"--strategy {options.strategy}: name one strategy")
    (strategy,) = strategies.values()
    with progress("mine") as display:
        reads = planes_read(strategy, config.mining)
        scored = open_split(config, options.split, display, folder, reads, queries=sample, seed=options.seed)
        notes(scored.remarks)
        queries = [scored.dataset.queries[row] for row in scored.rows.tolist()]  # all, or the sample of a dry run
        images = scored.dataset.images
        with threads(config.compute.threads), display.stage("draw", total=len(queries)) as advance:
            mined = mine(
                scored.task_of(strategy),
                strategy,
                refresh=options.refresh,
                draws=options.draws,
                generator=generator_of(options.seed, "draws"),
                progress=advance,
            )

    spelled = scored.dataset.spelled  # image -> how the user's files name it
    negatives = []
    for columns_of_query in mined.negatives.tolist():
        names = [images[column] for column in columns_of_query]
        negatives.append([spelled.get(name, name) for name in names])
    fields = {
        "query": [query.id for query in queries],
        "reference": [spelled.get(query.reference, query.reference) for query in queries],
        "text": [query.text for query in queries],
        "target": [spelled.get(query.target or "", query.target) for query in queries],
        "negatives": negatives,
    }
    frame = pd.DataFrame(fields).join(mined.frame().drop(columns="negatives"))
    total = len(queries)
    if sample:
        total = len(DATA.dataset(config.dataset, options.split, images=False).queries)
    source = f"{options.split} of {config.dataset.name}, scored by {config.backbone.name} ({scored.model})"
    return MinedNegatives(frame, mined.summary(), len(images), display.seconds["draw"], source), total


# --- embeddings in files -------------------------------------------------------------------------------------------


def _mine_files(options: Mine, sample: int) -> tuple[MinedNegatives, int]:
    """Mine from arrays."""
    plugin_layer(options.plugin)
    assert options.strategy is not None
    assert options.queries is not None
    assert options.images is not None
    assert options.targets is not None
    mining = _read_filters(options.sets)
    miner = Miner(
        options.strategy,
        draws=options.draws,
        seed=options.seed,
        refreshes=options.refresh,
        normalize=not options.dot,
        device=find_device(options.device),
        filters=Filters.of(mining),
    )
    texts, queries = _read_embeddings("--queries", options.queries)
    names, images = _read_embeddings("--images", options.images, once="image")
    target, lists = _read_targets(options.targets, options.images, names)
    total = len(target)
    if sample:
        queries = queries[:sample]
        target = target[:sample]
        lists = {name: columns[:sample] for name, columns in lists.items()}
    with progress("mine") as display, display.stage("draw", total=len(target)) as advance:
        mined = miner.refresh(
            queries, images, target, **lists, exclude_relevant=mining.exclude_relevant, progress=advance
        )
    frame = mined.frame()
    frame.insert(0, "query", texts or np.arange(len(frame)))
    frame.insert(1, "target", target)
    if names:
        frame["target"] = [names[column] for column in frame["target"]]
        negatives = []
        for columns in frame["negatives"]:
            negatives.append([names[column] for column in columns])
        frame["negatives"] = negatives
    return MinedNegatives(frame, mined.summary(), len(images), display.seconds["draw"]), total


_SETTINGS = ("mining.exclude_relevant", "mining.margin", "mining.relative_margin", "mining.max_target")


def _read_filters(sets: Sequence[str]) -> MiningConfig:
    """Return the filters of `--set`; refuse settings that embeddings in files leave without effect."""
    for text in sets:
        path, _ = parse_set(text)
        key = ".".join(path)
        if key not in _SETTINGS:
            raise UnknownNameError("setting", key, _SETTINGS, where="mining from embeddings in files")
    layers = [set_layer(text) for text in sets]
    return build_config([{"strategy": "in-batch"}, *layers]).mining


def _read_embeddings(flag: str, file: Path, once: str = "") -> tuple[list[str], np.ndarray[Any, Any]]:
    """Read embeddings and their names, [] where a file has none; `once` as for `read_vectors`."""
    try:
        return read_vectors(file, "", once)
    except DataError as error:
        raise DataError(f"{flag} {error}") from error


def _read_targets(
    file: Path, images: Path, names: Sequence[str]
) -> tuple[np.ndarray[Any, Any], dict[str, list[list[Any]]]]:
    """Read [Q] targets, and from a table also the lists `excluded` and `relevant`; ids of images become their rows."""
    rows = _read_target_rows(file)
    columns = names_of(rows[0].values if rows else {})
    if "target" not in columns:
        raise DataError(
            f"--targets {file}: no column 'target' among {', '.join(columns)}: name it in the first line, or save "
            "a list of names, one a line, as .txt"
        )
    finder = _RowFinder(images, names)
    lists: dict[str, list[list[Any]]] = {}
    for name in _LISTS:
        if name in columns:
            lists[name] = []
            for row in rows:
                entries = row.entries(name, row.values.get(name))
                lists[name].append([finder.row_or_value(row, name, entry) for entry in entries])
    targets = [finder.row_or_value(row, "target", row.values["target"]) for row in rows]
    try:
        target = np.array(targets)
    except ValueError as error:
        raise DataError(f"--targets {file}, column 'target': expected a row or an id in each cell") from error
    return target, lists


class _RowFinder:
    """Rows of the image embeddings by what a table of targets calls them.

    Args:
        images: file of the embeddings, for messages.
        names: ids of the images; none: the file has none, and tables give rows.
    """

    def __init__(self, images: Path, names: Sequence[str]) -> None:
        self.images = images
        self.names = names
        self._row_of = {name: index for index, name in enumerate(names)}
        self._spellings = Spellings(names)
        self._ids_are_numbers = bool(names) and all(name.isdecimal() for name in names)

    def find(self, value: Any) -> int | None:
        """Return the row of an id, or of a number if there are no ids; None if there is none."""
        if self.names:
            return self._row_of.get(self._spellings.find(str(value)) or "")
        number = re.fullmatch(r"(\d+)(\.0)?", str(value).strip())  # as pandas writes whole numbers with a gap
        return int(number[1]) if number else None

    def is_image(self, value: Any) -> bool:
        """Whether this is the id of an image, or a number if there are no ids."""
        return self.find(value) is not None

    def row_or_value(self, row: FileRow, column: str, value: Any) -> Any:
        """Return the row of the image that a cell names; the cell as it is if it is no text and no id.

        `Miner` then takes whole numbers only.

        Raises:
            DataError: an empty cell, an unknown id, or a number that is a row and the id of another.
        """
        where = row.where_of(column)
        if value is None:
            raise DataError(f"{where} is missing")
        if not isinstance(value, str):
            index = self.find(value) if self._ids_are_numbers else None
            if index is None:
                return value
            if index != value and value < len(self.names):
                raise DataError(f"{where}: {value} is a row and the id of another: write ids as texts")
            return index
        index = self.find(value) if self.names or row.cells else None
        if index is None:
            check_one(value, where, self.is_image)
            like = f"its ids are like {short_repr(self.names[0])}" if self.names else "it has no ids"
            raise DataError(f"{where}: {short_repr(value)} is not in {self.images}: {like}")
        return index


def _read_target_rows(file: Path) -> list[FileRow]:
    """Read the rows of a table, or of a list of targets: .txt, one a line, or .npy."""
    if file.suffix.lower() in ENDINGS:
        return read_rows(file)
    is_list = file.suffix.lower() == ".txt"
    try:
        values = read_list(file) if is_list else _column(file)
    except (DataError, OSError, ValueError, EOFError) as error:
        raise DataError(f"--targets {file}: cannot be read: {error}") from error
    rows = []
    for number, value in enumerate(values, start=1):
        rows.append(FileRow(f"{file}: row {number}", number, {"target": value}, cells=is_list))
    return rows


def _column(file: Path) -> list[Any]:
    array = npy_array(file)
    if array.ndim != 1:
        raise ValueError(f"expected [Q] rows or ids, got {array.shape}")
    return list(array.tolist())


# --- formats -------------------------------------------------------------------------------------------------------


def _drop_repeats(frame: pd.DataFrame) -> pd.DataFrame:
    """Drop repeated negatives of each query, with their scores: draws repeat if a pool holds fewer images."""
    distinct = frame.copy()
    negatives = []
    scores = []
    for query_negatives, query_scores in zip(frame["negatives"], frame["scores"], strict=True):
        score_of = dict(zip(query_negatives, query_scores, strict=True))
        negatives.append(list(score_of))
        scores.append(list(score_of.values()))
    distinct["negatives"] = pd.Series(negatives, dtype=object)
    distinct["scores"] = pd.Series(scores, dtype=object)
    return distinct


def _shape_table(frame: pd.DataFrame, options: Mine) -> pd.DataFrame:
    """Convert the table to the requested format; rows of fixed length omit queries with too few, or that fell back."""
    if options.format == "triplets":
        columns = [name for name in ("query", "reference", "text", "target", "fallback") if name in frame]
        long = frame[[*columns, "negatives", "scores"]].explode(["negatives", "scores"])
        return long.rename(columns={"negatives": "negative", "scores": "score"}).astype({"score": float})
    if options.format == "flagembedding":
        return _flag_embedding_table(_full_rows(frame, 1))
    if options.format == "sentence-transformers":
        return _sentence_transformers_table(_full_rows(frame, options.draws), options)
    return frame


def _full_rows(frame: pd.DataFrame, least: int) -> pd.DataFrame:
    """Return the queries that have `least` negatives and did not fall back. Raises DataError if there is none."""
    counts = frame["negatives"].map(len)
    full = frame[(counts >= least) & (frame["fallback"] == NO_FALLBACK)]
    if full.empty:
        raise DataError(f"no query has {least} different negatives without a fallback: lower --draws")
    return full


def _flag_embedding_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the columns that FlagEmbedding reads: lists of positives and of negatives."""
    negatives = []
    for images in frame["negatives"]:
        negatives.append([str(image) for image in images])
    return pd.DataFrame(
        {
            "query": _query_texts(frame).map(str),
            "pos": pd.Series([[str(image)] for image in frame["target"]], index=frame.index, dtype=object),
            "neg": pd.Series(negatives, index=frame.index, dtype=object),
            "pos_scores": pd.Series([[score] for score in frame["positive"]], index=frame.index, dtype=object),
            "neg_scores": frame["scores"],
        }
    )


def _sentence_transformers_table(frame: pd.DataFrame, options: Mine) -> pd.DataFrame:
    """Return the columns that sentence-transformers reads: one for each negative, and a list of all scores."""
    query = _with_reference(frame) if options.with_reference else _query_texts(frame)
    columns = {"anchor": query, "positive": frame["target"]}
    for draw in range(options.draws):
        columns[f"negative_{draw + 1}"] = frame["negatives"].str[draw]
    scores = [[positive, *others] for positive, others in zip(frame["positive"], frame["scores"], strict=True)]
    columns["score"] = pd.Series(scores, index=frame.index, dtype=object)
    return pd.DataFrame(columns)


def _query_texts(frame: pd.DataFrame) -> "pd.Series[Any]":
    """Return the queries' texts, or what embeddings in files call them."""
    return frame["text" if "text" in frame else "query"]


def _with_reference(frame: pd.DataFrame) -> "pd.Series[Any]":
    """Return an object of text and reference image for each query: what sentence-transformers encodes together."""
    if "reference" not in frame:
        raise OptionError("--with-reference: embeddings in files name no reference images: mine a data set")
    pairs = zip(frame["text"], frame["reference"], strict=True)
    cells = [{"text": text, "image": image} for text, image in pairs]
    return pd.Series(cells, index=frame.index, dtype=object)
