"""`negbench mine`: from input files to an output file, and one-line errors for faulty files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from negbench.errors import OptionError
from negbench.own.miner import Miner

Q, N, D = 20, 30, 6


def lists_of_images(targets: Any) -> dict[str, list[list[int]]]:
    """Return the images to leave out and the other relevant ones of each query."""
    excluded = [[int(target + 1) % N] for target in targets]
    relevant = [[int(target + 2) % N] if target % 2 else [] for target in targets]
    return {"excluded": excluded, "relevant": relevant}


def cosines(folder: Path) -> Any:
    """Return the cosine of every query and every image."""
    queries = np.load(folder / "q.npy")
    images = np.load(folder / "i.npy")
    unit_queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    unit_images = images / np.linalg.norm(images, axis=1, keepdims=True)
    return unit_queries @ unit_images.T


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    np.save(tmp_path / "q.npy", random.normal(size=(Q, D)).astype(np.float32))
    np.save(tmp_path / "i.npy", random.normal(size=(N, D)).astype(np.float32))
    targets = random.integers(N, size=Q)
    np.save(tmp_path / "t.npy", targets)
    pd.DataFrame({"target": targets, **lists_of_images(targets)}).to_parquet(tmp_path / "t.parquet")
    return tmp_path


def _command(folder: Path, **flags: object) -> list[str]:
    options: dict[str, object] = {
        "queries": folder / "q.npy",
        "images": folder / "i.npy",
        "targets": folder / "t.npy",
        "strategy": "simans:k=9",
        "draws": 5,
        "out": folder / "out.parquet",
        **flags,
    }
    words = ["mine"]
    for name, value in options.items():
        words += [f"--{name}", str(value)]
    return words


@pytest.fixture
def mine(folder: Path, run_command: Callable[..., Any]) -> Callable[..., tuple[pd.DataFrame, str]]:
    """Return a function that mines with these flags, and returns the table that it wrote and what it printed."""

    def mine(*words: str, **flags: object) -> tuple[pd.DataFrame, str]:
        out = Path(str(flags.setdefault("out", folder / ("out.jsonl" if "format" in flags else "out.parquet"))))
        printed = run_command(*_command(folder, **flags), *words)
        frame = pd.read_json(out, lines=True) if out.suffix == ".jsonl" else pd.read_parquet(out)
        return frame, printed.out + printed.err

    return mine


@pytest.mark.parametrize("targets", ["t.npy", "t.parquet"])
def test_writes_what_the_miner_finds(folder, mine, targets):
    frame, text = mine(targets=folder / targets, seed=3, refresh=1)
    assert "20 queries, 5 negatives each, from pools of" in text
    assert f"wrote {folder / 'out.parquet'}" in text
    columns = np.load(folder / "t.npy")
    lists = {} if targets == "t.npy" else lists_of_images(columns)
    queries = np.load(folder / "q.npy")
    images = np.load(folder / "i.npy")
    want = Miner("simans:k=9", draws=5, seed=3, refreshes=1).refresh(queries, images, columns, **lists)
    assert frame["target"].tolist() == columns.tolist()
    assert [list(row) for row in frame["negatives"]] == want.negatives.tolist()
    assert frame["fallback"].tolist() == want.fallback.tolist()
    rates = frame["false_negative_rate_pool"].notna()
    assert rates.any() == (targets != "t.npy")
    assert not rates.all()
    lines, _ = mine(targets=folder / targets, out=folder / "out.jsonl")
    assert not {"false_negative_rate_pool", "false_negative_rate_draws", "overlap"} & {*lines}


def test_formats_hold_the_same_negatives_each_once(folder, mine, expect_error):
    """Six draws from a pool of four repeat; every format lists each negative once, with its cosine."""
    cosine = cosines(folder)
    targets = np.load(folder / "t.npy")
    frame, text = mine(strategy="top-k:k=4", draws=6)
    assert "6 negatives each (20 queries have fewer: their pools are smaller)" in text
    row: Any
    for row in frame.itertuples():
        others = np.delete(cosine[row.query], targets[row.query])
        assert len(set(row.negatives)) == len(row.negatives) == 4, row
        assert sorted(row.scores) == pytest.approx(np.sort(others)[-4:], abs=1e-6), row
        assert row.scores == pytest.approx(cosine[row.query, row.negatives], abs=1e-6), row
    triplets, _ = mine(strategy="top-k:k=4", draws=6, format="triplets")
    assert list(triplets) == ["query", "target", "fallback", "negative", "score"]
    assert triplets.groupby("query")["negative"].agg(list).tolist() == [list(row) for row in frame["negatives"]]
    assert triplets["score"].to_numpy() == pytest.approx(cosine[triplets["query"], triplets["negative"]], abs=1e-6)
    expect_error(
        _command(folder, strategy="top-k:k=4", draws=6, format="sentence-transformers", out=folder / "out.jsonl"),
        "no query has 6 different negatives without a fallback: lower --draws",
    )
    pairs, _ = mine(strategy="top-k:k=4", draws=2, format="sentence-transformers")
    assert list(pairs) == ["anchor", "positive", "negative_1", "negative_2", "score"]
    columns = pairs[["positive", "negative_1", "negative_2"]].to_numpy()
    assert np.array(pairs["score"].tolist()) == pytest.approx(np.take_along_axis(cosine, columns, 1), abs=1e-6)


def test_the_command_of_the_page_on_other_trainers(folder, run_command):
    page = Path(__file__).parents[2] / "docs" / "howto" / "other_trainers.md"
    (line,) = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("negbench mine --q")]
    files = ("q.npy", "i.npy", "t.npy", "pairs.jsonl")
    command = [str(folder / word) if word in files else word for word in line.split()[1:]]
    run_command(*command, "--draws", "1")
    assert list(pd.read_json(folder / "pairs.jsonl", lines=True)) == ["anchor", "positive", "negative_1", "score"]


def test_dot_products(folder, mine):
    frame, printed = mine("--dot", "--json", strategy="top-k:k=1", draws=1)
    document, _ = json.JSONDecoder().raw_decode(printed)  # notes follow
    assert (document["queries"], document["pool_size"]) == (Q, 1)
    scores = np.load(folder / "q.npy") @ np.load(folder / "i.npy").T
    scores[np.arange(Q), np.load(folder / "t.npy")] = -np.inf
    assert [row[0] for row in frame["negatives"]] == scores.argmax(1).tolist()


def test_mistakes_are_one_line(subtests, folder, expect_error, mistakes):
    targets = np.load(folder / "t.npy")
    np.save(folder / "words.npy", np.array(["a"] * Q))
    np.save(folder / "pickled.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez(folder / "several.npz", a=targets, b=targets)
    for name in ("text.npy", "text.parquet"):
        (folder / name).write_text("neither array nor table")
    pd.DataFrame({"goal": targets}).to_parquet(folder / "goal.parquet")
    pd.DataFrame({"target": targets, "excluded": ["one"] * Q}).to_parquet(folder / "list.parquet")
    for flag_and_value, message in mistakes["mine"].items():
        with subtests.test(flag_and_value):
            flag, text = flag_and_value.split()
            value = folder / text if flag in ("queries", "images", "targets") else text
            expect_error(_command(folder, **{flag: value}), message)
            assert not (folder / "out.parquet").exists()


@pytest.mark.parametrize("cell", [[True, False], ["1"], [3.9], "12", b"12", [[1]]])
def test_rows_are_whole_numbers_and_nothing_else(folder, cell, expect_error):
    cells = [cell] * Q
    pd.DataFrame({"target": np.load(folder / "t.npy"), "excluded": cells}).to_parquet(folder / "t.parquet")
    expect_error(_command(folder, targets=folder / "t.parquet"), "excluded")
    with pytest.raises(OptionError, match="relevant: query 0 must list rows"):
        Miner("qure").refresh(np.eye(Q), np.eye(Q), np.arange(Q), relevant=cells)


def test_filters_apply_to_embeddings_in_files(folder, mine):
    """Known relevant images and those above s+ - margin are never drawn; without filters the share is printed."""
    table = pd.read_parquet(folder / "t.parquet")
    flags: dict[str, Any] = {"strategy": "all-corpus", "draws": N, "targets": folder / "t.parquet"}
    frame, text = mine(**flags)
    assert "of the draws are known to be relevant: leave them out with --set" in text
    relevant = [set(map(int, images)) for images in table["relevant"]]
    assert any(images & set(drawn) for images, drawn in zip(relevant, frame["negatives"], strict=True))
    frame, text = mine("--set", "mining.exclude_relevant=true", "--set", "mining.margin=0.1", **flags)
    assert "known to be relevant" not in text
    cosine = cosines(folder)
    for query, target in enumerate(table["target"]):
        left_out = {target, *relevant[query], *table["excluded"][query]}
        within = np.flatnonzero(cosine[query] <= cosine[query, target] - 0.1)
        pool = set(within.tolist()) - left_out
        if pool:
            assert set(frame["negatives"][query]) == pool, f"query {query}"


IDS = [f"img\\{row}.jpg" for row in range(N)]


@pytest.fixture(params=["npz", "parquet"])
def images_with_ids(request: pytest.FixtureRequest, folder: Path) -> Path:
    """Write the images with `IDS`: in a file as `embed` writes it, and as parquet."""
    path = folder / f"images.{request.param}"
    images = np.load(folder / "i.npy")
    if request.param == "npz":
        np.savez(path, ids=np.array(IDS), features=images)
    else:
        pd.DataFrame({"id": IDS, "vector": list(images)}).to_parquet(path)
    return path


@pytest.fixture
def ids_of_targets(folder: Path) -> list[str]:
    """Return the targets' ids with the other separator."""
    return [f"img/{row}.jpg" for row in np.load(folder / "t.npy")]


def test_ids_and_rows_give_the_same_negatives(folder, mine, images_with_ids, ids_of_targets):
    """Ids may be written with either separator, in a table or as lines."""
    pd.DataFrame({"target": ids_of_targets}).to_parquet(folder / "ids.parquet")
    by_id, _ = mine(images=images_with_ids, targets=folder / "ids.parquet")
    by_row, _ = mine()
    assert by_id["negatives"].map(list).tolist() == [[IDS[column] for column in row] for row in by_row["negatives"]]
    assert by_id["target"].tolist() == [IDS[row] for row in np.load(folder / "t.npy")]  # as the file of images has it
    by_row_of_ids, _ = mine(images=images_with_ids)
    assert by_row_of_ids[["target", "scores"]].astype(str).equals(by_id[["target", "scores"]].astype(str))
    (folder / "ids.txt").write_text("\ufeff" + "\r\n".join(ids_of_targets) + "\n\n")
    by_line, _ = mine(images=images_with_ids, targets=folder / "ids.txt")
    assert by_line.equals(by_id)


def test_a_table_for_flagembedding_has_texts_and_ids(subtests, folder, mine, images_with_ids, ids_of_targets):
    texts = [f"in red {row}" for row in range(Q)]
    np.savez(folder / "q.npz", texts=np.array(texts), features=np.load(folder / "q.npy"))
    lines, _ = mine(queries=folder / "q.npz", images=images_with_ids, format="flagembedding")
    assert [*lines] == ["query", "pos", "neg", "pos_scores", "neg_scores"]
    assert lines["query"].tolist() == texts
    assert lines["pos"].tolist() == [[IDS[row]] for row in np.load(folder / "t.npy")]
    pd.DataFrame({"target": ids_of_targets}).to_parquet(folder / "ids.parquet")
    by_id, _ = mine(images=images_with_ids, targets=folder / "ids.parquet")
    assert lines["neg"].tolist() == by_id["negatives"].map(list).tolist()
    for name, want in (("pos_scores", by_id[["positive"]].to_numpy()), ("neg_scores", np.stack(by_id["scores"]))):
        with subtests.test(name=name):
            assert np.array(lines[name].tolist()) == pytest.approx(want, abs=1e-6)


def test_a_target_that_is_no_image_is_named(folder, images_with_ids, expect_error):
    np.save(folder / "ids.npy", np.array(["other.jpg"] * Q))
    message = f"ids.npy: row 1, column 'target': 'other.jpg' is not in {images_with_ids}"
    line = expect_error(_command(folder, images=images_with_ids, targets=folder / "ids.npy"), message)
    assert f"its ids are like {IDS[0]!r}" in line


@pytest.fixture
def copied(folder: Path) -> Path:
    """Four images, c.jpg equal to a.jpg; two equal queries, whose targets are a.jpg and b.jpg."""
    images = np.array([[1, 0.1], [0.9, 0.3], [1, 0.1], [0, 1]], dtype=np.float32)
    np.savez(folder / "i.npz", ids=np.array(["a.jpg", "b.jpg", "c.jpg", "d.jpg"]), features=images)
    np.save(folder / "q.npy", np.array([[1, 0], [1, 0]], dtype=np.float32))
    return folder


def _cells(folder: Path, name: str, cell: Any) -> dict[str, Any]:
    frame = pd.DataFrame({"target": ["a.jpg", "b.jpg"], "relevant": [None, cell]})
    path = folder / name
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return {"images": folder / "i.npz", "targets": folder / name, "strategy": "all-corpus", "draws": 4}


def test_a_cell_that_is_no_list_is_named(copied, expect_error, mistakes, subtests):
    for case in mistakes["cells"]:
        with subtests.test(case["message"]):
            expect_error(_command(copied, **_cells(copied, *case["given"])), case["message"])


def test_numbers_are_rows_or_ids_and_never_silently_the_other(subtests, folder, mine, expect_error):
    """Of images without ids, texts of rows; of ids that are numbers, ids; what may be either is refused."""
    for cell, rows in (("3;5", {3, 5}), ("[3, 5]", {3, 5}), ("3.0", {3})):
        with subtests.test(cell=cell):
            pd.DataFrame({"target": [0] * Q, "excluded": cell}).to_csv(folder / "t.csv", index=False)
            frame, _ = mine(targets=folder / "t.csv", strategy="all-corpus", draws=N)
            assert set(frame["negatives"][0]) == set(range(1, N)) - rows
    for first, ids in ((100, "{}"), (100, "{:06}"), (1, "{}")):
        with subtests.test(first=first, ids=ids):
            names = [ids.format(first + row) for row in range(N)]
            np.savez(folder / "i.npz", ids=np.array(names), features=np.load(folder / "i.npy"))
            np.save(folder / "t.npy", np.full(Q, first + 3))
            if first == 1:
                message = "row 1, column 'target': 4 is a row and the id of another: write ids as texts"
                expect_error(_command(folder, images=folder / "i.npz"), message)
            else:
                assert {*mine(images=folder / "i.npz")[0]["target"]} == {names[3]}


@pytest.mark.parametrize(
    ("name", "cell"),
    [("a.csv", "c.jpg;b"), ("a.tsv", "('c.jpg', 'b.jpg')"), ("a.parquet", "['c.jpg']"), ("a.jsonl", ["./x/c.PNG"])],
)
def test_lists_copies_and_equal_queries(subtests, copied, mine, name, cell):
    """Equal queries answer each other; a copy of a target is told of, and left out by its cosine."""
    flags = _cells(copied, name, cell)
    _, text = mine(**flags)
    assert "1 of 2 targets have the same embedding as another image" in text
    assert "from pools of 3 images in the middle (quartiles 3 and 3) of 4" in text
    with subtests.test("without the other relevant ones"):
        frame, _ = mine("--set", "mining.exclude_relevant=true", **flags)
        assert [sorted(images) for images in frame["negatives"]] == [["d.jpg"], ["d.jpg"]]
    with subtests.test("without copies of the target"):
        frame, _ = mine("--set", "mining.max_target=0.999", **flags)
        first, _ = frame["negatives"]
        assert sorted(first) == ["b.jpg", "d.jpg"]
    assert frame["false_negative_rate_pool"].tolist() == pytest.approx([1 / 2, 2 / 3])


def test_queries_that_fell_back_are_left_out_or_marked(subtests, folder, mine):
    flags: dict[str, Any] = {"strategy": "margin-pos:k=3", "draws": 1, "out": folder / "out.jsonl"}
    frame, _ = mine(**flags)
    fell_back = frame["fallback"] > 0
    assert 0 < fell_back.sum() < Q
    assert "overlap" not in frame
    triplets, _ = mine(**flags, format="triplets")
    assert triplets.groupby("query")["fallback"].first().tolist() == frame["fallback"].tolist()
    for form, column in (("sentence-transformers", "anchor"), ("flagembedding", "query")):
        with subtests.test(form=form, column=column):
            lines, text = mine(**flags, format=form)
            assert lines[column].tolist() == frame["query"][~fell_back].tolist()
            assert f"note: {fell_back.sum()} queries ({100 * fell_back.mean():.0f} %) fell back or have fewer" in text
