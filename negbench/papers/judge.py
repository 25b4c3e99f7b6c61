"""Verdicts: each test's estimate and interval, and whether the interval meets the claim's condition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import scipy  # not scipy.stats, whose import takes as long as the judging
import torch
from numpy.typing import NDArray

from negbench.analysis import differences
from negbench.analysis.statistics import POWER, Design
from negbench.grid.looks import Looks
from negbench.metrics.preference import spearman_test
from negbench.papers.claim import Claim, ClaimTest
from negbench.papers.evidence import Evidence, MissingEvidence
from negbench.papers.measure import Measured

Array = NDArray[np.float64]
ClaimVerdict = Literal["supported", "refuted", "no effect", "undecided", "premise absent", "not testable"]

ALPHA = 0.05
LENGTHS = ("short", "long")
DECIDED: tuple[ClaimVerdict, ...] = ("supported", "refuted", "no effect")


@dataclass(frozen=True)
class ClaimEstimate:
    """A value, its confidence interval, and the smallest true distance from a bound that is detected with 80 % power.

    `low`, `high` and `detectable` are nan if one seed says nothing about others.
    """

    value: float
    low: float
    high: float
    detectable: float


@dataclass(frozen=True)
class Answer:
    """Result of a test, with the number of seeds that it took; `reason` says why there is no estimate.

    `length` is one of `LENGTHS` if claims are judged at two.
    """

    test: ClaimTest
    verdict: ClaimVerdict
    estimate: ClaimEstimate | None = None
    reason: str = ""
    seeds: int = 0
    length: str = ""


@dataclass(frozen=True)
class JudgedClaim:
    """Result of a claim: a `ClaimVerdict`, or at two lengths what `combine_lengths` says."""

    claim: Claim
    verdict: str
    reason: str
    answers: tuple[Answer, ...]


def judge(
    claim: Claim,
    evidence: Evidence,
    looks: Looks,
    *,
    lacking: str | None,
    undefined: Mapping[str, str],
    lengths: int = 1,
) -> JudgedClaim:
    """Judge a claim: the verdict of its weakest test, refuted before untestable, undecided, without effect, supported.

    If a premise does not hold, the claim is neither supported nor refuted, whatever its tests say. The intervals of a
    claim's tests, looks and lengths are simultaneous (Bonferroni), so that none of these refutes by chance. What one
    look decides is final.

    Args:
        claim: claim to judge.
        evidence: finished runs.
        looks: after which seeds the tests are judged.
        lacking: what the data lack for the claim; None if nothing.
        undefined: settings without runs -> why.
        lengths: at how many lengths of training the claim is judged.
    """
    if lacking is not None:
        return JudgedClaim(claim, "not testable", lacking, ())
    answers = tuple(_answer(test, evidence, looks, undefined, lengths * len(claim.tests)) for test in claim.tests)
    for premise in claim.premises:
        try:
            runs = [evidence.run(premise.setting, seed) for seed in looks.first]
            value = float(np.mean([_mean(measured) for measured in premise.measure.of_seeds(runs)]))
        except MissingEvidence as error:
            return JudgedClaim(claim, "not testable", f"premise: {undefined.get(premise.setting, error)}", answers)
        if not premise.holds.holds(value, value):
            text = f"{value * premise.measure.unit.scale:.3g} {premise.measure.unit.name}"
            return JudgedClaim(claim, "premise absent", f"{premise}: here {text}", answers)
    for verdict in ("refuted", "not testable", "undecided", "no effect"):
        for answer in answers:
            if answer.verdict == verdict:
                return JudgedClaim(claim, verdict, answer.reason, answers)
    return JudgedClaim(claim, "supported", "", answers)


def combine_lengths(short: JudgedClaim, long: JudgedClaim) -> JudgedClaim:
    """Combine a claim's verdicts at two lengths of training.

    Two equal verdicts are the verdict. Decided at both (supported, refuted, no effect) and differently, the claim
    depends on the length. Decided at one alone, the verdict names that length.
    """
    by_length = dict(zip(LENGTHS, (short, long), strict=True))
    decided_at = [length for length, judged in by_length.items() if judged.verdict in DECIDED]
    if short.verdict == long.verdict:
        verdict = short.verdict
    elif len(decided_at) == 1:
        verdict = f"{by_length[decided_at[0]].verdict}, {decided_at[0]} only"
    else:
        verdict = "depends on the length" if decided_at else "undecided"
    reason = short.reason
    if short.reason != long.reason:
        reason = "; ".join(f"{length}: {judged.reason}" for length, judged in by_length.items() if judged.reason)
    answers: list[Answer] = []
    for length, judged in by_length.items():
        answers += [replace(answer, length=length) for answer in judged.answers]
    return JudgedClaim(short.claim, verdict, reason, tuple(answers))


def _answer(test: ClaimTest, evidence: Evidence, looks: Looks, undefined: Mapping[str, str], tests: int) -> Answer:
    """Return the answer of the first look that decides, else of the last look whose runs are all finished."""
    for name in test.all_settings:
        if name in undefined:
            return Answer(test, "not testable", reason=f"'{name}': {undefined[name]}")
    answer = None
    for count, share in zip(looks.counts, looks.shares, strict=True):
        seeds = looks.seeds(count)
        is_finished = evidence.has_all(test.all_settings, seeds)
        if answer is not None and (answer.verdict != "undecided" or not is_finished):
            break
        try:
            estimate = STATISTICS[test.statistic](test, evidence, seeds, share / tests)
        except (MissingEvidence, ValueError) as error:  # ValueError: too few queries for an interval
            return Answer(test, "not testable", reason=str(error))
        reason = "one seed gives no interval: use --seeds 3" if np.isnan(estimate.low) else ""
        answer = Answer(test, decide(test, estimate), estimate, reason, count)
    assert answer is not None  # there is a first look
    return answer


def decide(test: ClaimTest, estimate: ClaimEstimate) -> ClaimVerdict:
    """Return supported or refuted if the whole interval meets that condition, else undecided.

    What is tested against 0 is "no effect" if its interval lies inside what counts as none in its unit.
    """
    if test.supports.bound == 0 and -test.unit.none < estimate.low and estimate.high < test.unit.none:
        return "no effect"
    if test.supports.holds(estimate.low, estimate.high):
        return "supported"
    return "refuted" if test.refutes.holds(estimate.low, estimate.high) else "undecided"


# --- statistics --------------------------------------------------------------------------------------------------


def level(test: ClaimTest, evidence: Evidence, seeds: Sequence[int], share: float) -> ClaimEstimate:
    """Estimate the measure of one setting."""
    values, labels = _table(test, test.settings[0], evidence, seeds)
    return estimate_of(values, np.zeros_like(values), labels, share, nested=evidence.nested)


def difference(test: ClaimTest, evidence: Evidence, seeds: Sequence[int], share: float) -> ClaimEstimate:
    """Estimate the first setting's measure minus the second's, paired over seeds, and over queries if possible.

    Raises:
        MissingEvidence: the two are the same run, because the option that distinguishes them is not supported here.
    """
    first, second = test.settings
    if all(evidence.run(first, seed).folder.path == evidence.run(second, seed).folder.path for seed in seeds):
        raise MissingEvidence(f"'{first}' and '{second}' are the same run: the differing option is unsupported")
    one, labels = _table(test, first, evidence, seeds)
    other, _ = _table(test, second, evidence, seeds)
    if one.shape != other.shape:
        raise MissingEvidence(f"'{first}' and '{second}' were measured on different queries")
    return estimate_of(one, other, labels, share, nested=evidence.nested)


def order(test: ClaimTest, evidence: Evidence, seeds: Sequence[int], share: float) -> ClaimEstimate:
    """Estimate the rank correlation of two measures over the settings, seed by seed."""
    assert test.other is not None
    correlations = []
    for seed in seeds:
        runs = [evidence.run(name, seed) for name in test.settings]
        means = torch.tensor([_mean(test.measure.of(run)) for run in runs], dtype=torch.float64)
        other_means = torch.tensor([_mean(test.other.of(run)) for run in runs], dtype=torch.float64)
        correlation, _ = spearman_test(means, other_means)
        correlations.append(correlation)
    if np.isnan(correlations).any():
        raise MissingEvidence("needs at least three settings, and measures that differ between them")
    return estimate_of(np.array(correlations), np.zeros(len(correlations)), None, share)


STATISTICS = {"level": level, "difference": difference, "order": order}


def _mean(measured: Measured) -> float:
    """Return the mean over queries, or the mean of the strata's means."""
    if measured.strata is None:
        return float(np.nanmean(measured.values))
    means = []
    for stratum in np.unique(measured.strata):
        means.append(np.nanmean(measured.values[measured.strata == stratum]))
    return float(np.mean(means))


def _table(test: ClaimTest, setting: str, evidence: Evidence, seeds: Sequence[int]) -> tuple[Array, Measured]:
    """Return [S] or [S, Q] values of a setting's runs, and one run's values with the labels of queries."""
    measured = test.measure.of_seeds([evidence.run(setting, seed) for seed in seeds])
    if len({values.values.shape for values in measured}) > 1:
        raise MissingEvidence(f"the runs of '{setting}' have values for different queries")
    return np.array([values.values for values in measured]), measured[0]


def estimate_of(
    one: Array, other: Array, labels: Measured | None, share: float, *, nested: bool = False
) -> ClaimEstimate:
    """Estimate the mean of one minus other, with its interval.

    Args:
        one: [S, Q] per-query values, or [S] values of whole runs. Queries without a value are left out: only in their
            seed if every seed has its own queries, else in all seeds.
        other: likewise, of the same seeds.
        labels: its strata and clusters count; None: there are none.
        share: share of `ALPHA` that the interval spends.
        nested: whether every seed has its own queries.

    Returns:
        The estimate over seeds and queries (`negbench.analysis.statistics`), or over seeds alone by Student's t.

    Raises:
        ValueError: fewer than two queries with a value, in a stratum.
    """
    if one.ndim == 1:
        return _estimate_over_seeds(one - other, ALPHA * share)
    has_value = np.isfinite(one) & np.isfinite(other)
    strata = None if labels is None else labels.strata
    clusters = None if labels is None else labels.clusters
    if strata is not None or not nested:  # else no two seeds share a query
        has_value[:] = has_value.all(0)
    if has_value.sum(1).min() < 2:
        raise ValueError("fewer than two queries have a value")
    if strata is not None:
        strata = strata[has_value[0]]
    if clusters is not None:
        clusters = clusters[has_value[0]]
    first = [row[mask] for row, mask in zip(one, has_value, strict=True)]
    second = [row[mask] for row, mask in zip(other, has_value, strict=True)]
    estimate = differences.difference(first, second, Design(strata, clusters, nested, alpha=ALPHA, alpha_part=share))
    return ClaimEstimate(estimate.value, estimate.interval.low, estimate.interval.high, estimate.minimum_detectable)


def _estimate_over_seeds(values: Array, alpha: float) -> ClaimEstimate:
    """Estimate the mean of [S] values of whole runs, with Student's interval."""
    count = len(values)
    mean = float(values.mean())
    if count < 2:
        return ClaimEstimate(mean, float("nan"), float("nan"), float("nan"))
    error = values.std(ddof=1) / np.sqrt(count)
    half = float(scipy.special.stdtrit(count - 1, 1 - alpha / 2) * error)
    power = float(scipy.special.stdtrit(count - 1, POWER) * error)
    return ClaimEstimate(mean, mean - half, mean + half, half + power)
