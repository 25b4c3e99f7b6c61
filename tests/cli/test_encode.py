"""`negbench data encode`: the plan, encoding once; test_damage.py has its repairs."""

from negbench.cli.main import run as negbench


def test_fills_the_store_once(toy_root, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path))
    command = ["data", "encode", "--dataset", "synthetic", "--data-root", str(toy_root)]
    assert negbench(command) == 0
    assert "144 images: 144 encoded, 0 stored before" in capsys.readouterr().out
    assert negbench(command) == 0
    assert "144 images: 0 encoded, 144 stored before" in capsys.readouterr().out


def test_what_stores_nothing_is_one_line(toy_root, refused):
    sets = ["--set", "backbone.init=random", "--set", "backbone.size=toy", "--set", "backbone.frozen=false"]
    refused(["data", "encode", "--backbone", "clip", "--data-root", str(toy_root), *sets], "stores no features")
