"""`negbench doctor`: a healthy installation, leftovers, and damaged or missing files."""

import json

import pytest
import torch

from negbench.api import load
from negbench.errors import RunError
from negbench.machine.files import trust
from negbench.own import doctor
from tests.runs import config_of, run


def test_a_healthy_installation(tmp_path, run_command):
    out = run_command("doctor", "--runs-dir", tmp_path / "runs").out
    assert "PROBLEM" not in out
    assert "torch 2" in out
    assert not (tmp_path / "runs").exists()  # doctor creates nothing


def test_a_gpu_is_named_where_a_driver_is_installed(monkeypatch):
    """Without one, torch is not asked, and finds none."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**30, 2**31))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a card")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: True)
    monkeypatch.setattr(doctor, "has_gpu_driver", lambda: False)
    assert len(list(doctor._devices())) == 1
    monkeypatch.setattr(doctor, "has_gpu_driver", lambda: True)
    _, (text, _) = doctor._devices()
    assert text.startswith("a card, 1 of 2 GiB free; train.precision=auto is ")


RUN = ("--strategy", "qure", "--set", "train.epochs=6", "--set", "train.batch_size=32")
TOY = ("--backbone", "blip2", "--set", "backbone.init=random", "--set", "backbone.size=toy")


def test_a_run_that_is_named_has_its_needs_told(toy_root, tmp_path, run_command, monkeypatch):
    store_flags = ("--runs-dir", tmp_path / "runs", "--tracking-uri", "none", "--set", f"dataset.root='{toy_root}'")
    out = run_command("doctor", *RUN, *TOY, *store_flags).out
    assert "run       backbone 'blip2' is small: a step fits" in out
    monkeypatch.setattr("negbench.loop.run_forecast.SMALL", 0)
    out = run_command("doctor", *RUN, *TOY, *store_flags).out
    assert "run       a step of 32 queries takes about " in out
    assert "run       18 steps; " in out
    assert "run       the steps alone take about " in out
    monkeypatch.setattr("negbench.loop.fitting.machine_memory", lambda: 2**20)
    out = run_command("doctor", *RUN, *TOY, *store_flags, code=2).out
    assert "run       PROBLEM: a step takes about " in out


def test_what_a_named_run_lacks_is_a_problem(tmp_path, run_command, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("negbench.loop.step_memory.Architecture.call", lambda *args, **options: 0 / 0)
    store_flags = ("--runs-dir", tmp_path / "runs", "--tracking-uri", "none")
    out = " ".join(
        run_command("doctor", *RUN, "--backbone", "blip2:weights=nobody/nothing", *store_flags, code=2).out.split()
    )
    assert "run PROBLEM: " in out
    assert "nobody/nothing" in out


def test_the_cache_is_named_with_what_is_damaged_in_it(tmp_path, run_command, monkeypatch):
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path))
    with trust(tmp_path / "numba" / "x", "f"):
        (tmp_path / "numba" / "x" / "f.nbi").write_bytes(b"one")
    (tmp_path / "numba" / "x" / "f.nbi").write_bytes(b"two")
    out = " ".join(run_command("doctor", "--runs-dir", tmp_path / "runs", "--tracking-uri", "none").out.split())
    assert f"cache {tmp_path}: " in out
    assert f"{tmp_path}/numba/x/f.nbi is damaged; it is made again when it is needed" in out


def test_what_is_no_folder_is_a_problem(subtests, tmp_path, run_command):
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("file", "dangling"):
        with subtests.test(name=name):
            out = run_command("doctor", "--runs-dir", tmp_path / name / "runs", code=2).out
            assert f"PROBLEM: {tmp_path / name} is not a folder" in out


def without_free_space(lines: list[str]) -> list[str]:
    return [line for line in lines if "GiB free" not in line]


def test_leftovers_go_and_damage_is_named(tmp_path, vector_sets, run_command):
    folder = run(config_of(vector_sets, "all-corpus"), tmp_path).folder
    deep = tmp_path / "study" / "report" / "figures"
    deep.mkdir(parents=True)
    for partial in (folder.path / ".ranks.parquet.abc.partial", deep / ".history.png.abc.partial"):
        partial.write_bytes(b"half")
    command = ["doctor", "--runs-dir", tmp_path, "--tracking-uri", "none"]
    out = run_command(*command).out
    assert "2 half-written files of killed processes removed" in out
    assert "1 runs: 1 finished" in out
    assert not list(tmp_path.rglob("*.partial"))
    ranks = folder.path / "ranks.parquet"
    ranks.write_bytes(ranks.read_bytes()[:-1])
    out, err = run_command(*command, code=2)
    assert f"PROBLEM: {ranks} is damaged" in out
    assert "found 1 problem" in err
    document = json.loads(run_command(*command, "--json", code=2).out)
    assert (document["problems"], document["error"], document["exit_code"]) == (1, "found 1 problem: see above", 2)
    lines = []
    for finding in document["findings"]:
        mark = "PROBLEM: " if finding["problem"] else ""
        lines.append(f"{finding['part']:9} {mark}{finding['text']}")
    assert without_free_space(lines) == without_free_space(out.splitlines())


def test_every_file_of_a_run_is_opened_once(tmp_path, vector_sets, run_command, count_opened):
    """Some 45,000 of 5,000 runs: what is done for each of them counts."""
    folder = run(config_of(vector_sets, "all-corpus"), tmp_path).folder
    with count_opened(folder.path) as opened:
        run_command("doctor", "--runs-dir", tmp_path, "--tracking-uri", "none")
    assert opened == {path.name: 1 for path in folder.path.iterdir() if path.name != ".lock"}


def test_files_that_are_gone_are_named(subtests, tmp_path, vector_sets, run_command):
    """Doctor and `load` name a run's missing files; only the weights may be deleted to save space."""
    config = config_of(vector_sets, "qure", "schedule.refresh_epochs=[0,1]")
    folder = run(config, tmp_path).folder
    assert not list(folder.path.glob("pools-*"))  # deleted by the run itself
    weights = folder.weights()
    (folder.path / "model.safetensors").unlink()
    with pytest.raises(RunError, match=r"has no weights in .*: move the folder elsewhere and rerun"):
        folder.weights()
    command = ["doctor", "--runs-dir", tmp_path, "--tracking-uri", "none"]
    assert folder.lost() == []
    run_command(*command)
    for name in ("metrics.jsonl", "mining-01.parquet"):
        with subtests.test(name=name):
            content = (folder.path / name).read_bytes()
            (folder.path / name).unlink()
            assert f"PROBLEM: run {folder.run_id} has lost {name}" in run_command(*command, code=2).out
            with pytest.raises(RunError, match=rf"has lost {name} in .*: move the folder elsewhere"):
                load(folder.run_id, tmp_path)
            (folder.path / name).write_bytes(content)
    load(folder.run_id, tmp_path)
    (folder.path / "result.json").unlink()
    assert run(config, tmp_path).folder == folder
    again = folder.weights()
    assert again.keys() == weights.keys()
    for name, tensor in weights.items():
        assert again[name].tolist() == tensor.tolist(), name
