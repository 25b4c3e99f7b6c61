"""The scene, the single place that decides splits, allowed images and what a process loads."""

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
from negbench.loop.runs import DATA, RunContext, compute_run, open_run, plan_run, run_config
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
    return [
        load_config(flags={"strategy": {"name": name}, "seed": seed}, sets=[*vector_sets, *FAST, *more])
        for seed in range(seeds)
        for name in strategies.split(",")
    ]


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


def test_a_comparison_loads_data_and_backbone_once(vector_sets, tmp_path, monkeypatch):
    """Regression: six cells loaded data 7 times and the backbone 14 times."""
    counts = {"load_split": 0, "load_backbone": 0}
    for name in counts:
        real = getattr(scene, name)

        def counted(*arguments: Any, _name: str = name, _real: Any = real, **options: Any) -> Any:
            counts[_name] += 1
            return _real(*arguments, **options)

        monkeypatch.setattr(scene, name, counted)
    DATA.clear()
    cells = plan_cells(configs(vector_sets, "qure,in-batch,hycole", seeds=2), tmp_path, Display(), DATA)
    compute_and_log(ComparisonFolder(tmp_path / "c"), cells, Execution(InProcess(), "none"))
    DATA.clear()
    assert counts == {"load_split": 2, "load_backbone": 2}  # train and val; the initial weights of two seeds


def test_a_shared_backbone_starts_every_run_anew(vector_sets, tmp_path):
    shared = RunContext.open(tmp_path / "shared", "none")
    for config in configs(vector_sets, "in-batch,all-corpus,hycole"):
        together = run_config(config, shared)
        alone = run_config(config, RunContext.open(tmp_path / "alone", "none"))
        assert together.metrics == alone.metrics, config.strategy.name
        assert together.folder.metrics() == alone.folder.metrics(), config.strategy.name
        left, right = together.folder.weights(), alone.folder.weights()
        assert all(torch.equal(left[name], right[name]) for name in right), config.strategy.name


def test_a_scene_is_that_of_its_backbone(vector_sets, tmp_path):
    """Runs on the same data set with different frozen features never share features."""
    cache, images = DataCache(), write_vectors(tmp_path, seed=1)[3]  # the same ids, different vectors
    assert images.startswith("backbone.images=")
    (first,), (second,) = configs(vector_sets, "in-batch"), configs([*vector_sets, images], "in-batch")
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
    cache, rows = DataCache(), []
    for more in options:
        (config,) = configs([*vector_sets, *more], "in-batch")
        opened = open_run(config, Display(), cache)
        assert opened.scene.train.dataset is opened.splits.train, f"{more}"
        rows.append(opened.scene.train.tokens["row"])
        assert torch.equal(rows[-1], opened.backbone.tokenize([q.text for q in opened.splits.train.queries])["row"]), (
            f"{more}"
        )
    assert len(rows[1]) < len(rows[0])
    assert not torch.equal(rows[2], rows[3])


def changing(folder: Path, *more: str) -> tuple[RunConfig, dict[str, Path]]:
    """Return a run with a guide, and the files that it reads, by what they are."""
    sets = write_vectors(folder)
    files = {name: folder / name for name in ("triplets.jsonl", "images.npz", "texts.npz", "guide.trec")}
    rows = [json.loads(line) for line in files["triplets.jsonl"].read_text().splitlines()]
    train = [row for row in rows if row["split"] == "train"]
    lines = (f"train-{n} Q0 {row['reference']} 1 0.{n} a\n" for n, row in enumerate(train, start=1))
    files["guide.trec"].write_text("".join(lines))
    guided = f"mining.guide='{files['guide.trec']}'", "mining.guide_margin=0.1"
    return configs([*sets, *guided, *more], "top-k")[0], files


def replaced(file: Path) -> None:
    """Put another content of the same kind in place of a file."""
    text = file.with_name(f"new{file.suffix}")
    if file.suffix == ".npz":
        held = dict(np.load(file))
        np.savez(text, **held | {"features": held["features"][::-1]})
    else:
        old, new = (" a\n", "1 a\n") if file.suffix == ".trec" else ('"group": "left"', '"group": "right"')
        text.write_text(file.read_text().replace(old, new, 1))
    text.replace(file)


@pytest.mark.parametrize("name", ["triplets.jsonl", "images.npz", "texts.npz", "guide.trec"])
def test_what_changes_while_python_runs_is_read_again_or_refused(tmp_path, name):
    """Regression: yesterday's numbers for rewritten embeddings; those of a new guide under the hash of the old one."""
    config, files = changing(tmp_path / "d")
    context = RunContext.open(tmp_path / "runs", "none")
    first = run_config(config, context)
    replaced(files[name])
    again, alone = run_config(config, context), run_config(config, RunContext.open(tmp_path / "alone", "none"))
    assert not again.reused
    assert again.run_id == alone.run_id != first.run_id
    assert again.metrics == alone.metrics
    files[name].touch()  # the same content
    assert run_config(config, context).reused
    other = config.model_copy(update={"seed": 1})
    (cell,) = plan_cells([other], tmp_path / "runs", Display(), DATA)
    replaced(files[name])  # after the plan
    with pytest.raises(RunError, match=f"{name} changed after the run was planned"):
        compute_and_log(ComparisonFolder(tmp_path / "runs" / "c"), [cell], Execution(InProcess(), "none"))
    assert best_of(tmp_path / "runs", cell.hash) is None
    callbacks = Callbacks(refreshed=lambda *_: replaced(files[name]))  # while it trains
    with pytest.raises(RunError, match=f"{name} changed after the run was planned"):
        run_config(other, replace(context, callbacks=callbacks))


def test_a_plugin_that_was_imported_again_is_loaded_again(subtests, vector_sets, own_registry):
    (config,), cache = configs(vector_sets, "in-batch"), DataCache()
    for renewed in (False, True):
        with subtests.test(renewed=renewed):
            for kind, name in (("backbones", "precomputed"), ("datasets", "triplets")) if renewed else ():
                registry._classes[kind, name] = type("New", (registry.get(kind, name),), {})
            loaded = cache.backbone(config), cache.dataset(config.dataset, "val", images=False)
            assert [type(each).__name__ == "New" for each in loaded] == [renewed] * 2


def test_a_guide_that_was_another_one_only_while_it_was_read_is_refused(tmp_path):
    """Regression: with the old file back, the results of the new one were "already finished"."""
    config, files = changing(tmp_path / "d")
    kept = files["guide.trec"].read_bytes()
    context = RunContext.open(tmp_path / "runs", "none")
    context = replace(context, callbacks=Callbacks(refreshed=lambda *_: files["guide.trec"].write_bytes(kept)))
    opened = replace(open_run(config, Display(), context.cache), callbacks=context.callbacks)
    replaced(files["guide.trec"])
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
    (picture, *_), other = sorted((tmp_path / "toy").rglob("*.png")), Image.new("RGB", (32, 32))
    other.save(picture)
    with pytest.raises(RunError, match=f"{picture.name} changed after the run was planned"):
        open_run(cell.run, Display(), DATA)


def test_pictures_of_a_fine_tuned_tower_are_those_that_the_run_began_with(tmp_path):
    """Read anew at every step: a touched or restored file is read, another one refused, also amid a read."""
    file = {name: tmp_path / f"{name}.png" for name in "abc"}
    for number, path in enumerate([*file.values(), tmp_path / "other.png"]):
        Image.new("L", (1, 1), number).save(path)
    stamps, late = {name: stamp(path) for name, path in file.items()}, list[tuple[Path, Path]]()

    def transform(image: Image.Image) -> torch.Tensor:
        for source, path in late:
            shutil.copy(source, tmp_path / "new")
            (tmp_path / "new").rename(path)
        late.clear()
        return torch.tensor(image.convert("L").getpixel((0, 0)))

    backbone = cast(Any, SimpleNamespace(transform=transform))
    read = PictureSource(backbone, file, content_hashes(file, tmp_path), stamps, torch.device("cpu"))
    rows = torch.tensor([2, 0, 2])
    assert read(rows).tolist() == [2, 0, 2]
    file["c"].touch()
    assert read(rows).tolist() == [2, 0, 2]
    shutil.copy(file["c"], tmp_path / "kept.png")
    late += [(tmp_path / "other.png", file["c"]), (tmp_path / "kept.png", file["c"])]  # swapped, and put back
    assert read(rows[:1]).tolist() == [2]
    late += [(tmp_path / "other.png", file["a"])]
    with pytest.raises(DataError, match=r"a\.png changed while the run read it"):
        read(rows[1:2])


def test_a_dev_part_is_that_of_its_fraction_and_seed(subtests, vector_sets):
    """Runs in one process share a dev part only if fraction and seed agree."""
    cache, parts = DataCache(), list[list[str]]()
    for more in ((), ("eval.dev_seed=5",), ("eval.dev_fraction=0.4",)):
        with subtests.test(more=more):
            (config,) = configs(vector_sets, "in-batch", "eval.select=dev", *more)
            full = resolve(config)
            shared, alone = (each.splits(full).dev for each in (cache, DataCache()))
            parts.append([query.id for query in shared.queries])
            assert parts[-1] == [query.id for query in alone.queries]
    assert len({tuple(ids) for ids in parts}) == 3


@pytest.mark.parametrize("aspects", [False, True])
def test_frozen_texts_are_encoded_once_for_all_runs_of_a_scene(aspects, tmp_path, monkeypatch):
    asked: list[int] = []
    frozen = Vectors.frozen_text

    def counted(self: Vectors, tokens: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        asked.append(len(tokens["ids"]))
        return frozen(self, tokens)

    monkeypatch.setattr(Vectors, "frozen_text", counted)
    sets = ["dataset='vectors'", "dataset.train_images=60", "dataset.train_queries=70", "dataset.val_images=40"]
    sets += ["dataset.val_queries=20", "backbone='vectors'", "backbone.hidden=8", "train.epochs=2", "schedule.n_def=1"]
    grid = configs(sets, "in-batch,top-k,hycole", f"backbone.attribute_weights={str(aspects).lower()}")
    context = RunContext.open(tmp_path, "none")
    once = [run_config(config, context).details["metrics"] for config in grid]
    assert sorted(count for count in asked if count > 2) == [20, 70]  # one and two show what texts take
    monkeypatch.setattr(scene, "frozen_texts", lambda backbone, tokens: tokens)  # encode each batch separately
    context = RunContext.open(tmp_path / "each", "none")
    assert [run_config(config, context).details["metrics"] for config in grid] == once
    assert len(asked) > 20


def test_texts_that_an_evaluation_asked_for_first_can_be_trained_with():
    sets = ["dataset='vectors'", "dataset.train_images=60", "dataset.train_queries=70", "backbone='vectors'"]
    opened = open_run(configs(sets, "in-batch")[0], Display(), DataCache())
    evaluation.embed_queries(opened.backbone, opened.scene, opened.scene.train)
    assert not any(value.is_inference() for value in opened.scene.train.texts(opened.backbone).values())


def test_frozen_texts_that_take_much_memory_are_encoded_as_they_are_needed(subtests, monkeypatch):
    backbone = build(Vectors, dim=8, attribute_weights=True)
    tokens = backbone.tokenize(["red", "the same but blue, with long sleeves"] * 400)
    made = scene.frozen_texts(backbone, tokens)
    assert made.keys() == {"pooled", "words", "colour", "shape"}
    parts = [{name: value[at] for name, value in tokens.items()} for at in (slice(300), slice(300, None))]
    assert torch.equal(made["pooled"], torch.cat([backbone.frozen_text(part)["pooled"] for part in parts]))
    for lacking in (0, 1):
        with subtests.test(lacking=lacking):
            monkeypatch.setattr(scene, "_KEPT_BYTES", sum(value.nbytes for value in made.values()) - lacking)
            assert (scene.frozen_texts(backbone, tokens) is tokens) == lacking


def test_large_backbones_do_not_pile_up(vector_sets, monkeypatch):
    monkeypatch.setattr(scene, "_KEPT_BYTES", 0)
    cache = DataCache()
    first, second = configs(vector_sets, "in-batch", seeds=2)
    kept = cache.backbone(first)
    cache.backbone(second)
    assert cache.backbone(first) is not kept


@pytest.mark.parametrize("option", ["exclude_relevant", "exclude_reference"])
def test_what_is_left_out_is_no_member_of_a_batch_either(vector_sets, tmp_path, option):
    behaviour = {}
    for given in (False, True):
        (config,) = configs(vector_sets, "in-batch", f"mining.{option}={str(given).lower()}", "train.batch_size=24")
        behaviour[given] = run_config(config, RunContext.open(tmp_path, "none")).details["behaviour"]
    if option == "exclude_relevant":
        assert behaviour[False]["false_negative_rate_pool"] > 0
        assert behaviour[True]["false_negative_rate_pool"] == behaviour[True]["false_negative_rate_draws"] == 0
    assert behaviour[True]["pool_size"] < behaviour[False]["pool_size"]


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
    given = [text for text in vector_sets if not text.startswith("dataset")]
    cache, seen = DataCache(), list[tuple[str, str]]()
    for edit in ("none", "touch", "unused", "swap"):
        if edit == "touch":
            (images / "train0.png").touch()
        elif edit == "unused":
            (images / "unused.png").write_bytes((images / "val0.png").read_bytes())
        elif edit == "swap":
            (images / "train0.png").rename(tmp_path / "kept.png")
            (images / "train1.png").rename(images / "train0.png")
            (tmp_path / "kept.png").rename(images / "train1.png")
        seen.append(tuple(plan_run(configs([*data, *more], "in-batch")[0], cache).hash for more in (pixels, given)))
    assert len(set(seen[:3])) == 1
    assert seen[3][0] != seen[2][0]
    assert seen[3][1] == seen[2][1]


def test_images_that_a_backbone_does_not_know():
    def said(backbone: str, dataset: str, **options: Any) -> list[str]:
        flags = {"strategy": {"name": "qure"}, "backbone": {"name": backbone, **options}, "dataset": {"name": dataset}}
        config = load_config(flags=flags)
        return unfamiliar_images(config, scene.load_backbone(config.backbone, 0))

    assert said("tiny", "synthetic") == []
    assert said("tiny", "fashioniq", weights="random") == []
    assert said("vectors", "vectors") == []
    (line,) = said("tiny", "fashioniq")
    assert line.startswith("backbone 'tiny' was trained only on the pictures of synthetic, not on those of fashioniq")
