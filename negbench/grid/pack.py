"""Sharing results: a comparison as one file, and several such files as one comparison.

A pack is a zip file of JSON and parquet with a manifest that holds the SHA-256 of every member: of each finished cell
the configuration, versions, points of its curves, result (with its regime cards) and per-query ranks, and the
comparison's tables. It holds no weights, nothing that unpickles, and no folder of the machine that made it. What is
read from a pack is taken for hostile: only members of known names and sizes are looked at, and nothing is extracted.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import stat
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from negbench import __version__
from negbench.config import RunConfig
from negbench.errors import NegbenchError, RunError, quoted
from negbench.files import atomic_write, intact, seal, write_json
from negbench.grid.comparison import KEY, ComparisonFolder, groups_of
from negbench.metrics.query_ranks import QueryRanks
from negbench.registry import registry

FORMAT = 1
ENDING = ".negbench.zip"
MERGED = "merged.json"  # in the folder of a merged comparison: which packs it came of
_CELL = ("config.json", "result.json", "metrics.jsonl", "ranks.parquet")
_TABLES = ("answer.md", "table.csv", "statistics.json", "calibration.json", "behaviour.csv", "regime.csv", "cost.csv")
_NAME = re.compile(rf"(manifest\.json|comparison\.json|tables/[a-z]+\.[a-z]+|cells/[0-9a-f]{{64}}/({'|'.join(_CELL)}))")
_MEMBER, _WHOLE, _MEMBERS = 64 * 2**20, 2**30, 100_000  # bytes of a member and of all, unpacked; how many
_PLACES = ("root", "file", "gallery", "allow_missing")  # options of a data set that say where it lies, not what it is
_RESULT = {  # what tables read of result.json
    **dict.fromkeys(("metrics", "baselines", "behaviour", "regime", "seconds", "peak_memory_mib"), dict),
    **dict.fromkeys(("behaviour_by_refresh", "regime_by_refresh", "remarks"), list),
    **dict.fromkeys(("negatives_seen", "steps", "images_encoded", "reported_epoch"), int),
}
_HELD = ("train", "loss", "backbone", "hybrid", "eval")  # sections that a table holds fixed
_FOLDERS = re.compile(r"(?<![^=:'\"\s(\[|])~?/(?!/)[^,)\s'\"]*/")  # of a path of this machine within a text


# --- packing -----------------------------------------------------------------------------------------------------


def write_pack(runs: Path, name: str, out: Path) -> int:
    """Write the finished cells of a comparison; the same cells give the same bytes. Returns how many cells.

    Args:
        runs: runs folder.
        name: of the comparison.
        out: the file.

    Raises:
        NegbenchError: no such comparison, no finished cell, a damaged one, or a map or swap matrix, whose cells are no
            table.
    """
    groups_of(runs, name)  # raises
    rows = [row for row in ComparisonFolder(runs / name).cells() if row["run"] is not None]
    rows = [row for row in rows if (runs / row["run"] / "result.json").exists()]
    if any(row.get("point") or row.get("system") for row in rows):
        raise RunError(f"'{name}' is a map or a swap matrix: a pack holds a comparison, whose cells share tables")
    tables = [path for file in _TABLES if (path := runs / name / file).exists()]
    members = {f"tables/{path.name}": _without_places(path.read_text("utf-8")).encode() for path in tables}
    for row in rows:
        folder = runs / row["run"]
        for file in _CELL:
            with intact(folder / file, f"delete {folder}, and compute the cell again") as path:
                content = path.read_bytes()
            if file.endswith(".json"):
                content = _dumped(_without_places(json.loads(content)))
            members[f"cells/{row['hash']}/{file}"] = content
    kept = [_without_places({key: row[key] for key in (*KEY, "seed", "hash")}) for row in rows]
    members["comparison.json"] = _dumped({"name": name, "cells": kept})
    listed = {member: {"sha256": _digest(data), "bytes": len(data)} for member, data in sorted(members.items())}
    head = _dumped({"format": FORMAT, "negbench": __version__, "comparison": name, "members": listed})
    with atomic_write(out, "w+b") as target, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in [("manifest.json", head), *sorted(members.items())]:
            info = zipfile.ZipInfo(member)  # of 1980, so that the bytes do not depend on the clock
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, data)
    return len(rows)


def _without_places(value: Any) -> Any:
    """Paths of this machine, in texts too, cut to their last part."""
    if isinstance(value, dict):
        return {key: _without_places(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_places(item) for item in value]
    if isinstance(value, str):
        whole = value.startswith(("/", "~/")) and "\n" not in value
        return Path(value).name if whole else _FOLDERS.sub("", value)
    return value


def _dumped(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# --- reading -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PackedCell:
    """A cell of a pack: `pack` is the file, `row` its labels, seed and hash, `files` its files by name."""

    pack: Path
    row: Mapping[str, Any]
    files: Mapping[str, bytes]

    @property
    def title(self) -> str:
        """For messages."""
        return f"{self.pack.name}: {self.row['strategy']} {self.row['loss']} seed {self.row['seed']}"

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """config.json."""
        value: dict[str, Any] = _parsed(self.files["config.json"], "config.json")
        return value

    @cached_property
    def config(self) -> RunConfig:
        """Of the run."""
        return RunConfig.model_validate(self.manifest["config"])

    @cached_property
    def result(self) -> dict[str, Any]:
        """result.json."""
        value: dict[str, Any] = _parsed(self.files["result.json"], "result.json")
        return value

    @cached_property
    def ranks(self) -> QueryRanks:
        """Per-query ranks; as many as the data set has queries."""
        from pyarrow import parquet

        buffer = io.BytesIO(self.files["ranks.parquet"])
        rows = parquet.read_metadata(buffer).num_rows  # before the rows themselves are made
        if rows != self.manifest["dataset"]["val_queries"]:
            raise RunError(f"{rows} rows of ranks, but {self.manifest['dataset']['val_queries']} queries")
        return QueryRanks.from_frame(pd.read_parquet(buffer))

    @property
    def table(self) -> str:
        """What the cell's table is asked to be: its data set as configured, its loss and its backbone."""
        data = {k: v for k, v in self.manifest["config"]["dataset"].items() if k not in _PLACES}
        return json.dumps([data, self.row["loss"], self.row["backbone"]], sort_keys=True)

    @property
    def data(self) -> dict[str, Any]:
        """What identifies the data, and the frozen and initial weights of the cell's seed."""
        names = ("train", "val", "gallery", "corpus", "train_queries", "val_queries", "text_template")
        return {name: self.manifest["dataset"][name] for name in names}

    def check(self) -> None:
        """Raise RunError unless the cell's files agree with each other."""
        try:
            agree = {
                "hash": self.manifest["hash"] == self.row["hash"],
                "seed": self.config.seed == self.row["seed"],
                "data set": self.manifest["dataset"]["val"] == self.row["dataset"],
                "queries": len(set(self.ranks.query)) == len(self.ranks),
                "data": bool(self.data and self.table and self.manifest["backbone"]["sha256"]),
                "versions": isinstance(self.manifest["versions"], dict),
                "main metric": self.result["main_metric"] in self.result["metrics"],
            }
            lacking = [key for key, kind in _RESULT.items() if not isinstance(self.result.get(key), kind)]
            if lacking:
                raise RunError(f"result.json lacks {', '.join(lacking)}: compute it with this version")
            data: Any = registry.get("datasets", self.config.dataset.name)
            found, told = data.summarise(self.ranks), self.result["metrics"]
            agree["metrics"] = set(found) == set(told) and all(
                math.isclose(found[k], told[k], abs_tol=1e-6) for k in told
            )
        except NegbenchError as error:
            raise RunError(f"{self.title}: {error}") from error
        except Exception as error:  # whatever a file holds that is not what a run writes
            raise RunError(
                f"{self.title}: is not what a run writes: {type(error).__name__} {quoted(str(error))}"
            ) from error
        wrong = [name for name, right in agree.items() if not right]
        if wrong:
            raise RunError(f"{self.title}: its files do not agree about {', '.join(wrong)}: have it packed again")


def read_pack(path: Path) -> list[PackedCell]:
    """The cells of a pack, each member checked against the manifest.

    Raises:
        RunError: no pack, a damaged one, or one that holds anything but a pack's regular files of a bearable size.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = dict(_members(archive, path))
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}") from error
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError) as error:
        raise RunError(f"{path} is no pack, or damaged: {error}") from error
    head = _parsed(members.get("manifest.json", b"{}"), f"{path}: manifest.json")
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise RunError(f"{path}: no pack of format {FORMAT}: pack it with this version of negbench")
    listed = head["members"] if isinstance(head.get("members"), dict) else {}
    found = {name: {"sha256": _digest(data), "bytes": len(data)} for name, data in members.items()}
    found.pop("manifest.json")
    if wrong := [name for name in sorted({*found, *listed}) if found.get(name) != listed.get(name)]:
        raise RunError(f"{path} is damaged: {wrong[0]} is not what its manifest says ({len(wrong)} such members)")
    table = _parsed(members.get("comparison.json", b"{}"), f"{path}: comparison.json")
    return list(_cells(path, table, members))


def _members(archive: zipfile.ZipFile, path: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of every member, none of which is more than it says and than is allowed."""
    infos = archive.infolist()
    twice = {name for name, count in Counter(info.filename for info in infos).items() if count > 1}
    if len(infos) > _MEMBERS or sum(info.file_size for info in infos) > _WHOLE:
        raise RunError(f"{path} is too large: at most {_MEMBERS:,} files and {_WHOLE // 2**20:,} MiB are read")
    for info in infos:
        kind = stat.S_IFMT(info.external_attr >> 16)
        plain = kind in (0, stat.S_IFREG) and info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if not _NAME.fullmatch(info.filename) or not plain or info.filename in twice:
            raise RunError(
                f"{path} holds {quoted(info.filename)}, which is no file of a pack: nothing was taken from it"
            )
        if info.file_size > _MEMBER:
            raise RunError(f"{path}: {info.filename} has {info.file_size:,} bytes, more than {_MEMBER:,}")
        with archive.open(info) as file:
            yield info.filename, file.read(_MEMBER + 1)[: info.file_size]


def _cells(path: Path, table: Any, members: Mapping[str, bytes]) -> Iterator[PackedCell]:
    rows = table.get("cells") if isinstance(table, dict) else None
    if not isinstance(rows, list) or not rows:
        raise RunError(f"{path} holds no cell")
    for row in rows:
        fit = isinstance(row, dict) and set(row) == {*KEY, "seed", "hash"}
        if not fit or not all(_is_label(row[key]) for key in (*KEY, "hash")) or type(row["seed"]) is not int:
            raise RunError(f"{path}: {quoted(row)} is no cell of a comparison")
        files = {file: members.get(f"cells/{row['hash']}/{file}") for file in _CELL}
        if None in files.values():
            raise RunError(f"{path}: the cell {row['hash'][:12]} lacks files")
        yield PackedCell(path, row, files)  # type: ignore[arg-type]


def _is_label(value: Any) -> bool:
    """One line for tables, terminals and pages."""
    return isinstance(value, str) and 0 < len(value) <= 300 and value.isprintable() and not set(value) & set('<>"&')


def _parsed(data: bytes, what: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{what} is damaged: {quoted(str(error))}") from error


# --- merging -----------------------------------------------------------------------------------------------------


def merge(packs: Sequence[Path], runs: Path, name: str, plugins: Sequence[str] = ()) -> list[str]:
    """Make one comparison of several packs, with its cells in `cells/HASH` of its folder; returns remarks.

    Args:
        packs: files of `write_pack`.
        runs: runs folder.
        name: of the comparison that is made; one that was merged before is replaced.
        plugins: files of this machine that define data sets the packs speak of; no pack's own plug-in is loaded.

    Raises:
        RunError: a hostile or damaged pack, cells that do not belong together, or a folder that holds something else.
    """
    book = ComparisonFolder(runs / name)
    if book.path.exists() and not (book.path / MERGED).exists():
        raise RunError(f"{book.path} is there already, and was not merged: give another --name")
    cells = [cell for path in packs for cell in read_pack(path)]
    for cell in cells:
        cell.check()
    _check_tables(cells)
    kept, remarks = _distinct(cells)
    remarks += _differing(kept)
    rows = []
    for cell in kept:
        folder = book.path / "cells" / cell.row["hash"]
        seal(folder)
        for file, content in cell.files.items():
            with atomic_write(folder / file, "wb") as target:
                target.write(content)
        packed = {**cell.manifest["config"], "plugins": list(plugins)}
        write_json(folder / "config.json", {**cell.manifest, "config": packed})
        rows.append({**cell.row, "run": str(folder.relative_to(runs)), "error": None, "pack": cell.pack.name})
    book.write_rows(rows)
    taken = [{"file": path.name, "sha256": _digest(path.read_bytes())} for path in packs]
    write_json(book.path / MERGED, {"packs": taken, "remarks": remarks})
    return remarks


def _check_tables(cells: Sequence[PackedCell]) -> None:
    """Raise RunError where the packs mean different data by one table, or have other queries for one data set."""
    tables: dict[str, dict[Path, list[PackedCell]]] = {}
    queries: dict[str, PackedCell] = {}
    weights: dict[tuple[str, int], PackedCell] = {}
    for cell in cells:
        by_pack = tables.setdefault(cell.table, {})
        by_pack.setdefault(cell.pack, []).append(cell)
        first = next(iter(by_pack.values()))
        if all(cell.data != other.data for other in first):
            other = first[0]
            differ = [key for key, value in cell.data.items() if value != other.data[key]]
            told = " and ".join(quoted(each.data[differ[0]]) for each in (other, cell))
            raise RunError(f"{cell.title} is on other data than {other.title}: {differ[0]} {told}; nothing was merged")
        known = queries.setdefault(cell.row["dataset"], cell)
        if known.ranks.query != cell.ranks.query:
            raise RunError(f"{cell.title} was scored on other queries than {known.title}; nothing was merged")
        same = weights.setdefault((cell.table + cell.data["val"], cell.row["seed"]), cell)
        started = [each.manifest["backbone"]["sha256"] for each in (same, cell)]
        if same.pack != cell.pack and started[0] != started[1]:  # within a pack, variants of a table may differ
            raise RunError(f"{cell.title} started from other weights than {same.title}; nothing was merged")


def _distinct(cells: Sequence[PackedCell]) -> tuple[list[PackedCell], list[str]]:
    """Each place of the tables once: the first pack's cell; and remarks on those that were computed twice.

    Raises:
        RunError: two cells of one place that are not the same run.
    """
    found: dict[tuple[Any, ...], PackedCell] = {}
    remarks = []
    for cell in cells:
        place = tuple(cell.row[key] for key in (*KEY, "seed"))
        first = found.setdefault(place, cell)
        if first.row["hash"] != cell.row["hash"]:
            raise RunError(
                f"{cell.title} and {first.title} are two runs of one place (other settings, code or weights: "
                f"{first.row['hash'][:8]} and {cell.row['hash'][:8]}); nothing was merged"
            )
        main = cell.result["main_metric"]
        one, two = first.result["metrics"][main], cell.result["metrics"][main]
        if first is not cell and one != two:
            remarks.append(
                f"{cell.title} came to {100 * two:.2f} in {main}, {first.pack.name} to {100 * one:.2f}, which is taken"
            )
    return list(found.values()), remarks


def _differing(cells: Sequence[PackedCell]) -> list[str]:
    """What the cells of a table differ in though a comparison holds it fixed."""
    tables: dict[str, dict[str, set[str]]] = {}
    for cell in cells:
        facts = {f"version of {k}": v for k, v in cell.manifest["versions"].items()}
        flat = cell.config.flat()
        facts |= {
            key: value for key, value in flat.items() if key.split(".")[0] in _HELD and key != "train.num_negatives"
        }
        mine = tables.setdefault(cell.table + cell.row["dataset"], {})
        for key, value in facts.items():
            mine.setdefault(key, set()).add(str(value))
    found = [
        f"cells of one table differ in {key}: {', '.join(sorted(values))}"
        for facts in tables.values()
        for key, values in facts.items()
        if len(values) > 1 and key != "eval.dev_seed"
    ]
    return list(dict.fromkeys(found))
