"""`negbench mine`: from input files to an output file, and one-line errors for faulty files."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from negbench.cli.main import run as negbench
from negbench.errors import OptionError
from negbench.own.miner import Miner

Q, N, D = 20, 30, 6


def known_of(targets: Any) -> dict[str, list[list[int]]]:
    """Return the images to leave out and the other relevant ones of each query."""
    relevant = [[int(t + 2) % N] if t % 2 else [] for t in targets]
    return {"excluded": [[int(t + 1) % N] for t in targets], "relevant": relevant}


def cosines(folder: Path) -> Any:
    """Return the cosine of every query and every image."""
    queries, images = np.load(folder / "q.npy"), np.load(folder / "i.npy").T
    return (queries @ images) / np.linalg.norm(queries, axis=1, keepdims=True) / np.linalg.norm(images, axis=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    np.save(tmp_path / "q.npy", random.normal(size=(Q, D)).astype(np.float32))
    np.save(tmp_path / "i.npy", random.normal(size=(N, D)).astype(np.float32))
    targets = random.integers(N, size=Q)
    np.save(tmp_path / "t.npy", targets)
    pd.DataFrame({"target": targets, **known_of(targets)}).to_parquet(tmp_path / "t.parquet")
    return tmp_path


def _command(folder: Path, **flags: object) -> list[str]:
    given = {"queries": folder / "q.npy", "images": folder / "i.npy", "targets": folder / "t.npy"}
    options: dict[str, object] = {**given, "strategy": "simans:k=9", "draws": 5, "out": folder / "out.parquet", **flags}
    return ["mine", *(word for name, value in options.items() for word in (f"--{name}", str(value)))]


@pytest.mark.parametrize("targets", ["t.npy", "t.parquet"])
def test_writes_what_the_miner_finds(folder, targets, capsys):
    assert negbench(_command(folder, targets=folder / targets, seed=3, refresh=1)) == 0
    out = capsys.readouterr().out
    assert "20 queries, 5 negatives each, from pools of" in out
    assert f"wrote {folder / 'out.parquet'}" in out
    columns = np.load(folder / "t.npy")
    known = {} if targets == "t.npy" else known_of(columns)
    want = Miner("simans:k=9", draws=5, seed=3, refreshes=1).refresh(
        np.load(folder / "q.npy"), np.load(folder / "i.npy"), columns, **known
    )
    frame = pd.read_parquet(folder / "out.parquet")
    assert frame["target"].tolist() == columns.tolist()
    assert [list(row) for row in frame["negatives"]] == want.negatives.tolist()
    assert frame["fallback"].tolist() == want.fallback.tolist()
    rates = frame["false_negative_rate_pool"].notna()
    assert rates.any() == (targets != "t.npy")
    assert not rates.all()
    out = folder / "out.jsonl"
    assert negbench(_command(folder, targets=folder / targets, out=out)) == 0
    assert not {"false_negative_rate_pool", "false_negative_rate_draws", "overlap"} & {*pd.read_json(out, lines=True)}


def test_formats_hold_the_same_negatives_each_once(folder, capsys, refused):
    """Six draws from a pool of four repeat; every format lists each negative once, with its cosine."""
    cosine, targets = cosines(folder), np.load(folder / "t.npy")
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
    assert list(triplets) == ["query", "target", "fallback", "negative", "score"]
    assert triplets.groupby("query")["negative"].agg(list).tolist() == [list(row) for row in frame["negatives"]]
    assert triplets["score"].to_numpy() == pytest.approx(cosine[triplets["query"], triplets["negative"]], abs=1e-6)
    refused(
        _command(folder, strategy="top-k:k=4", draws=6, format="sentence-transformers", out=out),
        "no query has 6 different negatives without a fallback: lower --draws",
    )
    assert negbench(_command(folder, strategy="top-k:k=4", draws=2, format="sentence-transformers", out=out)) == 0
    pairs = pd.read_json(out, lines=True)
    assert list(pairs) == ["anchor", "positive", "negative_1", "negative_2", "score"]
    columns = pairs[["positive", "negative_1", "negative_2"]].to_numpy()
    assert np.array(pairs["score"].tolist()) == pytest.approx(np.take_along_axis(cosine, columns, 1), abs=1e-6)


def test_the_command_of_the_page_on_other_trainers(folder):
    page = Path(__file__).parents[2] / "docs" / "howto" / "other_trainers.md"
    (line,) = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("negbench mine --q")]
    files = ("q.npy", "i.npy", "t.npy", "pairs.jsonl")
    command = [str(folder / word) if word in files else word for word in line.split()[1:]]
    assert negbench([*command, "--draws", "1"]) == 0
    assert list(pd.read_json(folder / "pairs.jsonl", lines=True)) == ["anchor", "positive", "negative_1", "score"]


def test_dot_products(folder):
    assert negbench([*_command(folder, strategy="top-k:k=1", draws=1), "--dot"]) == 0
    scores = np.load(folder / "q.npy") @ np.load(folder / "i.npy").T
    scores[np.arange(Q), np.load(folder / "t.npy")] = -np.inf
    assert [row[0] for row in pd.read_parquet(folder / "out.parquet")["negatives"]] == scores.argmax(1).tolist()


MISTAKES = [
    ("queries", "pickled.npy", "cannot be read"),
    ("queries", "text.npy", "cannot be read"),
    ("queries", "several.npz", "has no 'features', only 'a', 'b'"),
    ("images", "missing.npy", "cannot be read"),
    ("images", "words.npy", "image_embeddings must be convertible"),
    ("targets", "q.npy", "--targets"),
    ("targets", "text.parquet", "cannot be read"),
    ("targets", "goal.parquet", "no column 'target' among goal"),
    ("targets", "list.parquet", "row 1, column 'excluded': expected a list, got 'one'"),
    ("strategy", "in-batch", "chooses among the members of a batch"),
    ("draws", "0", "--draws 0: input should be greater"),
    ("draws", "1000000000", "--draws 1000000000: input should be less"),
    ("out", "negatives.csv", "--out 'negatives.csv': must end in .parquet"),
    ("format", "jsonl", "--format jsonl needs an --out that ends in .jsonl"),
    ("format", "flagembedding", "--format flagembedding needs an --out that ends in .jsonl"),
    ("device", "gpu9", "--device gpu9"),
    ("device", "meta", "--device meta: it holds no numbers"),
    ("refresh", "99999999999999999999", "--refresh 99999999999999999999: input should be less"),
    ("set", "mining.bogus=1", "unknown setting 'mining.bogus'"),
    ("set", "train.lr=1", "unknown setting 'train.lr' in mining from embeddings in files"),
    ("set", "mining.exclude_relevant=true", "relevant: no `relevant`, nor equal queries"),
    ("split", "val", "--queries gives embeddings: leave out --split"),
    ("device", "cuda", "--device cuda"),
]


def test_mistakes_are_one_line(folder, refused):
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


@pytest.mark.parametrize("cell", [[True, False], ["1"], [3.9], "12", b"12", [[1]]])
def test_rows_are_whole_numbers_and_nothing_else(folder, cell, refused):
    cells = [cell] * Q
    pd.DataFrame({"target": np.load(folder / "t.npy"), "excluded": cells}).to_parquet(folder / "t.parquet")
    refused(_command(folder, targets=folder / "t.parquet"), "excluded")
    with pytest.raises(OptionError, match="relevant: query 0 must list rows"):
        Miner("qure").refresh(np.eye(Q), np.eye(Q), np.arange(Q), relevant=cells)


def test_filters_apply_to_embeddings_in_files(folder, capsys):
    """Known relevant images and those above s+ - margin are never drawn; without filters the share is printed."""
    table = pd.read_parquet(folder / "t.parquet")
    arguments = _command(folder, strategy="all-corpus", draws=N, targets=folder / "t.parquet")
    assert negbench(arguments) == 0
    assert "of the draws are known to be relevant: leave them out with --set" in capsys.readouterr().err
    known = [{int(each) for each in row} for row in table["relevant"]]
    drawn = [set(row) for row in pd.read_parquet(folder / "out.parquet")["negatives"]]
    assert any(one & other for one, other in zip(known, drawn, strict=True))
    assert negbench([*arguments, "--set", "mining.exclude_relevant=true", "--set", "mining.margin=0.1"]) == 0
    assert "known to be relevant" not in capsys.readouterr().err
    cosine, frame = cosines(folder), pd.read_parquet(folder / "out.parquet")
    for query, target in enumerate(table["target"]):
        out = {target, *known[query], *table["excluded"][query]}
        want = {j for j in range(N) if j not in out and cosine[query, j] <= cosine[query, target] - 0.1}
        if want:
            assert set(frame["negatives"][query]) == want


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_ids_and_rows_of_named_embeddings_give_the_same_negatives(folder, ending, refused):
    """Files as `embed` writes them, and parquet; ids may be written with either separator."""
    images, rows = np.load(folder / "i.npy"), np.load(folder / "t.npy")
    ids, named = [f"img\\{row}.jpg" for row in range(N)], folder / f"images.{ending}"
    if ending == "npz":
        np.savez(named, ids=np.array(ids), features=images)
    else:
        pd.DataFrame({"id": ids, "vector": list(images)}).to_parquet(named)
    assert negbench(_command(folder)) == 0
    by_row = pd.read_parquet(folder / "out.parquet")
    assert negbench(_command(folder, images=named)) == 0
    of_names = pd.read_parquet(folder / "out.parquet")
    pd.DataFrame({"target": [f"img/{row}.jpg" for row in rows]}).to_parquet(folder / "names.parquet")
    assert negbench(_command(folder, images=named, targets=folder / "names.parquet")) == 0
    by_id = pd.read_parquet(folder / "out.parquet")
    assert by_id["negatives"].map(list).tolist() == [[ids[c] for c in row] for row in by_row["negatives"]]
    assert by_id["target"].tolist() == [ids[row] for row in rows]  # as the file of images writes them
    assert of_names[["target", "scores"]].astype(str).equals(by_id[["target", "scores"]].astype(str))
    np.savez(folder / "q.npz", texts=np.array([f"in red {n}" for n in range(Q)]), features=np.load(folder / "q.npy"))
    out = folder / "out.jsonl"
    assert negbench(_command(folder, queries=folder / "q.npz", images=named, format="flagembedding", out=out)) == 0
    lines = pd.read_json(out, lines=True)
    assert [*lines] == ["query", "pos", "neg", "pos_scores", "neg_scores"]
    assert lines["query"].tolist() == [f"in red {row}" for row in range(Q)]
    assert lines["pos"].tolist() == [[ids[row]] for row in rows]
    assert lines["neg"].tolist() == by_id["negatives"].map(list).tolist()
    for name, want in (("pos_scores", by_id["positive"].map(lambda score: [score])), ("neg_scores", by_id["scores"])):
        assert np.array(lines[name].tolist()) == pytest.approx(np.array(want.tolist()), abs=1e-6)
    np.save(folder / "names.npy", np.array(["other.jpg"] * Q))
    message = "names.npy: row 1, column 'target': 'other.jpg' is not in " + str(named)
    assert f"its ids are like {ids[0]!r}" in refused(
        _command(folder, images=named, targets=folder / "names.npy"), message
    )


CELLS = [
    ("a.parquet", "b.jpg", "row 2, column 'relevant': expected a list, got 'b.jpg'"),
    ("a.jsonl", "b.jpg", "line 2, column 'relevant': expected a list, got 'b.jpg'"),
    ("a.csv", "b.jpg|c.jpg", "line 3, column 'relevant': 'b.jpg|c.jpg' is 2 images with '|' between: write a list"),
    ("a.jsonl", ["b.jpg, c.jpg"], "column 'relevant': 'b.jpg, c.jpg' is 2 images with ',' between: write a list, or"),
    ("a.csv", "z.jpg", "column 'relevant': 'z.jpg' is not in"),
    ("a.csv", "b.jpg/c.jpg", "column 'relevant': 'b.jpg/c.jpg' is 2 images with '/' between"),
    ("a.csv", "['b.jpg' 'c.jpg']", "column 'relevant': expected a list, got \"['b.jpg' 'c.jpg']\""),
    ("a.jsonl", {"b.jpg": 1}, "column 'relevant': expected a list"),
]


@pytest.fixture
def copied(folder: Path) -> Path:
    """Four images, c.jpg equal to a.jpg; two equal queries, whose targets are a.jpg and b.jpg."""
    images = np.array([[1, 0.1], [0.9, 0.3], [1, 0.1], [0, 1]], dtype=np.float32)
    np.savez(folder / "i.npz", ids=np.array(["a.jpg", "b.jpg", "c.jpg", "d.jpg"]), features=images)
    np.save(folder / "q.npy", np.array([[1, 0], [1, 0]], dtype=np.float32))
    return folder


def _cells(folder: Path, name: str, cell: Any) -> list[str]:
    frame = pd.DataFrame({"target": ["a.jpg", "b.jpg"], "relevant": [None, cell]})
    if name.endswith("parquet"):
        frame.to_parquet(folder / name)
    else:
        cells = frame.to_csv(index=False, sep="\t" if name.endswith("tsv") else ",")
        (folder / name).write_text(cells if name.endswith("sv") else frame.to_json(orient="records", lines=True))
    return _command(folder, images=folder / "i.npz", targets=folder / name, strategy="all-corpus", draws=4)


def test_a_cell_that_is_no_list_is_named(copied, refused):
    for name, cell, message in CELLS:
        refused(_cells(copied, name, cell), message)


def test_numbers_are_rows_or_ids_and_never_silently_the_other(folder, refused):
    """Of images without ids, texts of rows; of ids that are numbers, ids; what may be either is refused."""
    for cells, want in (("3;5", [3, 5]), ("[3, 5]", [3, 5]), ("3.0", [3])):
        pd.DataFrame({"target": [0] * Q, "excluded": cells}).to_csv(folder / "t.csv", index=False)
        assert negbench(_command(folder, targets=folder / "t.csv", strategy="all-corpus", draws=N)) == 0
        drawn = pd.read_parquet(folder / "out.parquet")["negatives"][0]
        assert set(drawn) == {*range(1, N)} - {*want}
    for first, ids in ((100, "{}"), (100, "{:06}"), (1, "{}")):
        names = [ids.format(first + row) for row in range(N)]
        np.savez(folder / "i.npz", ids=np.array(names), features=np.load(folder / "i.npy"))
        np.save(folder / "t.npy", np.full(Q, first + 3))
        arguments = _command(folder, images=folder / "i.npz")
        if first == 1:
            refused(arguments, "row 1, column 'target': 4 is a row and the id of another: write ids as texts")
        else:
            assert negbench(arguments) == 0
            assert {*pd.read_parquet(folder / "out.parquet")["target"]} == {names[3]}


@pytest.mark.parametrize(
    ("name", "cell"),
    [("a.csv", "c.jpg;b"), ("a.tsv", "('c.jpg', 'b.jpg')"), ("a.parquet", "['c.jpg']"), ("a.jsonl", ["./x/c.PNG"])],
)
def test_lists_copies_and_equal_queries(copied, name, cell, capsys):
    """Equal queries answer each other; a copy of a target is told of, and left out by its cosine."""
    arguments = _cells(copied, name, cell)
    assert negbench(arguments) == 0
    printed = capsys.readouterr()
    assert "1 of 2 targets have the same embedding as another image" in printed.err
    assert "from pools of 3 images in the middle (quartiles 3 and 3) of 4" in printed.out
    for setting, drawn in (
        ("exclude_relevant=true", [["d.jpg"]] * 2),
        ("max_target=0.999", [["b.jpg", "d.jpg"], None]),
    ):
        assert negbench([*arguments, "--set", f"mining.{setting}"]) == 0
        frame = pd.read_parquet(copied / "out.parquet")
        for got, want in zip(frame["negatives"], drawn, strict=True):
            assert want is None or sorted(got) == want
    assert frame["false_negative_rate_pool"].tolist() == pytest.approx([1 / 2, 2 / 3])
    assert negbench([*arguments, "--out", str(copied / "n.jsonl")]) == 0
    assert "false_negative_rate_pool" not in pd.read_json(copied / "n.jsonl", lines=True)  # another file may lack it


def test_queries_that_fell_back_are_left_out_or_marked(folder, capsys):
    out = folder / "out.jsonl"
    arguments = _command(folder, strategy="margin-pos:k=3", draws=1, out=out)
    assert negbench(arguments) == 0
    frame = pd.read_json(out, lines=True)
    fell = frame["fallback"] > 0
    assert 0 < fell.sum() < Q
    assert "overlap" not in frame
    assert negbench([*arguments, "--format", "triplets"]) == 0
    assert pd.read_json(out, lines=True).groupby("query")["fallback"].first().tolist() == frame["fallback"].tolist()
    capsys.readouterr()
    assert negbench([*arguments, "--format", "sentence-transformers"]) == 0
    assert pd.read_json(out, lines=True)["anchor"].tolist() == frame["query"][~fell].tolist()
    assert negbench([*arguments, "--format", "flagembedding"]) == 0
    assert pd.read_json(out, lines=True)["query"].tolist() == frame["query"][~fell].tolist()
    assert f"note: {fell.sum()} queries ({100 * fell.mean():.0f} %) fell back or have fewer" in capsys.readouterr().err
