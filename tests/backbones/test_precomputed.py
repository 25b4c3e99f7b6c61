"""The precomputed backbone: three file formats, closed forms of the untrained scores, and what users get wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.nn.functional import normalize

from negbench.backbones.precomputed import Precomputed
from negbench.contracts import HoldsFeatures
from negbench.errors import DataError, NegbenchError, OptionError, UnknownNameError
from negbench.registry import registry

IDS = ["b7", "a1", "a2", "c"]
TEXTS = ["is red", "Is red", "has «longer» sleeves, and is blue", "", "x" * 300]


def vectors(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


IMAGES = vectors(4, 6)
TOKENS = vectors(4, 3, 6, seed=1)
TEXT_VECTORS = vectors(5, 6, seed=2)


def write(path: Path, names: list[str], array: np.ndarray, what: str) -> Path:
    """Save in the format that the suffix (and, for safetensors, the stem) names."""
    plural = "ids" if what == "image" else "texts"
    if path.suffix == ".npz":
        np.savez(path, features=array, **{plural: np.array(names)})
    elif path.suffix == ".parquet":
        pq.write_table(pa.table({plural[:-1]: names, "features": array.tolist()}), path, row_group_size=2)
    elif path.stem.endswith("one"):
        save_file({"features": torch.from_numpy(array)}, path, metadata={plural: json.dumps(names)})
    else:
        save_file({name: torch.from_numpy(row.copy()) for name, row in zip(names, array, strict=True)}, path)
    return path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write(tmp_path / "images.npz", IDS, IMAGES, "image")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write(tmp_path / "texts.npz", TEXTS, TEXT_VECTORS, "text")


@pytest.mark.parametrize("name", ["x.npz", "x.parquet", "x_many.safetensors", "x_one.safetensors"])
@pytest.mark.parametrize("array", [IMAGES, TOKENS], ids=["pooled", "tokens"])
def test_every_format_reads_the_same(tmp_path, name, array):
    text_names = TEXTS if "many" not in name else [text or "empty" for text in TEXTS]
    backbone = Precomputed.load(
        images=write(tmp_path / f"images_{name}", IDS, array, "image"),
        texts=write(tmp_path / f"texts_{name}", text_names, TEXT_VECTORS, "text"),
    )
    order = ["c", "b7", "c", "a2"]
    want = torch.from_numpy(array[[IDS.index(i) for i in order]]).reshape(4, -1, 6)
    got = backbone.features_of(order)
    assert got.dtype == torch.float32
    assert torch.equal(got, want)
    rows = backbone.tokenize([text_names[4], text_names[1]])["row"]
    assert torch.equal(backbone.text_table[rows], torch.from_numpy(TEXT_VECTORS[[4, 1]]))
    assert backbone.identity.tokens_per_image == (3 if array.ndim == 3 else 1)


def test_fixed_size_lists_and_half_precision(tmp_path, texts):
    flat = pa.array(IMAGES.astype(np.float16).ravel())
    table = pa.table({"ids": [1, 2, 3, 4], "v": pa.FixedSizeListArray.from_arrays(flat, 6)})
    pq.write_table(table, tmp_path / "i.parquet")
    backbone = Precomputed.load(images=tmp_path / "i.parquet", texts=texts, image_key="v")
    want = torch.from_numpy(IMAGES.astype(np.float16)).float()[[2, 0]][:, None]
    assert torch.equal(backbone.features_of(["3", "1"]), want)


def test_untrained_sum_is_the_closed_form(images, texts):
    backbone = Precomputed.load(images=images, texts=texts, fusion="sum")
    features = backbone.features_of(IDS)
    image = IMAGES / np.linalg.norm(IMAGES, axis=1, keepdims=True)
    text = TEXT_VECTORS[:4] / np.linalg.norm(TEXT_VECTORS[:4], axis=1, keepdims=True)
    total = image + text
    want = total / np.linalg.norm(total, axis=1, keepdims=True)
    torch.testing.assert_close(backbone.queries(features, TEXTS[:4]), torch.from_numpy(want))
    torch.testing.assert_close(backbone.candidates(features)[:, 0], torch.from_numpy(image))
    torch.testing.assert_close(backbone.text_queries(TEXTS[:4]), torch.from_numpy(text))
    torch.testing.assert_close(backbone.temperature, torch.tensor(0.07))


def test_wider_space_keeps_the_angles(tmp_path, images, texts):
    backbone = Precomputed.load(images=images, texts=texts, dim=20, fusion="sum")
    found = backbone.candidates(backbone.features_of(IDS))[:, 0]
    assert found.shape == (4, 20)
    given = normalize(torch.from_numpy(IMAGES), dim=-1)
    torch.testing.assert_close(found @ found.T, given @ given.T)
    narrow = write(tmp_path / "narrow.npz", TEXTS, vectors(5, 3), "text")
    assert Precomputed.load(images=images, texts=narrow).queries(backbone.features_of(IDS[:1]), ["is red"]).shape == (
        1,
        6,
    )


def test_the_files_content_is_part_of_the_identity(tmp_path, images, texts):
    first = Precomputed.load(images=images, texts=texts)
    changed = IMAGES.copy()
    changed[3, 5] += 1e-3
    second = Precomputed.load(images=write(tmp_path / "images.npz", IDS, changed, "image"), texts=texts)
    assert first.identity.weights == second.identity.weights == "images.npz + texts.npz"
    assert first.identity.sha256 != second.identity.sha256
    assert first.feature_key != second.feature_key
    other = write(tmp_path / "other.npz", TEXTS, TEXT_VECTORS * 2, "text")
    assert Precomputed.load(images=images, texts=other).feature_key != first.feature_key


def test_state_holds_what_is_trained_and_not_the_table(images, texts):
    state = Precomputed.load(images=images, texts=texts).state_dict()
    assert "text_table" not in state
    assert {"image_projection.weight", "text_projection.weight", "log_temperature"} <= set(state)


def test_the_registry_builds_it_from_strings(images, texts):
    backbone = registry.make("backbones", "precomputed", images=str(images), texts=str(texts), fusion="sum")
    assert isinstance(backbone, HoldsFeatures)
    assert backbone.identity.composition == "sum fusion"


def test_there_are_no_pixels(images, texts):
    backbone = Precomputed.load(images=images, texts=texts)
    with pytest.raises(NegbenchError, match="no image encoder"):
        backbone.preprocess(Image.new("RGB", (4, 4)))
    with pytest.raises(NegbenchError, match="no image encoder"):
        backbone.image_features(torch.zeros(1, 3, 4, 4))


def test_what_the_files_lack_is_counted_and_named(images, texts):
    backbone = Precomputed.load(images=images, texts=texts)
    with pytest.raises(DataError, match=r"texts\.npz lacks 2 texts, the first: 'is green'; embed each text"):
        backbone.tokenize(["is red", "is green", "is blue", "is green"])
    with pytest.raises(DataError, match=r"images\.npz lacks 1 images, the first: 'zz'"):
        backbone.features_of(["c", "zz"])


def test_bad_options(tmp_path, images, texts):
    with pytest.raises(OptionError, match="images must be the file with their embeddings"):
        Precomputed.load(texts=texts)
    with pytest.raises(OptionError, match=r"texts must be a \.npz, .* got '.*texts\.csv'"):
        Precomputed.load(images=images, texts=tmp_path / "texts.csv")
    with pytest.raises(DataError, match=r"none\.npz: there is no such file"):
        Precomputed.load(images=tmp_path / "none.npz", texts=texts)
    with pytest.raises(OptionError, match="dim must be >= 1 or left out, got 0"):
        Precomputed.load(images=images, texts=texts, dim=0)
    with pytest.raises(UnknownNameError, match="gated"):
        Precomputed.load(images=images, texts=texts, fusion="gate")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"ids": np.array(IDS)}, r"has no 'features', only 'ids'"),
        ({"features": IMAGES}, r"has no 'ids', only 'features'"),
        ({"ids": np.array(IDS), "features": IMAGES[:3]}, r"N = 4 images, and none of them 0; got \[3, 6\]"),
        ({"ids": np.array(IDS), "features": IMAGES[:, :0]}, r"none of them 0; got \[4, 0\]"),
        ({"ids": np.array(IDS), "features": IMAGES.astype(int)}, r"\[N, C\] or \[N, L, C\] float"),
        ({"ids": np.array(IDS), "features": IMAGES[:, 0]}, r"got \[4\] torch.float32"),
        ({"ids": np.array(["a", "b", "a", "c"]), "features": IMAGES}, r"image 'a' is there twice"),
        (
            {"ids": np.array(IDS), "features": np.where(IMAGES[2, 1] == IMAGES, np.nan, IMAGES)},
            r"image 'a2' has values",
        ),
        ({"ids": np.array(IDS, dtype=object), "features": IMAGES}, r"holds Python objects.*dtype=str"),
    ],
)
def test_bad_arrays(tmp_path, texts, arrays, message):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=message) as caught:
        Precomputed.load(images=tmp_path / "bad.npz", texts=texts)
    assert "\n" not in str(caught.value)


def test_bad_parquet_and_safetensors(tmp_path, texts):
    pq.write_table(pa.table({"id": ["a", "b"], "features": [[1.0, 2.0], [1.0]]}), tmp_path / "ragged.parquet")
    pq.write_table(pa.table({"id": ["a", "b"], "features": [[1.0, 2.0], None]}), tmp_path / "null.parquet")
    save_file({"a": torch.zeros(3), "b": torch.zeros(4)}, tmp_path / "ragged.safetensors")
    (tmp_path / "garbage.parquet").write_bytes(b"no parquet")
    for name, message in (
        ("ragged.parquet", r"differ in length: \[1, 2\]"),
        ("null.parquet", "has 1 missing values"),
        ("ragged.safetensors", "differ in shape or dtype"),
        ("garbage.parquet", "cannot be read as parquet"),
    ):
        with pytest.raises(DataError, match=message):
            Precomputed.load(images=tmp_path / name, texts=texts)
