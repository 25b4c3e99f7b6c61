"""`mine_hard_negatives` of sentence-transformers with any strategy of negbench; needs sentence-transformers, datasets.

    from sentence_transformers_mining import mine_hard_negatives
    dataset = mine_hard_negatives(dataset, model, num_negatives=5, strategy="qure")
    SentenceTransformerTrainer(model, train_dataset=dataset, loss=MultipleNegativesRankingLoss(model)).train()

The result has the format of the original's `output_format="n-tuple"`, which the trainer accepts unchanged. To mine with
the current model, call it before every epoch on the original pairs, with the number of earlier calls as `refresh`.
"""

from __future__ import annotations

from typing import Any

import torch

import negbench


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
        num_negatives: per pair.
        strategy: of negbench; the default `sentence-transformers` takes the same negatives as the original.
        refresh: how many times these pairs were mined before.
        seed: of the draws.
        batch_size: of the encoder.

    Returns:
        Dataset of anchor, positive, negative_1 ... negative_n, highest score first; like the original, it leaves out
        pairs for which the strategy finds fewer than num_negatives.
    """
    from datasets import Dataset

    anchor, positive = anchor_column_name or dataset.column_names[0], positive_column_name or dataset.column_names[1]
    queries, positives = list(dataset[anchor]), list(dataset[positive])
    texts = list(dict.fromkeys([*(corpus or []), *positives]))
    column = {text: number for number, text in enumerate(texts)}
    known: dict[str, list[int]] = {}
    for query, text in zip(queries, positives, strict=True):
        known.setdefault(query, []).append(column[text])
    distinct = list(known)
    encoded = {"batch_size": batch_size, "convert_to_numpy": True}
    place = {query: row for row, query in enumerate(distinct)}
    rows = torch.tensor([place[query] for query in queries])
    made = strategy or negbench.make_strategy("sentence-transformers", num_negatives=num_negatives)
    mined = negbench.Miner(made, draws=num_negatives, seed=seed, refreshes=refresh).refresh(
        torch.as_tensor(model.encode_query(distinct, **encoded))[rows],
        model.encode_document(texts, **encoded),
        [column[text] for text in positives],
        excluded=[known[query] for query in queries],
    )
    enough = (mined.pool_size >= num_negatives) & (mined.fallback == 0)
    order = mined.scores.argsort(dim=1, descending=True)
    negatives = mined.negatives.gather(1, order)[enough].T.tolist()
    kept = enough.nonzero()[:, 0].tolist()
    table = {anchor: [queries[row] for row in kept], positive: [positives[row] for row in kept]}
    table |= {f"negative_{n}": [texts[c] for c in columns] for n, columns in enumerate(negatives, start=1)}
    return Dataset.from_dict(table)
