"""What two splits of a data set have in common: images and queries of the scored split that training sees."""

from collections import Counter

from negbench.contracts import Query
from negbench.datasets.dataset import Dataset


def overlap(train: Dataset, val: Dataset) -> list[str]:
    """Say which queries, targets and images of `val` are in `train`, one line each; nothing where none is."""
    images = set(train.all_images)
    pairs = {query.reference for query in train.queries} | {str(query.target) for query in train.queries}
    targets = {q.target for q in train.queries}
    queries = set(map(_pair, train.queries))
    known = Counter(q.group for q in val.queries if q.target is not None and q.target in targets)
    repeated = sum(_pair(q) in queries for q in val.queries)
    seen = sum(image in images for image in val.images)
    in_pairs = sum(image in pairs for image in val.images)
    found = []
    if known:
        groups = ""
        if len(val.groups) > 1:
            groups = f" ({', '.join(f'{count:,} {group}' for group, count in known.items())})"
        found.append(
            f"{known.total():,} of {len(val.queries):,} {val.split} queries have a target that is one in train{groups}"
        )
    if repeated:
        found.append(f"{repeated:,} {val.split} queries stand in train, with reference, text and target alike")
    if in_pairs and seen < len(val.images):  # else both splits share a gallery on purpose
        found.append(
            f"{seen:,} of {len(val.images):,} {val.split} images are among train's, {in_pairs:,} of them in its pairs"
        )
    return found


def _pair(query: Query) -> tuple[str, str | None, tuple[str, ...]]:
    return query.reference, query.target, query.captions or (query.text,)
