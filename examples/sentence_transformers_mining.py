"""`mine_hard_negatives` of sentence-transformers with any strategy of negbench; needs sentence-transformers, datasets.

    from sentence_transformers_mining import mine_hard_negatives
    dataset = mine_hard_negatives(dataset, model, num_negatives=5, strategy="qure")
    SentenceTransformerTrainer(model, train_dataset=dataset, loss=MultipleNegativesRankingLoss(model)).train()

The result has the format of the original's `output_format="n-tuple"`, which the trainer accepts unchanged. To mine with
the current model, call it before every epoch on the original pairs, with the number of earlier calls as `refresh`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import negbench
from negbench.strategies.sentence_transformers import SentenceTransformers


def mine_hard_negatives(
    dataset: Any,
    model: Any,
    *,
    anchor_column_name: str | None = None,
    positive_column_name: str | None = None,
    corpus: list[str] | None = None,
    num_negatives: int = 3,
    strategy: str | negbench.Strategy | None = None,
    refresh: int = 0,
    seed: int = 0,
    batch_size: int = 32,
) -> Any:
    """Add negatives to pairs of anchor and positive.

    Args:
        dataset: `datasets.Dataset`; rows with the same anchor give its positives, none of which is drawn.
        model: SentenceTransformer.
        anchor_column_name, positive_column_name: default to the first two columns.
        corpus: further texts to draw from, besides all positives.
        num_negatives: per anchor; its positives share them.
        strategy: of negbench, with an anchor's lowest-scored positive as its target; the default
            `sentence-transformers` takes the same negatives as the original.
        refresh: how many times these pairs were mined before.
        seed: of the draws.
        batch_size: of the encoder.

    Returns:
        Dataset of anchor, positive, negative_1 ... negative_n, highest score first. Like the original's, its rows are
        grouped by anchor, without repeated pairs, and without anchors that have fewer than num_negatives.
    """
    from datasets import Dataset

    anchor = anchor_column_name or dataset.column_names[0]
    positive = positive_column_name or dataset.column_names[1]
    queries = list(dataset[anchor])
    positives = list(dataset[positive])
    texts = list(dict.fromkeys([*(corpus or []), *positives]))
    column = {text: number for number, text in enumerate(texts)}
    columns_of: dict[str, dict[int, None]] = {}  # anchor -> columns of its positives, in order
    for query, text in zip(queries, positives, strict=True):
        columns_of.setdefault(query, {})[column[text]] = None
    encode_options = {"batch_size": batch_size, "normalize_embeddings": True, "convert_to_tensor": True}
    anchor_vectors = model.encode_query(list(columns_of), **encode_options)
    text_vectors = model.encode_document(texts, **encode_options)
    targets = []
    for vector, columns in zip(anchor_vectors, columns_of.values(), strict=True):
        scores = {number: float(vector @ text_vectors[number]) for number in columns}
        targets.append(min(scores, key=scores.__getitem__))

    rule = negbench.Miner(strategy or f"sentence-transformers:num_negatives={num_negatives}").strategy
    excluded: list[list[int]] | None = [list(columns) for columns in columns_of.values()]
    skip = 0
    draws = num_negatives
    if isinstance(rule, SentenceTransformers) and rule.sampling_strategy == "top":
        # the original's window has room for as many positives as any anchor has, and loses these after the margins
        most = max(Counter(queries).values())
        draws = rule.window + (most - 1) * (2 if rule.range_max is None else 1)
        skip = rule.range_min
        excluded = None
        rule = replace(rule, range_min=0, range_max=draws, num_negatives=draws)
    miner = negbench.Miner(rule, draws=draws, seed=seed, refreshes=refresh)
    mined = miner.refresh(anchor_vectors, text_vectors, targets, excluded=excluded)

    names = [anchor, positive, *(f"negative_{number}" for number in range(1, num_negatives + 1))]
    table: dict[str, list[str]] = {name: [] for name in names}
    for row, (query, columns) in enumerate(columns_of.items()):
        score_of = dict(zip(mined.negatives[row].tolist(), mined.scores[row].tolist(), strict=True))
        others = sorted(score_of.keys() - columns.keys())
        ranked = sorted(others, key=lambda number: -score_of[number])
        negatives = ranked[skip : skip + num_negatives]
        if len(negatives) < num_negatives or mined.fallback[row]:
            continue
        for number in columns:
            values = [query, *(texts[index] for index in (number, *negatives))]
            for name, value in zip(names, values, strict=True):
                table[name].append(value)
    return Dataset.from_dict(table)
