"""Compute ranks from scores: the only module that sorts. Ranks are taken in float32; ties count against the model.

A sort costs several times the matrix product that computes the scores. `window`, `tally` and `target_ranks` therefore
use counts, thresholds and selection; `positions` sorts only the few rows that ties leave open. Large tables go through
compiled passes where numba is installed (`negbench.metrics.compiled`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from negbench.errors import NegbenchError, check_option
from negbench.metrics.compiled import kernels
from negbench.metrics.ragged import Ragged

_NUMPYS = (torch.float32, torch.float64, torch.int8, torch.int64)  # numpy compares them as torch does
_BINS = 2**11  # equal parts of a row's range, among which a position is looked for; shorter rows are sorted
_FEW = 64  # of so many columns, torch.topk selects one faster than `window`
_FEW_SLOTS = 8  # up to so many relevant images per query, counting beats sorting


def descending(scores: Tensor) -> Tensor:
    """[B, N] scores -> [B, N] int64 columns by descending score, ties broken by corpus index (lower first)."""
    if scores.device.type != "cpu" or torch.promote_types(scores.dtype, torch.float32) != torch.float32:
        return torch.sort(scores, dim=-1, descending=True, stable=True).indices
    # numpy sorts integers several times faster than torch sorts rows: each key holds a score and its column
    bits = (scores.detach().float() + 0.0).view(torch.int32)  # + 0 turns -0 into 0
    falling = ~(bits ^ ((bits >> 31) & 0x7FFFFFFF))  # integers in the order of the negated scores
    keys = (falling.long() << 32) + torch.arange(scores.shape[-1])
    return torch.from_numpy(np.sort(keys.numpy(), axis=-1)) & 0xFFFFFFFF


def count(mask: Tensor) -> Tensor:
    """[B, N] bool -> [B] int64, how many are True."""
    if mask.device.type != "cpu":
        return mask.sum(1)
    bits = np.packbits(mask.numpy(), axis=1)  # an eighth of the bytes to add up
    return torch.from_numpy(np.bitwise_count(bits).sum(1, dtype=np.uint32).astype(np.int64))


def members(mask: Tensor) -> Tensor:
    """[B, N] bool -> ascending int64 indices row * N + column of what is True; numpy finds them five times faster."""
    flat = mask.flatten()
    if flat.device.type != "cpu":
        return flat.nonzero().squeeze(1)
    return torch.from_numpy(np.flatnonzero(flat.numpy()))


def highest(scores: Tensor) -> Tensor:
    """[B, N] -> [B, 1] int64, the column of the highest score, the lowest such column; N >= 1 and nothing is NaN."""
    if scores.device.type != "cpu":
        return scores.max(1, keepdim=True).indices
    return torch.from_numpy(scores.numpy().argmax(1, keepdims=True))  # a tenth of torch's time


def less(one: Tensor | float, other: Tensor | float) -> Tensor:
    """`one < other` as bool, broadcast; a Python number is rounded to the tensor's precision."""
    return _compare(np.less, torch.lt, one, other)


def at_most(one: Tensor | float, other: Tensor | float) -> Tensor:
    """`one <= other`, otherwise as `less`."""
    return _compare(np.less_equal, torch.le, one, other)


def _compare(
    fast: Callable[..., Any], plain: Callable[..., Tensor], one: Tensor | float, other: Tensor | float
) -> Tensor:
    """Compare with numpy (a sixth of torch's time) if it supports the device and dtypes, else with torch."""
    if _suits_numpy(one) and _suits_numpy(other):
        values = [value.detach().numpy() if isinstance(value, Tensor) else value for value in (one, other)]
        return torch.from_numpy(fast(*values))
    tensors = [
        value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64) for value in (one, other)
    ]
    return plain(*tensors)


def _suits_numpy(value: Tensor | float) -> bool:
    """Whether numpy compares this number, or tensor, as torch does."""
    return not isinstance(value, Tensor) or (value.device.type == "cpu" and value.dtype in _NUMPYS)


def positions(scores: Tensor, eligible: Tensor) -> Tensor:
    """[B, N] int64: 0-based position of each eligible image among the eligible ones of its row, by descending score.

    Ties are broken by column. Images that are not eligible are ignored and get the position N.
    """
    order = descending(scores)
    ordered = eligible.gather(1, order)
    position = (ordered.cumsum(1) - 1).masked_fill(~ordered, eligible.shape[1])
    return torch.empty_like(position).scatter_(1, order, position)


def at_least_float32(scores: Tensor) -> Tensor:
    """Convert half-precision scores to float32 and leave others unchanged: differences of halves round to ties."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def masked_scores(scores: Tensor, mask: Tensor, *, low: bool = True) -> Tensor:
    """[B, N] float32 or wider: the scores where `mask`, elsewhere -inf, or inf where `low` is False.

    Like `masked_fill`, without a branch per entry: several times faster for irregular masks.
    """
    wide = at_least_float32(scores)
    bound = mask.view(torch.uint8).to(wide.dtype).sub_(0.5).mul_(torch.inf if low else -torch.inf)
    return torch.minimum(wide, bound, out=bound) if low else torch.maximum(wide, bound, out=bound)


def ranked_scores(scores: Tensor, eligible: Tensor) -> Tensor:
    """[B, N] float32 or wider: the eligible images' scores in descending order, -inf after the last."""
    return _ascending(masked_scores(scores, eligible).neg_()).neg_()


def window(
    scores: Tensor, eligible: Tensor, start: Tensor | int, stop: Tensor | int, ranked: Tensor | None = None
) -> Tensor:
    """[B, N] bool: the eligible images at the `positions` start, start + 1, ..., stop - 1, found by selection.

    Args:
        scores: [B, N] float of any sign and precision.
        eligible: [B, N] bool.
        start: >= 0, a number or [B] int64.
        stop: the same; a row with stop <= start has none.
        ranked: `ranked_scores` of these arguments, if already computed.
    """
    rows, width = scores.shape
    scores = scores.detach()
    if not rows or not width:
        return torch.zeros_like(eligible)
    start = torch.as_tensor(start, device=scores.device).clamp(0, width).expand(rows)
    stop = torch.as_tensor(stop, device=scores.device).clamp(0, width).expand(rows)
    fast = kernels(scores) if ranked is None else None
    if fast is not None:
        chosen = torch.empty_like(scores, dtype=torch.bool)
        unresolved = np.zeros(rows, np.bool_)
        fast.window(*arrays(scores, eligible), start.numpy(), stop.numpy(), chosen.numpy(), unresolved)
        crowded = torch.from_numpy(unresolved).nonzero().squeeze(1)
    else:
        stop = torch.minimum(stop, count(eligible))
        edges = torch.stack([stop - 1, start] if start.any() else [stop - 1], dim=1).clamp(0, width - 1)
        ends = _scores_at(scores, eligible, edges) if ranked is None else ranked.gather(1, edges)
        last, *first = ends.split(1, dim=1)
        chosen = at_most(last, scores).logical_and_(eligible)
        for edge in first:
            chosen.logical_and_(at_most(scores, edge))
        # elsewhere an image outside ties with one at an edge
        crowded = (count(chosen) != (stop - start).clamp(min=0)).nonzero().squeeze(1)
    if len(crowded):
        position = positions(scores[crowded], eligible[crowded])
        chosen[crowded] = (position >= start[crowded, None]) & (position < stop[crowded, None]) & eligible[crowded]
    return chosen


def _scores_at(scores: Tensor, eligible: Tensor, positions: Tensor) -> Tensor:
    """[B, P]: `ranked_scores` at `positions` [B, P]; of long rows on a CPU only bins that hold one are sorted."""
    table = masked_scores(scores, eligible)
    low = scores.amin(1, keepdim=True)
    high = table.amax(1, keepdim=True)
    spread = (high.clamp(min=low) - low).clamp(min=1e-30)
    if table.shape[1] <= _BINS or table.device.type != "cpu" or not bool(spread.isfinite().all()):
        return ranked_scores(scores, eligible).gather(1, positions)
    rows, width = table.shape
    wide = _BINS + 1  # the last bin is for images that are not eligible
    above = (high.clamp(min=low) - table).mul_((_BINS - 1) / spread).clamp_(max=_BINS)
    row = np.arange(rows)
    bins = above.numpy().astype(np.int32)
    upto = np.bincount((bins + (row * wide)[:, None]).ravel(), minlength=rows * wide).cumsum()
    scores_of_slots: list[Tensor] = []
    for positions_of_slot in (positions.numpy() + (row * width)[:, None]).T:  # positions among the scores of all rows
        one = upto.searchsorted(positions_of_slot, side="right")
        inside = torch.from_numpy(bins == (one - row * wide).astype(np.int32)[:, None])
        size = count(inside)
        ranked = _ascending(_fill_rows(-table.flatten()[members(inside)], size, int(size.max()), torch.inf)).neg_()
        before = np.where(one > 0, upto[one - 1], 0)
        scores_of_slots.append(ranked.gather(1, torch.from_numpy(positions_of_slot - before)[:, None]))
    return torch.cat(scores_of_slots, dim=1)


def _fill_rows(values: Tensor, size: Tensor, width: int, padding: float) -> Tensor:
    """Return [B, width] rows of `size` [B] values each, taken in their order, and `padding` behind them."""
    filled = torch.arange(width, device=size.device) < size[:, None]
    return values.new_full(filled.shape, padding).masked_scatter_(filled, values)


def arrays(scores: Tensor, *masks: Tensor) -> tuple[NDArray[Any], ...]:
    """Return the arrays that compiled passes take: the scores, their bits, and the masks."""
    values = scores.detach().numpy()
    return values, values.view(np.int32), *(mask.contiguous().numpy() for mask in masks)


def nearest_below(scores: Tensor, rows: Tensor, allowed: Tensor, bound: Tensor) -> Tensor:
    """[R] int64, the column of the highest score below a bound, the lowest such column; -1 where none is below it.

    Args:
        scores: [B, N] float, finite.
        rows: [R] int64, the rows that are looked at.
        allowed: [R, N] bool, the images that count.
        bound: [B] of the same precision.
    """
    fast = kernels(scores)
    if fast is not None:
        out = rows.clone()
        fast.nearest_below(*arrays(scores), rows.numpy(), allowed.numpy(), bound.numpy(), out.numpy())
        return out
    row_scores = scores if len(rows) == len(scores) else scores[rows]
    below = masked_scores(row_scores, allowed & less(row_scores, bound[rows, None]))
    column = highest(below)
    return column.where(below.gather(1, column) > -torch.inf, -1).squeeze(1)


class PoolCounts(NamedTuple):
    """Counts for [B] pools among the allowed images.

    `size`: images in the pool; `reached`: allowed images that score at least as high as the target; `first`: allowed
    images that score above the pool's highest; `last`: allowed images that score at least the pool's lowest, minus 1.
    `first` and `last` are the positions of the pool's ends if it holds all allowed images between them; `ahead`:
    allowed images that score above a drawn one.
    """

    size: Tensor
    reached: Tensor
    first: Tensor
    last: Tensor
    ahead: Tensor


def tally(scores: Tensor, allowed: Tensor, pool: Tensor, target: Tensor, drawn: Tensor) -> PoolCounts:
    """Return the `PoolCounts` of finite scores [B, N].

    Args:
        scores: float.
        allowed, pool: [B, N] bool, no pool empty.
        target, drawn: [B] int64 columns.
    """
    fast = kernels(scores)
    if fast is not None:
        counts = torch.empty(5, len(scores), dtype=torch.int64)
        fast.tally(*arrays(scores, allowed, pool), target.numpy(), drawn.contiguous().numpy(), counts.numpy())
        return PoolCounts(*counts)
    size = count(pool)
    room = count(allowed)
    reached = count(allowed & at_most(scores.gather(1, target[:, None]), scores))
    ahead = count(allowed & less(scores.gather(1, drawn[:, None]), scores))
    if torch.equal(size, room):  # the pool holds all allowed images
        return PoolCounts(size, reached, torch.zeros_like(size), room - 1, ahead)
    low = masked_scores(scores, pool, low=False).amin(1)
    high = masked_scores(scores, pool).amax(1)
    first = count(allowed & less(high[:, None], scores))
    last = count(allowed & at_most(low[:, None], scores)) - 1
    return PoolCounts(size, reached, first, last, ahead)


def top_columns(scores: Tensor, k: int, allowed: Tensor | None = None, left_out: Tensor | None = None) -> Tensor:
    """The k best candidates of each query, in `descending`'s order: ties broken by corpus index (lower first).

    Args:
        scores: [B, N] float of any sign and precision, compared in float32.
        k: how many, >= 1; never more than N are returned.
        allowed: [B, N] bool, the candidates; default: all.
        left_out: [B] int64, a column that is no candidate, or -1; costs no pass over the scores as a mask does.

    Returns:
        [B, min(k, N)] int64 on the scores' device; -1 after the last candidate of a query that has fewer.

    Raises:
        NegbenchError: a score is NaN.
        OptionError: k below 1.

    Example:
        >>> top_columns(torch.tensor([[0.5, -1.0, 0.7, 0.5]]), 3)
        tensor([[2, 0, 3]])
    """
    check_option("k", k, k >= 1, ">= 1")
    if left_out is not None:
        return _without(top_columns(scores, k + 1, allowed), left_out, min(k, scores.shape[1]))
    scores = check_scores(scores)
    k = min(k, scores.shape[1])
    if not k or not len(scores):
        return torch.full((len(scores), k), -1, dtype=torch.int64, device=scores.device)
    if kernels(scores) is not None or _FEW * (k + 1) > scores.shape[1]:
        return _top_of_window(scores, k, allowed)
    candidates = scores if allowed is None else masked_scores(scores, allowed.to(scores.device))
    best = candidates.topk(k + 1)
    top = best.indices[:, :k].sort(1).values
    top = top.gather(1, descending(scores.gather(1, top)))
    # fewer candidates than k, or the last one's score is another's, too: which of them comes first is open
    crowded = (best.values[:, k - 1] == best.values[:, k]).nonzero().squeeze(1)
    if len(crowded):
        top[crowded] = _top_of_window(scores[crowded], k, None if allowed is None else allowed.to(top.device)[crowded])
    return top


def _without(top: Tensor, left_out: Tensor, k: int) -> Tensor:
    """Return the first k columns of each row of `top_columns` that are not `left_out` [B]; -1 after the last."""
    stays = top != left_out.to(top.device)[:, None]
    behind = top.shape[1]  # where a column goes that is left out
    destination = (stays.cumsum(1) - 1).masked_fill(~stays, behind)
    return top.new_full((len(top), behind + 1), -1).scatter_(1, destination, top)[:, :k]


def _top_of_window(scores: Tensor, k: int, allowed: Tensor | None) -> Tensor:
    """Return `top_columns` of float32 scores, 1 <= k <= N, for any k."""
    if allowed is None:
        allowed = torch.ones_like(scores, dtype=torch.bool)
    chosen = window(scores, allowed, 0, k)
    columns = members(chosen) % scores.shape[1]
    top = _fill_rows(columns, count(chosen), k, -1)
    top_scores = scores.gather(1, top.clamp(min=0)).masked_fill(top < 0, -torch.inf)
    return top.gather(1, descending(top_scores))


def among_first(scores: Tensor, which: Tensor, k: int, allowed: Tensor) -> Tensor:
    """[B, N] bool: those of the candidates `which` that are among the first k, where they come first of equal scores.

    Args:
        scores: [B, N] float32.
        which: [B, N] bool; of too many with one score the lower columns count.
        k: >= 1.
        allowed: [B, N] bool, the candidates.
    """
    which = which & allowed
    last = masked_scores(scores, allowed).topk(min(k, scores.shape[1])).values[:, -1:]
    above = allowed & less(last, scores)
    tied = which & (scores == last)
    room = k - count(above)
    crowded = (count(tied) > room).nonzero().squeeze(1)
    if len(crowded):
        tied[crowded] &= tied[crowded].cumsum(1) <= room[crowded, None]
    return (above & which) | tied


def target_ranks(
    scores: Tensor, target: Tensor, allowed: Tensor | None = None, left_out: Tensor | None = None
) -> Tensor:
    r"""Rank of each query's target among its candidates.

    .. math:: r_i = 1 + |\{j \ne t_i : j \in A_i,\; s_{ij} \ge s_{i t_i}\}|

    Args:
        scores: [B, N] float of any sign and precision, compared in float32.
        target: [B] int64, column of the target, or -1 where there is none.
        allowed: [B, N] bool, the candidates A; default: all. The target counts as allowed.
        left_out: [B] int64, a column that is no candidate, or -1; costs no pass over the scores as a mask does.

    Returns:
        [B] int64 on the scores' device, 1 is best; 0 where there is no target.

    Raises:
        NegbenchError: a score is NaN.

    Example:
        >>> target_ranks(torch.tensor([[-0.1, -0.5, -0.1]]), torch.tensor([0]))
        tensor([2])
    """
    scores = check_scores(scores)
    target = target.to(scores.device)
    column = target.clamp(min=0)[:, None]
    ahead = at_most(scores.gather(1, column), scores)
    if allowed is not None:
        ahead &= allowed.to(scores.device)
    if left_out is not None:
        _leave_out(ahead, left_out)
    ahead.scatter_(1, column, False)
    return torch.where(target >= 0, 1 + count(ahead), 0)


def _leave_out(counted: Tensor, left_out: Tensor) -> None:
    """Clear the columns `left_out` [B] of a bool table [B, N] where they are not -1."""
    row = (left_out >= 0).nonzero()[:, 0]
    counted[row.to(counted.device), left_out[row].to(counted.device)] = False


def relevant_ranks(
    scores: Tensor, relevant: Ragged, allowed: Tensor | None = None, left_out: Tensor | None = None
) -> Ragged:
    r"""Ranks of all relevant images of each query; ties with irrelevant images count against the model.

    .. math:: r_{ik} = 1 + |\{j \in A_i \setminus R_i : s_{ij} \ge s_{ik}\}| + |\{k' \in R_i : k' \text{ before } k\}|

    where relevant images are ordered by descending score, equal ones as in their row.

    Args:
        scores: [B, N] float of any sign and precision, compared in float32.
        relevant: B rows of columns, the sets R, without repeats.
        allowed: [B, N] bool, the candidates A; default: all. Relevant images count as allowed.
        left_out: [B] int64, a column that is no candidate, or -1.

    Returns:
        Ranks on the CPU, aligned with `relevant`; the ranks of one row are distinct.

    Raises:
        NegbenchError: a score is NaN.

    Example:
        >>> relevant_ranks(torch.tensor([[3.0, 2.0, 1.0, 1.0]]), Ragged.of([[3, 0]])).values
        tensor([4, 1])
    """
    scores = check_scores(scores)
    if not len(relevant.values):
        return relevant
    rows = torch.arange(len(relevant)).repeat_interleave(relevant.lengths)
    slots = torch.arange(len(rows)) - relevant.offsets[rows]
    rows = rows.to(scores.device)
    slots = slots.to(scores.device)
    columns = relevant.values.to(scores.device)
    width = int(relevant.lengths.max())
    # an empty slot scores -inf, so that the stable sort puts it after every real one of its row
    relevant_scores = scores.new_full((len(scores), width), -torch.inf)
    relevant_scores[rows, slots] = scores[rows, columns]
    order = descending(relevant_scores)
    position = torch.empty_like(order).scatter_(1, order, torch.arange(width, device=order.device).expand_as(order))

    counted = torch.ones_like(scores, dtype=torch.bool) if allowed is None else allowed.to(scores.device).clone()
    counted[rows, columns] = False
    if left_out is not None:
        _leave_out(counted, left_out)
    fast = kernels(scores) if width <= _FEW_SLOTS else None
    if fast is not None:
        reach = torch.empty_like(order)
        fast.reaching(scores.detach().numpy(), counted.numpy(), relevant_scores.numpy(), reach.numpy())
    elif width <= _FEW_SLOTS:  # counting each slot is faster than sorting
        counts = [count(counted & at_most(slot[:, None], scores)) for slot in relevant_scores.unbind(1)]
        reach = torch.stack(counts, dim=1)
    else:
        others = _ascending(masked_scores(scores, counted))
        reach = others.shape[1] - torch.searchsorted(others, relevant_scores)  # irrelevant images that reach the slot
        reach = reach.clamp(max=count(counted)[:, None])  # for a slot at -inf, images that were left out do not count
    return Ragged((1 + position + reach)[rows, slots].cpu(), relevant.offsets)


def _ascending(scores: Tensor) -> Tensor:
    """[B, N] float32, each row sorted: in place on a CPU."""
    if scores.device.type != "cpu":
        return scores.sort(1).values
    scores.detach().numpy().sort(axis=1)
    return scores


def sorted_rows(ranks: Ragged) -> Ragged:
    """Each row in ascending order; values must be >= 0.

    Example:
        >>> sorted_rows(Ragged.of([[4, 1], [], [3, 2]])).values
        tensor([1, 4, 2, 3])
    """
    if not len(ranks.values):
        return ranks
    rows = torch.arange(len(ranks)).repeat_interleave(ranks.lengths)
    order = torch.argsort(rows * (int(ranks.values.max()) + 1) + ranks.values, stable=True)
    return Ragged(ranks.values[order], ranks.offsets)


def check_scores(scores: Tensor) -> Tensor:
    """Return [B, N] scores as float32. Raises NegbenchError where one is NaN, naming its row and column."""
    scores = scores.float()
    if scores.sum().isnan():  # or infinities of both signs
        bad = scores.isnan()
        if not bad.any():
            return scores
        row, column = bad.nonzero()[0].tolist()
        raise NegbenchError(
            f"{int(bad.sum())} scores are NaN, first row {row}, column {column}: a diverged model cannot be ranked"
        )
    return scores
