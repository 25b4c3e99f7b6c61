"""i-CIR: 202 objects, each with a database of its own full of judged negatives; for evaluation only."""

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import Self

import torch
from torch import Tensor

from negbench.contracts import Query, check_option
from negbench.contracts.card import DatasetCard
from negbench.datasets.dataset import Dataset, FolderOptions, columns_of
from negbench.datasets.galleries import Block
from negbench.errors import DataError, short_repr
from negbench.files.image_files import EXTENSIONS, ImageFiles
from negbench.files.reader import Reader, check_type, get, parse_json
from negbench.machine.received import check_regular, check_unpacked
from negbench.metrics.average_precision import trapezoid_average_precision
from negbench.metrics.fixed import KINDS
from negbench.metrics.metric import Metric, precision, value_of_ranking
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.ragged import Ragged
from negbench.metrics.ranks import positions

PAPER = "Psomas et al., Instance-Level Composed Image Retrieval, NeurIPS 2025"

TREE = (
    "query_files.csv, database_files.csv, query/, database/; or annotations/query_files.csv, "
    "annotations/database_files.csv, webdataset/query/*.tar, webdataset/database/*.tar"
)
AUTHORS_MAP = "map"  # as the authors' code computes it
_METRICS = {
    AUTHORS_MAP: Metric((value_of_ranking(AUTHORS_MAP),)),
    "map_ties": Metric((precision(2**31),)),  # a cut-off after any gallery
}

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
    main=AUTHORS_MAP,
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
        home = ""
        try:
            reader = Reader.find(options.root, CARD, marker="query_files.csv", tree=TREE)
        except DataError:
            home = "annotations/"
            reader = Reader.find(options.root, CARD, marker=f"{home}query_files.csv", tree=TREE)
        galleries: dict[str, dict[str, set[str]]] = {}
        for _, image, text, instance in _rows(reader, f"{home}database_files.csv", texts_needed=False):
            galleries.setdefault(instance, {}).setdefault(image, set()).add(text)
        queries: list[Query] = []
        for where, image, text, instance in _rows(reader, f"{home}query_files.csv", texts_needed=True):
            right = tuple(name for name, texts in galleries.get(instance, {}).items() if text in texts)
            if not right:
                raise DataError(f"{where}: no image of instance {short_repr(instance)} has the text {short_repr(text)}")
            queries.append(Query(f"{len(queries):04}", image, text, right[0], instance, right))
        remarks: tuple[str, ...] = ()
        if (len(queries), len(galleries)) != (1883, 202):
            remarks = (f"{len(queries):,} queries of {len(galleries):,} instances, but 1,883 of 202 are published",)
        data = cls(CARD, split, queries, *columns_of(galleries), reader.content, remarks=remarks)
        files = None
        if images and home:
            paths = {}
            for tar in sorted(reader.root.glob("webdataset/*/*.tar")):
                for image, path in _pictures_in(tar):
                    paths[image] = (path,)
            files = ImageFiles(reader.root, paths, TREE)
        elif images:
            files = ImageFiles.scan(reader.root, key=_id, files=reader.files, tree=TREE)
        return data.loaded(files, reader.root, allow_missing=options.allow_missing)

    @classmethod
    def metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """The authors' mean average precision in their order of ties; the common one with ties against the model."""
        return dict(_METRICS)

    def _rank_block(self, block: Block) -> QueryRanks:
        """Rank a block, adding the authors' average precision: equal scores keep the order of the database."""
        right = self._right(block.rows, block.local, len(block.columns))
        scores = block.scores.float().cpu()
        position = positions(scores, torch.ones_like(right))[right]
        lengths = right.sum(1)
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        average_precision = trapezoid_average_precision(Ragged(position, offsets))
        return replace(super()._rank_block(block), values={AUTHORS_MAP: average_precision})

    def _right(self, rows: Tensor, local: Tensor, width: int) -> Tensor:
        """[b, width] bool, the right images of the queries."""
        assert self.relevant is not None  # `load` refuses a query without an answer
        return self.relevant.select(rows).mask(local, width)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Visual, and unspecified: the files do not tell the paper's three kinds of hard negatives apart."""
        return ("visual", "unspecified")

    def kind_table(self, rows: Tensor, columns: Tensor) -> Tensor:
        """As `Dataset.kind_table`, by an image's folder."""
        hard = ["unspecified" if "/hn/" in self.images[column] else "visual" for column in columns.tolist()]
        local = torch.full((len(self.images),), -1)
        local[columns] = torch.arange(len(columns))
        codes = torch.tensor([KINDS.index(kind) + 1 for kind in hard], dtype=torch.int8)
        return codes.masked_fill(self._right(rows, local, len(columns)), 0)


def _rows(reader: Reader, name: str, *, texts_needed: bool) -> Iterator[tuple[str, str, str, str]]:
    """Yield where it stands, image, text and instance of every row; only a query must have a text."""
    for where, line in reader.lines(reader.root / name):
        fields = [field.strip() for field in line.split(",")]
        image, text, instance = fields if len(fields) == 3 else ("", "", "")
        if not image or not instance or (texts_needed and not text):
            raise DataError(f"{where}: expected image,text,instance without other commas, got {short_repr(line)}")
        yield where, _id(PurePath(image)), text, instance


def _id(path: PurePath) -> str:
    """Return a path from its folder query or database on: tables and shards put other folders before it."""
    start = next((index for index, part in enumerate(path.parts) if part in ("query", "database")), 0)
    return "/".join(path.parts[start:])


def _pictures_in(tar: Path) -> Iterator[tuple[str, Path]]:
    """Yield id and path of every picture in a shard; KEY.json beside KEY.jpg says in `img_path` which it is."""
    pictures: dict[str, Path] = {}
    names: dict[str, str] = {}
    try:
        check_regular(tar)
        with tarfile.open(tar, "r:") as archive:
            for member in archive:
                key, _, ending = member.name.rpartition("/")[2].partition(".")
                file = archive.extractfile(member) if ending == "json" else None
                if file is not None:
                    check_unpacked(tar, member.size)  # a sparse file claims what it likes
                    where = f"{tar}: {member.name}"
                    entry = check_type(parse_json(file.read().decode(), where), dict, where)
                    names[key] = _id(PurePath(get(entry, "img_path", str, where)))
                elif f".{ending.lower()}" in EXTENSIONS:
                    pictures[key] = tar / f"@{member.offset_data}+{member.size}" / f"{key}.{ending}"
    except (OSError, tarfile.TarError, UnicodeDecodeError) as error:
        raise DataError(f"{tar} is not a readable tar file: fetch it again ({error})") from error
    for key, path in pictures.items():
        if key in names:
            yield names[key], path
