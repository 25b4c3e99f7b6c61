"""The loop of a worker, and several workers at once."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from optuna.exceptions import UpdateFinishedTrialError

from negbench import files
from negbench.errors import NegbenchError
from negbench.executors import Executor, Report
from negbench.tracking import Pruned, Tracker
from negbench.tuning.book import Book, Claim
from negbench.tuning.claimed import ClaimTrials
from negbench.tuning.spec import StudySpec
from negbench.tuning.storage import storage_url
from negbench.tuning.trials import Job, Objective, Trials

_POLL = 0.5  # seconds between two looks while other workers compute the last trials


def serve(job: Job, report: Report) -> int:
    """Compute trials until the study has all that are asked for; returns how many this worker made."""
    from negbench.registry import registry

    for path in job.spec.base["plugins"]:
        registry.add_file(Path(path))
    tracker = Tracker.open(job.runs, job.uri)

    def lost(attributes: object) -> None:
        run = attributes.get("mlflow") if isinstance(attributes, dict) else None
        report("a trial whose worker died is queued again")
        if run:
            with suppress(Exception):  # a store that fails costs no trial
                tracker.end(str(run), "FAILED")

    return work(Book(job.folder, job.name, job.spec, job.url, job.trials, on_lost=lost), job.opens(job), report)


def work(book: Book, objective: Objective, report: Report) -> int:
    """Claim, compute and close trials; returns how many.

    Raises:
        NegbenchError: the default itself (trial 0) cannot be computed.
    """
    made = 0
    while (claim := book.claim()) is not None:
        if isinstance(claim, str):
            time.sleep(_POLL)
            continue
        with claim.held:
            try:
                said = _compute(book, claim, objective)
            except UpdateFinishedTrialError:
                said = "was taken by another worker, because this one had lost its hold of it"
            except BaseException:
                book.give_back(claim)
                raise
        made += 1
        report(f"trial {claim.number}: {said}")
    return made


def _compute(book: Book, claim: Claim, objective: Objective) -> str:
    """One trial to its end; what became of it. Raises UpdateFinishedTrialError where another worker has taken it."""
    point = ", ".join(f"{key.split('.')[-1]}={_short(value)}" for key, value in claim.point.items())
    try:
        values = objective(claim)
        book.finish(claim, values)
    except Pruned as error:
        book.prune(claim)
        return f"pruned {error} ({point})"
    except UpdateFinishedTrialError:
        raise
    except Exception as error:
        text = str(error) if isinstance(error, NegbenchError) else f"{type(error).__name__}: {error}"
        book.fail(claim, text)
        if claim.number == 0 and isinstance(error, NegbenchError):
            raise NegbenchError(f"trial 0, the default, failed: {text}") from error
        if claim.number == 0:
            raise  # a fault of ours, with its traceback
        return f"FAILED: {text} ({point})"
    return f"{' '.join(f'{value:.4f}' for value in values)} ({point})"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def run_study(job: Job, executor: Executor, report: Report) -> None:
    """Compute a study with all workers of an executor; others may be at it on other machines.

    Raises:
        NegbenchError: trial 0 failed, or every worker died.
    """
    workers = executor.workers
    if workers == 1 and not executor.elsewhere:
        serve(job, report)
        return
    alive = workers
    for event in executor.run(serve, [job] * workers):
        if event.kind == "note":
            report(event.value)
        elif event.kind == "failed":
            alive -= 1
            if "trial 0, the default" in event.value:
                raise NegbenchError(event.value)
            report(f"worker {event.index}: {event.value}; {alive} of {workers} go on")
            if alive == 0:
                raise NegbenchError(f"every worker died ({event.value}); the same command goes on from what is kept")


def open_study(
    runs: Path, name: str, spec: StudySpec, *, trials: int, storage: str | None, workers: int, tracking_uri: str | None
) -> tuple[Book, Job]:
    """The study, made or found again, and the job of its workers.

    Raises:
        RunError, OptionError: see `Book` and `storage_url`.
    """
    folder = runs / name
    url = storage_url(folder, storage, workers)
    book = Book(folder, name, spec, url, trials)
    tracker, note = Tracker.open(runs, tracking_uri), folder / "mlflow.json"
    with book.hold():
        shared = None if tracker.uri.startswith("sqlite") else book.study.user_attrs.get("mlflow")
        if shared and shared["uri"] == tracker.shown and not note.exists():
            files.write_json(note, {**shared, "summaries": []})  # another machine has made the parent
        parent = tracker.parent(note, name, {"negbench.kind": "study", "study": name})
        if parent and not shared:
            book.study.set_user_attr("mlflow", {"uri": tracker.shown, "run_id": parent})
    opens = ClaimTrials if spec.claims else Trials
    return book, Job(runs, name, spec, url, trials, tracking_uri, parent, opens)
