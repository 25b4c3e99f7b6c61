"""CIRR: photographs in groups of six look-alikes; recall over the split and within the group, no reference."""

import dataclasses
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from torch import Tensor

from negbench.contracts import Query
from negbench.contracts.card import Counts, DatasetCard
from negbench.datasets.dataset import Block, FolderOptions, ScoreBlock, Top, columns_of
from negbench.datasets.submission import HasTestServer, submittable
from negbench.errors import DataError, short_repr
from negbench.files.image_files import ImageFiles
from negbench.files.reader import Reader, check_choice, check_type, get, image_id, strings
from negbench.metrics.metric import Metric, hits, subset_hits
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.ragged import Ragged
from negbench.metrics.ranks import target_ranks

PAPER = "Liu et al., Image Retrieval on Real-life Images with Pre-trained Vision-and-Language Models, ICCV 2021"

SPLITS = ("train", "val", "test1")
VERSION = "rc2"  # of the annotation files; part of their names
GROUP = "all"
RECALLS = (1, 5, 10, 50)
SUBSET_RECALLS = (1, 2, 3)
SUBMITTED = 50  # ids per query that the test server takes
SUBSET_SUBMITTED = 3  # the same within a query's group
GROUP_SIZE = 6
TREE = (
    f"captions/cap.{VERSION}.SPLIT.json, image_splits/split.{VERSION}.SPLIT.json, and the images as "
    "train/0/ID.png ... train/99/ID.png (or train/ID.png), dev/ID.png, test1/ID.png, below img_raw or not (any folder "
    "will do, the name counts)"
)
IMAGE_FOLDERS = ("img_raw", "train", "dev", "test1")  # CLIP4Cir's tree has them beside `cirr`, the annotations

# entries of the caption files; images of the split files (the paper's table 2 has 4,184 val pairs, which its authors
# correct to 4,181, and 2,316 test images, of which split.rc2.test1.json holds 2,315)
_SIZES = {"train": Counts(28225, 16939), "val": Counts(4181, 2297), "test1": Counts(4148, 2315)}

_HITS = {f"recall_at_{k}": hits(k) for k in RECALLS} | {f"subset_recall_at_{k}": subset_hits(k) for k in SUBSET_RECALLS}
_METRICS = {name: Metric((values,)) for name, values in _HITS.items()} | {
    "average": Metric((_HITS["recall_at_5"], _HITS["subset_recall_at_1"])),
    "overall": Metric(tuple(_HITS.values())),
}


@dataclass(frozen=True, eq=False)
class Cirr(HasTestServer):
    """CIRR, version rc2."""

    @classmethod
    def load(cls, options: FolderOptions, split: str = "val", images: bool = True) -> Self:
        """Read one split of the published annotation files; arguments and errors as for `Dataset.load`.

        The gallery, and the mining corpus of train, is exactly the split file. A query's subset is its image group
        without the reference: five images, so that chance is 20 % at 1. Images are found by id anywhere below `root`,
        which holds `captions` and `image_splits`, in both folder layouts in circulation. Splits are train, val and
        test1 (whose targets are closed: see `submission`).
        """
        check_choice("split", split, SPLITS)
        kind = card(split)
        reader = Reader.find(options.root, kind, marker=f"captions/cap.{VERSION}.{split}.json", tree=TREE)
        path = reader.root / "image_splits" / f"split.{VERSION}.{split}.json"
        names = check_type(reader.json(path), dict, str(path))
        ids = [image_id(name, f"{path}: key {short_repr(name)}") for name in names]
        make = partial(_query, split=split, gallery=set(ids))
        queries = reader.queries(reader.root / f"captions/cap.{VERSION}.{split}.json", "pairid", make)
        files = ImageFiles.scan(reader.root, files=reader.files_beside(*IMAGE_FOLDERS), tree=TREE) if images else None
        data = cls(kind, split, queries, *columns_of({GROUP: ids}), reader.content)
        return data.loaded(files, reader.root, allow_missing=options.allow_missing)

    @classmethod
    def metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """R@1, 5, 10, 50; subset R@1, 2, 3; `average` (R@5 and subset R@1); `overall` (all seven, CIRQRS table 5)."""
        return _METRICS

    def _rank_block(self, block: Block) -> QueryRanks:
        """Rank a block, adding the target's rank within the query's image group."""
        ranks = super()._rank_block(block)
        if not any(query.subset for query in self.queries):
            return ranks
        group = self._group_members(block.rows, block.local, len(block.columns))
        within = target_ranks(block.scores, block.local[self.target_columns[block.rows]], group).cpu()
        return dataclasses.replace(ranks, subset_rank=within)

    def top_of_group(self, score_block: ScoreBlock, k: int) -> Top:
        """As `top`, among the query's image group instead of its gallery."""
        return self.top(score_block, k, mask=self._group_members)

    def _group_members(self, rows: Tensor, local: Tensor, width: int) -> Tensor:
        """[b, width] bool: the other members of each query's image group."""
        members = []
        for index in rows.tolist():
            query = self.queries[index]
            others = [image for image in query.subset if image != query.reference and image in self.column_of]
            members.append([self.column_of[image] for image in others])
        return Ragged.of(members).mask(local, width)

    def submission(self, score_block: ScoreBlock) -> dict[str, dict[str, Any]]:
        """Return the two files for CIRR's test server: the 50 best images of every query, and the 3 best of its group.

        Returns:
            File name -> {"version", "metric", query id: image ids, best first}; the reference is in no list.
        """
        submittable(self)
        best = {
            "recall": self.top(score_block, SUBMITTED),
            "recall_subset": self.top_of_group(score_block, SUBSET_SUBMITTED),
        }
        files = {}
        for metric, top in best.items():
            files[f"cirr-{self.split}-{metric}.json"] = {"version": VERSION, "metric": metric, **self.ids_of(top)}
        return files


def card(split: str) -> DatasetCard:
    """Card of CIRR's split; on train the gallery is the mining corpus."""
    return DatasetCard(
        name="cirr",
        protocol=VERSION,
        source="https://github.com/Cuberick-Orion/CIRR (branch cirr_dataset)",
        licence="MIT (annotations); the images are NLVR2's, under its terms",
        citation=PAPER,
        gallery="all images of the split file",
        exclude_reference=True,
        text_template="the caption, stripped",
        metrics=tuple(_METRICS),
        main="average",
        expected={split: {GROUP: _SIZES[split]}},
    )


# --- files -------------------------------------------------------------------------------------------------------


def _query(where: str, entry: Mapping[str, Any], split: str, gallery: AbstractSet[str]) -> Query:
    """Return the query of an entry; raise DataError unless its images are in the gallery, and its group is whole."""
    closed = split == "test1" and "target_hard" not in entry
    caption = get(entry, "caption", str, where)
    reference = image_id(get(entry, "reference", str, where), f"{where}: key 'reference'")
    group = get(entry, "img_set", dict, where)
    inside = f"{where}: key 'img_set'"
    members = strings(get(group, "members", list, inside), f"{inside}: key 'members'")
    name = str(get(entry, "pairid", int, where))
    target = None if closed else image_id(get(entry, "target_hard", str, where), f"{where}: key 'target_hard'")
    subset = tuple(member for member in dict.fromkeys(members) if member != reference)
    query = Query(name, reference, caption.strip(), target, GROUP, captions=(caption,), subset=subset)
    grouped = split != "train"  # training does not use groups; a dev part uses those that exist
    images = (query.reference, *query.subset) if grouped else (query.reference,)
    outside = next((image for image in images if image not in gallery), None)
    if outside is not None:
        raise DataError(f"{where}: {short_repr(outside)} of query {query.id} is not in split.{VERSION}.{split}.json")
    if grouped and (len(query.subset) != GROUP_SIZE - 1 or query.target not in (None, *query.subset)):
        raise DataError(
            f"{where}: key 'img_set': expected {GROUP_SIZE} distinct members, including the reference "
            f"'{query.reference}' and the target '{query.target}'"
        )
    return query
