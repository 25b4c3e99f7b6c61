"""Rankings as other tools read them: TREC's run format (trec_eval, pytrec_eval, ranx)."""

from __future__ import annotations

import math
from pathlib import Path

from torch import Tensor

from negbench.datasets.dataset import Dataset
from negbench.errors import NegbenchError
from negbench.files import atomic_write

TAG = "negbench"


def write_trec(path: Path, dataset: Dataset, columns: Tensor, scores: Tensor) -> None:
    """Write one line per listed image: `query Q0 image rank score negbench`, ranks from 1, best first.

    Scores are written so that reading them back gives the same float32.

    Args:
        path: file to write, whole or not at all.
        dataset: whose queries and images are meant.
        columns: [Q, k] int64 into `dataset.images`, -1 where a list ends early (`Dataset.top`).
        scores: [Q, k] float32.

    Raises:
        NegbenchError: an id with a blank in it, which the format cannot carry, or a file that cannot be written.
    """
    for name in (*(query.id for query in dataset.queries), *dataset.images):
        if len(name.split()) != 1:
            raise NegbenchError(f"id {name!r} holds a blank: a TREC run file cannot carry it")
    with atomic_write(path) as file:
        for query, row, values in zip(dataset.queries, columns.tolist(), scores.tolist(), strict=True):
            for place, (column, score) in enumerate(zip(row, values, strict=True), start=1):
                if column >= 0:
                    file.write(f"{query.id} Q0 {dataset.images[column]} {place} {score:.9g} {TAG}\n")


def read_trec(path: Path) -> dict[str, dict[str, float]]:
    """Query id -> {image id: score}; as in trec_eval the scores count and the column of ranks does not.

    Raises:
        NegbenchError: a file that cannot be read, or a line that is not of the format, by its number.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise NegbenchError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    found: dict[str, dict[str, float]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        fields = line.split()
        score = _number(fields[4]) if len(fields) == 6 else None
        if score is None:
            raise NegbenchError(
                f"{path}: line {number}: want the six fields 'query Q0 image rank score tag', got {line[:60]!a}"
            )
        query, image = fields[0], fields[2]
        if image in found.setdefault(query, {}):
            raise NegbenchError(f"{path}: line {number}: image {image!a} of query {query!a} is there twice")
        found[query][image] = score
    if not found:
        raise NegbenchError(f"{path} holds no ranking")
    return found


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
