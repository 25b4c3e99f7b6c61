"""Keep the images of a split that a backbone holds features of."""

from negbench.contracts import Backbone, ListsFeatures
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
