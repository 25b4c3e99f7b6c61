"""Text of the BLIP family: LAVIS's caption processor, BERT's WordPiece tokenizer, and a vocabulary made in code.

The processor is that of LAVIS's class `BlipCaptionProcessor` (lavis/processors/blip_processors.py), which its model
configurations use under the name "blip_caption" in training and evaluation alike.
"""

import json
import re
import string
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from negbench.contracts import TextsSeen
from negbench.errors import WeightsError
from negbench.machine.received import check_regular, read_json_text, read_text

MAX_WORDS = 50
BUILT_IN = "built-in"  # name of the vocabulary made in code
UNCASED: Mapping[str, Any] = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}  # BERT's
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

READS = ("_words.toml",)
_WORDS: dict[str, str] = tomllib.loads(Path(__file__).with_name(*READS).read_text(encoding="utf-8"))

_PUNCTUATION = re.compile(r"[.!\"()*#:;~]")
_SPACES = re.compile(r"\s{2,}")


def process_caption(caption: str, *, lower: bool = True, most: int | None = MAX_WORDS) -> str:
    """Process a caption as LAVIS's "blip_caption" processor does, with its default empty prompt.

    Lower case unless a cased vocabulary says otherwise; each of . ! " ( ) * # : ; ~ becomes a space; two or more white
    spaces become one; newlines at the end and spaces at both ends go; at most 50 words (`most`; None: all) stay, split
    at single spaces.
    , ? ' - / & $ and single tabs are kept.
    """
    if lower:
        caption = caption.lower()
    caption = _SPACES.sub(" ", _PUNCTUATION.sub(" ", caption))
    words = caption.rstrip("\n").strip(" ").split(" ")
    return " ".join(words[:most])


def built_in_vocabulary() -> dict[str, int]:
    """Word -> id: BERT's special tokens, common fashion words, and pieces that spell every other ASCII word."""
    letters = [*string.ascii_lowercase, *string.digits]
    signs = [c for c in string.punctuation if c not in "[]"] + ["[", "]"]
    words = [word for word in dict.fromkeys(_WORDS["captions"].split()) if len(word) > 1]
    pieces = [*SPECIAL_TOKENS, *letters, *(f"##{c}" for c in letters), *signs, *words]
    return {piece: index for index, piece in enumerate(pieces)}


def vocabulary_files(source: Path) -> tuple[Path, ...]:
    """Return the file itself, or a folder's vocab.txt, else its tokenizer.json; then any tokenizer_config.json beside.

    Raises:
        WeightsError: no such file.
    """
    if source.is_dir():
        files = [source / name for name in ("vocab.txt", "tokenizer.json") if (source / name).is_file()]
        if not files:
            raise WeightsError(f"no tokenizer in {source}: put the vocab.txt of bert-base-uncased there")
        source = files[0]
    if not source.is_file():
        raise WeightsError(f"no tokenizer at {source}: tokenizer= takes a vocab.txt or a folder that holds one")
    settings = source.with_name("tokenizer_config.json")
    return (source, settings) if settings.is_file() else (source,)


def read_spelling(*settings: Path) -> dict[str, Any]:
    """Read what a tokenizer_config.json says of case, accents and Chinese; `UNCASED` without one.

    Raises:
        WeightsError: not a JSON table.
    """
    spelling = dict(UNCASED)
    for file in settings:
        try:
            stored = json.loads(read_json_text(file))
            spelling |= {key: stored[key] for key in spelling if key in stored}
        except (OSError, ValueError, TypeError) as error:
            raise WeightsError(f"{file} cannot be read as a tokenizer's settings: {error}") from error
    return spelling


def read_vocabulary(source: Path) -> dict[str, int]:
    """Read word -> id from a vocab.txt or a tokenizer.json.

    Tokens that were added to a tokenizer.json's own vocabulary are left out: BLIP-2's processor of transformers adds
    "<image>", for which the retrieval checkpoints have no embedding.

    Raises:
        WeightsError: not a BERT vocabulary.
    """
    from tokenizers import Tokenizer

    kind = "tokenizer" if source.suffix == ".json" else "vocabulary"
    try:
        if kind == "tokenizer":
            check_regular(source)
            vocabulary = dict(Tokenizer.from_file(str(source)).get_vocab(with_added_tokens=False))
        else:
            lines = read_text(source).removesuffix("\n").split("\n")
            vocabulary = {line.rstrip("\r"): index for index, line in enumerate(lines)}
    except Exception as error:  # tokenizers raises bare Exception
        raise WeightsError(f"{source} cannot be read as a {kind}: {str(error).splitlines()[0]}") from error
    missing = [token for token in SPECIAL_TOKENS if token not in vocabulary]
    if missing:
        raise WeightsError(f"{source} is not a BERT vocabulary: it lacks {', '.join(missing)}")
    return vocabulary


@dataclass(frozen=True)
class CaptionTokenizer:
    """Strings -> BERT ids and mask.

    Args:
        bert: transformers' BertTokenizer.
        max_length: tokens of every row, [CLS] and [SEP] included.
        name: origin of the vocabulary, for the identity.
        processed: whether captions go through `process_caption` first (not for LAVIS's BLIP "large").
    """

    bert: Any
    max_length: int
    name: str
    processed: bool = True

    def __call__(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """B strings -> {"input_ids": [B, max_length] int64, "attention_mask": [B, max_length] int64}.

        Every row is padded to `max_length`, so that rows of different calls can be concatenated.
        """
        if not texts:
            empty = torch.zeros(0, self.max_length, dtype=torch.int64)
            return {"input_ids": empty, "attention_mask": empty.clone()}
        if self.processed:
            texts = [process_caption(text, lower=self.bert.do_lower_case) for text in texts]
        how = {"padding": "max_length", "truncation": True, "max_length": self.max_length, "return_tensors": "pt"}
        batch = self.bert(list(texts), **how)  # the Q-Former has no token types
        return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}

    def texts_seen(self, texts: Sequence[str]) -> TextsSeen:
        """Return what a model sees of texts: their first words and pieces."""
        longer = 0
        for text in texts:
            if self.processed:
                text = process_caption(text, lower=self.bert.do_lower_case, most=None)
            if len(self.bert(text)["input_ids"]) > self.max_length:
                longer += 1
        return TextsSeen(self(texts)["input_ids"], longer, self.max_length)

    def pieces(self, ids: Tensor) -> list[list[str]]:
        """[B, S] ids -> their WordPiece strings."""
        return [list(self.bert.convert_ids_to_tokens(row)) for row in ids.tolist()]

    def __len__(self) -> int:
        return len(self.bert)


def make_tokenizer(
    files: Sequence[Path], added: Sequence[str], max_length: int, *, processed: bool = True
) -> CaptionTokenizer:
    """Make a BertTokenizer with LAVIS's added tokens: "[DEC]" (BLIP-2), or "[DEC]" and "[ENC]" (BLIP).

    Each takes the next id after the vocabulary (30522, 30523 for bert-base-uncased), or keeps the one it has there.
    `files` are those of `vocabulary_files`; none: the vocabulary made in code.
    """
    from transformers import BertTokenizer

    vocabulary = read_vocabulary(files[0]) if files else built_in_vocabulary()
    bert = BertTokenizer(vocab=dict(vocabulary), **read_spelling(*files[1:]))
    for token in added:
        if token not in vocabulary:
            bert.add_tokens([token], special_tokens=True)
    return CaptionTokenizer(bert, max_length, files[0].name if files else BUILT_IN, processed)
