"""Warn, before anything is trained, of what makes an evaluation uninformative."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from negbench.analysis.words import in_points, label_of
from negbench.data.scene import DataCache, threads
from negbench.datasets.dataset import Dataset
from negbench.datasets.overlap import overlap
from negbench.display import Display, notes, progress
from negbench.grid.cells import Cell
from negbench.loop.runs import DATA, open_run
from negbench.loop.types import OpenRun
from negbench.scoring import evaluation
from negbench.settings.config import RunConfig

MOVES_SCORES = False  # only observes

_FIRST = 0.5  # share of queries whose own reference ranks first
_SATURATED = 0.9  # of the main metric, before training
_CHANGED = 0.05  # share of queries that two strategies are assumed to answer differently


def forewarn(cells: Sequence[Cell], runs: Path, margin: float) -> None:
    """Log why comparisons on these data may say little, once per backbone and data set with runs left to compute.

    Args:
        cells: of a comparison.
        runs: runs folder.
        margin: as in `forewarnings`.
    """
    todo = [cell for cell in cells if cell.action(runs) in ("resume", "anew")]
    configs: dict[tuple[str, str], RunConfig] = {}
    for cell in reversed(todo):  # the first cell stays
        configs[cell.labels["backbone"], cell.labels["dataset"]] = cell.config
    with progress("prepare") as display:
        reasons = forewarnings(list(configs.values()), margin, display, DATA, runs=runs)
    notes(reasons)


def forewarnings(
    configs: Sequence[RunConfig],
    margin: float,
    display: Display,
    cache: DataCache,
    images: int = 0,
    runs: Path | None = None,
) -> list[str]:
    """Return a line for each reason why comparisons on these data will say little, with the weights as loaded.

    Skips what cannot be loaded: the runs themselves report why.

    Args:
        configs: one for each backbone and data set.
        margin: differences within it count as equal, as a share (0.01 is one point).
        display: shows the stages.
        cache: shares loaded data and backbones.
        images: number of images in the user's own files, if known.
        runs: runs that were started in this folder keep their precision.
    """
    reasons = list[str]()
    for config in configs:
        try:
            run = open_run(config, display, cache, runs)
            with threads(run.config.compute.threads), display.stage("evaluate", note="before training"):
                splits = run.splits
                options = run.config.dataset.options
                reasons += of_data(splits.train, splits.val, margin, options, images)
                reasons += run.scene.unseen
                reasons += _of_scores(run)
        except Exception:  # whatever a plug-in raises: its own run reports it, and the others go on
            continue
    return list(dict.fromkeys(reasons))


def of_data(train: Dataset, val: Dataset, margin: float, options: Mapping[str, Any], images: int = 0) -> Iterator[str]:
    """Yield warnings from the annotations alone: duplicates, overlap, few queries, a gallery smaller than the data.

    Args:
        train: train split.
        val: scored split.
        margin: as in `forewarnings`.
        options: the data set's, with defaults.
        images: as in `forewarnings`.
    """
    yield from dict.fromkeys([*train.remarks, *val.remarks, *overlap(train, val)])
    # 95 % interval of a difference of two shares of the same queries, of which _CHANGED are answered differently
    width = 1.96 * (_CHANGED / len(val.queries)) ** 0.5
    if width > margin > 0:
        enough = round(_CHANGED * (1.96 / margin) ** 2)
        yield (
            f"{len(val.queries):,} val queries are few for a margin of {in_points(margin)}: if two strategies "
            f"differ on one query in {1 / _CHANGED:.0f}, the interval is ±{100 * width:.1f} points wide; use "
            f"--margin {100 * width:.1f}, or about {enough:,} queries"
        )
    images = max(images, len({*train.all_images, *val.all_images}))
    if options.get("gallery", "") is None and len(val.images) < images:
        yield (
            f"val ranks only the {len(val.images):,} of {images:,} images that its rows name, which is easier than "
            "ranking all: add the others with --set dataset.gallery=FILE (an image per line, or .npz of the embeddings)"
        )


def _of_scores(run: OpenRun) -> Iterator[str]:
    """Yield warnings from untrained scores: references that rank first, a metric already high, equal images."""
    split = run.scene.val
    options = run.config.dataset.options
    val = split.dataset
    embedded = evaluation.embed(run.backbone, run.scene, split)
    score_block = evaluation.block_scorer(embedded.queries, embedded.candidates)
    metrics = val.measure(score_block)
    main = val.card.main
    targets_are_references = bool((val.target_columns == val.reference_columns).any())  # they cannot be left out
    if options.get("exclude_reference") is False and not targets_are_references:
        first = val.top(score_block, 1).columns[:, 0]
        share = float((first == val.reference_columns).double().mean())
        if share >= _FIRST:
            without = dataclasses.replace(val, card=dataclasses.replace(val.card, exclude_reference=True))
            metric = next(iter(metrics))
            after = without.measure(score_block)[metric]
            yield (
                f"a query's own reference ranks first for {share:.0%} of the val queries: {label_of(metric)} is "
                f"{metrics[metric]:.1%} before training, and {after:.1%} with --set dataset.exclude_reference=true"
            )
    if metrics[main] >= _SATURATED:
        yield (
            f"{label_of(main)} is {metrics[main]:.1%} before any training: strategies have little room to differ; "
            "use a stricter metric (--metric) or a larger gallery"
        )
    rows = embedded.candidates.flatten(1).cpu()
    distinct = len({row.tobytes() for row in rows.numpy()})
    if distinct < len(rows):
        yield (
            f"{len(rows) - distinct:,} of {len(rows):,} images in val have the same embedding as another: a duplicate "
            "of the target counts as a wrong answer; drop it, or list it in a column `relevant`"
        )
