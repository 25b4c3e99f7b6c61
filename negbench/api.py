"""Public functions: plug-ins for your own training loop, and the commands as Python functions.

Name a plug-in as on the command line ("qure", "qure:variant=release"), or by a table ({"name": "qure", "variant":
"release"}); give the file of your own class in the option `plugin`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from negbench.display import notes
from negbench.errors import install_line, require
from negbench.machine import files
from negbench.plugins.registry import registry
from negbench.settings.options import Compare, PluginSpec, Run

if TYPE_CHECKING:
    from rich.console import Console

    from negbench.analysis.verdicts import Rules
    from negbench.campaign.driver import Course
    from negbench.campaign.plan import ComparisonPlan
    from negbench.contracts import Backbone, Loss, Strategy
    from negbench.datasets.dataset import Dataset
    from negbench.loop.types import PlannedRun
    from negbench.own.audit import AuditResult
    from negbench.own.embed import EmbeddedFolder
    from negbench.own.negatives import MinedNegatives
    from negbench.papers.planning import JudgedClaims
    from negbench.report.loaded import Comparison, StudyResult
    from negbench.settings.command_options import Audit, Claims, Embed
    from negbench.settings.options import Study
    from negbench.store.run_result import RunResult


def make_strategy(name: str, **options: Any) -> Strategy:
    """Make a strategy by registry key, e.g. ``make_strategy("qure", variant="paper").pool(view)``.

    >>> make_strategy("top-k", k=5)
    TopK(k=5, halve=False, by='query')
    """
    return cast("Strategy", registry.make("strategies", name, **options))


def make_loss(name: str, **options: Any) -> Loss:
    """Make a loss by registry key, e.g. ``make_loss("bradley-terry")(positive, negatives)``."""
    return cast("Loss", registry.make("losses", name, **options))


def make_backbone(name: str, **options: Any) -> Backbone:
    """Make a backbone by registry key, e.g. ``make_backbone("clip", weights="...")``."""
    return cast("Backbone", registry.make("backbones", name, **options))


def load_dataset(name: str, **options: Any) -> Dataset:
    """Load a data set by registry key, e.g. ``load_dataset("fashioniq", root="...", split="val")``.

    The result has `.images` (ids, the columns of scores), `.queries` and `.evaluate(scores) -> dict`; annotations alone
    are enough with ``images=False``.
    """
    return cast("Dataset", registry.make("datasets", name, **options))


def list_plugins(kind: str) -> list[str]:
    """List the registry keys of one kind: strategies, losses, backbones or datasets.

    >>> list_plugins("losses")[:2]
    ['bradley-terry', 'guide-kl']
    """
    return list(registry.plugins(kind))


# --- the commands ----------------------------------------------------------------------------------------------------


def run(
    *,
    strategy: PluginSpec | None = None,
    backbone: PluginSpec | None = None,
    dataset: PluginSpec | None = None,
    loss: PluginSpec | None = None,
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
    from negbench.loop.runs import DATA, RunContext, compute_or_reuse

    keywords: dict[str, Any] = {
        "strategy": strategy,
        "backbone": backbone,
        "dataset": dataset,
        "loss": loss,
        "seed": seed,
    }
    keywords |= {"recipe": recipe, "sets": tuple(sets) or None}
    options = (options or Run()).replace(**{key: value for key, value in keywords.items() if value is not None})
    display = Display(progress_console())
    tags = {}
    if options.system:
        tags["system"] = options.system
    with display.live():
        context = RunContext.open(options.runs_dir, options.tracking_uri)
        planned = plan_of(options)
        return compute_or_reuse(planned, replace(context, cache=DATA, display=display, tags=tags))


def plan_of(options: Run) -> PlannedRun:
    """Plan a run, which says what its data lack, and note what of its settings does nothing."""
    from negbench.loop.remarks import check_idle
    from negbench.loop.runs import DATA, plan_run
    from negbench.systems.system import config_of

    remarks = list[str]()
    config = config_of(options, remarks.append)
    planned = plan_run(config, DATA)
    notes([*remarks, *check_idle([("this run", config, planned.config)], options.sets, DATA, alone=True)])
    return planned


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
    from negbench.campaign.driver import carry_out
    from negbench.grid.compute import Execution

    asked = (asked or Compare()).replace(**options)
    console = console or _silent()
    execution = Execution.of(asked)
    planned, rules, course = plan_compare(asked, _say(console))
    path = planned.folder.path
    page = planned.options.report and _can_draw()
    with carry_out(course, execution, _say(console), rules.margin) as done:
        # import reporting only once the cells are computed
        from negbench.report.finish import finish
        from negbench.report.loaded import Comparison

        if done.any_finished:
            finish(console, path.parent, path.name, asked.tracking_uri, rules, report=page)
    return Comparison(path)


def _can_draw() -> bool:
    """Whether pages can be drawn; if not, note before anything is computed that there will be none."""
    line = install_line("matplotlib")
    if line:
        notes([f"no page will be written, all else will: {line}, then `negbench report NAME`"])
    return line is None


def plan_compare(options: Compare, say: Callable[[str], None]) -> tuple[ComparisonPlan, Rules, Course]:
    """Plan what `compare` would compute, and say how much of it is finished; nothing is computed yet.

    Returns:
        The plan; how strategies will be compared; and the course, a generator of the rounds to compute (`carry_out`).

    Raises:
        NegbenchError: a user's mistake, or data that are missing.
    """
    from negbench.analysis.deciding import rules_of
    from negbench.campaign.compare import compare_cells
    from negbench.campaign.plan import plan_comparison, with_recipe

    planned = plan_comparison(with_recipe(options), files.runs_dir(options.runs_dir))
    rules = rules_of(planned.options, planned.cells)
    say(planned.line())
    if planned.options.tuned is None:
        course = compare_cells(planned, rules)
    else:
        course = _tuned_course(planned, rules, options.tracking_uri, say)
    return planned, rules, course


def _tuned_course(
    planned: ComparisonPlan, rules: Rules, tracking_uri: str | None, say: Callable[[str], None]
) -> Course:
    """Return the course of a comparison with `--tuned`, and say which strategies have something to tune."""
    from negbench.tuning.equal_tuning import combinations, compare_and_tune

    options = planned.options
    searches = combinations(planned.cells, options.metric)
    without_knobs = dict.fromkeys(search.labels["strategy"] for search in searches if search.spec is None)
    count = sum(search.spec is not None for search in searches)
    say(f"tuning: {options.tuned} trials for each of {count} strategies, on a dev part")
    if without_knobs:
        say(f"nothing to tune: {', '.join(without_knobs)}")
    return compare_and_tune(planned, rules, searches, tracking_uri)


def study(asked: Study | None = None, *, console: Console | None = None, **options: Any) -> StudyResult:
    """Search a strategy's options, as `negbench study` does; call it again to resume.

    Args:
        asked: `negbench.Study(...)`.
        console: where the tables are printed; default: nowhere.
        options: fields of `negbench.Study`, e.g. ``strategy="dqe", trials=40``, in place of those of `asked`.

    Raises:
        NegbenchError: invalid settings, or a default that cannot be computed.
    """
    from negbench.settings.options import Study

    asked = (asked or Study()).replace(**options)
    console = console or _silent()
    require("optuna", "sklearn")  # sklearn: importance of options
    if asked.sampler == "cmaes":
        require("cmaes")

    from negbench.campaign.driver import carry_out
    from negbench.grid.compute import Execution
    from negbench.report.loaded import StudyResult
    from negbench.report.study import finish
    from negbench.tuning.search import plan_study, search_settings

    execution = Execution.of(asked)
    plan = plan_study(asked)
    _can_draw()
    book = plan.job.open()
    with carry_out(search_settings(plan, book), execution, _say(console)) as done:
        finished = {outcome.cell.labels["strategy"] for outcome in done.outcomes if outcome.run_id}
        if len(finished) == 2 or not done.outcomes:  # else there is nothing to compare the best with
            finish(console, book, plan.rules if finished else None, asked.tracking_uri)
    return StudyResult(book.folder, asked.storage)


def claims(asked: Claims | None = None, *, console: Console | None = None, **options: Any) -> JudgedClaims:
    """Test what the papers claim, as `negbench claims` does; call it again to resume.

    Args:
        asked: `negbench.Claims(...)`.
        console: where the table is printed; default: nowhere.
        options: fields of `negbench.Claims`, e.g. ``only="5,8", seeds=3``, in place of those of `asked`.

    Raises:
        NegbenchError: a user's mistake, or failed runs; raised after all other runs are computed and judged.
    """
    from negbench.campaign.driver import carry_out
    from negbench.grid.compute import Execution
    from negbench.papers import table
    from negbench.papers.planning import plan_claims
    from negbench.report.build import write_report
    from negbench.settings.command_options import Claims

    asked = (asked or Claims()).replace(**options)
    console = console or _silent()
    say = _say(console)
    execution = Execution.of(asked)
    plan = plan_claims(asked)
    say(plan.line())
    page = _can_draw()
    with carry_out(plan.course(), execution, say) as done:
        plan.folder.parent(asked.tracking_uri).complete()
        judged = plan.write(done.outcomes)
        path = plan.folder.path
        console.print(table.verdicts_table(judged.claims))
        say(f"{table.counts(judged.claims)} ({judged.about})")
        paths = [path / "claims.md", path / "claims.json"]
        if page:
            report_page, *_ = write_report(path.parent, path.name)
            paths.append(report_page)
        for file in paths:
            say(str(file))
    return judged


def audit(asked: Audit | None = None, **options: Any) -> AuditResult:
    """Show what strategies would draw, without training, as `negbench audit` does; `.frame()` has one row per strategy.

    Args:
        asked: `negbench.Audit(...)`.
        options: fields of `negbench.Audit`, e.g. ``strategies="qure"``, in place of those of `asked`.

    Raises:
        NegbenchError: a user's mistake.
    """
    from negbench.own.audit import run_audit
    from negbench.settings.command_options import Audit

    return run_audit((asked or Audit()).replace(**options))


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

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True)

    return say
