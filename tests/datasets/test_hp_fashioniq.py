"""HP-FashionIQ: the real file with pinned numbers, toy files, a loop over the file as oracle."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from negbench.benchmarks.hp_fashioniq import HPFashionIQ
from negbench.errors import DataError
from negbench.plugins.registry import build
from negbench.testing.datasets import SIGNS, toy_table
from tests import standin
from tests.datasets import flaws

FILE = "hpfiq.json"


def path(number: int) -> str:
    return f"/-/image_data/{'shirt' if number % 2 else 'toptee'}/B{number:03d}.jpg"


def question_set(start: int, choices: str, ratings: list[tuple[int, int]]) -> dict[str, Any]:
    """Return judgements in which the target is in neither set, in either one, or in both."""
    keys = ("ref_img_paths", "targ_img_paths", "sentences", "retrieved_set1", "retrieved_set2")
    value: dict[str, Any] = {key: [] for key in keys} | {"preferred set": list(choices)}
    for index, (one, two) in enumerate(ratings):
        base = start + index
        value["ref_img_paths"].append(path(base))
        value["targ_img_paths"].append(path(base + 1))
        value["sentences"].append(f"is {base} bluedotmark  and has dots andmark stripes")
        for side, rating in ((1, one), (2, two)):
            first = base + 10 * side + 2
            images = [*range(first, first + 5)]
            if index & side:
                images[3] = base + 1  # the target
            members = {"img_path": [path(image) for image in images], "user_score": str(rating)}
            value[f"retrieved_set{side}"].append(members)
    return value


def toy_files() -> flaws.Files:
    data = {
        "user_1": {
            "question_set_1": question_set(0, "1212", [(4, 2), (2, 3), (1, 5), (3, 3)]),  # the third contradicts itself
            "question_set_2": question_set(40, "112", [(5, 5), (4, 1), (2, 2)]),
        },
        "user_2": {"question_set_1": question_set(80, "2211", [(1, 2), (3, 3), (5, 4), (2, 1)])},
        "user_3": {"question_set_1": question_set(20, "21", [(4, 1), (2, 2)])},  # the first contradicts itself
    }
    return {FILE: data}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return flaws.write(tmp_path / "hp_fashioniq", toy_files())


def load(root: Path, **options: Any) -> HPFashionIQ:
    return build(HPFashionIQ, root=root, **{"images": False, **options})


# --- the real file -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(shared_data: Path) -> HPFashionIQ:
    return load(shared_data)


@pytest.mark.data
def test_the_real_file_holds_what_is_published(real):
    assert len(real.queries) == 3050
    participants = Counter(judged.participant for judged in real.judgements.values())
    assert (len(participants), set(participants.values())) == (61, {50})
    assert Counter(real.first.tolist()) == {True: 1641, False: 1409}
    assert (len(real.images), real.extra_images) == (5553, [])
    assert real.sets.shape == (3050, 2, 5)
    assert set(real.ratings.flatten().tolist()) == {1, 2, 3, 4, 5}
    assert [int(n) for n in real.hits.sum(0)] == [1168, 1184]
    assert not any("published" in remark for remark in real.remarks)  # the counts are the published ones
    assert real.queries[0].text == "is blue colored and a logo and has short sleeves"
    assert not any("dotmark" in query.text for query in real.queries)


@pytest.mark.data
def test_the_sanity_check_leaves_out_32_of_the_real_file(real, shared_data):
    assert real.remarks[-1].startswith("32 of 3,050 judgements prefer the set with the lower Likert score")
    assert len(load(shared_data / "hp_fashioniq", sanity_check=True).queries) == 3018


def test_the_sanity_check_leaves_out_contradictions(root):
    whole = load(root)
    consistent = load(root, sanity_check=True)
    left_out = {"user_1/question_set_1/02", "user_3/question_set_1/00"}
    assert [query.id for query in consistent.queries] == [
        query.id for query in whole.queries if query.id not in left_out
    ]
    assert len(consistent.queries) == len(whole.queries) - 2
    assert "2 of 13 judgements" in whole.remarks[-1]
    assert consistent.identity != whole.identity


@pytest.mark.data
def test_texts_are_fashioniqs_captions(real, shared_data):
    captions: dict[tuple[str, str], set[str]] = {}
    for category in ("shirt", "toptee"):
        source = shared_data / "fashioniq" / "captions" / f"cap.{category}.val.json"
        for entry in json.loads(source.read_text()):
            one, two = entry["captions"]
            texts = {" ".join(f"{a} and {b}".split()) for a, b in ((one, two), (two, one))}
            captions.setdefault((entry["candidate"], entry["target"]), set()).update(texts)
    unknown = [q for q in real.queries if q.text not in captions[q.reference, str(q.target)]]
    assert len(unknown) == 4  # changed by hand in the file, as "They’re" to "They are"


# --- toy files ---------------------------------------------------------------------------------------------------


def test_queries_and_judgements(root):
    data = load(root.parent)  # the parent folder works too
    assert [query.id for query in data.queries[:2]] == ["user_1/question_set_1/00", "user_1/question_set_1/01"]
    query = data.queries[2]
    judgement = data.judgements["user_1/question_set_1/02"]
    assert (query.reference, query.target, query.text) == ("B002", "B003", "is 2 blue. and has dots & stripes")
    assert query.captions == ("is 2 bluedotmark  and has dots andmark stripes",)
    assert judgement.sets[1] == ("B024", "B025", "B026", "B003", "B028")
    assert (judgement.participant, judgement.ratings, judgement.first) == ("user_1", (1, 5), True)
    assert data.hits[:4].tolist() == [[False, False], [True, False], [False, True], [True, True]]
    assert {data.images[c] for c in data.sets[2, 1].tolist()} == set(judgement.sets[1])
    assert not data.closed


@pytest.mark.parametrize("sign", SIGNS)
def test_evaluate_against_a_loop(root, sign):
    data = load(root)
    scores = toy_table(data, 4, sign)
    # whether the participant prefers the first set, where the scores put it ahead, not behind, ...
    ahead = list[bool]()
    not_behind = list[bool]()
    ahead_at_equal_recall = list[bool]()
    right = list[float]()
    for row, judgement, hits in zip(scores, data.judgements.values(), data.hits.tolist(), strict=True):
        one, two = (row[[data.column_of[image] for image in members]].mean() for members in judgement.sets)
        if one > two:
            ahead.append(judgement.first)
        if one >= two:
            not_behind.append(judgement.first)
        if one > two and hits[0] == hits[1]:
            ahead_at_equal_recall.append(judgement.first)
        right.append(0.5 if one == two else float((one > two) == judgement.first))
    values = data.evaluate(scores)
    assert values["preference_rate"] == pytest.approx(np.mean(ahead))
    assert values["preference_rate_with_ties"] == pytest.approx(np.mean(not_behind))
    assert values["preference_rate_equal_recall"] == pytest.approx(np.mean(ahead_at_equal_recall))
    assert values["accuracy"] == pytest.approx(np.mean(right))
    by_recall = data.judge(torch.where(data.hits, 0.0, -1.0))  # ahead only where recall differs
    assert math.isnan(by_recall["preference_rate_equal_recall"])
    for name, value in values.items():
        least = -1 if name.endswith("spearman") else 0
        assert least <= value <= 1, name


def test_a_part_keeps_its_own_judgements(root):
    data = load(root)
    rows = [12, 3, 7]
    part = data.with_queries(rows, "three")
    scores = toy_table(data, 2)
    assert torch.equal(part.sets, data.sets[rows])
    assert torch.equal(part.first, data.first[rows])
    assert part.evaluate(scores[rows])["chance"] == pytest.approx(float(data.first[rows].double().mean()))


# --- images ------------------------------------------------------------------------------------------------------


def test_images_are_found_wherever_they_lie(subtests, root):
    names = load(root).images
    standin.write_images(root.parent / "hp_fashioniq/image_data", names[:5])
    standin.write_images(root.parent / "fashioniq/images", names[5:])
    for folder in (root, root.parent):
        with subtests.test(folder=folder.name):
            data = load(folder, images=True)
            assert not data.partial
            assert data.open_image(names[3]).size == (8, 8)


def test_judgements_of_a_missing_image_are_left_out(root):
    standin.write_images(root, [name for name in load(root).images if name != "B016"])
    data = load(root, images=True, allow_missing=True)
    assert 0 < len(data.queries) < 13
    for query in data.queries:
        first, second = data.judgements[query.id].sets
        assert "B016" not in (query.reference, query.target, *first, *second), query.id


# --- flaws of the file -------------------------------------------------------------------------------------------


def put(*path: str | int, value: Any) -> flaws.Change:
    return flaws.put(FILE, "user_1", "question_set_1", *path, value=value)


def drop(*path: str | int) -> flaws.Change:
    return flaws.drop(FILE, "user_1", "question_set_1", *path)


FLAWS = [
    (drop("sentences"), "'question_set_1': key 'sentences' is missing"),
    (drop("sentences", -1), "the six lists must have the same length"),
    (put("preferred set", 1, value="3"), r"""key 'preferred set'\[1\]: expected "1" or "2", got"""),
    (put("retrieved_set1", 2, "user_score", value="6"), r"""key 'retrieved_set1'\[2\]: key 'user_score'"""),
    (put("retrieved_set2", 0, "img_path", value=[path(14)] * 5), "expected 5 different images"),
    (put("targ_img_paths", 0, value=5), r"key 'targ_img_paths'\[0\]: expected a string, got 5"),
]


@pytest.mark.parametrize(("change", "message"), FLAWS)
def test_a_flaw_names_file_participant_and_key(root, change, message):
    files = toy_files()
    change(files)
    flaws.write(root, files)
    with pytest.raises(DataError, match=message) as caught:
        load(root)
    assert str(root / FILE) in str(caught.value)
    assert "user_1" in str(caught.value)
    assert "\n" not in str(caught.value)
