"""The range over wordings: embeddings of three wordings by hand, precision at 10 of each."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from negbench.benchmarks.triplets import Triplets
from negbench.plugins.registry import build
from negbench.scoring import evaluation


def test_the_range_is_over_all_wordings_of_a_query(tmp_path: Path, monkeypatch):
    plain = {"reference": "r", "text": "one", "target": "b", "split": "val"}
    several = {"text": "two", "target": "a0", "relevant": ["a1"], "wordings": ["one", "none"]}
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(plain | several)}\n{json.dumps(plain)}\n")
    (tmp_path / "gallery.txt").write_text("\n".join(f"other{n}" for n in range(20)))
    data = build(Triplets, file=tmp_path / "rows.jsonl", gallery=tmp_path / "gallery.txt", split="val", images=False)
    first = {"two": {"a0", "a1", "b"}, "one": {"a0", "b"}, "none": set()}  # the images that a text finds

    def embed(backbone, scene, split, tokens):
        return torch.stack([torch.tensor([float(image in first[text]) for image in data.images]) for text in tokens])

    monkeypatch.setattr(evaluation, "embed_queries", embed)
    candidates = torch.eye(len(data.images))[:, None]
    split, backbone = SimpleNamespace(dataset=data), SimpleNamespace(tokenize=list)
    own = embed(None, None, None, [query.text for query in data.queries])
    ranks = evaluation.rank_judged(backbone, None, split, evaluation.Embeddings(own, candidates))
    spread = ranks.values["wording_range_at_10"]
    assert spread[0] == pytest.approx(0.2)  # two of ten, one, and none
    assert spread[1].isnan()
    assert data.summarise_mistakes(ranks) == {"wording_range_at_10": pytest.approx(0.2)}
