"""Shared by both BLIP families: loading, text, identity, random weights."""

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from negbench.backbones import _lavis, _weights
from negbench.backbones._attributes import attribute_masks, make_attributes, words_of_wordpieces
from negbench.backbones._captions import UNCASED, CaptionTokenizer, make_tokenizer, vocabulary_files
from negbench.backbones._checkpoint import Fit, choice_in
from negbench.backbones._composed import (
    MAX_START,
    Composed,
    Init,
    about_temperature,
    check_without_weights,
    feature_settings,
)
from negbench.backbones._hashing import key_sha256, tower_sha256
from negbench.backbones._lavis import Sizes
from negbench.backbones._preprocess import Preprocess
from negbench.backbones._weights import Advice, Source
from negbench.contracts import (
    DEFAULT_TEMPERATURE,
    BackboneIdentity,
    Outline,
    TextsSeen,
    bound_below,
    by_rows,
    recomputing,
)
from negbench.errors import OptionError, WeightsError

_log = logging.getLogger("negbench")

_NO_TEMPERATURE = "note: %s: it holds no temperature, which starts at %s; --set backbone.temperature=T sets it"
_TRANSFORMERS_SCALE = 2.6592  # its constant logit scale: log(1 / 0.07), of no model's training
_LEAST = 0.001  # temperature: LAVIS's bound
BlipTemperature = Annotated[float, Field(ge=_LEAST, le=MAX_START)]
INITIAL_STD = 0.02  # BERT's, and LAVIS's for the query tokens


@dataclass(frozen=True, kw_only=True)
class FamilyOptions:
    """Options of both families.

    Args:
        weights: "lavis:FILE" (a whole model, as QuRe publishes its own; "lavis:FILE,key=NAME" if it holds several state
            dicts), a folder that transformers saved, or a hub id, "ORG/NAME" or "ORG/NAME@REVISION". None: the hub's
            published model.
        config: sizes that tensors do not determine, as a table; other sizes may be repeated and are then checked. With
            init="random": any size, overriding `size`.
        tokenizer: a vocab.txt or tokenizer folder. None: beside the weights, else bert-base-uncased of the hub;
            with init="random": a small vocabulary made in code.
        init: "pretrained", or "random" weights from the run's seed.
        size: size of random weights.
        target_ratio: aspect ratio of the target padding.
        attribute_weights: DQE-CIR's colour and shape sub-queries; a number > 0 is their initial weight, true 0.1.
        temperature: of the loss at the start, 0.001 .. 10; it is learned from there. None: that of the weights, or 0.07
            where they hold none.

    Raises:
        OptionError: an option that `init` does not use.
    """

    weights: str | None = None
    config: dict[str, Any] | None = None
    tokenizer: str | None = None
    init: Init = "pretrained"
    size: str = ""
    captions: ClassVar[str] = "blip_caption"  # of BLIP-2, whose tower is frozen in any case; options of BLIP
    freeze_images: ClassVar[bool] = True
    # declared by each family after its own options: their order is that of a label in tables
    target_ratio: ClassVar[float]
    attribute_weights: ClassVar[bool | float]
    temperature: ClassVar[float | None]

    def __post_init__(self) -> None:
        if self.init == "random":
            check_without_weights(self.weights)

    @property
    def images_frozen(self) -> bool:
        """Whether the visual tower is frozen."""
        return self.freeze_images


@dataclass(frozen=True)
class Origin:
    """Origin of a backbone's weights, for its identity.

    Args:
        weights: hub id, file name or "random:SEED".
        revision: hub revision, "local" or "".
        folder: where the files are; None for random weights.
        details: further entries for results.
    """

    weights: str
    revision: str
    folder: Path | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


class BlipFamily(Composed):
    """Shared half of `Blip2` and `Blip`: three sources of weights, text, dropout by rows.

    A family defines its class attributes, a constructor (sizes, options, seed, and the configuration of weights that
    transformers saved) that builds the parts under `torch.device("meta")`, and the methods that are abstract here or in
    `Backbone`.

    Attributes:
        sizes: sizes of the model.
        vision_model: the visual tower.
        temp: the learned temperature.
    """

    # QuRe with BLIP-2 on FashionIQ: cosine to 5e-8 (CIRR: 1e-5, 50 epochs); it prints none for BLIP
    recommended: ClassVar = {"lr": 5e-6, "weight_decay": 0.05, "batch_size": 32, "epochs": 30}
    advice: ClassVar[Advice]
    published: ClassVar[Sizes]
    random_sizes: ClassVar[Mapping[str, Sizes]]  # option `size` -> sizes of random weights
    published_files: ClassVar[Mapping[str, Sizes]] = {}  # names of files whose sizes are not those of `published`
    their_class: ClassVar[str]  # in transformers; its folders and hub ids can be loaded
    renamed_prefixes: ClassVar[tuple[tuple[str, str], ...]] = ()  # of their tensor names, and of ours
    # counted masks of dropout, so that runs of before know the weights that they started from
    hashed_beside: ClassVar = {"dropout_calls": torch.zeros((), dtype=torch.int64)}
    added_tokens: ClassVar[tuple[str, ...]]  # tokens that LAVIS adds to BERT's vocabulary
    unused_tokens: ClassVar[int] = 0  # last added tokens that never occur: may lack embeddings
    least_temperature = _LEAST
    sizes: Sizes
    vision_model: Any  # a model of transformers, with its configuration
    temp: nn.Parameter

    def __init__(self, sizes: Sizes, options: FamilyOptions, seed: int, config: Any = None) -> None:
        super().__init__()
        self.seed = seed
        self.sizes = sizes
        self.image_size = sizes.image_size
        self.transform = Preprocess(pad="target", target_ratio=options.target_ratio, size=sizes.image_size)
        self.options = options
        self.frozen_images = options.images_frozen

    # --- what a family adds -----------------------------------------------------------------------------------------

    @staticmethod
    @abstractmethod
    def _read_lavis(source: Source, config: Mapping[str, Any]) -> tuple[Fit, Sizes]:
        """Read a LAVIS checkpoint, and the sizes from its tensors."""

    @abstractmethod
    def _character(self) -> tuple[str, int, dict[str, Any]]:
        """Return `composition`, `tokens_per_image` and further `details` of the identity."""

    # --- loading ----------------------------------------------------------------------------------------------------

    @classmethod
    def load_weights(cls, options: FamilyOptions, seed: int) -> Self:
        """Implement `load` of every family.

        Raises:
            WeightsError: weights missing (with what to fetch and where to put it) or not fitting (with the keys).
            OptionError: an option that does not fit the weights.
        """
        source = cls._source(options)
        if source is None:
            sizes = _lavis.apply_config(cls.random_sizes[options.size], options.config or {}, source="")
            backbone = cls(sizes, options, seed)
            randomise(backbone, seed)
            about = {"size": options.size, **about_temperature(backbone.temp, "default")}
            origin = Origin(f"random:{seed}", "", details=about)
        elif source.kind == "lavis":
            backbone, origin = cls._from_lavis(source, options, seed)
        else:
            backbone, origin = cls._from_transformers(source, options, seed)
        if options.temperature is not None:
            nn.init.constant_(backbone.temp, options.temperature)
            origin = replace(origin, details={**origin.details, **about_temperature(backbone.temp, "option")})
        if source is not None:
            backbone.fine_tuned = cls._tuning_of(source)
        backbone._complete(origin)
        return backbone

    @classmethod
    def _tuning_of(cls, source: Source) -> str:
        """Return how these weights are known to be fine-tuned, as `Backbone.fine_tuned`."""
        return ""

    @classmethod
    def freezes(cls, options: FamilyOptions) -> bool:
        """See `Backbone.freezes`."""
        return options.images_frozen

    @classmethod
    def outline(cls, options: FamilyOptions, seed: int) -> Outline:
        """See `Outlines`; weights that do not fit are detected only when loaded."""
        source = cls._source(options)
        name = cls.advice.backbone
        frozen = options.images_frozen
        settings = {"backbone": name, **feature_settings(options)}
        if source is None:
            files: tuple[Path, ...] = ()
            if options.tokenizer is not None:
                files = vocabulary_files(Path(options.tokenizer).expanduser())
            return Outline(cls, name, frozen, files=files, settings={**settings, "seed": seed})
        weights = _weights.files_of(source, cls.advice)
        vocabulary = vocabulary_files(_weights.vocabulary_source(options.tokenizer, weights[0].parent, cls.advice))
        return Outline(
            cls,
            name,
            frozen,
            fine_tuned=cls._tuning_of(source),
            files=(*weights, *vocabulary),
            settings={**settings, "key": source.key, "prefix": source.prefix},
        )

    @classmethod
    def skeleton(cls, options: FamilyOptions, seed: int) -> Self:
        """See `BuildsWithoutWeights`."""
        sizes = cls._missing_sizes(options)
        config = None
        with suppress(WeightsError):  # not here: as published
            source = cls._source(options)
            if source is None:
                sizes = _lavis.apply_config(cls.random_sizes[options.size], options.config or {}, source="")
            elif source.kind == "lavis":
                with FakeTensorMode():  # torch.load then reads shapes alone
                    _, sizes = cls._read_lavis(source, options.config or {})
                sizes = _lavis.apply_config(sizes, options.config or {}, source=source.label)
            else:
                sizes, config = cls._sizes_of_folder(_weights.files_of(source, cls.advice)[0].parent)
        with torch.device("meta"):
            backbone = cls(sizes, options, seed, config)
            backbone._complete(Origin("", ""))
        return backbone

    @classmethod
    def _missing_sizes(cls, options: FamilyOptions) -> Sizes:
        """Return the sizes of weights whose files are not here: as published, by the name of a known file."""
        for name, sizes in cls.published_files.items():
            if name in str(options.weights):
                return sizes
        return cls.published

    @classmethod
    def _sizes_of_folder(cls, folder: Path) -> tuple[Sizes, Any]:
        """Return sizes and configuration of what transformers saved, from the headers of its files."""
        import transformers

        kind = getattr(transformers, cls.their_class).config_class
        with _weights.loading(f"{folder} "):
            config = kind.from_pretrained(folder, local_files_only=True)
        tensors = {cls._our_name(name): tensor for name, tensor in _weights.shapes_in(folder).items()}
        return _lavis.sizes_of_pretrained(cls.published, config, tensors, str(folder)), config

    @classmethod
    def _our_name(cls, name: str) -> str:
        """Return our name of a tensor that transformers saved."""
        for theirs, ours in cls.renamed_prefixes:
            if name.startswith(theirs):
                return ours + name.removeprefix(theirs)
        return name

    @classmethod
    def _source(cls, options: FamilyOptions) -> Source | None:
        """Return where the weights are; None for random ones."""
        if options.init == "random":
            return None
        source = _weights.parse_weights(str(options.weights or cls.advice.hub_id), cls.advice)
        if options.config and source.kind != "lavis":
            raise OptionError("backbone.config is for lavis: weights; a folder or hub id has its own config.json")
        return source

    @classmethod
    def _from_lavis(cls, source: Source, options: FamilyOptions, seed: int) -> tuple[Self, Origin]:
        assert source.path is not None
        config = options.config or {}
        fit, sizes = cls._read_lavis(source, config)
        state = fit.state
        lacks_temperature = "temp" not in state
        _refuse_covr2(state, source.path)
        state.setdefault("temp", torch.tensor(DEFAULT_TEMPERATURE))
        skeleton = cls(sizes.skeleton(), options, seed)
        dropped = _lavis.check_names(skeleton, state, sizes.layout, source.path)
        parts: dict[str, None] = {}  # each once, in order
        for name in dropped:
            if _lavis.NAMED_IF_DROPPED.fullmatch(name):
                part = "Qformer.cls" if name.startswith("Qformer.") else name.split(".")[0]
                parts[part] = None
        if lacks_temperature and options.temperature is None:
            _log.warning(_NO_TEMPERATURE, source.path, DEFAULT_TEMPERATURE)
        if parts:
            _log.warning("note: %s: left out, as no score here reads them: %s", source.path, ", ".join(parts))
        backbone = cls(_lavis.apply_config(sizes, config, source=source.label), options, seed)
        _lavis.load_state(backbone, state, sizes.layout, source.path)
        about = {
            "keys_left_out": len(dropped),
            **fit.details,
            **about_temperature(state["temp"], "default" if lacks_temperature else "file"),
        }
        return backbone, Origin(source.label, "local", source.path.parent, about)

    @classmethod
    def _from_transformers(cls, source: Source, options: FamilyOptions, seed: int) -> tuple[Self, Origin]:
        import transformers

        folder = _weights.files_of(source, cls.advice)[0].parent
        choice = choice_in(folder)
        config, state = _weights.read_pretrained(getattr(transformers, cls.their_class), folder)
        stored = _stored_temperature(folder)
        if stored is None and options.temperature is None:
            _log.warning(_NO_TEMPERATURE, folder, DEFAULT_TEMPERATURE)
        tensors = {"temp": torch.tensor(DEFAULT_TEMPERATURE if stored is None else stored)}
        for name, tensor in state.items():
            if not name.startswith(("itm_head.", "logit_scale")):
                tensors[cls._our_name(name)] = tensor
        sizes = _lavis.sizes_of_pretrained(cls.published, config, tensors, str(folder))
        backbone = cls(sizes, options, seed, config)
        backbone.transform = replace(backbone.transform, **_weights.read_pixels(folder, sizes.image_size))
        _lavis.assign(backbone, tensors, folder)
        about = {**choice, **about_temperature(tensors["temp"], "default" if stored is None else "file")}
        return backbone, Origin(source.label, folder.name if source.kind == "hub" else "local", folder, about)

    def _complete(self, origin: Origin) -> None:
        """Finish construction once the parameters are filled: tokenizer, sub-queries, freezing, and hashes."""
        sizes = self.sizes
        options = self.options
        self._tokenizer = self._caption_tokenizer(origin)
        bert = self._tokenizer.bert
        by_rows(self)
        generator = torch.Generator().manual_seed(self.seed)
        width = getattr(sizes, f"{sizes.text}_hidden_size")
        self.attributes = make_attributes(options.attribute_weights, sizes.embed_dim, width, generator)
        if self.frozen_images:
            self.vision_model.requires_grad_(False)
        self._feature_key = tower_sha256(self.vision_model, self.transform)
        composition, tokens, family_details = self._character()
        spelling = {name: getattr(bert, name) for name in UNCASED}
        details = {
            "vit_layers": sizes.vit_layers,
            "vit_hidden_size": sizes.vit_hidden_size,
            "vit_heads": sizes.vit_heads,
            "tokenizer": self._tokenizer.name,
            "tokenizer_sha256": key_sha256({"vocabulary": bert.get_vocab(), **spelling}),
            **family_details,
            **origin.details,
        }
        about = self._about(composition, sizes.embed_dim, self.vision_model.config.hidden_act, tokens)
        about |= {"revision": origin.revision, "preprocessing": self.transform.description, "details": details}
        self._identity = BackboneIdentity(self.advice.backbone, origin.weights, **about)
        self.eval()

    def _caption_tokenizer(self, origin: Origin) -> CaptionTokenizer:
        """Make the tokenizer: option `tokenizer`, else the one beside the weights, else the hub's bert-base-uncased.

        Random weights of any size use the vocabulary made in code.

        Raises:
            WeightsError: no vocabulary, or one that does not fit the word embeddings.
        """
        files: Sequence[Path] = ()  # the vocabulary made in code
        if self.options.tokenizer is not None or origin.folder is not None:
            files = vocabulary_files(_weights.vocabulary_source(self.options.tokenizer, origin.folder, self.advice))
        processed = self.options.captions == "blip_caption"
        tokenizer = make_tokenizer(files, self.added_tokens, self.sizes.max_txt_len, processed=processed)
        rows = self.sizes.vocab_size
        # rows of random weights are untrained: having more of them than words does no harm
        if rows < len(tokenizer) - self.unused_tokens or (rows > len(tokenizer) and origin.folder is not None):
            raise WeightsError(
                f"the tokenizer {tokenizer.name} has {len(tokenizer)} tokens with {' and '.join(self.added_tokens)}, "
                f"but the weights have {rows} embeddings: give the vocabulary that they were trained with: "
                "--set backbone.tokenizer=FILE"
            )
        return tokenizer

    # --- images -----------------------------------------------------------------------------------------------------

    def image_features(self, pixels: Tensor) -> Tensor:
        """[B, 3, S, S] -> [B, 1 + patches, C] float32: the tower's tokens; with gradients unless it is frozen."""
        # the EVA tower of transformers silently takes smaller images: it slices its position embeddings
        if pixels.ndim != 4 or pixels.shape[1:] != (3, self.image_size, self.image_size):
            raise ValueError(f"expected pixels [B, 3, {self.image_size}, {self.image_size}], got {list(pixels.shape)}")
        gradients = torch.is_grad_enabled() and not self.frozen_images
        with torch.set_grad_enabled(gradients):
            return self.vision_model(pixel_values=pixels).last_hidden_state.float()

    # --- text -------------------------------------------------------------------------------------------------------

    def texts_seen(self, texts: Sequence[str]) -> TextsSeen:
        """See `SeesTexts`: at most `max_txt_len` pieces of the processed text."""
        return self._tokenizer.texts_seen(texts)

    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """B strings -> {"input_ids", "attention_mask"} int64 and {"colour", "shape"} bool, all [B, max_txt_len].

        Captions pass LAVIS's processor first (unless "as_is"); the masks mark the tokens of attribute words.
        """
        batch: dict[str, Tensor] = self._tokenizer(texts)
        words = [words_of_wordpieces(row) for row in self._tokenizer.pieces(batch["input_ids"])]
        # always with masks, so that backbones with and without `attribute_weights` can share tokenised texts
        return {**batch, **attribute_masks(words, batch["input_ids"].shape[1])}

    @property
    def temperature(self) -> Tensor:
        """LAVIS's `temp`, learned, at least 0.001; divides scores in training losses only."""
        return bound_below(self.temp, self.least_temperature)

    # --- modes ------------------------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Set training mode, with dropout in the text side; a frozen tower stays in evaluation mode."""
        super().train(mode)
        if self.frozen_images:
            self.vision_model.eval()
        return self

    @property
    def recomputes(self) -> bool:
        """See `Backbone`."""
        return True

    def recompute(self, on: bool) -> None:
        """Switch transformers' checkpoints after each layer on or off; in a frozen tower they do nothing."""
        for part in self.modules():
            if hasattr(part, "gradient_checkpointing"):
                part.gradient_checkpointing = on
                part._gradient_checkpointing_func = _compute_again


def _compute_again(layer: Callable[..., Any], *inputs: Any) -> Any:
    return checkpoint(layer, *inputs, use_reentrant=False, context_fn=recomputing)


def _refuse_covr2(state: Mapping[str, Tensor], path: Path) -> None:
    """Raise WeightsError for the BLIP-2 of CoVR-2, whose tensors have LAVIS's names.

    Its class saves the whole Q-Former with its word head, as those of LAVIS, QuRe and SPRC do, and no matching head,
    which all of those have. Its temperature is a plain number in the published code, and in the file if it was made
    a parameter. Files from which both heads were taken are read if they have a temperature.
    """
    if "query_tokens" not in state or "itm_head.weight" in state:
        return
    has_words = any(name.startswith("Qformer.cls.") for name in state)
    if has_words or "temp" not in state:
        raise WeightsError(
            f"{path} is CoVR-2's BLIP-2 (it has no itm_head), which pools by another formula: the mean of normalised "
            "tokens, for queries and candidates; give the BLIP-2 of LAVIS, QuRe or SPRC"
        )


def _stored_temperature(folder: Path) -> float | None:
    """Return the temperature of a folder that transformers saved; None without one, or with transformers' constant.

    Its classes had none until a constant `logit_scale` of 2.6592, whatever the model learned, was proposed
    (huggingface/transformers, pull request 48583).
    """
    scale = _weights.tensor_in(folder, "logit_scale")
    if scale is None or abs(float(scale) - _TRANSFORMERS_SCALE) < 1e-4:
        return None
    return math.exp(-float(scale))


def randomise(module: nn.Module, seed: int) -> None:
    """Fill a module on the meta device with random weights, from `seed` alone.

    Layer norms are 1 and 0, biases 0, `temp` 0.07. Everything else is N(0, s): s is 0.02 for embeddings and query
    tokens, and 0.02 sqrt(768 / inputs) for linear layers and convolutions, BERT's deviation at BERT's width, so that a
    narrow model responds to its inputs. The Q-Former's feed-forward layers for query tokens start as copies of those
    for text, as in LAVIS. (transformers' own initial weights would not do: its query tokens are zeros, so that all
    candidate tokens of an image agree, and its towers' deviation is 1e-10.)
    """
    module.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    parts = list(module.named_modules())
    norms = {f"{name}.weight" for name, part in parts if isinstance(part, nn.LayerNorm)}
    layers = {f"{name}.weight" for name, part in parts if isinstance(part, nn.Linear | nn.Conv2d)}
    with torch.no_grad():
        parameters = dict(sorted(module.named_parameters()))
        for name, parameter in parameters.items():
            if name in norms:
                parameter.fill_(1.0)
            elif name == "temp":
                parameter.fill_(0.07)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                scale = math.sqrt(768 / parameter[0].numel()) if name in layers else 1.0
                parameter.normal_(0.0, INITIAL_STD * scale, generator=generator)
        for name, parameter in parameters.items():
            if "_query." in name:
                parameter.copy_(parameters[name.replace("_query.", ".")])
    _lavis.restore_positions(module)
