"""Arrays of embeddings with their names, in the forms in which people have them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from negbench.errors import DataError
from negbench.files.vector_files import as_floats, conversion, files_of, numbered_columns, read_vectors

IDS = ["a.jpg", "b.jpg", "c.jpg"]
VECTORS = np.array([[1.0, 2.0], [-3.0, 4.5], [0.0, 8.0]], dtype=np.float32)
DATA = {"ids": np.array(IDS), "features": VECTORS}

LAYOUTS = {
    "big-endian": VECTORS.astype(">f4"),
    "big-endian double": VECTORS.astype(">f8"),
    "half": VECTORS.astype("f2"),
    "Fortran order": np.asfortranarray(VECTORS),
    "extended": VECTORS.astype(np.longdouble),
    "integers": (VECTORS * 2).astype("i4"),
    "big-endian integers": (VECTORS * 2).astype(">i8"),
    "truth values": VECTORS > 0,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ending", ["npz", "npy"])
def test_any_layout_gives_the_same_numbers(tmp_path, layout, ending):
    array = LAYOUTS[layout]
    path = tmp_path / f"x.{ending}"
    if ending == "npz":
        np.savez(path, ids=np.array(IDS), features=array)
    else:
        np.save(path, array)
        path.with_suffix(".txt").write_text("\n".join(IDS))
    names, vectors = read_vectors(path, "ids")
    assert names == IDS
    np.testing.assert_array_equal(vectors, array.astype(np.float64))
    assert vectors.dtype.kind == "f"
    assert vectors.dtype.isnative
    assert vectors.dtype.itemsize <= 8
    assert vectors.flags["C_CONTIGUOUS"]
    assert vectors.flags["WRITEABLE"]


def frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame(columns)


TABLES = {
    "a column of names": frame(ids=IDS, features=[*VECTORS]),
    "a named index": pd.DataFrame({"features": [*VECTORS]}, index=pd.Index(IDS, name="id")),
    "an index without a name": pd.DataFrame({"features": [*VECTORS]}, index=IDS),
    "a column for each number": frame(id=IDS, f0=VECTORS[:, 0], f1=VECTORS[:, 1]),
    "numbers as columns, names as index": pd.DataFrame(VECTORS, index=IDS).rename(columns=str),
    "numbers from 1": frame(ids=IDS, dim_1=VECTORS[:, 0], dim_2=VECTORS[:, 1]),
}


@pytest.mark.parametrize("table", TABLES)
def test_tables(tmp_path, table):
    TABLES[table].to_parquet(tmp_path / "x.parquet")
    names, vectors = read_vectors(tmp_path / "x.parquet", "ids")
    assert names == IDS
    np.testing.assert_array_equal(vectors, VECTORS)


def test_columns_that_are_no_vector():
    assert numbered_columns({"f0": "f4", "f2": "f4"}) == []
    assert numbered_columns({"a": "f4", "b": "f4"}) == []
    assert numbered_columns({"f0": "f4"}) == []
    assert numbered_columns({"f0": "O", "f1": "f4"}) == []
    assert numbered_columns({f"f{n}": "f4" for n in (10, *range(10))}) == [f"f{n}" for n in range(11)]


LISTS = {
    "lines": ("txt", "a.jpg\nb.jpg\nc.jpg\n"),
    "no end of the last line": ("txt", "a.jpg\nb.jpg\nc.jpg"),
    "of Windows, with a mark": ("txt", "\ufeffa.jpg\r\nb.jpg\r\nc.jpg\r\n\r\n"),
    "blanks at the ends": ("txt", " a.jpg \nb.jpg\t\nc.jpg\n\n"),
    "JSON": ("json", json.dumps(IDS)),
    "JSON in an object": ("json", json.dumps({"ids": IDS})),
}


@pytest.mark.parametrize("case", LISTS)
def test_lists_of_names(tmp_path, case):
    ending, text = LISTS[case]
    np.save(tmp_path / "x.npy", VECTORS)
    (tmp_path / f"x.{ending}").write_bytes(text.encode())
    assert read_vectors(tmp_path / "x.npy", "ids")[0] == IDS
    assert files_of(tmp_path / "x.npy") == [tmp_path / "x.npy", tmp_path / f"x.{ending}"]


def _bad(tmp_path: Path, name: str, **arrays: Any) -> Path:
    np.savez(tmp_path / name, **{**DATA, **arrays})
    return tmp_path / name


FLAWS = {
    "an id twice": ({"ids": np.array(["a", "b", "a"])}, "image 'a' occurs twice (rows 1 and 3): keep one"),
    "too few names": ({"ids": np.array(["a", "b"])}, "has 2 names for the 3 vectors"),
    "texts as vectors": ({"features": np.array([["x"], ["y"], ["z"]])}, "must be numbers, got <U1: save them with"),
    "complex numbers": ({"features": VECTORS.astype("c8")}, "must be numbers, got complex64"),
    "objects": ({"ids": np.array(["a", 1, None], dtype=object)}, "holds Python objects: save ids with np.array"),
}


@pytest.mark.parametrize("case", FLAWS)
def test_flaws_are_one_line(tmp_path, case):
    arrays, message = FLAWS[case]
    with pytest.raises(DataError) as error:
        read_vectors(_bad(tmp_path, "x.npz", **arrays), "ids", once="image")
    assert str(tmp_path / "x.npz") in str(error.value)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("ending", ["npy", "npz", "parquet"])
@pytest.mark.parametrize(
    "content", [b"<!DOCTYPE html><html>log in</html>", b"version https://git-lfs.github.com/spec/v1\n"]
)
def test_a_file_of_another_kind_says_what_it_is(tmp_path, ending, content):
    (tmp_path / f"x.{ending}").write_bytes(content)
    (tmp_path / "x.txt").write_text("a")
    with pytest.raises(DataError, match=r"cannot be read as .*: it is (a web page|the pointer of Git LFS)"):
        read_vectors(tmp_path / f"x.{ending}", "ids")


@pytest.mark.parametrize("text", ["{}", "[[1]]", "3", "["])
def test_a_json_file_that_is_no_list(tmp_path, text):
    np.save(tmp_path / "x.npy", VECTORS)
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(DataError, match=r"x\.json(: expected a list of names| is not valid JSON)"):
        read_vectors(tmp_path / "x.npy", "ids")


@pytest.mark.parametrize("ending", ["pt", "pth", "safetensors", "h5", "hdf5", "index", "faiss", "pkl", "mat", "csv"])
def test_what_is_not_read_is_named_with_the_lines_that_convert_it(ending):
    lines = conversion(Path(f"folder/text_emb.{ending}"))
    assert lines is not None
    assert f"'text_emb.{ending}'" in lines
    assert "np.savez('text_emb.npz', texts=" in lines
    with pytest.raises(DataError, match=r"expected a \.npz, \.npy, \.parquet file; convert it: .*ids="):
        read_vectors(Path(f"x.{ending}"), "ids")


@pytest.mark.parametrize("ending", ["npz", "npy", "parquet", "jpg", "toml"])
def test_what_needs_no_conversion(ending):
    assert conversion(Path(f"x.{ending}")) is None


def test_lines_that_convert_do(tmp_path, monkeypatch, subtests):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    torch.save(dict(zip(IDS, torch.from_numpy(VECTORS), strict=True)), "x.pt")
    pd.DataFrame(VECTORS, index=IDS).to_csv("y.csv")
    pd.to_pickle(dict(zip(IDS, VECTORS, strict=True)), "z.pkl")
    modules = {"np": np, "pandas": pd, "torch": torch}
    exec(conversion(Path("y.csv")) or "", dict(modules))
    exec(conversion(Path("z.pkl")) or "", dict(modules))
    of_dict = (conversion(Path("x.pt")) or "").partition("; of a dict of names and vectors, ")[2]
    exec(f"d = torch.load('x.pt'); np.savez('x.npz', {of_dict})", dict(modules))
    for name in "xyz":
        with subtests.test(name=name):
            names, vectors = read_vectors(Path(f"{name}.npz"), "ids")
            assert names == IDS, name
            np.testing.assert_array_equal(vectors, VECTORS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_read_only_map_gives_the_same_numbers_and_is_left_alone(tmp_path, layout):
    """As `np.load(..., mmap_mode="r")` returns it to somebody who mines with arrays."""
    np.save(tmp_path / "x.npy", LAYOUTS[layout])
    stored = (tmp_path / "x.npy").read_bytes()
    floats = as_floats(np.load(tmp_path / "x.npy", mmap_mode="r"), "x")
    np.testing.assert_array_equal(floats, LAYOUTS[layout].astype(np.float64))
    floats[0] = 7
    assert (tmp_path / "x.npy").read_bytes() == stored
