"""The batch in both directions: other targets for the query, other queries for the target.

Paper: CLIP (arXiv:2103.00020, fig. 3), whose symmetric loss is the mean of both directions; with `info-nce` and the
default `hybrid.slots = "sum"` this is twice that, the sum (as CoVR's HN-NCE adds them).
Departures: members that share the target, or that a run excludes, are not negatives; CLIP has no such exclusions.
Fallback: none needed; a row without allowed columns has no negatives in that direction.
"""

from dataclasses import dataclass

from negbench.contracts import BatchStrategy

PAPER = "CLIP fig. 3: the symmetric loss"


@dataclass(frozen=True, kw_only=True)
class InBatchBoth(BatchStrategy):
    """Pool: all allowed columns of the batch's [B, B] scores, by rows (targets) and by columns (queries)."""

    corrupts = ("target", "query")
