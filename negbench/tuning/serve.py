"""The workers of a study: one here, or several processes, also on other machines that share the runs folder."""

from __future__ import annotations

from pathlib import Path

from negbench.errors import NegbenchError
from negbench.executors import Executor, Report
from negbench.tracking import Tracker
from negbench.tuning.book import Book
from negbench.tuning.spec import StudySpec
from negbench.tuning.trials import Job, Trials


def open_study(
    runs: Path, name: str, spec: StudySpec, *, trials: int, storage: str | None = None, tracking_uri: str | None
) -> tuple[Book, Job]:
    """The study, made if absent, and the job of its workers.

    Raises:
        RunError, OptionError: see `Book`.
    """
    folder = runs / name
    book, tracker = Book(folder, spec, storage, trials), Tracker.open(runs, tracking_uri)
    parent = tracker.parent(folder / "mlflow.json", name, {"negbench.kind": "study", "study": name})
    return book, Job(folder, spec, storage, trials, tracking_uri, parent, Trials)


def serve(job: Job, report: Report) -> int:
    """Compute trials until the study has all that are asked for; returns how many this worker made."""
    from negbench.registry import registry

    for path in job.spec.base["plugins"]:
        registry.add_file(Path(path))
    return Book(job.folder, job.spec, job.storage, job.trials).work(job.opens(job), report)


def run_study(job: Job, executor: Executor, report: Report) -> None:
    """Compute a study with all workers of an executor.

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
                raise NegbenchError(f"every worker died ({event.value}); rerun the command to resume")
