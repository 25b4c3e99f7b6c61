"""Wrong train triplets on purpose: a share of them gets another query's reference, text or target.

The setting of papers on noisy correspondence: TME (CVPR 2025; its released code, He-Changhao/2025-CVPR-TME) gives a
share of 0, 20, 50 or 80 % of the triplets a wrong member, a third each a reference, a text and a target. Only training
sees them: dev and val keep their annotations.
"""

import dataclasses
import random
from collections.abc import Sequence
from typing import Literal, TypeVar, get_args

from negbench.contracts import Query
from negbench.datasets.dataset import Dataset
from negbench.errors import DataError
from negbench.machine.grouping import group_by

WrongKind = Literal["reference", "text", "target", "all"]
_MEMBERS = get_args(WrongKind)[:-1]
_TRIES = 100  # draws of another query, before a triplet is left as it is

AnyDataset = TypeVar("AnyDataset", bound=Dataset)


def with_wrong_triplets(train: AnyDataset, share: float, kind: WrongKind, seed: int) -> AnyDataset:
    """Return a train split in which a share of the queries has a wrong member, with a remark that counts them.

    The other member comes from a random query of the same gallery group. It differs from the query's own; a wrong
    target answers the query by nothing that is known, and is not its reference. After a wrong target the known relevant
    images stay relevant, beside it; after a wrong reference or text nothing is known of the query but its target. This
    differs from option `wrong` of data set `vectors`, which draws targets among all images, and by the world's number.

    Args:
        train: all queries with a target.
        share: of the queries, 0 .. 1.
        kind: the wrong member; "all": a third each.
        seed: chooses the queries and what they get.

    Raises:
        DataError: the data set draws its queries anew each epoch.
    """
    if train.redraws:
        raise DataError(
            f"train.wrong = {share:g}, but {train.card.name} draws its queries anew each epoch: leave train.wrong out"
        )
    order = random.Random(f"wrong triplets {seed}")
    queries = list(train.queries)
    of_group = group_by(queries, lambda query: query.group)
    members = _MEMBERS if kind == "all" else (kind,)
    changed = dict.fromkeys(members, 0)
    rows = order.sample(range(len(queries)), round(share * len(queries)))
    for number, row in enumerate(rows):
        member = members[number % len(members)]
        query = queries[row]
        wrong_query = _with_wrong_member(query, member, of_group[query.group], order)
        if wrong_query is not None:
            queries[row] = wrong_query
            changed[member] += 1
    counts = ", ".join(f"{count:,} {member}s" for member, count in changed.items())
    remark = f"{sum(changed.values()):,} of {len(queries):,} train triplets are wrong on purpose: {counts}"
    part = f"wrong {share:g} {kind}, seed {seed}"
    return dataclasses.replace(
        train, queries=queries, part=f"{train.part}; {part}" if train.part else part, remarks=(*train.remarks, remark)
    )


def _with_wrong_member(query: Query, member: str, others: Sequence[Query], order: random.Random) -> Query | None:
    """Return the query with a member of another one; None if none of `_TRIES` random ones has a wrong one."""
    for _ in range(_TRIES):
        other = order.choice(others)
        if member == "reference" and other.reference not in (query.reference, query.target):
            return dataclasses.replace(
                query, reference=other.reference, reference_text=other.reference_text, relevant=(), wrong=()
            )
        if member == "text" and other.text != query.text:
            return dataclasses.replace(
                query, text=other.text, captions=other.captions, wordings=other.wordings, relevant=(), wrong=()
            )
        right = (query.target, query.reference, *query.relevant)
        if member == "target" and other.target is not None and other.target not in right:
            return dataclasses.replace(
                query,
                target=other.target,
                target_text=other.target_text,
                relevant=(other.target, *query.relevant) if query.relevant else (),
            )
    return None
