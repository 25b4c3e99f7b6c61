"""A trained tower encodes each picture once for the same weights: candidates, references, wordings, one modality."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from negbench.data.scene import EncodedSplits, Features
from negbench.loop.runs import compute_or_reuse
from negbench.loop.types import OpenRun
from negbench.scoring import evaluation
from tests.runs import config_of, run, untrained

TRAINED = ("backbone.name=clip", "backbone.init=random", "backbone.size=toy", "backbone.frozen=false")


@pytest.fixture(scope="module")
def sets(toy_root) -> list[str]:
    return [f"dataset.root='{toy_root}'", *TRAINED, "train.epochs=4", "train.batch_size=36", "schedule.n_def=2"]


@pytest.fixture(scope="module")
def opened(sets) -> OpenRun:
    return untrained(config_of(sets, "qure"))


@pytest.fixture
def blocks_of_seven(monkeypatch):
    """Let seven pictures, queries or texts be embedded at once."""
    monkeypatch.setattr(Features, "at_once", lambda *_: 7)


def test_embeddings_are_those_of_a_loop_over_queries_and_images(opened, blocks_of_seven):
    backbone = opened.backbone
    scene = opened.scene
    split = opened.scene.val
    embedded = evaluation.embed(backbone, scene, split)
    with torch.inference_mode():
        for query in range(len(split.references)):
            reference = scene.features(backbone, split.references[query : query + 1])
            text = {name: value[query : query + 1] for name, value in split.tokens.items()}
            alone = backbone.queries(reference, text)[0]
            picture = torch.nn.functional.normalize(backbone.candidates(reference).mean(1), dim=-1)[0]
            torch.testing.assert_close(embedded.queries[query], alone, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(embedded.references[query], picture, rtol=1e-5, atol=1e-6)
        for image in range(len(split.images)):
            alone = backbone.candidates(scene.features(backbone, split.images[image : image + 1]))[0]
            torch.testing.assert_close(embedded.candidates[image], alone, rtol=1e-5, atol=1e-6)
    again = evaluation.embed_queries(backbone, scene, split)
    torch.testing.assert_close(embedded.queries, again, rtol=1e-5, atol=1e-6)


def test_further_wordings_have_queries_of_their_own(opened, blocks_of_seven):
    backbone = opened.backbone
    scene = opened.scene
    queries = []
    previous = scene.val.dataset.queries[-1]
    for query in scene.val.dataset.queries:
        queries.append(replace(query, wordings=(previous.text,)))
        previous = query
    split = replace(scene.val, dataset=replace(scene.val.dataset, queries=queries))
    embedded = evaluation.embed(backbone, scene, split, wordings=True)
    (tokens,) = evaluation.wordings_of(backbone, split)
    want = evaluation.embed_queries(backbone, scene, split, tokens)
    torch.testing.assert_close(embedded.wordings[0], want, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(embedded.queries, want)


def test_splits_that_are_embedded_together_have_the_embeddings_of_each(opened, blocks_of_seven):
    """The pictures of val, and those of train twice, as of a dev part carved from it."""
    backbone = opened.backbone
    scene = opened.scene
    half = torch.arange(len(scene.train.references) // 2)
    dev = replace(
        scene.train,
        references=scene.train.references[half],
        tokens={name: value[half] for name, value in scene.train.tokens.items()},
    )
    splits = [scene.val, scene.train, dev]
    for split, embedded in zip(splits, evaluation.embed_together(backbone, scene, splits), strict=True):
        alone = evaluation.embed(backbone, scene, split)
        torch.testing.assert_close(embedded.queries, alone.queries, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(embedded.candidates, alone.candidates, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(embedded.references, alone.references, rtol=1e-5, atol=1e-6)


# besides val, whose pictures are its own
PARTS = {"train": (), "train and dev": ("eval.select=dev", "eval.dev_fraction=0.2")}


@pytest.mark.parametrize("more", PARTS.values(), ids=PARTS)
def test_a_run_encodes_each_picture_once_for_the_same_weights(more, sets, tmp_path, monkeypatch, blocks_of_seven):
    """Outside of training steps: before training, at refreshes, in val and dev, for one modality, for records."""
    encoded = Counter[tuple[float, int]]()
    features = EncodedSplits.features
    trained_rows: list[int] = []

    def count_rows(scene: EncodedSplits, backbone, rows: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            weights = float(sum(p.double().sum() for p in backbone.parameters()))
            encoded.update((weights, row) for row in rows.tolist())
            trained_rows[:] = [*scene.train.images.tolist(), *scene.train.references.tolist()]
        return features(scene, backbone, rows)

    monkeypatch.setattr(EncodedSplits, "features", count_rows)
    finished = run(config_of([*sets, *more], "qure"), tmp_path)
    assert len({weights for weights, _ in encoded}) == 1 + 4  # before training, and after each epoch
    if "eval.select=dev" in more:  # the reported model, which is one of them, ranks val once more
        encoded = Counter({key: count for key, count in encoded.items() if key[1] in trained_rows})
    assert set(encoded.values()) == {1}
    if not more:
        assert finished.details["baselines"].keys() >= {"image_only", "text_only", "untrained_image_only"}


def test_a_gallery_that_two_splits_share_passes_a_frozen_backbone_once(toy_sets, tmp_path, monkeypatch):
    """As that of train and of the dev part carved from it."""
    galleries: list[tuple[int, ...]] = []
    embed = evaluation.embed_candidates

    def note_gallery(backbone, scene, rows: Tensor, batch: int | None = None) -> Tensor:
        weights = float(sum(p.detach().double().sum() for p in backbone.parameters()))
        galleries.append((weights, *rows.tolist()))
        return embed(backbone, scene, rows, batch)

    monkeypatch.setattr(evaluation, "embed_candidates", note_gallery)
    run(config_of([*toy_sets, "eval.reported=false", "eval.dev_fraction=0.2", "train.epochs=4"], "qure"), tmp_path)
    assert len(set(galleries)) == len(galleries) >= 5


def test_a_resumed_run_has_the_same_bits(sets, tmp_path, interrupted, blocks_of_seven):
    """It stopped before a refresh whose pictures, in the whole run, were encoded with those of dev."""
    config = config_of([*sets, *PARTS["train and dev"], "train.epochs=3", "schedule.n_def=3"], "qure")
    whole = run(config, tmp_path / "whole")
    refreshed = [int(row["epoch"]) for row in whole.details["behaviour_by_refresh"]]
    half = interrupted(config, tmp_path / "parts", refreshed[-1])
    resumed = compute_or_reuse(config, half)
    assert (whole.path / "ranks.parquet").read_bytes() == (resumed.path / "ranks.parquet").read_bytes()
    weights = resumed.folder.weights()
    for name, value in whole.folder.weights().items():
        assert torch.equal(value, weights[name]), name
