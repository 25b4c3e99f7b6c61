"""Run `negbench evaluate`: score a run on any data set, or a file of rankings without a model."""

from functools import partial
from pathlib import Path

from negbench.datasets.dataset import Dataset
from negbench.datasets.preferences import PreferenceFormat
from negbench.datasets.submission import submittable
from negbench.display import progress
from negbench.machine.files import atomic_write, runs_dir
from negbench.scoring.scorers import Encoded, cirqrs_of_file, encode_run
from negbench.scoring.stored import (
    Scores,
    benchmark_scores,
    choice_agreement,
    load_named_dataset,
    preferences_of,
    score_file,
)
from negbench.settings.command_options import Evaluate
from negbench.settings.layers import layers_of
from negbench.store.runfolder import find_run

RECALL_AT_5 = "recall-at-5"  # a scorer of sets: whether a set holds the target


def evaluate(options: Evaluate) -> tuple[Scores | None, list[Path]]:
    """Score the run or the rankings, and write the requested files.

    Returns:
        Scores (None for a split with closed labels) and the files that were written.

    Raises:
        NegbenchError: a user's mistake: files, data or weights that are missing or do not fit.
    """
    layers = layers_of(options)
    paths: list[Path] = []
    scores: Scores | None
    if options.ranks is not None and options.metric is None:
        scores = score_file(options.ranks, layers, options.split)
    elif options.scorer == RECALL_AT_5:
        dataset = preferences_of(load_named_dataset(layers, options.split, "--scorer"))
        scores = choice_agreement(dataset, dataset.hits.double(), RECALL_AT_5)
    else:
        folder = find_run(runs_dir(options.runs_dir), str(options.run or options.scorer))
        with progress("evaluate") as display:
            encoded = encode_run(folder, layers, options.split, display, check=partial(_check, options))
        scores = _score_run(encoded) if options.ranks is None else cirqrs_of_file(options.ranks, encoded)
        if options.submission is not None:
            paths += encoded.write_submission(options.submission)
    if scores is not None and options.out is not None:
        with atomic_write(options.out, "wb") as file:
            scores.queries.to_parquet(file, index=False)
        paths.append(options.out)
    return scores, paths


def _check(options: Evaluate, dataset: Dataset) -> None:
    """Check before encoding that the split has labels, if they are read, that it holds choices or has a server."""
    if options.submission is not None:
        submittable(dataset)
    if options.scorer is not None and options.metric is None:
        preferences_of(dataset)
    if options.metric is None and (options.out is not None or options.submission is None):
        dataset.require_labels()


def _score_run(encoded: Encoded) -> Scores | None:
    """Compute the scores of a split; None if its labels are closed."""
    if isinstance(encoded.dataset, PreferenceFormat):
        return encoded.agreement()
    if encoded.dataset.closed:
        return None
    return benchmark_scores(encoded.dataset, encoded.ranks(), encoded.run_id, encoded.remarks)
