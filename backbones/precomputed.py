"""Your own embeddings of images and texts, read from two files; projections and fusion are trained on top of them.

No encoder is needed, and no pixels: the engine takes `features_of(ids)` instead of the feature store. One file holds
the images' embeddings, one those of every text that the run uses, spelled as the data set gives them (`query.text`, and
`reference_text`, `target_text` where a strategy corrupts those). Three formats:

* `.npz`: an array of ids (`ids`; for texts `texts`) and an array of vectors (`features`, or what the key option names).
* `.parquet`: a column `id` (`text`) and a column of lists of equal length; `ids` and `texts` will do as well.
* `.safetensors`: one tensor per image (text), named by its id (the text itself); or one tensor `features` of all and
  the metadata entry `ids` (`texts`), a JSON list.

Vectors are [N, C], or [N, L, C] for several per image; `negbench embed` writes both files by an encoder. What is
trained on top of them: `_given.GivenFeatures`, with HyCoLe's gate, a sum, or CLIP4CIR's combiner for the fusion.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from negbench.backbones._fusion import FusionInit, FusionKind, unit
from negbench.backbones._given import GivenFeatures
from negbench.backbones._hashing import key_sha256
from negbench.contracts import check_option
from negbench.errors import DataError, OptionError

PAPER = "no paper: embeddings that you bring"

_NAMES = {"image": ("ids", "id"), "text": ("texts", "text")}


class Precomputed(GivenFeatures):
    """Trainable projections and fusion over given embeddings. Build it with `load`.

    Args:
        images: id -> row, and the rows [N, L, C].
        texts: text -> row, and the rows [n, C_t].
        width: D of the shared space.
        fusion: "gated", "sum" or "combiner".
        fusion_init: of "gated".
        seed: of the initial weights.
        source: (file name, SHA-256) of the image file and of the text file.
    """

    def __init__(
        self,
        images: _Table,
        texts: _Table,
        *,
        width: int,
        fusion: FusionKind,
        fusion_init: FusionInit,
        seed: int,
        source: tuple[tuple[str, str], tuple[str, str]],
    ) -> None:
        table = texts[1]
        generator = torch.Generator().manual_seed(seed)
        super().__init__((images[1].shape[-1], table.shape[-1]), width, fusion, fusion_init, generator)
        self._image_row, self._images = images
        self._text_row = texts[0]
        self.text_table: Tensor
        self.register_buffer("text_table", table.float(), persistent=False)
        self._files = source[0][0], source[1][0]
        self._feature_key = key_sha256({"precomputed": [sha for _, sha in source]})
        self._describe(
            "precomputed",
            weights=" + ".join(self._files),
            revision="local",
            width=width,
            tokens_per_image=self._images.shape[1],
            preprocessing="none: embeddings given",
            composition=f"{fusion} fusion",
            details={"images_sha256": source[0][1], "texts_sha256": source[1][1]},
        )
        # what is given is part of what was loaded, though no parameter
        whole = key_sha256({"module": self.identity.sha256, "files": [sha for _, sha in source]})
        self._identity = dataclasses.replace(self.identity, sha256=whole)

    @classmethod
    def load(
        cls,
        *,
        images: Path | None = None,
        texts: Path | None = None,
        image_key: str = "features",
        text_key: str = "features",
        fusion: FusionKind = "gated",
        fusion_init: FusionInit = "sum",
        dim: int | None = None,
        seed: int = 0,
    ) -> Self:
        """Read the two files.

        Args:
            images: .npz, .safetensors or .parquet with the images' embeddings; must be given.
            texts: likewise with the texts' embeddings; must be given.
            image_key: array, tensor or column of `images` that holds the vectors.
            text_key: likewise of `texts`.
            fusion: "gated" (HyCoLe eq. 2), "sum" or "combiner" (CLIP4CIR).
            fusion_init: of "gated": "sum" (near the sum of both sides), or "xavier" (as HyCoLe, which names no other).
            dim: width of the shared space; None takes that of the images. A projection between equal widths begins as
                the identity, any other as an orthogonal map.
            seed: of the initial weights.

        Raises:
            OptionError: an option out of range or a file type other than these.
            DataError: a file that is missing or not as described.
        """
        files = []
        for name, path in (("images", images), ("texts", texts)):
            check_option(name, path, path is not None, "the file with their embeddings (.npz, .safetensors, .parquet)")
            files.append(Path(path or ""))
        check_option("dim", dim, dim is None or dim >= 1, ">= 1 or left out")
        tables = _read(files[0], "image", image_key), _read(files[1], "text", text_key)
        width = tables[0][1].shape[-1] if dim is None else dim
        source = (files[0].name, _sha256(files[0])), (files[1].name, _sha256(files[1]))
        return cls(*tables, width=width, fusion=fusion, fusion_init=fusion_init, seed=seed, source=source)

    def features_of(self, ids: Sequence[str]) -> Tensor:
        """[len(ids), L, C] float32 on the CPU. Raises DataError where the file has no such image."""
        rows = _rows(self._image_row, ids, "image", self._files[0])
        return self._images[rows].float()

    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """`row` [B] int64, where each text stands in the file. Raises DataError for texts that it lacks."""
        return {"row": _rows(self._text_row, texts, "text", self._files[1])}

    def _text(self, tokens: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        embedding = unit(self.text_projection(self.text_table[tokens["row"]]))
        return embedding, embedding


def _rows(row: Mapping[str, int], names: Sequence[str], what: str, file: str) -> Tensor:
    found = [row.get(name, -1) for name in names]
    absent = list(dict.fromkeys(name for name, index in zip(names, found, strict=True) if index < 0))
    if absent:
        mend = "embed each id of the data set" if what == "image" else "embed each text as the data set spells it"
        raise DataError(f"{file} lacks {len(absent)} {what}s, the first: '{absent[0]}'; {mend}")
    return torch.tensor(found, dtype=torch.int64)


# --- files -------------------------------------------------------------------------------------------------------

_Table = tuple[dict[str, int], Tensor]  # name -> row, and the rows


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path, what: str, key: str) -> _Table:
    """Names and vectors of one file: [N, L, C] of images, [n, C_t] of texts."""
    readers = {".npz": _read_npz, ".safetensors": _read_safetensors, ".parquet": _read_parquet}
    reader = readers.get(path.suffix)
    if reader is None:
        raise OptionError(f"{what}s must be a .npz, .safetensors or .parquet file, got '{path}'")
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    try:
        names, vectors = reader(path, what, key)
    except DataError:
        raise
    except Exception as error:  # three libraries, each with its own kinds
        raise DataError(f"{path} cannot be read as {path.suffix[1:]}: {error}") from error
    ranks = (2, 3) if what == "image" else (2,)
    fits = vectors.ndim in ranks and vectors.is_floating_point() and len(vectors) == len(names)
    if not fits or not vectors.numel():
        want = "[N, C] or [N, L, C]" if what == "image" else "[N, C]"
        raise DataError(
            f"{path}: '{key}' must be {want} float with N = {len(names)} {what}s, and none of them 0; "
            f"got {list(vectors.shape)} {vectors.dtype}"
        )
    row = {name: index for index, name in enumerate(names)}
    if len(row) != len(names):
        twice = next(name for index, name in enumerate(names) if row[name] != index)
        raise DataError(f"{path}: {what} '{twice}' is there twice")
    finite = torch.isfinite(vectors).flatten(1).all(1)
    if not finite.all():
        raise DataError(
            f"{path}: the vector of {what} '{names[int(finite.int().argmin())]}' has values that are not finite"
        )
    if vectors.dtype == torch.float64:
        vectors = vectors.float()
    return row, vectors[:, None] if what == "image" and vectors.ndim == 2 else vectors


def _one_of(path: Path, wanted: Sequence[str], there: Sequence[str]) -> str:
    """The first of `wanted` that is there."""
    for name in wanted:
        if name in there:
            return name
    raise DataError(f"{path} has no '{wanted[0]}', only {', '.join(map(repr, list(there)[:10])) or 'nothing'}")


def _read_npz(path: Path, what: str, key: str) -> tuple[list[str], Tensor]:
    import numpy as np

    with np.load(path, allow_pickle=False) as file:
        try:
            names = file[_one_of(path, _NAMES[what], file.files)]
            vectors = file[_one_of(path, [key], file.files)]
        except ValueError as error:
            raise DataError(f"{path} holds Python objects: save ids with np.array(ids, dtype=str) ({error})") from error
    return [name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist()], torch.from_numpy(
        vectors
    )


def _read_safetensors(path: Path, what: str, key: str) -> tuple[list[str], Tensor]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        listed = [name for name in _NAMES[what] if name in (file.metadata() or {})]
        if listed:
            tensor = file.get_tensor(_one_of(path, [key], list(file.keys())))
            return [str(name) for name in json.loads(file.metadata()[listed[0]])], tensor.clone()
        names = list(file.keys())
        vectors = [file.get_tensor(name) for name in names]
    if len({(vector.shape, vector.dtype) for vector in vectors}) > 1:
        raise DataError(f"{path}: its tensors, one per {what}, differ in shape or dtype")
    return names, torch.stack(vectors) if vectors else torch.zeros(0, 1)


def _read_parquet(path: Path, what: str, key: str) -> tuple[list[str], Tensor]:
    import pyarrow.parquet as parquet

    schema = parquet.read_schema(path)
    column = _one_of(path, _NAMES[what], schema.names)
    table = parquet.read_table(path, columns=[column, _one_of(path, [key], schema.names)])
    names = [str(name) for name in table[column].to_pylist()]
    return names, torch.cat([_stacked(path, chunk) for chunk in table[key].chunks])


def _stacked(path: Path, array: Any) -> Tensor:
    """Arrow array of numbers, or of (lists of) lists of one length -> tensor."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as compute

    if array.null_count:
        raise DataError(f"{path} has {array.null_count} missing values among its vectors")
    if not (
        pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type)
    ):
        return torch.from_numpy(np.array(array))  # a copy: Arrow's own memory is read-only
    lengths = compute.unique(compute.list_value_length(array)).to_pylist()
    if len(lengths) > 1:
        raise DataError(f"{path}: its vectors differ in length: {sorted(lengths)[:5]}")
    stacked: Tensor = _stacked(path, array.flatten()).unflatten(0, (len(array), -1))
    return stacked
