"""Every registered data set passes the plug-in authors' suite, and the suite detects flawed data sets."""

import dataclasses
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from negbench.contracts.card import DatasetCard
from negbench.datasets.dataset import Dataset, QueryRanks
from negbench.datasets.verify import verify
from negbench.plugins.registry import build, registry
from negbench.settings.layers import parse_plugin
from negbench.testing import DatasetTestCase
from tests.datasets import toys
from tests.standin import write_images

PLUGIN = Path(__file__).with_name("pairs_plugin.py")
JUDGED = ("hp-fashioniq",)  # evaluated by the scores of sets, not by ranks
NAMES = ("cirr", "emoji", "fashion200k", "fashioniq", "mit-states", "synthetic", "triplets", "vectors")
TRAINED = (
    *NAMES,
    'emoji:style=free:artists=["noto", "fluent"]:references=["openmoji"]',
    "fashioniq:caption_mode=comma:protocol=val:corpus=images",
)


def read(case: str) -> tuple[str, dict[str, Any]]:
    section = parse_plugin(case)
    return section.pop("name"), section


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """Return a function that writes a data set's toy, once, and gives the options that load it."""

    @cache
    def write(name: str) -> dict[str, Any]:
        return toys.TOYS[name](tmp_path_factory.mktemp("toys") / "toy")

    return write


class _OfAToy(DatasetTestCase):
    @pytest.fixture
    def dataset(self, case: str) -> type[Dataset]:
        return registry.get("datasets", read(case)[0])

    @pytest.fixture
    def options(self, case: str, toy: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        name, options = read(case)
        return toy(name) | options

    def test_a_missing_image(self, dataset, case, tmp_path):
        """On a toy of its own, which it damages."""
        name, options = read(case)
        super().test_a_missing_image(partial(build, dataset, **toys.TOYS[name](tmp_path / "toy") | options))

    def test_name(self, load, case):
        assert load(images=False).card.name == read(case)[0]


@pytest.mark.parametrize("case", TRAINED)
class TestTrained(_OfAToy):
    pass


@pytest.mark.parametrize("case", ["circo", "icir"])
class TestEvaluated(_OfAToy):
    splits = ("val",)


@pytest.mark.parametrize("case", JUDGED)
class TestJudged(_OfAToy):
    splits = ("val",)
    ranked = False


class TestPlugin(DatasetTestCase):
    @pytest.fixture
    def dataset(self) -> type[Dataset]:
        registry.add_file(PLUGIN)
        return registry.get("datasets", "pairs-plugin")

    @pytest.fixture
    def options(self, tmp_path: Path) -> dict[str, Any]:
        names = [f"p{n}" for n in range(12)]
        entries = [{"from": names[n], "to": names[n + 1], "caption": f" is {n} "} for n in range(10)]
        for split in ("train", "val"):
            toys.put(tmp_path / f"toy/{split}.json", entries)
        write_images(tmp_path / "toy/images", names)
        return {"root": tmp_path / "toy"}


def test_every_data_set_is_here():
    names = {plugin.name for plugin in registry.plugins("datasets").values() if plugin.origin == "built-in"}
    assert names == set(toys.TOYS) == {*NAMES} | {"circo", "icir", *JUDGED}


def test_a_data_set_of_your_own_is_short_and_so_is_what_its_author_reads():
    assert len(PLUGIN.read_text().splitlines()) < 80
    read = [Path(str(sys.modules[kind.__module__].__file__)) for kind in (Dataset, DatasetCard)]
    assert sum(len(file.read_text().splitlines()) for file in read) < 320


@pytest.mark.parametrize("name", NAMES)
def test_verify_finds_the_copies_clean(name, toy):
    report = verify(name, toy(name))
    assert {problem.kind for problem in report.problems} <= {"counts"}  # a copy is smaller than the published data
    assert [split.split for split in report.splits] == ["train", "val"]


# --- the suite detects flaws -------------------------------------------------------------------------------------


def _flawed_data_sets(base: Any) -> dict[str, type[Dataset]]:
    """Return, by name of the suite's test, a data set that the test must refuse."""

    class Shrinking(base):
        def at_epoch(self, epoch: int, seed: int) -> Any:
            return self.with_queries(range(len(self.queries) - epoch), "fewer")

    class Drawing(base):
        def at_epoch(self, epoch: int, seed: int) -> Any:
            order = torch.randperm(len(self.queries))  # drawn from the global generator
            return dataclasses.replace(self, queries=[self.queries[i] for i in order.tolist()])

    class Leaking(base):
        def at_epoch(self, epoch: int, seed: int) -> Any:
            every = [dataclasses.replace(q, target=image) for q, image in zip(self.queries, self.images, strict=False)]
            return dataclasses.replace(self, queries=every)

    class Kind(base):
        def rank(self, score_block: Any, block: int = 1024) -> QueryRanks:
            ranks = super().rank(score_block, block)
            return dataclasses.replace(ranks, target_rank=torch.ones_like(ranks.target_rank))

    class Undeclared(base):
        @classmethod
        def summarise(cls, ranks: QueryRanks) -> dict[str, float]:
            return {**super().summarise(ranks), "recall_at_1": 1 / 3}

    return {
        "test_epochs": Shrinking,
        "test_epochs ": Drawing,
        "test_dev_part": Leaking,
        "test_a_constant_scorer_finds_nothing": Kind,
        "test_per_query_values_average_to_the_metric": Undeclared,
    }


@pytest.mark.parametrize("name", _flawed_data_sets(object))
def test_a_flaw_is_seen(name, tmp_path):
    registry.add_file(PLUGIN)
    cls = _flawed_data_sets(registry.get("datasets", "pairs-plugin"))[name]
    for split in ("train", "val"):
        toys.put(tmp_path / f"{split}.json", [{"from": f"p{n}", "to": f"p{n + 1}", "caption": "x"} for n in range(10)])
    split = "train" if name.strip() in ("test_epochs", "test_dev_part") else "val"
    data = build(cls, root=tmp_path, split=split, images=False)
    suite: Any = DatasetTestCase()
    check = getattr(suite, name.strip())
    with pytest.raises(AssertionError):
        check(data)
    check(registry.make("datasets", "pairs-plugin", root=tmp_path, split=split, images=False))
