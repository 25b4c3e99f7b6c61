"""Registered plug-ins are complete, and every misspelt name or option gives a one-line error with the fix."""

import ast
import dataclasses
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from negbench.cli.explain import options_of
from negbench.contracts import Loss, Range, ScoreView, Strategy, tunable_ranges
from negbench.errors import NegbenchError, OptionError, UnknownNameError
from negbench.plugins import registry as plugins
from negbench.plugins import syntax
from negbench.plugins.registry import KINDS, Registry, _plugins_in, make_options, option_defaults, registry
from negbench.settings.layers import parse_plugin
from tests.plugin_file import ANSWER, PLUGIN

TESTS = Path(__file__).parent


def built_in_plugins() -> list[tuple[str, str]]:
    """Return the kind and the name of every built-in plug-in."""
    keys = list[tuple[str, str]]()
    for kind in KINDS:
        keys += [(kind, name) for name, plugin in registry.plugins(kind).items() if plugin.origin == "built-in"]
    return keys


EVERY = built_in_plugins()
FIELDED = [(kind, name) for kind, name in EVERY if kind in ("strategies", "losses")]


@pytest.fixture
def plugin_file(tmp_path: Path) -> Path:
    path = tmp_path / "my_own.py"
    path.write_text(PLUGIN, encoding="utf-8")
    return path


# --- completeness ---------------------------------------------------------------------------------------------------


def test_every_key_has_its_files_and_a_description(subtests):
    texts = {}
    for kind in KINDS:
        paths = (TESTS / kind).glob("test_*.py")
        texts[kind] = "".join(path.read_text("utf-8") for path in paths)
    for kind, name in EVERY:
        with subtests.test(kind=kind, name=name):
            source = registry.find(kind, name).source()
            assert source.is_file()
            assert source.stem == name.replace("-", "_")
            has_own_tests = (TESTS / kind / f"test_{source.stem}.py").is_file()
            class_name = registry.get(kind, name).__name__
            assert has_own_tests or f'"{name}"' in texts[kind] or class_name in texts[kind], name
            (described,) = [description for description in registry.describe(kind) if description.name == name]
            assert described.summary.endswith((".", ":")), name
            assert len(described.summary) > 10
            assert described.paper
            assert described.origin == "built-in"


def test_every_default_builds_and_lies_in_its_range(subtests):
    for kind, name in FIELDED:
        with subtests.test(kind=kind, name=name):
            plugin = registry.make(kind, name)
            assert isinstance(plugin, Strategy if kind == "strategies" else Loss)
            options = dataclasses.asdict(plugin)
            assert registry.make(kind, name, **options) == plugin
            assert registry.make(kind, name, **json.loads(json.dumps(options))) == plugin
            for option, span in tunable_ranges(type(plugin)).items():
                value = options[option]
                if span.choices:
                    assert value in span.choices, option
                else:
                    assert span.low <= value <= span.high, option


def test_the_ends_of_every_range_build(subtests):
    for kind, name in FIELDED:
        with subtests.test(kind=kind, name=name):
            ranges = tunable_ranges(registry.get(kind, name))
            default = registry.make(kind, name)
            for option, span in ranges.items():
                whole = isinstance(getattr(default, option), int) and not span.choices
                for end in span.choices or (span.low, span.high):
                    options = {**widest_band(ranges, option), option: end}
                    if whole:
                        options = {key: int(value) for key, value in options.items()}
                    plugin = registry.make(kind, name, **options)
                    assert getattr(plugin, option) == options[option], f"{option}={end}"


def widest_band(ranges: Mapping[str, Range], option: str) -> dict[str, Any]:
    """Return the other ends of bands that an option is an end of, as far from it as they may be."""
    ends = {}
    if ranges[option].below:
        ends[ranges[option].below] = ranges[ranges[option].below].high
    for start, span in ranges.items():
        if span.below == option:
            ends[start] = span.low
    return ends


LOADED = Path(__file__).with_name("sums.py").read_text(encoding="utf-8")


def test_what_a_user_sets_is_a_dataclass_and_what_a_run_sets_a_parameter(subtests):
    by_run = {"backbones": ["seed"], "datasets": ["split", "images"]}
    for kind, name in EVERY:
        with subtests.test(kind=kind, name=name):
            cls = registry.get(kind, name)
            assert dataclasses.MISSING not in option_defaults(cls).values(), name
            if kind in by_run:
                assert [*inspect.signature(cls.load).parameters] == ["options", *by_run[kind]], name
            else:
                assert plugins.options_class(cls) is cls


def test_options_of_a_loader(subtests, tmp_path, own_registry, mistakes):
    """Fields are separate from what the run sets; a required option, a type and a combination are checked."""
    file = tmp_path / "sums.py"
    file.write_text(LOADED, encoding="utf-8")
    registry.add_file(file)
    assert registry.make("backbones", "sums", width=3, seed=5) == (3, 1.0, ("a",), 5)
    assert registry.make("backbones", "sums", width=3, rate=2, names=["b"]) == (3, 2.0, ("b",), 0)
    for text, message in mistakes["sums"].items():
        with subtests.test(text=text):
            options = parse_plugin(text)
            with pytest.raises(NegbenchError) as caught:
                registry.make("backbones", options.pop("name"), **options)
            assert _message(caught) == message
    cls = registry.get("backbones", "sums")
    with pytest.raises(OptionError, match=r"backbone\.seed is set by the run itself: leave it out"):
        make_options(cls, {"width": 3, "seed": 1}, "sums")
    (option, *_) = options_of("backbones", "sums")
    assert (option.name, option.type, option.range, option.text) == ("width", "int", "1..9", "How wide.")
    file = tmp_path / "plain.py"
    file.write_text(LOADED.replace("options: Options", "options"), encoding="utf-8")
    registry.add_file(file)
    with pytest.raises(NegbenchError, match="annotate its first parameter with the dataclass of its options"):
        registry.make("backbones", "plain", width=3)


def test_what_reads_the_truth_declares_it_and_is_named_an_oracle():
    for name in registry.plugins("strategies"):
        source = registry.find("strategies", name).source().read_text(encoding="utf-8")
        words = set[str]()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Attribute):
                words.add(node.attr)
            elif isinstance(node, ast.Name):
                words.add(node.id)
        reads = bool(words & {"relevant", "not_relevant"})
        assert reads == registry.get("strategies", name).reads_truth == name.startswith("oracle-"), name


# --- discovery: a file that holds a plug-in class is a plug-in --------------------------------------------------------

CLASS = PLUGIN.replace('PAPER = "none"\n', "")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder whose files count as built-in strategies."""
    import negbench.strategies

    def plugins_in(folder: Path, kind: str, name: str, changed: int) -> tuple[plugins.Plugin, ...]:
        built_in = _plugins_in(folder, kind, name, changed)
        if kind != "strategies":
            return built_in
        return (*built_in, *_plugins_in.__wrapped__(tmp_path, kind, name, changed))

    monkeypatch.setattr("negbench.plugins.registry._plugins_in", plugins_in)
    monkeypatch.setattr(negbench.strategies, "__path__", [*negbench.strategies.__path__, str(tmp_path)])
    syntax._spec.cache_clear()
    yield tmp_path
    syntax._spec.cache_clear()


def test_a_file_that_names_its_paper_is_found(subtests, package):
    for text, paper in (
        (CLASS + '\nPAPER: str = "annotated"\n', "annotated"),
        (CLASS + '\nPAPER="no spaces"\n', "no spaces"),
        (CLASS.replace('"""Nothing at all."""\n', '"""Nothing at all."""\nPAPER = "in front"\n'), "in front"),
    ):
        with subtests.test(paper=paper):
            (package / "mine.py").write_text(text, encoding="utf-8")
            assert "mine" in registry.plugins("strategies")
            (described,) = [d for d in registry.describe("strategies") if d.name == "mine"]
            assert (described.summary, described.paper) == ("Nothing at all.", paper)


def test_a_file_without_a_source_is_no_plugin(package):
    for name, text in (("helper", "x = 1\n"), ("_private", CLASS)):
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    assert not {"helper", "-private", "_private"} & set(registry.plugins("strategies"))
    with pytest.raises(UnknownNameError, match="unknown strategy 'helper'"):
        registry.find("strategies", "helper")


def test_a_file_that_cannot_be_read_is_listed_with_its_fault(package):
    (package / "broken.py").write_text("def f(:\n", encoding="utf-8")
    (described,) = [d for d in registry.describe("strategies") if d.name == "broken"]
    assert "broken.py line 1: not valid Python: invalid syntax" in described.summary
    with pytest.raises(NegbenchError, match="strategy 'broken' of built-in cannot be imported"):
        registry.get("strategies", "broken")
    assert registry.get("strategies", "qure")  # the others still work


def test_a_data_set_declares_the_files_it_reads():
    endings = registry.get("datasets", "triplets").extensions
    for ending in endings:
        assert registry.reader_of(f"some/where{ending}") == "triplets", ending
        assert registry.reader_of(f"some/where{ending.upper()}") == "triplets", ending
    assert [registry.reader_of(name) for name in ("fashioniq", "a.txt", "csv", "", "hf", "of:b")] == [None] * 6


# --- options explained ------------------------------------------------------------------------------------------------


def test_every_option_is_explained(subtests):
    for kind, name in EVERY:
        with subtests.test(kind=kind, name=name):
            options = options_of(kind, name)
            assert [option.name for option in options] == list(option_defaults(registry.get(kind, name)))
            for option in options:
                assert len(option.text) > 3, f"{kind}/{name}: the docstring says nothing of '{option.name}'"
                assert option.type, option.name
                assert "\n" not in option.text, option.name


# --- mistakes -------------------------------------------------------------------------------------------------------


def _message(caught: pytest.ExceptionInfo[NegbenchError]) -> str:
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_mistakes_are_one_line(mistakes, subtests):
    for kind in KINDS:
        for text, message in mistakes[kind].items():
            with subtests.test(text=text):
                options = parse_plugin(text)
                with pytest.raises(NegbenchError) as refused:
                    registry.make(kind, options.pop("name"), **options)
                assert message in _message(refused), text
    with pytest.raises(UnknownNameError) as caught:
        registry.plugins("strategy")
    assert _message(caught) == "unknown kind of plug-in 'strategy': did you mean 'strategies'?"


# --- --plugin FILE.py -------------------------------------------------------------------------------------------------


def test_a_file_is_registered(plugin_file):
    fresh = Registry()
    assert fresh.add_file(plugin_file) == ["my-own"]
    assert fresh.add_file(plugin_file) == ["my-own"]  # adding it again changes nothing
    assert fresh.make("strategies", "my-own", k=4).k == 4
    assert fresh.plugins("strategies")["my-own"].origin == str(plugin_file)
    assert fresh.find("strategies", "my-own").path == plugin_file.resolve()
    (described,) = [d for d in fresh.describe("strategies") if d.name == "my-own"]
    assert (described.summary, described.paper) == ("Nothing at all.", "none")
    assert "my-own" not in registry.plugins("strategies")


def test_a_file_is_imported_again_if_it_or_what_it_imports_or_reads_has_changed(tmp_path, monkeypatch):
    """Regression: in a notebook, an edited plug-in gave the results of the old one."""
    (tmp_path / "beside").mkdir()
    plugin = tmp_path / "again.py"
    helper = tmp_path / "beside" / "size.py"
    data = tmp_path / "table.txt"
    head = "from pathlib import Path\nfrom beside import size\n"
    head += "READ = Path(__file__).with_name('table.txt').read_text()\n"
    text = PLUGIN.replace("from dataclasses", f"{head}READS = ('table.txt',)\nfrom dataclasses", 1)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    plugin.write_text(text.replace(ANSWER, "(size.K, READ, 1)"))
    helper.write_text("K = 1\n")
    data.write_text("one")
    fresh = Registry()

    def answers() -> list[object]:
        fresh.add_file(plugin)
        whole = fresh.make("strategies", "all-corpus:1>again")
        return [fresh.make("strategies", "again").pool(None), whole.pool(None)]

    assert answers() == [(1, "one", 1)] * 2
    before = fresh.get("strategies", "again")
    plugin.with_name("other.txt").write_text("not read")
    answers()
    assert fresh.get("strategies", "again") is before
    helper.write_text("K = 2\n")  # within the same second, of the same size
    assert answers() == [(2, "one", 1)] * 2
    plugin.write_text(plugin.read_text().replace("READ, 1", "READ, 2"))
    assert answers() == [(2, "one", 2)] * 2
    data.write_text("two")
    assert answers() == [(2, "two", 2)] * 2
    plugin.write_text("1 +")
    with pytest.raises(NegbenchError, match=r"again\.py line 1: not valid Python"):
        fresh.add_file(plugin)
    plugin.write_text(text.replace(ANSWER, "size.L"))
    helper.write_text("L = 3\n")
    assert answers() == [3, 3]


def test_an_installed_plugin_that_changes_is_refused_by_name(monkeypatch):
    plugin = registry.find("strategies", "qure")
    registry.get("strategies", "qure")
    plugins.check_unchanged(plugin)
    monkeypatch.setattr(plugins, "stamp", lambda path: (1,))
    with pytest.raises(NegbenchError, match=r"strategy 'qure': .*qure\.py changed after it was imported: rerun"):
        plugins.check_unchanged(plugin)


def test_a_file_holds_one_plugin_of_a_kind(tmp_path):
    path = tmp_path / "two.py"
    second = PLUGIN[PLUGIN.index("@dataclass") :].replace("Mine", "Other")
    path.write_text(f"{PLUGIN}\n\n{second}", encoding="utf-8")
    with pytest.raises(NegbenchError, match=r"two.py must define exactly one public Strategy class, found \['Mine',"):
        Registry().add_file(path)


def test_a_name_that_is_taken_is_refused(subtests, plugin_file, tmp_path):
    """Reusing another file's name fails when the file is added, a built-in's when plug-ins are listed."""

    def add_and_list(path: Path) -> None:
        fresh.add_file(path)
        fresh.plugins("strategies")

    fresh = Registry()
    fresh.add_file(plugin_file)
    for name, key, owner in (("my_own", "my-own", plugin_file), ("qure", "qure", "built-in")):
        with subtests.test(name=name):
            other = tmp_path / "elsewhere" / f"{name}.py"
            other.parent.mkdir(exist_ok=True)
            other.write_text(PLUGIN, encoding="utf-8")
            with pytest.raises(NegbenchError) as caught:
                add_and_list(other)
            assert f"two strategies are named '{key}': {owner} and {other}; rename one" == _message(caught)


def test_a_files_name_is_a_plain_name(plugin_file, subtests):
    for name in ("a b.py", "...py", f"{'x' * 200}.py"):
        with subtests.test(name=name):
            with pytest.raises(NegbenchError, match="expected a plain name"):
                Registry().add_file(plugin_file.rename(plugin_file.with_name(name)))
            plugin_file.with_name(name).rename(plugin_file)


def test_files_that_are_no_plugins(tmp_path):
    with pytest.raises(NegbenchError, match="no such file"):
        Registry().add_file(tmp_path / "absent.py")
    empty = tmp_path / "empty.py"
    broken = tmp_path / "broken.py"
    empty.write_text("x = 1\n", encoding="utf-8")
    broken.write_text("import no_such_module_of_anyone\n", encoding="utf-8")
    with pytest.raises(NegbenchError, match="defines no Strategy, Loss, Backbone or Dataset"):
        Registry().add_file(empty)
    half = tmp_path / "half.py"
    text = "import negbench\nclass Half(negbench.Backbone):\n    identity = feature_key = temperature = None\n"
    text += "    def queries(self, features, text): ...\n    def text_queries(self, text): ...\n"
    half.write_text(text, encoding="utf-8")
    with pytest.raises(NegbenchError, match=r"half.py: class Half lacks candidates, image_features, tokenize$"):
        Registry().add_file(half)
    with pytest.raises(NegbenchError, match=r"cannot be imported: ModuleNotFoundError: .*no_such_module_of_anyone"):
        Registry().add_file(broken)


def test_an_error_is_blamed_on_the_plugin_that_it_arose_in(tmp_path, own_registry):
    file = tmp_path / "broken.py"
    text = PLUGIN.replace(ANSWER, "view.scores[10**9]")
    file.write_text(text, encoding="utf-8")
    line = text[: text.index("view.scores")].count("\n") + 1
    registry.add_file(file)
    view = ScoreView(torch.zeros(2, 3), torch.tensor([0, 1]))
    with pytest.raises(IndexError) as caught:
        registry.make("strategies", "broken").pool(view)
    assert plugins.blame(caught.value).startswith(f"strategy 'broken' of {file} failed in line {line}: IndexError: ")
    with pytest.raises(ZeroDivisionError) as ours:
        assert 1 / 0
    assert plugins.blame(ours.value) is None
