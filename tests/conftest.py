"""Fixtures that several areas share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the real annotation files; tests that use it skip where it is absent."""
    path = Path(os.environ.get("NEGBENCH_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (path / "fashioniq").is_dir():
        pytest.skip(f"no real annotation files at {path} (set NEGBENCH_SHARED_DATA)")
    return path


@pytest.fixture(scope="session")
def toy_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic data set that trains in a moment: three categories of 32 images and 24 queries each."""
    from negbench.datasets._synthesis import Spec, synthesize

    out = tmp_path_factory.mktemp("toy") / "synthetic"
    synthesize(out, Spec(seed=1, twins=2, train_images=32, train_queries=24, val_images=16, val_queries=12))
    return out


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data and features of tests stay out of the user's cache; worker and sub-processes inherit it."""
    path = tmp_path_factory.mktemp("cache")
    os.environ["NEGBENCH_CACHE"] = str(path)
    os.environ.pop("NEGBENCH_RUNS", None)
    os.environ.pop("NEGBENCH_DATA", None)
    return path


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Tests kill processes, never the machine: what is written need not reach the disk (but see test_protocol.py)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session")
def vector_sets(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """`--set` texts of a run of a tenth of a second: two groups of 20 images and 24 queries, all of them vectors."""
    from negbench.testing.vectors import write_vectors

    training = ["train.epochs=4", "train.batch_size=16", "train.lr=0.03", "schedule.n_def=2"]
    return [*write_vectors(tmp_path_factory.mktemp("vectors")), *training]


@pytest.fixture(scope="session")
def toy_sets(toy_root: Path) -> list[str]:
    """`--set` texts of a run of a second on `toy_root`."""
    return [
        f"dataset.root='{toy_root}'",
        "backbone.weights='random'",
        "train.epochs=4",
        "train.batch_size=16",
        "schedule.n_def=2",
    ]
