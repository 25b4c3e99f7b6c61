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
def own(root: Path, tmp_path: Path) -> Iterator[Path]:
    known = dict(PACKAGES)
    yield Path(shutil.copytree(root, tmp_path / "emoji"))
    PACKAGES.update(known)


# --- code points ---------------------------------------------------------------------------------------------------


def test_code_points_are_read_as_unicode_spells_them(subtests, spelled):
    for codes, (family, look) in spelled["emoji"].items():
        with subtests.test(codes=codes):
            assert parse(codes) == (family, Look(**look))


def test_texts_say_each_change_and_nothing_else():
    plain, woman = Look(tone="dark"), Look(tone="light", who="woman", facing="right")
    for key in map(str, range(40)):
        text = modification(plain, woman, key)
        assert text.count(",") == 2, key
        assert [w for w in ("light", "woman", "right", "dark", "hair") if w in text] == ["light", "woman", "right"], key
        assert text == modification(plain, woman, key), key
        assert "Noto" in modification(plain, plain, key, "Noto"), key
    assert len({modification(plain, Look(), key) for key in map(str, range(40))}) == 4
    couple = modification(Look(other_who="man"), Look(other_who="man", tone="dark", other_tone="light"), "a")
    assert couple.index("on the left") < couple.index("on the right")
    assert description("firefighter", woman) == "is firefighter, light skin, woman, facing right."


# --- pictures and queries --------------------------------------------------------------------------------------------


def test_splits_share_no_family_and_each_attribute_is_trained(root):
    train, val = load(root), load(root, "val")
    families = [{parse(q.id.split(">")[0].split("icon-")[1]).family for q in data.queries} for data in (train, val)]
    assert families[0].isdisjoint(families[1])
    assert set(train.images).isdisjoint(val.images)
    assert len(families[1]) == 3  # 2 of the 6 that vary in tone, 1 of the 3 that also vary in who
    assert sum(family.startswith("1f9d1") for family in families[1]) == 1
    assert len(train.images) + len(val.images) == 4 * (6 * 3 + 3 * 9)
    words = [{w for q in data.queries for w in q.text.replace(",", "").split()} for data in (train, val)]
    assert words[1] <= words[0]
    assert any(load(root, seed=seed).images != train.images for seed in (1, 2, 3))


def test_every_query_changes_one_or_two_attributes_and_knows_who_else_answers_it(root):
    data = load(root, train_queries=10_000)
    looks = {image: parse(image.split("icon-")[1]) for image in data.images}
    # hands have 3 looks; jobs have 3 x 3, of which 4 are one attribute away and 4 two
    assert len(data.queries) == 4 * (4 * 3 * 2 + 2 * 9 * 8)
    for query in data.queries:
        before, after = looks[query.reference], looks[query.target or ""]
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
        query, kinds = data.queries[row], dict(zip(data.images, codes, strict=True))
        before, asked = (parse(image.split("icon-")[1]) for image in (query.reference, str(query.target)))
        told = {n for n in range(6) if asked.look[n] != before.look[n]} | ({8} if style == "fluent" else set())
        for image, code in kinds.items():
            artist, shows = image.split("/")[0], parse(image.split("icon-")[1])
            wrong = {n for n in range(6) if shows.look[n] != asked.look[n]}
            wrong |= {6, 7} if shows.family != asked.family else set()  # another thing: two attributes of the rest
            wrong |= {8} if style == "fluent" and artist != "fluent" else set()
            name = toys.kind_of(wrong, told)
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
    free, named = load(root, style="free"), load(root, style="fluent")
    assert len({(query.target or "").split("/")[0] for query in free.queries}) == 4
    assert any(query.reference.split("/")[0] != (query.target or "").split("/")[0] for query in free.queries)
    assert all(len(query.relevant) == 4 for query in free.queries)
    assert all("Fluent" in query.text and query.relevant == (query.target,) for query in named.queries)
    assert {(query.target or "").split("/")[0] for query in named.queries} == {"fluent"}
    outside = load(root, style="free", artists=("noto",), references=("fluent",))
    assert all(image.startswith("fluent/") for image in outside.extra_images)
    assert outside.identity != free.identity


def test_equal_drawings_are_one_image(own, toys):
    bodies = {codes: toys.icon(codes) for codes in toys.emoji_codes()}
    for who in ("1f468", "1f469"):  # one drawing for all three astronauts
        for tone in toys.EMOJI_TONES:
            bodies[f"{who}{tone}-200d-1f680"] = bodies[f"1f9d1{tone}-200d-1f680"]
    bodies["1f44d"] = bodies["1f44b"]  # one drawing for two families
    toys.icon_package(own / "openmoji", bodies)
    both = [load(own, split, train_queries=10_000) for split in ("train", "val")]
    images = [image for data in both for image in data.images if image.startswith("openmoji/")]
    assert len(images) == 6 * 3 + 3 * 9 - 6 - 2
    for data in both:
        for query in data.queries:
            assert query.reference not in query.relevant, query.id
            # an ambiguous reference gets no query; three equal drawings keep the first one's name
            assert not (query.reference.startswith("openmoji/icon-1f468") and "1f680" in query.reference), query.id
    assert {p.kind for p in verify("emoji", {"root": own}).problems} == set()


def test_the_dev_part_has_families_of_its_own(root):
    rest, dev = load(root).split_dev(0.3, 1)
    assert {q.cluster for q in rest.queries}.isdisjoint(q.cluster for q in dev.queries)
    assert len({q.cluster for q in dev.queries}) == 2
    assert len(rest.queries) + len(dev.queries) == len(load(root).queries)
    with pytest.raises(OptionError, match="fraction"):
        load(root).split_dev(0.0, 1)


def test_pictures_are_drawn_once_and_open(own, subtests):
    data = load(own)
    assert data.open_image(data.images[0]).size == (128, 128)
    drawn = next((own / "noto").glob("drawn-*"))
    stamp = (drawn / "pictures.json").stat().st_mtime_ns
    load(own, "val")
    assert (drawn / "pictures.json").stat().st_mtime_ns == stamp
    first, other = sorted(drawn.glob("*.png"))[:2]
    for one, bytes_ in ((first, other.read_bytes()), (other, first.read_bytes())):
        with subtests.test(picture=one.name):
            content, _ = one.read_bytes(), one.write_bytes(bytes_)
            with pytest.raises(DataError, match="is not as it was drawn: move"):
                load(own)
            one.write_bytes(content)
    first.unlink()
    with pytest.raises(DataError, match="images are missing"):
        [load(own, split) for split in ("train", "val")]
    (drawn / "pictures.json").write_text("{")
    with pytest.raises(DataError, match=r"cannot read .*pictures.json \(JSONDecodeError: "):
        load(own)


# --- refusals --------------------------------------------------------------------------------------------------------


CHANGES = [
    ("twemoji/chars.json", "{}", r"chars.json has an unexpected SHA-256: .*@iconify-json/twemoji@"),
    ("twemoji/info.json", None, r"info.json is missing: .*negbench data fetch emoji.*@iconify-json/twemoji@"),
    ("fluent/icons.json", None, r"icons.json is missing: .*@iconify-json/fluent-emoji-flat@"),
    ("noto/icons.json", None, r"\(`negbench data fetch emoji --out '/[^']*'`\)"),  # can be pasted
]


@pytest.mark.parametrize(("name", "content", "message"), CHANGES)
def test_a_changed_or_missing_package_is_one_clear_line(name, content, message, own, expect_error):
    (own / name).unlink()
    if content is not None:
        (own / name).write_text(content)
    assert re.search(message, expect_error(["data", "verify", "emoji", "--data-root", str(own)], ""))
    spared = next(artist for artist in ARTISTS if not name.startswith(artist))
    load(own, artists=(spared,))  # the damaged package is not needed


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
