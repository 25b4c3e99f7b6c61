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
    texts = list(dict.fromkeys(query.text for part in parts for query in part.queries))
    return text_lines(backbone.texts_seen(texts)) if texts else []


def text_lines(seen: TextsSeen) -> list[str]:
    """Return one line about different texts of which an encoder sees too little; nothing if it tells all apart."""
    parts = list[str]()
    if seen.longer:
        counts = f"{seen.longer:,} of {len(seen.rows):,} texts"
        parts.append(f"{counts} are longer than the {seen.limit:,} tokens that the model reads")
    equal = equal_vectors(seen.rows, "texts")
    return ["; ".join([*parts, *equal])] if parts or equal else []


def equal_vectors(rows: Tensor, what: str) -> list[str]:
    """Return a line if different texts or images have equal rows, [n, ...]: '8 different texts get one vector'."""
    flat: Sequence[bytes] = [row.tobytes() for row in rows.reshape(len(rows), -1).cpu().contiguous().numpy()]
    shared = [count for count in Counter(flat).values() if count > 1]
    if not shared:
        return []
    vectors = "one vector" if len(shared) == 1 else f"{len(shared):,} vectors"
    return [f"{sum(shared):,} different {what} get {vectors}"]
