"""A trained tower encodes each picture once for the same weights: candidates, references, wordings, one modality."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from negbench.data.scene import EncodedSplits, Features
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
    backbone, scene, split = opened.backbone, opened.scene, opened.scene.val
    found = evaluation.embed(backbone, scene, split)
    with torch.inference_mode():
        for query in range(len(split.references)):
            reference = scene.features(backbone, split.references[query : query + 1])
            text = {name: value[query : query + 1] for name, value in split.tokens.items()}
            own = backbone.queries(reference, text)[0]
            alone = torch.nn.functional.normalize(backbone.candidates(reference).mean(1), dim=-1)[0]
            torch.testing.assert_close(found.queries[query], own, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(found.references[query], alone, rtol=1e-5, atol=1e-6)
        for image in range(len(split.images)):
            own = backbone.candidates(scene.features(backbone, split.images[image : image + 1]))[0]
            torch.testing.assert_close(found.candidates[image], own, rtol=1e-5, atol=1e-6)
    again = evaluation.embed_queries(backbone, scene, split)
    torch.testing.assert_close(found.queries, again, rtol=1e-5, atol=1e-6)


def test_further_wordings_have_queries_of_their_own(opened, blocks_of_seven):
    backbone, scene = opened.backbone, opened.scene
    asked = scene.val.dataset.queries
    queries = [replace(query, wordings=(asked[number - 1].text,)) for number, query in enumerate(asked)]
    split = replace(scene.val, dataset=replace(scene.val.dataset, queries=queries))
    found = evaluation.embed(backbone, scene, split, wordings=True)
    (tokens,) = evaluation.wordings_of(backbone, split)
    want = evaluation.embed_queries(backbone, scene, split, tokens)
    torch.testing.assert_close(found.wordings[0], want, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(found.queries, want)


def test_a_run_encodes_each_picture_once_for_the_same_weights(sets, tmp_path, monkeypatch, blocks_of_seven):
    """Outside of training steps: before training, at refreshes, in val, for one modality, for records."""
    encoded = Counter[tuple[float, int]]()
    features = EncodedSplits.features

    def counting(scene: EncodedSplits, backbone, rows: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            weights = float(sum(p.double().sum() for p in backbone.parameters()))
            encoded.update((weights, row) for row in rows.tolist())
        return features(scene, backbone, rows)

    monkeypatch.setattr(EncodedSplits, "features", counting)
    finished = run(config_of(sets, "qure"), tmp_path)
    assert len({weights for weights, _ in encoded}) == 1 + 4  # before training, and after each epoch
    assert set(encoded.values()) == {1}
    assert finished.details["baselines"].keys() >= {"image_only", "text_only", "untrained_image_only"}
