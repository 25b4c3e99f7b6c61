"""Fashion200K: toy label files, metrics against TIRG's rule in loops, training pairs against a list of all pairs."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from negbench.benchmarks._tirg import Labels, TrainingPairs
from negbench.benchmarks.fashion200k import LANGUAGE, Fashion200K, modification
from negbench.errors import DataError
from negbench.plugins.registry import build
from negbench.testing.datasets import SIGNS, toy_table
from tests import standin
from tests.datasets import flaws
from tests.datasets.test_dataset import block_of

TRAIN = [
    ("a", "black biker jacket"), ("b", "blue biker jacket"), ("c", "black biker jacket"), ("d", "black denim jacket"),
    ("e", "wide culottes"), ("f", "jacket black biker"), ("g", "blue denim jacket"), ("h", "red denim jacket"),
]  # fmt: skip
TEST = [
    ("p", "black silk dress"), ("q", "red silk dress"), ("r", "red silk dress"), ("s", "red cotton dress"),
    ("t", "black silk dress"), ("u", "white shirt"),
]  # fmt: skip
QUERIES = [("p", "q"), ("t", "r"), ("q", "s"), ("q", "p"), ("s", "q")]


def name_of(image: str) -> str:
    return f"women/dresses/casual/{image}/{image}_0"


def label_file(images: list[tuple[str, str]]) -> bytes:
    return "".join(f"{name_of(i)}.jpeg\t-1.5\t {caption} \n" for i, caption in images).encode()


def toy_files() -> flaws.Files:
    pairs = "".join(f"{name_of(s)}.jpeg {name_of(t)}.jpeg\n" for s, t in QUERIES)
    return {
        "labels/dress_train_detect_all.txt": label_file(TRAIN[:5]),
        "labels/top_train_detect_all.txt": label_file(TRAIN[5:]),
        "labels/dress_test_detect_all.txt": label_file(TEST),
        "test_queries.txt": pairs.encode(),
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return flaws.write(tmp_path / "fashion200k", toy_files())


def load(root: Path, **options: Any) -> Fashion200K:
    return build(Fashion200K, root=root, **{"images": False, **options})


def short(image: str | None) -> str:
    return str(image).split("/")[-2]


# --- the test split ----------------------------------------------------------------------------------------------


def test_queries_of_the_toy(root):
    data = load(root)
    assert [short(i) for i in data.images] == list("pqrstu")
    assert {name: len(columns) for name, columns in data.groups.items()} == {"all": 6}
    first = data.queries[0]
    assert (first.id, first.reference, first.target) == ("test-00000", name_of("p"), name_of("q"))
    assert first.text == "is not black, is red."
    assert first.captions == ("black silk dress", "red silk dress")
    assert (first.reference_text, first.target_text) == (None, None)
    relevant = ["".join(short(image) for image in query.relevant) for query in data.queries]
    assert relevant == ["qr", "rq", "s", "pt", "qr"]
    assert data.split == "test"
    assert data.identity == load(root, split="test").identity
    assert load(root.parent).identity == data.identity
    assert "val is test" in data.card.gallery
    assert data.remarks == ()


def tirg_hits(data: Fashion200K, scores: Tensor, k: int) -> float:
    """Compute recall at k by TIRG's rule in loops; among equal scores the wrong captions come first."""
    caption = dict(TEST)
    hits = 0
    for index, query in enumerate(data.queries):
        right = caption[short(query.target)]
        candidates = []
        for image, score in zip(data.images, scores[index].tolist(), strict=True):
            if image != query.reference:
                candidates.append((-score, caption[short(image)] == right))
        hits += any(is_right for _, is_right in sorted(candidates)[:k])
    return hits / len(data.queries)


def test_metrics_against_loops(subtests, root, monkeypatch):
    monkeypatch.setattr(Fashion200K, "cutoffs", (1, 2, 3))  # the toy has six images
    data = load(root)
    for seed, sign in itertools.product(range(5), SIGNS):
        with subtests.test(seed=seed, sign=sign):
            scores = toy_table(data, seed, sign)
            want = {f"recall_at_{k}": tirg_hits(data, scores, k) for k in (1, 2, 3)}
            want["average"] = sum(want.values()) / 3
            assert data.evaluate(scores) == pytest.approx(want)
            ranks = data.rank(block_of(scores), block=2)
            assert ranks.gallery_size.tolist() == [5] * 5  # without the reference
            assert ranks.target_rank.tolist() == [int(ranks.relevant_ranks.row(row).min()) for row in range(5)]


# --- training pairs ----------------------------------------------------------------------------------------------


def all_pairs(images: list[tuple[str, str]]) -> dict[tuple[str, str], float]:
    """Return the probability of every pair by listing all pairs: TIRG's sampler, HyCoLe's rule of what a pair is."""
    children: dict[Any, set[tuple[str, str]]] = {}
    count = Counter(caption for _, caption in images)
    for caption in count:
        words = caption.split()
        for index, word in enumerate(words):
            children.setdefault(frozenset({*words[:index], *words[index + 1 :]}), set()).add((caption, word))
    weights: dict[tuple[str, str], float] = {}
    for source, caption in images:
        chances: dict[str, float] = {}  # of a caption one word away
        for siblings in children.values():
            words_of = dict(siblings)
            if caption not in words_of:
                continue
            for other, word in siblings:
                if word != words_of[caption]:
                    chances[other] = chances.get(other, 0.0) + 1 / len(siblings)
        for target, other in images:
            if other in chances:
                weights[source, target] = chances[other] / sum(chances.values()) / count[other]
    sources = {source for source, _ in weights}
    return {pair: weight / len(sources) for pair, weight in weights.items()}


def test_pairs_are_drawn_as_tirg_draws_them(root):
    queries = load(root, split="train").pairs.draw(20_000, 4, 7)
    drawn = Counter((short(q.reference), short(q.target)) for q in queries)
    want = all_pairs(TRAIN)
    assert set(drawn) == set(want)
    assert ("a", "b") in want
    assert ("a", "c") not in want  # the same caption
    assert ("a", "f") not in want  # the same words in another order
    assert ("f", "b") in want
    assert not any("e" in pair for pair in want)  # `e` has no neighbour
    statistic = sum((drawn[pair] - 20_000 * p) ** 2 / (20_000 * p) for pair, p in want.items())
    assert statistic < len(want) + 4 * (2 * len(want)) ** 0.5
    for query in queries[:200]:
        before, after = query.captions
        assert query.text == modification(before, after), query.id
        assert query.reference_text == f"is {', '.join(before.split())}.", query.id
        assert query.target_text == f"is {', '.join(after.split())}.", query.id
        assert query.relevant[0] == query.target, query.id
        assert {short(i) for i in query.relevant} == {i for i, c in TRAIN if c == after}, query.id


def test_pairs_are_of_one_category(tmp_path):
    captions = {"dresses/x/1/1_0": "red silk", "dresses/x/2/2_0": "blue silk", "tops/x/3/3_0": "pink silk"}
    lines = "".join(f"women/{picture}.jpeg\t1\t{caption}\n" for picture, caption in captions.items())
    data = load(flaws.write(tmp_path, {"labels/train.txt": lines.encode()}), split="train")
    texts = set[str]()
    for epoch in range(100):
        texts.update(query.text for query in data.at_epoch(epoch, 0).queries)
    assert texts == {"is not red, is blue.", "is not blue, is red."}


def test_every_epoch_has_pairs_of_its_own(root):
    data = load(root, split="train")
    drawn = (data, data.at_epoch(0, 1), data.at_epoch(1, 1), data.at_epoch(0, 2))
    pairs = [tuple((query.reference, query.target) for query in epoch.queries) for epoch in drawn]
    assert len(set(pairs)) == 4
    assert load(root).at_epoch(3, 0).queries == load(root).queries  # nothing is drawn for the test split


def test_pairs_of_later_epochs_leave_the_dev_part_its_targets(root):
    train, dev = load(root, split="train").split_dev(0.3, 0)
    of_dev = {query.target for query in dev.queries}
    of_train = set[str | None]()
    for epoch in range(40):
        queries = train.at_epoch(epoch, 0).queries
        assert len(queries) == len(train.queries), f"epoch {epoch}"
        of_train.update(query.target for query in queries)
    assert of_train == {image for image in train.images if short(image) != "e"} - of_dev  # every other is drawn


def pairs_of(captions: list[str]) -> TrainingPairs:
    return TrainingPairs(Labels([f"{n}" for n in range(len(captions))], captions), LANGUAGE)


def test_what_is_stored_grows_with_the_words_and_not_with_the_pairs():
    sizes = (20, 20, 10)
    words = itertools.product(*(range(size) for size in sizes))
    pairs = pairs_of([f"c{first} m{second} t{third}" for first, second, third in words] * 2)
    assert pairs.count * sum(size - 1 for size in sizes) * 2 == 752_000  # number of possible pairs
    stored = (pairs.targets, pairs.families, pairs.members)
    assert [sum(len(entries) for entries in part.values()) for part in stored] == [8_000, 12_000, 12_000]


def test_the_same_words_are_no_pair():
    captions = ["x x a", "x a", "a x", "b x"]
    drawn = {query.captions for query in pairs_of(captions).draw(500)}
    assert ("a x", "b x") in drawn
    assert ("x a", "a x") not in drawn
    with pytest.raises(DataError, match="no two classes of images are one word apart"):
        pairs_of(["black dress", "dress black"]).draw(1)


# --- images ------------------------------------------------------------------------------------------------------


def with_images(root: Path, images: list[tuple[str, str]], folder: str = "") -> Path:
    for image, _ in images:
        standin.write_images((root / folder / name_of(image)).parent, [f"{image}_0"])
    return root


def test_images_are_found_below_any_folder(root):
    data = build(Fashion200K, root=with_images(root, TEST, "a/b"))
    assert data.open_image(name_of("q")).tobytes() == bytes(standin.color_of("q_0")) * 64
    assert data.identity == load(root).identity


def test_missing_images(root):
    with_images(root, TEST)
    (root / f"{name_of('q')}.png").write_bytes(b"")
    data = build(Fashion200K, root=root, allow_missing=True)
    assert data.missing == (name_of("q"),)
    # queries with reference q are dropped; where q was the target, another image with its caption replaces it
    assert [(short(q.reference), short(q.target)) for q in data.queries] == [("p", "r"), ("t", "r"), ("s", "r")]
    (root / f"{name_of('r')}.png").unlink()
    with pytest.raises(DataError, match=r"fashion200k test: no query in .* is left"):
        build(Fashion200K, root=root, allow_missing=True)
    with pytest.raises(DataError, match=r"fashion200k train: no query in .* is left .*8 images missing"):
        build(Fashion200K, root=root, split="train", allow_missing=True)


# --- flawed files ------------------------------------------------------------------------------------------------

LABELS = "labels/dress_test_detect_all.txt"
PAIRS = "test_queries.txt"


def add_line(name: str, line: bytes) -> flaws.Change:
    """Return a change that adds a line to a file."""

    def change(files: flaws.Files) -> None:
        files[name] += line + b"\n"

    return change


FLAWS: dict[str, tuple[flaws.Change, str]] = {
    "no label file": (flaws.drop(LABELS), r"labels has no file with 'test' in its name"),
    "no query file": (flaws.drop(PAIRS), r"test_queries\.txt is missing"),
    "two fields": (add_line(LABELS, b"women/x.jpeg\t1.0"), r"all\.txt: line 7: expected path, score and caption"),
    "empty caption": (add_line(LABELS, b"women/x.jpeg\t1\t "), r"line 7: image 'women/x' has an empty caption"),
    "path that leaves": (add_line(LABELS, b"women/../../x.jpeg\t1\ta"), r"line 7: 'women/\.\./\.\./x\.jpeg' is not a"),
    "one path": (add_line(PAIRS, b"women/x.jpeg"), r"queries\.txt: line 6: expected source path and target"),
    "unknown path": (add_line(PAIRS, b"women/x.jpeg y"), r"line 6: source 'women/x' is not in any test"),
    "same image": (add_line(PAIRS, f"{name_of('p')} {name_of('p')}".encode()), r"line 6: source and target are"),
    "no queries": (flaws.put(PAIRS, value=b"\n"), r"fashion200k test: no query in .* is left"),
}


def test_a_flawed_file_is_one_clear_line(subtests, tmp_path):
    flaws.check(subtests, FLAWS, toy_files, tmp_path, load)


def test_images_labelled_twice_are_one(tmp_path):
    files = toy_files()
    files[LABELS] += label_file([("p", "black silk dress"), ("q", "something else")])
    data = load(flaws.write(tmp_path, files))
    assert len(data.images) == 6
    assert data.remarks == ("test: 2 lines repeat an image, 1 with another caption: the first counts",)
    assert data.queries[0].captions[1] == "red silk dress"
