"""Negatives for your own training loop: embeddings in, negatives out, by the same code that a run mines with.

miner = negbench.Miner("qure:variant=release", draws=5)
for epoch in range(epochs):
    mined = miner.refresh(queries, images, targets)  # after encoding both again
    train(mined.negatives)  # [Q, 5] rows of `images`
"""

import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from negbench.contracts import Strategy, check_option
from negbench.contracts.splitmix import splitmix
from negbench.datasets.galleries import add_shared_answers, with_several_targets
from negbench.errors import OptionError, short_repr
from negbench.files.vector_files import as_floats
from negbench.metrics.equal_rows import Copies
from negbench.metrics.ragged import Ragged
from negbench.mining.filters import Filters
from negbench.mining.mine import mine
from negbench.mining.mined import Mined
from negbench.mining.planes import EmbeddedPlane, images_of
from negbench.mining.pool_file import PoolFiles
from negbench.mining.task import MiningTask
from negbench.plugins.registry import registry
from negbench.settings.layers import parse_plugin

MOVES_SCORES = False  # no run uses it

_SHORTEST = 1e-15  # norm of an embedding: the squares of smaller numbers lose digits in float32

ColumnLists = Sequence[Sequence[int]]  # for each query, columns of the images


class Miner:
    """Mine with one corpus strategy, refresh after refresh.

    Draws depend only on (seed, refresh count, query, pool). `refreshes` counts the refreshes so far: a new miner with
    the count and the seed of another continues its draws, but lacks its last pools for the overlap.

    Args:
        strategy: registry key, with options as `qure:variant=release`, or an instance.
        draws: negatives per query and refresh, without repeats until a pool is used up.
        seed: seed of all draws.
        refreshes: number of earlier refreshes; strategies with a schedule (`cirqrs`) read the count.
        normalize: scale all embeddings to unit length, so that scores are cosines; False takes dot products.
        device: where scores are computed; default: the device of the image embeddings.
        filters: which likely false negatives no query may draw: `margin`, `relative_margin`, `max_target`.

    Raises:
        NegbenchError: an unknown name, a bad option, a batch strategy.
    """

    def __init__(
        self,
        strategy: str | Strategy,
        *,
        draws: int = 1,
        seed: int = 0,
        refreshes: int = 0,
        normalize: bool = True,
        device: str | torch.device | None = None,
        filters: Filters | None = None,
    ) -> None:
        if isinstance(strategy, str):
            section = parse_plugin(strategy)
            strategy = registry.make("strategies", str(section.pop("name")), **section)
        if not isinstance(strategy, Strategy):
            raise OptionError(f"strategy must be a name or a Strategy, got a {type(strategy).__name__}")
        if strategy.scope != "corpus":
            raise OptionError(
                f"strategy {type(strategy).__name__} chooses among the members of a batch: it cannot be mined ahead; "
                "call its pool() on the batch's scores"
            )
        rule = "one that reads no plane but 'target' (others need more than embeddings: mine a data set)"
        check_option("strategy", type(strategy).__name__, {*strategy.reads} <= {"target"}, rule)
        supported = filters is None or {*filters.reads} <= {"target"}
        check_option("filters", filters, supported, "margin, relative_margin and max_target")
        check_option("draws", draws, draws >= 1, "at least 1")
        check_option("refreshes", refreshes, refreshes >= 0, "at least 0")
        check_option("seed", seed, 0 <= seed < 2**63, "0 ... 2^63 - 1")
        self.strategy: Strategy = strategy
        self.draws = draws
        self.seed = seed
        self.refreshes = refreshes
        self._normalize = normalize
        self._device = device
        self._filters = filters
        self._folder = tempfile.TemporaryDirectory(prefix="negbench-miner-")
        self._previous: Path | None = None
        self._shape = (0, 0)

    def refresh(
        self,
        query_embeddings: Any,
        image_embeddings: Any,
        targets: Any,
        *,
        excluded: ColumnLists | None = None,
        relevant: ColumnLists | None = None,
        exclude_relevant: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> Mined:
        """Redefine the pools and draw from them.

        Args:
            query_embeddings: [Q, D] float, numpy or torch, on any device.
            image_embeddings: [N, D], or [N, T, D] for T tokens per image, of which the best counts.
            targets: [Q] whole numbers, each query's positive among the images.
            excluded: for each query, images that may never be drawn, e.g. its reference.
            relevant: for each query, images known to satisfy it; statistics count them, oracles avoid them. Targets of
                equal queries satisfy each other's.
            exclude_relevant: never draw what is known to satisfy the query.
            progress: called after each block with the number of queries it held.

        Returns:
            On the CPU: `negatives` [Q, draws] rows of the images, their `scores`, and statistics of each query: pool
            size, band, false negatives, overlap with the last refresh, hardness, fallback. `.frame()` has a row per
            query, `.summary()` means for a log.

        Raises:
            NegbenchError: mismatched shapes, non-finite values, columns out of range, or nothing to draw from.
        """
        task = self._task(query_embeddings, image_embeddings, targets, excluded, relevant, exclude_relevant)
        shape = (len(task.queries), len(task.candidates))
        number = splitmix(torch.tensor(self.seed), torch.tensor(self.refreshes))
        pools = Path(self._folder.name) / f"pools-{self.refreshes}.npy"
        generator = torch.Generator().manual_seed(int(number) & (2**63 - 1))
        files = PoolFiles(pools, self._previous if shape == self._shape else None)  # of one shape, to be compared
        mined = mine(
            task,
            self.strategy,
            refresh=self.refreshes,
            draws=self.draws,
            generator=generator,
            files=files,
            progress=progress,
        )
        if self._previous is not None:
            self._previous.unlink()
        self._previous = pools
        self._shape = shape
        self.refreshes += 1
        if mined.stale:
            hint = "was the model trained in between, and were queries and images embedded again?"
            warnings.warn(f"stale pools: this refresh changed no pool; {hint}", stacklevel=2)
        return mined

    def _task(
        self,
        queries: Any,
        images: Any,
        targets: Any,
        excluded: ColumnLists | None,
        relevant: ColumnLists | None,
        exclude_relevant: bool,
    ) -> MiningTask:
        """Return the task of mining one refresh, its arguments checked."""
        images = self._embeddings("image_embeddings", images)
        queries = self._embeddings("query_embeddings", queries).to(images.device)
        images = images[:, None] if images.ndim == 2 else images
        if queries.ndim != 2 or images.ndim != 3 or queries.shape[1] != images.shape[2]:
            raise OptionError(
                "expected query_embeddings [Q, D] and image_embeddings [N, D] or [N, T, D] with the same D, "
                f"got {tuple(queries.shape)} and {tuple(images.squeeze(1).shape)}"
            )
        target = _check_targets("targets", targets, len(queries), len(images))
        equal_queries: dict[int, list[int]] = {}
        copies = Copies.of(queries[:, None])
        for later, first in zip(copies.later.tolist(), copies.first.tolist(), strict=True):
            equal_queries.setdefault(first, [first]).append(later)
        relevant_columns = _check_columns("relevant", relevant, len(queries), len(images), target)
        shared = with_several_targets(equal_queries.values(), target.tolist())
        relevant_columns = add_shared_answers(shared, target.tolist(), relevant_columns)
        excluded_columns = _check_columns("excluded", excluded, len(queries), len(images))
        if exclude_relevant:
            if relevant_columns is None:
                raise OptionError(
                    "exclude_relevant: no image is known to be relevant: no `relevant`, nor equal queries"
                )
            lists = []
            for query in range(len(queries)):
                columns = [] if excluded_columns is None else excluded_columns.row(query).tolist()
                lists.append(columns + relevant_columns.row(query).tolist())
            excluded_columns = Ragged.of(lists)
        vectors = images_of(images)
        group = torch.zeros_like(target)
        groups = [torch.arange(len(images))]
        planes = {"target": EmbeddedPlane(vectors[target.to(vectors.device)], vectors[:, None])}
        return MiningTask(
            queries,
            images,
            target,
            group,
            groups,
            excluded=excluded_columns,
            relevant=relevant_columns,
            planes=planes,
            filters=self._filters,
        )

    def _embeddings(self, name: str, values: Any) -> Tensor:
        """Return an argument as float32 embeddings on the miner's device, scaled if the miner scales them."""
        try:
            if isinstance(values, np.ndarray):
                values = as_floats(values, name)
            tensor = torch.as_tensor(values, device=self._device).detach()
        except (TypeError, ValueError, RuntimeError) as error:
            raise OptionError(f"{name} must be convertible to a torch tensor: {error}") from error
        if tensor.is_complex() or tensor.ndim not in (2, 3) or not len(tensor):
            raise OptionError(f"{name} must be numbers, [rows, width], got {tuple(tensor.shape)} {tensor.dtype}")
        tensor = tensor.float()
        length = tensor.norm(dim=-1).reshape(len(tensor), -1)
        bad = (~length.isfinite()).any(1).nonzero()
        if len(bad):
            raise OptionError(
                f"{name} row {int(bad[0])} holds NaN or infinity, or is longer than 1e19 ({len(bad)} such rows)"
            )
        empty = (length < _SHORTEST).any(1).nonzero()
        if self._normalize and len(empty):
            raise OptionError(
                f"{name} row {int(empty[0])} is the zero vector or nearly so: it has no direction, drop it"
            )
        return normalize(tensor, dim=-1, eps=_SHORTEST) if self._normalize else tensor


def _check_targets(name: str, targets: Any, count: int, images: int) -> Tensor:
    """Return [count] int64 on the CPU; raise OptionError unless they are whole numbers in 0 ... images - 1."""
    values = np.asarray(targets.cpu() if isinstance(targets, Tensor) else targets)
    if values.shape != (count,) or values.dtype.kind not in "iu":
        raise OptionError(f"{name} must be {count} whole numbers, got {values.shape} {values.dtype}")
    for query in np.flatnonzero((values < 0) | (values >= images)):
        raise OptionError(f"{name}: query {query} names image {values[query]}, expected 0 ... {images - 1}")
    return torch.from_numpy(values.astype(np.int64))


def _check_columns(
    name: str, lists: ColumnLists | None, count: int, images: int, target: Tensor | None = None
) -> Ragged | None:
    """Check each query's columns; put the target first in lists that are not empty."""
    if lists is None:
        return None
    if len(lists) != count:
        raise OptionError(f"{name} must have a row for each of the {count} queries, got {len(lists)}")
    checked_lists: list[list[int]] = []
    for query, numbers in enumerate(lists):
        values = np.asarray(numbers.cpu() if isinstance(numbers, Tensor) else numbers)
        if values.ndim != 1 or (values.dtype.kind not in "iu" and values.size):
            where = f"{name}: query {query} must list rows of the images, whole numbers"
            raise OptionError(f"{where}, got {short_repr(numbers)}")
        if values.size and not 0 <= values.min() <= values.max() < images:
            raise OptionError(f"{name}: query {query} names an image outside 0 ... {images - 1}")
        columns = values.astype(int).tolist()
        if target is not None and columns:
            columns = list(dict.fromkeys([int(target[query]), *columns]))
        checked_lists.append(columns)
    return Ragged.of(checked_lists)
