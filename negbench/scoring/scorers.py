"""Score a finished run's model on any data set."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from negbench.contracts import Backbone, HoldsFeatures
from negbench.data.images import with_features
from negbench.data.scene import (
    EncodedSplits,
    Split,
    Splits,
    batches,
    device_of,
    load_backbone,
    load_split,
    open_scene,
    threads,
    trained_state,
)
from negbench.datasets.dataset import Dataset, QueryRanks, Top
from negbench.datasets.preferences import PreferenceFormat
from negbench.datasets.submission import submittable
from negbench.display import Display
from negbench.errors import NegbenchError, OptionError, WeightsError
from negbench.files.image_files import Spellings
from negbench.machine.files import atomic_write
from negbench.metrics.preference import cirqrs_at_k
from negbench.scoring import evaluation
from negbench.scoring.rankings import first_columns, read_rankings
from negbench.scoring.stored import Layers, Scores, check_sections, choice_agreement, preferences_of
from negbench.settings.config import RunConfig, build_config
from negbench.store.runfolder import RunFolder

_AT_ONCE = 256  # queries scored at once


@dataclass(frozen=True, eq=False)
class Encoded:
    """Embeddings of one split by a run's model, from which ranks, lists and submissions are made."""

    run_id: str
    split: Split
    scene: EncodedSplits
    backbone: Backbone
    embeddings: evaluation.Embeddings
    temperature: float
    remarks: tuple[str, ...]

    @property
    def dataset(self) -> Dataset:
        """The split's data set."""
        return self.split.dataset

    def ranks(self) -> QueryRanks:
        """Per-query ranks and mistakes; DataError where the labels are closed."""
        self.dataset.require_labels()
        return evaluation.rank_judged(self.split, self.embeddings)

    def top(self, k: int) -> Top:
        """Return each query's k best images."""
        return evaluation.top_k(self.split, self.embeddings.queries, self.embeddings.candidates, k)

    def agreement(self) -> Scores:
        """Agreement with people's choices; DataError where the data set holds none."""
        preferences = preferences_of(self.dataset)
        sets = preferences.score_sets(evaluation.block_scorer(self.embeddings.queries, self.embeddings.candidates))
        return choice_agreement(preferences, sets, self.run_id, self.remarks)

    def relevance_of(self, columns: Tensor) -> Tensor:
        """[Q, k] cosines of the images in these columns, nan where a column is -1."""
        score_block = evaluation.block_scorer(self.embeddings.queries, self.embeddings.candidates)
        all_images = torch.arange(len(self.dataset.images))
        parts = []
        for rows in batches(len(columns), _AT_ONCE):
            scores = score_block(rows, all_images)
            parts.append(scores.gather(1, columns[rows].clamp(min=0)))
        return torch.cat(parts).masked_fill(columns < 0, torch.nan)

    def write_submission(self, folder: Path) -> list[Path]:
        """Write the files of the benchmark's test server; returns their paths. DataError where there is no server."""
        score_block = evaluation.block_scorer(self.embeddings.queries, self.embeddings.candidates)
        paths = []
        for name, content in submittable(self.dataset).submission(score_block).items():
            paths.append(folder / name)
            with atomic_write(paths[-1]) as file:  # compact: CIRR's server takes 5 MB
                json.dump(content, file, separators=(",", ":"))
        return paths


def cirqrs_of_file(path: Path, scorer: Encoded, depths: Sequence[int] = (10, 50)) -> Scores:
    """Rate another program's rankings by a run's scores, divided by its temperature (CIRQRS eq. 1, table 6).

    Args:
        path: as for `read_rankings`, at least as many images as the largest depth.
        scorer: the run, applied to the split.
        depths: values of k.

    Returns:
        CIRQRS@k of each gallery group, the mean of the groups, and the mean over `depths`.

    Raises:
        NegbenchError: as `first_columns`; a file that cannot be read.
    """
    dataset = scorer.dataset
    columns = first_columns(dataset, read_rankings(path), max(depths))
    images = scorer.relevance_of(columns) / scorer.temperature
    values = pd.DataFrame({f"cirqrs_at_{k}": cirqrs_at_k(images, k).numpy() for k in depths})
    groups = pd.Series([query.group for query in dataset.queries], name="group")
    means = values.groupby(groups, sort=False).mean()
    parts: dict[str, pd.Series[float]] = {}
    if len(means) > 1:
        parts = {str(group): row for group, row in means.iterrows()}
    parts["average"] = means.mean()
    metrics: dict[str, float] = {}
    for part, row in parts.items():
        for name, value in row.items():
            metrics[f"{part}/{name}"] = float(value)
    for part, row in parts.items():
        metrics[f"{part}/cirqrs"] = float(row.mean())
    return Scores(
        title=f"{path} rated by {scorer.run_id} on {dataset.full_name}",
        metrics=metrics,
        queries=pd.concat([pd.Series([query.id for query in dataset.queries], name="query"), groups, values], axis=1),
        main="average/cirqrs",
        unit="score / temperature",
        remarks=(*dataset.remarks, *scorer.remarks),
        partial=dataset.partial,
    )


# --- a run -------------------------------------------------------------------------------------------------------


def encode_run(
    folder: RunFolder,
    layers: Layers,
    split: str,
    display: Display,
    *,
    check: Callable[[Dataset], None] = Dataset.require_labels,
) -> Encoded:
    """Rebuild a run's trained model and apply it to a split of its own data set or of another one.

    Args:
        folder: of a finished run.
        layers: changes to the run's sections `dataset` and `compute`, and to the files of `backbone`.
        split: name of the split.
        display: shows the stages.
        check: called before encoding; raises if the split does not fit the purpose.

    Raises:
        RunError: the run holds no weights.
        WeightsError: its weights are not those of the backbone that its configuration names.
        NegbenchError: a wrong option, or missing data.
    """
    folder.check_plugins()
    check_sections(layers, ("dataset", "compute", "backbone"))
    config = build_config([folder.config.model_dump(mode="json"), *layers])
    with threads(config.compute.threads):
        backbone = load_backbone(config.backbone, config.seed)
        has_features = isinstance(backbone, HoldsFeatures)
        exchanged = config.backbone != folder.config.backbone
        if exchanged and not has_features:
            raise OptionError("--set backbone...: only embeddings in files (precomputed) can be exchanged for others")
        load_weights(backbone, folder, started_alike=not exchanged)
        dataset = with_features(load_split(config.dataset, split, images=not has_features), backbone, config)
        check(dataset)
        device = device_of(config)
        backbone.to(device)
        backbone.precision = folder.precision
        backbone.set_least_temperature(config.train.temperature_least)
        with display.stage("prepare"):
            scene = open_scene(config, Splits(dataset, None, dataset), backbone, device, display)
        with display.stage("evaluate", note=folder.run_id):
            embeddings = evaluation.embed(backbone, scene, scene.val, wordings=True)
    remarks = (*train_queries_in(folder, dataset), *_differences_from_run(folder, config, split, dataset))
    if exchanged:
        remarks += (
            f"embeddings of {backbone.identity.weights}: by the encoder of the run's own, or scores mean nothing",
        )
    temperature = float(backbone.bounded_temperature.detach())
    return Encoded(folder.run_id, scene.val, scene, backbone, embeddings, temperature, remarks)


def _differences_from_run(folder: RunFolder, config: RunConfig, split: str, dataset: Dataset) -> tuple[str, ...]:
    """Say which data the run was trained or scored on, where they are others than these."""
    trained = folder.manifest["dataset"]
    if config.dataset.name != folder.config.dataset.name:
        # FashionIQ's own queries, judged otherwise, are not zero-shot for a model of FashionIQ
        zero_shot = "" if isinstance(dataset, PreferenceFormat) else ": this is zero-shot"
        return (f"trained on {trained['train']}{zero_shot}",)
    if split == "val" and dataset.identity != trained["val"]:
        return (f"the run itself was scored on {trained['val']}",)
    return ()


def train_queries_in(folder: RunFolder, dataset: Dataset) -> tuple[str, ...]:
    """Say how many queries of a split the run was trained on, as its own data are now."""
    if dataset.card.world:
        return ()
    try:
        train = load_split(folder.config.dataset, "train", images=False)
    except NegbenchError as error:
        return (f"not known whether the run was trained on these queries: its own data cannot be read: {error}",)
    names = Spellings(train.all_images)
    trained = {(query.reference, query.text, query.target) for query in train.queries}
    count = 0
    for query in dataset.queries:
        count += (names.find(query.reference), query.text, names.find(str(query.target))) in trained
    if count == 0:
        return ()
    changed = "" if train.identity == folder.manifest["dataset"]["train"] else ", whose file has changed since"
    return (f"{count:,} of these {len(dataset.queries):,} queries are in the run's train split{changed}",)


def load_weights(backbone: Backbone, folder: RunFolder, *, started_alike: bool = True) -> None:
    """Load a run's trained weights into its backbone, in place; names and shapes must match.

    With `started_alike` the backbone must also start from what the run did; embeddings in files may be others.

    Raises:
        RunError: the run holds no weights.
        WeightsError: the backbone starts from other weights than the run did, or names or shapes differ.
    """
    started = folder.manifest["backbone"]["sha256"]
    if started_alike and backbone.identity.sha256 != started:
        raise WeightsError(
            f"run {folder.run_id} started from backbone weights {started[:12]}, this backbone is "
            f"{backbone.identity.sha256[:12]}: its files have changed since"
        )
    state = folder.weights()
    state.pop("dropout_calls", None)  # a counter in runs of former versions of BLIP and BLIP-2
    stored_shapes = {name: tensor.shape for name, tensor in state.items()}
    expected_shapes = {name: tensor.shape for name, tensor in trained_state(backbone).items()}
    differences = stored_shapes.items() ^ expected_shapes.items()
    wrong = sorted({name for name, _ in differences})
    if wrong:
        raise WeightsError(
            f"the weights of run {folder.run_id} do not match this backbone (missing, unexpected or of another shape): "
            f"{', '.join(wrong[:3])}{', ...' if len(wrong) > 3 else ''}"
        )
    backbone.load_state_dict(state, strict=False)  # frozen weights are not stored; all stored ones were checked above
