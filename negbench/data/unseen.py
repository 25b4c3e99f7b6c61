"""What encoders do not see: texts that are cut, texts and images that get one vector. Counted, to be said."""

from collections import Counter
from collections.abc import Iterable, Sequence

from torch import Tensor

from negbench.contracts import Backbone, SeesTexts, TextsSeen
from negbench.datasets.dataset import Dataset

MOVES_SCORES = False  # only counts


def unseen_texts(backbone: Backbone, parts: Iterable[Dataset]) -> list[str]:
    """Return a line if a backbone cuts texts of some splits, or gives different ones the same vector; else nothing.

    Each text counts once. Backbones that do not tell what they see are taken at their word.
    """
    if not isinstance(backbone, SeesTexts):
        return []
    texts: list[str] = []
    for part in parts:
        texts += [query.text for query in part.queries]
    if not texts:
        return []
    return text_lines(backbone.texts_seen(list(dict.fromkeys(texts))))


def text_lines(texts: TextsSeen) -> list[str]:
    """Return one line about different texts of which an encoder sees too little; nothing if it tells all apart."""
    parts: list[str] = []
    if texts.longer:
        counts = f"{texts.longer:,} of {len(texts.rows):,} texts"
        parts.append(f"{counts} are longer than the {texts.limit:,} tokens that the model reads")
    parts += equal_vectors(texts.rows, "texts")
    return ["; ".join(parts)] if parts else []


def equal_vectors(rows: Tensor, what: str) -> list[str]:
    """Return a line if different texts or images have equal rows, [n, ...]: '8 different texts get one vector'."""
    flat: Sequence[bytes] = [row.tobytes() for row in rows.reshape(len(rows), -1).cpu().contiguous().numpy()]
    repeats = [count for count in Counter(flat).values() if count > 1]
    if not repeats:
        return []
    vectors = "one vector" if len(repeats) == 1 else f"{len(repeats):,} vectors"
    return [f"{sum(repeats):,} different {what} get {vectors}"]
