"""A study of worlds: how far the papers' claims hold where the dials stand so, instead of how well a strategy does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import stats

from negbench.claims.claim import Claim as PaperClaim
from negbench.claims.claim import chosen
from negbench.claims.judge import ALPHA, Answer, Finding
from negbench.claims.planning import Layer, findings, held_layer, plan_claims
from negbench.display import Display
from negbench.errors import NegbenchError
from negbench.executors import Executor, Here
from negbench.files import read_json, write_json
from negbench.grid.cells import SCENES, Outcome, compute
from negbench.grid.comparison import ComparisonFolder
from negbench.runfolder import RunFolder
from negbench.tracking import Tracker
from negbench.tuning.book import Book, Claim, trial_folder
from negbench.tuning.final import finished
from negbench.tuning.spec import StudySpec
from negbench.tuning.trials import LARGE_FILES, Job

FILE = "claims.json"
_ONE_SEED = 0.75  # support by a value without an interval: it says something, and not much


def support(answer: Answer, tests: int) -> float | None:
    """How far a test speaks for its claim, 0 to 1; None where it could not be made.

    The share of a normal distribution around the estimate, of the width of its interval, on the side that confirms: 0.5
    at the bound, near 1 where the claim is confirmed. Smooth, so that a sampler sees a world come closer.

    Args:
        answer: to the test.
        tests: of its claim, among which the level was divided.
    """
    found = answer.estimate
    if found is None:
        return None
    above, bound = answer.test.confirms.above, answer.test.confirms.bound
    distance = (found.value - bound) if above else (bound - found.value)
    if math.isnan(found.low):
        return _ONE_SEED if distance > 0 else 1 - _ONE_SEED
    error = (found.high - found.low) / (2 * stats.norm.ppf(1 - ALPHA / tests / 2))
    if error == 0:
        return float(distance > 0)
    return float(stats.norm.cdf(distance / error))


def claim_support(finding: Finding) -> float | None:
    """A claim is as well supported as the weakest of its tests; None where one of them could not be made."""
    found = [support(answer, len(finding.answers)) for answer in finding.answers]
    known = [value for value in found if value is not None]
    return min(known) if known and len(known) == len(found) else None


def score(found: Sequence[Finding]) -> float:
    """Mean support of each paper's claims, of the paper that fares worst; claims that could not be tested do not count.

    Raises:
        NegbenchError: no claim could be tested.
    """
    by_paper: dict[str, list[float]] = {}
    for finding in found:
        value = claim_support(finding)
        for paper in finding.claim.papers if value is not None else ():
            by_paper.setdefault(paper, []).append(float(value))  # type: ignore[arg-type]
    if not by_paper:
        raise NegbenchError("none of the claims can be tested here: " + "; ".join(sorted({f.reason for f in found})))
    return min(sum(values) / len(values) for values in by_paper.values())


def counts(found: Sequence[Finding]) -> dict[str, int]:
    """Verdict -> how many claims."""
    verdicts = [finding.verdict for finding in found]
    return {name: verdicts.count(name) for name in ("confirmed", "refuted", "undecided", "not testable")}


# --- a world -----------------------------------------------------------------------------------------------------


def world_layers(spec: StudySpec, point: Mapping[str, Any]) -> list[Layer]:
    """Backbone, data set and training of a point; all else is the claims' own."""
    base = spec.config.model_dump(mode="json", exclude_defaults=True)
    moved: dict[str, Any] = {}
    for key, value in spec.space.plain(spec.config, point).items():
        section, name = key.split(".", 1)
        moved.setdefault(section, {})[name] = value
    return [held_layer(base), held_layer(moved)]


def claims_of(spec: StudySpec) -> tuple[PaperClaim, ...]:
    """The claims that a study is about."""
    return chosen(",".join(map(str, spec.claims)))


class ClaimTrials:
    """Computes trials of a study of claims; their runs lie in `cells` of the study's folder, shared between trials."""

    def __init__(self, job: Job) -> None:
        self._job, self._spec = job, job.spec
        self._tracker = Tracker.open(job.runs, job.uri)
        self._cells = job.folder / "cells"

    def __call__(self, claim: Claim) -> list[float]:
        """Support of the claims (`score`).

        Raises:
            NegbenchError: the world cannot be made, or no claim can be tested in it.
        """
        folder = RunFolder(self._job.folder / trial_folder(claim.number))
        with self._tracker.run(folder, dict(claim.point), self._job.tags(claim.number)) as log:
            if run := log.run_id:
                claim.note("mlflow", run)
            started = time.monotonic()
            plan = plan_claims(
                claims_of(self._spec),
                world_layers(self._spec, claim.point),
                self._spec.seeds,
                self._cells,
                Display(),
                SCENES,
            )
            outcomes = [outcome for outcome, _ in compute(plan.cells, Here(), runs=self._cells, tracking_uri="none")]
            by_hash = {outcome.cell.hash: outcome for outcome in outcomes}
            every = [Outcome(cell, by_hash[cell.hash].run_id, by_hash[cell.hash].error, True) for cell in plan.cells]
            found = findings(plan, every, self._cells, Display())
            value = score(found)
            claim.note("runs", sorted({str(outcome.run_id) for outcome in outcomes if outcome.run_id}))
            claim.note("verdicts", {str(finding.claim.number): finding.verdict for finding in found})
            claim.note("seconds", round(time.monotonic() - started, 3))
            log.metrics({"objective/support": value, **{f"claims/{k}": float(v) for k, v in counts(found).items()}}, 0)
        self._drop_large_files(outcomes)
        return [value]

    def _drop_large_files(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            for pattern in LARGE_FILES if outcome.run_id else ():
                for path in (self._cells / str(outcome.run_id)).glob(pattern):
                    path.unlink(missing_ok=True)


# --- fresh seeds ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClaimRow:
    """A claim in the best world, on seeds that no trial saw."""

    number: int
    words: str
    source: str
    verdict: str
    reason: str


@dataclass(frozen=True)
class BestWorld:
    """The best trial's world on fresh seeds; `comparison` names the one that holds its runs."""

    trial: int
    point: dict[str, Any]
    seeds: tuple[int, ...]
    comparison: str
    rows: tuple[ClaimRow, ...]

    @property
    def confirmed(self) -> int:
        """How many claims are."""
        return sum(row.verdict == "confirmed" for row in self.rows)

    @property
    def testable(self) -> int:
        """How many claims this world can test."""
        return sum(row.verdict != "not testable" for row in self.rows)

    def line(self) -> str:
        """Found or not found."""
        point = ", ".join(f"{key.split('.')[-1]}={value}" for key, value in self.point.items())
        found = "all hold: found" if self.confirmed == self.testable > 0 else "not all hold: not found"
        told = f"{self.confirmed} of {self.testable} testable claims are confirmed on fresh seeds"
        return f"{told} ({', '.join(map(str, self.seeds))}) at {point}: {found}"


def best_world(
    book: Book,
    runs: Path,
    executor: Executor,
    *,
    seeds: int,
    tracking_uri: str | None = None,
    progress: Callable[[Outcome, int], None] | None = None,
) -> BestWorld:
    """Judge the claims in the best trial's world on fresh seeds; writes claims.json into the study's folder.

    Args:
        book: a study of claims with a finished trial.
        runs: runs folder; the runs make a comparison there, '<study>-final'.
        executor: where they are computed.
        seeds: how many; the first ones that no trial used.
        tracking_uri, progress: as `ComparisonFolder.compute`.

    Raises:
        NegbenchError: no trial is finished.
    """
    best = next(iter(finished(book)), None)
    if best is None:
        raise NegbenchError(f"study '{book.name}' has no finished trial")
    spec = book.spec
    fresh = tuple(range(max(spec.seeds) + 1, max(spec.seeds) + 1 + seeds))
    plan = plan_claims(claims_of(spec), world_layers(spec, best.params), fresh, runs, Display(), SCENES)
    folder = ComparisonFolder(runs / f"{book.name}-final")
    outcomes = folder.compute(plan.cells, executor, tracking_uri=tracking_uri, progress=progress)
    found = findings(plan, outcomes, runs, Display())
    rows = tuple(ClaimRow(f.claim.number, f.claim.words, f.claim.source, f.verdict, f.reason) for f in found)
    world = BestWorld(best.number, dict(best.params), fresh, folder.path.name, rows)
    write_json(book.folder / FILE, {**vars(world), "rows": [vars(row) for row in rows]})
    return world


def read_best_world(folder: Path) -> BestWorld | None:
    """claims.json; None where there is none."""
    if not (folder / FILE).exists():
        return None
    value = read_json(folder / FILE)
    rows = tuple(ClaimRow(**row) for row in value["rows"])
    return BestWorld(**{**value, "seeds": tuple(value["seeds"]), "rows": rows})
