"""`negbench data encode`: the plan, encoding once, repairing damage."""

from negbench.cli.main import run as negbench


def test_fills_the_store_once(toy_root, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path))
    command = ["data", "encode", "--dataset", "synthetic", "--data-root", str(toy_root)]
    assert negbench(command) == 0
    assert "144 images: 144 encoded, 0 stored before" in capsys.readouterr().out
    assert negbench(command) == 0
    assert "144 images: 0 encoded, 144 stored before" in capsys.readouterr().out
    for shard in (tmp_path / "features").rglob("*.safetensors"):  # damage is detected and repaired
        shard.write_bytes(shard.read_bytes()[:-1] + bytes([shard.read_bytes()[-1] ^ 1]))
    assert negbench(command) == 0
    assert "144 encoded" in capsys.readouterr().out


def test_what_stores_nothing_is_one_line(toy_root, refused):
    sets = ["--set", "backbone.init=random", "--set", "backbone.size=toy", "--set", "backbone.frozen=false"]
    refused(["data", "encode", "--backbone", "clip", "--data-root", str(toy_root), *sets], "stores no features")
