"""The data set core against loops over full tables: columns, blocks, exclusions, parts, identity."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from negbench.benchmarks.cirr import Cirr
from negbench.benchmarks.triplets import Triplets
from negbench.contracts import Query
from negbench.contracts.card import Counts, DatasetCard
from negbench.datasets.dataset import Dataset, columns_of
from negbench.errors import DataError, NegbenchError, OptionError
from negbench.testing.datasets import loop_rank, toy_table


def card(**changes: Any) -> DatasetCard:
    names: dict[str, Any] = {"name": "toy", "protocol": "plain", "gallery": "all", "text_template": "as is"}
    measured = {"metrics": ("recall_at_1", "map_at_2"), "main": "recall_at_1"}
    return DatasetCard(**{**names, **measured, "exclude_reference": False, **changes})


def toy(
    *, seed: int = 0, exclude: bool = False, more: bool = False, subset: bool = False, queries: int = 25
) -> Dataset:
    """Return a data set of two overlapping groups; references lie inside, in the other group or outside.

    With `subset` it is a CIRR data set, otherwise triplets.
    """
    generator = torch.Generator().manual_seed(seed)

    def pick(ids: list[str], count: int) -> list[str]:
        return [ids[i] for i in torch.randperm(len(ids), generator=generator)[:count].tolist()]

    galleries = {"one": [f"i{n}" for n in range(9)], "two": [f"i{n}" for n in range(6, 17)]}
    made = []
    for index in range(queries):
        group = ("two", "one")[int(torch.randint(2, (1,), generator=generator))]
        target, reference, *others = pick(galleries[group], 6)
        if index % 5 == 0:
            reference = f"outside{index % 3}"
        elif index % 5 == 1:
            reference = "i0" if group == "two" else "i16"
        relevant = (target, *others[:2], reference, "elsewhere") if more and index % 3 else ()
        members = (*others, target, reference) if subset else ()
        query = Query(f"q{index:02d}", reference, f"text {index}", target, group, relevant=relevant)
        made.append(dataclasses.replace(query, subset=members))
    images, groups = columns_of(galleries)
    return (Cirr if subset else Triplets)(card(exclude_reference=exclude), "val", made, images, groups, content="c")


def block_of(scores: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda rows, columns: scores[rows][:, columns]


@pytest.mark.parametrize(("exclude", "sign"), [(False, "negative"), (True, "ties")])
def test_relevant_ranks_against_loops(exclude, sign):
    data, shapes = toy(more=True, exclude=exclude), []
    scores = toy_table(data, 5, sign)

    def score_block(rows: Tensor, columns: Tensor) -> Tensor:
        shapes.append((len(rows), len(columns)))
        return scores[rows][:, columns]

    ranks = data.rank(score_block, block=4)
    assert max(rows for rows, _ in shapes) <= 4
    assert {columns for _, columns in shapes} == {9, 11}  # a group's own columns, never all 17
    for index, query in enumerate(data.queries):
        gallery = [data.images[c] for c in data.groups[query.group].tolist()]
        if exclude:
            gallery = [image for image in gallery if image != query.reference]
        relevant = [i for i in dict.fromkeys([str(query.target), *query.relevant]) if i in gallery]
        score = dict(zip(data.images, scores[index].tolist(), strict=True))
        assert int(ranks.gallery_size[index]) == len(gallery), index
        # ties: irrelevant images first, then the relevant ones in the listed order
        order = sorted(gallery, key=lambda i: (-score[i], relevant.index(i) if i in relevant else -1))
        assert ranks.relevant_ranks.row(index).tolist() == [1 + order.index(image) for image in relevant], index
        assert [data.images[c] for c in data.relevant.row(index).tolist()] == relevant, index
    assert ranks.target_rank.tolist() == [loop_rank(data, scores, row) for row in range(len(data.queries))]
    assert (ranks.query, ranks.group) == tuple(zip(*((query.id, query.group) for query in data.queries), strict=True))
    assert (ranks.subset_rank, ranks.cluster) == (None, None)


def test_evaluate_checks_its_scores():
    data = toy()
    with pytest.raises(NegbenchError, match=r"25 queries x 17 images, got \(17, 25\)"):
        data.evaluate(torch.zeros(17, 25))
    with pytest.raises(NegbenchError, match="int64"):
        data.evaluate(torch.zeros(25, 17, dtype=torch.int64))
    scores = toy_table(data, 5)
    scores[3, data.groups[data.queries[3].group][2]] = float("nan")
    image = data.images[int(data.groups[data.queries[3].group][2])]
    with pytest.raises(NegbenchError, match=f"query q03 and image '{image}' is NaN"):
        data.evaluate(scores)
    with pytest.raises(NegbenchError, match=r"the scorer returned \(1, 1\)"):
        data.rank(lambda rows, columns: torch.zeros(1, 1))


def test_closed_labels():
    data = toy()
    closed = dataclasses.replace(data, queries=[dataclasses.replace(q, target=None) for q in data.queries])
    assert closed.target_columns.tolist() == [-1] * 25
    with pytest.raises(DataError, match="labels of toy val are closed"):
        closed.evaluate(toy_table(closed, 5))
    with pytest.raises(DataError, match="needs a target"):
        closed.split_dev(0.5, 0)
    ranks = closed.rank(block_of(toy_table(closed, 5)))
    assert ranks.target_rank.tolist() == [0] * 25
    assert ranks.relevant_ranks.lengths.tolist() == [0] * 25


def test_derived_columns():
    data = toy()
    assert data.all_images[: len(data.images)] == data.images
    assert sorted(data.extra_images) == ["outside0", "outside1", "outside2"]
    for index, query in enumerate(data.queries):
        assert data.all_images[int(data.reference_index[index])] == query.reference, index
        assert data.images[int(data.target_columns[index])] == query.target, index
        column = int(data.reference_columns[index])
        assert (query.reference in data.extra_images) if column < 0 else (data.images[column] == query.reference), index
        assert list(data.groups)[int(data.group_index[index])] == query.group, index
    assert data.relevant is None
    assert data.at_epoch(3, 7) is data
    assert not data.redraws


CHECKS = [
    ({"queries": [dataclasses.replace(toy().queries[0], target="nowhere")]}, "target 'nowhere' of query q00"),
    ({"queries": toy().queries[:1] * 2}, "query 'q00' occurs twice"),
    ({"images": ["i0"] * 17}, "image 'i0' occurs twice"),
    ({"groups": {"one": torch.tensor([0, 99]), "two": torch.arange(17)}}, "'one' has repeated or invalid"),
    ({"groups": {"one": torch.tensor([0, 0]), "two": torch.arange(17)}}, "'one' has repeated or invalid"),
    ({"groups": {"one": torch.arange(17)}}, "unknown group 'two'"),
    ({"groups": {"one": torch.arange(17), "two": torch.tensor([0])}}, "is not in the gallery of group 'two'"),
]


@pytest.mark.parametrize(("changes", "message"), CHECKS)
def test_construction_checks(changes, message):
    with pytest.raises(DataError, match=message) as caught:
        dataclasses.replace(toy(), **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("more", [False, True])
def test_rows_of_one_query_answer_each_other(more):
    """Rows 3, 7 and 8 of group "one" ask one query of two targets; scores do not change."""
    data = toy(more=more)
    one = [row for row, query in enumerate(data.queries) if query.group == "one"]
    first, again, other = one[0], one[2], one[3]
    queries = list(data.queries)
    same = {"reference": queries[first].reference, "text": queries[first].text}
    another_target = "i8" if queries[first].target != "i8" else "i7"
    for row, target in ((again, queries[first].target), (other, another_target)):
        queries[row] = dataclasses.replace(queries[row], **same, target=target, relevant=())
    shared = dataclasses.replace(data, queries=queries)
    assert shared.shared_queries == [[first, again, other]]
    (remark,) = shared.sharing()
    assert remark.startswith("3 of 25 val rows share reference and text with another row")
    assert remark.endswith("R@1 is at most 96.00% (24 rows)")
    answers = shared.answers
    for row, query in enumerate(queries):
        own = {shared.column_of[i] for i in query.relevant if i in shared.column_of}
        inside = {c for c in own if c in shared.groups[query.group].tolist()}
        if row in (first, again, other):
            known = {shared.column_of[str(queries[each].target)] for each in (first, other)}
            extra = {shared.column_of[i] for i in queries[first].relevant if i in shared.column_of}
            inside = known | {c for c in extra if c in shared.groups["one"].tolist()}
            assert answers.row(row)[0] == shared.target_columns[row], row
        elif more:
            inside |= {int(shared.target_columns[row])}
        assert set(answers.row(row).tolist()) == inside, row
    scores = toy_table(shared, 5, "negative")
    assert shared.rank(block_of(scores)).relevant_ranks.lengths.tolist() == (
        shared.relevant.lengths.tolist() if more else [1] * 25
    )
    alone = dataclasses.replace(shared, queries=queries[:other] + queries[other + 1 :])
    assert alone.shared_queries == alone.sharing() == []


@pytest.mark.parametrize(("fraction", "seed"), [(0.1, 0), (0.5, 1)])
def test_split_dev(fraction, seed):
    data = toy(queries=200)
    train, dev = data.split_dev(fraction, seed)
    largest = max(sum(q.target == t for q in data.queries) for t in {q.target for q in data.queries})
    assert abs(len(dev.queries) - fraction * 200) <= 2 * largest  # in two groups, whole targets move
    assert train.images == dev.images == data.images
    assert all(torch.equal(dev.groups[name], data.groups[name]) for name in data.groups)
    again = data.split_dev(fraction, seed)[1]
    assert [q.id for q in again.queries] == [q.id for q in dev.queries]
    assert len({data.identity, train.identity, dev.identity}) == 3


def test_a_target_of_two_groups_keeps_the_part_of_its_first():
    data = toy(queries=60)
    shared = {q.target for q in data.queries if q.group == "one"} & {q.target for q in data.queries if q.group == "two"}
    assert shared
    first = [i for i, query in enumerate(data.queries) if query.group == "one"]
    alone = {q.id for q in data.with_queries(first, "one").split_dev(0.4, 1)[1].queries}
    assert alone == {q.id for q in data.split_dev(0.4, 1)[1].queries if q.group == "one"}


def test_split_dev_errors(subtests):
    for fraction in (0.0, 1.0, -0.5):
        with (
            subtests.test(fraction=fraction),
            pytest.raises(OptionError, match=f"fraction must be between 0 and 1, got {fraction}"),
        ):
            toy().split_dev(fraction, 0)
    with pytest.raises(DataError, match="1 queries are too few"):
        toy(queries=1).split_dev(0.5, 0)


def test_identity_covers_what_determines_a_result():
    data = toy()
    variants = [
        data,
        *(dataclasses.replace(data, card=card(**change)) for change in (
            {"version": "2"}, {"protocol": "other"}, {"gallery": "none"}, {"text_template": "x"},
            {"exclude_reference": True}, {"name": "mine"},
        )),
        dataclasses.replace(data, split="train"),
        dataclasses.replace(data, content="other"),
        dataclasses.replace(data, missing=("gone",)),
        dataclasses.replace(data, part="half"),
    ]  # fmt: skip
    assert len({variant.identity for variant in variants}) == len(variants)
    assert data.identity == toy().identity
    assert dataclasses.replace(data, card=card(licence="other")).identity == data.identity
    assert data.identity.startswith("toy@plain-")
    assert len(data.identity) == len("toy@plain-") + 8
    assert not data.partial
    assert variants[-2].partial


def test_card_remarks():
    declared = card(expected={"val": {"one": Counts(3, 9), "two": Counts(2, 11)}})
    assert declared.remarks("val", {"one": Counts(3, 9), "two": Counts(2, 10)}) == (
        "two val: 10 gallery, but 11 are published",
    )
    assert declared.remarks("val", {"one": Counts(3, 9)}) == ()
    assert declared.remarks("train", {"one": Counts(1, 1)}) == ()


@pytest.mark.parametrize(("k", "exclude", "block"), [(1, False, 1), (4, True, 4), (100, True, 100)])
def test_top_against_sorted_ids(subtests, k, exclude, block):
    data = toy(exclude=exclude, subset=True)
    scores = toy_table(data, 5, "ties")
    score_block = block_of(scores)
    for within, top in (False, data.top(score_block, k, block)), (True, data.top_of_group(score_block, k)):
        with subtests.test(within=within):
            assert top.columns.shape == top.scores.shape == (25, min(k, 17))
            for index, query in enumerate(data.queries):
                pool = [c for c in data.groups[query.group].tolist() if not within or data.images[c] in query.subset]
                if exclude or within:  # a subset never holds the reference
                    pool = [c for c in pool if data.images[c] != query.reference]
                best = sorted(pool, key=lambda c: (-float(scores[index, c]), pool.index(c)))[:k]
                rest = top.columns.shape[1] - len(best)
                assert top.columns[index].tolist() == best + [-1] * rest, f"query {query.id}"
                assert top.scores[index].tolist() == [float(scores[index, c]) for c in best] + [-torch.inf] * rest, (
                    f"query {query.id}"
                )
