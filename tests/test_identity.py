"""The code version changes with code that can move a score, of plug-ins only the run's own, and with nothing else."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from negbench.errors import NegbenchError
from negbench.loop import identity
from negbench.loop.identity import code_version, config_hash, plugins_of, read_files
from negbench.machine.contents import digest
from negbench.plugins import syntax
from negbench.plugins.registry import KINDS, registry
from negbench.settings.config import ResolvedConfig, RunConfig, build_config, resolve
from negbench.settings.layers import set_layer
from tests.plugin_file import ANSWER, PLUGIN

Edit = Callable[[str, str, str], None]
LOOP = ("negbench.loop.train", identity._file("negbench.loop.train"))

# modules that runs import but that do not count; each module states its reason
EXEMPT = {
    *("negbench.settings.config", "negbench.errors", "negbench.machine.files", "negbench.loop.identity"),
    *("negbench.settings.layers", "negbench.store.runfolder", "negbench.loop.observe", "negbench.loop.record"),
    *("negbench.plugins.registry", "negbench.machine.room", "negbench.machine.signals", "negbench.machine.free_memory"),
    *("negbench.loop.needs", "negbench.loop.progress", "negbench.machine.file_kinds", "negbench.data.unseen"),
    *("negbench.metrics.part_name", "negbench.machine.hardware"),
    *("negbench.machine.parquet_size", "negbench.datasets.doubts"),
}


def config_of(**names: str) -> ResolvedConfig:
    return resolve(build_config([{"strategy": "qure", **names}]))


@pytest.fixture
def edit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Edit]:
    """Return edit(module, old, new), which replaces text of a module's file in memory only."""
    changed: dict[Path, str] = {}

    def apply(module: str, old: str, new: str) -> None:
        path = syntax.locate(module)
        text = changed.get(path, path.read_text(encoding="utf-8"))
        assert old in text, f"{module} has no {old!r}: the test needs another line"
        changed[path] = text.replace(old, new, 1)
        syntax.forget()

    def read(path: Path) -> bytes:
        return changed[path].encode() if path in changed else path.read_bytes()

    monkeypatch.setattr(syntax, "_read", read)
    syntax.forget()
    yield apply
    monkeypatch.undo()
    syntax.forget()


RANKED = "negbench.strategies._ranked"


def test_what_moves_nothing_keeps_it(edit):
    before = code_version(config_of())
    for module, old, new in (
        (RANKED, "def below_target", "# one more word about it\n\n\ndef below_target"),
        (RANKED, "allowed images that score strictly", "other words: images that score strictly"),
        (RANKED, "return view.allowed & less(", "return (\n        view.allowed\n    ) & less("),
        ("negbench.mining.ask", "must return finite weights >= 0", "must give weights from 0 on"),
        ("negbench.loop.types", "    epoch: int = 0  # the next one", "    epoch: int = (0)"),
        # only under TYPE_CHECKING
        ("negbench.contracts.backbone", "    from PIL.Image import Image", "    from PIL import Image"),
    ):
        edit(module, old, new)
    assert code_version(config_of()) == before


def test_what_can_move_a_score_moves_it(edit):
    versions = {code_version(config_of())}
    edits = (
        (RANKED, "less(view.scores", "at_most(view.scores"),
        ("negbench.strategies.qure", "threshold: NonNegativeInt = 1", "threshold: NonNegativeInt = 2"),
        ("negbench.strategies.all_corpus", "view.allowed.clone()", "view.allowed"),  # the pool of the warm-up
        ("negbench.metrics.fixed", "DEFAULT_TEMPERATURE = 0.07", "DEFAULT_TEMPERATURE = 0.08"),
        ("negbench.backbones._fusion", "0.1", "0.2"),
        ("negbench.data.scene", "torch.arange(count)", "torch.arange(count + 0)"),
    )
    for module, old, new in edits:  # edits accumulate
        edit(module, old, new)
        versions.add(code_version(config_of()))
    assert len(versions) == 1 + len(edits)


OF_PLUGINS = [
    ("negbench.strategies.dqe", "tunable(0.8", "tunable(0.7", {"strategy": "dqe"}, {}),
    ("negbench.losses.info_nce", "return ", "return 2 * ", {"loss": "info-nce"}, {}),
    ("negbench.benchmarks.cirr", "return ", "return 2 * ", {"dataset": "cirr"}, {"dataset": "fashioniq"}),
    ("negbench.backbones._lavis", "return ", "return 2 * ", {"backbone": "blip2"}, {}),
]


@pytest.mark.parametrize(("module", "old", "new", "with_plugin", "without_plugin"), OF_PLUGINS)
def test_only_the_plugins_that_are_named_count(edit, module, old, new, with_plugin, without_plugin):
    config = config_of(**with_plugin)
    other_config = config_of(**without_plugin)
    version = code_version(config)
    other_version = code_version(other_config)
    edit(module, old, new)
    assert code_version(config) != version
    assert code_version(other_config) == other_version


def test_a_module_may_say_that_it_moves_nothing(edit):
    before = code_version(config_of())
    for module in EXEMPT:
        edit(module, "MOVES_SCORES = False", "MOVES_SCORES = False\nNEW = 1")
    assert code_version(config_of()) == before
    edit("negbench.machine.files", "MOVES_SCORES = False", "MOVES_SCORES = True")
    assert code_version(config_of()) != before


def test_what_a_run_imports_counts_or_says_that_it_does_not():
    """For every plug-in, all imported modules count or are in EXEMPT; reports, tracking etc. are not imported."""
    counting: dict[str, Path] = {}
    for kind in KINDS:
        for plugin in registry.plugins(kind).values():
            counting |= syntax.closure((LOOP, (plugin.module, plugin.source())))
    assert {"negbench.loop.objective", "negbench.mining.mine", "negbench.scoring.evaluation"} <= counting.keys()
    assert {"negbench.data.features", "negbench.benchmarks._tirg", "negbench.backbones._blip"} <= counting.keys()
    reached = set().union(*(syntax.imports(module, path) for module, path in counting.items()))
    assert reached - counting.keys() == EXEMPT
    away = {"report", "cli", "study", "grid", "audit", "testing", "tracking", "display", "executors"}
    assert not away & {name.split(".")[1] for name in reached}


def test_a_plugin_file_counts_by_what_it_does_and_not_by_its_path(tmp_path, own_registry):
    def hash_of(folder: str, text: str, **more: str) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        files = []
        for name, content in {"mine": text, **more}.items():
            path = tmp_path / folder / f"{name}.py"
            path.write_text(content, encoding="utf-8")
            files.append(str(path))
        own_registry()
        config = resolve(build_config([{"strategy": "mine", "plugins": files}]))
        mine = tmp_path / folder / "mine.py"
        assert {plugin.path for plugin in plugins_of(config)} == {None, mine}  # the built-in ones, and its file
        return config_hash(config, data="d")

    before = hash_of("a", PLUGIN)
    assert hash_of("d", PLUGIN.replace("class Mine", "# a comment\nclass Mine")) == before
    assert hash_of("b", PLUGIN) == before
    assert hash_of("c", PLUGIN, another=PLUGIN) == before  # registered but unused
    assert hash_of("e", PLUGIN.replace(ANSWER, "view.allowed")) != before


def test_what_a_plugin_file_imports_and_reads_counts(tmp_path, monkeypatch, own_registry, subtests):
    """Regression: with a helper of the plug-in changed, old results were returned."""
    (tmp_path / "beside").mkdir()
    helper = tmp_path / "own_helper.py"
    deeper = tmp_path / "beside" / "deeper.py"
    data = tmp_path / "table.bin"
    other = tmp_path / "other.bin"
    imports = "import json\nimport numpy\nimport own_helper\nfrom negbench import ScoreView"
    plugin = tmp_path / "mine.py"
    plugin.write_text(PLUGIN.replace("from negbench import ScoreView", imports) + "\nREADS = ('table.bin',)\n")
    helper.write_text("from beside import deeper\n")
    deeper.write_text("K = 1\n")
    data.write_bytes(b"one")
    other.write_bytes(b"one")
    monkeypatch.syspath_prepend(str(tmp_path))

    def version() -> str:
        full = resolve(config)  # imports again what has changed
        return code_version(full) + digest(read_files(full), tmp_path)

    config = resolve(build_config([{"strategy": "mine", "plugins": [str(plugin)]}]))
    modules = syntax.closure((("--plugin mine.py", plugin),))
    own_modules = {name for name in modules if not name.startswith("negbench")}
    assert own_modules == {"--plugin mine.py", "own_helper", "beside.deeper"}
    versions = [version()]
    changes = {helper: b"from beside import deeper\nK = 1\n", deeper: b"K = 2\n", data: b"two"}
    for path, content in changes.items():
        with subtests.test(file=path.name):
            path.write_bytes(content)
            with pytest.raises(NegbenchError, match=rf"strategy 'mine': .*{path.name} changed after it was imported"):
                code_version(config)
            versions.append(version())
    assert len(set(versions)) == len(versions)
    deeper.write_text("K = 2  # a comment\n")
    other.write_bytes(b"two")
    assert version() == versions[-1]
    data.unlink()
    with pytest.raises(NegbenchError, match=r"table\.bin: READS names this file, but there is none"):
        version()


def test_the_hash_is_of_what_determines_the_outcome():
    def hash_of(*layers: dict[str, object], data: str = "d") -> str:
        return config_hash(resolve(build_config([{"strategy": "qure"}, *layers])), data=data)

    same = hash_of()
    assert hash_of({"strategy": {"name": "qure", "variant": "paper"}}) == same  # the default, given explicitly
    assert hash_of({"compute": {"workers": 3}}) == same
    assert hash_of({"dataset": {"root": "elsewhere"}}) == same  # the data's identity counts, not its path
    assert hash_of({"schedule": {"refresh_epochs": [2, 4, 6, 8, 10]}}) == same  # what n_def and the rule resolve to
    assert hash_of({"schedule": {"rule": "equal"}}) == same
    assert hash_of({"eval": {"dev_seed": 0}}) == same
    others = ("seed=1", "train.epochs=3", "strategy.variant=release", "loss=info-nce", "eval.dev_seed=1")
    for other in (*others, "schedule.refresh_epochs=[2,4,6,8]", "mining.exclude_relevant=true"):
        assert hash_of(set_layer(other)) != same, other
    assert hash_of(data="e") != same


# A run's identity leaves out what is at its default, so a default may never change: give a new choice a new key.
DEFAULTS = {
    "train": {
        "epochs": None, "batch_size": None, "lr": None, "weight_decay": None, "min_lr_ratio": 0.01, "lr_update": "step",
        "lr_warmup_epochs": 0.0, "num_negatives": None, "max_grad_norm": None, "precision": "auto",
        "wrong": 0.0, "wrong_kind": "all", "lr_schedule": "cosine", "lr_start_ratio": 0.04, "lr_schedule_epochs": None,
        "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "drop_last": False, "vary_captions": False, "clean_after": None,
        "temperature_rate": 1.0, "temperature_least": None,
    },
    "mining": {
        "exclude_relevant": False, "exclude_reference": False, "replacement": False, "redraw": True, "guide": None,
        "judge": None, "exclude_subset": False, "margin": None, "relative_margin": None, "guide_margin": None,
        "max_judge": None, "max_target": None, "max_reference": None,
    },
    "hybrid": {"slots": "sum", "alpha": 0.0, "beta": 0.0, "temperature": "auto"},
    "eval": {
        "every": 1, "select": "last", "dev_fraction": 0.1, "dev_seed": None, "dev": "carved", "reported": True,
        "also": None,
    },
}  # fmt: skip


@pytest.mark.parametrize("section", DEFAULTS)
def test_a_default_of_the_configuration_never_changes(section):
    defaults = RunConfig.model_fields[section].default.model_dump()
    assert defaults == DEFAULTS[section], "a new key needs a row here; a default that changes renames no stored run"


def test_a_key_at_its_default_is_not_part_of_the_identity():
    identity = resolve(build_config([{"strategy": "qure"}])).identity()
    assert identity["strategy"] == {"name": "qure"}
    assert identity["mining"] == identity["hybrid"] == {}
    assert set(identity["train"]) == {"epochs", "batch_size", "lr", "weight_decay", "num_negatives"}  # resolved numbers
    assert identity["dataset"] == {"name": "synthetic", "world": 0}
    changed = resolve(build_config([set_layer("strategy.variant=release"), set_layer("strategy=qure")])).identity()
    assert changed["strategy"] == {"name": "qure", "variant": "release"}


def test_one_draw_an_interval_leaves_replacement_nothing_to_do():
    one_draw = build_config([{"strategy": "qure"}, set_layer("mining.redraw=false")])
    both = build_config([{"strategy": "qure"}, set_layer("mining.redraw=false"), set_layer("mining.replacement=true")])
    assert resolve(one_draw).identity() == resolve(both).identity()
    assert resolve(one_draw).identity()["mining"] == {"redraw": False}
