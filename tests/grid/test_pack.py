"""Packs: what goes in and comes out again, what is refused, and that nothing hostile is taken."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from negbench.cli.main import run as negbench
from negbench.errors import NegbenchError, RunError
from negbench.files import read_json, write_json
from negbench.grid import pack as pack_module
from negbench.grid.pack import merge, read_pack, write_pack
from negbench.testing.vectors import write_vectors

Members = dict[str, bytes]


def compare(runs: Path, sets: list[str], strategies: str, name: str = "c") -> None:
    command = ["compare", "--strategies", strategies, "--seeds", "2", "--name", name, "--runs-dir", str(runs)]
    command += ["--tracking-uri", "none", "--no-report", "--no-audit"]
    assert negbench([*command, *(part for text in sets for part in ("--set", text))]) == 0


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, vector_sets: list[str]) -> Path:
    """A comparison of three strategies, and the packs of the whole and of its halves."""
    folder = tmp_path_factory.mktemp("runs")
    for strategies, name in (("all-corpus,top-k,in-batch", "whole"), ("all-corpus,in-batch", "a"), ("top-k", "b")):
        compare(folder, [*vector_sets, "train.epochs=2"], strategies, name)
        write_pack(folder, name, folder / f"{name}.zip")
    return folder


def members_of(path: Path) -> Members:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, members: Members, *, sign: bool = True) -> Path:
    """A pack of these members; `sign`: with a manifest that fits them."""
    if sign:
        head = json.loads(members["manifest.json"])
        head["members"] = {
            name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
            for name, data in members.items()
            if name != "manifest.json"
        }
        members = {**members, "manifest.json": json.dumps(head).encode()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return path


def changed(source: Path, out: Path, ending: str, change: Callable[[Any], Any], *, sign: bool = True) -> Path:
    """The pack with the first member of this ending changed, as JSON."""
    members = members_of(source)
    name = next(name for name in sorted(members) if name.endswith(ending))
    members[name] = json.dumps(change(json.loads(members[name]))).encode()
    return write(out, members, sign=sign)


# --- there and back ------------------------------------------------------------------------------------------------


def test_a_merged_comparison_says_what_the_whole_one_says(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words_of: Callable[[Path], str]
) -> None:
    packs = [str(runs / "a.zip"), str(runs / "b.zip")]
    assert negbench(["merge", *packs, "--name", "both", "--runs-dir", str(tmp_path)]) == 0
    assert "answer" in capsys.readouterr().out
    mine, theirs = pd.read_csv(tmp_path / "both" / "table.csv"), pd.read_csv(runs / "whole" / "table.csv")
    assert set(theirs["backbone"]) == {"precomputed(images=images.npz, texts=texts.npz)"}
    same = ["strategy", "loss", "dataset", "seeds", "R@10", "R@1", "mAP@10", "negatives", "FN draws %", "verdict"]
    pd.testing.assert_frame_equal(mine[same], theirs[same])
    assert negbench(["merge", str(runs / "whole.zip"), "--name", "whole", "--runs-dir", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["comparison"] == "whole"
    for file in ("statistics.csv", "table.md", "answer.md", "regime.csv"):
        assert (tmp_path / "both" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    cells = read_json(tmp_path / "both" / "comparison.json")["cells"]
    assert {Path(cell["run"]).parts[:2] for cell in cells} == {("both", "cells")}
    assert all(Path(cell["run"]).name == cell["hash"] for cell in cells)
    assert sorted(p.name for p in (tmp_path / cells[0]["run"]).iterdir()) == [
        "SHA256SUMS", "config.json", "metrics.jsonl", "ranks.parquet", "result.json",
    ]  # fmt: skip
    page = words_of(tmp_path / "both" / "report" / "index.html")
    assert "top-k: no weights" in page
    assert "not finished" not in page
    assert negbench(["report", "both", "--runs-dir", str(tmp_path)]) == 0
    assert negbench(["merge", *packs, "--name", "both", "--runs-dir", str(tmp_path)]) == 0  # again: the same
    assert negbench(["pack", "both", "--runs-dir", str(tmp_path), "--out", str(tmp_path / "again.zip")]) == 0
    assert len(read_pack(tmp_path / "again.zip")) == 6


def test_a_pack_is_a_function_of_its_cells_and_names_no_folder(runs: Path, tmp_path: Path) -> None:
    assert write_pack(runs, "whole", tmp_path / "again.zip") == 6
    assert (tmp_path / "again.zip").read_bytes() == (runs / "whole.zip").read_bytes()
    found = members_of(runs / "whole.zip")
    assert not [name for name in found if "safetensors" in name or "npz" in name]
    config = json.loads(next(data for name, data in found.items() if name.endswith("config.json")))["config"]
    assert (config["dataset"]["file"], config["backbone"]["images"]) == ("triplets.jsonl", "images.npz")
    for name, data in found.items():
        assert str(runs.parent).encode() not in data, name


def test_what_is_no_folder_stays() -> None:
    clean = pack_module._without_places
    assert clean({"a": ["/x/y/z.npz", "https://host/x/y", "50/50 and/or", "lavis:/m/model.pth"]}) == {
        "a": ["z.npz", "https://host/x/y", "50/50 and/or", "lavis:model.pth"]
    }
    assert clean("precomputed(images=/x/y.npz, texts=~/t/u.npz)") == "precomputed(images=y.npz, texts=u.npz)"


def test_the_same_cell_twice_is_one_and_other_numbers_are_told(runs: Path, tmp_path: Path) -> None:
    assert merge([runs / "a.zip", runs / "whole.zip"], tmp_path, "m") == []
    assert len(read_json(tmp_path / "m" / "comparison.json")["cells"]) == 6


def test_settings_that_differ_within_a_table_are_told(runs: Path, tmp_path: Path, vector_sets: list[str]) -> None:
    compare(tmp_path, [*vector_sets, "train.epochs=1"], "top-k")
    write_pack(tmp_path, "c", tmp_path / "c.zip")
    assert merge([runs / "a.zip", tmp_path / "c.zip"], tmp_path, "m") == [
        "cells of one table differ in train.epochs: 1, 2"
    ]


# --- refused -------------------------------------------------------------------------------------------------------


def test_other_data_and_other_runs_are_refused(
    runs: Path, tmp_path: Path, vector_sets: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    other = [*write_vectors(tmp_path / "v", seed=1), *vector_sets[5:], "train.epochs=2"]
    compare(tmp_path, other, "top-k", "other")
    write_pack(tmp_path, "other", tmp_path / "other.zip")
    capsys.readouterr()
    command = ["merge", str(runs / "a.zip"), str(tmp_path / "other.zip"), "--runs-dir", str(tmp_path)]
    assert negbench(command) == 2
    told = capsys.readouterr().err
    assert "other.zip: top-k bradley-terry seed 0 is on other data than a.zip: " in told
    assert told.count("\n") == 1
    assert not (tmp_path / "merged").exists()
    compare(tmp_path, [*vector_sets, "train.epochs=1"], "in-batch", "short")
    write_pack(tmp_path, "short", tmp_path / "short.zip")
    with pytest.raises(RunError, match="two runs of one place"):
        merge([runs / "a.zip", tmp_path / "short.zip"], tmp_path, "m")
    with pytest.raises(RunError, match="and was not merged: give another --name"):
        merge([runs / "a.zip"], tmp_path, "other")


def test_other_queries_are_refused(runs: Path, tmp_path: Path) -> None:
    members = members_of(runs / "b.zip")
    for name in [name for name in members if name.endswith("ranks.parquet")]:
        frame = pd.read_parquet(io.BytesIO(members[name]))
        buffer = io.BytesIO()
        frame.assign(query=[f"other {query}" for query in frame["query"]]).to_parquet(buffer, index=False)
        members[name] = buffer.getvalue()
    with pytest.raises(RunError, match=r"b\.zip: top-k .* was scored on other queries than a\.zip"):
        merge([runs / "a.zip", write(tmp_path / "b.zip", members)], tmp_path, "m")


@pytest.mark.parametrize(
    ("ending", "change", "told"),
    [
        ("result.json", lambda v: {**v, "metrics": dict.fromkeys(v["metrics"], 0.99)}, "do not agree about metrics"),
        ("config.json", lambda v: {**v, "hash": "0" * 64}, "do not agree about hash"),
        ("config.json", lambda v: {**v, "config": {**v["config"], "seed": 7}}, "do not agree about seed"),
        ("config.json", lambda v: {**v, "dataset": {**v["dataset"], "val": "x"}}, "do not agree about data set"),
        (
            "config.json",
            lambda v: {**v, "dataset": {**v["dataset"], "val_queries": 3}},
            "40 rows of ranks, but 3 queries",
        ),
        ("config.json", lambda v: [], "is not what a run writes"),
        ("result.json", lambda v: 7, "is not what a run writes"),
        ("result.json", lambda v: {**v, "behaviour": "x"}, "lacks behaviour"),
        ("config.json", lambda v: {**v, "backbone": {}}, "is not what a run writes"),
        ("comparison.json", lambda v: {"cells": [{**v["cells"][0], "strategy": "<b>"}]}, "is no cell"),
        ("comparison.json", lambda v: {"cells": []}, "holds no cell"),
        ("comparison.json", lambda v: {"cells": [{"strategy": "x"}]}, "is no cell of a comparison"),
        ("comparison.json", lambda v: {"cells": [{**v["cells"][0], "strategy": "\x1b[2J"}]}, "is no cell"),
        ("comparison.json", lambda v: {"cells": [{**v["cells"][0], "hash": "../x"}]}, "lacks files"),
        ("manifest.json", lambda v: {**v, "format": 9}, "no pack of format 1"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    runs: Path, tmp_path: Path, ending: str, change: Callable[[Any], Any], told: str
) -> None:
    path = changed(runs / "b.zip", tmp_path / "b.zip", ending, change)
    with pytest.raises(RunError, match=told) as caught:
        merge([path], tmp_path, "m")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "m").exists()


def test_a_changed_member_is_found_by_its_hash(runs: Path, tmp_path: Path) -> None:
    path = changed(runs / "b.zip", tmp_path / "b.zip", "result.json", lambda v: {**v, "steps": 0}, sign=False)
    with pytest.raises(RunError, match=r"damaged: cells/.*result\.json is not what its manifest says \(1 such"):
        merge([path], tmp_path, "m")
    members = members_of(runs / "b.zip")
    members.pop(next(name for name in members if name.endswith("metrics.jsonl")))
    with pytest.raises(RunError, match=r"metrics\.jsonl is not what its manifest says"):
        merge([write(tmp_path / "c.zip", members, sign=False)], tmp_path, "m")


@pytest.mark.parametrize(
    "name",
    ["/etc/x", "../x", "cells/../x", "cells/" + "a" * 64 + "/model.safetensors", "tables/..", "x.py", "cells\\x"],
)
def test_hostile_names_are_refused(runs: Path, tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "p.zip", {**members_of(runs / "b.zip"), name: b"x"})
    with pytest.raises(RunError, match="is no file of a pack: nothing was taken from it"):
        merge([path], tmp_path / "runs", "m")
    assert not (tmp_path / "runs").exists()


def test_links_doubles_bombs_and_ruins_are_refused(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = members_of(runs / "b.zip")
    link = zipfile.ZipInfo("tables/table.csv")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(write(tmp_path / "link.zip", {"manifest.json": b"{}"}, sign=False), "a") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(RunError, match="is no file of a pack"):
        read_pack(tmp_path / "link.zip")
    with (
        zipfile.ZipFile(write(tmp_path / "twice.zip", members), "a") as archive,
        pytest.warns(UserWarning, match="Duplicate"),
    ):
        archive.writestr("comparison.json", b"{}")
    with pytest.raises(RunError, match="is no file of a pack"):
        read_pack(tmp_path / "twice.zip")
    whole = (runs / "b.zip").read_bytes()
    for name, data in (("half", whole[: len(whole) // 2]), ("text", b"no zip"), ("empty", b"")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(RunError, match="is no pack, or damaged"):
            read_pack(tmp_path / name)
    deep = write(tmp_path / "deep.zip", {**members, "comparison.json": b"[" * 10**6})
    with pytest.raises(RunError, match=r"comparison\.json is damaged"):
        read_pack(deep)
    with pytest.raises(RunError, match="cannot read"):
        read_pack(tmp_path / "absent.zip")
    monkeypatch.setattr(pack_module, "_MEMBER", 1000)
    with pytest.raises(RunError, match="bytes, more than 1,000"):
        read_pack(runs / "b.zip")
    monkeypatch.setattr(pack_module, "_WHOLE", 10_000)
    with pytest.raises(RunError, match="is too large"):
        read_pack(runs / "b.zip")


def test_a_member_that_unpacks_to_more_than_it_says_is_cut_and_refused(runs: Path, tmp_path: Path) -> None:
    """A header that lies about the size: the rest is never unpacked."""
    path = tmp_path / "lie.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", b"0" * 5_000_000)
    data = path.read_bytes().replace((5_000_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    path.write_bytes(data)
    with pytest.raises(RunError, match=r"lie\.zip"):
        read_pack(path)


def test_no_pack_makes_its_reader_run_a_plug_in(runs: Path, tmp_path: Path) -> None:
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')", encoding="utf-8")
    members = members_of(runs / "b.zip")
    for name in [name for name in members if name.endswith("config.json")]:
        value = json.loads(members[name])
        value["config"]["plugins"] = [str(evil)]
        members[name] = json.dumps(value).encode()
    path = write(tmp_path / "p.zip", members)
    assert negbench(["merge", str(path), "--runs-dir", str(tmp_path)]) == 0
    assert not (tmp_path / "ran").exists()


def test_a_damaged_cell_is_not_packed(runs: Path, tmp_path: Path) -> None:
    merge([runs / "a.zip"], tmp_path, "m")
    (tmp_path / read_json(tmp_path / "m" / "comparison.json")["cells"][0]["run"] / "ranks.parquet").write_bytes(b"x")
    with pytest.raises(NegbenchError, match=r"ranks\.parquet is damaged"):
        write_pack(tmp_path, "m", tmp_path / "m.zip")
    assert not (tmp_path / "m.zip").exists()


def test_a_map_is_not_packed(runs: Path, tmp_path: Path) -> None:
    rows = [{**row, "point": "x=1"} for row in read_json(runs / "whole" / "comparison.json")["cells"]]
    write_json(runs / "map" / "comparison.json", {"cells": rows})
    with pytest.raises(RunError, match="a map or a swap matrix"):
        write_pack(runs, "map", tmp_path / "x.zip")
    with pytest.raises(RunError, match="there is no comparison 'nothing'"):
        write_pack(runs, "nothing", tmp_path / "x.zip")
