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
    backbone = {text.partition("=")[0]: text.partition("=")[2] for text in sets}
    data = str(tmp_path / "triplets.jsonl")
    asked = Mine(
        dataset=data,
        backbone="precomputed",
        strategy="top-k:k=4",
        draws=2,
        format="sentence-transformers",
        with_reference=True,
        out=tmp_path / "pairs.jsonl",
        sets=tuple(f"{key}={value}" for key, value in backbone.items() if key.startswith("backbone.")),
    )
    write_negatives(asked)
    return tmp_path / "pairs.jsonl"


def test_anchors_hold_text_and_reference(pairs):
    rows = [json.loads(line) for line in pairs.read_text().splitlines()]
    assert list(rows[0]) == ["anchor", "positive", "negative_1", "negative_2", "score"]
    triplets = [json.loads(line) for line in (pairs.parent / "triplets.jsonl").read_text().splitlines()]
    known = {row["text"]: row for row in triplets}
    for row in rows:
        assert row["anchor"].keys() == {"text", "image"}, row
        query = known[row["anchor"]["text"]]
        assert row["anchor"]["image"] == query["reference"], row
        assert row["positive"] == query["target"], row
        assert query["target"] not in (row["negative_1"], row["negative_2"]), row


def test_their_loss_takes_the_positive_for_the_target(pairs):
    """A model that composes perfectly has no loss; one that gives the reference image has much."""
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.base.modules.input_module import InputModule
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    triplets = [json.loads(line) for line in (pairs.parent / "triplets.jsonl").read_text().splitlines()]
    answers = {(row["text"], row["reference"]): row["target"] for row in triplets}
    names = sorted({row[side] for row in triplets for side in ("reference", "target")})
    place = {name: index for index, name in enumerate(names)}

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
            for each in inputs:
                if not isinstance(each, dict):
                    images.append(each)
                elif self.perfect:
                    images.append(answers[each["text"], each["image"]])
                else:
                    images.append(each["image"])
            return {"row": torch.tensor([place[image] for image in images])}

        def forward(self, features: dict[str, Tensor], **more: Any) -> dict[str, Tensor]:
            return {**features, "sentence_embedding": self.table(features["row"])}

        def save(self, *given: Any, **more: Any) -> None:
            raise NotImplementedError

    rows = [json.loads(line) for line in pairs.read_text().splitlines()]
    seen, batch = set[str](), []
    for row in rows:  # no target is another's negative
        if not {row["positive"], row["negative_1"], row["negative_2"]} & seen and len(batch) < 6:
            seen |= {row["positive"], row["negative_1"], row["negative_2"]}
            batch.append(row)
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
