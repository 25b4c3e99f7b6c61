"""Cross-batch memory: the other targets of the batch, and the targets of recent steps as embedded then.

Rule: the loss of the batch plus the loss against a queue of the last K targets, which have no gradient; the batch
enters the queue before the loss.
Source: Wang et al., Cross-Batch Memory for Embedding Learning (arXiv:1912.06798), as released: msight-tech/research-xbm
(read 2020-09-04): K 8192, weight 1 of the second loss, from step 2000 on.
Departures: in both losses a query's only positive is its target, with a gradient; XBM also counts positives in the
queue. To start late, switch with `in-batch:2>xbm`; the queue fills from then on. `hybrid.slots = "joint"` is one
softmax over batch and queue, in which the batch's own members appear twice.
Fallback: none; a query without allowed columns has no negatives.
"""

from dataclasses import dataclass

from pydantic import PositiveInt

from negbench.contracts import BankStrategy, tunable

PAPER = "XBM, arXiv:1912.06798"


@dataclass(frozen=True, kw_only=True)
class Xbm(BankStrategy):
    """Pool: all allowed columns, of the batch and of the queue.

    Args:
        queue: K, number of targets in the queue, >= 1.
    """

    corrupts = ("target", "bank")

    queue: PositiveInt = tunable(8192, low=64, high=65536, log=True)
