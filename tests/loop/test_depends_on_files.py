"""`depends_on_files`: whether a run reads anything that does not come with negbench."""

import pytest

from negbench.data.scene import DataCache
from negbench.loop.runs import depends_on_files
from negbench.plugins.registry import registry
from negbench.settings.config import resolve
from tests.plugin_file import PLUGIN
from tests.runs import config_of
from tests.vector_files import write_vectors

WORLD = ("dataset.name=vectors", "backbone.name=vectors")


def reads(sets: tuple[str, ...], strategy: str = "top-k") -> bool:
    return depends_on_files(resolve(config_of(sets, strategy)), DataCache())


@pytest.mark.parametrize("strategy", ["top-k", "in-batch+qure", "all-corpus:1>dqe"])
def test_a_generated_world_reads_none(strategy):
    assert not reads(WORLD, strategy)


def test_files_of_rows_and_vectors(tmp_path):
    assert reads(tuple(write_vectors(tmp_path)))


def test_the_data_scored_beside(tmp_path):
    name, *_ = [text for text in write_vectors(tmp_path) if text.startswith("dataset.file")]
    file = name.partition("=")[2].strip("'\"")
    assert reads((*WORLD, f"eval.also={{name = 'triplets', file = '{file}'}}", "eval.every=1"))


def test_a_world_of_pictures_in_the_cache(tmp_path):
    assert reads(("dataset.name=synthetic", "backbone.name=tiny"))


def test_scores_of_a_guide(tmp_path):
    scores = tmp_path / "scores.trec"
    scores.touch()
    assert reads((*WORLD, f"mining.guide='{scores}'"))


def test_lists_of_negatives(tmp_path):
    lists = tmp_path / "negatives.csv"
    lists.touch()
    assert reads((*WORLD, f"strategy.file='{lists}'"), "listed")


def test_a_plug_in(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_files", {})
    monkeypatch.setattr(registry, "_classes", {})
    file = tmp_path / "my_rule.py"
    file.write_text(PLUGIN, encoding="utf-8")
    registry.add_file(file)
    assert reads(WORLD, "my-rule")
