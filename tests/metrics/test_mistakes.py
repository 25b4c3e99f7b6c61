"""Mistakes against loops that sort one row at a time, kinds against the sentences that define them."""

import itertools
import math

import pytest
import torch

from negbench.metrics.fixed import CUT, KINDS
from negbench.metrics.metric import Metric, value_of_ranking
from negbench.metrics.mistakes import kinds_by_attributes, mistakes
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.ragged import Ragged
from negbench.metrics.ranks import among_first, relevant_ranks


@pytest.mark.parametrize("more", [0, 8])  # attributes that an image has all right or all wrong
def test_every_image_has_the_kind_that_its_definition_says(toys, more):
    images = torch.tensor([[*first, *[rest] * more] for rest, *first in itertools.product((0, 1), repeat=5)])
    names = set()
    for in_text in itertools.product((False, True), repeat=4):  # which of the first four the text names
        if not any(in_text):
            continue
        changed = torch.tensor([[*in_text, *[False] * more]])
        changed_indices = {index for index, is_changed in enumerate(in_text) if is_changed}
        codes, off = kinds_by_attributes(torch.ones(1, 4 + more, dtype=torch.int64), changed, images)
        for image, code, count in zip(images.tolist(), codes[0].tolist(), off[0].tolist(), strict=True):
            wrong = {index for index, value in enumerate(image) if value == 0}
            name = toys.kind_of(wrong, changed_indices)
            assert code == (KINDS.index(name) + 1 if name in KINDS else 0), (changed_indices, image)
            assert count == len(wrong), f"image {image}, changed {changed_indices}"
            names.add(name)
    assert names == {"relevant", "unrelated", *KINDS[:3]}


def loop(scores: list[float], kinds: list[int], right: set[int], allowed: list[bool]) -> dict[str, float]:
    """Measure one row; of equal scores judged negatives come first, and right images last."""
    columns = [j for j in range(len(scores)) if allowed[j]]
    order = sorted(columns, key=lambda j: (-scores[j], kinds[j] == 0, j in right, j))
    first = order[:CUT]
    judged = [j for j in columns if kinds[j]]
    wrong = [kinds[j] for j in first if kinds[j]]
    best = next((j for j in order if kinds[j] or j in right), None)
    values = {
        f"wrong_at_{CUT}": len(wrong) / max(1, len(first)),
        f"any_wrong_at_{CUT}": float(len(wrong) > 0),
        "wrong_first": float(best is not None and kinds[best] > 0),
    }
    for code, kind in enumerate(KINDS, 1):
        values[f"{kind}/wrong_at_{CUT}"] = wrong.count(code) / max(1, len(first))
    if not judged:
        values = dict.fromkeys(values, math.nan)
    return {**values, f"neg_recall_at_{CUT}": len(wrong) / max(1, min(len(judged), CUT))}


@pytest.mark.parametrize("width", [4, 30, 200])
@pytest.mark.parametrize("levels", [2, 6, 10_000])
def test_mistakes_are_those_of_a_loop(width, levels):
    generator = torch.Generator().manual_seed(width + levels)
    rows = 40
    scores = torch.randint(-levels, levels, (rows, width), generator=generator).float() / 7
    kinds = (torch.rand(rows, width, generator=generator) * 8).to(torch.int8) % 5
    kinds[torch.rand(rows, width, generator=generator) < 0.5] = 0
    kinds[0] = 0
    right = Ragged.of([[row % width, (row + 1) % width] for row in range(rows)])
    kinds[torch.arange(rows).repeat_interleave(2), right.values] = 0
    allowed = torch.rand(rows, width, generator=generator) < 0.8
    allowed[torch.arange(rows).repeat_interleave(2), right.values] = True
    ranks = relevant_ranks(scores, right, allowed)
    values = mistakes(scores, kinds, ranks, KINDS, allowed)
    for row in range(rows):
        want = loop(scores[row].tolist(), kinds[row].tolist(), {*right.row(row).tolist()}, allowed[row].tolist())
        assert want.keys() == values.keys(), row
        for name, value in want.items():
            assert float(values[name][row]) == pytest.approx(value, nan_ok=True), (row, name)


def test_values_by_hand():
    scores = torch.tensor([[0.9, 0.5, 0.5, -0.1], [0.9, 0.8, -0.5, -0.6]])
    kinds = torch.tensor([[0, 4, 0, 4], [0, 0, 0, 0]], dtype=torch.int8)
    values = mistakes(scores, kinds, Ragged.of([[3], [1]]), ("unspecified",))
    assert list(values) == ["wrong_at_10", "any_wrong_at_10", "wrong_first", "neg_recall_at_10"]  # no table by kind
    of_first, of_second = torch.stack(list(values.values())).T.tolist()
    assert of_first == [0.5, 1, 1, 1]
    assert [math.isnan(value) for value in of_second] == [True, True, True, False]


def test_only_the_first_that_are_judged_count():
    which = torch.tensor([[True, False, True, True]])
    assert among_first(torch.zeros(1, 4), which, 2, torch.ones_like(which)).tolist() == [[True, False, True, False]]


def test_stored_values_survive_a_table_and_are_averaged_over_the_queries_that_have_one(subtests):
    value = torch.tensor([0.5, math.nan, 0.25], dtype=torch.float64)
    rank = torch.tensor([1, 2, 3])
    ranks = QueryRanks(("a", "b", "c"), ("x",) * 3, rank, rank + 9, Ragged.of([[1], [2], [3]]), values={"v": value})
    again = QueryRanks.from_frame(QueryRanks.concatenate([ranks, ranks]).to_frame()).select([3, 1, 2])
    for name, some in (("as made", ranks), ("from a table", again)):
        with subtests.test(name):
            metric = Metric((value_of_ranking("v"),))
            assert metric.mean(some) == pytest.approx(0.375)
            assert metric.of(some).mean == pytest.approx(0.375)
    first, _, third = again.values["v"].tolist()
    assert (first, third) == (0.5, 0.25)
