"""Scoring again: a finished run on any data set, or stored ranks and rankings without any model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from negbench.config import PluginConfig, RunConfig, build_config, merged
from negbench.contracts import Backbone, BackboneIdentity, paired_relevance
from negbench.datasets._preferences import PreferenceFormat
from negbench.datasets.dataset import Dataset, Top
from negbench.display import Display
from negbench.errors import DataError, NegbenchError, OptionError, WeightsError
from negbench.files import atomic_write, read_json
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.rankings import Ranking, count_cut_subsets, ranks_of_rankings, top_of_rankings
from negbench.registry import registry
from negbench.runfolder import RunFolder
from negbench.scene import (
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
from negbench.scoring import evaluation
from negbench.scoring.trec import read_trec

Layers = Sequence[Mapping[str, Any]]  # of a configuration; only its sections dataset and compute are taken
_PAIRED = 256  # queries whose images are scored at once, each with its own
_BY_RUN = ("split", "images")  # options of `load` that are decided here


@dataclass(frozen=True, eq=False)
class Scored:
    """Ranks and what they come from."""

    title: str
    ranks: QueryRanks
    metrics: dict[str, float]
    main: str | None  # None where the data set was not loaded
    remarks: tuple[str, ...] = ()
    partial: bool = False


@dataclass(frozen=True, eq=False)
class Valued:
    """Metrics that do not follow from ranks, and the values of each query that they are made from."""

    title: str
    table: pd.DataFrame  # one row a query
    metrics: dict[str, float]
    main: str
    remarks: tuple[str, ...] = ()
    partial: bool = False


@dataclass(frozen=True, eq=False)
class Encoded:
    """A run's model applied to one split: all that ranks, lists and submissions are made from."""

    run_id: str
    split: Split
    embeddings: evaluation.Embeddings
    backbone: BackboneIdentity
    remarks: tuple[str, ...]

    @property
    def dataset(self) -> Dataset:
        """The split's data set."""
        return self.split.dataset

    def scored(self) -> Scored:
        """Ranks and metrics; DataError where the labels are closed."""
        self.dataset.require_labels()
        ranks = evaluation.rank(self.split, self.embeddings.queries, self.embeddings.candidates)
        return scored(self.dataset, ranks, self.run_id, self.remarks)

    def top(self, k: int) -> Top:
        """Each query's k best images."""
        return evaluation.top_k(self.split, self.embeddings.queries, self.embeddings.candidates, k)

    def judged(self) -> Valued:
        """Agreement with people's choices; DataError where the data set holds none."""
        preferences = _preferences(self.dataset)
        sets = preferences.score_sets(evaluation.block_scorer(self.embeddings.queries, self.embeddings.candidates))
        return judged(preferences, sets, self.run_id, self.remarks)

    def relevance_of(self, columns: Tensor) -> Tensor:
        """[Q, k] scores of the images in these columns, 0 where a column is -1."""
        queries, candidates = self.embeddings.queries, self.embeddings.candidates
        parts = [
            paired_relevance(queries[rows], candidates[columns[rows].clamp(min=0).to(candidates.device)]).cpu()
            for rows in batches(len(columns), _PAIRED)
        ]
        return torch.cat(parts).masked_fill(columns < 0, 0.0)

    def write_submission(self, folder: Path) -> list[Path]:
        """Write the files of the benchmark's test server; returns their paths. DataError where there is no server."""
        score_block = evaluation.block_scorer(self.embeddings.queries, self.embeddings.candidates)
        paths = []
        for name, content in self.dataset.submission(score_block).items():
            paths.append(folder / name)
            with atomic_write(paths[-1]) as file:  # compact: CIRR's server takes 5 MB
                json.dump(content, file, separators=(",", ":"))
        return paths


def scored(dataset: Dataset, ranks: QueryRanks, what: str, remarks: tuple[str, ...] = ()) -> Scored:
    """Metrics of ranks on a loaded data set."""
    return Scored(
        title=f"{what} on {dataset.identity}",
        ranks=ranks,
        metrics=dataset.summarise(ranks),
        main=dataset.card.main,
        remarks=(*dataset.remarks, *remarks),
        partial=dataset.partial,
    )


# --- a run -------------------------------------------------------------------------------------------------------


def encode_run(
    folder: RunFolder,
    layers: Layers,
    split: str,
    queries: Path | None,
    display: Display,
    *,
    check: Callable[[Dataset], None] = Dataset.require_labels,
) -> Encoded:
    """Rebuild a run's trained model and apply it to a split of its own data set or of another one.

    Args:
        folder: a finished run's.
        layers: changes to the run's sections `dataset` and `compute`.
        split: name of the split.
        queries: file of the query ids to keep (`read_queries`), or None for all.
        display: shows the stages.
        check: raises where the split does not do for what is wanted of it, before anything is encoded.

    Raises:
        RunError: the run holds no weights.
        WeightsError: its weights are not those of the backbone that its configuration names.
        NegbenchError: a wrong option, or data that are not there.
    """
    config = _config(folder.config, layers)
    for path in config.plugins:
        registry.add_file(Path(path))
    with threads(config.compute.threads):
        backbone = load_backbone(config.backbone, config.seed)
        load_weights(backbone, folder)
        provided = backbone.provides_features
        whole = load_split(config.dataset, split, images=not provided)
        dataset = whole if queries is None else with_queries(whole, queries)
        check(dataset)
        device = device_of(config)
        backbone.to(device)
        with display.stage("prepare"):
            scene = open_scene(config, Splits(dataset, None, dataset), backbone, device, display)
        with display.stage("evaluate", note=folder.run_id):
            embeddings = evaluation.embed(backbone, scene, scene.val)
    trained = folder.manifest["dataset"]
    remarks: tuple[str, ...] = ()
    if config.dataset.name != folder.config.dataset.name:
        # FashionIQ's own queries, judged otherwise, are not zero-shot for a model of FashionIQ
        zero_shot = "" if isinstance(whole, PreferenceFormat) else ": this is zero-shot"
        remarks = (f"trained on {trained['train']}{zero_shot}",)
    elif split == "val" and whole.identity != trained["val"]:
        remarks = (f"the run itself was scored on {trained['val']}",)
    return Encoded(folder.run_id, scene.val, embeddings, backbone.identity, remarks)


def load_weights(backbone: Backbone, folder: RunFolder) -> None:
    """Put a run's trained weights into its backbone, strict about names and shapes, in place.

    Raises:
        RunError: the run holds no weights.
        WeightsError: the backbone starts from other weights than the run did, or names or shapes differ.
    """
    from safetensors import SafetensorError

    started = folder.manifest["backbone"]["sha256"]
    if backbone.identity.sha256 != started:
        raise WeightsError(
            f"run {folder.run_id} started from backbone weights {started[:12]}, this backbone is "
            f"{backbone.identity.sha256[:12]}: its files have changed since"
        )
    try:
        state = folder.weights()
    except SafetensorError as error:
        raise WeightsError(f"the weights of run {folder.run_id} are damaged: {error}") from error
    want = trained_state(backbone)
    lacking, unknown = sorted(want.keys() - state.keys()), sorted(state.keys() - want.keys())
    misfits = [name for name in want if name in state and want[name].shape != state[name].shape]
    for names, problem in ((lacking, "lack"), (unknown, "hold the unknown"), (misfits, "have another shape for")):
        if names:
            raise WeightsError(
                f"the weights of run {folder.run_id} {problem} {', '.join(names[:3])}{', ...' * (len(names) > 3)}: "
                "they are not of this backbone"
            )
    backbone.load_state_dict(state, strict=False)  # what is frozen is not stored; all that is was checked above


def _config(config: RunConfig, layers: Layers) -> RunConfig:
    """The run's configuration with another data set or device."""
    _check_sections(layers, ("dataset", "compute"))
    return build_config([config.model_dump(mode="json"), *layers])


def _check_sections(layers: Layers, known: tuple[str, ...]) -> None:
    for layer in layers:
        for section, value in layer.items():
            if section not in known:
                raise OptionError(f"--set {section}...: only {' and '.join(known)} can be set when scoring again")
            for key in _BY_RUN:
                if section == "dataset" and isinstance(value, Mapping) and key in value:
                    raise OptionError(f"--set dataset.{key}: the split is chosen with --split")


# --- the first k of a ranking, by another model ------------------------------------------------------------------


def scorer_layers(ranker: RunFolder, layers: Layers) -> Layers:
    """Layers under which another run scores the same queries and images as `ranker` does under `layers`."""
    return [{"dataset": _config(ranker.config, layers).dataset.model_dump(mode="json")}, *layers]


def cirqrs(ranking: Encoded | Path, scorer: Encoded, k: int) -> Valued:
    r"""Mean relevance, under one model, of what another ranks among its first k (CIRQRS eq. 10).

    .. math:: \mathrm{CIRQRS}@k = \frac{1}{Q} \sum_i \frac{1}{k} \sum_{j \in \mathrm{top}_k(i)} s_{ij}

    where s is the scorer's score: a cosine, in [-1, 1], before the temperature. Values of two scorers cannot be
    compared.

    Args:
        ranking: a run on the same split, or a ranking file that `read_rankings` takes.
        scorer: the model that scores.
        k: how many images of each ranking, >= 1; all of them where a gallery is smaller.

    Returns:
        `cirqrs_at_K` over all queries and, where there are several galleries, `GROUP/cirqrs_at_K`.

    Raises:
        NegbenchError: the two do not see the same data, or a ranking is shorter than k.
    """
    dataset = scorer.dataset
    if isinstance(ranking, Path):
        name = str(ranking)
        kept, rankings = {query.id for query in dataset.queries}, read_rankings(ranking)
        columns = top_of_rankings(dataset, _only(rankings, kept) if dataset.part else rankings, k)
    else:
        name = ranking.run_id
        if ranking.dataset.identity != dataset.identity:
            raise NegbenchError(
                f"run {name} ranks {ranking.dataset.identity}, but the scorer {scorer.run_id} reads "
                f"{dataset.identity}: both must see the same queries and images"
            )
        columns = ranking.top(k).columns
    listed = columns >= 0
    values = scorer.relevance_of(columns).double().sum(1) / listed.sum(1)
    groups = [query.group for query in dataset.queries]
    table = pd.DataFrame({"query": [query.id for query in dataset.queries], "group": groups, "cirqrs": values.numpy()})
    metrics = {f"cirqrs_at_{k}": float(values.mean())}
    if len(set(groups)) > 1:
        metrics |= {
            f"{group}/cirqrs_at_{k}": float(mean)
            for group, mean in table.groupby("group", sort=False).cirqrs.mean().items()
        }
    models = (scorer,) if isinstance(ranking, Path) else (ranking, scorer)
    remarks = tuple(f"{model.run_id}: {remark}" for model in models for remark in model.remarks)
    title = f"{name} on {dataset.identity}, scored by {scorer.run_id}"
    return Valued(title, table, metrics, f"cirqrs_at_{k}", (*dataset.remarks, *remarks), dataset.partial)


# --- without a model ---------------------------------------------------------------------------------------------


def score_file(path: Path, layers: Layers, split: str, queries: Path | None, subset: Path | None) -> Scored:
    """Score stored ranks or a ready-made ranking.

    Args:
        path: `.parquet` with per-query ranks (a run's `ranks.parquet`; needs no data), `.json` with
            {query id: [image ids]}, or a TREC run file.
        layers: the section `dataset`; may be empty for the ranks in a run's folder.
        split: of the data set, for rankings.
        queries: file of the query ids to keep (`read_queries`), or None for all.
        subset: ranking file for the ranks within each query's subset (CIRR).

    Raises:
        NegbenchError: a file that cannot be read or does not fit the data set, closed labels, a wrong option.
    """
    _check_sections(layers, ("dataset",))
    section = merged(layers).get("dataset", {})
    if path.suffix == ".parquet":
        if subset is not None:
            raise OptionError(f"--subset-ranks: {path} holds the ranks within subsets already")
        name = _dataset_of(path, section.get("name"))
        ranks = read_ranks(path)
        if queries is not None:
            ranks = ranks.select(_rows(read_queries(queries), ranks.query, queries))
        return Scored(f"{name}: {path}", ranks, registry.get("datasets", name).summarise(ranks), None)  # type: ignore[attr-defined]
    if "name" not in section:
        raise OptionError(f"--ranks {path}: name the data set that it ranks with --dataset")
    dataset = load_split(PluginConfig(**section), split, images=False)
    rankings = read_rankings(path)
    within = None if subset is None else read_rankings(subset)
    if queries is not None:
        dataset = with_queries(dataset, queries)
        kept = {query.id for query in dataset.queries}
        rankings, within = _only(rankings, kept), None if within is None else _only(within, kept)
    dataset.require_labels()
    remarks: tuple[str, ...] = ()
    cut = count_cut_subsets(dataset, rankings) if within is None else 0
    if cut:
        remarks = (
            f"{cut:,} rankings leave out part of their query's subset, and what is left out counts as last: subset "
            "recall is a lower bound (--subset-ranks FILE gives it exactly)",
        )
    return scored(dataset, ranks_of_rankings(dataset, rankings, within), str(path), remarks)


def judge_by_recall(layers: Layers, split: str, queries: Path | None) -> Valued:
    """Judge the sets of a data set of preferences by whether they hold the target: needs neither model nor images.

    Args:
        layers: the section `dataset`.
        split: of the data set.
        queries: file of the query ids to keep (`read_queries`), or None for all.

    Raises:
        DataError: a data set without preferences, or one that is not there.
        OptionError: no data set is named, or a wrong option.
    """
    _check_sections(layers, ("dataset",))
    section = merged(layers).get("dataset", {})
    if "name" not in section:
        raise OptionError("--scorer recall-at-5: name a data set of preferences with --dataset, e.g. hp-fashioniq")
    dataset = load_split(PluginConfig(**section), split, images=False)
    preferences = _preferences(dataset if queries is None else with_queries(dataset, queries))
    published = (
        "CIRQRS tables 2-3 print for recall at 5: Spearman 0.16, preference rate with ties 0.58, on valid queries"
    )
    return judged(preferences, preferences.hits.double(), "recall-at-5", (published,))


def judged(dataset: PreferenceFormat, sets: Tensor, what: str, remarks: tuple[str, ...] = ()) -> Valued:
    """Agreement of [Q, 2] scores of sets with people's choices."""
    return Valued(
        title=f"{what} on {dataset.identity}",
        table=dataset.table(sets),
        metrics=dataset.judge(sets),
        main=dataset.card.main,
        remarks=(*dataset.remarks, *remarks),
        partial=dataset.partial,
    )


def _preferences(dataset: Dataset) -> PreferenceFormat:
    if not isinstance(dataset, PreferenceFormat):
        raise DataError(f"{dataset.card.name} holds no preferences between sets: take hp-fashioniq or hs-fashioniq")
    return dataset


def read_ranks(path: Path) -> QueryRanks:
    """Per-query ranks from a parquet file. Raises NegbenchError where it is none."""
    from pyarrow import ArrowException

    try:
        return QueryRanks.from_frame(pd.read_parquet(path))
    except OSError as error:
        raise NegbenchError(f"cannot read {path}: {error.strerror or str(error).splitlines()[0]}") from error
    except (ArrowException, ValueError, TypeError) as error:
        raise NegbenchError(f"{path} holds no table of ranks: {str(error).splitlines()[0]}") from error


def read_rankings(path: Path) -> dict[str, Ranking]:
    """Query id -> ranking, from a `.json` file or else a TREC run file."""
    if path.suffix != ".json":
        return {**read_trec(path)}
    value = read_json(path)
    if not isinstance(value, dict):
        raise NegbenchError(f"{path}: want an object of query ids and lists of image ids, got a {type(value).__name__}")
    return value


def read_queries(path: Path) -> list[str]:
    """Query ids: a JSON list, or one a line; distinct.

    Raises:
        NegbenchError: a file that cannot be read, holds no id or holds one twice.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        values = json.loads(text) if text.lstrip().startswith("[") else text.split("\n")
    except OSError as error:
        raise NegbenchError(f"--queries {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise NegbenchError(f"--queries {path}: neither a JSON list nor UTF-8 text: {error}") from error
    ids: list[str] = []
    for value in values:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise NegbenchError(f"--queries {path}: want query ids, got {ascii(value)[:60]}")
        if str(value).strip():
            ids.append(str(value).strip())
    if not ids:
        raise NegbenchError(f"--queries {path} names no query")
    if len(set(ids)) != len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise NegbenchError(f"--queries {path}: query {twice!a} is there twice")
    return ids


def with_queries(dataset: Dataset, path: Path) -> Dataset:
    """The data set with only the queries that a file names; its identity tells them."""
    ids = read_queries(path)
    rows = _rows(ids, [query.id for query in dataset.queries], path)
    digest = hashlib.sha256("\n".join(ids).encode()).hexdigest()[:8]
    return dataset.with_queries(rows, f"{len(ids)} queries {digest}")


def _rows(ids: Sequence[str], known: Sequence[str], path: Path) -> list[int]:
    row = {name: index for index, name in enumerate(known)}
    unknown = [name for name in ids if name not in row]
    if unknown:
        raise NegbenchError(
            f"--queries {path}: unknown query {ascii(unknown[0])[:60]} ({len(unknown):,} of {len(ids):,} unknown)"
        )
    return [row[name] for name in ids]


def _only(rankings: Mapping[str, Ranking], kept: set[str]) -> dict[str, Ranking]:
    return {name: ranking for name, ranking in rankings.items() if name in kept or name == "metric"}


def _dataset_of(path: Path, given: str | None) -> str:
    """Name of the data set of a parquet file: as given, or that of the run in whose folder the file lies."""
    beside = path.parent / "config.json"
    if not beside.exists():
        if given is None:
            raise OptionError(f"--ranks {path}: name the data set of these ranks with --dataset")
        return given
    name = RunFolder(path.parent).config.dataset.name
    if given is not None and given != name:
        raise OptionError(f"--ranks {path}: these ranks are of {name}, not of {given}")
    return name
