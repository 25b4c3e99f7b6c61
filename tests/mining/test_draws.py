"""Drawing with replacement from epoch to epoch, and thinning pools to a budget."""

import itertools
import math

import pytest
import torch

from negbench.contracts.splitmix import splitmix
from negbench.mining.draws import draw, keep
from tests.mining.test_mining import assert_uniform


def seeds(rows: int, seed: int = 0) -> torch.Tensor:
    return splitmix(torch.tensor(seed), torch.arange(rows))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("per_epoch", [1, 2])
def test_with_replacement_epochs_are_independent(weighted, per_epoch):
    """No image repeats within an epoch; between epochs they repeat as by chance: (pairs of epochs) M^2 / n."""
    rows, size, epochs = 4000, 6, 3
    pool = torch.zeros(rows, 9, dtype=torch.bool)
    pool[:, 3:] = True
    drawn = draw((pool.float() if weighted else pool), seeds(rows), epochs * per_epoch, per_epoch=per_epoch)
    assert drawn.shape == (rows, epochs * per_epoch)
    assert drawn.min() >= 3
    by_epoch = drawn.reshape(rows, epochs, per_epoch)
    repeats = 0
    for row in by_epoch.tolist():
        assert [len(set(epoch)) for epoch in row] == [per_epoch] * epochs, row
        repeats += sum(len(set(one) & set(other)) for one, other in itertools.combinations(row, 2))
    expected_repeats = rows * 3 * per_epoch**2 / size
    assert abs(repeats - expected_repeats) < 5 * math.sqrt(expected_repeats)
    assert_uniform(drawn, size)


def test_an_epoch_draws_the_same_however_many_follow():
    pool = torch.ones(5, 20, dtype=torch.bool)
    long = draw(pool, seeds(5), 9, per_epoch=3)
    assert torch.equal(draw(pool, seeds(5), 6, per_epoch=3), long[:, :6])
    assert torch.equal(draw(pool, seeds(5), 8, per_epoch=3), long[:, :8])
    assert not torch.equal(long[:, :3], long[:, 3:6])


def test_keep_takes_each_set_of_members_as_often():
    rows = 6000
    pool = torch.tensor([[True, False, True, True, True]]).expand(rows, -1)
    members = keep(pool, seeds(rows), 2)
    assert (members.sum(1) == 2).all()
    assert not (members & ~pool).any()
    assert_uniform((members * 2 ** torch.arange(5)).sum(1), 6)
    assert torch.equal(keep(pool, seeds(rows), 2), members)
    assert not torch.equal(keep(pool, seeds(rows, seed=1), 2), members)


def test_keep_leaves_small_pools_as_they_are():
    pool = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    assert torch.equal(keep(pool, seeds(3), 2)[:2], pool[:2])
    assert keep(pool, seeds(3), 2)[2].sum() == 2
    assert torch.equal(keep(pool, seeds(3), 9), pool)
