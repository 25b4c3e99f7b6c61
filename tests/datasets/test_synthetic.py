"""The synthetic data set: its plan, its folder, its loader."""

import dataclasses
import hashlib
import json
import shutil
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from negbench.benchmarks.fashioniq import FashionIQ
from negbench.errors import DataError, OptionError
from negbench.plugins.registry import build
from negbench.worlds import _synthesis
from negbench.worlds._garments import ATTRIBUTES, CATEGORIES, Attributes, codes_of
from negbench.worlds._rendering import render
from negbench.worlds._synthesis import GENERATOR, MANIFEST, SPLITS, check, ensure, nuisance_of, plan
from negbench.worlds._wording import clauses
from negbench.worlds.synthetic import Spec, Synthetic

TINY = Spec(train_images=40, train_queries=30, val_images=24, val_queries=20, twins=2.5)
SIZES = {f.name: getattr(TINY, f.name) for f in dataclasses.fields(TINY) if f.name.startswith(("train", "val"))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure(tmp_path_factory.mktemp("data"), TINY)


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


# --- plan ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("twins", "category"), [*zip([1.0, 1.3, 4.5], CATEGORIES, strict=True)])
@pytest.mark.parametrize("split", SPLITS)
def test_twins_is_the_mean_number_of_relevant_images(twins, category, split):
    lengths = [len(row) for row in plan(Spec(twins=twins), split, category).relevant()]
    assert np.mean(lengths) == pytest.approx(twins, rel=0.02)
    assert twins == 1 or len(set(lengths)) > 1


def test_queries_change_one_to_three_attributes_and_say_so():
    part = plan(Spec(), "train", "dress")
    counts: Counter[int] = Counter()
    for (reference, target), pair in zip(part.queries, part.captions, strict=True):
        old = part.attributes[reference]
        new = part.attributes[target]
        changed = [name for name in ATTRIBUTES if getattr(old, name) != getattr(new, name)]
        counts[len(changed)] += 1
        text = " / ".join(pair).lower()
        for name in changed:
            phrases = [clause.phrase for clause in clauses(new, name)]
            assert any(phrase in text for phrase in phrases), f"{reference} to {target}: {name}"
    assert set(counts) == {1, 2, 3}
    assert min(counts.values()) > 0.1 * len(part.queries)


# --- folder --------------------------------------------------------------------------------------------------------


GOLDEN = "b9009dec1a6e3186ef4f8ca6bf2e9df5c8a1af66b94f462f9e0cd9254e8cbeb3"


def test_the_folder_is_the_golden_one(folder):
    # a change here changes every published number: raise GENERATOR in _synthesis.py
    assert check(folder) == TINY
    manifest = read(folder / MANIFEST)
    assert manifest["generator"] == GENERATOR
    assert hashlib.sha256(json.dumps([manifest["files"], manifest["pixels"]]).encode()).hexdigest() == GOLDEN


def test_attributes_file_says_what_was_drawn(folder):
    attributes = read(folder / "attributes.json")
    part = plan(TINY, "train", "toptee")
    for index, image in enumerate(part.images):
        assert Attributes(**attributes[image]) == part.attributes[index], index
    data = build(Synthetic, root=folder, split="train", corpus="targets", images=False)
    codes = []
    for image in data.images:
        garment = data.garments[image]
        codes.append([CATEGORIES.index(garment.category), *codes_of(garment)])
    assert data.attribute_codes.images.tolist() == codes  # which tell the kinds, as test_vectors.py shows
    picture = np.asarray(Image.open(folder / "images" / "toptee" / f"{part.images[3]}.png"))
    assert (picture == render(part.attributes[3], nuisance_of(TINY, part, 3))).all()


def test_a_cache_that_cannot_be_written(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(DataError, match=r"cannot be written .*NEGBENCH_CACHE"):
        ensure(file / "cache", TINY)


def test_a_failed_build_leaves_nothing(tmp_path, monkeypatch):
    def stop(*picture: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_synthesis, "render", stop)
    with pytest.raises(KeyboardInterrupt):
        ensure(tmp_path, TINY)
    assert folders(tmp_path) == []


# --- first use -----------------------------------------------------------------------------------------------------


def build_stuck(cache: Path, stuck: bool) -> None:
    """Load the data set as a process does; runs in a child, so that the patches stay there."""
    real_build = _synthesis._build

    def build_and_say(*args: Any) -> Any:
        print("builds", flush=True)
        return real_build(*args)

    def draw_for_ever(*picture: object) -> None:
        print("draws", flush=True)
        time.sleep(600)

    _synthesis._build = build_and_say
    if stuck:
        _synthesis.render = draw_for_ever
    ensure(cache, TINY)


def folders(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.is_dir())


def test_processes_that_start_at_once_build_once(tmp_path, folder, forked):
    processes = [forked(partial(build_stuck, tmp_path, False)) for _ in range(4)]
    assert "".join(process.communicate() for process in processes).count("builds") == 1
    assert [process.returncode for process in processes] == [0] * 4
    assert folders(tmp_path) == [TINY.folder]
    assert check(tmp_path / TINY.folder) == TINY
    assert read(tmp_path / TINY.folder / MANIFEST) == read(folder / MANIFEST)


def test_a_killed_build_does_not_hurt(tmp_path, folder, forked):
    process = forked(partial(build_stuck, tmp_path, True))
    assert [process.stdout.readline() for _ in range(2)] == ["builds\n", "draws\n"]
    process.kill()
    process.wait()
    assert [".building-" in name for name in folders(tmp_path)] == [True]
    assert read(ensure(tmp_path, TINY) / MANIFEST) == read(folder / MANIFEST)
    assert folders(tmp_path) == [TINY.folder]


def test_first_use_builds_in_the_cache_and_later_uses_read(tmp_path, monkeypatch):
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path))
    sizes = dict.fromkeys(SIZES, 10)
    data = build(Synthetic, split="val", twins=2.5, **sizes)
    assert (tmp_path / Spec(twins=2.5, **sizes).folder / MANIFEST).is_file()
    monkeypatch.setattr(_synthesis, "_build", None)
    again = build(Synthetic, split="val", twins=2.5, **sizes)
    assert again.identity == data.identity
    assert again.queries == data.queries


# --- loader --------------------------------------------------------------------------------------------------------


def test_training_queries_carry_descriptions(folder):
    query = build(Synthetic, root=folder, split="train").queries[0]
    attributes = Attributes(**read(folder / "attributes.json")[query.target])
    assert query.target_text.startswith("is ")
    phrases = query.target_text.removeprefix("is ").removesuffix(".").split(", ")
    assert set(phrases) == {clauses(attributes, name)[0].phrase.removeprefix("a ") for name in ATTRIBUTES}
    assert query.reference_text not in (None, query.target_text)


def test_it_is_readable_as_fashioniq(folder):
    ours = build(Synthetic, root=folder, split="val")
    theirs = build(FashionIQ, root=folder, split="val")
    assert theirs.queries == ours.queries
    assert theirs.images == ours.images
    assert theirs.identity != ours.identity


def test_options_beside_a_folder_must_agree_with_it(folder):
    build(Synthetic, root=folder, world=0, twins=2.5, **SIZES)
    with pytest.raises(OptionError, match=r"world = 3, but the data set at .* has 0"):
        build(Synthetic, root=folder, world=3)


def test_a_folder_that_is_none_of_ours(tmp_path, subtests):
    for root in (tmp_path, tmp_path / "absent"):
        with subtests.test(root=root), pytest.raises(DataError, match=r"has no synthetic.json: leave root out"):
            build(Synthetic, root=root)


CHANGED = r"(cap\.shirt\.val|relevance)\.json (was changed: move the folder|is missing: leave root out)"
DAMAGED = r"cannot read .*synthetic\.json \(.*: leave root out, or set NEGBENCH_CACHE"


DAMAGES = [
    ("captions/cap.shirt.val.json", "{}", CHANGED),
    ("captions/cap.shirt.val.json", None, CHANGED),
    ("relevance.json", "{}", CHANGED),
    ("relevance.json", None, CHANGED),
    (MANIFEST, "", DAMAGED),
    (MANIFEST, "{}", DAMAGED),
    (MANIFEST, "[" * 100_000, DAMAGED),
    (MANIFEST, '{"generator": 2, "spec": {"world": "a"}, "files": {}, "pixels": ""}', DAMAGED),
    (MANIFEST, {"generator": 999}, "made by generator 999, this is"),
]


@pytest.mark.parametrize(("name", "content", "message"), DAMAGES, ids=lambda value: str(value)[:20])
def test_a_damaged_folder_is_one_line(folder, tmp_path, name, content, message):
    damaged = shutil.copytree(folder, tmp_path / "d") / name
    if isinstance(content, dict):
        content = json.dumps(json.loads(damaged.read_text()) | content)
    damaged.unlink()
    if content is not None:
        damaged.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        build(Synthetic, root=tmp_path / "d")
    assert "\n" not in str(caught.value)
