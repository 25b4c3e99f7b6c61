"""Wrong train triplets on purpose: which queries get what, by loops; and runs that train on them."""

from collections import Counter
from dataclasses import fields
from typing import Any

import pytest

from negbench.contracts import Query
from negbench.data.scene import DataCache
from negbench.datasets.dataset import Dataset
from negbench.datasets.wrong_triplets import with_wrong_triplets
from negbench.errors import DataError
from negbench.plugins.registry import build
from negbench.settings.config import resolve
from negbench.worlds.vectors import VectorWorld
from tests.runs import config_of, run

MOVED = {
    "reference": {"reference", "reference_text", "relevant", "wrong"},
    "text": {"text", "captions", "wordings", "relevant", "wrong"},
    "target": {"target", "target_text", "relevant"},
}


def world(**options: Any) -> VectorWorld:
    return build(VectorWorld, **{"train_images": 80, "train_queries": 60, "twins": 2.0, "split": "train", **options})


def differences(before: Dataset, after: Dataset) -> list[tuple[Query, Query, set[str]]]:
    """Return the changed queries, before and after, with the fields that differ."""
    changed = []
    for one, other in zip(before.queries, after.queries, strict=True):
        names = {field.name for field in fields(Query) if getattr(one, field.name) != getattr(other, field.name)}
        if names:
            changed.append((one, other, names))
    return changed


@pytest.mark.parametrize("kind", MOVED)
def test_a_share_of_the_queries_gets_a_wrong_member(kind):
    right = world()
    wrong = with_wrong_triplets(right, 0.5, kind, seed=3)
    changed = differences(right, wrong)
    assert len(changed) == 30
    members = {(query.group, getattr(query, kind)) for query in right.queries}
    for _, after, names in changed:
        assert kind in names, after.id
        assert names <= MOVED[kind], after.id
        assert (after.group, getattr(after, kind)) in members, after.id
    assert wrong.images == right.images


def test_a_wrong_target_answers_nothing_and_what_does_stays_relevant():
    right = world()
    for before, after, _ in differences(right, with_wrong_triplets(right, 0.9, "target", seed=0)):
        assert after.target not in (*before.relevant, before.reference), after.id
        assert after.relevant == (after.target, *before.relevant), after.id


@pytest.mark.parametrize("kind", ["reference", "text"])
def test_after_another_wrong_member_nothing_is_known_but_the_target(kind):
    right = world()
    for before, after, _ in differences(right, with_wrong_triplets(right, 0.9, kind, seed=0)):
        assert (after.target, after.relevant) == (before.target, ()), after.id
        assert after.reference != after.target, after.id


def test_all_kinds_are_a_third_each():
    right = world()
    wrong = with_wrong_triplets(right, 0.75, "all", seed=1)
    counts = Counter[str]()
    for _, _, names in differences(right, wrong):
        (kind,) = names & MOVED.keys()
        counts[kind] += 1
    assert counts == {"reference": 15, "text": 15, "target": 15}
    remark = "45 of 60 train triplets are wrong on purpose: 15 references, 15 texts, 15 targets"
    assert wrong.remarks == (*right.remarks, remark)


def test_they_are_a_function_of_the_seed():
    right = world()
    first = with_wrong_triplets(right, 0.5, "all", 0)
    again = with_wrong_triplets(right, 0.5, "all", 0)
    other = with_wrong_triplets(right, 0.5, "all", 1)
    assert first.queries == again.queries
    assert first.queries != other.queries
    assert len({right.identity, first.identity, other.identity}) == 3


def test_a_triplet_without_any_wrong_member_stays():
    right = world()
    alone = right.with_queries([4], "one query")
    wrong = with_wrong_triplets(alone, 1.0, "text", seed=0)
    assert wrong.queries == alone.queries
    assert wrong.remarks[-1] == "0 of 1 train triplets are wrong on purpose: 0 texts"


def test_wrong_members_come_from_the_query_s_own_gallery(vector_sets):
    full = resolve(config_of(vector_sets, "qure", "train.wrong=0.9"))
    train = DataCache().splits(full).train
    for query in train.queries:
        assert query.group.split("-")[0] in query.reference, query.id
        assert query.group.split("-")[0] in str(query.target), query.id


def test_only_the_train_split_of_a_run_has_them(vector_sets):
    cache = DataCache()
    clean = cache.splits(resolve(config_of(vector_sets, "qure", "eval.select=dev")))
    dirty = cache.splits(resolve(config_of(vector_sets, "qure", "eval.select=dev", "train.wrong=0.5")))
    assert dirty.val is clean.val
    assert dirty.dev is clean.dev
    assert len(differences(clean.train, dirty.train)) == round(0.5 * len(clean.train.queries))


def test_a_run_says_so_and_differs_and_another_seed_has_others(vector_sets, tmp_path):
    clean = run(config_of(vector_sets, "qure", seed=0), tmp_path)
    dirty = run(config_of(vector_sets, "qure", "train.wrong=0.5", seed=0), tmp_path)
    other = run(config_of(vector_sets, "qure", "train.wrong=0.5", seed=1), tmp_path)
    data = [result.folder.manifest["dataset"] for result in (clean, dirty, other)]
    assert "wrong on purpose" not in " ".join(data[0]["remarks"])
    remark = "24 of 48 train triplets are wrong on purpose: 8 references, 8 texts, 8 targets"
    assert remark in " ".join(data[1]["remarks"])
    assert len({part["train"] for part in data}) == 3
    assert len({part["val"] for part in data}) == 1
    assert clean.metrics != dirty.metrics


def test_a_data_set_that_draws_its_queries_anew_is_refused():
    class Redrawn(VectorWorld):
        @property
        def redraws(self) -> bool:
            return True

    data = world()
    drawn = Redrawn(**{field.name: getattr(data, field.name) for field in fields(VectorWorld)})
    with pytest.raises(DataError, match=r"train\.wrong = 0\.2, but vectors draws its queries anew"):
        with_wrong_triplets(drawn, 0.2, "all", 0)
