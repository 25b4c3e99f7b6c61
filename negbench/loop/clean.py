"""Which train triplets look right: two Gaussians over the losses of the queries, as TME tells noisy triplets.

Paper: TME (CVPR 2025); released: github.com/He-Changhao/2025-CVPR-TME at b613ea84, src/utility.py, Partitioner. Each
epoch after a warm-up computes every query's InfoNCE loss in random batches, scales the losses to 0 .. 1, and fits a
mixture of two Gaussians; a query is clean if the one with the lower mean explains it by more than a half. A step's loss
is that of its clean queries; the targets of the others stay negatives.
Departures: the run's own loss, not TME's, and none of its terms on prompts; texts do not vary here.
"""

import warnings

import torch
from torch import Tensor

from negbench.contracts import relevance
from negbench.data.scene import EncodedSplits
from negbench.datasets.dataset import Dataset
from negbench.errors import DataError, OptionError, require
from negbench.loop.checkpoint import stream
from negbench.scoring.evaluation import Embeddings
from negbench.settings.config import ResolvedConfig

# of scikit-learn's mixture, as released
_STEPS = 10
_TOLERANCE = 1e-2
_LEAST_VARIANCE = 5e-4
_CLEAN = 0.5


def check_clean(config: ResolvedConfig, train: Dataset) -> None:
    """Check that a run can leave out what looks wrong (`train.clean_after`).

    Raises:
        OptionError: the warm-up is as long as the run, or hybrid terms add losses on texts.
        DataError: the data set draws its queries anew each epoch, so that none has a loss to go by.
        NegbenchError: scikit-learn is missing.
    """
    start = config.train.clean_after
    if start is None:
        return
    require("sklearn")
    if start >= config.train.epochs:
        raise OptionError(f"train.clean_after = {start}: the run has {config.train.epochs} epochs: give fewer")
    if config.hybrid.active:
        raise OptionError(
            "train.clean_after leaves out queries by their loss on images; hybrid.alpha and hybrid.beta add losses on "
            "texts: --set hybrid.alpha=0 --set hybrid.beta=0"
        )
    if train.redraws:
        raise DataError(
            f"train.clean_after = {start}, but {train.card.name} draws its queries anew each epoch: leave it out"
        )


def clean_queries(
    config: ResolvedConfig, scene: EncodedSplits, embeddings: Embeddings, divisor: float, epoch: int
) -> Tensor:
    """Return [Q] bool: the train queries that look right to the model.

    Args:
        config: gives the size of the batches and the seed.
        scene: of Q train queries.
        embeddings: theirs.
        divisor: of scores in the loss.
        epoch: with the seed it decides which queries share a batch.
    """
    random = stream(config.seed, f"clean {epoch}")
    losses = query_losses(embeddings, scene.train.dataset.target_columns, divisor, config.train.batch_size, random)
    return low_component(losses, random.initial_seed() % 2**32)


def query_losses(embeddings: Embeddings, targets: Tensor, divisor: float, size: int, random: torch.Generator) -> Tensor:
    """Return [Q] float32: each query's InfoNCE loss among the targets [Q] of a random batch of `size`.

    A last, short batch is filled with queries of the first.
    """
    count = len(targets)
    order = torch.randperm(count, generator=random)
    losses = torch.empty(count)
    for start in range(0, count, size):
        rows = order[start : start + size]
        others = order[: min(size, count) - len(rows)]
        columns = targets[torch.cat([rows, others])]
        queries = embeddings.queries[rows.to(embeddings.queries.device)]
        candidates = embeddings.candidates[columns.to(embeddings.candidates.device)]
        scores = relevance(queries.float(), candidates.float())
        losses[rows] = -(scores / divisor).log_softmax(1).diagonal().cpu()
    return losses


def low_component(losses: Tensor, seed: int) -> Tensor:
    """Return [Q] bool: which losses [Q] belong to the lower of two Gaussians; all of them if all losses are equal."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    spread = losses.max() - losses.min()
    if not spread > 0:
        return torch.ones(len(losses), dtype=torch.bool)
    scaled = ((losses - losses.min()) / spread).double().numpy()[:, None]
    mixture = GaussianMixture(2, max_iter=_STEPS, tol=_TOLERANCE, reg_covar=_LEAST_VARIANCE, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # ten steps, as released
        mixture.fit(scaled)
    lower = int(mixture.means_.argmin())
    return torch.from_numpy(mixture.predict_proba(scaled)[:, lower] > _CLEAN)
