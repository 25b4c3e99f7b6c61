"""What a backbone knows of a data set: the images that it has features of, and whether it learned from them."""

from negbench.contracts import Backbone, ListsFeatures, Outline
from negbench.datasets.dataset import Dataset
from negbench.errors import DataError
from negbench.settings.config import RunConfig


def with_features(dataset: Dataset, backbone: Backbone, config: RunConfig) -> Dataset:
    """Return a split without the images that the backbone lists no features of, if images may be missing.

    Raises:
        DataError: there are such images, and they may not; says how many queries need them.
    """
    if not isinstance(backbone, ListsFeatures) or not (lacking := backbone.lacking(dataset.all_images)):
        return dataset
    if config.dataset.options.get("allow_missing"):
        return dataset.without(lacking, config.backbone.name)
    try:
        backbone.features_of(lacking)
    except DataError as error:
        raise DataError(f"{error}{dataset.naming({*lacking})}") from error
    return dataset


def unfamiliar(config: RunConfig, backbone: Backbone | Outline) -> list[str]:
    """Return a warning if the backbone's weights were not trained on images like the data set's; else nothing."""
    known, data = backbone.learned_from, config.dataset.name
    if not known or data in known:
        return []
    return [
        f"backbone '{config.backbone.name}' was trained only on the pictures of {' and '.join(known)}, not on those of "
        f"{data}: use it to try things out; for results use clip, blip, blip2 or your own embeddings (precomputed)"
    ]
