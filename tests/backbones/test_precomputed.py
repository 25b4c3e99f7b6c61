"""The precomputed backbone: contents of the files, closed forms of the untrained scores, user errors."""

from pathlib import Path

import numpy as np
import pytest
import torch

from negbench.backbones.precomputed import Precomputed
from negbench.errors import DataError, OptionError
from negbench.plugins.registry import build

IDS = ["b7", "a1", "a2", "c"]
TEXTS = ["is red", "Is red", "has «longer» sleeves, and is blue", "", "x" * 300]


def vectors(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


IMAGES = vectors(4, 6)
TEXT_VECTORS = vectors(5, 6, seed=2)


def write(path: Path, names: list[str], array: np.ndarray, what: str) -> Path:
    np.savez(path, features=array, **{"ids" if what == "image" else "texts": np.array(names)})
    return path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write(tmp_path / "images.npz", IDS, IMAGES, "image")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write(tmp_path / "texts.npz", TEXTS, TEXT_VECTORS, "text")


def test_rows_are_those_of_the_files(subtests, tmp_path, texts):
    order = ["c", "b7", "c", "a2"]
    for array, tokens in ((IMAGES, 1), (vectors(4, 3, 6, seed=1), 3)):
        with subtests.test(tokens=tokens):
            backbone = build(Precomputed, images=write(tmp_path / "i.npz", IDS, array, "image"), texts=texts)
            features = backbone.features_of(order)
            want = array[[IDS.index(name) for name in order]]
            assert features.dtype == torch.float32
            assert torch.equal(features, torch.from_numpy(want).reshape(4, -1, 6))
            rows = backbone.tokenize([TEXTS[4], TEXTS[1]])["row"]
            assert torch.equal(backbone.text_table[rows], torch.from_numpy(TEXT_VECTORS[[4, 1]]))
            assert backbone.identity.tokens_per_image == tokens


def test_numbers_as_ids_half_precision_and_another_name(tmp_path, texts):
    half = IMAGES.astype(np.float16)
    np.savez(tmp_path / "i.npz", ids=np.array([1, 2, 3, 4]), v=half)
    backbone = build(Precomputed, images=tmp_path / "i.npz", texts=texts)
    assert torch.equal(backbone.features_of(["3", "1"]), torch.from_numpy(half).float()[[2, 0]][:, None])


def test_untrained_sum_is_the_closed_form(images, texts):
    backbone = build(Precomputed, images=images, texts=texts, fusion="sum")
    features = backbone.features_of(IDS)
    image = IMAGES / np.linalg.norm(IMAGES, axis=1, keepdims=True)
    text = TEXT_VECTORS[:4] / np.linalg.norm(TEXT_VECTORS[:4], axis=1, keepdims=True)
    total = image + text
    want = total / np.linalg.norm(total, axis=1, keepdims=True)
    torch.testing.assert_close(backbone.queries(features, TEXTS[:4]), torch.from_numpy(want))
    torch.testing.assert_close(backbone.candidates(features)[:, 0], torch.from_numpy(image))
    torch.testing.assert_close(backbone.text_queries(TEXTS[:4]), torch.from_numpy(text))
    torch.testing.assert_close(backbone.temperature, torch.tensor(0.07))


def test_the_files_content_is_part_of_the_identity(tmp_path, images, texts):
    first = build(Precomputed, images=images, texts=texts)
    changed = IMAGES.copy()
    changed[3, 5] += 1e-3
    second = build(Precomputed, images=write(tmp_path / "images.npz", IDS, changed, "image"), texts=texts)
    assert first.identity.weights == second.identity.weights == "images.npz + texts.npz"
    assert first.identity.sha256 != second.identity.sha256
    assert first.feature_key != second.feature_key
    other = write(tmp_path / "other.npz", TEXTS, TEXT_VECTORS * 2, "text")
    assert build(Precomputed, images=images, texts=other).feature_key != first.feature_key


def test_state_holds_what_is_trained_and_not_the_table(images, texts):
    state = build(Precomputed, images=images, texts=texts).state_dict()
    assert "text_table" not in state
    assert {"image_projection.weight", "text_projection.weight", "log_temperature"} <= set(state)


def test_what_the_files_lack_is_counted_and_named(images, texts):
    backbone = build(Precomputed, images=images, texts=texts)
    with pytest.raises(DataError, match=r"texts\.npz lacks 2 texts, the first: 'is green'; it has 'is red'; embed"):
        backbone.tokenize(["is red", "is green", "is blue", "is green"])
    with pytest.raises(DataError, match=r"images\.npz lacks 1 images, the first: 'zz'"):
        backbone.features_of(["c", "zz"])
    with pytest.raises(DataError, match=r"'c' and 'c\.png' are one image, c: write one name"):
        backbone.lacking(["c", "c.png"])
    with pytest.raises(DataError, match="lacks 1 texts") as caught:
        backbone.tokenize(["word " * 10_000])
    assert len(str(caught.value)) < 200


def test_bad_options(tmp_path, images, texts):
    with pytest.raises(OptionError, match=r"images must be the file with their embeddings"):
        build(Precomputed, texts=texts)
    with pytest.raises(OptionError, match=r"texts must be a \.npz, \.npy or \.parquet file, got '.*texts\.csv'"):
        build(Precomputed, images=images, texts=tmp_path / "texts.csv")
    with pytest.raises(DataError, match=r"none\.npz: there is no such file"):
        build(Precomputed, images=tmp_path / "none.npz", texts=texts)


BAD = [
    ({"ids": np.array(IDS)}, r"has no 'features', only 'ids'"),
    ({"ids": np.array(IDS), "a": IMAGES, "b": IMAGES}, r"has no 'features', only 'ids', 'a', 'b'"),
    ({"features": IMAGES}, r"has no 'ids', only 'features'"),
    ({"ids": np.array(IDS), "features": IMAGES[:3]}, r"bad\.npz has 4 names for the 3 vectors of bad\.npz"),
    ({"ids": np.array(IDS), "features": IMAGES[:, :0]}, r"none of them 0; got \[4, 0\]"),
    ({"ids": np.array(IDS), "features": IMAGES.astype(str)}, r"its vectors must be numbers, got <U"),
    ({"ids": np.array(IDS), "features": IMAGES[:, 0]}, r"got \[4\] torch.float32"),
    ({"ids": np.array(["a", "b", "a", "c"]), "features": IMAGES}, r"image 'a' occurs twice"),
    (
        {"ids": np.array(IDS), "features": np.where(IMAGES[2, 1] == IMAGES, np.nan, IMAGES)},
        r"image 'a2' has values that are not finite: embed it again",
    ),
    ({"ids": np.array(IDS), "features": IMAGES * np.float32(1e30)}, r"has values above 1e12.* scale"),
    ({"ids": np.array(IDS), "features": IMAGES * 1e-30}, r"has values.* none above 1e-12"),
    ({"ids": np.array(IDS, dtype=object), "features": IMAGES}, r"holds Python objects.*dtype=str"),
]


@pytest.mark.parametrize(("arrays", "message"), BAD)
def test_bad_arrays(tmp_path, texts, arrays, message):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=message) as caught:
        build(Precomputed, images=tmp_path / "bad.npz", texts=texts)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_npz(tmp_path, texts):
    (tmp_path / "garbage.npz").write_bytes(b"no archive")
    with pytest.raises(DataError, match="cannot be read as npz"):
        build(Precomputed, images=tmp_path / "garbage.npz", texts=texts)
