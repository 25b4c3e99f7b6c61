"""A verdict, and the schema of statistics.json, which stores a comparison's verdicts.

Estimates are nested: a mean, and the differences from the best, from the highest and from the baseline, each with its
interval, or None where there is nothing to compare.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic.dataclasses import dataclass as checked_dataclass

from negbench.errors import NegbenchError
from negbench.grid.axis import AXES
from negbench.grid.comparison import kind_of, rerun_line
from negbench.grid.setting import COMMON_SETTING, OWN_SETTING
from negbench.machine.files import read_json, write_json

FILE = "statistics.json"
FEW = 0.9  # of the number asked for: with fewer different images, a verdict is marked
TABLE_AXES = tuple(axis for axis in AXES if axis != "strategy")  # axes whose values a table's strategies share
_CLOSED = ConfigDict(extra="forbid")
_DIGITS = 10  # of stored numbers


def _nan_for_none(value: Any) -> Any:
    return math.nan if value is None else value


_NUMBER_OR_NULL = WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "null"}]})
Known = Annotated[float, BeforeValidator(_nan_for_none), _NUMBER_OR_NULL]  # NaN if it is not known; JSON has null


@checked_dataclass(frozen=True, config=_CLOSED)
class Estimate:
    """A value with its interval.

    Attributes:
        value: in the unit of the metric.
        low, high: ends of the interval.
        p: p-value of "no difference", adjusted for the family of tests; None for a mean.
        seeds: of a difference, the seeds after which a look decided it, if there are more by now; it is no more the
            difference of the printed means. Else None.
    """

    value: Known
    low: Known
    high: Known
    p: float | None = None
    seeds: int | None = None

    def reverse(self) -> "Estimate":
        """Return the difference with its sides exchanged; 0 stays 0, not -0."""
        return Estimate(0 - self.value, 0 - self.high, 0 - self.low, self.p, self.seeds)

    @property
    def after(self) -> str:
        """' (after 3 seeds)' where an earlier look decided it, else ''."""
        return "" if self.seeds is None else f" (after {self.seeds} seeds)"


@checked_dataclass(frozen=True, config=_CLOSED)
class Verdict:
    """One strategy on one metric. Numbers are in the unit of the metric.

    Attributes:
        strategy: the one judged.
        loss, backbone, dataset: of its table.
        metric, main: the metric, and whether it is the one of the verdicts.
        mean: over seeds, with its interval.
        sd: standard deviation over seeds; NaN for one seed.
        seeds, queries: how many of each there are.
        baseline: the strategy compared with; "" if there is none.
        verdict: on the difference to the baseline, a `negbench.analysis.statistics.Decision`; 'baseline'; or 'not
            compared': no seed in common with it, or no baseline.
        against_baseline: the mean minus the baseline's.
        against_best: the mean minus that of the best with equally many negatives; None for that one.
        against_highest: the mean minus the highest of the table; None for that one.
        standing: verdict against the best with equally many: 'best' (ahead of all others with as many), 'highest',
            'worse', 'equal', 'undecided', 'collapsed', 'only' (no other has as many) or 'not compared'.
        beaten_by: strategies that beat it.
        rank_low, rank_high: the ranks that the table's pairs allow; 1 is best.
        negatives: number asked for per query and step; NaN if no run records it.
        distinct: how many different images these are.
        baseline_asked: whether a baseline was asked for, so that tables show the difference to it.
        baseline_negatives: the baseline's `negatives`.
        minimum_detectable: smallest difference to the baseline that these seeds and queries would detect.
        paired_seeds: seeds in common with the baseline.
        margin: differences within it count as equal.
        alpha: significance level.
        system, point, settings, epochs: of the table; "" if the comparison has no such axis.
        undecided: strategies against which it is undecided, among the pairs to decide.
        more_seeds: how many more decide all of these; -1: no number would; NaN: one seed, or none to decide.
        covers: what else the intervals cover, such as other seeds.
        collapsed: number of its runs that collapsed.
        lowest, highest: ends of its seeds' means.
        identical: strategies whose runs score exactly alike.
        unmoved: whether all of its runs score as the untrained model does (`negbench.analysis.collapse`).
        facts: typed columns of its cells: `plugin`; `num_negatives`, `own` and a column per dial, where they are axes.
    """

    dataset: str
    loss: str
    backbone: str
    strategy: str
    metric: str
    main: bool
    mean: Estimate
    sd: Known
    seeds: int
    queries: int
    baseline: str
    verdict: str
    against_baseline: Estimate | None = None
    against_best: Estimate | None = None
    against_highest: Estimate | None = None
    standing: str = "not compared"
    beaten_by: tuple[str, ...] = ()
    rank_low: int = 0
    rank_high: int = 0
    negatives: Known = math.nan
    distinct: Known = math.nan
    baseline_asked: bool = False
    baseline_negatives: Known = math.nan
    minimum_detectable: Known = math.nan
    paired_seeds: int = 0
    margin: Known = math.nan
    alpha: Known = math.nan
    system: str = ""
    point: str = ""
    settings: str = ""
    epochs: str = ""
    undecided: tuple[str, ...] = ()
    more_seeds: Annotated[int | float, BeforeValidator(_nan_for_none), _NUMBER_OR_NULL] = math.nan
    covers: str = ""
    collapsed: int = 0
    lowest: Known = math.nan
    highest: Known = math.nan
    identical: tuple[str, ...] = ()
    unmoved: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def behind_best(self) -> Estimate | None:
        """The mean of the best with equally many negatives minus this one's."""
        return None if self.against_best is None else self.against_best.reverse()

    @property
    def behind_highest(self) -> Estimate | None:
        """The highest mean of the table minus this one's."""
        return None if self.against_highest is None else self.against_highest.reverse()

    @property
    def table_key(self) -> tuple[str, ...]:
        """Labels that identify its table: its values of `TABLE_AXES`."""
        return tuple(getattr(self, axis) for axis in TABLE_AXES)

    @property
    def where(self) -> str:
        """Its point on the dials, with its budget, number of negatives and chosen setting where these are axes, too."""
        parts = [self.point]
        if self.epochs:
            parts.append(f"epochs={self.epochs}")
        if self.facts.get("num_negatives"):
            parts.append(f"num_negatives={self.facts['num_negatives']}")
        if self.settings in (COMMON_SETTING, OWN_SETTING):
            parts.append(f"settings={self.settings}")
        return ", ".join(parts)

    @property
    def ranks(self) -> str:
        """'1-3', or '2' where the pairs leave one rank."""
        return f"{self.rank_low}-{self.rank_high}" if self.rank_high > self.rank_low else f"{self.rank_low}"

    @property
    def marks(self) -> str:
        """' (6 distinct)' if it trains against fewer than 90 % as many different images as were asked for, else ''.

        A tuned strategy of which trials failed is marked, too.
        """
        marks = []
        if self.distinct < FEW * self.negatives:
            marks.append(f"{self.distinct:.3g} distinct")
        if self.facts.get("failed_trials"):
            marks.append(f"{self.facts['failed_trials']} trials failed")
        return f" ({', '.join(marks)})" if marks else ""

    @property
    def marked_label(self) -> str:
        """The strategy with its marks."""
        return self.strategy + self.marks

    def round_numbers(self) -> "Verdict":
        """Return the verdict as it is stored: numbers rounded to 10 decimals, NaN for infinity."""
        return Verdict(**_round_value(asdict(self)))

    def flat(self) -> dict[str, Any]:
        """Return one level of columns, for CSV files and tables; NaN for what is not known.

        The best's differences are turned: `gap` is how far it is behind the best with equally many negatives, `behind`
        how far behind the highest.
        """
        nested = {"mean", "against_best", "against_highest", "against_baseline", "baseline_asked", "facts"}
        columns = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in nested}
        columns |= {"mean": self.mean.value, "low": self.mean.low, "high": self.mean.high}
        for name, estimate in (("gap", self.behind_best), ("behind", self.behind_highest)):
            numbers = estimate or _NOTHING
            columns |= {name: numbers.value, f"{name}_low": numbers.low, f"{name}_high": numbers.high}
        test = self.against_baseline or _NOTHING
        columns |= {"difference": test.value, "diff_low": test.low, "diff_high": test.high, "p_adjusted": test.p}
        columns |= {"against": self.baseline_asked}
        return {name: columns[name] for name in _FLAT} | dict(self.facts)


_NOTHING = Estimate(math.nan, math.nan, math.nan, math.nan)
_FLAT = (  # columns of statistics.csv, in their order
    "dataset", "loss", "backbone", "strategy", "metric", "main", "mean", "sd", "low", "high", "seeds", "queries",
    "baseline", "verdict", "beaten_by", "rank_low", "rank_high", "behind", "behind_low", "behind_high", "gap",
    "gap_low", "gap_high", "standing", "negatives", "distinct", "against", "baseline_negatives", "difference",
    "diff_low", "diff_high", "p_adjusted", "minimum_detectable", "paired_seeds", "margin", "alpha", "system", "point",
    "settings", "epochs", "undecided", "more_seeds", "covers", "collapsed", "lowest", "highest", "identical", "unmoved",
)  # fmt: skip


def _round_value(value: Any) -> Any:
    """Round the numbers in a value or a nested mapping; NaN for infinity, and 0 for -0."""
    if isinstance(value, dict):
        return {key: _round_value(item) for key, item in value.items()}
    if isinstance(value, float):
        return math.nan if math.isinf(value) else round(value, _DIGITS) + 0.0  # no -0.0
    return value


# --- statistics.json ---------------------------------------------------------------------------------------------


class StatisticsRecord(BaseModel):
    """statistics.json in a comparison's folder: its verdicts. Numbers that are not known are null.

    Its JSON Schema, for other programs, is statistics.schema.json.
    """

    model_config = ConfigDict(extra="forbid")

    schema_: Literal[3] = Field(3, alias="schema", description="version of this file")
    verdicts: list[Verdict]


def read_flat(row: Mapping[str, Any]) -> Verdict:
    """Read a row of schema 2, as `Verdict.flat`: estimates are columns, and what is no field is a fact."""

    def estimate(value: str, low: str, high: str, p: str = "") -> Estimate | None:
        if row.get(value) is None or math.isnan(row[value]):
            return None
        return Estimate(row[value], row[low], row[high], row.get(p))

    behind_best = estimate("gap", "gap_low", "gap_high")
    behind_highest = estimate("behind", "behind_low", "behind_high")
    nested: dict[str, Any] = {
        "mean": Estimate(row["mean"], row["low"], row["high"]),
        "against_best": None if behind_best is None else behind_best.reverse(),
        "against_highest": None if behind_highest is None else behind_highest.reverse(),
        "against_baseline": estimate("difference", "diff_low", "diff_high", "p_adjusted"),
        "baseline_asked": row.get("against", False),
    }
    plain = {field.name for field in fields(Verdict)} - {*nested, "facts"}
    facts = {name: value for name, value in row.items() if name not in _FLAT}
    return Verdict(**nested, **{name: row[name] for name in plain if name in row}, facts=facts)


def write_verdicts(folder: Path, verdicts: Iterable[Verdict]) -> Path:
    """Write statistics.json into a comparison's folder; returns its path."""
    write_json(folder / FILE, {"schema": 3, "verdicts": [asdict(verdict) for verdict in verdicts]})
    return folder / FILE


def read_verdicts(folder: Path) -> list[Verdict]:
    """Read statistics.json, of this schema or of the one before.

    Raises:
        NegbenchError: a file of another negbench version, or a damaged one.
    """
    path = folder / FILE
    document = read_json(path)
    try:
        if "rows" in document:  # schema 2, whose rows are flat
            return [read_flat(row) for row in document["rows"]]
        return StatisticsRecord.model_validate(document).verdicts
    except (ValidationError, TypeError, AttributeError, KeyError) as error:
        why = str(error).splitlines()[0]
        mend = rerun_line(folder, kind_of(folder) or "comparison")
        raise NegbenchError(f"{path} is from another version of negbench: {mend} ({why})") from error
