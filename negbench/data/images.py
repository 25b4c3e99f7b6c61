"""Image files decoded: in batches ahead of an encoder, or one by one for a backbone whose image tower trains."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from negbench.contracts import Backbone
from negbench.datasets.image_files import read_image
from negbench.errors import DataError, NegbenchError

Transform = Callable[[Image.Image], Tensor]

_MANY_IMAGES = 256  # below this, starting worker processes costs more than it saves


def decoded(
    paths: Sequence[Path], transform: Transform, batch_size: int, workers: int | None, *, pinned: bool
) -> Iterator[DecodedBatch]:
    """Batches in the order of `paths`, decoded ahead by worker processes.

    Args:
        paths: image files.
        transform: the backbone's preprocessing.
        batch_size: files in a batch.
        workers: processes; None: none below 256 images, else up to 4.
        pinned: pixels go to a GPU.
    """
    if workers is None:
        workers = min(4, len(os.sched_getaffinity(0))) if len(paths) >= _MANY_IMAGES else 0
    loader = DataLoader(
        _Decoder([str(path) for path in paths], transform),
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=_collate,
        pin_memory=pinned,
        generator=torch.Generator(),  # it seeds its workers from the global generator otherwise
    )
    try:
        yield from loader
    except RuntimeError as error:
        if "DataLoader worker" not in str(error) or "exited unexpectedly" not in str(error):
            raise
        raise NegbenchError(
            f"a process that decodes images died, most likely for lack of memory or of shared memory (/dev/shm): "
            f"lower the batch size ({batch_size}) or the workers ({workers}; 0 needs no shared memory)"
        ) from error


@dataclass(frozen=True, eq=False)
class DecodedBatch:
    """Pixels [b, 3, H, W] of the files at these positions; one line for each file that cannot be decoded."""

    positions: list[int]
    pixels: Tensor | None
    unreadable: list[str]

    def pin_memory(self) -> DecodedBatch:
        """Called by the DataLoader."""
        return self if self.pixels is None else DecodedBatch(self.positions, self.pixels.pin_memory(), self.unreadable)


class _Decoder(Dataset[tuple[int, "Tensor | str"]]):
    """Position -> (position, pixels, or why there are none); raises nothing that a worker would wrap in a traceback."""

    def __init__(self, paths: list[str], transform: Transform) -> None:
        self._paths = paths
        self._transform = transform

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, position: int) -> tuple[int, Tensor | str]:
        try:
            image = read_image(Path(self._paths[position]))
        except DataError as error:
            return position, str(error)
        return position, self._transform(image)


def _collate(items: Sequence[tuple[int, Tensor | str]]) -> DecodedBatch:
    good = [(position, item) for position, item in items if isinstance(item, Tensor)]
    return DecodedBatch(
        positions=[position for position, _ in good],
        pixels=torch.stack([pixels for _, pixels in good]) if good else None,
        unreadable=[item for _, item in items if isinstance(item, str)],
    )


class PixelSource:
    """Pixels by position, decoded at each call: the images of a backbone whose image tower is being trained.

    Args:
        paths: image files.
        backbone: gives the preprocessing (see `Backbone.transform`).
        device: where the pixels are wanted.
        threads: decode at once.
    """

    def __init__(
        self, paths: Sequence[Path], backbone: Backbone, *, device: torch.device | str = "cpu", threads: int = 4
    ) -> None:
        self._paths = list(paths)
        self._transform = backbone.transform
        self.device = torch.device(device)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="negbench-decode")

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: Tensor) -> Tensor:
        """[b] int64 -> [b, 3, H, W] float32 on `device`. Raises DataError naming a file that cannot be decoded."""
        pixels = list(self._pool.map(self._decode, index.tolist()))
        return torch.stack(pixels).to(self.device)

    def _decode(self, position: int) -> Tensor:
        return self._transform(read_image(self._paths[position]))
