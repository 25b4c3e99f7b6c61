"""`mine --format sentence-transformers --with-reference`: their loss takes the rows, and the positive is the target."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from negbench.errors import NegbenchError
from negbench.own.negatives import write_negatives
from negbench.settings.command_options import Mine
from tests.vector_files import write_vectors


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    sets = write_vectors(tmp_path)
    options = Mine(
        dataset=str(tmp_path / "triplets.jsonl"),
        backbone="precomputed",
        strategy="top-k:k=4",
        draws=2,
        format="sentence-transformers",
        with_reference=True,
        out=tmp_path / "pairs.jsonl",
        sets=tuple(text for text in sets if text.startswith("backbone.")),
    )
    write_negatives(options)
    return tmp_path / "pairs.jsonl"


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_anchors_hold_text_and_reference(pairs):
    rows = read_lines(pairs)
    assert list(rows[0]) == ["anchor", "positive", "negative_1", "negative_2", "score"]
    queries = {row["text"]: row for row in read_lines(pairs.parent / "triplets.jsonl")}
    for row in rows:
        assert row["anchor"].keys() == {"text", "image"}, row
        query = queries[row["anchor"]["text"]]
        assert row["anchor"]["image"] == query["reference"], row
        assert row["positive"] == query["target"], row
        assert query["target"] not in (row["negative_1"], row["negative_2"]), row


def rows_without_common_images(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of which no target is another's negative."""
    seen = set[str]()
    apart = []
    for row in rows:
        images = {row["positive"], row["negative_1"], row["negative_2"]}
        if not images & seen:
            seen |= images
            apart.append(row)
    return apart


def test_their_loss_takes_the_positive_for_the_target(pairs):
    """A model that composes perfectly has no loss; one that gives the reference image has much."""
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.base.modules.input_module import InputModule
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    triplets = read_lines(pairs.parent / "triplets.jsonl")
    answers = {(row["text"], row["reference"]): row["target"] for row in triplets}
    names = sorted({row["reference"] for row in triplets} | {row["target"] for row in triplets})

    class Composes(InputModule):
        def __init__(self, perfect: bool) -> None:
            super().__init__()
            self.perfect = perfect
            self.table = nn.Embedding.from_pretrained(torch.eye(len(names)))

        @property
        def modalities(self) -> list[Any]:
            return ["text", "image", ("image", "text"), ("text", "image")]

        def preprocess(self, inputs: Any, prompt: str | None = None, **more: Any) -> dict[str, Tensor]:
            images = []
            for image_or_query in inputs:
                if not isinstance(image_or_query, dict):
                    images.append(image_or_query)
                elif self.perfect:
                    images.append(answers[image_or_query["text"], image_or_query["image"]])
                else:
                    images.append(image_or_query["image"])
            return {"row": torch.tensor([names.index(image) for image in images])}

        def forward(self, features: dict[str, Tensor], **more: Any) -> dict[str, Tensor]:
            return {**features, "sentence_embedding": self.table(features["row"])}

        def save(self, *args: Any, **options: Any) -> None:
            raise NotImplementedError

    batch = rows_without_common_images(read_lines(pairs))[:6]
    assert len(batch) > 1
    losses = {}
    for perfect in (True, False):
        model = library.SentenceTransformer(modules=[Composes(perfect)], device="cpu")
        columns = ("anchor", "positive", "negative_1", "negative_2")
        features = [model.preprocess([row[column] for row in batch]) for column in columns]
        losses[perfect] = float(MultipleNegativesRankingLoss(model)(features, None))
    assert losses[True] < 0.01
    assert losses[False] > 1


@pytest.mark.parametrize("format", ["triplets", "parquet", None])
def test_other_formats_refuse_the_option(tmp_path, format):
    with pytest.raises((NegbenchError, ValueError), match="--with-reference needs --format sentence-transformers"):
        Mine(dataset="synthetic", strategy="top-k", out=tmp_path / "o.parquet", format=format, with_reference=True)
