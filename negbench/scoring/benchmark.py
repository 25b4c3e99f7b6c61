"""What `negbench evaluate` computes: a run on any data set, or stored ranks and rankings without a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from negbench.command_options import Evaluate
from negbench.datasets._preferences import PreferenceFormat
from negbench.datasets._submission import submittable
from negbench.datasets.dataset import Dataset
from negbench.display import stages
from negbench.files import atomic_write, runs_dir
from negbench.layers import layers_of
from negbench.runfolder import find_run
from negbench.scoring.result import Ranked, Scores
from negbench.scoring.scorers import Encoded, cirqrs, encode_run, scorer_layers
from negbench.scoring.stored import Layers, read_rankings, score_file
from negbench.scoring.trec import write_trec

TREC_DEPTH = 1000


@dataclass(frozen=True)
class Evaluation:
    """Scores, None of a split with closed labels, and the files that were written."""

    scores: Scores | None
    written: tuple[Path, ...] = ()


def evaluate(asked: Evaluate) -> Evaluation:
    """Score as asked, and write the files asked for.

    Raises:
        NegbenchError: a user's mistake: files, data or weights that are not there or do not fit.
    """
    layers, written = layers_of(asked), list[Path]()
    scores: Scores | None
    if asked.metric == "cirqrs":
        scores = _cirqrs(asked, layers)
    elif asked.ranks is not None:
        scores = _of_ranks(asked, score_file(asked.ranks, layers, asked.split))
    else:
        encoded = _encode(asked, str(asked.run), layers, _check(asked))
        scores = _of_run(asked, encoded)
        written += _write_lists(asked, encoded)
    if scores is not None and asked.out is not None:
        with atomic_write(asked.out, "wb") as file:
            scores.queries.to_parquet(file, index=False)
        written.append(asked.out)
    return Evaluation(scores, tuple(written))


def _encode(asked: Evaluate, run: str, layers: Layers, check: Callable[[Dataset], None]) -> Encoded:
    folder = find_run(runs_dir(asked.runs_dir), run)
    with stages("evaluate") as display:
        return encode_run(folder, layers, asked.split, display, check=check)


def _check(asked: Evaluate) -> Callable[[Dataset], None]:
    """What the split must offer, checked before anything is encoded: labels, unless only lists are wanted."""

    def check(dataset: Dataset) -> None:
        if asked.submission is not None:
            submittable(dataset)
        if asked.out is not None or (asked.submission is None and asked.trec is None):
            dataset.require_labels()

    return check


def _any_split(dataset: Dataset) -> None:
    """CIRQRS needs no labels."""


def _of_ranks(asked: Evaluate, ranked: Ranked) -> Scores:
    return ranked.relevant(asked.k) if asked.metric == "relevant" else ranked.benchmark()


def _of_run(asked: Evaluate, encoded: Encoded) -> Scores | None:
    if isinstance(encoded.dataset, PreferenceFormat):
        return encoded.judged()
    return None if encoded.dataset.closed else _of_ranks(asked, encoded.ranked())


def _cirqrs(asked: Evaluate, layers: Layers) -> Scores:
    """Of a run or a ranking file, under the scorer on the same data (a ranking file: on the scorer's own)."""
    if asked.ranks is not None:
        read_rankings(asked.ranks)  # before anything is encoded
        return cirqrs(asked.ranks, _encode(asked, str(asked.scorer), layers, _any_split), asked.k)
    ranking = _encode(asked, str(asked.run), layers, _any_split)
    same = scorer_layers(find_run(runs_dir(asked.runs_dir), str(asked.run)), layers)
    return cirqrs(ranking, _encode(asked, str(asked.scorer), same, _any_split), asked.k)


def _write_lists(asked: Evaluate, encoded: Encoded) -> list[Path]:
    written = [] if asked.submission is None else encoded.write_submission(asked.submission)
    if asked.trec is not None:
        write_trec(asked.trec, encoded.dataset, *encoded.top(TREC_DEPTH))
        written.append(asked.trec)
    return written
