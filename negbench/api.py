"""The public functions: plug-ins for one's own training loop, and the commands for Python.

A plug-in is named as on the command line ("qure", "qure:variant=release"), by a table ({"name": "qure", "variant":
"release"}), or given as an object. What is computed stands in a configuration, so an object is taken for its class and
its options: a Strategy or a Loss for its fields, a backbone or a data set that `make_backbone` or `load_dataset` made
for the options it was made with. It is made anew in each run; weights that were changed since do not count.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from negbench import files, options
from negbench.config import by_run
from negbench.contracts import Backbone, Loss, Strategy
from negbench.errors import OptionError
from negbench.registry import SECTIONS, checked_options, constructor_of, option_defaults, registry

if TYPE_CHECKING:
    from rich.console import Console

    from negbench.command_options import Audit as AuditOptions
    from negbench.command_options import Embed as EmbedOptions
    from negbench.datasets.dataset import Dataset
    from negbench.executors import Executor
    from negbench.loop.types import RunResult
    from negbench.own.audit import AuditResult
    from negbench.own.embed import EmbeddedFolder
    from negbench.report.loaded import Comparison, StudyResult
    from negbench.runfolder import Overwrite

Named = str | Mapping[str, Any]

_MADE: dict[int, dict[str, Any]] = {}  # id of an object that was made here -> its section


def _made(kind: str, name: str, options: Mapping[str, Any]) -> Any:
    """An object by registry key, whose section is remembered as long as it lives."""
    found = registry.make(kind, name, **options)
    held = by_run(next(section for section, each in SECTIONS.items() if each == kind))
    _MADE[id(found)] = {"name": name, **{key: value for key, value in options.items() if key not in held}}
    weakref.finalize(found, _MADE.pop, id(found), None)
    return found


def make_strategy(name: str, **options: Any) -> Strategy:
    """Strategy by registry key, e.g. ``make_strategy("qure", variant="paper").pool(view)``.

    >>> make_strategy("top-k", k=5)
    TopK(k=5, halve=False)
    """
    strategy: Strategy = registry.make("strategies", name, **options)
    return strategy


def make_loss(name: str, **options: Any) -> Loss:
    """Loss by registry key, e.g. ``make_loss("bradley-terry")(positive, negatives)``."""
    loss: Loss = registry.make("losses", name, **options)
    return loss


def make_backbone(name: str, **options: Any) -> Backbone:
    """Backbone by registry key, e.g. ``make_backbone("clip", weights="...")``."""
    backbone: Backbone = _made("backbones", name, options)
    return backbone


def load_dataset(name: str, **options: Any) -> Dataset:
    """Data set by registry key, e.g. ``load_dataset("fashioniq", root="...", split="val")``.

    The result has `.images` (ids, the columns of scores), `.queries` and `.evaluate(scores) -> dict`; annotations alone
    are enough with ``images=False``.
    """
    dataset: Dataset = _made("datasets", name, options)
    return dataset


def list_plugins(kind: str) -> list[str]:
    """Registry keys of one kind: strategies, losses, backbones or datasets.

    >>> list_plugins("losses")[:2]
    ['bradley-terry', 'hcl']
    """
    return list(registry.plugins(kind))


# --- plug-ins as a configuration names them --------------------------------------------------------------------------


def _section(kind: str, given: Any, plugins: list[str]) -> Named:
    """A name or a table as it is; an object by its class and options. Files of classes are added to `plugins`.

    Raises:
        OptionError: an object that no configuration can name.
    """
    if isinstance(given, str | Mapping):
        return given
    if id(given) in _MADE:
        return _MADE[id(given)]
    if kind in ("backbones", "datasets"):
        maker = {"backbones": "make_backbone", "datasets": "load_dataset"}[kind]
        raise OptionError(
            f"a {type(given).__name__} that negbench.{maker} did not make has no name in a configuration: make it "
            f"there, or give its name and options"
        )
    if not isinstance(given, Strategy if kind == "strategies" else Loss):
        raise OptionError(f"{kind}: want names or objects of that kind, got {type(given).__name__}")
    return {"name": _name_of(kind, type(given), plugins), **_options_of(kind, given)}


def _name_of(kind: str, cls: type, plugins: list[str]) -> str:
    """Registry key of a class; the file of a class that is in no registry is registered, as --plugin does."""
    for name, plugin in registry.plugins(kind).items():
        if cls.__module__ == plugin.module and registry.get(kind, name) is cls:
            if plugin.path is not None:
                plugins.append(str(plugin.path))
            return name
    import sys

    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file is None or cls.__module__ == "__main__":
        raise OptionError(
            f"{cls.__name__} is defined in no file of its own, from which a run could make it: write the class into one"
        )
    names = registry.add_file(Path(file))
    plugins.append(str(Path(file).resolve()))
    for name in names:
        if registry.get(kind, name).__name__ == cls.__name__:
            return name
    raise OptionError(f"{file} offers no plug-in {cls.__name__}")


def _options_of(kind: str, given: Any) -> dict[str, Any]:
    """The options that make an equal object: those that are not the defaults."""
    constructor = constructor_of(kind, type(given))
    defaults = option_defaults(constructor)
    fields = {field.name for field in dataclasses.fields(given)} if dataclasses.is_dataclass(given) else None
    lost = [name for name in defaults if not hasattr(given, name) or (fields is not None and name not in fields)]
    if lost:
        raise OptionError(f"a {type(given).__name__} does not tell its option '{lost[0]}': give its name and options")
    options = {name: getattr(given, name) for name, default in defaults.items() if getattr(given, name) != default}
    checked_options(kind, type(given).__name__, constructor, options)  # raises where text cannot carry a value
    return options


def _axis(kind: str, given: Any, plugins: list[str]) -> list[Named] | str | None:
    """One axis of a grid: 'all' or 'a,b', one plug-in, or a list of them."""
    if given is None or isinstance(given, str):
        return given
    several = isinstance(given, Sequence) and not isinstance(given, Mapping)
    return [_section(kind, each, plugins) for each in (given if several else [given])]


def _layer(given: Mapping[str, Any]) -> dict[str, Any]:
    """Single plug-ins by section, and the files that define them, as a layer of a configuration."""
    from negbench.config import plugin_section

    plugins = list[str]()
    found: dict[str, Any] = {}
    for section, each in given.items():
        if each is not None:
            named = _section(SECTIONS[section], each, plugins)
            found[section] = plugin_section(SECTIONS[section], named)
    return found | ({"plugins": plugins} if plugins else {})


# --- the commands ----------------------------------------------------------------------------------------------------


def run(
    *,
    strategy: Named | Strategy | None = None,
    backbone: Named | Backbone | None = None,
    dataset: Named | Dataset | None = None,
    loss: Named | Loss | None = None,
    seed: int | None = None,
    recipe: Path | str | None = None,
    sets: Sequence[str] = (),
    runs_dir: Path | None = None,
    tracking_uri: str | None = None,
) -> RunResult:
    """Train and score one run, as `negbench run` does; returns `.metrics`, `.run_id` and `.path`.

    Args:
        strategy, backbone, dataset, loss: names or objects; left out, the recipe's or the default.
        seed: of initial weights, batches and draws.
        recipe: TOML file or name, as `--recipe`.
        sets: 'section.key=value' texts, as `--set`.
        runs_dir: where the run's folder and the MLflow store lie; default NEGBENCH_RUNS or ./runs.
        tracking_uri: MLflow store; default the sqlite file in `runs_dir`.
    """
    from negbench.loop.runs import Bench, run_config
    from negbench.systems.system import load_config

    flags = _layer({"strategy": strategy, "backbone": backbone, "dataset": dataset, "loss": loss})
    where = None if recipe is None else Path(recipe)
    config = load_config(recipe=where, flags={**flags, "seed": seed}, sets=sets)
    return run_config(config, Bench.open(runs_dir, tracking_uri))


def compare(
    strategies: Any = None,
    *,
    losses: Any = None,
    backbones: Any = None,
    datasets: Any = None,
    seeds: int | Sequence[int] | None = None,
    negatives: Sequence[int] | None = None,
    name: str | None = None,
    workers: int | None = None,
    executor: str | Executor = "pool",
    address: str | None = None,
    overwrite: Overwrite = "failed",
    baseline: str | None = None,
    metric: str | None = None,
    margin: float = 0.5,
    alpha: float = 0.05,
    audit: bool = True,
    report: bool = True,
    tuned: int | None = None,
    search: Sequence[str] = (),
    recipe: Path | str | None = None,
    sets: Sequence[str] = (),
    runs_dir: Path | None = None,
    tracking_uri: str | None = None,
) -> Comparison:
    """Compute every combination once, as `negbench compare` does; the same call goes on where it stopped.

    Progress is told to the logger `negbench`, at level INFO.

    Args:
        strategies, losses, backbones, datasets: 'cir', 'all', 'a,b', a name, a table, an object, or a list of these;
            left out, the recipe's or the default.
        seeds: a count, or a list; default 3.
        negatives: per query and step, an axis; default each strategy's own number.
        name: folder and MLflow experiment; default from the grid.
        workers: cells at a time; default 1, with Ray as many as there is room for.
        executor, address: where, as the flags: 'pool', 'ray', 'ray:gpus=0.5', or an executor of your own.
        overwrite: failed, never or always.
        baseline: strategy that all are compared with; default in-batch, else all-corpus.
        metric: what the verdicts are about; default the data set's main metric.
        margin: differences within this many points are a tie.
        alpha: level of the tests.
        audit: whether the strategies are audited on the untrained model, too.
        report: whether the HTML page is written.
        tuned: also compare at equal tuning, so many trials for every strategy, as comparison NAME-tuned.
        search: with `tuned`: KEY=LOW:HIGH, searched for every strategy.
        recipe, sets, runs_dir, tracking_uri: as in `run`.

    Raises:
        NegbenchError: a user's mistake, or cells that failed.
    """
    from negbench.analysis.verdicts import Rules
    from negbench.commands.cells import executor_of
    from negbench.commands.compare import build_grid, compare_grid

    rules, plugins = Rules.of_flags(baseline, margin, alpha, metric), list[str]()
    given = {"strategies": strategies, "losses": losses, "backbones": backbones, "datasets": datasets}
    axes: dict[str, Any] = {kind: _axis(kind, each, plugins) for kind, each in given.items()}
    axes |= {"seeds": seeds if seeds is None or isinstance(seeds, int) else list(seeds)}
    axes |= {"negatives": None if negatives is None else list(negatives)}
    layer, runs = {"plugins": plugins} if plugins else {}, files.runs_dir(runs_dir)
    grid = build_grid(axes, {}, None if recipe is None else Path(recipe), sets, layer)
    found = compare_grid(
        grid,
        runs,
        rules,
        console=_silent(),
        name=None if name is None else files.checked_name(name, "name"),
        executor=executor_of(executor, address, workers, runs),
        overwrite=overwrite,
        audit=audit,
        report=report,
        tuned=tuned,
        search=search,
        tracking_uri=tracking_uri,
    )
    assert found is not None  # no dry run
    return found


def study(asked: options.Study, *, console: Console | None = None) -> StudyResult:
    """Search a strategy's knobs, as `negbench study` does; the same call resumes.

    Args:
        asked: options; plug-ins as in `run`.
        console: where the tables are printed; default: nowhere.

    Raises:
        NegbenchError: settings that make no study, or a default that cannot be computed.
    """
    from negbench.commands.cells import executor_of
    from negbench.report.loaded import StudyResult
    from negbench.report.study import finish
    from negbench.tuning import search

    plugins, given = list[str](), {section: getattr(asked, section) for section in SECTIONS}
    named = {key: _section(SECTIONS[key], each, plugins) for key, each in given.items() if each is not None}
    asked = asked.model_copy(update={**named, "plugin": (*asked.plugin, *map(Path, plugins))})
    console = console or _silent()
    executor = executor_of(asked.executor, asked.address, asked.workers, files.runs_dir(asked.runs_dir))
    book, final = search.study(asked, executor, lambda line: console.print(line, highlight=False, soft_wrap=True))
    finish(console, book, final, asked.tracking_uri)
    return StudyResult(book.folder)


def audit(asked: AuditOptions | None = None) -> AuditResult:
    """What strategies would draw, without training, as `negbench audit` prints it; `.frame()` has a row a strategy.

    Args:
        asked: `negbench.Audit(...)`; its strategies, backbone and dataset may be objects of `make_strategy`,
            `make_backbone` and `load_dataset`.

    Raises:
        NegbenchError: a user's mistake.
    """
    from negbench.command_options import Audit
    from negbench.own.audit import run_audit

    asked, plugins = asked or Audit(), list[str]()
    named: dict[str, Any] = {"strategies": _axis("strategies", asked.strategies, plugins)}
    for section in ("backbone", "dataset"):
        if (given := getattr(asked, section)) is not None:
            named[section] = _section(SECTIONS[section], given, plugins)
    return run_audit(asked.model_copy(update={**named, "plugin": (*asked.plugin, *map(Path, plugins))}))


def embed(asked: EmbedOptions) -> EmbeddedFolder:
    """Embed every image and text that the triplets of a folder name, as `negbench embed` does, for `precomputed`.

    Args:
        asked: `negbench.Embed(folder=..., encoder=...)`.

    Returns:
        What was written; its `backbone` and `dataset` are for `audit`, `compare` and `run`.

    Raises:
        NegbenchError: a user's mistake: triplets or images that are missing, an encoder that cannot be loaded or that
            returns something else. What an object of yours raises is left as it is.
    """
    from negbench.own.embed import embed_folder

    return embed_folder(asked)


def load(name: str | Path, runs_dir: Path | None = None) -> Comparison | StudyResult | RunResult:
    """A comparison, a study or a finished run by its name, a part of a run's name, or its folder.

    Raises:
        RunError: there is none of this name, or it is not finished.
    """
    from negbench.report.loaded import load as loaded

    path = Path(name)
    if path.is_dir() and len(path.parts) > 1:
        return loaded(path.parent, path.name)
    return loaded(files.runs_dir(runs_dir), str(name))


def _silent() -> Any:
    """A console that prints nothing: what is found is returned."""
    from rich.console import Console

    return Console(quiet=True)
