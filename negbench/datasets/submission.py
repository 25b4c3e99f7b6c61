"""Submissions to a benchmark's test server: its files, and a check that every query and image is loaded."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from negbench.datasets.dataset import Dataset, ScoreBlock, Top
from negbench.errors import DataError


@dataclass(frozen=True, eq=False)
class HasTestServer(Dataset):
    """A data set whose benchmark has a test server."""

    @abstractmethod
    def submission(self, score_block: ScoreBlock) -> dict[str, dict[str, Any]]:
        """Return file name -> JSON content, as the benchmark's test server takes it.

        Args:
            score_block: as for `rank`.

        Raises:
            DataError: only a part of the split or of the gallery is loaded.
        """

    def ids_of(self, top: Top) -> dict[str, list[str]]:
        """Return query id -> ids of its best images, best first."""
        lists = {}
        for query, columns in zip(self.queries, top.columns.tolist(), strict=True):
            lists[query.id] = [self.images[column] for column in columns if column >= 0]
        return lists


def submittable(dataset: Dataset) -> HasTestServer:
    """Return the data set if its test server takes what is loaded; otherwise raise DataError."""
    if not isinstance(dataset, HasTestServer):
        raise DataError(f"{dataset.card.name} has no test server: there is no submission to write")
    reasons = []
    if dataset.missing:
        reasons.append(f"{len(dataset.missing)} images are missing")
    if dataset.part:
        reasons.append(f"only {dataset.part} is loaded")
    if reasons:
        raise DataError(
            f"{dataset.card.name} {dataset.split}: a submission needs every query and image, "
            f"but {' and '.join(reasons)}"
        )
    return dataset
