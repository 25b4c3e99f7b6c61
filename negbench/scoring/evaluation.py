"""Score a model and the one-modality baselines on a split, by the benchmark's own protocol."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from negbench.contracts import Backbone
from negbench.data.scene import Features, Split, Tokens, batches
from negbench.datasets.dataset import QueryRanks, ScoreBlock, Top
from negbench.machine.team import Team
from negbench.metrics.equal_rows import Copies, keys_of
from negbench.metrics.fixed import CUT
from negbench.metrics.parts import put
from negbench.scoring.tiles import Corpus, tiled_relevance


@dataclass(frozen=True)
class Embeddings:
    """A model's view of a split of Q queries and N images, unit norm, in the split's order.

    Attributes:
        queries: [Q, D].
        candidates: [N, T, D].
        references: [Q, D], each query's reference image alone, where a trained tower encoded it; else None.
        wordings: [Q, D] for each further wording of the texts, if they were asked for (`wordings_of`).
    """

    queries: Tensor
    candidates: Tensor
    references: Tensor | None = None
    wordings: tuple[Tensor, ...] = ()


@torch.inference_mode()
def embed_candidates(backbone: Backbone, scene: Features, rows: Tensor, batch: int | None = None) -> Tensor:
    """[N, T, D] candidate tokens of the images in these feature rows; images with the same features share theirs."""
    distinct, token_row = rows.unique(return_inverse=True)
    if len(distinct) < len(rows):
        return embed_candidates(backbone, scene, distinct, batch)[token_row.to(backbone.device)]
    tables: dict[str, Tensor] = {}
    blocks = _blocks(scene, len(rows), batch or _images_at_once(backbone, scene, rows), "candidates", rows, batch)
    with backbone.evaluating():
        for block, features in scene.blocks(backbone, rows, blocks.local):
            part = {"tokens": backbone.candidates(features).float(), "keys": keys_of(features)}
            put(tables, part, block, len(rows))
        blocks.merge(tables)

        def features_of(some: Tensor) -> Tensor:
            return scene.features(backbone, rows[some.cpu()])

        copies = Copies.by_key(tables["keys"], features_of)
    return copies.level(tables["tokens"][None])[0]


@torch.inference_mode()
def embed_queries(backbone: Backbone, scene: Features, split: Split, tokens: Tokens | None = None) -> Tensor:
    """[Q, D] composed query embeddings; `tokens` replaces the split's own texts."""
    texts = split.texts(backbone) if tokens is None else tokens
    if not scene.frozen:
        return _by_picture(backbone, scene, split.references, split.references[:0], [texts]).queries
    return _by_query(backbone, scene, split.references, texts)


def _by_query(backbone: Backbone, scene: Features, references: Tensor, texts: Tokens) -> Tensor:
    """Compose queries from stored features of their references, in the queries' order."""
    tables: dict[str, Tensor] = {}
    device = backbone.device
    count = len(references)
    at_once = _queries_at_once(backbone, scene, references, texts)
    blocks = _blocks(scene, count, at_once, "queries", references, dict(texts))
    with backbone.evaluating():
        for block, features in scene.blocks(backbone, references, blocks.local):
            texts_of_block = {name: value[block].to(device) for name, value in texts.items()}
            put(tables, {"queries": backbone.queries(features, texts_of_block).float()}, block, count)
        blocks.merge(tables)
    return tables["queries"]


def embed(
    backbone: Backbone, scene: Features, split: Split, *, wordings: bool = False, candidates: Tensor | None = None
) -> Embeddings:
    """Embed the queries and candidates of a split.

    A trained tower encodes each picture once, whether it is a candidate, the reference of some queries, or both.

    Args:
        backbone: computes the embeddings.
        scene: its features or pictures.
        split: its queries and images.
        wordings: also what further wordings of the texts give.
        candidates: [N, T, D], if they are known, as another split has the same images; of stored features only.
    """
    texts = [split.texts(backbone)]
    if wordings:
        texts += wordings_of(backbone, split)
    if not scene.frozen:
        return _by_picture(backbone, scene, split.references, split.images, texts)
    queries, *others = [embed_queries(backbone, scene, split, tokens) for tokens in texts]
    if candidates is None:
        candidates = embed_candidates(backbone, scene, split.images)
    return Embeddings(queries, candidates, wordings=tuple(others))


def embed_together(backbone: Backbone, scene: Features, splits: Sequence[Split]) -> list[Embeddings]:
    """Embed several splits that share pictures with a trained tower, which encodes each picture once for all of them.

    Args:
        backbone: trains its tower.
        scene: its pictures.
        splits: of the scene; without further wordings.
    """
    tokens = [split.texts(backbone) for split in splits]
    texts = {}
    for name in tokens[0]:
        texts[name] = torch.cat([of_split[name] for of_split in tokens])
    references = torch.cat([split.references for split in splits])
    images = torch.cat([split.images for split in splits])
    together = _by_picture(backbone, scene, references, images, [texts])
    assert together.references is not None
    query_counts = [len(split.references) for split in splits]
    image_counts = [len(split.images) for split in splits]
    parts = zip(
        together.queries.split(query_counts),
        together.candidates.split(image_counts),
        together.references.split(query_counts),
        strict=True,
    )
    return [Embeddings(queries, candidates, alone) for queries, candidates, alone in parts]


@torch.inference_mode()
def _by_picture(
    backbone: Backbone, scene: Features, references: Tensor, images: Tensor, texts: Sequence[Tokens]
) -> Embeddings:
    """Embed candidates and queries picture by picture: with each block of pictures the queries that refer to them.

    Args:
        backbone: trains its tower.
        scene: its pictures.
        references: [Q] feature rows of the queries' references.
        images: [N] feature rows of the candidates.
        texts: tokenised texts of the queries, and of each further wording.
    """
    device = backbone.device
    count = len(references)
    pictures = torch.cat([images, references]).unique()
    picture_of_query = torch.searchsorted(pictures, references)  # of each query's reference among the pictures
    by_picture = picture_of_query.argsort(stable=True)
    tables: dict[str, Tensor] = {}
    queries: dict[str, Tensor] = {}
    at_once = _queries_at_once(backbone, scene, references, texts[0])
    sent = (references, images, [dict(text) for text in texts])
    blocks = _blocks(scene, len(pictures), _images_at_once(backbone, scene, pictures), "pictures", *sent)
    with backbone.evaluating():
        for block, features in scene.blocks(backbone, pictures, blocks.local):
            part = {"tokens": backbone.candidates(features).float(), "keys": keys_of(features)}
            put(tables, part, block, len(pictures))
            edges = torch.stack([block[0], block[-1] + 1])
            first, last = torch.searchsorted(picture_of_query[by_picture], edges).tolist()
            for rows in by_picture[first:last].split(at_once):
                reference = features[(picture_of_query[rows] - block[0]).to(device)]
                for number, tokens in enumerate(texts):
                    texts_of_block = {name: value[rows].to(device) for name, value in tokens.items()}
                    put(queries, {f"{number}": backbone.queries(reference, texts_of_block).float()}, rows, count)
        width = tables["tokens"].shape[-1]
        for number in range(len(texts)):  # a process may have pictures that no query refers to
            queries.setdefault(f"{number}", tables["tokens"].new_zeros(count, width))
        blocks.merge(tables)
        blocks.merge(queries, picture_of_query)

        def features_of(rows: Tensor) -> Tensor:
            return scene.features(backbone, pictures[rows.cpu()])

        copies = Copies.by_key(tables["keys"], features_of)
    levelled = copies.level(tables["tokens"][None])[0]
    alone = functional.normalize(levelled.mean(1), dim=-1)[picture_of_query.to(device)]
    candidates = levelled[torch.searchsorted(pictures, images).to(device)]
    composed = [queries[f"{number}"] for number in range(len(texts))]
    return Embeddings(composed[0], candidates, alone, tuple(composed[1:]))


def wordings_of(backbone: Backbone, split: Split) -> list[Tokens]:
    """Return further wordings of a split's texts, tokenised: as many as some query has, the usual text for others."""
    queries = split.dataset.queries
    count = max(len(query.wordings) for query in queries)
    tokens = []
    for number in range(count):
        texts = [query.wordings[number] if number < len(query.wordings) else query.text for query in queries]
        tokens.append(backbone.tokenize(texts))
    return tokens


# --- blocks of several processes -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Blocks:
    """Blocks of rows that are embedded at a time, all of them, and those of this process."""

    every: Sequence[Tensor]
    local: Sequence[Tensor]
    team: Team

    def merge(self, tables: dict[str, Tensor], block_rows: Tensor | None = None) -> None:
        """Put the other processes' rows into the tables; `block_rows`: the row in the blocks of each row of a table."""
        if len(self.local) == len(self.every):
            return
        rows = torch.cat(list(self.local))
        if block_rows is not None:
            rows = torch.isin(block_rows, rows).nonzero().squeeze(1)
        self.team.merge(tables, rows)


def _blocks(scene: Features, count: int, size: int, what: str, *sent: Any) -> _Blocks:
    """Return the blocks of so many rows; where they are divided, announce to the helpers what they are to embed."""
    every = list(batches(count, size))
    if not scene.team.divides(every):
        return _Blocks(every, every, scene.team)
    scene.team.announce("embed", what, *sent)
    return _Blocks(every, scene.team.blocks_of_process(every), scene.team)


@torch.inference_mode()
def help_embed(backbone: Backbone, scene: Features, what: str, *sent: Any) -> None:
    """Embed, in a helper, what the first process has announced."""
    if what == "candidates":
        embed_candidates(backbone, scene, *sent)
    elif what == "queries":
        _by_query(backbone, scene, *sent)
    else:
        _by_picture(backbone, scene, *sent)


# --- how much at once ----------------------------------------------------------------------------------------------


def _images_at_once(backbone: Backbone, scene: Features, rows: Tensor) -> int:
    """Return how many of the images in these feature rows are embedded at once, a trained tower's work included."""

    def compute(some: Tensor) -> Tensor:
        return backbone.candidates(scene.features(backbone, rows[some]))

    with backbone.evaluating():
        return scene.at_once("images", compute, len(rows))


def _queries_at_once(backbone: Backbone, scene: Features, references: Tensor, texts: Tokens) -> int:
    """Return how many queries are embedded at once, a trained tower's work included."""

    def compute(some: Tensor) -> Tensor:
        features = scene.features(backbone, references[some])
        return backbone.queries(features, {name: value[some].to(backbone.device) for name, value in texts.items()})

    with backbone.evaluating():
        return scene.at_once("queries", compute, len(references))


def _texts_at_once(backbone: Backbone, scene: Features, split: Split) -> int:
    """Return how many texts are embedded alone at once."""
    texts = split.texts(backbone)

    def compute(some: Tensor) -> Tensor:
        return backbone.text_queries({name: value[some].to(backbone.device) for name, value in texts.items()})

    with backbone.evaluating():
        return scene.at_once("texts", compute, len(split.references))


# --- ranks -----------------------------------------------------------------------------------------------------------


def block_scorer(queries: Tensor, candidates: Tensor) -> ScoreBlock:
    """Return a function that scores blocks of [Q, D] queries and [N, T, D] candidates, for `Dataset.rank` and `top`."""
    last: list[tuple[Tensor, Corpus]] = []  # of a gallery, for all its blocks

    def score_block(rows: Tensor, columns: Tensor) -> Tensor:
        if not last or not torch.equal(last[0][0], columns):
            last[:] = [(columns, Corpus.of(candidates, columns))]
        return tiled_relevance(queries[rows.to(queries.device)], last[0][1]).cpu()

    return score_block


def rank(split: Split, queries: Tensor, candidates: Tensor) -> QueryRanks:
    """Compute per-query ranks; scores are computed block by block, never as a whole matrix."""
    return split.dataset.rank(block_scorer(queries, candidates))


def rank_judged(split: Split, embeddings: Embeddings) -> QueryRanks:
    """Compute per-query ranks, mistakes, and where queries have further wordings, `wording_range_at_10`.

    That is the largest minus the smallest precision at 10 over a query's wordings, the usual text being one: the
    linguistic sensitivity of PinPoint's code. It is nan for a query with one wording.
    """
    scores = block_scorer(embeddings.queries, embeddings.candidates)
    ranks = split.dataset.with_mistakes(split.dataset.rank(scores), scores)
    if not embeddings.wordings:
        return ranks
    table = [_precision(ranks)]
    for queries in embeddings.wordings:
        table.append(_precision(rank(split, queries, embeddings.candidates)))
    highest = torch.stack(table).amax(0)
    lowest = torch.stack(table).amin(0)
    one_wording = torch.tensor([not query.wordings for query in split.dataset.queries])
    spread = (highest - lowest).masked_fill(one_wording, torch.nan)
    return replace(ranks, values={**ranks.values, f"wording_range_at_{CUT}": spread})


def _precision(ranks: QueryRanks) -> Tensor:
    """[Q] float64, the relevant share of the first 10."""
    hits = [int((ranks.relevant_ranks.row(row) <= CUT).sum()) for row in range(len(ranks))]
    return torch.tensor(hits, dtype=torch.float64) / CUT


def top_k(split: Split, queries: Tensor, candidates: Tensor, k: int) -> Top:
    """Return columns and scores of each query's k best images by the data set's own rules, block by block as `rank`."""
    return split.dataset.top(block_scorer(queries, candidates), k)


def measure(split: Split, embeddings: Embeddings) -> dict[str, float]:
    """Compute the metrics of the split's benchmark."""
    return split.dataset.measure(block_scorer(embeddings.queries, embeddings.candidates))


@torch.inference_mode()
def embed_references(backbone: Backbone, scene: Features, split: Split) -> Tensor:
    """[Q, D] each query's reference image alone: the normalised mean of its own candidate tokens."""
    unique, inverse = torch.unique(split.references, return_inverse=True)
    images = functional.normalize(embed_candidates(backbone, scene, unique).mean(1), dim=-1)
    return images[inverse.to(images.device)]


def references_of(backbone: Backbone, scene: Features, split: Split, embeddings: Embeddings) -> Tensor:
    """Return `embed_references` of a split, from its embeddings if they hold it."""
    if embeddings.references is not None:
        return embeddings.references
    return embed_references(backbone, scene, split)


@torch.inference_mode()
def embed_texts(backbone: Backbone, scene: Features, split: Split) -> Tensor:
    """[Q, D] each query's text alone."""
    device = backbone.device
    texts = split.texts(backbone)
    parts = []
    with backbone.evaluating():
        for rows in batches(len(split.references), _texts_at_once(backbone, scene, split)):
            texts_of_block = {name: value[rows].to(device) for name, value in texts.items()}
            parts.append(backbone.text_queries(texts_of_block))
    return torch.cat(parts).float()


def one_modality_ranks(
    backbone: Backbone, scene: Features, split: Split, embeddings: Embeddings
) -> dict[str, QueryRanks]:
    """Rank by the reference image alone and by the text alone: baselines without composition."""
    images = references_of(backbone, scene, split, embeddings)
    texts = embed_texts(backbone, scene, split)
    return {
        "image_only": rank(split, images, embeddings.candidates),
        "text_only": rank(split, texts, embeddings.candidates),
    }
