"""Every registered data set passes the suite that plug-in authors are given, and the suite sees what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from negbench.datasets.dataset import Dataset
from negbench.datasets.verify import verify
from negbench.registry import registry
from negbench.testing import DatasetTestCase

PLUGIN = Path(__file__).with_name("pairs_plugin.py")
JUDGED = ("hp-fashioniq", "hs-fashioniq")  # by the scores of sets, not by ranks
TRAINED: list[tuple[str, dict[str, Any]]] = [
    ("cirr", {}),
    ("cirr", {"corpus": "targets"}),
    ("fashion200k", {}),
    ("fashion200k", {"text": "tirg", "pairs": 7}),
    ("fashioniq", {}),
    ("fashioniq", {"caption_mode": "random4", "corpus": "images"}),
    ("fashioniq", {"caption_mode": "single", "protocol": "val"}),
    ("mit-states", {}),
    ("mit-states", {"weighting": "pair"}),
    ("synthetic", {}),
    ("triplets", {}),
    ("triplets", {"exclude_reference": True}),
]


def ids(cases: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return ["-".join([name, *map(str, options.values())]) for name, options in cases]


class _OfAToy(DatasetTestCase):
    @pytest.fixture
    def dataset(self, case: tuple[str, dict[str, Any]]) -> type[Dataset]:
        return registry.get("datasets", case[0])

    @pytest.fixture
    def options(self, case: tuple[str, dict[str, Any]], toys: ModuleType, tmp_path: Path) -> dict[str, Any]:
        return {**toys.TOYS[case[0]](tmp_path / "toy"), **case[1]}

    def test_name(self, load: Callable[..., Dataset], case: tuple[str, dict[str, Any]]) -> None:
        assert load(images=False).card.name == case[0]


@pytest.mark.parametrize("case", TRAINED, ids=ids(TRAINED))
class TestTrained(_OfAToy):
    pass


@pytest.mark.parametrize("case", [("circo", {})], ids=["circo"])
class TestCirco(_OfAToy):
    splits = ("val",)


@pytest.mark.parametrize("case", [(name, {}) for name in JUDGED], ids=JUDGED)
class TestJudged(_OfAToy):
    splits = ("val",)
    ranked = False


class TestPlugin(DatasetTestCase):
    @pytest.fixture
    def dataset(self) -> type[Dataset]:
        registry.add_file(PLUGIN)
        return registry.get("datasets", "pairs-plugin")

    @pytest.fixture
    def options(self, toys: ModuleType, tmp_path: Path) -> dict[str, Any]:
        names = [f"p{n}" for n in range(12)]
        entries = [{"from": names[n], "to": names[n + 1], "caption": f" is {n} "} for n in range(10)]
        for split in ("train", "val"):
            toys.put(tmp_path / f"toy/{split}.json", entries)
        toys.pictures(tmp_path / "toy/images", names)
        return {"root": tmp_path / "toy"}


def test_every_data_set_is_here(toys: ModuleType) -> None:
    names = {plugin.name for plugin in registry.plugins("datasets").values() if plugin.origin == "built-in"}
    assert names == set(toys.TOYS) == {name for name, _ in TRAINED} | {"circo", *JUDGED}


def test_a_data_set_of_your_own_is_short() -> None:
    assert len(PLUGIN.read_text().splitlines()) < 80


@pytest.mark.parametrize("name", ["cirr", "fashion200k", "fashioniq", "mit-states", "synthetic", "triplets"])
def test_verify_finds_the_copies_clean(name: str, toys: ModuleType, tmp_path: Path) -> None:
    found = verify(name, toys.TOYS[name](tmp_path / "toy"))
    assert {problem.kind for problem in found.problems} <= {"counts"}  # a copy is smaller than what is published
    assert [split.split for split in found.splits] == ["train", "val"]
