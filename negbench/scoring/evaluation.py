"""Score a model and the one-modality baselines on a split, by the benchmark's own protocol."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from negbench.contracts import Backbone
from negbench.data.scene import EMBED_BATCH, Features, Split, Tokens, batches
from negbench.datasets.dataset import QueryRanks, ScoreBlock, Top
from negbench.metrics.equal_rows import Copies, keys_of
from negbench.metrics.mistakes import CUT
from negbench.metrics.parts import put
from negbench.scoring.tiles import Corpus, tiled_relevance


@dataclass(frozen=True)
class Embeddings:
    """A model's view of a split: `queries` [Q, D] and `candidates` [N, T, D], unit norm, in the split's order."""

    queries: Tensor
    candidates: Tensor


@torch.inference_mode()
def embed_candidates(backbone: Backbone, scene: Features, rows: Tensor, batch: int = EMBED_BATCH) -> Tensor:
    """[N, T, D] candidate tokens of the images in these feature rows; images with the same features share theirs."""
    distinct, place = rows.unique(return_inverse=True)
    if len(distinct) < len(rows):
        return embed_candidates(backbone, scene, distinct, batch)[place.to(backbone.device)]
    tables, keys = dict[str, Tensor](), list[Tensor]()
    with backbone.evaluating():
        for chosen in batches(len(rows), batch):
            features = scene.features(backbone, rows[chosen])
            put(tables, {"tokens": backbone.candidates(features).float()}, chosen, len(rows))
            keys.append(keys_of(features))
        copies = Copies.by_key(torch.cat(keys), lambda some: scene.features(backbone, rows[some.cpu()]))
    return copies.level(tables["tokens"][None])[0]


@torch.inference_mode()
def embed_queries(
    backbone: Backbone, scene: Features, split: Split, tokens: Tokens | None = None, batch: int = EMBED_BATCH
) -> Tensor:
    """[Q, D] composed query embeddings; `tokens` replaces the split's own texts."""
    texts = split.texts(backbone) if tokens is None else tokens
    tables, device = dict[str, Tensor](), backbone.device
    with backbone.evaluating():
        for chosen in batches(len(split.references), batch):
            features = scene.features(backbone, split.references[chosen])
            own = {name: value[chosen].to(device) for name, value in texts.items()}
            put(tables, {"queries": backbone.queries(features, own).float()}, chosen, len(split.references))
    return tables["queries"]


def embed(backbone: Backbone, scene: Features, split: Split) -> Embeddings:
    """Embed the queries and candidates of a split."""
    return Embeddings(embed_queries(backbone, scene, split), embed_candidates(backbone, scene, split.images))


def block_scorer(queries: Tensor, candidates: Tensor) -> ScoreBlock:
    """Return a function that scores blocks of [Q, D] queries and [N, T, D] candidates, for `Dataset.rank` and `top`."""
    last = list[tuple[Tensor, Corpus]]()  # of a gallery, for all its blocks

    def score_block(rows: Tensor, columns: Tensor) -> Tensor:
        if not last or not torch.equal(last[0][0], columns):
            last[:] = [(columns, Corpus.of(candidates, columns))]
        return tiled_relevance(queries[rows.to(queries.device)], last[0][1]).cpu()

    return score_block


def rank(split: Split, queries: Tensor, candidates: Tensor) -> QueryRanks:
    """Compute per-query ranks; scores are computed block by block, never as a whole matrix."""
    return split.dataset.rank(block_scorer(queries, candidates))


def rank_judged(backbone: Backbone, scene: Features, split: Split, embeddings: Embeddings) -> QueryRanks:
    """Compute per-query ranks, mistakes, and where queries have further wordings, `wording_range_at_10`.

    That is the largest minus the smallest precision at 10 over a query's wordings, the usual text being one: the
    linguistic sensitivity of PinPoint's code. It is nan for a query with one wording.
    """
    scores, asked = block_scorer(embeddings.queries, embeddings.candidates), split.dataset.queries
    ranks = split.dataset.with_mistakes(split.dataset.rank(scores), scores)
    most = max(len(query.wordings) for query in asked)
    if not most:
        return ranks
    table = [_precision(ranks)]
    for number in range(most):
        tokens = backbone.tokenize([[*query.wordings, *[query.text] * most][number] for query in asked])
        table.append(_precision(rank(split, embed_queries(backbone, scene, split, tokens), embeddings.candidates)))
    highest, lowest = torch.stack(table).amax(0), torch.stack(table).amin(0)
    spread = (highest - lowest).masked_fill(torch.tensor([not query.wordings for query in asked]), torch.nan)
    return replace(ranks, values={**ranks.values, f"wording_range_at_{CUT}": spread})


def _precision(ranks: QueryRanks) -> Tensor:
    """[Q] float64, the relevant share of the first 10."""
    hits = [int((ranks.relevant_ranks.row(row) <= CUT).sum()) for row in range(len(ranks))]
    return torch.tensor(hits, dtype=torch.float64) / CUT


def top_k(split: Split, queries: Tensor, candidates: Tensor, k: int) -> Top:
    """Return columns and scores of each query's k best images by the data set's own rules, block by block as `rank`."""
    return split.dataset.top(block_scorer(queries, candidates), k)


def measure(backbone: Backbone, scene: Features, split: Split) -> dict[str, float]:
    """Compute the metrics of the split's benchmark for the current model."""
    embeddings = embed(backbone, scene, split)
    return split.dataset.measure(block_scorer(embeddings.queries, embeddings.candidates))


@torch.inference_mode()
def embed_references(backbone: Backbone, scene: Features, split: Split) -> Tensor:
    """[Q, D] each query's reference image alone: the normalised mean of its own candidate tokens."""
    unique, inverse = torch.unique(split.references, return_inverse=True)
    images = functional.normalize(embed_candidates(backbone, scene, unique).mean(1), dim=-1)
    return images[inverse.to(images.device)]


@torch.inference_mode()
def embed_texts(backbone: Backbone, split: Split) -> Tensor:
    """[Q, D] each query's text alone."""
    device = backbone.device
    with backbone.evaluating():
        parts = [
            backbone.text_queries({name: value[chosen].to(device) for name, value in split.texts(backbone).items()})
            for chosen in batches(len(split.references), EMBED_BATCH)
        ]
    return torch.cat(parts).float()


def one_modality_ranks(backbone: Backbone, scene: Features, split: Split) -> dict[str, QueryRanks]:
    """Rank by the reference image alone and by the text alone: baselines without composition."""
    candidates = embed_candidates(backbone, scene, split.images)
    images, texts = embed_references(backbone, scene, split), embed_texts(backbone, split)
    return {"image_only": rank(split, images, candidates), "text_only": rank(split, texts, candidates)}
