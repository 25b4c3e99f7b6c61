import importlib.util
from typing import Any

import numpy as np
import pytest
import torch

import negbench

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("datasets", "sentence_transformers")),
    reason="sentence-transformers or datasets is not installed: pip install '.[dev]'",
)

OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_negatives": 5, "range_min": 3},
    {"range_min": 2, "range_max": 30, "relative_margin": 0.05},
    {"absolute_margin": 0.1, "max_score": 0.5, "num_negatives": 4},
    {"range_max": 40, "min_score": 0.3, "absolute_margin": 0.0},
    {"max_score": 0.4, "range_max": 9},
]


class _Vectors:
    """Stand-in model for `mine_hard_negatives`; each text names a row of a table."""

    def __init__(self, width: int, count: int, pairs: int) -> None:
        random = np.random.default_rng(0)
        documents = random.normal(size=(count, width)).astype(np.float32)
        queries = documents[np.arange(pairs) % count] + random.normal(size=(pairs, width)).astype(np.float32)
        self.table = {f"d{n}": row for n, row in enumerate(documents)} | {f"q{n}": row for n, row in enumerate(queries)}
        self.device = torch.device("cpu")

    def _encode(self, texts: list[str], **_: Any) -> Any:
        vectors = np.stack([self.table[text] for text in texts])
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    encode_query = encode_document = _encode

    def similarity(self, a: Any, b: Any) -> torch.Tensor:
        return torch.as_tensor(a) @ torch.as_tensor(b).T

    def similarity_pairwise(self, a: Any, b: Any) -> torch.Tensor:
        return (torch.as_tensor(a) * torch.as_tensor(b)).sum(1)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("anchors", [200, 90], ids=["a positive each", "several positives"])
def test_same_rows_as_the_original(example, options, anchors):
    """Anchors with one to four positives, near and far, among other rows; some pairs are repeated."""
    import sentence_transformers as st
    from datasets import Dataset

    pairs_of_numbers = [(n % anchors, (n * 7 if n >= anchors else n) % 150) for n in range(200)]
    if anchors < 200:
        pairs_of_numbers += pairs_of_numbers[:9]
    pairs = {"anchor": [f"q{q}" for q, _ in pairs_of_numbers], "positive": [f"d{d}" for _, d in pairs_of_numbers]}
    model = _Vectors(16, 150, 200)
    dataset = Dataset.from_dict(pairs)
    original = st.util.mine_hard_negatives(dataset, model, output_format="n-tuple", verbose=False, **options)
    mined = example("sentence_transformers_mining").mine_hard_negatives(
        dataset,
        model,
        strategy=negbench.make_strategy("sentence-transformers", **options),
        num_negatives=options.get("num_negatives", 3),
    )
    assert mined.to_dict() == original.to_dict()
    assert len(mined) > 10


def test_several_positives_are_never_drawn(example):
    from datasets import Dataset

    model = _Vectors(8, 20, 20)
    pairs = Dataset.from_dict({"q": ["q1", "q1", "q2"], "d": ["d1", "d2", "d2"]})
    corpus = [f"d{n}" for n in range(20)]
    mined = example("sentence_transformers_mining").mine_hard_negatives(
        pairs, model, corpus=corpus, num_negatives=15, strategy="all-corpus"
    )
    assert mined.column_names == ["q", "d", *(f"negative_{n}" for n in range(1, 16))]
    assert len(mined) == 3
    for row in mined:
        negatives = {row[f"negative_{n}"] for n in range(1, 16)}
        positives = {"d1", "d2"} if row["q"] == "q1" else {"d2"}
        assert len(negatives) == 15, row
        assert not negatives & positives, row
