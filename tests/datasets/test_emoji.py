"""Emoji: meaning of code points, the pictures and queries made from them, and refusals."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from negbench.datasets.verify import verify
from negbench.errors import DataError, OptionError
from negbench.metrics.fixed import KINDS
from negbench.plugins.registry import build
from negbench.worlds._emoji_codes import Look, description, modification, parse
from negbench.worlds._icons import PACKAGES
from negbench.worlds.emoji import ARTISTS, EmojiPictures

pytest.importorskip("resvg_py")


def load(root: Path, split: str = "train", **options: Any) -> EmojiPictures:
    return build(EmojiPictures, root=root, split=split, **options)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, toys: ModuleType) -> Path:
    """Return a folder with drawn pictures; tests change only copies."""
    folder = tmp_path_factory.mktemp("emoji") / "emoji"
    toys.emoji(folder)
    load(folder)
    return folder


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Iterator[Path]:
    """Return a copy of the folder, which the test may change."""
    before = dict(PACKAGES)
    yield Path(shutil.copytree(root, tmp_path / "emoji"))
    PACKAGES.update(before)


# --- code points ---------------------------------------------------------------------------------------------------


def test_code_points_are_read_as_unicode_spells_them(subtests, spelled):
    for codes, (family, look) in spelled["emoji"].items():
        with subtests.test(codes=codes):
            assert parse(codes) == (family, Look(**look))


def test_texts_say_each_change_and_nothing_else():
    plain = Look(tone="dark")
    woman = Look(tone="light", who="woman", facing="right")
    keys = [str(number) for number in range(40)]
    for key in keys:
        text = modification(plain, woman, key)
        assert text.count(",") == 2, key
        words = [word for word in ("light", "woman", "right", "dark", "hair") if word in text]
        assert words == ["light", "woman", "right"], key
        assert text == modification(plain, woman, key), key
        assert "Noto" in modification(plain, plain, key, "Noto"), key
    assert len({modification(plain, Look(), key) for key in keys}) == 4
    couple = modification(Look(other_who="man"), Look(other_who="man", tone="dark", other_tone="light"), "a")
    assert couple.index("on the left") < couple.index("on the right")
    assert description("firefighter", woman) == "is firefighter, light skin, woman, facing right."


# --- pictures and queries --------------------------------------------------------------------------------------------


def test_splits_share_no_family_and_each_attribute_is_trained(root):
    train = load(root)
    val = load(root, "val")
    families = families_of(val)
    assert families.isdisjoint(families_of(train))
    assert set(train.images).isdisjoint(val.images)
    assert len(families) == 3  # 2 of the 6 that vary in tone, 1 of the 3 that also vary in who
    assert sum(family.startswith("1f9d1") for family in families) == 1
    assert len(train.images) + len(val.images) == 4 * (6 * 3 + 3 * 9)
    assert words_of(val) <= words_of(train)
    assert [load(root, seed=seed).images for seed in (1, 2, 3)] != [train.images] * 3


def families_of(data: EmojiPictures) -> set[str]:
    references = [query.id.split(">")[0] for query in data.queries]
    return {parse(image.split("icon-")[1]).family for image in references}


def words_of(data: EmojiPictures) -> set[str]:
    return set(" ".join(query.text for query in data.queries).replace(",", "").split())


def test_every_query_changes_one_or_two_attributes_and_knows_who_else_answers_it(root):
    data = load(root, train_queries=10_000)
    looks = {image: parse(image.split("icon-")[1]) for image in data.images}
    # hands have 3 looks; jobs have 3 x 3, of which 4 are one attribute away and 4 two
    assert len(data.queries) == 4 * (4 * 3 * 2 + 2 * 9 * 8)
    for query in data.queries:
        before = looks[query.reference]
        after = looks[str(query.target)]
        assert before.family == after.family, query.id
        assert 1 <= sum(a != b for a, b in zip(before.look, after.look, strict=True)) <= 2, query.id
        assert query.reference.split("/")[0] == (query.target or "").split("/")[0], query.id
        assert query.relevant[0] == query.target, query.id
        same = {image for image in data.images if looks[image] == after}
        assert set(query.relevant) == same, query.id
        assert len(same) == 4, query.id
        assert query.cluster, query.id
        assert query.target_text, query.id


@pytest.mark.parametrize("style", ["kept", "fluent"])
def test_kinds_follow_from_looks_families_and_a_named_artist(root, style, toys):
    data = load(root, style=style)
    rows = torch.tensor([0, 57, len(data.queries) - 1])
    table = data.kind_table(rows, torch.arange(len(data.images)))
    for row, codes in zip(rows.tolist(), table.tolist(), strict=True):
        query = data.queries[row]
        reference = parse(query.reference.split("icon-")[1])
        target = parse(str(query.target).split("icon-")[1])
        changes = {index for index in range(6) if target.look[index] != reference.look[index]}
        if style == "fluent":
            changes.add(8)  # the artist
        for image, code in zip(data.images, codes, strict=True):
            artist = image.split("/")[0]
            picture = parse(image.split("icon-")[1])
            wrong = {index for index in range(6) if picture.look[index] != target.look[index]}
            if picture.family != target.family:
                wrong |= {6, 7}  # another thing: two attributes of the rest
            if style == "fluent" and artist != "fluent":
                wrong.add(8)
            name = toys.kind_of(wrong, changes)
            assert (name == "relevant") == (image in query.relevant), row
            assert code == (KINDS.index(name) + 1 if name in KINDS else 0), row
    assert {*table.flatten().tolist()} == {0, 1, 2, 3}


def test_families_take_turns(root):
    counts = Counter(query.cluster for query in load(root, train_queries=60).queries)
    assert [*counts.values()] == [10] * 6


def test_artists_are_a_dial_of_false_negatives(subtests, root):
    ids = {}
    for count in (1, 2, 3, 4):
        with subtests.test(count=count):
            data = load(root, "val", artists=ARTISTS[:count], references=("noto",))
            ids[count] = [query.id for query in data.queries]
            assert {len(query.relevant) for query in data.queries} == {count}
            assert {image.split("/")[0] for image in data.images} == set(ARTISTS[:count])
    assert ids[1] == ids[2] == ids[3] == ids[4]


def test_styles(root):
    free = load(root, style="free")
    targets = [artist_of(query.target) for query in free.queries]
    assert len(set(targets)) == 4
    assert targets != [artist_of(query.reference) for query in free.queries]
    assert {len(query.relevant) for query in free.queries} == {4}
    outside = load(root, style="free", artists=("noto",), references=("fluent",))
    assert {artist_of(image) for image in outside.extra_images} == {"fluent"}
    assert outside.identity != free.identity


def test_the_style_of_one_artist(root):
    for query in load(root, style="fluent").queries:
        assert "Fluent" in query.text, query.id
        assert query.relevant == (query.target,), query.id
        assert artist_of(query.target) == "fluent", query.id


def artist_of(image: str | None) -> str:
    return str(image).split("/")[0]


def test_equal_drawings_are_one_image(copy, toys):
    bodies = {codes: toys.icon(codes) for codes in toys.emoji_codes()}
    for who in ("1f468", "1f469"):  # one drawing for all three astronauts
        for tone in toys.EMOJI_TONES:
            bodies[f"{who}{tone}-200d-1f680"] = bodies[f"1f9d1{tone}-200d-1f680"]
    bodies["1f44d"] = bodies["1f44b"]  # one drawing for two families
    toys.icon_package(copy / "openmoji", bodies)
    train = load(copy, "train", train_queries=10_000)
    val = load(copy, "val", train_queries=10_000)
    images = [image for image in (*train.images, *val.images) if artist_of(image) == "openmoji"]
    assert len(images) == 6 * 3 + 3 * 9 - 6 - 2
    for query in (*train.queries, *val.queries):
        assert query.reference not in query.relevant, query.id
        # an ambiguous reference gets no query; three equal drawings keep the first one's name
        assert not (query.reference.startswith("openmoji/icon-1f468") and "1f680" in query.reference), query.id
    assert verify("emoji", {"root": copy}).problems == []


def test_the_dev_part_has_families_of_its_own(root):
    rest, dev = load(root).split_dev(0.3, 1)
    assert {q.cluster for q in rest.queries}.isdisjoint(q.cluster for q in dev.queries)
    assert len({q.cluster for q in dev.queries}) == 2
    assert len(rest.queries) + len(dev.queries) == len(load(root).queries)
    with pytest.raises(OptionError, match="fraction"):
        load(root).split_dev(0.0, 1)


def test_pictures_are_drawn_once_and_open(copy, subtests):
    data = load(copy)
    assert data.open_image(data.images[0]).size == (128, 128)
    drawn = next((copy / "noto").glob("drawn-*"))
    stamp = (drawn / "pictures.json").stat().st_mtime_ns
    load(copy, "val")
    assert (drawn / "pictures.json").stat().st_mtime_ns == stamp
    first, other = sorted(drawn.glob("*.png"))[:2]
    contents = {first: first.read_bytes(), other: other.read_bytes()}
    for picture, wrong in ((first, contents[other]), (other, contents[first])):
        with subtests.test(picture=picture.name):
            picture.write_bytes(wrong)
            with pytest.raises(DataError, match="is not as it was drawn: move"):
                load(copy)
            picture.write_bytes(contents[picture])
    first.unlink()
    with pytest.raises(DataError, match="images are missing"):
        load_both_splits(copy)
    (drawn / "pictures.json").write_text("{")
    with pytest.raises(DataError, match=r"cannot read .*pictures.json \(JSONDecodeError: "):
        load(copy)


def load_both_splits(root: Path) -> None:
    """Load train and val; one of them has a picture."""
    load(root, "train")
    load(root, "val")


# --- refusals --------------------------------------------------------------------------------------------------------


CHANGES = [
    ("twemoji/chars.json", "{}", r"chars.json has an unexpected SHA-256: .*@iconify-json/twemoji@"),
    ("twemoji/info.json", None, r"info.json is missing: .*negbench data fetch emoji.*@iconify-json/twemoji@"),
    ("fluent/icons.json", None, r"icons.json is missing: .*@iconify-json/fluent-emoji-flat@"),
    ("noto/icons.json", None, r"\(`negbench data fetch emoji --out '/[^']*'`\)"),  # can be pasted
]


@pytest.mark.parametrize(("name", "content", "message"), CHANGES)
def test_a_changed_or_missing_package_is_one_clear_line(name, content, message, copy, expect_error):
    (copy / name).unlink()
    if content is not None:
        (copy / name).write_text(content)
    assert re.search(message, expect_error(["data", "verify", "emoji", "--data-root", str(copy)], ""))
    spared = next(artist for artist in ARTISTS if not name.startswith(artist))
    load(copy, artists=(spared,))  # the damaged package is not needed


# --- the real packages -----------------------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.slow
def test_the_real_packages_have_the_counts_that_the_docs_tell(subtests):
    shared = Path(os.environ.get("NEGBENCH_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not (shared / "emoji" / "noto" / "icons.json").is_file():
        pytest.skip(f"no icon packages at {shared}/emoji: `negbench data fetch emoji`")
    for split, counts in {"train": (8000, 5847, 109), "val": (1500, 2961, 60)}.items():
        with subtests.test(split=split):
            data = load(shared, split)
            assert not data.remarks
            families = len({query.cluster for query in data.queries})
            assert (len(data.queries), len(data.images), families) == counts
