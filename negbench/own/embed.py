"""Embed a folder's images and texts with an encoder, into the two files that backbone `precomputed` reads."""

import importlib
import inspect
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from negbench import display
from negbench.contracts import SeesTexts, TextsSeen
from negbench.data.unseen import equal_vectors, text_lines
from negbench.errors import DataError, NegbenchError, OptionError, UnknownNameError, out_of_memory
from negbench.files.image_files import ImageFiles, decode_ahead, readable
from negbench.files.picture_kinds import picture_remarks
from negbench.loop.record import peak_memory_mib
from negbench.machine.contents import content_hashes
from negbench.machine.files import atomic_write, cache_dir
from negbench.machine.grouping import group_pairs
from negbench.machine.room import find_device
from negbench.own.init import FolderContents, dataset_of, load_split, survey
from negbench.plugins.registry import import_file, line_in, on_one_line
from negbench.settings.command_options import Embed

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGES = "images.npz"
TEXTS = "texts.npz"
_LIBRARIES = "negbench.backbones._encoders"  # imported only when an encoder is needed, like a plug-in
_WANT = "open_clip:MODEL[:PRETRAINED], transformers:NAME or FILE.py:NAME"
_METHODS = ("encode_image", "encode_text")


@dataclass(frozen=True)
class EmbeddedFolder:
    """Files of embeddings that were written.

    Attributes:
        images: file of the images' embeddings.
        texts: file of the texts' embeddings.
        image_shape: [N, C], or [N, L, C] from an encoder that gives L vectors per image.
        text_shape: [n, C_t].
        dataset: data set `triplets` that names them, as an argument of `negbench.audit`, `compare` and `run`.
    """

    images: Path
    texts: Path
    image_shape: tuple[int, ...]
    text_shape: tuple[int, ...]
    dataset: dict[str, Any]

    @property
    def backbone(self) -> dict[str, Any]:
        """Backbone `precomputed` with these files, likewise."""
        return {"name": "precomputed", "images": str(self.images), "texts": str(self.texts)}


def embed_folder(options: Embed) -> EmbeddedFolder:
    """Embed every image and every text that the triplets of a folder name; see `negbench.api.embed`."""
    scan = survey(options.folder, options.columns, options.allow_missing)
    files, texts = _names_in(scan, options.gallery, options.as_shown)
    contents, first = _find_distinct(files)
    row = {content: index for index, content in enumerate(first)}
    _check_room(scan, options.overwrite)
    with display.progress("embed") as screen:
        encoded, words, losses = _encode_all(options, {name: files[name] for name in first.values()}, texts, screen)
    pictures = [image_files.path(name) for name, image_files in files.items()]
    display.notes([*picture_remarks(pictures, as_shown=options.as_shown, option="--as-shown"), *losses])
    images = encoded[[row[contents[name]] for name in files]]
    (scan.folder / IMAGES).unlink(missing_ok=True)  # so that a kill in between leaves no files of two encoders
    with atomic_write(scan.folder / TEXTS, "wb") as file:
        np.savez(file, texts=np.array(texts), features=words.numpy())
    with atomic_write(scan.folder / IMAGES, "wb") as file:
        np.savez(file, ids=np.array(list(files)), features=images.numpy())
    return EmbeddedFolder(
        images=scan.folder / IMAGES,
        texts=scan.folder / TEXTS,
        image_shape=tuple(images.shape),
        text_shape=tuple(words.shape),
        dataset=dataset_of(scan),
    )


def dry_run(options: Embed) -> list[str]:
    """Embed a batch of images and one of texts; say what is read, and what embedding all takes."""
    scan = survey(options.folder, options.columns, options.allow_missing)
    screen = display.Display()
    size = options.batch_size
    files, texts = _names_in(scan, options.gallery, options.as_shown)
    _, first = _find_distinct(files)
    _check_room(scan, options.overwrite)
    some_images = list(first.values())[:size]
    some_texts = texts[:size]
    _encode_all(options, {name: files[name] for name in some_images}, some_texts, screen)
    for_images = screen.seconds["images"] * len(first) / len(some_images)
    for_texts = screen.seconds["texts"] * len(texts) / len(some_texts)
    memory = f"{peak_memory_mib()['process']:,.0f} MiB of memory (measured on a batch)"
    reads = f"reads {len(files):,} images ({len(first):,} different ones) and {len(texts):,} texts"
    return [reads, f"{display.duration(for_images + for_texts)} of embedding, {memory}"]


def _find_distinct(files: Mapping[str, ImageFiles]) -> tuple[dict[str, bytes], dict[bytes, str]]:
    """Return what each image's file contains, and the first image of each content: equal files are encoded once."""
    contents = content_hashes({name: file.path(name) for name, file in files.items()}, cache_dir())
    alike = group_pairs((content, name) for name, content in contents.items())
    return contents, {content: names[0] for content, names in alike.items()}


def _encode_all(
    options: Embed, files: dict[str, ImageFiles], texts: Sequence[str], screen: display.Display
) -> tuple[Tensor, Tensor, list[str]]:
    """Encode images [N, C] or [N, L, C] and texts [n, C_t] in batches; also say what the encoder does not see."""
    loaded = _load_encoder(options.encoder, options.device)
    size = options.batch_size
    with torch.no_grad():
        with screen.stage("images", total=len(files)) as advance:
            images = loaded.vectors("encode_image", _decode_batches(files, size), advance)
        with screen.stage("texts", total=len(texts)) as advance:
            words = loaded.vectors("encode_text", _text_batches(texts, size), advance)
    return images, words, _lines_on_losses(loaded, images, words, texts)


def _lines_on_losses(loaded: "_LoadedEncoder", images: Tensor, words: Tensor, texts: Sequence[str]) -> list[str]:
    """Return a line about texts that are cut or get one vector, and one about different images that get one."""
    texts_seen = TextsSeen(words)
    if isinstance(loaded.encoder, SeesTexts):
        with loaded.blame():
            texts_seen = replace(loaded.encoder.texts_seen(texts), rows=words)
    return [*text_lines(texts_seen), *equal_vectors(images, "images")]


# --- what is embedded ----------------------------------------------------------------------------------------------


def _names_in(scan: FolderContents, gallery: Path | None, as_shown: bool) -> tuple[dict[str, ImageFiles], list[str]]:
    """Return (image id -> its files, texts), each once, in order of appearance over all splits.

    Raises:
        DataError: triplets or images are missing.
    """
    if scan.triplets is None:
        raise DataError(f"{scan.folder}: nothing to embed yet: {'; '.join(scan.missing)}")
    options: dict[str, Any] = {"as_shown": as_shown}
    if gallery is not None:
        options["gallery"] = gallery
    _, table = scan.triplets
    files: dict[str, ImageFiles] = {}
    texts: list[str] = []
    for split in table.splits:
        dataset = load_split(scan, split, images=True, **options)
        if dataset.files is not None:
            files |= dict.fromkeys(dataset.all_images, dataset.files)
        texts += [query.text for query in dataset.queries]
    return files, list(dict.fromkeys(texts))


def _check_room(scan: FolderContents, overwrite: bool) -> None:
    """Check, before computing anything, that the files can be written and that `precomputed` will find only these."""
    outputs = {"images": scan.folder / IMAGES, "texts": scan.folder / TEXTS}
    for path in outputs.values():
        if path.exists() and not overwrite:
            raise OptionError(f"{path} already exists: use it with `negbench init`, or recompute it with --overwrite")
    for role, file in scan.vectors.items():
        if file != outputs[role]:
            raise OptionError(f"{file} already holds embeddings of {role}: move it away")
    if not os.access(scan.folder, os.W_OK):
        raise NegbenchError(f"cannot write {scan.folder}")


def _decode_batches(files: dict[str, ImageFiles], size: int) -> "Iterator[tuple[list[str], list[Image]]]":
    """Yield (ids, RGB images) of each batch, decoded while earlier batches are encoded."""
    ids = list(files)
    read = readable(decode_ahead([files[name].path(name) for name in ids], importlib.import_module(_LIBRARIES).rgb))
    for start in range(0, len(ids), size):
        yield ids[start : start + size], list(islice(read, size))


def _text_batches(texts: Sequence[str], size: int) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """Yield each batch of texts as its own names and as the encoder's input."""
    for start in range(0, len(texts), size):
        batch = texts[start : start + size]
        yield batch, batch


# --- encoders ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _LoadedEncoder:
    """An encoder, with what is needed to report its errors.

    Attributes:
        encoder: has `encode_image` and `encode_text`.
        title: names it in errors.
        module: module of the user's file that defines it, if any.
    """

    encoder: Any
    title: str
    module: str = ""

    def vectors(
        self, method: str, batches: Iterable[tuple[Sequence[str], Sequence[Any]]], advance: display.Advance
    ) -> Tensor:
        """Encode batches of (names, inputs) into [N, C] or, for images, [N, L, C] float32 on the CPU.

        Raises:
            NegbenchError: the encoder returns anything else; the message names the first image or text.
        """
        parts: list[Tensor] = []
        for names, inputs in batches:
            with self.blame():
                returned = getattr(self.encoder, method)(inputs)
            part = self._check_returned(returned, method, names)
            if parts and part.shape[1:] != parts[0].shape[1:]:
                raise OptionError(
                    f"{self.title}: {method} returned shape {list(parts[0].shape[1:])} per item for one batch "
                    f"and {list(part.shape[1:])} for the next: expected one shape"
                )
            parts.append(part)
            advance(len(names))
        return torch.cat(parts)

    def _check_returned(self, returned: Any, method: str, names: Sequence[str]) -> Tensor:
        """Return what an encoder returned as float32 on the CPU; raise unless it is a row of numbers for each name."""
        shapes = "[n, C]"
        dimensions = [2]
        if method == "encode_image":
            shapes = "[n, C] or [n, L, C]"
            dimensions.append(3)
        rule = f"{self.title}: {method} must return {shapes} floats, a row for each of n = {len(names)}"
        try:
            rows = torch.as_tensor(returned).detach()
        except (TypeError, ValueError, RuntimeError) as error:
            raise OptionError(f"{rule}, got a {type(returned).__name__}") from error
        if rows.ndim not in dimensions or len(rows) != len(names) or not rows.is_floating_point() or not rows.numel():
            raise OptionError(f"{rule}, got {list(rows.shape)} {rows.dtype}")
        rows = rows.to("cpu", torch.float32, copy=True)  # an encoder may write into its own buffer
        finite = torch.isfinite(rows).flatten(1).all(1)
        if not finite.all():
            raise DataError(f"{self.title}: {method} gave NaN or inf for '{names[int(finite.int().argmin())]}'")
        return rows

    @contextmanager
    def blame(self) -> Iterator[None]:
        """Report errors of this block as the encoder's."""
        try:
            yield
        except NegbenchError:
            raise
        except Exception as error:
            memory = out_of_memory(error, "try a smaller batch, as --batch-size 8")
            failed_at = line_in(error, {self.module})
            line = ""
            if failed_at:
                _, number = failed_at
                line = f" in line {number}"
            raise NegbenchError(memory or f"{self.title} failed{line}: {on_one_line(error)}") from error


def _load_encoder(specification: str, device: str | None) -> _LoadedEncoder:
    """Load the encoder of a specification; a torch module goes to the device, in evaluation mode.

    Raises:
        NegbenchError: the specification is unknown or cannot be loaded; a missing package raises ImportError.
    """
    where = find_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    loaded = _make_encoder(specification, where)
    lacking = [name for name in _METHODS if not callable(getattr(loaded.encoder, name, None))]
    if lacking:
        kind = type(loaded.encoder).__name__
        raise OptionError(
            f"{loaded.title}: an object of type {kind} lacks {' and '.join(lacking)}: expected "
            "encode_image(images), a list of RGB PIL images -> [n, C], and encode_text(texts), a list of strings -> "
            "[n, C]"
        )
    if isinstance(loaded.encoder, nn.Module):
        with loaded.blame():
            loaded.encoder.to(where).eval()
    return loaded


def _make_encoder(specification: str, device: torch.device) -> _LoadedEncoder:
    """Load a library's encoder, or one from the user's file: an object, or a callable that makes one."""
    kind, _, name = specification.partition(":")
    file, _, attribute = specification.rpartition(":")
    title = f"--encoder {specification}"
    if file.endswith(".py"):
        module = import_file(Path(file).expanduser(), "--encoder")
        if not hasattr(module, attribute):
            public = [name for name in vars(module) if not name.startswith("_")]
            raise UnknownNameError("encoder", attribute, public, where=str(Path(file).expanduser()))
        loaded = _LoadedEncoder(getattr(module, attribute), title, module.__name__)
        encoder = loaded.encoder
        if callable(encoder) and (inspect.isclass(encoder) or not hasattr(encoder, "encode_image")):
            with loaded.blame():
                loaded = replace(loaded, encoder=encoder())
        return loaded
    if kind.endswith(".py"):
        raise OptionError(f"{title}: add the name of the encoder, as {kind}:NAME")
    libraries = importlib.import_module(_LIBRARIES)
    if not name or kind not in libraries.LIBRARIES:
        raise OptionError(f"{title}: expected {_WANT}")
    try:
        return _LoadedEncoder(libraries.load(kind, name, device), title)
    except NegbenchError as error:
        raise OptionError(f"{title}: {error}") from error
