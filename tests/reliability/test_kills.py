"""A command killed with -9 at any moment and rerun: the same bytes, nothing lost, repeated or left over."""

import json
from functools import partial
from pathlib import Path

from kills import NEVER, many, moments, spread

from negbench.machine.files import SUMS, flaw
from tests.runs import config_of, run

# costs of a run, not results
_TIMES = ("seconds", "peak_memory_mib")


def contents(runs: Path) -> dict[str, bytes]:
    """Return every file below the runs folder by its path, without times, locks and the lists of hashes."""
    files = {}
    for path in sorted(path for path in runs.rglob("*") if path.is_file()):
        if path.name.endswith(".lock") or path.name == SUMS:
            continue
        value = path.read_bytes()
        if path.name == "result.json":
            result = json.loads(value)
            value = json.dumps({key: result[key] for key in result if key not in _TIMES}).encode()
        if path.suffix == ".safetensors":  # the library writes its header's metadata in any order
            size = int.from_bytes(value[:8], "little")
            value = json.dumps(json.loads(value[8 : 8 + size]), sort_keys=True).encode() + value[8 + size :]
        files[str(path.relative_to(runs))] = value
    return files


def test_killed_at_any_write_and_the_same_again_gives_the_same_bytes(forked, vector_sets, tmp_path, every_epoch):
    more = ("schedule.refresh_epochs=[0,1]", "eval.select=dev", "eval.dev_fraction=0.4")  # pools, and a best epoch
    config = config_of(vector_sets, "qure", *more)

    def run_in(runs: Path) -> None:
        run(config, runs)

    straight = tmp_path / "straight"
    total = moments(forked, partial(run_in, straight), straight, NEVER)
    assert total > 60
    want = contents(straight)
    assert {Path(name).name for name in want} >= {"config.json", "metrics.jsonl", "ranks.parquet", "result.json"}
    for number, at in enumerate(spread(total, many(4, 10**6))):
        runs = tmp_path / str(at)
        moments(forked, partial(run_in, runs), runs, at, torn=number % 2 == 0)
        run_in(runs)
        files = contents(runs)
        assert files == want, (at, *files)
        for path in (runs / name for name in files):
            assert flaw(path) is None, path
