"""Any option or file either works or ends with exit code 2 and one line, never with a traceback.

The suite runs 250 fixed cases; `make fuzz` runs as many as `NEGBENCH_FUZZ` says, new ones each time.
"""

import contextlib
import copy
import io
import itertools
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import negbench
from negbench.analysis.frame import results_of
from negbench.cli.main import run as command_line
from negbench.errors import NegbenchError
from negbench.grid.jobs import Trusted, compute_line
from negbench.loop import train as loop
from negbench.loop.runs import RunContext, compute_or_reuse
from negbench.machine.files import SUMS
from negbench.settings.config import RunConfig, flatten
from negbench.store.runfolder import RunFolder
from negbench.systems.system import load_config
from tests.datasets import toys
from tests.runs import flags_of

KINDS_OF_INPUT = 10
CASES = int(os.environ.get("NEGBENCH_FUZZ", "250"))
Function = TypeVar("Function", bound=Callable[..., None])


def fuzzed(*arguments: st.SearchStrategy[Any]) -> Callable[[Function], Function]:
    """Return hypothesis's `given` with this kind's share of the cases."""
    limits = settings(
        max_examples=-(-CASES // KINDS_OF_INPUT),
        derandomize="NEGBENCH_FUZZ" not in os.environ,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),  # failing cases are short already
        suppress_health_check=list(HealthCheck),
    )

    def decorate(function: Function) -> Function:
        return limits(given(*arguments)(function))

    return decorate


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, set_memory: Callable[..., None]) -> None:
    """Limit memory to a gibibyte and runs to one epoch."""
    train_epoch = loop.train_epoch

    def train_first_epoch(run: Any, parts: Any, state: Any, *more: Any) -> Any:
        if state.epoch > 0:
            raise NegbenchError("enough for a test")
        return train_epoch(run, parts, state, *more)

    monkeypatch.setattr(loop, "train_epoch", train_first_epoch)
    set_memory(2**30)


def outcome(*arguments: object) -> int:
    """Run a command in this process and return its exit code: 0, or 2 and one line."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = command_line([str(argument) for argument in arguments])
    if code != 0:
        assert code == 2
        line = errors.getvalue().rstrip("\n").rpartition("\n")[2]
        assert line.startswith("negbench: error: ")
        assert len("negbench: error: ") < len(line) < 1000
        assert errors.getvalue().count("negbench: error: ") == 1
    return code


# --- inputs ---------------------------------------------------------------------------------------------------------

STRANGE = """
0 -1 1 2 7 1e9 1e400 -1e-400 inf nan 0x10 1_0 null true None '' ' [ { } # = @ - 2020-01-01 [1,[2,[3]]] {a=1}
qure top-k in-batch+qure in-batch:3>qure cosine info-nce auto bf16 dev own x.trec ../../x /dev/null a:b=c
07:32:00 [1,'a']
"""
WORDS = (
    *STRANGE.split(),
    *("9" * 5000, "1" * 30, str(2**63), "[" * 2000, "[" * 300 + "]" * 300, "{a=" * 300 + "1" + "}" * 300, '"""'),
    *("a b", "\t", "\n", "a\nb=3", "\x00", "\ud800", "\u2028", "é"),
)
VALUES = st.one_of(
    st.sampled_from(WORDS),
    st.integers(-3, 12).map(str),
    st.floats().map(str),
    st.text(max_size=6),
    st.lists(st.integers(-2, 9), max_size=4).map(str),
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)


JSONS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 10**20), st.floats(), st.text(max_size=4), st.just("x" * 3000)),
    containers,
    max_leaves=4,
)


@st.composite
def spoilt(draw: st.DrawFn, content: bytes) -> bytes:
    """Return a file's bytes with a few changes: cut, doubled, or with something strange inserted."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(content)))
        end = min(len(content), at + draw(st.sampled_from((1, 2, 8, 64, 10**9))))
        words = st.sampled_from([word.encode("utf-8", "surrogatepass") for word in WORDS])
        inserted = draw(words | st.binary(max_size=4) | st.just(content[at:end] * 2))
        content = content[:at] + inserted + content[at if draw(st.booleans()) else end :]
    return content


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all parts of nested lists and dictionaries."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from paths_of(value[key], (*path, key))


@st.composite
def changed(draw: st.DrawFn, value: Any, parts: st.SearchStrategy[Any]) -> Any:
    """Return nested lists and dictionaries with one part replaced or removed."""
    *path, last = draw(st.sampled_from([*paths_of({"": value})][1:]))
    whole = {"": copy.deepcopy(value)}
    container = whole
    for key in path:
        container = container[key]
    if draw(st.booleans()) or not path:
        container[last] = draw(parts)
    else:
        del container[last]
    return whole[""]


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


# --- options and recipes --------------------------------------------------------------------------------------------


OPTIONS = ("strategy.k", "strategy.variant", "loss.tau", "backbone.hidden")
KEYS = [key for key, _ in flatten(RunConfig(strategy={"name": "qure"}).model_dump())]  # of a run's configuration
KEYS += [*OPTIONS, "strategy", "train", "", "a.b.c", "x"]


def as_lines(value: Any) -> bytes:
    """Return rows as lines of JSON; a change may have put another value in the place of all rows."""
    rows = value if isinstance(value, list) else [value]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture
def store_flags(tmp_path: Path) -> list[object]:
    return ["--runs-dir", tmp_path / "runs", "--tracking-uri", "none"]


@pytest.fixture
def run(vector_flags: list[str], store_flags: list[object]) -> Callable[..., int]:
    """Return a function that gives the exit code of a run on vectors with these arguments."""

    def run_with(*more: object) -> int:
        return outcome("run", "--strategy", "qure", *vector_flags, *more, *store_flags)

    return run_with


@pytest.fixture
def sources(vector_sets: list[str]) -> dict[str, Path]:
    """Return the files of `vector_sets`: triplets, images, texts."""
    by_key = dict(text.split("=", 1) for text in vector_sets)
    keys = {"triplets": "dataset.file", "images": "backbone.images", "texts": "backbone.texts"}
    return {name: Path(by_key[key].strip("'")) for name, key in keys.items()}


def test_options(run):
    @fuzzed(
        st.sampled_from(("qure", "in-batch", "dqe", "hycole", "xbm", "uniform-bins")),
        st.lists(st.tuples(st.sampled_from(KEYS) | st.text(max_size=5), VALUES), min_size=1, max_size=2),
        st.sampled_from(("=", "=", "=", "=", "", "==", " = ")),
    )
    def trial(strategy: str, pairs: list[tuple[str, str]], sign: str) -> None:
        run("--strategy", strategy, *flags_of(f"{key}{sign}{value}" for key, value in pairs))

    trial()


def test_recipes(vector_sets, store_flags, tmp_path):
    names = ("strategy.name='qure'", "dataset.name='triplets'", "backbone.name='precomputed'", "loss.name='info-nce'")
    more = ("train.precision='fp32'", "eval.select='dev'", "mining.margin=0.5")
    base = "\n".join([*names, *more, *(text for text in vector_sets if ".name=" not in text)]).encode()
    recipe = tmp_path / "r.toml"
    recipe.write_bytes(base)
    data = ["--dataset", "triplets", "--backbone", "precomputed"]  # avoids the data set that is made on first use
    assert outcome("run", "--recipe", recipe, *data, *store_flags) == 2  # stopped after an epoch, not refused
    assert len(list((tmp_path / "runs").glob("*/metrics.jsonl"))) == 1

    def encode(text: str) -> bytes:
        return text.encode("utf-8", "replace")

    @fuzzed(spoilt(base) | st.binary(max_size=40) | st.text(max_size=40).map(encode))
    def trial(content: bytes) -> None:
        recipe.write_bytes(content)
        outcome("run", "--recipe", recipe, *data, *store_flags)

    trial()


# --- data -----------------------------------------------------------------------------------------------------------


def test_annotation_files(sources, run, tmp_path):
    """Files of triplets are used in a whole run; those of benchmarks are read and score random numbers."""
    triplets = sources["triplets"].read_bytes()
    rows = [json.loads(line) for line in triplets.splitlines()]
    options = {name: toys.TOYS[name](tmp_path / name) for name in ("fashioniq", "cirr", "circo", "hp-fashioniq")}
    files = list[tuple[str, Path]]()
    for name in options:
        files += [(name, path) for path in sorted((tmp_path / name).rglob("*.json"))]

    @fuzzed(st.data())
    def trial(data: st.DataObject) -> None:
        if data.draw(st.booleans()):
            if data.draw(st.booleans()):
                content = data.draw(spoilt(triplets))
            else:
                content = as_lines(data.draw(changed(rows, JSONS)))
            file = tmp_path / f"t.{data.draw(st.sampled_from(('jsonl', 'json', 'csv', 'tsv')))}"
            file.write_bytes(content)
            run("--set", f"dataset.file='{file}'")
            return
        name, path = data.draw(st.sampled_from(files))
        before = path.read_bytes()
        other = changed(json.loads(before), JSONS).map(as_json)
        path.write_bytes(data.draw(spoilt(before) | other))
        try:
            split = negbench.load_dataset(name, split="val", images=False, **options[name])
            scores = torch.rand(len(split.queries), len(split.images))
            if all(query.target is not None for query in split.queries):
                split.evaluate(scores)
        except NegbenchError:
            pass
        finally:
            path.write_bytes(before)

    trial()


def test_embeddings(sources, run, tmp_path):
    def pack(**arrays: Any) -> bytes:
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        return buffer.getvalue()

    def others(name: str) -> list[bytes]:
        """Return the table in other types and shapes, and without parts of it."""
        key = {"images": "ids", "texts": "texts"}[name]
        with np.load(sources[name]) as stored:
            ids = stored[key]
            rows = stored["features"]
        other_rows = [rows.astype(kind) for kind in (np.int8, str, np.float16, np.complex64)]
        other_rows += [rows[..., :0], np.float32(1), rows * np.float32(np.inf)]
        other_rows += [np.ones((len(ids), 1, 1, 1, 3), np.float32), np.zeros(len(ids), dtype=[("a", "f4")])]
        other_ids = [ids.astype(object), np.arange(len(ids)), np.array("x"), np.repeat(ids[:1], len(ids))]
        contents = [pack(), pack(features=rows), pack(**{key: ids[:0], "features": rows[:0]})]
        contents += [pack(**{key: ids, "features": table}) for table in other_rows]
        contents += [pack(**{key: names, "features": rows}) for names in other_ids]
        return contents

    table = np.load(sources["images"])["features"]
    plain = io.BytesIO()
    np.save(plain, table)
    wrong = {name: others(name) for name in ("images", "texts")}

    @fuzzed(st.data())
    def trial(data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(wrong)))
        files = (sources[name].read_bytes(), plain.getvalue(), as_checkpoint({"features": torch.from_numpy(table)}))
        content = data.draw(st.one_of(*(spoilt(file) for file in files), st.sampled_from(wrong[name])))
        file = tmp_path / f"{name}.{data.draw(st.sampled_from(('npz', 'npz', 'npy', 'safetensors', 'pt', 'txt')))}"
        file.write_bytes(content)
        run("--set", f"backbone.{name}='{file}'")

    trial()


def lists_of(*values: object) -> st.SearchStrategy[list[Any]]:
    """Return lists of four cells: lists of these values."""
    return st.lists(st.lists(st.sampled_from(values), max_size=3), min_size=4, max_size=4)


CELLS = st.one_of(
    *(lists_of(0, 7, 12), lists_of(0, -1, 60), lists_of(0, 2**63), lists_of(True, False)),
    *(lists_of("3", "val-a-00", "\x1b[2J"), lists_of(1.0, 3.9), lists_of(b"1"), lists_of(None, 3), lists_of([1], [])),
    *(st.just(["12"] * 4), st.just([None] * 4)),
)
TARGETS = st.lists(st.integers(0, 40), min_size=4, max_size=4) | st.sampled_from(([0.5] * 4, ["x"] * 4, [None] * 4))
FLAGS = ("--draws", "--refresh", "--seed", "--device", "--format", "--strategy", "--split", "--set")
SET = ("mining.margin=0.1", "mining.margin=nan", "mining.exclude_relevant=true", "mining.bogus=1", "train.lr=1")


def test_own_data(sources, tmp_path):
    """A folder for `init`; and for `mine`, embeddings in files with odd targets, lists and options."""
    folder = tmp_path / "own"
    file = tmp_path / "t.parquet"
    shutil.copytree(sources["triplets"].parent, folder)
    rows = [json.loads(line) for line in sources["triplets"].read_bytes().splitlines()]
    with np.load(sources["images"]) as stored:
        np.savez(tmp_path / "images.npz", ids=stored["ids"], features=stored["features"][:, 0])
        np.save(tmp_path / "q.npy", stored["features"][:4, 0])
    files = ["--queries", tmp_path / "q.npy", "--images", tmp_path / "images.npz", "--targets", file]
    mine = ["mine", *files, "--out", tmp_path / "n.parquet", "--strategy", "top-k:k=5"]

    @fuzzed(st.data())
    def trial(data: st.DataObject) -> None:
        if data.draw(st.sampled_from((False, False, True))):
            content = as_lines(data.draw(changed(rows, JSONS)))
            (folder / "triplets.jsonl").write_bytes(data.draw(st.just(content) | spoilt(content)))
            outcome("init", folder)
            (folder / "recipe.toml").unlink(missing_ok=True)
            return
        table = {"target": data.draw(TARGETS)}
        table |= {name: data.draw(CELLS) for name in ("excluded", "relevant") if data.draw(st.booleans())}
        try:
            pd.DataFrame(table).to_parquet(file)
        except (ValueError, TypeError, OverflowError):  # pyarrow wants one type per column
            file.write_bytes(data.draw(st.binary(max_size=30)))
        flag = data.draw(st.just(()) | st.tuples(st.sampled_from(FLAGS), VALUES | st.sampled_from(SET)))
        outcome(*mine, *flag)

    trial()


# --- plug-ins -------------------------------------------------------------------------------------------------------

FORM = '''"""Mine."""
from dataclasses import dataclass
from typing import ClassVar
import torch
from negbench import Strategy
from negbench.contracts import Loss, tunable

@dataclass(frozen=True)
class Mine({base}):
    """Mine."""
    {options}
    def {method}:
        """Where to draw, or the value of a batch."""
        {first}
        return {answer}
'''
BASES = {"strategy": ("Strategy", "pool(self, view)"), "loss": ("Loss", "value(self, given)")}
FIRST = (
    *("pass", "raise ValueError('mine')", "raise KeyError", "raise SystemExit(3)", "raise RecursionError", "1 / 0"),
    *("torch.rand(3)", "torch.manual_seed(1)", "view.scores.fill_(0)", "view.relevant.sum()", "view.nothing"),
    *("self.k = 3", "import no_such_module", "assert False, 'a\\nb'"),
)
ANSWER = (
    *("view.allowed", "None", "[]", "3", "'x'", "view.scores", "-view.scores.abs()", "view.scores * float('nan')"),
    *("view.allowed[:, :1]", "view.allowed.int()", "~view.allowed", "view.allowed.T", "view.allowed & False", "self"),
    *("torch.ones(0)", "view.scores.softmax(1) * view.allowed", "view.allowed.to_sparse()", "view.allowed.numpy()"),
    *("view.scores.double() * view.allowed", "(view.allowed, 1)", "view.allowed.to('meta')", "view.scores + 1j"),
)
LOST = ("given.positive", "given.positive.mean()", "None", "3.0", "[]", "torch.tensor(float('nan'))", "self")
LOST += ("given.negatives.sum() * 0", "given.positive.mean().detach()", "given.positive.mean() + 1j")
LOST += ("given.positive.mean().double()", "given.negatives.argmax()", "given.no_such_thing.mean()")
MORE = ("", "scope = 3", "corrupts = ('nothing',)", "reads = ('guide',)", "schedule = 'sometimes'", "n_def = -1")
MORE += ("def k2(self: pass", "queue = 5", "def order(self, epoch):\n        return epoch.target")
DEFAULTS = ("1", "None", "'x'", "tunable(3, low=1, high=9)", "object()", "[]", "tunable(30, low=1, high=9)")


def test_plugin_files(run, own_registry, tmp_path):
    numbers = itertools.count()

    @fuzzed(st.data())
    def trial(data: st.DataObject) -> None:
        def pick(*choices: str) -> str:
            return data.draw(st.sampled_from(choices))

        kind = pick("strategy", "strategy", "strategy", "loss")
        spoils = pick("", "", "", "", "all") == "all"
        base, method = BASES[kind]
        default = "1"
        more = ""
        if data.draw(st.booleans()):
            default = pick(*DEFAULTS)
            more = pick(*MORE)
        scope = pick("corpus", "batch", "corpus", "batch", "both")
        first = "pass" if spoils else pick(*FIRST)
        options = f"scope: ClassVar[str] = {scope!r}\n    k: int = {default}\n    {more}"
        answer = pick(*(LOST if kind == "loss" else ANSWER))
        content = FORM.format(base=base, method=method, options=options, first=first, answer=answer).encode()
        content = data.draw(spoilt(content)) if spoils else content
        own_registry()
        file = tmp_path / f"mine{next(numbers)}.py"
        file.write_bytes(content)
        state = torch.get_rng_state()
        run("--plugin", file, "--loss" if kind == "loss" else "--strategy", file.stem)
        torch.set_rng_state(state)
        file.unlink()

    trial()


# --- negbench's own files -------------------------------------------------------------------------------------------

TENSORS = (torch.zeros(0), torch.zeros(3, 3), torch.tensor(1j), torch.full((2,), torch.nan), torch.zeros(5).bool())


def as_checkpoint(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def test_checkpoints(subtests, vector_sets, run, tmp_path):
    """Damaged checkpoints in folders without hashes (older versions); with hashes each is refused at once."""
    config = load_config(flags={"strategy": {"name": "qure"}}, sets=vector_sets)
    with pytest.raises(NegbenchError, match="enough"):
        compute_or_reuse(config, RunContext.open(tmp_path / "runs", "none"))
    folder = RunFolder(next((tmp_path / "runs").glob("qure-*")))
    (folder.path / SUMS).unlink()
    (folder.path / "error.txt").unlink()
    pristine = shutil.copytree(folder.path, tmp_path / "pristine")
    state = folder.checkpoint()
    content = (pristine / "checkpoint.pt").read_bytes()

    def again_with(damaged: bytes) -> int:
        shutil.rmtree(folder.path)
        shutil.copytree(pristine, folder.path)
        (folder.path / "checkpoint.pt").write_bytes(damaged)
        return run()

    for negatives in (state["state"]["negatives"], torch.tensor([]), state["state"]["negatives"][:3]):
        with subtests.test(negatives=negatives):
            assert again_with(as_checkpoint({**state, "state": {**state["state"], "negatives": negatives}})) == 2

    @fuzzed(spoilt(content) | changed(state, JSONS | st.sampled_from(TENSORS)).map(as_checkpoint))
    def trial(damaged: bytes) -> None:
        again_with(damaged)

    trial()


def test_ranks(sources, vector_sets, run, tmp_path):
    """Damaged rankings for `evaluate`, and damaged scores of a guide."""
    split = negbench.load_dataset("triplets", file=sources["triplets"], split="val", images=False)
    lists = {query.id: split.images[:5] for query in split.queries}
    lines = list[str]()
    for query, images in lists.items():
        lines += [f"{query} Q0 {image} {position + 1} {9 - position} x\n" for position, image in enumerate(images)]
    config = load_config(flags={"strategy": {"name": "qure"}}, sets=[*vector_sets, "train.epochs=1"])
    folder = compute_or_reuse(config, RunContext.open(tmp_path / "done", "none")).folder
    kinds = {
        "json": changed(lists, JSONS).map(as_json) | spoilt(as_json(lists)),
        "parquet": spoilt((folder.path / "ranks.parquet").read_bytes()),
        "trec": spoilt("".join(lines).encode()),
    }

    @fuzzed(st.data())
    def trial(data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from(sorted(kinds)))
        file = tmp_path / f"x.{kind}"
        file.write_bytes(data.draw(kinds[kind]))
        if kind == "trec":  # a guide
            run("--set", f"mining.guide='{file}'", "--set", "mining.guide_margin=0.1")
        else:
            outcome("evaluate", "--ranks", file, "--dataset", sources["triplets"])

    trial()


# --- folders from others --------------------------------------------------------------------------------------------


def is_read_or_refused(action: Callable[[], object]) -> None:
    """Run an action: whatever is wrong with its files is one line."""
    with contextlib.suppress(NegbenchError):
        action()


def test_lines_of_jobs(vector_flags, tmp_path):
    """A changed line of cells.jsonl is computed, or refused in one line; it names neither a folder nor code."""
    jobs = tmp_path / "jobs"
    grid = ["compare", "--strategies", "qure", "--seeds", "1", "--lr", "fixed", "--executor", f"jobs:{jobs}"]
    assert command_line([*grid, *vector_flags, "--runs-dir", str(tmp_path / "runs"), "--tracking-uri", "none"]) == 75
    line = (jobs / "cells.jsonl").read_bytes()
    changes = changed(json.loads(line), JSONS | st.sampled_from(WORDS)).map(as_json)

    @fuzzed(spoilt(line) | changes)
    def trial(content: bytes) -> None:
        shutil.rmtree(jobs)
        jobs.mkdir()
        (jobs / "cells.jsonl").write_bytes(content)
        is_read_or_refused(lambda: compute_line(jobs, 0, Trusted(tmp_path / "runs", (), "none")))
        assert [path for path in tmp_path.rglob("*.json*") if path.parent != jobs and "runs" not in path.parts] == []

    trial()


def test_json_of_received_folders(vector_flags, tmp_path):
    """comparison.json, and a run's config.json and result.json, with hashes that fit."""
    runs = tmp_path / "runs"
    grid = ["compare", "--strategies", "qure", "--seeds", "1", "--lr", "fixed", "--name", "c", "--no-report"]
    flags = [*vector_flags, "--set", "train.epochs=2", "--runs-dir", str(runs), "--tracking-uri", "none"]
    assert command_line([*grid, *flags]) in (0, 2)
    run = next(runs.glob("qure-*"))
    paths = [path for path in (runs / "c" / "comparison.json", *run.glob("*.json")) if path.name != "mlflow.json"]
    contents = {path: path.read_bytes() for path in paths}

    @fuzzed(st.data())
    def trial(data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(paths))
        parts = JSONS | st.sampled_from(WORDS)
        other = changed(json.loads(contents[path]), parts).map(as_json)
        path.write_bytes(data.draw(other | spoilt(contents[path])))
        (path.parent / SUMS).unlink(missing_ok=True)
        is_read_or_refused(lambda: results_of(runs, "c"))
        path.write_bytes(contents[path])

    trial()
