"""`negbench mine`: files in, a file out, and one line for whatever is wrong with a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from negbench.cli.main import run as negbench
from negbench.own.miner import Miner

Q, N, D = 20, 30, 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    np.save(tmp_path / "q.npy", random.normal(size=(Q, D)).astype(np.float32))
    np.save(tmp_path / "i.npy", random.normal(size=(N, D)).astype(np.float32))
    targets = random.integers(N, size=Q)
    np.save(tmp_path / "t.npy", targets)
    np.save(tmp_path / "g.npy", np.array(["a", "b", "c"])[np.arange(N) % 3])
    lists = {
        "excluded": [[int(t + 1) % N] for t in targets],
        "relevant": [[int(t + 2) % N] if t % 2 else [] for t in targets],
    }
    pd.DataFrame({"target": targets, **lists}).to_parquet(tmp_path / "t.parquet")
    words = {name: [" ".join(map(str, row)) for row in rows] for name, rows in lists.items()}
    pd.DataFrame({"target": targets, **words}).to_csv(tmp_path / "t.csv", index=False)
    return tmp_path


def _command(folder: Path, targets: str = "t.npy", strategy: str = "simans:k=9", **flags: object) -> list[str]:
    given = {"queries": folder / "q.npy", "images": folder / "i.npy", "targets": folder / targets}
    options: dict[str, object] = {**given, "strategy": strategy, "draws": 5, "out": folder / "out.parquet", **flags}
    return ["mine", *(word for name, value in options.items() for word in (f"--{name}", str(value)))]


@pytest.mark.parametrize("targets", ["t.npy", "t.parquet", "t.csv"])
def test_writes_what_the_miner_finds(folder: Path, targets: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert negbench(_command(folder, targets, seed=3, refresh=1, groups=folder / "g.npy")) == 0
    out = capsys.readouterr().out
    assert "20 queries, 5 negatives each, from pools of" in out
    assert f"wrote {folder / 'out.parquet'}" in out
    columns = np.load(folder / "t.npy")
    known: dict[str, Any] = {}
    if targets != "t.npy":
        known["excluded"] = [[int(t + 1) % N] for t in columns]
        known["relevant"] = [[int(t + 2) % N] if t % 2 else [] for t in columns]
    want = Miner("simans:k=9", draws=5, seed=3, refreshes=1).refresh(
        np.load(folder / "q.npy"), np.load(folder / "i.npy"), columns, groups=np.arange(N) % 3, **known
    )
    frame = pd.read_parquet(folder / "out.parquet")
    assert frame["target"].tolist() == columns.tolist()
    assert [list(row) for row in frame["negatives"]] == want.negatives.tolist()
    assert want.weights is not None
    np.testing.assert_allclose(np.stack(frame["weights"].tolist()), want.weights)
    assert frame["fallback"].tolist() == want.mined.fallback.tolist()
    assert frame["false_negative_rate_pool"].notna().any() == (targets != "t.npy")


def test_dot_products(folder: Path) -> None:
    assert negbench([*_command(folder, strategy="top-k:k=1", draws=1), "--dot"]) == 0
    scores = np.load(folder / "q.npy") @ np.load(folder / "i.npy").T
    scores[np.arange(Q), np.load(folder / "t.npy")] = -np.inf
    assert [row[0] for row in pd.read_parquet(folder / "out.parquet")["negatives"]] == scores.argmax(1).tolist()


def test_works_without_mlflow_and_optuna(folder: Path) -> None:
    code = (
        "import sys; sys.modules['mlflow'] = sys.modules['optuna'] = None; "
        "from negbench.cli.main import run; sys.exit(run(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", code, *_command(folder)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "out.parquet").is_file()


def _bad(folder: Path) -> dict[str, Path]:
    """File of each kind of mistake."""
    queries, targets = np.load(folder / "q.npy"), np.load(folder / "t.npy")
    arrays = {
        "nan": np.where(np.arange(Q)[:, None] == 4, np.nan, queries),
        "narrow": queries[:, :3],
        "flat": queries[0],
        "words": np.array(["a"] * Q),
        "few": targets[:3],
        "outside": targets + N,
        "square": queries,
    }
    files = {name: folder / f"{name}.npy" for name in [*arrays, "pickled"]}
    for name, array in arrays.items():
        np.save(files[name], array)
    np.save(files["pickled"], np.array([{}], dtype=object), allow_pickle=True)
    (folder / "text.npy").write_text("no array")
    (folder / "text.parquet").write_text("no table")
    pd.DataFrame({"goal": targets}).to_csv(folder / "goal.csv", index=False)
    pd.DataFrame({"target": targets, "excluded": ["one"] * Q}).to_csv(folder / "list.csv", index=False)
    np.savez(folder / "several.npz", a=queries, b=queries)
    rest = ("text.npy", "text.parquet", "goal.csv", "list.csv", "several.npz", "missing.npy")
    return files | {name: folder / name for name in rest}


@pytest.mark.parametrize(
    ("flag", "file", "message"),
    [
        ("queries", "nan", "query_embeddings row 4 holds NaN or infinity"),
        ("queries", "narrow", "of one width D, got (20, 3) and (30, 6)"),
        ("images", "flat", "image_embeddings must be floats, [rows, width], got (6,)"),
        ("images", "words", "image_embeddings must be numbers"),
        ("queries", "pickled", "--queries"),
        ("queries", "text.npy", "cannot be read as .npy"),
        ("queries", "several.npz", "holds several arrays"),
        ("images", "missing.npy", "cannot be read as .npy"),
        ("targets", "few", "targets must be 20 whole numbers, got (3,)"),
        ("targets", "outside", "targets: query 0 names image"),
        ("targets", "square", "--targets"),
        ("targets", "text.parquet", "cannot be read"),
        ("targets", "goal.csv", "no column 'target' among goal"),
        ("targets", "list.csv", "cannot be read"),
        ("targets", "missing.npy", "cannot be read"),
        ("groups", "few", "groups must be one label for each of the 30 images"),
    ],
)
def test_bad_files_are_one_line(
    folder: Path, flag: str, file: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert negbench(_command(folder, **{flag: _bad(folder)[file]})) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (folder / "out.parquet").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"strategy": "in-batch"}, "chooses among the members of a batch"),
        ({"strategy": "qrue"}, "did you mean 'qure'"),
        ({"draws": 0}, "draws must be at least 1"),
        ({"out": "negatives.csv"}, "want a name that ends in .parquet"),
        ({"device": "gpu9"}, "--device gpu9"),
    ],
)
def test_bad_flags_are_one_line(
    folder: Path, flags: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert negbench(_command(folder, **flags)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is such a device")
def test_a_device_that_is_not_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert negbench(_command(folder, device="cuda")) == 2
    assert "--device cuda" in capsys.readouterr().err
