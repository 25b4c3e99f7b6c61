"""Evidence for the tests: the finished runs of every setting, and their models on a split."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

import pandas as pd

from negbench.analysis.frame import folders_of
from negbench.data.scene import DataCache, load_split
from negbench.display import Display
from negbench.errors import DataError, NegbenchError
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.score_curves import ScoreCurves, file_name
from negbench.scoring.scorers import Encoded, encode_run
from negbench.settings.config import PluginConfig, ResolvedConfig
from negbench.store.runfolder import RunFolder

PEOPLE = "hp-fashioniq"  # holds people's choices between sets of FashionIQ's images
_MODELS = 3  # at a time: a ranking, its scorer, one more


class MissingEvidence(NegbenchError):
    """Raised if the data that a test needs are missing; says what is needed."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """The finished runs of every setting.

    Args:
        results: a row per finished cell (`negbench.analysis.frame`), whose `system` names its setting.
        display: shows when models are applied.
        nested: whether every seed has its own generated world, and so its own queries.
        cache: of measured values, which looks share: (measure, setting, seed) -> values.
    """

    results: pd.DataFrame
    display: Display = field(default_factory=Display)
    nested: bool = False
    cache: dict[Any, Any] = field(default_factory=dict)
    _encoded: dict[tuple[str, str, str], Encoded] = field(default_factory=dict)

    def run(self, setting: str, seed: int) -> "SettingRun":
        """Return one run. Raises MissingEvidence if it is missing."""
        if not self.has(setting, seed):
            raise MissingEvidence(f"no finished run of '{setting}' with seed {seed}")
        return SettingRun(self, setting, seed, self._folders[setting, seed])

    def has(self, setting: str, seed: int) -> bool:
        """Whether a setting has a finished run with this seed."""
        return (setting, seed) in self._folders

    def has_all(self, settings: Iterable[str], seeds: Iterable[int]) -> bool:
        """Whether all these settings have a finished run with each of these seeds."""
        return set(product(settings, seeds)) <= self._folders.keys()

    @cached_property
    def _folders(self) -> dict[tuple[str, int], RunFolder]:
        """Setting and seed -> the run's folder."""
        cells = self.results
        names = zip(cells["system"], cells["seed"], strict=True)
        return dict(zip(names, folders_of(cells), strict=True))

    def encode(self, folder: RunFolder, split: str, dataset: Mapping[str, Any]) -> Encoded:
        """Encode a split with a run's model, of another data set if a section is given; the last few are cached."""
        key = (folder.run_id, split, str(dict(dataset)))
        if key not in self._encoded:
            layers = [{"dataset": dict(dataset)}] if dataset else []
            self._encoded[key] = encode_run(folder, layers, split, self.display)
            if len(self._encoded) > _MODELS:
                oldest = next(iter(self._encoded))
                del self._encoded[oldest]
        return self._encoded[key]


@dataclass(frozen=True, eq=False)
class SettingRun:
    """One run, as measures read it."""

    evidence: Evidence
    setting: str
    seed: int
    folder: RunFolder

    @cached_property
    def result(self) -> dict[str, Any]:
        """result.json."""
        return self.folder.result

    @cached_property
    def ranks(self) -> QueryRanks:
        """Ranks of the reported split."""
        return QueryRanks.from_frame(self.folder.ranks())

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Return a training curve: 0-based epochs, and the values logged then."""
        points = [point for point in self.folder.metrics() if name in point and point["epoch"] >= 0]
        return [int(point["epoch"]) for point in points], [point[name] for point in points]

    def mining_tables(self) -> list[pd.DataFrame]:
        """Return per-query statistics of every refresh. Raises MissingEvidence for batch strategies: they mine none."""
        files = sorted(self.folder.path.glob("mining-*.parquet"))
        if not files:
            raise MissingEvidence(f"'{self.setting}' mines no pools here")
        return [self.folder.table(file.stem) for file in files]

    def curves(self, moment: str) -> ScoreCurves:
        """Load the sorted score curves of a sample of the train queries."""
        path = self.folder.path / file_name(moment)
        if not path.exists():
            raise MissingEvidence(f"'{self.setting}' has no score curves at '{moment}' here")
        return ScoreCurves.load(path)

    def encode(self, split: str) -> Encoded:
        """Encode a split of the run's own data set with its trained model."""
        return self.evidence.encode(self.folder, split, {})

    def encode_people(self) -> Encoded:
        """Encode people's judgements of the run's data set with its trained model. Without any: MissingEvidence."""
        section = judgements_of(self.folder.config.dataset)
        if section is None:
            raise MissingEvidence("nobody has judged sets of this data set's images")
        return self.evidence.encode(self.folder, "val", section)


def judgements_of(dataset: PluginConfig) -> dict[str, Any] | None:
    """Return the section of the data set with people's judgements of `dataset`'s images; None if there is none."""
    if dataset.name != "fashioniq":
        return None
    options = dataset.options
    section = {"name": PEOPLE, "root": options.get("root"), "allow_missing": options.get("allow_missing", False)}
    try:
        load_split(PluginConfig.model_validate(section), "val", images=False)
    except DataError:
        return None
    return section


# --- what the data must have -------------------------------------------------------------------------------------


def _require_relevant(config: ResolvedConfig, cache: DataCache) -> str | None:
    """Ask for several relevant images per query, on train and on val."""
    for split in ("train", "val"):
        if cache.dataset(config.dataset, split, images=False).relevant is None:
            return f"needs several relevant images per query; {config.dataset.name} {split} labels only the target"
    return None


def _refuse_exchangeable(config: ResolvedConfig, cache: DataCache) -> str | None:
    """Decline data whose target is a random one of several relevant images."""
    if cache.dataset(config.dataset, "val", images=False).exchangeable:
        return "the target is a random one of several relevant images here, so no model can rank it above the others"
    return None


def _refuse_vectors(config: ResolvedConfig, cache: DataCache) -> str | None:
    """Decline generated worlds, where a relevant image is the sum of reference and text plus noise."""
    return "a query is the sum of its parts here by construction" if config.backbone.name == "vectors" else None


def _require_people(config: ResolvedConfig, cache: DataCache) -> str | None:
    """Ask for people's choices between sets of the data set's images."""
    if judgements_of(config.dataset) is not None:
        return None
    return f"needs people's choices between sets of images: --dataset fashioniq, with the {PEOPLE} file beside it"


# name -> a line on what the data set lacks, or None
NEEDS: dict[str, Callable[[ResolvedConfig, DataCache], str | None]] = {
    "relevant": _require_relevant,
    "told-apart": _refuse_exchangeable,
    "composed": _refuse_vectors,
    "people": _require_people,
}


def lacking(needs: Sequence[str], config: ResolvedConfig, cache: DataCache) -> str | None:
    """Return a line on the first need that the configured data set does not meet; None if it meets all."""
    for need in needs:
        why = NEEDS[need](config, cache)
        if why is not None:
            return why
    return None
