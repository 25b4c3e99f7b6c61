"""Images by position: stored features, held whole in memory or read from mapped shards, or pictures read anew."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from negbench.contracts import Backbone
from negbench.errors import DataError
from negbench.files.image_files import decoded, readable
from negbench.machine.contents import content_hashes, stamp
from negbench.machine.files import cache_dir


class MappedRows:
    """Feature rows spread over memory-mapped shards."""

    def __init__(self, shards: Sequence[Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._shards = shards
        self._ends = torch.tensor([len(shard) for shard in shards], dtype=torch.int64).cumsum(0)
        self._starts = [0, *self._ends.tolist()]
        self.shape, self.dtype = shape, dtype

    def buffer(self, count: int) -> Tensor:
        """Return an empty [count, L, C] tensor on the CPU, pinned if there is a GPU."""
        return torch.empty(count, *self.shape, dtype=self.dtype, pin_memory=torch.cuda.is_available())

    def gather(self, rows: Tensor, out: Tensor) -> Tensor:
        """Fill `out` [n, L, C] of any dtype, on the CPU, with `rows` [n] int64, each shard read in order; return it.

        Copies row by row, each once: features that are not held in memory are large per image.
        """
        order = torch.argsort(rows)
        shards = torch.bucketize(rows[order], self._ends, right=True)
        for position, row, shard in zip(order.tolist(), rows[order].tolist(), shards.tolist(), strict=True):
            out[position].copy_(self._shards[shard][row - self._starts[shard]])
        return out


class StoredFeatures:
    """Image features by position: `features[index]` is [*index.shape, L, C] float32 on `device`, index int64.

    Made by `FeatureStore.load`, either held whole on the device in the stored precision or read from the mapped shards
    at each call; a reader keeps working when the store's shards are replaced under it.
    """

    def __init__(self, source: Tensor | MappedRows, position: Tensor, device: torch.device) -> None:
        self.device = device
        self._source = source
        self._position = position.to(device) if isinstance(source, Tensor) else position

    def __len__(self) -> int:
        return len(self._position)

    @property
    def shape(self) -> tuple[int, ...]:
        """(images, L, C)."""
        return (len(self), *self._source.shape[-2:])

    def __getitem__(self, index: Tensor) -> Tensor:
        rows = self._position[index.to(self._position.device).flatten()]
        if isinstance(self._source, Tensor):
            features = self._source.index_select(0, rows)
        elif self.device.type == "cpu":
            features = self._source.gather(rows, torch.empty(len(rows), *self.shape[1:]))
        else:  # half the bytes to transfer
            features = self._source.gather(rows, self._source.buffer(len(rows))).to(self.device, non_blocking=True)
        return features.float().reshape(*index.shape, *self.shape[1:])


def pixel_source(
    backbone: Backbone,
    file: Mapping[str, Path],
    contents: Mapping[str, bytes],
    stamps: dict[str, tuple[int, ...]],
    device: torch.device,
) -> Callable[[Tensor], Tensor]:
    """Return a reader of pictures by place in `file`, [n] int64 -> [n, C, H, W] on `device`, for a tower that trains.

    Args:
        backbone: its `transform` makes tensors of pictures.
        file: image id -> picture.
        contents: image id -> SHA-256 of the picture when the run began.
        stamps: image id -> the picture's stamp (`machine.contents.stamp`) before that; renewed as files move.
        device: where the tensors go.

    The reader raises DataError for a picture that is another one by now.
    """
    ids = [*file]

    def pixels(rows: Tensor) -> Tensor:
        chosen = {image: file[image] for image in (ids[row] for row in rows.tolist())}
        while True:
            read = list(readable(decoded([file[ids[row]] for row in rows.tolist()], backbone.transform)))
            moved = {image: path for image, path in chosen.items() if stamp(path) != stamps[image]}
            if not moved:
                return torch.stack(read).to(device)
            stamps.update({image: stamp(path) for image, path in moved.items()})
            for image, now in content_hashes(moved, cache_dir()).items():
                if now != contents[image]:
                    raise DataError(f"{file[image]} changed while the run read it: rerun the command")

    return pixels
