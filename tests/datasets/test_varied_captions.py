"""Texts that differ from epoch to epoch: how often each is drawn, by which seed, and who sees them."""

from collections import Counter

import pytest

from negbench.contracts import Query
from negbench.datasets.varied_captions import check_captions
from negbench.errors import DataError
from negbench.files.captions import draw_texts
from negbench.plugins.registry import build
from negbench.worlds.vectors import VectorWorld
from tests.runs import config_of, run, untrained

PAIR = [Query(str(n), "r", "Is red and has a bow", "t", captions=("is red.", "has a bow")) for n in range(4000)]


def test_each_of_four_texts_is_drawn_in_a_quarter():
    counts = Counter(query.text for query in draw_texts(PAIR, 0, 0))
    assert set(counts) == {"Is red and has a bow", "Has a bow and is red", "Is red", "Has a bow"}
    for text, count in counts.items():
        assert abs(count - 1000) < 130, text  # 4.7 standard deviations


def test_texts_are_the_same_in_the_same_epoch():
    assert draw_texts(PAIR, 1, 2) == draw_texts(PAIR, 1, 2)


@pytest.mark.parametrize(("epoch", "seed"), [(2, 2), (1, 3)], ids=["epoch", "seed"])
def test_texts_are_others_in_another(epoch, seed):
    pairs = zip(draw_texts(PAIR, 1, 2), draw_texts(PAIR, epoch, seed), strict=True)
    same = sum(one.text == other.text for one, other in pairs)
    assert abs(same - 1000) < 130


def test_more_captions_are_shuffled_and_one_stays():
    three = [Query(str(n), "r", "A and b and c", captions=("a", "b", "c")) for n in range(300)]
    texts = {query.text for query in draw_texts(three, 0, 0)}
    orders = ("A and b and c", "A and c and b", "B and a and c", "B and c and a", "C and a and b", "C and b and a")
    assert texts == {*orders, "A", "B", "C"}
    one = Query("q", "r", "as written", captions=("As written.",))
    assert draw_texts([one], 0, 0) == [one]


def test_only_training_sees_other_texts():
    more = ("dataset.train_images=80", "dataset.train_queries=40", "train.epochs=2", "eval.select=dev")
    sets = ("dataset.name=vectors", "backbone.name=vectors", *more)
    varied = untrained(config_of(sets, "in-batch", "train.vary_captions=true"))
    plain = untrained(config_of(sets, "in-batch"))
    for epoch in range(2):
        scene = varied.scene.at_epoch(varied.backbone, epoch, varied.config)
        texts = [query.text for query in scene.train.dataset.queries]
        drawn = draw_texts(plain.scene.train.dataset.queries, epoch, 0)
        assert texts == [query.text for query in drawn], f"epoch {epoch}"
        rows = scene.train.texts(varied.backbone)
        fixed = plain.scene.train.texts(plain.backbone)
        assert any(not value.equal(fixed[name]) for name, value in rows.items()), f"epoch {epoch}"
    assert varied.scene.val.dataset.queries == plain.scene.val.dataset.queries
    assert varied.scene.dev.dataset.queries == plain.scene.dev.dataset.queries
    assert plain.scene.at_epoch(plain.backbone, 0, plain.config) is plain.scene


def test_a_run_differs_by_them_and_has_a_hash_of_its_own(tmp_path):
    sets = ("dataset.name=vectors", "backbone.name=vectors", "dataset.train_images=80", "dataset.train_queries=40")
    plain = run(config_of(sets, "in-batch", "train.epochs=2", "train.vary_captions=false"), tmp_path)
    varied = run(config_of(sets, "in-batch", "train.epochs=2", "train.vary_captions=true"), tmp_path)
    assert plain.run_id != varied.run_id
    weights = varied.folder.weights()
    assert any(not value.equal(weights[name]) for name, value in plain.folder.weights().items())


def test_a_data_set_of_one_text_a_query_is_refused():
    world = build(VectorWorld, train_images=80, train_queries=40, split="train")
    world = world.with_queries([], "none")
    with pytest.raises(DataError, match=r"^train\.vary_captions: vectors keeps no two captions of a query: leave"):
        check_captions(world)
