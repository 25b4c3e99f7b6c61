"""`negbench mine`: from input files to an output file, and one-line errors for faulty files."""

from __future__ import annotations

from collections.abc import Callable
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
    lists = {
        "excluded": [[int(t + 1) % N] for t in targets],
        "relevant": [[int(t + 2) % N] if t % 2 else [] for t in targets],
    }
    pd.DataFrame({"target": targets, **lists}).to_parquet(tmp_path / "t.parquet")
    return tmp_path


def _command(folder: Path, **flags: object) -> list[str]:
    given = {"queries": folder / "q.npy", "images": folder / "i.npy", "targets": folder / "t.npy"}
    options: dict[str, object] = {**given, "strategy": "simans:k=9", "draws": 5, "out": folder / "out.parquet", **flags}
    return ["mine", *(word for name, value in options.items() for word in (f"--{name}", str(value)))]


@pytest.mark.parametrize("targets", ["t.npy", "t.parquet"])
def test_writes_what_the_miner_finds(folder: Path, targets: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert negbench(_command(folder, targets=folder / targets, seed=3, refresh=1)) == 0
    out = capsys.readouterr().out
    assert "20 queries, 5 negatives each, from pools of" in out
    assert f"wrote {folder / 'out.parquet'}" in out
    columns = np.load(folder / "t.npy")
    known: dict[str, Any] = {}
    if targets != "t.npy":
        known["excluded"] = [[int(t + 1) % N] for t in columns]
        known["relevant"] = [[int(t + 2) % N] if t % 2 else [] for t in columns]
    want = Miner("simans:k=9", draws=5, seed=3, refreshes=1).refresh(
        np.load(folder / "q.npy"), np.load(folder / "i.npy"), columns, **known
    )
    frame = pd.read_parquet(folder / "out.parquet")
    assert frame["target"].tolist() == columns.tolist()
    assert [list(row) for row in frame["negatives"]] == want.negatives.tolist()
    assert frame["fallback"].tolist() == want.fallback.tolist()
    assert frame["false_negative_rate_pool"].notna().any() == (targets != "t.npy")


def test_formats_hold_the_same_negatives_each_once(
    folder: Path, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    """Six draws from a pool of four repeat; every format lists each negative once, with its cosine."""
    queries, images = (np.load(folder / name) for name in ("q.npy", "i.npy"))
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (queries, images)]
    cosine, targets = unit[0] @ unit[1].T, np.load(folder / "t.npy")
    assert negbench(_command(folder, strategy="top-k:k=4", draws=6)) == 0
    assert "6 negatives each (20 queries have fewer: their pools are smaller)" in capsys.readouterr().out
    frame = pd.read_parquet(folder / "out.parquet")
    row: Any
    for row in frame.itertuples():
        others = np.delete(cosine[row.query], targets[row.query])
        assert len(set(row.negatives)) == len(row.negatives) == 4
        assert sorted(row.scores) == pytest.approx(np.sort(others)[-4:], abs=1e-6)
        assert row.scores == pytest.approx(cosine[row.query, row.negatives], abs=1e-6)
    out = folder / "out.jsonl"
    assert negbench(_command(folder, strategy="top-k:k=4", draws=6, format="triplets", out=out)) == 0
    triplets = pd.read_json(out, lines=True)
    assert list(triplets) == ["query", "target", "negative", "score"]
    assert triplets.groupby("query")["negative"].agg(list).tolist() == [list(row) for row in frame["negatives"]]
    assert triplets["score"].to_numpy() == pytest.approx(cosine[triplets["query"], triplets["negative"]], abs=1e-6)
    refused(
        _command(folder, strategy="top-k:k=4", draws=6, format="sentence-transformers", out=out),
        "no query has 6 different negatives: lower --draws",
    )
    assert negbench(_command(folder, strategy="top-k:k=4", draws=2, format="sentence-transformers", out=out)) == 0
    pairs = pd.read_json(out, lines=True)
    assert list(pairs) == ["anchor", "positive", "negative_1", "negative_2", "score"]
    columns = pairs[["positive", "negative_1", "negative_2"]].to_numpy()
    assert np.array(pairs["score"].tolist()) == pytest.approx(np.take_along_axis(cosine, columns, 1), abs=1e-6)


def test_the_command_of_the_page_on_other_trainers(folder: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "howto" / "other_trainers.md"
    (line,) = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("negbench mine --q")]
    files = ("q.npy", "i.npy", "t.npy", "pairs.jsonl")
    command = [str(folder / word) if word in files else word for word in line.split()[1:]]
    assert negbench([*command, "--draws", "1"]) == 0
    assert list(pd.read_json(folder / "pairs.jsonl", lines=True)) == ["anchor", "positive", "negative_1", "score"]


def test_dot_products(folder: Path) -> None:
    assert negbench([*_command(folder, strategy="top-k:k=1", draws=1), "--dot"]) == 0
    scores = np.load(folder / "q.npy") @ np.load(folder / "i.npy").T
    scores[np.arange(Q), np.load(folder / "t.npy")] = -np.inf
    assert [row[0] for row in pd.read_parquet(folder / "out.parquet")["negatives"]] == scores.argmax(1).tolist()


MISTAKES = [
    ("queries", "pickled.npy", "cannot be read as .npy"),
    ("queries", "text.npy", "cannot be read as .npy"),
    ("queries", "several.npz", "holds several arrays"),
    ("images", "missing.npy", "cannot be read as .npy"),
    ("images", "words.npy", "image_embeddings must be convertible"),
    ("targets", "q.npy", "--targets"),
    ("targets", "text.parquet", "cannot be read"),
    ("targets", "goal.parquet", "no column 'target' among goal"),
    ("targets", "list.parquet", "cannot be read"),
    ("strategy", "in-batch", "chooses among the members of a batch"),
    ("strategy", "qrue", "did you mean 'qure'"),
    ("draws", "0", "--draws 0: input should be greater"),
    ("draws", "1000000000", "--draws 1000000000: input should be less"),
    ("out", "negatives.csv", "--out 'negatives.csv': must end in .parquet"),
    ("format", "jsonl", "--format jsonl needs an --out that ends in .jsonl"),
    ("device", "gpu9", "--device gpu9"),
    *([] if torch.cuda.is_available() else [("device", "cuda", "--device cuda")]),
]


def test_mistakes_are_one_line(folder: Path, refused: Callable[..., str]) -> None:
    targets = np.load(folder / "t.npy")
    np.save(folder / "words.npy", np.array(["a"] * Q))
    np.save(folder / "pickled.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez(folder / "several.npz", a=targets, b=targets)
    for name in ("text.npy", "text.parquet"):
        (folder / name).write_text("neither array nor table")
    pd.DataFrame({"goal": targets}).to_parquet(folder / "goal.parquet")
    pd.DataFrame({"target": targets, "excluded": ["one"] * Q}).to_parquet(folder / "list.parquet")
    for flag, value, message in MISTAKES:
        given = folder / value if flag in ("queries", "images", "targets") else value
        refused(_command(folder, **{flag: given}), message)
        assert not (folder / "out.parquet").exists()
