"""The data set core against loops over full tables: columns, blocks, exclusions, parts, identity."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
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
from tests.spies import spy


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
    rows = []
    for index in range(queries):
        group = ("two", "one")[int(torch.randint(2, (1,), generator=generator))]
        target, reference, *others = pick(galleries[group], 6)
        if index % 5 == 0:
            reference = f"outside{index % 3}"
        elif index % 5 == 1:
            reference = "i0" if group == "two" else "i16"
        query = Query(f"q{index:02d}", reference, f"text {index}", target, group)
        if more and index % 3:
            query = dataclasses.replace(query, relevant=(target, *others[:2], reference, "elsewhere"))
        if subset:
            query = dataclasses.replace(query, subset=(*others, target, reference))
        rows.append(query)
    images, groups = columns_of(galleries)
    kind = Cirr if subset else Triplets
    return kind(card(exclude_reference=exclude), "val", rows, images, groups, content="c")


def block_of(scores: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function that gives these scores by rows and columns."""

    def score_block(rows: Tensor, columns: Tensor) -> Tensor:
        return scores[rows][:, columns]

    return score_block


@pytest.mark.parametrize(("exclude", "sign"), [(False, "negative"), (True, "ties")])
def test_relevant_ranks_against_loops(exclude, sign):
    data = toy(more=True, exclude=exclude)
    scores = toy_table(data, 5, sign)
    calls = list[tuple[Tensor, Tensor]]()
    ranks = data.rank(spy(block_of(scores), calls), block=4)
    assert max(len(rows) for rows, _ in calls) <= 4
    assert {len(columns) for _, columns in calls} == {9, 11}  # a group's own columns, never all 17
    for index, query in enumerate(data.queries):
        gallery = [data.images[c] for c in data.groups[query.group].tolist()]
        if exclude:
            gallery = [image for image in gallery if image != query.reference]
        relevant = [image for image in dict.fromkeys([str(query.target), *query.relevant]) if image in gallery]
        score = dict(zip(data.images, scores[index].tolist(), strict=True))
        assert int(ranks.gallery_size[index]) == len(gallery), index
        # ties: irrelevant images first, then the relevant ones in the listed order
        worst_first = [image for image in gallery if image not in relevant] + relevant
        order = sorted(worst_first, key=lambda image: -score[image])
        assert ranks.relevant_ranks.row(index).tolist() == [1 + order.index(image) for image in relevant], index
        assert [data.images[c] for c in data.relevant.row(index).tolist()] == relevant, index
    assert ranks.target_rank.tolist() == [loop_rank(data, scores, row) for row in range(len(data.queries))]
    assert list(ranks.query) == [query.id for query in data.queries]
    assert list(ranks.group) == [query.group for query in data.queries]
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
    first, _, again, other, *_ = one
    queries = list(data.queries)
    same = {"reference": queries[first].reference, "text": queries[first].text}
    another_target = "i8" if queries[first].target != "i8" else "i7"
    for row, target in ((again, queries[first].target), (other, another_target)):
        queries[row] = dataclasses.replace(queries[row], **same, target=target, relevant=())
    shared = dataclasses.replace(data, queries=queries)
    assert shared.rows_with_several_targets == [[first, again, other]]
    (remark,) = shared.sharing()
    assert remark.startswith("3 of 25 val rows share reference and text with another row")
    assert remark.endswith("R@1 is at most 96.00% (24 rows)")
    answers = shared.answers

    def columns_of_images(images: Sequence[str | None], group: str) -> set[int]:
        """Return the columns of those images that are in a group's gallery."""
        columns = {shared.column_of[image] for image in images if image in shared.column_of}
        return columns & set(shared.groups[group].tolist())

    for row, query in enumerate(queries):
        want = columns_of_images(query.relevant, query.group)
        if row in (first, again, other):
            targets = [queries[first].target, queries[other].target]
            want = columns_of_images([*targets, *queries[first].relevant], "one")
            assert answers.row(row)[0] == shared.target_columns[row], row
        elif more:
            want |= {int(shared.target_columns[row])}
        assert set(answers.row(row).tolist()) == want, row
    scores = toy_table(shared, 5, "negative")
    assert shared.rank(block_of(scores)).relevant_ranks.lengths.tolist() == (
        shared.relevant.lengths.tolist() if more else [1] * 25
    )
    alone = dataclasses.replace(shared, queries=queries[:other] + queries[other + 1 :])
    assert alone.rows_with_several_targets == alone.sharing() == []


@pytest.mark.parametrize(("fraction", "seed"), [(0.1, 0), (0.5, 1)])
def test_split_dev(fraction, seed):
    data = toy(queries=200)
    train, dev = data.split_dev(fraction, seed)
    largest = max(Counter(query.target for query in data.queries).values())
    assert abs(len(dev.queries) - fraction * 200) <= 2 * largest  # in two groups, whole targets move
    assert train.images == dev.images == data.images
    torch.testing.assert_close(dev.groups, data.groups, rtol=0, atol=0)
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
    cards = [
        card(version="2"),
        card(protocol="other"),
        card(gallery="none"),
        card(text_template="x"),
        card(exclude_reference=True),
        card(name="mine"),
    ]
    lacking = dataclasses.replace(data, missing=("gone",))
    variants = [
        data,
        *(dataclasses.replace(data, card=other) for other in cards),
        dataclasses.replace(data, split="train"),
        dataclasses.replace(data, content="other"),
        dataclasses.replace(data, part="half"),
        lacking,
    ]
    assert len({variant.identity for variant in variants}) == len(variants)
    assert data.identity == toy().identity
    assert dataclasses.replace(data, card=card(licence="other")).identity == data.identity
    assert data.identity.startswith("toy@plain-")
    assert len(data.identity) == len("toy@plain-") + 8
    assert not data.partial
    assert lacking.partial


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
            for query, row, columns, values in zip(data.queries, scores, top.columns, top.scores, strict=True):
                pool = data.groups[query.group].tolist()
                if within:
                    pool = [column for column in pool if data.images[column] in query.subset]
                if exclude or within:  # a subset never holds the reference
                    pool = [column for column in pool if data.images[column] != query.reference]
                best = sorted(pool, key=lambda column, row=row: -float(row[column]))[:k]  # ties by column
                rest = top.columns.shape[1] - len(best)
                assert columns.tolist() == [*best, *[-1] * rest], query.id
                assert values.tolist() == [*row[best].tolist(), *[-torch.inf] * rest], query.id
