"""Minimal data set plug-in: pairs of images with a text, measured by recall at 1 and 5."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from negbench.contracts import Query
from negbench.datasets._read import Reader, check_choice, get, image_id
from negbench.datasets.card import DatasetCard
from negbench.datasets.dataset import Dataset, columns_of
from negbench.datasets.image_files import ImageFiles
from negbench.metrics.metric import Metric, hits
from negbench.metrics.query_ranks import QueryRanks

PAPER = "ours"

METRICS = {f"recall_at_{k}": Metric((hits(k),)) for k in (1, 5)}
CARD = DatasetCard(
    name="pairs",
    protocol="plain",
    version="1",
    source="your own disk",
    licence="your own",
    citation="",
    gallery="all targets of the split",
    exclude_reference=False,
    text_template="the caption, stripped",
    metrics=tuple(METRICS),
    main="recall_at_1",
)


@dataclass(frozen=True, eq=False)
class Pairs(Dataset):
    """Pairs read from SPLIT.json, a list of {"from", "to", "caption"}."""

    @classmethod
    def load(
        cls, *, root: Path | None = None, split: str = "val", images: bool = True, allow_missing: bool = False
    ) -> Self:
        """See `Dataset.load`."""
        check_choice("split", split, ("train", "val"))
        reader = Reader.find(root, CARD, marker=f"{split}.json", tree="SPLIT.json, and images in any folder")
        queries = []
        for number, (where, entry) in enumerate(reader.entries(reader.root / f"{split}.json")):
            reference, target = (image_id(get(entry, key, str, where), where) for key in ("from", "to"))
            text = get(entry, "caption", str, where).strip()
            queries.append(Query(f"{split}-{number}", reference, text, target, "all"))
        names, groups = columns_of({"all": dict.fromkeys(str(query.target) for query in queries)})
        data = cls(CARD, split, queries, names, groups, reader.content)
        return data.loaded(ImageFiles.scan(reader.root) if images else None, reader.root, allow_missing=allow_missing)

    @classmethod
    def metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """Return R@1 and R@5."""
        return METRICS
