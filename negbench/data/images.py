"""What a data set's images are to a run: known to its backbones or not, read as pixels or not, and of one name each."""

import re
from collections.abc import Sequence
from pathlib import Path

from negbench.contracts import Backbone, HoldsFeatures, ListsFeatures, Outline
from negbench.datasets.dataset import Dataset
from negbench.errors import DataError
from negbench.machine.contents import content_hashes
from negbench.machine.files import cache_dir, read_json
from negbench.plugins.registry import registry
from negbench.settings.config import ResolvedConfig, RunConfig

# file names of weights that are trained for composed retrieval -> who names them so, and on which of these data sets
_AS_PUBLISHED = {
    "model.pth": ("QuRe publishes its models", ("fashioniq", "cirr")),
    "blip.pt": ("Candidate-Reranking-CIR publishes BLIP", ("fashioniq", "cirr")),
    "fiq_clip_RN50x4_fullft.pt": ("CLIP4Cir publishes CLIP", ("fashioniq",)),
    "cirr_clip_RN50x4_fullft.pt": ("CLIP4Cir publishes CLIP", ("cirr",)),
    "tuned_clip_best.pt": ("CLIP4Cir and SPRC save what they trained", ("fashioniq", "cirr")),
}
# data sets that others train on -> how names of weights spell them, within no longer word
_SPELLINGS = {
    "fashioniq": "fashion[-_ ]?iq|fiq",
    "cirr": "cirr",
    "circo": "circo",
    "fashion200k": "fashion[-_ ]?200k",
    "mit-states": "mit[-_ ]?states",
}


def with_features(dataset: Dataset, backbone: Backbone, config: RunConfig) -> Dataset:
    """Return a split without the images that the backbone lists no features of, if images may be missing.

    Raises:
        DataError: there are such images, and they may not; says how many queries need them.
    """
    if not isinstance(backbone, ListsFeatures):
        return dataset
    lacking = backbone.lacking(dataset.all_images)
    if not lacking:
        return dataset
    if config.dataset.options.get("allow_missing"):
        return dataset.without(lacking, config.backbone.name)
    try:
        backbone.features_of(lacking)
    except DataError as error:
        raise DataError(f"{error}{dataset.naming({*lacking})}") from error
    return dataset


def reads_pixels(config: ResolvedConfig) -> bool:
    """Whether one of a run's backbones reads image files."""
    for section in (config.backbone, *config.mining.backbones):
        if not issubclass(registry.get("backbones", section.name), HoldsFeatures):
            return True
    return False


def unfamiliar_images(config: RunConfig, backbone: Backbone | Outline) -> list[str]:
    """Return a warning if the backbone's weights were not trained on images like the data set's; else nothing."""
    trained_on = backbone.learned_from
    data = config.dataset.name
    if not trained_on or data in trained_on:
        return []
    pictures = " and ".join(trained_on)
    return [
        f"backbone '{config.backbone.name}' was trained only on the pictures of {pictures}, not on those of {data}: "
        "use it to try things out; for results use clip, blip, blip2 or your own embeddings (precomputed)"
    ]


def earlier_training(config: RunConfig, backbone: Outline) -> list[str]:
    """Return a remark if weights that a run trains are known to be trained on its data set already.

    What is known: the record of the run that made them, the name of the file, folder or hub repository, and
    `Backbone.fine_tuned`. Where a name leaves open which data set it was, each one that it may be is remarked on.
    """
    training = _known_training(config, backbone)
    return [f"backbone.weights: {training}: every strategy begins where that training ended"] if training else []


def _known_training(config: RunConfig, backbone: Outline) -> str:
    """Say how the weights are known to be trained on the run's data set; "" if they are not known to be."""
    data = config.dataset.name
    for folder in dict.fromkeys(file.parent for file in backbone.files):
        recorded = _dataset_of_run(folder)
        if recorded:
            return f"a run trained them on {data} ({folder.name})" if recorded == data else ""
    for file in backbone.files:
        whose, candidates = _AS_PUBLISHED.get(file.name, ("", ()))
        if data in candidates:
            open_end = ", unknown which" if len(candidates) > 1 else ""
            return f"{file.name} is the name under which {whose}, trained on {' or '.join(candidates)}{open_end}"
    for name in _names_of_weights(config, backbone):
        datasets = _datasets_in(name)
        if datasets:
            return f"by their name, {name}, they are trained on {' and '.join(datasets)}" if data in datasets else ""
    return backbone.fine_tuned


def _names_of_weights(config: RunConfig, backbone: Outline) -> list[str]:
    """Return the names of the weights' files, and the last part of each path or hub id of `backbone.weights`."""
    weights = str(config.backbone.options.get("weights") or "").removeprefix("lavis:")
    names = [file.name for file in backbone.files]
    names += [Path(part).name for part in weights.split(",")]
    return names


def _datasets_in(name: str) -> list[str]:
    """Return the data sets that a name of weights spells."""
    datasets = []
    for dataset, spelling in _SPELLINGS.items():
        if re.search(f"(?<![a-z])({spelling})(?![a-z])", name.lower()):
            datasets.append(dataset)
    return datasets


def _dataset_of_run(folder: Path) -> str:
    """Return the name of the data set that the run in this folder was trained on; '' if it is no run's folder."""
    if not (folder / "result.json").is_file():
        return ""
    manifest = read_json(folder / "config.json")
    return str(manifest["config"]["dataset"]["name"])


def check_pictures(parts: Sequence[Dataset], also: Dataset | None) -> None:
    """Raise DataError if another data set uses the id of one of the run's images for another picture."""
    theirs = {} if also is None else also.image_paths()
    ours = {}
    for part in parts:
        if part is not also:
            ours.update(part.image_paths())
    common = [image for image, path in theirs.items() if ours.get(image, path) != path]
    our_hashes = content_hashes({image: ours[image] for image in common}, cache_dir())
    their_hashes = content_hashes({image: theirs[image] for image in common}, cache_dir())
    for image in common:
        if our_hashes[image] != their_hashes[image]:
            where = f"{theirs[image]} in the data set of eval.also, {ours[image]} in the run's data"
            raise DataError(f"eval.also: {image} is {where}: rename one")
