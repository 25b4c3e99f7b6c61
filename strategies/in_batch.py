"""Every other target of the batch.

Paper: the field's default, for instance CLIP4CIR (CVPR 2022 Workshops) and SPRC (ICLR 2024).
Departures: none.
Fallback: none needed; a query without allowed columns has no negatives.
"""

from dataclasses import dataclass

from negbench.contracts import BatchStrategy

PAPER = "the field's default: CLIP4CIR, SPRC"


@dataclass(frozen=True, kw_only=True)
class InBatch(BatchStrategy):
    """Pool: all allowed columns of the batch's own [B, B] score matrix."""
