"""Worlds of generated data: a run's seed determines the world, shared by all strategies, unless `world` pins it."""

from typing import Any

import pytest
import torch

from negbench.backbones.vectors import Vectors
from negbench.data import scene
from negbench.data.scene import DataCache
from negbench.display import Display
from negbench.grid.cells import plan_cells
from negbench.loop.mining_task import offline_planes
from negbench.mining.planes import EmbeddedPlane
from negbench.plugins.registry import build
from negbench.scoring import evaluation
from negbench.settings.config import RunConfig, resolve
from negbench.systems.system import load_config
from negbench.worlds.synthetic import Synthetic
from tests.runs import run, untrained

SMALL = [
    "dataset.train_images=40", "dataset.train_queries=32", "dataset.val_images=40", "dataset.val_queries=24",
    "backbone.dim=16", "backbone.tokens=2", "train.epochs=1", "schedule.n_def=1",
]  # fmt: skip


def config_of(seed: int, *sets: str, strategy: str = "in-batch", name: str = "vectors") -> RunConfig:
    flags: dict[str, Any] = {"strategy": {"name": strategy}, "seed": seed, "dataset": name, "backbone": {"name": name}}
    return load_config(flags=flags, sets=[*SMALL, *sets])


WORLDS = [([], 5), (["dataset.world=2"], 2), (["dataset.world=2", "dataset.world=null"], 5)]


@pytest.mark.parametrize(("sets", "world"), WORLDS)
def test_the_seed_draws_the_world_unless_it_is_pinned(sets, world):
    full = resolve(config_of(5, *sets))
    assert (full.dataset.options["world"], full.backbone.options["world"]) == (world, world)
    assert resolve(full) == full


def test_a_folder_holds_a_world_of_its_own(toy_root):
    def worlds(*sets: str) -> list[Any]:
        flags = {"strategy": {"name": "in-batch"}, "dataset": {"name": "synthetic"}}
        configs = [resolve(load_config(flags={**flags, "seed": seed}, sets=sets)) for seed in (1, 2)]
        return [config.dataset.options["world"] for config in configs]

    assert worlds() == [1, 2]
    assert worlds(f"dataset.root='{toy_root}'") == [None, None]
    assert build(Synthetic, root=toy_root).card.world == "1"  # the world that the folder was made from


def test_the_strategies_of_a_seed_share_its_world_and_seeds_share_a_label(tmp_path):
    configs = [config_of(0, strategy="in-batch"), config_of(0, strategy="top-k")]
    configs += [config_of(1, strategy="in-batch"), config_of(1, strategy="top-k")]
    cells = plan_cells(configs, tmp_path, Display(), DataCache())
    assert [cell.run.data == cells[0].run.data for cell in cells] == [True, True, False, False]
    assert cells[2].run.data == cells[3].run.data
    assert {cell.labels["backbone"] for cell in cells} == {"vectors(dim=16, tokens=2)"}
    (label,) = {cell.labels["dataset"] for cell in cells}
    assert label.startswith("vectors@twins4.5-40x32x40x24-")


def test_two_pinned_worlds_are_told_apart(tmp_path):
    configs = [config_of(seed, "dataset.world=3") for seed in (0, 1)]
    configs += [config_of(seed, "dataset.world=4") for seed in (0, 1)]
    cells = plan_cells(configs, tmp_path, Display(), DataCache())
    assert len({cell.labels["dataset"] for cell in cells[:2]}) == 1
    assert len({cell.labels["dataset"] for cell in cells}) == 2
    assert len({cell.hash for cell in cells}) == 4


def test_a_runs_manifest_names_its_world(tmp_path):
    def identity_of_data(seed: int, *sets: str) -> dict[str, Any]:
        return run(config_of(seed, *sets), tmp_path).folder.manifest["dataset"]

    drawn = [identity_of_data(seed) for seed in (0, 1)]
    pinned = [identity_of_data(seed, "dataset.world=7") for seed in (0, 1)]
    assert [data["world"] for data in (*drawn, *pinned)] == ["0", "1", "7", "7"]
    assert drawn[0]["kind"] == drawn[1]["kind"] == pinned[0]["kind"]
    assert drawn[0]["val"] != drawn[1]["val"]
    assert pinned[0]["val"] == pinned[1]["val"]


def test_the_encoder_is_that_of_the_world():
    opened = untrained(config_of(3))
    ids = opened.scene.val.dataset.images
    features = opened.scene.features(opened.backbone, opened.scene.val.images)
    assert torch.equal(features, build(Vectors, dim=16, tokens=2, world=3).features_of(ids))
    assert not torch.equal(features, build(Vectors, dim=16, tokens=2, world=0).features_of(ids))


def test_a_guide_is_of_the_runs_world():
    opened = untrained(config_of(3, "mining.guide=vectors:dim=16:tokens=2"))
    plane = offline_planes(("guide",), opened.config, opened.scene, Display())["guide"]
    assert isinstance(plane, EmbeddedPlane)
    want = evaluation.embed(build(Vectors, dim=16, tokens=2, world=3, seed=3).eval(), opened.scene, opened.scene.train)
    assert torch.allclose(plane.queries, want.queries)
    assert torch.allclose(plane.candidates, want.candidates)


def test_what_a_process_keeps_of_data_sets_is_bounded(monkeypatch):
    monkeypatch.setattr(scene, "_KEPT_SPLITS", 4)
    cache = DataCache()
    for seed in range(4):
        cache.splits(resolve(config_of(seed, "eval.select=dev")))
    assert (len(cache._datasets), len(cache._carved)) == (4, 4)
    assert cache.splits(resolve(config_of(0, "eval.select=dev"))).val.card.world == "0"
