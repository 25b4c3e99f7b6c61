"""i-CIR: 202 objects, each with a database of its own full of judged negatives; for evaluation only."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import Self

import torch
from torch import Tensor

from negbench.contracts import Query, check_option
from negbench.datasets._galleries import Block
from negbench.datasets._read import Reader, get, parsed, quoted, typed
from negbench.datasets.card import DatasetCard
from negbench.datasets.dataset import Dataset, FolderOptions, columns_of
from negbench.datasets.image_files import EXTENSIONS, ImageFiles
from negbench.errors import DataError
from negbench.metrics.average_precision import trapezoid_average_precision
from negbench.metrics.metric import Metric, precision, stored
from negbench.metrics.mistakes import KINDS
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.ragged import Ragged
from negbench.metrics.ranks import places

PAPER = "Psomas et al., Instance-Level Composed Image Retrieval, NeurIPS 2025"

TREE = (
    "query_files.csv, database_files.csv, query/, database/; or annotations/query_files.csv, "
    "annotations/database_files.csv, webdataset/query/*.tar, webdataset/database/*.tar"
)
PARTS = ("query", "database")
OWN = "map"  # as the authors' code computes it
_EVERY = 2**31  # a cut-off after any gallery
_METRICS = {OWN: Metric((stored(OWN),)), "map_ties": Metric((precision(_EVERY),))}
_VISUAL, _UNSPECIFIED = (1 + KINDS.index(kind) for kind in ("visual", "unspecified"))

CARD = DatasetCard(
    name="icir",
    protocol="instances",
    source="https://github.com/billpsomas/icir",
    licence="CC BY-NC-SA 4.0",
    citation=PAPER,
    gallery="the database images of the query's instance",
    exclude_reference=False,  # queries are no database images
    text_template="as written, stripped",
    metrics=tuple(_METRICS),
    main=OWN,
)


@dataclass(frozen=True, eq=False)
class Icir(Dataset):
    """i-CIR as a folder or as WebDataset shards, whose pictures are read in place.

    A group is an instance. A query is answered by the database images of its instance and text; the instance's rows of
    another text are visual negatives, and what lies in a folder `hn` is a judged negative of no known kind.
    """

    @classmethod
    def load(cls, options: FolderOptions, split: str = "val", images: bool = True) -> Self:
        """Read the only split, val; arguments and errors as for `Dataset.load`."""
        check_option("split", split, split == "val", "val (i-CIR has one set of queries, and nothing to train on)")
        try:
            reader, home = Reader.find(options.root, CARD, marker="query_files.csv", tree=TREE), ""
        except DataError:
            home = "annotations/"
            reader = Reader.find(options.root, CARD, marker=f"{home}query_files.csv", tree=TREE)
        galleries: dict[str, dict[str, set[str]]] = {}
        for _, image, text, instance in _rows(reader, f"{home}database_files.csv"):
            galleries.setdefault(instance, {}).setdefault(image, set()).add(text)
        queries = list[Query]()
        for where, image, text, instance in _rows(reader, f"{home}query_files.csv"):
            right = tuple(name for name, texts in galleries.get(instance, {}).items() if text in texts)
            if not right:
                raise DataError(f"{where}: no image of instance {quoted(instance)} has the text {quoted(text)}")
            queries.append(Query(f"{len(queries):04}", image, text, right[0], instance, right))
        data = cls(CARD, split, queries, *columns_of(galleries), reader.content)
        found = (len(queries), len(galleries))
        remark = f"{found[0]:,} queries of {found[1]:,} instances, but 1,883 of 202 are published"
        files = _files(reader, shards=bool(home)) if images else None
        data = replace(data, remarks=() if found == (1883, 202) else (remark,))
        return data.loaded(files, reader.root, allow_missing=options.allow_missing)

    @classmethod
    def metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """The authors' mean average precision in their order of ties; the common one with ties against the model."""
        return dict(_METRICS)

    def _ranked(self, block: Block) -> QueryRanks:
        """Rank a block, adding the authors' average precision: equal scores keep the order of the database."""
        ranks = super()._ranked(block)
        rows, _, local, scores = block
        known = self._right(rows)
        row = torch.arange(len(rows)).repeat_interleave(known.lengths)
        place = places(scores.float().cpu(), torch.ones_like(scores, dtype=torch.bool, device="cpu"))
        own = trapezoid_average_precision(Ragged(place[row, local[known.values]], known.offsets))
        return replace(ranks, values={OWN: own})

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Visual, and unspecified: the paper's three kinds of hard negatives are not told apart in the files."""
        return ("visual", "unspecified")

    def kind_table(self, rows: Tensor, columns: Tensor) -> Tensor:
        """As `Dataset.kind_table`, by an image's folder."""
        hard = torch.tensor(["/hn/" in f"/{self.images[column]}" for column in columns.tolist()])
        local = torch.full((len(self.images),), -1)
        local[columns] = torch.arange(len(columns))
        right = self._right(rows).mask(local, len(columns))
        return torch.where(hard, _UNSPECIFIED, _VISUAL).masked_fill(right, 0).to(torch.int8)

    def _right(self, rows: Tensor) -> Ragged:
        assert self.relevant is not None  # `load` refuses a query without an answer
        return self.relevant.select(rows)


def _rows(reader: Reader, name: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield place, image, text and instance of every row; a path counts from its folder query or database."""
    for where, line in reader.lines(reader.root / name):
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != 3 or not all(fields):
            raise DataError(f"{where}: expected image,text,instance without other commas, got {quoted(line)}")
        image, text, instance = fields
        yield where, _id(PurePath(image), where), text, instance


def _id(path: PurePath, where: str = "") -> str:
    place = next((n for n, part in enumerate(path.parts) if part in PARTS), None)
    if place is None and where:
        raise DataError(f"{where}: {quoted(str(path))} is in no folder {' or '.join(PARTS)}")
    return "/".join(path.parts[place or 0 :])


def _files(reader: Reader, *, shards: bool) -> ImageFiles:
    if not shards:
        return ImageFiles.scan(reader.root, key=_id, files=reader.files, tree=TREE)
    tars = [path for part in PARTS for path in sorted((reader.root / "webdataset" / part).glob("*.tar"))]
    if not tars:
        raise DataError(f"{reader.root} has annotations, but no webdataset/*/*.tar; expected: {TREE}")
    return ImageFiles(reader.root, {image: (path,) for tar in tars for image, path in _members(tar)}, TREE)


def _members(tar: Path) -> Iterator[tuple[str, Path]]:
    """Yield id and place of every picture in a shard; KEY.json beside KEY.jpg says in `img_path` which it is."""
    pictures, names = dict[str, Path](), dict[str, str]()
    try:
        with tarfile.open(tar, "r:") as archive:
            for member in archive:
                key, _, ending = member.name.rpartition("/")[2].partition(".")
                if ending == "json":
                    file, where = archive.extractfile(member), f"{tar}: {member.name}"
                    entry = typed(parsed(file.read().decode() if file else "", where), dict, where)
                    names[key] = _id(PurePath(get(entry, "img_path", str, where)), where)
                elif f".{ending.lower()}" in EXTENSIONS:
                    pictures[key] = tar / f"@{member.offset_data}+{member.size}" / f"{key}.{ending}"
    except (OSError, tarfile.TarError, UnicodeDecodeError) as error:
        raise DataError(f"{tar} is not a readable tar file: fetch it again ({error})") from error
    yield from ((names[key], path) for key, path in pictures.items() if key in names)
