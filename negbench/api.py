"""Public functions: plug-ins for your own training loop, and the commands as Python functions.

Name a plug-in as on the command line ("qure", "qure:variant=release"), or by a table ({"name": "qure", "variant":
"release"}); give the file of your own class in the option `plugin`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from negbench.contracts import Backbone, Loss, Strategy
from negbench.display import notes
from negbench.errors import NegbenchError
from negbench.machine import files
from negbench.plugins.registry import registry
from negbench.settings.layers import flag_layer
from negbench.settings.options import Compare, Named, Run

if TYPE_CHECKING:
    from rich.console import Console

    from negbench.analysis.verdicts import Rules
    from negbench.checks.audit import AuditResult
    from negbench.datasets.dataset import Dataset
    from negbench.grid.compare import ComparisonPlan
    from negbench.loop.types import RunResult
    from negbench.own.embed import EmbeddedFolder
    from negbench.own.negatives import MinedNegatives
    from negbench.report.loaded import Comparison, StudyResult
    from negbench.settings.command_options import Audit, Embed
    from negbench.settings.options import Study
    from negbench.tuning.tuned import Combination


def make_strategy(name: str, **options: Any) -> Strategy:
    """Make a strategy by registry key, e.g. ``make_strategy("qure", variant="paper").pool(view)``.

    >>> make_strategy("top-k", k=5)
    TopK(k=5, halve=False)
    """
    strategy: Strategy = registry.make("strategies", name, **options)
    return strategy


def make_loss(name: str, **options: Any) -> Loss:
    """Make a loss by registry key, e.g. ``make_loss("bradley-terry")(positive, negatives)``."""
    loss: Loss = registry.make("losses", name, **options)
    return loss


def make_backbone(name: str, **options: Any) -> Backbone:
    """Make a backbone by registry key, e.g. ``make_backbone("clip", weights="...")``."""
    backbone: Backbone = registry.make("backbones", name, **options)
    return backbone


def load_dataset(name: str, **options: Any) -> Dataset:
    """Load a data set by registry key, e.g. ``load_dataset("fashioniq", root="...", split="val")``.

    The result has `.images` (ids, the columns of scores), `.queries` and `.evaluate(scores) -> dict`; annotations alone
    are enough with ``images=False``.
    """
    dataset: Dataset = registry.make("datasets", name, **options)
    return dataset


def list_plugins(kind: str) -> list[str]:
    """List the registry keys of one kind: strategies, losses, backbones or datasets.

    >>> list_plugins("losses")[:2]
    ['bradley-terry', 'hcl']
    """
    return list(registry.plugins(kind))


# --- the commands ----------------------------------------------------------------------------------------------------


def run(
    *,
    strategy: Named | None = None,
    backbone: Named | None = None,
    dataset: Named | None = None,
    loss: Named | None = None,
    seed: int | None = None,
    recipe: Path | str | None = None,
    sets: Sequence[str] = (),
    options: Run | None = None,
) -> RunResult:
    """Train and score one run, as `negbench run` does; returns `.metrics`, `.run_id` and `.path`.

    Args:
        strategy, backbone, dataset, loss: names or tables; default: the recipe's.
        seed: seed of initial weights, batches and draws.
        recipe: TOML file or name, as `--recipe`.
        sets: 'section.key=value' texts, as `--set`.
        options: where the run is stored and all other options; the keywords above override it.

    Raises:
        NegbenchError: a user's mistake, raised before anything is computed if possible.
    """
    from negbench.display import Display, progress_console
    from negbench.loop.remarks import check_idle
    from negbench.loop.runs import SCENES, Bench, plan_run, run_config
    from negbench.systems.system import load_config

    given: dict[str, Any] = {"strategy": strategy, "backbone": backbone, "dataset": dataset, "loss": loss, "seed": seed}
    given |= {"recipe": recipe, "sets": tuple(sets) or None}
    asked = (options or Run()).but(**{key: value for key, value in given.items() if value is not None})
    named = {"system": asked.system} if asked.system else {}
    flags = flag_layer(asked) | named
    remarks = list[str]()
    config = load_config(recipe=asked.recipe, flags=flags, sets=asked.sets, note=remarks.append)
    display = Display(progress_console())
    with display.live():
        bench, planned = Bench.open(asked.runs_dir, asked.tracking_uri), plan_run(config, SCENES)
        notes([*remarks, *check_idle([("this run", config, planned.config)], asked.sets, SCENES)])
        return run_config(planned, replace(bench, scenes=SCENES, display=display, tags=named))


def compare(asked: Compare | None = None, *, console: Console | None = None, **options: Any) -> Comparison:
    """Compute every combination of the axes once, as `negbench compare` does; call it again to resume.

    Progress is a bar in a notebook; elsewhere it goes to the logger `negbench`, at level INFO.

    Args:
        asked: `negbench.Compare(...)`: the axes and all other options.
        console: where the tables are printed; default: nowhere.
        options: fields of `negbench.Compare`, e.g. ``strategies=["qure", "top-k"], seeds=3``, in place of those of
            `asked`.

    Raises:
        NegbenchError: a user's mistake, or failed cells; raised after all other cells are computed and judged.
    """
    from negbench.analysis.deciding import open_strategies
    from negbench.checks.forewarn import forewarn
    from negbench.grid.cells import Outcome
    from negbench.grid.compute import Execution, raise_failed
    from negbench.grid.estimate import MANY
    from negbench.grid.until import Until, computed_until
    from negbench.loop.runs import SCENES

    asked, console = (asked or Compare()).but(**options), console or _silent()
    execution = Execution.of(asked)
    planned, rules, searches = plan_compare(asked, console)
    until = Until(rules.looks, open_strategies(planned.folder, rules), _say(console))
    path, errors = planned.folder.path, list[str]()
    for line in planned.price(rules.looks, execution.estimate) if len(planned.cells) >= MANY else ():
        _say(console)(line)
    with planned.folder.hold():
        with execution.open():
            trials = list[Outcome]()
            if planned.rates is not None:
                execution.estimate.later = planned.epochs_after_trials(rules.looks)
                rates, trials = planned.rates.computed(planned.trials, execution, SCENES)
                planned = replace(planned, rates=rates).at_best_rates()
            if not execution.executor.elsewhere:
                forewarn(planned.cells, path.parent, rules.margin)
            outcomes = computed_until(planned.folder, planned.cells, planned.more, until, execution)
            if searches:
                from negbench.tuning.tuned import computed_tuned

                tuned, errors = computed_tuned(planned, searches, outcomes, until, execution)
                outcomes += tuned
            else:
                planned.folder.settle(outcomes)
        # import reporting only once the cells are computed
        from negbench.report.finish import finish
        from negbench.report.loaded import Comparison

        if any(outcome.run_id for outcome in outcomes):
            finish(console, path.parent, path.name, asked.tracking_uri, rules, report=planned.asked.report)
    if errors:
        raise NegbenchError(
            f"{len(errors)} of {len(searches)} searches failed ({errors[0]}); rerun the command to resume"
        )
    raise_failed([*trials, *outcomes])
    return Comparison(path)


def plan_compare(asked: Compare, console: Console) -> tuple[ComparisonPlan, Rules, list[Combination]]:
    """Plan what `compare` would compute, with the searches of `--tuned`, and print how much of it is finished.

    Raises:
        NegbenchError: a user's mistake, or data that are missing.
    """
    from negbench.analysis.deciding import rules_of
    from negbench.grid.compare import over_recipe, plan_comparison

    asked, say = over_recipe(asked), _say(console)
    planned = plan_comparison(asked, files.runs_dir(asked.runs_dir))
    rules = rules_of(planned)
    say(planned.line())
    searches = []
    if asked.tuned is not None:
        from negbench.tuning.tuned import combinations

        searches = combinations(planned.cells)
        fixed = dict.fromkeys(each.labels["strategy"] for each in searches if each.spec is None)
        count = sum(each.spec is not None for each in searches)
        say(f"tuning: {asked.tuned} trials for each of {count} strategies, on a dev part")
        if fixed:
            say(f"nothing to tune: {', '.join(fixed)}")
    return planned, rules, searches


def study(asked: Study | None = None, *, console: Console | None = None, **options: Any) -> StudyResult:
    """Search a strategy's knobs, as `negbench study` does; call it again to resume.

    Args:
        asked: `negbench.Study(...)`.
        console: where the tables are printed; default: nowhere.
        options: fields of `negbench.Study`, e.g. ``strategy="dqe", trials=40``, in place of those of `asked`.

    Raises:
        NegbenchError: invalid settings, or a default that cannot be computed.
    """
    from negbench.grid.compute import Execution
    from negbench.report.loaded import StudyResult
    from negbench.report.study import finish
    from negbench.settings.options import Study
    from negbench.tuning import search

    asked, console = (asked or Study()).but(**options), console or _silent()
    execution = Execution.of(asked)
    with execution.open():
        book, rules = search.study(asked, execution, _say(console))
    finish(console, book, rules, asked.tracking_uri)
    return StudyResult(book.folder, asked.storage)


def audit(asked: Audit | None = None, **options: Any) -> AuditResult:
    """Show what strategies would draw, without training, as `negbench audit` does; `.frame()` has one row per strategy.

    Args:
        asked: `negbench.Audit(...)`.
        options: fields of `negbench.Audit`, e.g. ``strategies="qure"``, in place of those of `asked`.

    Raises:
        NegbenchError: a user's mistake.
    """
    from negbench.checks.audit import run_audit
    from negbench.settings.command_options import Audit

    return run_audit((asked or Audit()).but(**options))


def mine(**options: Any) -> MinedNegatives:
    """Write negatives for your own trainer into a file, as `negbench mine` does; `.frame` has a row per query.

    Args:
        options: fields of `negbench.Mine`, e.g. ``run=result.run_id, draws=5, out="negatives.parquet"``.

    Raises:
        NegbenchError: a user's mistake.
    """
    from negbench.own.negatives import write_negatives
    from negbench.settings.command_options import Mine

    return write_negatives(Mine(**options))


def embed(asked: Embed) -> EmbeddedFolder:
    """Embed every image and text of a folder's triplets, as `negbench embed` does, for backbone `precomputed`.

    Args:
        asked: `negbench.Embed(folder=..., encoder=...)`.

    Returns:
        The written files; pass its `backbone` and `dataset` to `audit`, `compare` and `run`.

    Raises:
        NegbenchError: a user's mistake: missing triplets or images, or an encoder that cannot be loaded or returns
            something other than embeddings.
    """
    from negbench.own.embed import embed_folder

    return embed_folder(asked)


def load(
    name: str, runs_dir: Path | None = None, *, storage: str | None = None
) -> Comparison | StudyResult | RunResult:
    """Load a comparison, a study or a finished run by its name, or a run by part of its name.

    Args:
        name: the name.
        runs_dir: the runs folder.
        storage: URL of the database that holds a study's trials; no other than this one is ever opened.

    Raises:
        RunError: nothing has this name, or it is not finished.
    """
    from negbench.report.loaded import load as loaded

    return loaded(files.runs_dir(runs_dir), name, storage)


def _silent() -> Any:
    """Return a console that prints nothing, for callers that only want the return value."""
    from rich.console import Console

    return Console(quiet=True)


def _say(console: Console) -> Callable[[str], None]:
    """Return a function that prints a line as it is."""
    return lambda line: console.print(line, highlight=False, soft_wrap=True)
