"""Beside which batch, and after how many passes, a mined negative was measured to gain: one table for all who say it.

`negbench audit` and the answer of a comparison name the row that holds for a user's batch and passes. The numbers are
those of docs/findings_tables.md: what one image of ranks 8 to 15 adds to the batch alone on emoji, in points of R@10.
Rows at 8, 32 and 128 are at temperatures and rates of their own, chosen after 3 passes; that at 16 is at 0.07.
"""

from dataclasses import dataclass

MOVES_SCORES = False  # only recommends

RULE = "in-batch+shifted-top-k:start=8:stop=16"


@dataclass(frozen=True)
class MeasuredDifference:
    """A gain of `RULE` over the batch alone, in points of R@10, with its interval.

    Args:
        batch_size: queries of a batch.
        passes: epochs.
        points: mean over seeds.
        low: lower end of the interval.
        high: upper end.
    """

    batch_size: int
    passes: int
    points: float
    low: float
    high: float


ON_EMOJI = (
    MeasuredDifference(8, 3, 8.4, 4.4, 12.5),
    MeasuredDifference(8, 12, 3.1, 0.4, 5.9),
    MeasuredDifference(16, 3, 5.6, 3.0, 8.1),
    MeasuredDifference(32, 3, 3.9, 1.6, 6.2),
    MeasuredDifference(128, 3, 1.0, 0.2, 1.8),
)


def where_mining_gained(batch_size: int, passes: int) -> str:
    """Say what an image of ranks 8 to 15 gained beside the smallest measured batch that holds this one.

    On emoji the gain shrank with the batch and with the passes wherever both were measured; fewer than 3 passes were
    not, so the sentence names the passes of its row. "" where none was measured with as large a batch and as many
    passes.

    Args:
        batch_size: queries of a batch.
        passes: epochs.
    """
    rows = [row for row in ON_EMOJI if row.batch_size >= batch_size and row.passes >= passes and row.low > 0]
    if not rows:
        return ""
    row = min(rows, key=lambda row: (row.batch_size, row.passes))
    return (
        f"your batch of {batch_size} and {_passes(passes)} are no more than those with which mining gained on emoji: "
        f"an image of ranks 8 to 15 added {row.points:.1f} [{row.low:.1f}, {row.high:.1f}] points of R@10 to a batch "
        f"of {row.batch_size} after {_passes(row.passes)} over 4,000 queries; compare: --strategies in-batch,{RULE}"
    )


def _passes(count: int) -> str:
    return "1 pass" if count == 1 else f"{count} passes"
