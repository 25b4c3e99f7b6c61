"""The synthetic data set: its plan, its folder, its loader."""

import dataclasses
import hashlib
import json
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from negbench.datasets import _synthesis
from negbench.datasets._garments import ATTRIBUTES, CATEGORIES, Attributes, render
from negbench.datasets._synthesis import GENERATOR, MANIFEST, SPLITS, check, ensure, garment, plan
from negbench.datasets._wording import clauses
from negbench.datasets.fashioniq import FashionIQ
from negbench.datasets.synthetic import Spec, Synthetic
from negbench.errors import DataError, OptionError
from negbench.plugins.registry import build

TINY = Spec(train_images=40, train_queries=30, val_images=24, val_queries=20, twins=2.5)
SIZES = {f.name: getattr(TINY, f.name) for f in dataclasses.fields(TINY) if f.name.startswith(("train", "val"))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure(tmp_path_factory.mktemp("data"), TINY)


def copy(folder: Path, to: Path) -> Path:
    """Copy a folder for tests that damage it: JSON files are copied, all others hard-linked."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            new = to / path.relative_to(folder)
            new.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".json":
                new.write_bytes(path.read_bytes())
            else:
                new.hardlink_to(path)
    return to


def read(path: Path) -> object:
    return json.loads(path.read_text(encoding="utf-8"))


# --- plan ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("twins", [1.0, 1.3, 4.5])
@pytest.mark.parametrize("split", SPLITS)
def test_twins_is_the_mean_number_of_relevant_images(twins: float, split: str) -> None:
    spec = Spec(twins=twins)
    lengths = [len(row) for category in CATEGORIES for row in plan(spec, split, category).relevant()]
    assert np.mean(lengths) == pytest.approx(twins, rel=0.02)
    assert twins == 1 or len(set(lengths)) > 1


def test_queries_change_one_to_three_attributes_and_say_so() -> None:
    part = plan(Spec(), "train", "dress")
    counts: Counter[int] = Counter()
    for (reference, target), pair in zip(part.queries, part.captions, strict=True):
        old, new = part.attributes[reference], part.attributes[target]
        changed = [name for name in ATTRIBUTES if getattr(old, name) != getattr(new, name)]
        counts[len(changed)] += 1
        for name in changed:
            assert any(c.phrase in text.lower() for c in clauses(new, name) for text in pair)
    assert set(counts) == {1, 2, 3}
    assert min(counts.values()) > 0.1 * len(part.queries)


# --- folder --------------------------------------------------------------------------------------------------------


GOLDEN = "b9009dec1a6e3186ef4f8ca6bf2e9df5c8a1af66b94f462f9e0cd9254e8cbeb3"


def test_the_folder_is_the_golden_one(folder: Path) -> None:
    # a change here changes every published number: raise GENERATOR in _synthesis.py
    manifest = check(folder)
    assert manifest.generator == GENERATOR
    assert manifest.spec == TINY
    assert hashlib.sha256(json.dumps([manifest.files, manifest.pixels]).encode()).hexdigest() == GOLDEN


def test_attributes_file_says_what_was_drawn(folder: Path) -> None:
    attributes = read(folder / "attributes.json")
    part = plan(TINY, "train", "toptee")
    for index, image in enumerate(part.images):
        assert Attributes(**attributes[image]) == part.attributes[index]  # type: ignore[index]
    picture = np.asarray(Image.open(folder / "images" / "toptee" / f"{part.images[3]}.png"))
    assert (picture == render(garment(TINY, part, 3))).all()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(DataError, match=r"cannot be written .*NEGBENCH_CACHE"):
        ensure(file / "cache", TINY)


def test_a_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(picture: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_synthesis, "render", stop)
    with pytest.raises(KeyboardInterrupt):
        ensure(tmp_path, TINY)
    assert folders(tmp_path) == []


# --- first use -----------------------------------------------------------------------------------------------------


def build_stuck(cache: Path, stuck: bool) -> None:
    """Load the data set as a process does; runs in a child, so that the patches stay there."""
    real = _synthesis._build

    def announced(*args: Any) -> Any:
        print("builds", flush=True)
        return real(*args)

    def never_done(picture: object) -> None:
        print("draws", flush=True)
        time.sleep(600)

    _synthesis._build = announced
    if stuck:
        _synthesis.render = never_done  # type: ignore[assignment]
    ensure(cache, TINY)


def folders(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.is_dir())


def test_processes_that_start_at_once_build_once(tmp_path: Path, folder: Path, forked: Any) -> None:
    processes = [forked(partial(build_stuck, tmp_path, False)) for _ in range(4)]
    assert "".join(process.communicate() for process in processes).count("builds") == 1
    assert [process.returncode for process in processes] == [0] * 4
    assert folders(tmp_path) == [TINY.folder]
    assert check(tmp_path / TINY.folder) == check(folder)


def test_a_killed_build_does_not_hurt(tmp_path: Path, folder: Path, forked: Any) -> None:
    process = forked(partial(build_stuck, tmp_path, True))
    assert [process.stdout.readline() for _ in range(2)] == ["builds\n", "draws\n"]
    process.kill()
    process.wait()
    assert [".building-" in name for name in folders(tmp_path)] == [True]
    assert check(ensure(tmp_path, TINY)) == check(folder)
    assert folders(tmp_path) == [TINY.folder]


def test_first_use_builds_in_the_cache_and_later_uses_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path))
    data = build(Synthetic, split="val", twins=2.5, **SIZES)
    assert (tmp_path / TINY.folder / MANIFEST).is_file()
    monkeypatch.setattr(_synthesis, "_build", None)
    again = build(Synthetic, split="val", twins=2.5, **SIZES)
    assert again.identity == data.identity
    assert again.queries == data.queries


# --- loader --------------------------------------------------------------------------------------------------------


def test_training_queries_carry_descriptions(folder: Path) -> None:
    query = build(Synthetic, root=folder, split="train").queries[0]
    described = read(folder / "attributes.json")
    attributes = Attributes(**described[query.target])  # type: ignore[index]
    assert query.target_text is not None
    assert query.target_text.startswith("is ")
    said = query.target_text.removeprefix("is ").removesuffix(".").split(", ")
    assert set(said) == {clauses(attributes, name)[0].phrase.removeprefix("a ") for name in ATTRIBUTES}
    assert query.reference_text not in (None, query.target_text)


def test_it_is_readable_as_fashioniq(folder: Path) -> None:
    ours, theirs = build(Synthetic, root=folder, split="val"), build(FashionIQ, root=folder, split="val")
    assert theirs.queries == ours.queries
    assert theirs.images == ours.images
    assert theirs.identity != ours.identity


def test_options_beside_a_folder_must_agree_with_it(folder: Path) -> None:
    build(Synthetic, root=folder, world=0, twins=2.5, **SIZES)
    with pytest.raises(OptionError, match=r"world = 3, but the data set at .* has 0"):
        build(Synthetic, root=folder, world=3)


def test_a_folder_that_is_none_of_ours(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "absent"):
        with pytest.raises(DataError, match=r"has no synthetic.json: leave root out"):
            build(Synthetic, root=root)


@pytest.mark.parametrize("name", ["captions/cap.shirt.val.json", "relevance.json"])
def test_a_changed_or_lost_file_is_named(folder: Path, tmp_path: Path, name: str) -> None:
    damaged = copy(folder, tmp_path / "d")
    (damaged / name).write_text((damaged / name).read_text().replace("e", "f", 1))
    with pytest.raises(DataError, match=rf"{name} is missing or was changed: delete the folder"):
        build(Synthetic, root=damaged)
    (damaged / name).unlink()
    with pytest.raises(DataError, match=rf"{name} is missing or was changed: delete the folder"):
        build(Synthetic, root=damaged)


@pytest.mark.parametrize(
    "content",
    ["", "{}", '{"generator": 2, "spec": {"world": "a"}, "files": {}, "pixels": ""}', "[" * 100_000],
    ids=lambda content: content[:20],
)
def test_a_damaged_manifest_is_one_line(folder: Path, tmp_path: Path, content: str) -> None:
    damaged = copy(folder, tmp_path / "d")
    (damaged / MANIFEST).write_text(content)
    with pytest.raises(DataError, match=r"synthetic.json is damaged: delete the folder") as caught:
        build(Synthetic, root=damaged)
    assert "\n" not in str(caught.value)


def test_another_generators_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    other = copy(folder, tmp_path / "d")
    text = (other / MANIFEST).read_text()
    (other / MANIFEST).write_text(text.replace(f'"generator": {GENERATOR}', '"generator": 999'))
    with pytest.raises(DataError, match=r"made by generator 999, this is"):
        build(Synthetic, root=other)
