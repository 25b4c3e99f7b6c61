"""Atomic writes and locks; freed memory."""

import ctypes
import errno
import json
import math
import os
from pathlib import Path

import pytest

from negbench.cli.main import run as negbench
from negbench.errors import NegbenchError
from negbench.machine import files, heap
from tests.runs import flags_of


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old", encoding="utf-8")

    def fail_halfway() -> None:
        with files.atomic_write(path) as file:
            file.write("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_halfway()
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_has_no_nan(tmp_path):
    files.write_json(tmp_path / "a.json", {"a": math.nan, "b": [1.5, math.nan], "c": "x"})
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=pytest.fail) == {"a": None, "b": [1.5, None], "c": "x"}


def test_damaged_json_is_one_line(tmp_path, subtests):
    """Only a hash that differs shows damage; without one, a file that cannot be parsed cannot be read."""
    for content in (b"{", b"\xff"):
        with subtests.test(content=content):
            (tmp_path / "a.json").write_bytes(content)
            with pytest.raises(NegbenchError, match=r"cannot read .*a.json: \S.*: move its folder elsewhere and rerun"):
                files.read_json(tmp_path / "a.json")
            with pytest.raises(NegbenchError, match=r"cannot read .*a.json: \S.*: delete it$"):
                files.read_json(tmp_path / "a.json", "delete it")
    with pytest.raises(NegbenchError, match=r"cannot read .*b.json: No such file or directory$"):
        files.read_json(tmp_path / "b.json")
    with pytest.raises(NegbenchError, match=r"cannot read .*: Is a directory"):
        files.read_json(tmp_path)


def test_what_is_no_folder_cannot_be_sealed(tmp_path, subtests):
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for folder in (tmp_path / "dangling" / "name", Path("/proc/nowhere/name")):
        with subtests.test(folder=folder), pytest.raises(NegbenchError, match=rf"^cannot write {folder}/SHA256SUMS: "):
            files.seal(folder)


def test_another_program_finds_only_the_files_that_it_left(subtests, tmp_path, logged):
    """Damaged and unlisted files are gone before it reads; those of another name are left to their own block."""
    folder = tmp_path / "made"
    contents = {"a[1].x": b"one", "a[1].y": b"two", "a1.x": b"another's"}
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)  # by nobody known
    for case, changes, trusted in (
        ("of another writer", {}, set()),
        ("as written", {}, {"a[1].x", "a[1].y"}),
        ("a flipped bit", {"a[1].x": b"onf"}, {"a[1].y"}),
        ("emptied", {"a[1].y": b""}, {"a[1].x"}),
    ):
        with subtests.test(case):
            for name, content in changes.items():
                (folder / name).write_bytes(content)
            with files.trust(folder, "a[1]"):
                assert {path.name for path in folder.glob("a*")} == {*trusted, "a1.x"}
                (folder / "a[1].x").write_bytes(contents["a[1].x"])
                (folder / "a[1].y").write_bytes(contents["a[1].y"])
    assert [record.getMessage().partition(":")[0] for record in logged] == [str(folder)]
    with files.trust(folder, "a1"):
        assert not (folder / "a1.x").exists()


def test_a_deleted_file_is_listed_no_more(tmp_path):
    files.seal(tmp_path)
    for name in ("kept", "gone"):
        files.write_json(tmp_path / name, name)
    files.delete(tmp_path / "gone")
    assert files.names_in(tmp_path) == ["kept"]
    assert not (tmp_path / "gone").exists()
    files.write_json(tmp_path / "gone", "again")
    assert files.names_in(tmp_path) == ["kept", "gone"]
    with files.intact(tmp_path / "gone"):
        assert files.read_json(tmp_path / "gone") == "again"
    (tmp_path / "stray").write_text("1")
    with pytest.raises(files.DamagedError, match=r"stray is not read: SHA256SUMS beside it does not list it$"):
        files.read_json(tmp_path / "stray")


def test_each_listed_file_is_compared_and_opened_once(tmp_path, count_opened):
    folder = tmp_path / "run"
    files.seal(folder)
    for name in ("whole", "twice", "changed", "gone", "pipe", "linked", "large"):
        files.write_text(folder / name, "a" if name != "large" else "b" * (2 * files._CHUNK + 1))
    files.write_text(folder / "twice", "written again")
    (folder / "stray").write_text("not listed")
    (folder / "changed").write_text("b")
    for name in ("gone", "pipe", "linked"):
        (folder / name).unlink()
    os.mkfifo(folder / "pipe")  # would block
    (folder / "linked").symlink_to(folder / "whole")
    with count_opened(folder) as opened:
        flaws = files.flaws_in(folder)
    assert flaws == files.DamagedFiles(missing=["gone", "pipe"], damaged=["changed"])
    assert opened == dict.fromkeys((files.SUMS, "whole", "twice", "changed", "linked", "large"), 1)
    with (folder / "large").open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"c")
    assert files.flaws_in(folder).damaged == ["changed", "large"]
    (folder / "linked").unlink()
    (folder / "linked").symlink_to("/etc/hostname")
    with pytest.raises(NegbenchError, match="linked is a link that leads out of "):
        files.flaws_in(folder)


def test_what_is_parsed_is_what_was_compared_with_its_hash(tmp_path, count_opened):
    files.seal(tmp_path)
    files.write_json(tmp_path / "a.json", {"a": "\r\n"})
    with count_opened(tmp_path) as opened:
        assert files.read_json(tmp_path / "a.json") == {"a": "\r\n"}
    assert opened == {files.SUMS: 1, "a.json": 1}


@pytest.mark.parametrize("links", [True, False])
def test_of_two_processes_that_seal_a_folder_one_loses_nothing(tmp_path, monkeypatch, links):
    real_temporary = files._temporary
    other_has_sealed = False

    def seal_meanwhile(path: Path) -> tuple[int, Path]:
        nonlocal other_has_sealed
        if not other_has_sealed:
            other_has_sealed = True
            files.seal(tmp_path)
            files.write_json(tmp_path / "study.json", 1)
        return real_temporary(path)

    def refuse(self: Path, target: Path) -> None:
        raise OSError("no links here")

    if not links:
        monkeypatch.setattr(Path, "hardlink_to", refuse)
    monkeypatch.setattr(files, "_temporary", seal_meanwhile)
    files.seal(tmp_path)
    assert files.names_in(tmp_path) == ["study.json"]
    assert files.read_json(tmp_path / "study.json") == 1
    assert not list(tmp_path.glob(".*.partial"))


def test_two_processes_may_delete_the_same_file(tmp_path, monkeypatch):
    files.seal(tmp_path)
    files.write_json(tmp_path / "gone", 1)
    add_line = files._add_line

    def delete_meanwhile(sums: Path, line: str) -> None:
        add_line(sums, line)
        (tmp_path / "gone").unlink()

    monkeypatch.setattr(files, "_add_line", delete_meanwhile)
    files.delete(tmp_path / "gone")
    assert files.names_in(tmp_path) == []


def test_freed_memory_is_kept_where_the_c_library_is_glibc(monkeypatch):
    calls = []

    class Glibc:
        def mallopt(self, option: int, size: int) -> None:
            calls.append((option, size))

    for library in (object(), Glibc()):  # the first knows no such function
        monkeypatch.setattr(ctypes, "CDLL", lambda name, library=library: library)
        heap.keep_memory.cache_clear()
        heap.keep_memory()
        heap.keep_memory()
    assert calls == [(-3, 32 * 2**20), (-1, 256 * 2**20)]  # once a process


# --- file systems without locks ------------------------------------------------------------------------------------


@pytest.fixture
def without_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every flock fail, as on network file systems."""
    code = getattr(errno, getattr(request, "param", "ENOLCK"))

    def fail(file: object, way: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files.fcntl, "flock", fail)


@pytest.mark.parametrize("without_locks", ["ENOLCK", "ENOSYS", "EOPNOTSUPP"], indirect=True)
def test_without_locks_one_line_says_what_is_at_risk(without_locks, tmp_path, expect_error, vector_sets):
    (tmp_path / ".x.partial").touch()
    at_risk = r"two processes may compute the same run .*NEGBENCH_LOCKS=soft"
    with pytest.raises(NegbenchError, match=at_risk), files.lock_file(tmp_path / ".lock"):
        pass
    files.write_text(tmp_path / "x", "whole")  # written as ever, and nothing is swept
    assert files.sweep(tmp_path) == []
    line = "NEGBENCH_LOCKS=soft"
    store_flags = ["--runs-dir", str(tmp_path / "runs"), "--tracking-uri", "none"]
    flags = [*flags_of(vector_sets), *store_flags]
    expect_error(["run", "--strategy", "qure", *flags], line)
    expect_error(["compare", "--strategies", "qure,in-batch", "--seeds", "1", "--lr", "fixed", *flags], line)
    study = ["study", "--strategy", "all-corpus", "--search", "train.lr=0.01|0.03", "--sampler", "grid", "--name", "s"]
    sets = [text for text in vector_sets if "n_def" not in text]
    expect_error([*study, *flags_of(sets), *store_flags], line)


def test_soft_locks_take_their_place(without_locks, monkeypatch, tmp_path, vector_flags):
    monkeypatch.setenv("NEGBENCH_LOCKS", "soft")
    with files.lock_file(tmp_path / "a.lock"):
        assert (tmp_path / "a.lock.soft").exists()
        with pytest.raises(BlockingIOError), files.lock_file(tmp_path / "a.lock", wait=False):
            pass
    assert not (tmp_path / "a.lock.soft").exists()
    store_flags = ["--runs-dir", str(tmp_path / "runs"), "--no-report", "--lr", "fixed", "--set", "train.epochs=2"]
    grid = ["compare", "--strategies", "qure,in-batch", "--seeds", "1", "--name", "c"]
    assert negbench([*grid, *vector_flags, *store_flags]) == 0
    assert not [*tmp_path.rglob("*.soft")]
    monkeypatch.setenv("NEGBENCH_LOCKS", "hard")
    with pytest.raises(NegbenchError, match="expected soft"), files.lock_file(tmp_path / "b.lock"):
        pass
