"""Your own embeddings of images and texts, read from two files; projections and fusion are trained on top of them.

No encoder is needed, and no pixels: the engine takes `features_of(ids)` instead of the feature store. One file holds
the images' embeddings, one those of every text that the run uses, spelled as the data set gives them (`query.text`, and
`reference_text`, `target_text` where a strategy corrupts those). Both are .npz, an array of ids (`ids`; for texts
`texts`) and one of vectors (`features`, or whatever the only other array is called); .npy with the names, one per line
in a .txt of the same name or as a list in a .json; or .parquet with a column of names, which may be the index, and one
of lists or a column for each number.

Vectors are [N, C], or [N, L, C] for several per image; `negbench embed` writes both files by an encoder. What is
trained on top of them: `_given.GivenFeatures`, with HyCoLe's gate or a sum for the fusion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import torch
from pydantic import PositiveInt
from torch import Tensor

from negbench.backbones._composed import Seed, StartTemperature
from negbench.backbones._fusion import FusionKind, unit
from negbench.backbones._given import GivenFeatures
from negbench.backbones._hashing import key_sha256
from negbench.contracts import DEFAULT_TEMPERATURE, BackboneIdentity, TextsSeen, check_option
from negbench.errors import DataError, OptionError, short_repr
from negbench.files.image_files import Spellings, check_names
from negbench.files.vector_files import ENDINGS, conversion, files_of, read_vectors
from negbench.machine.files import sha256_of

PAPER = "no paper: embeddings that you bring"


@dataclass(frozen=True, kw_only=True)
class PrecomputedOptions:
    """Options of `Precomputed`.

    Args:
        images: .npz with the images' embeddings, .npy with a .txt of their names, or .parquet; must be given.
        texts: likewise with the texts' embeddings; must be given.
        fusion: "gated" (HyCoLe eq. 2; near the sum of both sides at first) or "sum".
        dim: width of the shared space; None takes that of the images. A projection between equal widths begins as
            the identity, any other as an orthogonal map.
        temperature: of the loss at the start, 0.01 .. 10; it is learned from there.
    """

    images: Path | None = None
    texts: Path | None = None
    fusion: FusionKind = "gated"
    dim: PositiveInt | None = None
    temperature: StartTemperature = DEFAULT_TEMPERATURE

    def files(self) -> tuple[Path, Path]:
        """Return both files. Raises OptionError where one is not given."""
        for name, path in (("images", self.images), ("texts", self.texts)):
            check_option(name, path, path is not None, "the file with their embeddings")
        return Path(self.images or ""), Path(self.texts or "")


class Precomputed(GivenFeatures):
    """Trainable projections and fusion over given embeddings. Build it with `load`."""

    # the trained part is linear and new: 1e-4, an encoder's rate, leaves it far from converged after ten epochs
    recommended: ClassVar = {"lr": 1e-3}

    def __init__(self, options: PrecomputedOptions, seed: int) -> None:
        image_file, text_file = options.files()
        image_row, images = _read(image_file, "image")
        text_row, texts = _read(text_file, "text")
        image_digest = _digest(image_file)
        text_digest = _digest(text_file)
        fusion = options.fusion
        width = images.shape[-1] if options.dim is None else options.dim
        generator = torch.Generator().manual_seed(seed)
        widths = images.shape[-1], texts.shape[-1]
        super().__init__(widths, width, fusion, generator, temperature=options.temperature)
        self._image_row = image_row
        self._images = images
        self._spellings = Spellings(image_row)
        self._text_row = text_row
        self.register_buffer("text_table", texts.float(), persistent=False)
        self._files = image_file.name, text_file.name
        self._feature_key = key_sha256({"precomputed": [image_digest, text_digest]})
        about = self._about(f"{fusion} fusion", width, tokens=images.shape[1])
        # the given embeddings are part of what was loaded, though not parameters
        about["sha256"] = key_sha256({"module": about["sha256"], "files": [image_digest, text_digest]})
        about["details"] = {"images_sha256": image_digest, "texts_sha256": text_digest, **self.start_details}
        about |= {"revision": "local", "preprocessing": "none: embeddings given"}
        self._identity = BackboneIdentity("precomputed", " + ".join(self._files), **about)

    @classmethod
    def load(cls, options: PrecomputedOptions, seed: Seed = 0) -> Self:
        """Read the two files; `seed` gives the initial weights.

        Raises:
            OptionError: a file that is not given or not .npz.
            DataError: a file that is missing or not as described.
        """
        return cls(options, seed)

    def features_of(self, ids: Sequence[str]) -> Tensor:
        """[len(ids), L, C] float32 on the CPU. Raises DataError where the file has no such image."""
        rows = _rows(self._image_row, [self._row_name(name) for name in ids], "image", self._files[0])
        return self._images[rows].float()

    def lacking(self, ids: Sequence[str]) -> list[str]:
        """Return the ids that the file does not have. Raises DataError for two of one row."""
        row_names = [self._row_name(name) for name in ids]
        check_names(ids, row_names)
        return [name for name, row_name in zip(ids, row_names, strict=True) if row_name not in self._image_row]

    def _row_name(self, name: str) -> str:
        return name if name in self._image_row else self._spellings.find(name) or name

    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """`row` [B] int64, the row of each text in the file. Raises DataError for texts that it lacks."""
        return {"row": _rows(self._text_row, texts, "text", self._files[1])}

    def texts_seen(self, texts: Sequence[str]) -> TextsSeen:
        """See `SeesTexts`: the given vectors."""
        return TextsSeen(self.text_table.cpu()[self.tokenize(texts)["row"]])

    def _text(self, tokens: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        embedding = unit(self.text_projection(self.text_table[tokens["row"]]))
        return embedding, embedding


def _rows(row: Mapping[str, int], names: Sequence[str], what: str, file: str) -> Tensor:
    indices = [row.get(name, -1) for name in names]
    absent = list(dict.fromkeys(name for name, index in zip(names, indices, strict=True) if index < 0))
    if absent:
        of_images = "embed each id of the data set, or leave them out with --allow-missing"
        fix = of_images if what == "image" else "embed each text as the data set spells it"
        first = short_repr(absent[0])
        other = short_repr(next(iter(row)))
        raise DataError(f"{file} lacks {len(absent)} {what}s, the first: {first}; it has {other}; {fix}")
    return torch.tensor(indices, dtype=torch.int64)


# --- files -------------------------------------------------------------------------------------------------------


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file, or one of those of its parts."""
    digests = [sha256_of(part) for part in files_of(path)]
    return digests[0] if len(digests) == 1 else key_sha256({"files": digests})


def _read(path: Path, what: str) -> tuple[dict[str, int], Tensor]:
    """Read name -> row, and the rows, of one file: [N, L, C] of images, [n, C_t] of texts."""
    called = "ids" if what == "image" else "texts"
    if path.suffix not in ENDINGS:
        lines = conversion(path, called)
        how = f": convert it, {lines}" if lines else ""
        raise OptionError(f"{what}s must be a .npz, .npy or .parquet file, got '{path}'{how}")
    for file in files_of(path):
        if not file.is_file():
            raise DataError(f"{file}: there is no such file")
    names, rows = read_vectors(path, called, once=what)
    vectors = torch.from_numpy(rows)
    if what == "image":
        names = [name.replace("\\", "/") for name in names]  # as in the data set
    ranks = (2, 3) if what == "image" else (2,)
    if vectors.ndim not in ranks or not vectors.numel():
        want = "[N, C] or [N, L, C]" if what == "image" else "[N, C]"
        raise DataError(
            f"{path}: its vectors must be {want} float with N = {len(names)} {what}s, and none of them 0; "
            f"got {list(vectors.shape)} {vectors.dtype}"
        )
    row = {name: index for index, name in enumerate(names)}
    if len(row) != len(names):
        twice = next(name for index, name in enumerate(names) if row[name] != index)
        raise DataError(f"{path}: {what} '{twice}' occurs twice")
    largest = torch.linalg.vector_norm(vectors, ord=torch.inf, dim=-1)
    sound = ((largest == 0) | ((largest > 1e-12) & (largest < 1e12))).reshape(len(names), -1).all(1)  # not NaN
    if not sound.all():
        first = int(sound.int().argmin())
        finite = bool(vectors[first].isfinite().all())
        why = "above 1e12, or none above 1e-12: scale all vectors" if finite else "that are not finite: embed it again"
        raise DataError(f"{path}: the vector of {what} '{names[first]}' has values {why}")
    if vectors.dtype == torch.float64:
        vectors = vectors.float()
    return row, vectors[:, None] if what == "image" and vectors.ndim == 2 else vectors
