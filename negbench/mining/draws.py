"""Drawing from pools, from numbers that depend on (seed, query, step) only.

Every random number is a pure function of a seed and a counter (`negbench.contracts.splitmix`), so a draw is the same
for any block size, any order of the queries, any split of them over processes and any device.
"""

import torch
from torch import Tensor

from negbench.contracts.splitmix import shift_right, splitmix, uniform
from negbench.metrics.ranks import count, members


def draw(pool: Tensor, seed: Tensor, draws: int, *, per_epoch: int | None = None) -> Tensor:
    """Draw from [B, N] non-empty pools: uniformly if bool, in proportion if float weights.

    Args:
        pool: [B, N] bool, or float weights >= 0.
        seed: [B] int64, the query's stream.
        draws: D, how many to draw.
        per_epoch: None draws without repeats until a pool is used up. A number starts afresh after that many draws:
            with replacement from one epoch to the next, as in the papers, without repeats within an epoch.

    Returns:
        [B, D] int64 columns, in the order of the draws.
    """
    draw_from = draw_uniform if pool.dtype == torch.bool else draw_weighted
    if per_epoch is None:
        return draw_from(pool, seed, draws)
    epochs = []
    for start in range(0, draws, per_epoch):
        epoch_seed = splitmix(seed, torch.tensor(start, device=seed.device))
        epochs.append(draw_from(pool, epoch_seed, per_epoch))
    return torch.cat(epochs, dim=1)[:, :draws]


def draw_uniform(pool: Tensor, seed: Tensor, draws: int) -> Tensor:
    """Draw from every pool uniformly, without repeats until the pool is used up; then start again.

    Draws 0..n-1 of a pool of n images are a uniformly random order of them, so are draws n..2n-1, and so on: the cycles
    are independent. Exact but for the bias of a remainder, below n / 2^63.

    Args:
        pool: [B, N] bool, every row with at least one True.
        seed: [B] int64, the query's stream.
        draws: D, how many to draw.

    Returns:
        [B, D] int64 columns, in the order of the draws.
    """
    entries, start, size = _members(pool)
    step = torch.arange(draws, device=pool.device)[:, None]
    done = step % size  # how many the running cycle has drawn already
    partner = done + shift_right(splitmix(seed, step), 1) % (size - done)
    draws_by_step = list[Tensor]()
    # Fisher and Yates' shuffle, all rows at once: swap the next entry with a random one of those not drawn yet
    for next_index, other_index in zip(start + done, start + partner, strict=True):
        drawn = entries.gather(0, other_index)
        entries.scatter_(0, other_index, entries.gather(0, next_index))
        entries.scatter_(0, next_index, drawn)
        draws_by_step.append(drawn)
    return torch.stack(draws_by_step, dim=1) % pool.shape[1]  # a new cycle shuffles what the last one left


def draw_weighted(weights: Tensor, seed: Tensor, draws: int) -> Tensor:
    """Draw in proportion to weights, without repeats until the pool is used up; then start again.

    Within a cycle each draw takes an image with probability weight / (sum of the weights not drawn yet): the images in
    descending order of log(weight) - log(-log(u)), u uniform in (0, 1) and independent (Efraimidis and Spirakis,
    Weighted random sampling with a reservoir, 2006, whose keys u^(1/weight) have that order).

    Args:
        weights: [B, N] float >= 0, every row with at least one > 0; the pool is where they are > 0.
        seed: [B] int64, the query's stream.
        draws: D, how many to draw.

    Returns:
        [B, D] int64 columns, in the order of the draws.
    """
    entries, start, size = _members(weights > 0)
    log_weight = weights.flatten()[entries].double().log()
    entries = entries % weights.shape[1]
    drawn = torch.empty(len(weights), draws, dtype=torch.int64, device=weights.device)
    cycle = 0
    while True:
        rows = (size * cycle < draws).nonzero().squeeze(1)  # those whose draws go on
        if not len(rows):
            break
        slot = torch.arange(int(size[rows].max()), device=weights.device)
        real = slot < size[rows, None]
        entry = torch.where(real, start[rows, None] + slot, 0)
        stream = splitmix(seed[rows], torch.tensor(cycle, device=seed.device))
        random = uniform(stream[:, None], entries[entry])
        keys = log_weight[entry] - (-random.log()).log()
        keys.masked_fill_(~real, -torch.inf)
        highest = keys.topk(min(len(slot), draws)).indices
        width = highest.shape[1]
        draw = size[rows, None] * cycle + slot[:width]
        fits = real[:, :width] & (draw < draws)
        row = rows[:, None].expand_as(draw)
        drawn[row[fits], draw[fits]] = entries[entry.gather(1, highest)][fits]
        cycle += 1
    return drawn


def _members(pool: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the members of a [B, N] bool pool as ascending flat indices row * N + column, and each row's part of them.

    That is the [B] index where a row's members start, and their [B] number.
    """
    size = count(pool)
    return members(pool), size.cumsum(0) - size, size


def keep(pool: Tensor, seed: Tensor, count: int) -> Tensor:
    """Keep at most `count` random members of every pool, every subset of that size equally likely.

    Args:
        pool: [B, N] bool; a row may be empty.
        seed: [B] int64, the query's stream.
        count: how many to keep of a pool that has more, >= 1.

    Returns:
        [B, N] bool.
    """
    columns = torch.arange(pool.shape[1], device=pool.device)
    keys = shift_right(splitmix(seed[:, None], columns), 1).masked_fill(~pool, -1)  # >= 0 for members
    highest = keys.topk(min(count, pool.shape[1]), dim=1).indices
    return torch.zeros_like(pool).scatter_(1, highest, True) & pool
