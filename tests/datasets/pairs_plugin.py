"""Minimal data set plug-in: pairs of images with a text, measured by recall at 1 and 5."""

from dataclasses import dataclass
from typing import Self

from negbench.datasets import (
    Dataset,
    DatasetCard,
    FolderOptions,
    ImageFiles,
    Metric,
    Query,
    QueryRanks,
    Reader,
    check_choice,
    columns_of,
    get,
    hits,
    image_id,
)

PAPER = "ours"

METRICS = {f"recall_at_{k}": Metric((hits(k),)) for k in (1, 5)}
CARD = DatasetCard(
    name="pairs",
    protocol="plain",
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
    def load(cls, options: FolderOptions, split: str = "val", images: bool = True) -> Self:
        """See `Dataset.load`."""
        check_choice("split", split, ("train", "val"))
        reader = Reader.find(options.root, CARD, marker=f"{split}.json", tree="SPLIT.json, and images in any folder")
        queries = []
        for number, (where, entry) in enumerate(reader.entries(reader.root / f"{split}.json")):
            reference, target = (image_id(get(entry, key, str, where), where) for key in ("from", "to"))
            text = get(entry, "caption", str, where).strip()
            queries.append(Query(f"{split}-{number}", reference, text, target, "all"))
        names, groups = columns_of({"all": dict.fromkeys(str(query.target) for query in queries)})
        data = cls(CARD, split, queries, names, groups, reader.content)
        return data.loaded(
            ImageFiles.scan(reader.root) if images else None, reader.root, allow_missing=options.allow_missing
        )

    @classmethod
    def metrics(cls, ranks: QueryRanks) -> dict[str, Metric]:
        """Return R@1 and R@5."""
        return METRICS
