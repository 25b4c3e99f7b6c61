"""One hash, one cache, one number: features and results do not depend on what filled the cache, or in which order."""

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from negbench.contracts import Backbone
from negbench.data.batch_size import EMBED_BATCH, ENCODE_BATCH, batch_size, largest_operation
from negbench.data.features import FeatureStore, store_of
from negbench.errors import OptionError
from negbench.files.image_files import is_picture
from negbench.loop.runs import RunContext, compute_or_reuse
from negbench.plugins.registry import registry
from negbench.settings.config import RunConfig, build_config
from tests.runs import config_of

# negatives between the largest drops, within a band of gaps, of equal ranks: one flipped bit may move an edge
AMPLIFY = ["qure:variant=release", "qure", "dqe", "cirqrs", "in-batch+qure:variant=release", "multi-similarity"]
TOYS = {
    "tiny": {},
    "clip": {"init": "random", "size": "toy"},
    "blip": {"init": "random", "size": "toy", "freeze_images": True},
    "blip2": {"init": "random", "size": "toy"},
}


@pytest.fixture(scope="module")
def pictures(toy_root: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(toy_root.rglob("*")) if is_picture(path)}


@pytest.fixture(scope="module")
def some(pictures: dict[str, Path]) -> dict[str, Path]:
    return dict(list(pictures.items())[::6][:20])


def parts(names: list[str], size: int) -> list[list[str]]:
    return [names[start : start + size] for start in range(0, len(names), size)]


def histories(names: list[str]) -> dict[str, list[list[str]]]:
    """Return how a cache may have been filled before a run with all pictures finds it: images in their portions."""
    return {
        "cold": [names],
        "one by one": parts(names, 1),
        "in threes": parts(names, 3),
        "backwards": [names[::-1]],
        "two images fewer": [names[2:], names],
        "two images more": [names[:9], names[:11], names],
    }


def features_after(history: Iterable[list[str]], pictures: dict[str, Path], backbone: Backbone, root: Path) -> Tensor:
    """Return the features of all pictures from a cache that was filled in these portions."""
    for names in history:
        store = store_of(backbone, root=root)
        store.ensure({name: pictures[name] for name in names}, backbone)
    store.missing(pictures)
    return store.load(list(pictures))[torch.arange(len(pictures))]


@pytest.fixture(scope="module")
def cold(some: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """Return each backbone's features of these pictures, encoded at once into an empty cache."""
    features = {}
    for name, options in TOYS.items():
        backbone = registry.make("backbones", name, **options, seed=0)
        root = tmp_path_factory.mktemp(name)
        features[name] = features_after([list(some)], some, backbone, root)
    return features


@pytest.mark.parametrize("history", histories([]))
def test_tinys_features_do_not_depend_on_what_filled_the_cache(history, some, cold, tmp_path):
    """Regression: encoder batches of one, two or three images flipped bits, and a shared cache kept them."""
    backbone = registry.make("backbones", "tiny", seed=0)
    features = features_after(histories(list(some))[history], some, backbone, tmp_path)
    assert torch.equal(features, cold["tiny"])


@pytest.mark.parametrize("name", TOYS)
def test_features_of_every_family_do_not_depend_on_what_filled_the_cache(name, some, cold, tmp_path):
    backbone = registry.make("backbones", name, **TOYS[name], seed=0)
    first = dict(list(some.items())[:3])
    features = features_after([[image] for image in first], first, backbone, tmp_path)
    assert torch.equal(features, cold[name][:3])


@pytest.fixture(scope="module")
def foreign(pictures: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache that others began to fill: some images one by one, others backwards; a run adds the rest."""
    root = tmp_path_factory.mktemp("foreign")
    names = list(pictures)
    backbone = registry.make("backbones", "tiny", seed=0)
    for portion in [*parts(names[:12], 1), names[-1:60:-2]]:
        store_of(backbone, root=root).ensure({name: pictures[name] for name in portion}, backbone)
    return root


@pytest.fixture(scope="module")
def new_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache that is empty at first; the strategies' runs share it."""
    return tmp_path_factory.mktemp("new")


@pytest.mark.parametrize("strategy", AMPLIFY)
def test_a_run_has_the_same_numbers_with_a_foreign_cache(strategy, toy_root, new_cache, foreign, tmp_path, monkeypatch):
    config = config_of([f"dataset.root='{toy_root}'", "train.epochs=2", "train.batch_size=16"], strategy)
    finished = []
    for cache in (new_cache, foreign):
        monkeypatch.setenv("NEGBENCH_CACHE", str(cache))
        run = compute_or_reuse(config, RunContext.open(tmp_path / cache.name, "none"))
        finished.append(run.folder)
    first, second = finished
    assert first.run_id == second.run_id
    assert (first.path / "ranks.parquet").read_bytes() == (second.path / "ranks.parquet").read_bytes()
    torch.testing.assert_close(first.weights(), second.weights(), rtol=0, atol=0)


# --- how much at once ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "operation", "expected"),
    [
        (EMBED_BATCH, 0, 512),
        (EMBED_BATCH, 2**21, 512),  # a gibibyte
        (EMBED_BATCH, 2**21 + 1, 504),
        (EMBED_BATCH, 32 * 2**20, 32),  # BLIP ViT-B at 384 pixels: its table of attention
        (EMBED_BATCH, 2**28, 4),
        (EMBED_BATCH, 2**40, 1),
        (ENCODE_BATCH, 2**21, 128),
        (ENCODE_BATCH, 2**23, 32),
    ],
)
def test_a_batch_is_smaller_where_an_item_takes_much_memory(most, operation, expected):
    assert batch_size(most, operation) == expected


def test_the_largest_operation_is_counted_without_weights():
    weights = torch.zeros(1000, 30)
    wide = torch.zeros(30, 700)

    def compute(items: int) -> None:
        hidden = torch.zeros(items, 1000) @ weights  # reads 4,000 bytes an item, and 120,000 of weights
        torch.nn.functional.softmax(hidden @ wide, dim=-1)  # reads and writes 2,800 bytes each

    assert largest_operation(compute) == 4 * 2 * 700


def test_attention_at_384_pixels_bounds_the_batch():
    """A table of 12 heads and 577 x 577 pairs, read and written by its softmax."""

    def compute(items: int) -> None:
        torch.empty(items, 12, 577, 577, device="meta").softmax(-1)

    assert batch_size(EMBED_BATCH, largest_operation(compute)) == 32


def test_a_store_is_named_after_its_batch(tmp_path):
    folders = {FeatureStore(tmp_path, "key", (1, 1), batch).folder for batch in (8, 16)}
    assert {folder.name for folder in folders} == {"key-8", "key-16"}


def test_the_batch_is_no_setting_any_more():
    with pytest.raises(OptionError, match=r"compute\.encode_batch_size is no longer a setting: .*; leave it out"):
        build_config([{"strategy": "qure", "compute": {"encode_batch_size": 1}}])
    stored = build_config([{"strategy": "qure"}]).model_dump(mode="json")
    stored["compute"]["encode_batch_size"] = 1
    assert RunConfig.model_validate(stored) == build_config([{"strategy": "qure"}])
