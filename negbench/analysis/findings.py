"""What was found in a comparison: its results, judged by the rules, stored as statistics.json, read by its page."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import TypeAdapter, ValidationError

from negbench.analysis.contrasts import CONTRAST, contrast_tables, temperatures
from negbench.analysis.frame import StoredRun, groups_of, key_of, read_results, results_of
from negbench.analysis.stored_trials import read_trials
from negbench.analysis.tuned_gain import BASELINE, DEFAULT, gains_of, tunings_of
from negbench.analysis.unchanged import files_made_here, stored_rules
from negbench.analysis.verdict_record import FILE, Verdict, read_verdicts, write_verdicts
from negbench.analysis.verdicts import OVER_ALL, Rules, VerdictTable, join_over_all, tables_of, verdicts_of
from negbench.errors import NegbenchError
from negbench.grid.axis import Axis, GroupKey, dials_of, group_key
from negbench.grid.comparison import ComparisonFolder
from negbench.grid.setting import COMMON_SETTING, OWN_SETTING
from negbench.loop.step_plan import StepPlan
from negbench.scoring.values import check_metrics

SHOWN_SETTINGS = ("", DEFAULT, OWN_SETTING)  # settings of the runs whose figures a page shows


@dataclass(frozen=True, eq=False)
class Findings:
    """A comparison's finished cells, its axes, and its test results.

    Attributes:
        results: the finished cells (`negbench.analysis.frame`).
        document: comparison.json.
        verdicts: on every strategy, table by table and metric by metric.
        gains: verdicts on tuned strategies against their own defaults.
        contrasts: verdicts on losses and backbones, whose names are their `strategy`.
    """

    results: pd.DataFrame
    document: Mapping[str, Any]
    verdicts: tuple[Verdict, ...] = ()
    gains: tuple[Verdict, ...] = ()
    contrasts: tuple[Verdict, ...] = ()

    @cached_property
    def groups(self) -> list[pd.DataFrame]:
        """The results of each combination of the axes, over seeds."""
        return groups_of(self.results)

    @cached_property
    def point_axes(self) -> list[Axis]:
        """The comparison's dials, then its budgets, numbers of negatives and chosen settings; none without dials."""
        axes = dials_of(self.document)
        if not axes:
            return []
        budgets = sorted({int(epochs) for epochs in self.results["epochs"] if epochs})
        if budgets:
            axes.append(Axis("train.epochs", tuple(budgets), "epochs"))
        if "num_negatives" in self.results:
            counts = sorted(self.results["num_negatives"].dropna().unique())
            axes.append(Axis("train.num_negatives", tuple(counts), "num_negatives"))
        if OWN_SETTING in set(self.results["settings"]):
            axes.append(Axis("settings", (COMMON_SETTING, OWN_SETTING), "settings"))
        return axes

    @property
    def runs(self) -> list[StoredRun]:
        """All finished runs; one that several cells have occurs as often."""
        return list(self.results["stored"])

    @cached_property
    def groups_with_choice(self) -> list[GroupKey]:
        """The groups whose intervals contain the choice of their learning rates."""
        runs = self.runs[0].folder.path.parent
        return list(read_trials(runs, self.document))

    @property
    def systems(self) -> bool:
        """Whether systems are an axis of the comparison."""
        return bool((self.results["system"] != "").any())

    @property
    def main_verdicts(self) -> list[Verdict]:
        """Verdicts on the main metric."""
        return [verdict for verdict in self.verdicts if verdict.main]

    @property
    def shown_groups(self) -> list[pd.DataFrame]:
        """The groups whose figures a page shows: no points, no systems, settings as published or each row's own."""
        results = self.results
        has_no_point = (results["point"] == "") & (results["system"] == "")
        return groups_of(results[has_no_point & results["settings"].isin(SHOWN_SETTINGS)])

    def notes(self) -> list[str]:
        """List caveats: cells that are not defined, and what the backbone or data set does not support."""
        left_out = []
        for cell in self.document.get("left_out", ()):
            label = cell.get("system") or cell["point"]
            left_out.append(f"{cell.get('strategy', 'all')} at {label} is not defined: {cell['reason']}")
        return [*left_out, *self.document.get("remarks", ()), *self.differing_computation()]

    def versions(self) -> dict[str, list[str]]:
        """Return package -> the versions with which the runs were computed."""
        versions: dict[str, dict[str, None]] = {}
        for run in self.runs:
            for package, version in run.manifest.get("versions", {}).items():
                versions.setdefault(package, {})[version] = None
        return {package: list(names) for package, names in versions.items()}

    def differing_computation(self) -> list[str]:
        """Remark on runs that were computed in different ways: versions, threads, steps; empty where all agree."""
        remarks = []
        packages = []
        for package, versions in self.versions().items():
            if len(versions) > 1:
                packages.append(f"{package} {' and '.join(versions)}")
        if packages:
            text = "the runs were computed with different versions, which may be a part of any difference"
            remarks.append(f"{text}: {', '.join(packages)}")
        threads = set()
        for run in self.runs:
            started = run.manifest.get("started", {})
            if "threads" in started and started["device"] == "cpu":
                threads.add(started["threads"])
        if len(threads) > 1:
            counts = " and ".join(str(count) for count in sorted(threads))
            remarks.append(f"the runs were computed with {counts} threads: their last bits may differ")
        plans = self.step_plans()
        if len(plans) > 1:
            remarks.append(f"the runs were trained in {' and in '.join(plans)}: the last bits of gradients may differ")
        return remarks

    def step_plans(self) -> list[str]:
        """Return how the runs computed their steps, in words, each way once."""
        plans: set[str] = set()
        for run in self.runs:
            plans |= {str(plan) for plan in StepPlan.of_result(run.result)}
        return sorted(plans)

    def write(self, folder: Path) -> Path:
        """Write statistics.json; returns its path."""
        return write_verdicts(folder, [*self.verdicts, *self.gains, *self.contrasts])


def judge_comparison(runs: Path, name: str, rules: Rules) -> Findings:
    """Judge the finished cells of a comparison.

    Raises:
        RunError: no such comparison, no finished cell, or runs whose ranks are of different queries.
        UnknownNameError: a data set has no such metric.
    """
    results, document = _read_cells(runs, name)
    groups = groups_of(results)
    tables = tables_of(groups, rules, read_trials(runs, document))
    rules = _divide_alpha(results, rules)
    all_tables = list(tables)
    if not document.get("dials"):  # points are data sets, so there is nothing over all of them
        all_tables = [*join_over_all(tables), *tables, *contrast_tables(tables)]
    all_tables += temperatures(groups, tables)
    verdicts = _verdicts_of_tables(all_tables, rules)
    verdicts += gains_of(tables, tunings_of(document), rules)
    return _findings_of(results, document, [verdict.round_numbers() for verdict in verdicts])


def _read_cells(runs: Path, name: str) -> tuple[pd.DataFrame, Mapping[str, Any]]:
    """Read a comparison's results and comparison.json."""
    return results_of(runs, name), ComparisonFolder(runs / name).read()


def judge_by_metric(runs: Path, name: str, metric: str) -> Findings:
    """Judge a comparison by another metric, from the stored ranks and by the rules of its verdicts; store nothing.

    Args:
        runs: runs folder.
        name: of the comparison.
        metric: as `Rules.metric`.

    Raises:
        UnknownNameError: a data set has no such metric, and its ranks do not give it.
        RunError: as `judge_comparison`.
    """
    verdicts = read_findings(runs, name).main_verdicts
    rules = Rules(metric=metric)
    if verdicts:
        baselines = {verdict.baseline for verdict in verdicts if verdict.baseline_asked}
        baseline = baselines.pop() if len(baselines) == 1 else None
        rules = Rules(baseline, verdicts[0].margin, metric=metric)
    return judge_comparison(runs, name, rules)


def _verdicts_of_tables(tables: Iterable[VerdictTable], rules: Rules) -> list[Verdict]:
    """Test tables, each on its own; return all verdicts."""
    verdicts: list[Verdict] = []
    for table in tables:
        verdicts += verdicts_of(table, rules)
    return verdicts


def _findings_of(results: pd.DataFrame, document: Mapping[str, Any], verdicts: Iterable[Verdict]) -> Findings:
    """Tell gains and contrasts from verdicts on strategies; leave out those whose runs were deleted since."""
    finished = {key_of(cells) for cells in groups_of(results)}
    strategies = []
    gains = []
    contrasts_of_axes = []
    for verdict in verdicts:
        if group_key(vars(verdict)) not in finished and OVER_ALL not in verdict.table_key:
            continue
        if verdict.baseline == BASELINE:
            gains.append(verdict)
        elif CONTRAST in verdict.facts:
            contrasts_of_axes.append(verdict)
        else:
            strategies.append(verdict)
    return Findings(results, document, tuple(strategies), tuple(gains), tuple(contrasts_of_axes))


def judge_so_far(runs: Path, document: Mapping[str, Any], rules: Rules) -> Findings:
    """Judge an unfinished comparison on the main metric of every table, whose verdicts it has to reach.

    Args:
        runs: runs folder.
        document: content of comparison.json for the computed cells (`ComparisonFolder.document`).
        rules: how strategies are compared.
    """
    results = read_results(runs, document["cells"])
    tables = tables_of(groups_of(results), rules, read_trials(runs, document), main_only=True)
    rules = _divide_alpha(results, rules)
    return Findings(results, document, tuple(_verdicts_of_tables(tables, rules)))


def _divide_alpha(results: pd.DataFrame, rules: Rules) -> Rules:
    """Return the rules at a level at which the tables of all training budgets hold at once.

    So do then the budgets at which the order of two strategies turns.
    """
    return replace(rules, alpha=rules.alpha / max(1, results["epochs"].nunique()))


def plain_rules(rules: Rules) -> dict[str, Any]:
    """Return rules as JSON that `rules_in` reads; the time limit of looks, which are over by then, is left out."""
    plain = asdict(rules)
    if rules.looks is not None:
        plain["looks"] = {key: value for key, value in asdict(rules.looks).items() if key != "budget"}
    return plain


def rules_in(folder: Path) -> Rules:
    """Return the rules by which a comparison was judged; the default ones if it does not say.

    Raises:
        NegbenchError: they are damaged.
    """
    rules = stored_rules(folder)
    if rules is None:
        return Rules()
    try:
        return TypeAdapter(Rules).validate_python(rules)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise NegbenchError(f"{folder / 'inputs.json'}: rules.{key}: {first['msg']}: rerun the comparison") from error


def read_findings(runs: Path, name: str) -> Findings:
    """Read a comparison's stored results; without verdicts if it was not judged.

    Those that this machine did not make from these runs are computed again, from the runs' ranks.

    Raises:
        RunError: no such comparison, or no finished cell.
        NegbenchError: a file of another negbench version.
    """
    results, document = _read_cells(runs, name)
    if not (runs / name / FILE).exists():
        for run in results["stored"]:
            check_metrics(run.folder)
        return Findings(results, document)
    if not files_made_here(runs, name):
        return judge_comparison(runs, name, rules_in(runs / name))
    return _findings_of(results, document, read_verdicts(runs / name))
