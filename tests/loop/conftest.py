"""Fixtures of the loop: an open, untrained run on toy data; a run that every strategy can take."""

from pathlib import Path

import pytest

from negbench.loop.types import OpenRun
from tests.runs import config_of, untrained


@pytest.fixture(scope="session")
def vector_sets(longer: list[str]) -> list[str]:
    """Return the `--set` values of the longer run: most tests of this folder are about what happens between epochs."""
    return longer


@pytest.fixture(autouse=True)
def checkpoints(every_epoch: None) -> None:
    """Write a checkpoint after every epoch."""


@pytest.fixture(scope="module")
def cell(toy_root: Path) -> OpenRun:
    """Return an open run with its backbone in evaluation mode."""
    opened = untrained(config_of([f"dataset.root='{toy_root}'", "backbone.weights='random'"], "hycole"))
    opened.backbone.eval()
    return opened


@pytest.fixture(scope="module")
def tuned(toy_root: Path) -> OpenRun:
    """Return an open run of a fine-tuned CLIP with sub-queries, on data with privileged texts."""
    options = ("init='random'", "size='toy'", "frozen=false", "attribute_weights=true", "projection=16", "pad='none'")
    sets = [f"dataset.root='{toy_root}'", "train.batch_size=6", *(f"backbone.{option}" for option in options)]
    return untrained(config_of(sets, "hycole", backbone={"name": "clip"}))


@pytest.fixture(scope="module")
def sets(vector_sets: list[str]) -> list[str]:
    """`--set` values of a run with a guide, of two epochs of two steps each and a refresh between them."""
    by_key = dict(text.split("=", 1) for text in vector_sets)
    images = by_key["backbone.images"].strip("'")
    texts = by_key["backbone.texts"].strip("'")
    data = [text for text in vector_sets if text.startswith(("dataset", "backbone"))]
    steps = ("train.lr=0.003", "train.epochs=2", "train.batch_size=24", "schedule.refresh_epochs=[1]")
    return [*data, *steps, f'mining.guide="precomputed:images={images}:texts={texts}"']
