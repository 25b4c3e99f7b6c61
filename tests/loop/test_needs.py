"""Needs of a run, estimated before it: the arithmetic against what the run then uses, and the refusals."""

import re
import time

import pytest
import torch

from negbench.errors import OptionError
from negbench.loop import needs
from negbench.loop.runs import compute_or_reuse
from negbench.loop.types import OpenRun
from negbench.machine import free_memory as machine
from negbench.machine.free_memory import machine_memory, size
from negbench.machine.room import Need, check_disk, check_memory
from tests.runs import config_of, flags_of, run, untrained


def open_toy_run(sets: list[str], *more: str, strategy: str = "qure") -> OpenRun:
    return untrained(config_of(sets, strategy, *more))


def by_name(needed: list[Need]) -> dict[str, Need]:
    return {need.what: need for need in needed}


def test_a_need_is_a_product_that_reads_as_one():
    need = Need("drawn negatives", ((48, "queries"), (1000, "draws"), (8, "bytes")), "lower it")
    assert need.bytes == 384_000
    assert str(need) == "drawn negatives: 48 queries x 1,000 draws x 8 bytes = 1 MiB"
    assert [size(n) for n in (0, 3 * 2**20, 1.5 * 2**30, 5 * 2**40)] == ["1 MiB", "3 MiB", "1.5 GiB", "5.0 TiB"]


def test_all_of_it_together_counts(tmp_path, set_memory):
    both = [Need("a", ((3, "x"), (2**30, "bytes")), "lower a"), Need("b", ((2**30, "bytes"),), "lower b")]
    set_memory(2**32)
    check_memory(both)
    set_memory(2**32 - 1, disk=2**30)
    message = r"about 4.0 GiB of memory, this machine has 4.0 GiB \(a: 3 x x 1,073,741,824 bytes = 3.0 GiB\): lower a"
    with pytest.raises(OptionError, match=message):
        check_memory(both)
    with pytest.raises(OptionError, match=r"of disk, .* has room for 1.0 GiB \(a: .*\): lower a"):
        check_disk(both, tmp_path)


def test_the_machine_has_memory(monkeypatch, tmp_path):
    assert 2**28 < machine_memory() < 2**50
    (tmp_path / "memory.max").write_text("1234\n", encoding="ascii")
    monkeypatch.setattr(machine, "_LIMITS", (str(tmp_path / "memory.max"), str(tmp_path / "none")))
    assert machine_memory() == 1234
    (tmp_path / "memory.max").write_text("max\n", encoding="ascii")
    assert machine_memory() > 2**28


def test_what_is_told_is_what_a_run_then_holds(vector_sets, tmp_path, interrupted):
    """The estimates for draws, pools and tables match the files of the run."""
    run = open_toy_run(vector_sets, *["train.epochs=6", "train.num_negatives=3", "schedule.refresh_epochs=[1,3]"])
    memory = by_name(needs.memory_needs(run))
    disk = by_name(needs.disk_needs(run))
    bench = interrupted(run.config, tmp_path, 5)
    pools = next(tmp_path.glob("*/pools-*.bits")).stat().st_size - 128  # the header of a npy file
    folder = compute_or_reuse(run.config, bench).folder
    first = folder.table("mining-00")["negatives"].map(len)
    second = folder.table("mining-01")["negatives"].map(len)
    assert first.tolist() == [2 * 3] * 48
    assert second.tolist() == [3 * 3] * 48
    assert memory["drawn negatives"].bytes == second.sum() * needs._DRAWN_BYTES
    assert disk["tables of mined negatives"].bytes == (first.sum() + second.sum()) * needs._DRAWN_DISK
    assert disk["pools"].bytes == needs._KEPT_POOLS * 48 * -(-len(run.scene.train.dataset.images) // 8)
    assert pools * needs._KEPT_POOLS <= disk["pools"].bytes


def test_what_a_step_holds(vector_sets):
    """Estimates for a step by hand: [B, 2 + K] images, scores of the batch, candidates of bank and corpus."""
    run = open_toy_run(vector_sets, "train.num_negatives=5")
    drawn = by_name(needs.step_needs(run))
    features = run.scene.source(torch.zeros(1, dtype=torch.int64)).numel()
    assert drawn["images of a step"].bytes == 16 * (1 + 1 + 5) * features * 4
    assert drawn["scores of a batch"].bytes == 0
    batch = by_name(needs.step_needs(open_toy_run(vector_sets, "train.batch_size=4096", strategy="in-batch")))
    square = ((48, "queries"), (48, "members of the batch"))  # all 48 train queries
    assert batch["scores of a batch"].factors[:2] == square
    crossed = by_name(needs.step_needs(open_toy_run(vector_sets, strategy="hycole")))
    assert crossed["scores of a batch"].bytes == 16 * 16 * 8 * 4
    corpus, _ = drawn["candidates"].factors[0]
    queue, _ = by_name(needs.step_needs(open_toy_run(vector_sets, strategy="xbm")))["candidates"].factors[0]
    assert queue > corpus


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["train.num_negatives=100000", "train.epochs=100000"], "x 50,000 epochs .* x 100,000 negatives .*=25000, or"),
        (["backbone.dim=1000000000000"], r"out of memory \("),
    ],
)
def test_more_than_the_machine_is_refused_at_once(vector_sets, tmp_path, run_command, more, message):
    started = time.monotonic()
    sets = flags_of([*vector_sets, *more])
    command = ["run", "--strategy", "qure", *sets, "--runs-dir", tmp_path, "--tracking-uri", "none"]
    assert re.fullmatch(f".*{message}.*\n", run_command(*command, code=2).err)
    assert time.monotonic() - started < 60
    assert not list(tmp_path.glob("*/config.json"))


def test_a_disk_without_room_for_the_run_is_told_before_training(vector_sets, tmp_path, set_memory):
    config = config_of(vector_sets, "qure")
    set_memory(2**40, disk=1000)
    with pytest.raises(OptionError, match=r"of disk, .* has room for 1 MiB \("):
        run(config, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    set_memory(2**40, disk=2**40)
    assert run(config, tmp_path / "runs").folder.status == "finished"


def test_features_that_are_to_be_held_in_memory_count_too(toy_sets, set_memory):
    set_memory(1000)
    with pytest.raises(OptionError, match=r"\(features held in memory: .*\): --set compute.feature_memory_gib=4.3e-06"):
        untrained(config_of(toy_sets, "qure", "compute.feature_memory_gib=4"))
    source = untrained(config_of(toy_sets, "qure")).scene.source
    assert source.held_bytes <= 500  # half of the memory; the others are read ahead
    assert not source.in_memory
