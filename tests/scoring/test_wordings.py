"""The range over wordings: embeddings of three wordings by hand, precision at 10 of each."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from negbench.benchmarks.triplets import Triplets
from negbench.plugins.registry import build
from negbench.scoring import evaluation


def test_the_range_is_over_all_wordings_of_a_query(tmp_path: Path):
    plain = {"reference": "r", "text": "one", "target": "b", "split": "val"}
    several = {"text": "two", "target": "a0", "relevant": ["a1"], "wordings": ["one", "none"]}
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(plain | several)}\n{json.dumps(plain)}\n")
    (tmp_path / "gallery.txt").write_text("\n".join(f"other{n}" for n in range(20)))
    data = build(Triplets, file=tmp_path / "rows.jsonl", gallery=tmp_path / "gallery.txt", split="val", images=False)
    first = {"two": {"a0", "a1", "b"}, "one": {"a0", "b"}, "none": set()}  # the images that a text finds

    def embed(texts):
        rows = []
        for text in texts:
            rows.append(torch.tensor([float(image in first[text]) for image in data.images]))
        return torch.stack(rows)

    candidates = torch.eye(len(data.images))[:, None]
    split: Any = SimpleNamespace(dataset=data)
    backbone: Any = SimpleNamespace(tokenize=list)
    queries = embed([query.text for query in data.queries])
    wordings = tuple(embed(texts) for texts in evaluation.wordings_of(backbone, split))
    ranks = evaluation.rank_judged(split, evaluation.Embeddings(queries, candidates, wordings=wordings))
    spread = ranks.values["wording_range_at_10"]
    assert spread[0] == pytest.approx(0.2)  # two of ten, one, and none
    assert spread[1].isnan()
    assert data.summarise_mistakes(ranks) == {"wording_range_at_10": pytest.approx(0.2)}
