"""What mining gets in a run: the task of its train split under a model, and the planes that are read.

`negbench.mining` itself knows embeddings and scores only; here they are made from encoded splits and settings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from negbench.contracts import Backbone, Loss, PlaneName, Strategy, check_option
from negbench.data.scene import EncodedSplits, Splits, device_of, load_backbone, open_scene
from negbench.datasets.dataset import Dataset
from negbench.errors import DataError, OptionError
from negbench.metrics.fixed import GIVEN, OFFLINE
from negbench.metrics.ragged import Ragged
from negbench.mining.composite import Composite
from negbench.mining.filters import Filters
from negbench.mining.lists import read_lists
from negbench.mining.planes import EmbeddedPlane, Plane, TablePlane, images_of
from negbench.mining.task import MiningTask
from negbench.scoring import evaluation
from negbench.scoring.rankings import read_trec
from negbench.settings.config import SCORE_FILES, MiningConfig, PluginConfig, ResolvedConfig, is_score_file
from negbench.settings.layers import plugin_section

if TYPE_CHECKING:
    from negbench.display import Display

_EXCLUSIONS = ("exclude_reference", "exclude_relevant", "exclude_subset")


def mining_task(
    backbone: Backbone,
    scene: EncodedSplits,
    mining: MiningConfig,
    *,
    reads: Collection[PlaneName] = (),
    offline: Mapping[str, Plane] | None = None,
    temperature: float | None = None,
    embeddings: evaluation.Embeddings | None = None,
) -> MiningTask:
    """Embed the scene's train split with the current backbone, and exclude images that the run never draws.

    Args:
        backbone: computes the scores.
        scene: its train split is used.
        mining: exclusions and filters; `reads` includes the planes of the filters and of the strategy.
        reads: planes that the task must hold (`planes_read`).
        offline: those of them computed before the run (`offline_planes`).
        temperature: the loss's; None means the backbone's.
        embeddings: the train split's embeddings, if already computed.
    """
    embeddings = embeddings or evaluation.embed(backbone, scene, scene.train)
    dataset = scene.train.dataset
    planes: dict[str, Plane] = {**live_planes(reads, backbone, scene, embeddings)}
    for name, plane in (offline or {}).items():
        if name in reads:
            planes[name] = plane
    exclusions = tuple(getattr(mining, name) for name in _EXCLUSIONS)
    return MiningTask(
        queries=embeddings.queries,
        candidates=embeddings.candidates,
        target=dataset.target_columns,
        group=dataset.group_index,
        groups=list(dataset.groups.values()),
        excluded=scene.train.excluded_columns(mining),
        relevant=dataset.answers,
        kinds=dataset.kind_table if dataset.kinds else None,
        cache=scene.train.mined.setdefault(exclusions, {}),
        temperature=float(backbone.bounded_temperature.detach()) if temperature is None else temperature,
        filters=Filters.of(mining),
        planes=planes,
    )


# --- under the current model ---------------------------------------------------------------------------------------


def live_planes(
    names: Collection[str], backbone: Backbone, scene: EncodedSplits, embeddings: evaluation.Embeddings
) -> dict[str, EmbeddedPlane]:
    """Compute the planes among `names` that use the current model, on the train split with these embeddings."""
    planes = dict[str, EmbeddedPlane]()
    split = scene.train
    candidates = embeddings.candidates
    images = images_of(candidates) if {"target", "reference"} & {*names} else candidates
    if "target" in names:
        targets = split.dataset.target_columns.to(images.device)
        planes["target"] = EmbeddedPlane(images[targets], images[:, None])
    if "reference" in names:
        references = evaluation.references_of(backbone, scene, split, embeddings)
        planes["reference"] = EmbeddedPlane(references, images[:, None])
    if "text" in names:
        planes["text"] = EmbeddedPlane(evaluation.embed_texts(backbone, scene, split), candidates)
    return planes


# --- made once a run -----------------------------------------------------------------------------------------------


def planes_read(strategy: Strategy, mining: MiningConfig, loss: Loss | None = None) -> frozenset[PlaneName]:
    """Return the planes that a run's strategy, filters and loss read; without a loss, those that mining reads.

    Raises:
        OptionError: a guide or a judge is read, and `mining` names none.
    """
    of_loss: tuple[PlaneName, ...] = () if loss is None else loss.reads
    readers: dict[str, tuple[PlaneName, ...]] = {
        type(strategy).__name__: strategy.reads,
        "a mining filter": Filters.of(mining).reads,
        f"loss {type(loss).__name__}": of_loss,
    }
    for reader, names in readers.items():
        for name in GIVEN:
            if name in names and getattr(mining, name) is None:
                raise OptionError(
                    f"{reader} reads the plane '{name}', but the run has none: "
                    f"--set mining.{name}=BACKBONE (as for --backbone), or a TREC run file ({', '.join(SCORE_FILES)})"
                )
    return frozenset().union(*readers.values())


def offline_planes(
    names: Collection[str], config: ResolvedConfig, scene: EncodedSplits, display: Display, precision: str = "fp32"
) -> dict[str, Plane]:
    """Compute the planes among `names` that stay fixed while a run trains.

    Args:
        names: planes; those of the current model are ignored.
        config: names guide and judge, and says how to encode for them.
        scene: its train split is scored, with texts and pairs as annotated.
        display: shows the stages.
        precision: what other backbones compute in: the run's.

    Raises:
        DataError: the data set redraws its pairs in each epoch, so no score can be kept; or a file does not fit the
            data set.
        NegbenchError: a backbone cannot be loaded, or a file cannot be read.
    """
    names = [name for name in GIVEN if name in names]
    if names:
        _check_stays(scene.train.dataset, names[0])
    planes = dict[str, Plane]()
    for name in names:
        text = str(getattr(config.mining, name))
        planes[name] = _plane_from(text, config, scene, display, name == "judge", precision)
    return planes


def listed_plane(strategy: Strategy, dataset: Dataset, device: torch.device) -> dict[str, Plane]:
    """Return the plane "listed" of a data set's queries, if the strategy reads it.

    Raises:
        DataError: there is no list, the file does not fit the data set, or the data set redraws its pairs.
    """
    if "listed" not in strategy.reads:
        return {}
    check_listed(strategy, dataset)
    file = lists_of(strategy)
    column_of = dataset.column_of
    if file is not None:
        lists = read_lists(file, dataset)
    else:
        lists = []
        for query in dataset.queries:
            lists.append([column_of[name] for name in query.negatives if name in column_of])
    columns = Ragged.of(lists)
    return {"listed": TablePlane(columns, torch.ones(len(columns.values)), len(dataset.images), device)}


def check_listed(strategy: Strategy, dataset: Dataset) -> None:
    """Raise DataError if the strategy reads lists, and there are none, or none that stay."""
    if "listed" in strategy.reads:
        _check_stays(dataset, "listed")
        images = dataset.column_of.keys()
        if lists_of(strategy) is None and all(images.isdisjoint(query.negatives) for query in dataset.queries):
            raise DataError(
                f"{dataset.identity} lists no negatives among its images: name a column of train's that does, as "
                "--columns negatives=NAME, or a file, as strategy listed:file=NEGATIVES.parquet"
            )


def lists_of(strategy: Strategy) -> Path | None:
    """Return the file of negatives, option `file` of the strategy or of its part that reads the plane "listed".

    Raises:
        OptionError: two parts name two files.
    """
    parts = strategy.members if isinstance(strategy, Composite) else (strategy,)
    files = {getattr(part, "file", None) for part in parts if "listed" in part.reads}
    check_option("file", sorted(str(file) for file in files), len(files) < 2, "the same in both parts")
    return next(iter(files), None)


def _check_stays(dataset: Dataset, name: str) -> None:
    if dataset.redraws:
        raise DataError(
            f"{dataset.card.name} draws new pairs in each epoch, but plane '{name}' is computed once: "
            "use a strategy and mining filters that read none of " + ", ".join(OFFLINE)
        )


def _plane_from(
    text: str, config: ResolvedConfig, scene: EncodedSplits, display: Display, judges: bool, precision: str
) -> Plane:
    """Return scores from a file, or from a backbone: of composed queries or (`judges`) of target images."""
    device = device_of(config)
    dataset = scene.train.dataset
    if is_score_file(text):
        return _table(Path(text), dataset, device)
    section = config.other_backbone(PluginConfig(**plugin_section("backbones", text)))
    other = load_backbone(section, config.seed).to(device)
    other.precision = precision
    with display.stage("prepare"):
        other_scene = open_scene(config, Splits(dataset, None, dataset), other, device, display)
    with display.stage("evaluate", note="judge" if judges else "guide"):
        if not judges:
            embeddings = evaluation.embed(other, other_scene, other_scene.train)
            return EmbeddedPlane(embeddings.queries, embeddings.candidates)
        images = images_of(evaluation.embed_candidates(other, other_scene, other_scene.train.images))
        return EmbeddedPlane(images[dataset.target_columns.to(images.device)], images[:, None])


def _table(path: Path, dataset: Dataset, device: torch.device) -> TablePlane:
    by_query = read_trec(path)
    rows = [by_query.get(query.id, {}) for query in dataset.queries]
    if not any(rows):
        raise DataError(f"{path} scores no query of {dataset.identity}: is it for another data set or split?")
    columns: list[list[int]] = []
    scores: list[float] = []
    for row in rows:
        for image in row:
            if image not in dataset.column_of:
                raise DataError(f"{path} scores images that {dataset.identity} does not have, such as {image!r}")
        columns.append([dataset.column_of[image] for image in row])
        scores += row.values()
    return TablePlane(Ragged.of(columns), torch.tensor(scores), len(dataset.images), device)
