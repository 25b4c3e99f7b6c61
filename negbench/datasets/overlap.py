"""What two splits of a data set have in common: images and queries of the scored split that training sees."""

from collections import Counter

from negbench.contracts import Query
from negbench.datasets.dataset import Dataset


def overlap(train: Dataset, val: Dataset) -> list[str]:
    """Say which queries, targets and images of `val` are in `train`, one line each; nothing where none is."""
    images = set(train.all_images)
    pairs = {query.reference for query in train.queries} | {str(query.target) for query in train.queries}
    targets = {query.target for query in train.queries}
    triplets = {_triplet(query) for query in train.queries}
    with_known_target = Counter(
        query.group for query in val.queries if query.target is not None and query.target in targets
    )
    repeated = sum(_triplet(query) in triplets for query in val.queries)
    in_train = sum(image in images for image in val.images)
    in_pairs = sum(image in pairs for image in val.images)
    lines = []
    if with_known_target:
        groups = ""
        if len(val.groups) > 1:
            groups = f" ({', '.join(f'{count:,} {group}' for group, count in with_known_target.items())})"
        count = with_known_target.total()
        lines.append(
            f"{count:,} of {len(val.queries):,} {val.split} queries have a target that is one in train{groups}"
        )
    if repeated:
        lines.append(f"{repeated:,} {val.split} queries stand in train, with reference, text and target alike")
    if in_pairs and in_train < len(val.images):  # else both splits share a gallery on purpose
        lines.append(
            f"{in_train:,} of {len(val.images):,} {val.split} images are among train's, "
            f"{in_pairs:,} of them in its pairs"
        )
    return lines


def _triplet(query: Query) -> tuple[str, str | None, tuple[str, ...]]:
    return query.reference, query.target, query.captions or (query.text,)
