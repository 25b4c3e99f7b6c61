"""`negbench data verify`, and files of triplets as `--dataset`."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from negbench.cli.main import run as negbench
from negbench.settings.layers import dataset_layer, plugin_layer_of, plugin_section


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write ten queries over thirteen images."""
    rows = [{"reference": f"i{n}", "text": f"is {n}", "target": f"i{n + 3}"} for n in range(10)]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    for n in range(13):
        Image.new("RGB", (8, 8), (20 * n, 7, 200)).save(tmp_path / f"i{n}.png")
    return path


def test_a_path_names_the_triplets(subtests, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    triplets = {"name": "triplets", "file": str(tmp_path / "sub/a.jsonl")}
    assert plugin_section("datasets", "sub/a.jsonl") == triplets
    assert plugin_section("datasets", "sub/a.jsonl:seed=3") == {**triplets, "seed": 3}
    assert plugin_section("strategies", "sub/a.jsonl") == {"name": "sub/a.jsonl"}
    assert dataset_layer("sub/a.jsonl", Path("x"), True)["dataset"] == {**triplets, "root": "x", "allow_missing": True}
    for name in ("a.csv", "A.CSV"):
        with subtests.test(name=name):
            assert plugin_section("datasets", name) == {"name": "triplets", "file": str(tmp_path / name)}


def test_a_name_is_a_plugin_with_its_options():
    assert plugin_section("datasets", "fashioniq") == {"name": "fashioniq"}
    assert dataset_layer(None, None, False) == {}
    layer = dataset_layer("fashioniq:protocol=val", Path("x"), False)
    assert layer == {"dataset": {"name": "fashioniq", "protocol": "val", "root": "x"}}
    assert plugin_layer_of("loss", "info-nce:tau=0.1") == {"loss": {"name": "info-nce", "tau": 0.1}}
    assert plugin_layer_of("loss", None) == {}


def test_verify_clean_and_annotations_alone(file, run_command):
    out = run_command("data", "verify", str(file)).out
    assert "val: triplets@file-" in out
    assert "2 queries" in out
    assert "13 images checked" in out
    assert out.strip().endswith("clean")
    for picture in file.parent.glob("*.png"):
        picture.unlink()
    run_command("data", "verify", str(file), code=2)
    out = run_command("data", "verify", str(file), "--annotations").out
    assert "2 queries" in out
    assert "note: images are not checked" in out
    file.write_text("{}\n", encoding="utf-8")
    assert negbench(["data", "verify", str(file), "--annotations"]) == 2


def test_verify_lists_problems(file, run_command):
    for n in range(12):
        (file.parent / f"i{n}.png").write_bytes(b"no picture")
    (file.parent / "i3.png").unlink()
    (file.parent / "i12.png").write_bytes(b"")
    command = ["data", "verify", str(file), "--set", "seed=3", "--workers", "1"]
    text = run_command(*command, code=2).out
    assert "i3: no file" in text
    assert "... 1 more; --json lists all" in text
    document: dict[str, Any] = json.loads(run_command(*command, "--json", code=2).out)
    problems = document["problems"]
    assert (document["error"], document["exit_code"]) == (f"found {len(problems)} problems: see above", 2)
    missing = [problem for problem in problems if problem["kind"] == "missing"]
    assert {tuple(problem["images"]) for problem in missing} == {("i3",), ("i12",)}
    assert [problem["kind"] for problem in problems].count("undecodable") == 11
    assert "seed 3" not in document["splits"][0]["identity"]
    assert document["images"] == 11


def test_verify_mistakes(expect_error, mistakes, subtests):
    for arguments, message in mistakes["verify"].items():
        with subtests.test(arguments):
            expect_error(["data", "verify", *arguments.split()], message)
