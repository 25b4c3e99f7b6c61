"""Training pairs that are drawn anew: for every epoch in a batch strategy, for every interval where pools are mined."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from negbench.datasets.triplets import Triplets
from negbench.loop import pools
from negbench.loop.objective import Batch, Objective
from negbench.loop.runs import Bench, run_config
from negbench.systems.system import load_config


def rolled(data: Triplets, epoch: int) -> list[str | None]:
    """Another pairing of the same queries in every epoch: the targets of the split, `epoch` places on."""
    targets = [query.target for query in data.queries]
    return targets[epoch:] + targets[:epoch]


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triplets whose train split draws its pairs anew."""

    def at_epoch(self: Triplets, epoch: int, seed: int) -> Triplets:
        if self.split != "train" or epoch == 0:
            return self
        of_group = {name: [q for q in self.queries if q.group == name] for name in self.groups}
        queries = []
        for query in self.queries:
            own = of_group[query.group]
            other = own[(own.index(query) + epoch) % len(own)]
            queries.append(dataclasses.replace(query, target=other.target, text=other.text, relevant=()))
        return dataclasses.replace(self, queries=queries)

    monkeypatch.setattr(Triplets, "at_epoch", at_epoch)
    monkeypatch.setattr(Triplets, "redraws", property(lambda self: self.split == "train"))


@pytest.mark.parametrize(
    ("strategy", "pairs_of_epoch"), [("in-batch", [0, 1, 2, 3, 4, 5]), ("after-target", [0, 0, 2, 2, 4, 4])]
)
def test_pairs_are_those_of_the_epoch_or_of_the_interval(
    vector_sets: list[str],
    pairs: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
    pairs_of_epoch: list[int],
) -> None:
    seen: list[Tensor] = []
    tokens: list[Tensor] = []
    mined: list[Tensor] = []
    real, mine = Objective.forward, pools.mine

    def forward(self: Objective, batch: Batch) -> Any:
        if batch.rows.min() == 0 or (batch.rows == 0).any():
            seen.append(self.scene.train.dataset.target_columns)
            row = int((batch.rows == 0).nonzero()[0])
            tokens.append(next(iter(batch.tokens.values()))[row])
        return real(self, batch)

    def counted(task: Any, *arguments: Any, **options: Any) -> Any:
        mined.append(task.target)
        return mine(task, *arguments, **options)

    monkeypatch.setattr(Objective, "forward", forward)
    monkeypatch.setattr(pools, "mine", counted)
    sets = [*vector_sets, "train.epochs=6", "train.batch_size=16", "schedule.n_def=3"]
    run_config(load_config(flags={"strategy": {"name": strategy}}, sets=sets), Bench.open(tmp_path, "none"))
    assert len(seen) == 6
    same = [[bool((a == b).all()) for b in seen] for a in seen]
    assert same == [[a == b for b in pairs_of_epoch] for a in pairs_of_epoch]
    changed = [bool((tokens[0] != token).any()) for token in tokens]
    assert changed == [epoch > 0 for epoch in pairs_of_epoch]  # the texts go with the pairs
    if strategy == "after-target":
        assert all(bool((task == seen[epoch]).all()) for task, epoch in zip(mined, (0, 2, 4), strict=True))
