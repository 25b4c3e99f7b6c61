"""The scene, which alone decides splits, allowed images and what a process loads."""

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image

from negbench.backbones.precomputed import Precomputed
from negbench.backbones.vectors import Vectors
from negbench.data import scene
from negbench.data.images import unfamiliar_images
from negbench.data.reading import PictureSource
from negbench.data.scene import DataCache
from negbench.display import Display
from negbench.errors import DataError, RunError
from negbench.grid.cells import plan_cells
from negbench.grid.comparison import ComparisonFolder
from negbench.grid.compute import Execution, compute_and_log
from negbench.grid.executors import InProcess
from negbench.loop import record
from negbench.loop.runs import DATA, RunContext, compute_or_reuse, compute_run, open_run, plan_run
from negbench.loop.types import Callbacks
from negbench.machine.contents import content_hashes, stamp
from negbench.plugins.registry import build, registry
from negbench.scoring import evaluation
from negbench.settings.config import RunConfig, resolve
from negbench.store.runfolder import best_of, claim_folder
from negbench.systems.system import load_config
from tests.vector_files import write_vectors

FAST = ("train.epochs=1", "schedule.n_def=1")


def configs(vector_sets: list[str], strategies: str, *more: str, seeds: int = 1) -> list[RunConfig]:
    configs = []
    for seed, name in itertools.product(range(seeds), strategies.split(",")):
        flags = {"strategy": {"name": name}, "seed": seed}
        configs.append(load_config(flags=flags, sets=[*vector_sets, *FAST, *more]))
    return configs


@pytest.mark.parametrize(
    "sets",
    [("eval.select=dev", "eval.dev_seed=7"), ("eval.reported=false", "eval.select=dev", "eval.dev_fraction=0.3")],
)
def test_the_plan_finds_the_runs_that_were_computed(subtests, vector_sets, tmp_path, sets):
    """Regression: a repeated `compare` recomputed every cell, as the plan drew its own dev part and hashed it."""
    grid = configs(vector_sets, "in-batch,all-corpus", "seed=3", *sets)
    for reused in (False, True):
        with subtests.test(reused=reused):
            cells = plan_cells(grid, tmp_path, Display(), DataCache())
            outcomes = compute_and_log(ComparisonFolder(tmp_path / "c"), cells, Execution(InProcess(), "none"))
            assert [outcome.error for outcome in outcomes] == [None, None]
            assert [outcome.reused for outcome in outcomes] == [reused, reused]
    assert not list(tmp_path.glob("*-2"))


def test_a_comparison_loads_data_and_backbone_once(vector_sets, tmp_path, spy_on):
    """Regression: six cells loaded data 7 times and the backbone 14 times."""
    loaded_splits = spy_on(scene, "load_split")
    loaded_backbones = spy_on(scene, "load_backbone")
    DATA.clear()
    cells = plan_cells(configs(vector_sets, "qure,in-batch,hycole", seeds=2), tmp_path, Display(), DATA)
    compute_and_log(ComparisonFolder(tmp_path / "c"), cells, Execution(InProcess(), "none"))
    DATA.clear()
    assert len(loaded_splits) == 2  # train and val
    assert len(loaded_backbones) == 2  # the initial weights of two seeds


def test_a_shared_backbone_starts_every_run_anew(vector_sets, tmp_path):
    shared = RunContext.open(tmp_path / "shared", "none")
    for config in configs(vector_sets, "in-batch,all-corpus,hycole"):
        together = compute_or_reuse(config, shared)
        alone = compute_or_reuse(config, RunContext.open(tmp_path / "alone", "none"))
        assert together.metrics == alone.metrics, config.strategy.name
        assert together.folder.metrics() == alone.folder.metrics(), config.strategy.name
        weights = alone.folder.weights()
        for name, value in together.folder.weights().items():
            assert torch.equal(value, weights[name]), f"{config.strategy.name}: {name}"


def test_a_scene_is_that_of_its_backbone(vector_sets, tmp_path):
    """Runs on the same data set with different frozen features never share features."""
    cache = DataCache()
    images = write_vectors(tmp_path, seed=1)[3]  # the same ids, different vectors
    assert images.startswith("backbone.images=")
    (first,) = configs(vector_sets, "in-batch")
    (second,) = configs([*vector_sets, images], "in-batch")
    rows = torch.arange(5)
    for config in (first, second, first):
        opened = open_run(config, Display(), cache)
        want = opened.backbone.features_of(opened.scene.train.dataset.images[:5])
        torch.testing.assert_close(opened.scene.features(opened.backbone, opened.scene.train.images[rows]), want)


def test_a_scene_is_that_of_its_splits_and_of_the_backbones_options(vector_sets, tmp_path, monkeypatch):
    """They differ if an option changes how texts are read, even with equal features, or a dev part shrinks train."""
    monkeypatch.setattr(Precomputed, "feature_key", property(lambda self: "the same"))
    (texts,) = (text for text in vector_sets if text.startswith("backbone.texts="))
    vectors = np.load(texts.partition("=")[2].strip("'"))
    turned = {name: vectors[name][::-1] for name in vectors.files}  # the same vectors in another order
    np.savez(tmp_path / "texts.npz", **turned)
    options = (), ("eval.select=dev",), (), (f"backbone.texts='{tmp_path / 'texts.npz'}'",)
    cache = DataCache()
    rows = []
    for more in options:
        (config,) = configs([*vector_sets, *more], "in-batch")
        opened = open_run(config, Display(), cache)
        assert opened.scene.train.dataset is opened.splits.train, f"{more}"
        texts = [query.text for query in opened.splits.train.queries]
        rows.append(opened.scene.train.tokens["row"])
        assert torch.equal(rows[-1], opened.backbone.tokenize(texts)["row"]), f"{more}"
    assert len(rows[1]) < len(rows[0])
    assert not torch.equal(rows[2], rows[3])


def guided_run(folder: Path, *more: str) -> tuple[RunConfig, dict[str, Path]]:
    """Return a run with a guide, and the files that it reads, by what they are."""
    sets = write_vectors(folder)
    files = {name: folder / name for name in ("triplets.jsonl", "images.npz", "texts.npz", "guide.trec")}
    rows = [json.loads(line) for line in files["triplets.jsonl"].read_text().splitlines()]
    train = [row for row in rows if row["split"] == "train"]
    lines = (f"train-{n} Q0 {row['reference']} 1 0.{n} a\n" for n, row in enumerate(train, start=1))
    files["guide.trec"].write_text("".join(lines))
    sets += [f"mining.guide='{files['guide.trec']}'", "mining.guide_margin=0.1", *more]
    (config,) = configs(sets, "top-k")
    return config, files


def change(file: Path) -> None:
    """Put another content of the same kind in place of a file."""
    new = file.with_name(f"new{file.suffix}")
    if file.suffix == ".npz":
        arrays = dict(np.load(file))
        np.savez(new, **arrays | {"features": arrays["features"][::-1]})
    elif file.suffix == ".trec":
        new.write_text(file.read_text().replace(" a\n", "1 a\n", 1))
    else:
        new.write_text(file.read_text().replace('"group": "left"', '"group": "right"', 1))
    new.replace(file)


@pytest.mark.parametrize("name", ["triplets.jsonl", "images.npz", "texts.npz", "guide.trec"])
def test_what_changes_while_python_runs_is_read_again_or_refused(tmp_path, name):
    """Regression: yesterday's numbers for rewritten embeddings; those of a new guide under the hash of the old one."""
    config, files = guided_run(tmp_path / "d")
    context = RunContext.open(tmp_path / "runs", "none")
    first = compute_or_reuse(config, context)
    change(files[name])
    again = compute_or_reuse(config, context)
    alone = compute_or_reuse(config, RunContext.open(tmp_path / "alone", "none"))
    assert not again.reused
    assert again.run_id == alone.run_id != first.run_id
    assert again.metrics == alone.metrics
    files[name].touch()  # the same content
    assert compute_or_reuse(config, context).reused
    other = config.model_copy(update={"seed": 1})
    (cell,) = plan_cells([other], tmp_path / "runs", Display(), DATA)
    change(files[name])  # after the plan
    with pytest.raises(RunError, match=f"{name} changed after the run was planned"):
        compute_and_log(ComparisonFolder(tmp_path / "runs" / "c"), [cell], Execution(InProcess(), "none"))
    assert best_of(tmp_path / "runs", cell.hash) is None
    callbacks = Callbacks(refreshed=lambda *_: change(files[name]))  # while it trains
    with pytest.raises(RunError, match=f"{name} changed after the run was planned"):
        compute_or_reuse(other, replace(context, callbacks=callbacks))


def test_a_plugin_that_was_imported_again_is_loaded_again(vector_sets, own_registry):
    (config,) = configs(vector_sets, "in-batch")
    cache = DataCache()

    def class_names() -> list[str]:
        backbone = cache.backbone(config)
        dataset = cache.dataset(config.dataset, "val", images=False)
        return [type(backbone).__name__, type(dataset).__name__]

    assert class_names() == ["Precomputed", "Triplets"]
    for kind, name in (("backbones", "precomputed"), ("datasets", "triplets")):
        registry._classes[kind, name] = type("New", (registry.get(kind, name),), {})
    assert class_names() == ["New", "New"]


def test_a_guide_that_was_another_one_only_while_it_was_read_is_refused(tmp_path):
    """Regression: with the old file back, the results of the new one were "already finished"."""
    config, files = guided_run(tmp_path / "d")
    before = files["guide.trec"].read_bytes()

    def put_back(*_: object) -> None:
        files["guide.trec"].write_bytes(before)

    context = RunContext.open(tmp_path / "runs", "none")
    context = replace(context, callbacks=Callbacks(refreshed=put_back))
    opened = replace(open_run(config, Display(), context.cache), callbacks=context.callbacks)
    change(files["guide.trec"])
    with (
        claim_folder(context.runs, opened.name, opened.hash, lambda: record.manifest(opened)) as (folder, _),
        pytest.raises(RunError, match=r"guide\.trec changed"),
    ):
        compute_run(opened, folder, context)


def test_a_picture_that_changes_while_a_comparison_computes_is_refused(toy_root, tmp_path):
    """Whoever encodes it: the store keeps features by content, so the new picture has features of its own."""
    shutil.copytree(toy_root, tmp_path / "toy")
    sets = [f"dataset.root='{tmp_path / 'toy'}'", "backbone.weights='random'", *FAST]
    (cell,) = plan_cells(configs(sets, "in-batch"), tmp_path, Display(), DATA)
    picture = min((tmp_path / "toy").rglob("*.png"))
    Image.new("RGB", (32, 32)).save(picture)
    with pytest.raises(RunError, match=f"{picture.name} changed after the run was planned"):
        open_run(cell.run, Display(), DATA)


def test_pictures_of_a_fine_tuned_tower_are_those_that_the_run_began_with(tmp_path):
    """Read anew at every step: a touched or restored file is read, another one refused, also amid a read."""
    file = {name: tmp_path / f"{name}.png" for name in "abc"}
    for number, path in enumerate([*file.values(), tmp_path / "other.png"]):
        Image.new("L", (1, 1), number).save(path)
    stamps = {name: stamp(path) for name, path in file.items()}
    to_copy = list[tuple[Path, Path]]()  # amid the next read

    def transform(image: Image.Image) -> torch.Tensor:
        for source, path in to_copy:
            shutil.copy(source, tmp_path / "new")
            (tmp_path / "new").rename(path)
        to_copy.clear()
        return torch.tensor(image.convert("L").getpixel((0, 0)))

    backbone = cast(Any, SimpleNamespace(transform=transform))
    read = PictureSource(backbone, file, content_hashes(file, tmp_path), stamps, torch.device("cpu"))
    rows = torch.tensor([2, 0, 2])
    assert read(rows).tolist() == [2, 0, 2]
    file["c"].touch()
    assert read(rows).tolist() == [2, 0, 2]
    shutil.copy(file["c"], tmp_path / "kept.png")
    to_copy += [(tmp_path / "other.png", file["c"]), (tmp_path / "kept.png", file["c"])]  # swapped, and put back
    assert read(rows[:1]).tolist() == [2]
    to_copy += [(tmp_path / "other.png", file["a"])]
    with pytest.raises(DataError, match=r"a\.png changed while the run read it"):
        read(rows[1:2])


def test_a_dev_part_is_that_of_its_fraction_and_seed(subtests, vector_sets):
    """Runs in one process share a dev part only if fraction and seed agree."""
    cache = DataCache()
    parts = list[list[str]]()
    for more in ((), ("eval.dev_seed=5",), ("eval.dev_fraction=0.4",)):
        with subtests.test(more=more):
            (config,) = configs(vector_sets, "in-batch", "eval.select=dev", *more)
            full = resolve(config)
            shared = cache.splits(full).dev
            alone = DataCache().splits(full).dev
            parts.append([query.id for query in shared.queries])
            assert parts[-1] == [query.id for query in alone.queries]
    assert len({tuple(ids) for ids in parts}) == 3


@pytest.mark.parametrize("aspects", [False, True])
def test_frozen_texts_are_encoded_once_for_all_runs_of_a_scene(aspects, tmp_path, monkeypatch, spy_on):
    calls = spy_on(Vectors, "frozen_text")
    sets = ["dataset='vectors'", "dataset.train_images=60", "dataset.train_queries=70", "dataset.val_images=40"]
    sets += ["dataset.val_queries=20", "backbone='vectors'", "backbone.hidden=8", "train.epochs=2", "schedule.n_def=1"]
    grid = configs(sets, "in-batch,top-k,hycole", f"backbone.attribute_weights={str(aspects).lower()}")
    context = RunContext.open(tmp_path, "none")
    once = [compute_or_reuse(config, context).details["metrics"] for config in grid]
    counts = [len(tokens["ids"]) for _, tokens in calls]
    assert sorted(count for count in counts if count > 2) == [20, 70]  # one and two show what texts take
    monkeypatch.setattr(scene, "frozen_texts", lambda backbone, tokens: tokens)  # encode each batch separately
    context = RunContext.open(tmp_path / "each", "none")
    assert [compute_or_reuse(config, context).details["metrics"] for config in grid] == once
    assert len(calls) > 20


def test_texts_that_an_evaluation_asked_for_first_can_be_trained_with():
    sets = ["dataset='vectors'", "dataset.train_images=60", "dataset.train_queries=70", "backbone='vectors'"]
    opened = open_run(configs(sets, "in-batch")[0], Display(), DataCache())
    evaluation.embed_queries(opened.backbone, opened.scene, opened.scene.train)
    assert not any(value.is_inference() for value in opened.scene.train.texts(opened.backbone).values())


def test_frozen_texts_that_take_much_memory_are_encoded_as_they_are_needed(subtests, monkeypatch):
    backbone = build(Vectors, dim=8, attribute_weights=True)
    tokens = backbone.tokenize(["red", "the same but blue, with long sleeves"] * 400)
    texts = scene.frozen_texts(backbone, tokens)
    assert texts.keys() == {"pooled", "words", "colour", "shape"}
    first = backbone.frozen_text({name: value[:300] for name, value in tokens.items()})
    rest = backbone.frozen_text({name: value[300:] for name, value in tokens.items()})
    assert torch.equal(texts["pooled"], torch.cat([first["pooled"], rest["pooled"]]))
    size = sum(value.nbytes for value in texts.values())
    for lacking in (0, 1):
        with subtests.test(lacking=lacking):
            monkeypatch.setattr(scene, "_KEPT_BYTES", size - lacking)
            assert (scene.frozen_texts(backbone, tokens) is tokens) == lacking


def test_large_backbones_do_not_pile_up(vector_sets, monkeypatch):
    monkeypatch.setattr(scene, "_KEPT_BYTES", 0)
    cache = DataCache()
    first, second = configs(vector_sets, "in-batch", seeds=2)
    backbone = cache.backbone(first)
    cache.backbone(second)
    assert cache.backbone(first) is not backbone


@pytest.mark.parametrize("option", ["exclude_relevant", "exclude_reference"])
def test_what_is_left_out_is_no_member_of_a_batch_either(vector_sets, tmp_path, option):
    def behaviour(value: str) -> dict[str, float]:
        (config,) = configs(vector_sets, "in-batch", f"mining.{option}={value}", "train.batch_size=24")
        return compute_or_reuse(config, RunContext.open(tmp_path, "none")).details["behaviour"]

    plain = behaviour("false")
    excluding = behaviour("true")
    if option == "exclude_relevant":
        assert plain["false_negative_rate_pool"] > 0
        assert excluding["false_negative_rate_pool"] == excluding["false_negative_rate_draws"] == 0
    assert excluding["pool_size"] < plain["pool_size"]


@pytest.mark.parametrize("split", ["train", "val"])
def test_other_annotations_are_another_run(vector_sets, tmp_path, toys, split):
    root = toys.TOYS["fashioniq"](tmp_path)["root"]
    sets = [text for text in vector_sets if not text.startswith("dataset")]
    (config,) = configs([*sets, "dataset.name=fashioniq", f"dataset.root='{root}'"], "in-batch")
    before = plan_run(config, DataCache()).hash
    assert plan_run(config, DataCache()).hash == before
    captions = root / f"captions/cap.dress.{split}.json"
    captions.write_text(captions.read_text(encoding="utf-8").replace("sleeves", "collar", 1), encoding="utf-8")
    assert plan_run(config, DataCache()).hash != before


def test_other_pictures_are_another_run_unless_no_backbone_reads_them(vector_sets, tmp_path, toys):
    """Regression: with the contents of two images swapped, the stored result was returned."""
    images = toys.TOYS["triplets"](tmp_path)["file"].parent / "images"
    data = ["dataset.name=triplets", f"dataset.file='{tmp_path / 'pairs.jsonl'}'"]
    pixels = ["backbone.name=tiny", "backbone.weights=random"]
    vectors = [text for text in vector_sets if not text.startswith("dataset")]
    cache = DataCache()

    def hash_of(backbone: list[str]) -> str:
        (config,) = configs([*data, *backbone], "in-batch")
        return plan_run(config, cache).hash

    of_pixels = hash_of(pixels)
    of_vectors = hash_of(vectors)
    (images / "train0.png").touch()
    assert (hash_of(pixels), hash_of(vectors)) == (of_pixels, of_vectors)
    (images / "unused.png").write_bytes((images / "val0.png").read_bytes())
    assert (hash_of(pixels), hash_of(vectors)) == (of_pixels, of_vectors)
    (images / "train0.png").rename(tmp_path / "kept.png")
    (images / "train1.png").rename(images / "train0.png")
    (tmp_path / "kept.png").rename(images / "train1.png")
    assert hash_of(pixels) != of_pixels
    assert hash_of(vectors) == of_vectors


def test_images_that_a_backbone_does_not_know():
    def remarks(backbone: str, dataset: str, **options: Any) -> list[str]:
        flags = {"strategy": {"name": "qure"}, "backbone": {"name": backbone, **options}, "dataset": {"name": dataset}}
        config = load_config(flags=flags)
        return unfamiliar_images(config, scene.load_backbone(config.backbone, 0))

    assert remarks("tiny", "synthetic") == []
    assert remarks("tiny", "fashioniq", weights="random") == []
    assert remarks("vectors", "vectors") == []
    (line,) = remarks("tiny", "fashioniq")
    assert line.startswith("backbone 'tiny' was trained only on the pictures of synthetic, not on those of fashioniq")
