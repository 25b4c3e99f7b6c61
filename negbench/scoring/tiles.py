"""Scores of queries and images, in tiles of a fixed shape.

A matrix product may round differently for another number of rows, and at its ragged edges. Its tiles therefore depend
on the corpus alone and have full edges, so that on one machine with one number of threads a score is the same for any
block size and any split of the queries.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from negbench.metrics.equal_rows import Copies

# A tile of scores: 256 queries (fewer if the corpus is so large that a block must be smaller, or so small that queries
# are few, too: less padding) against images with 2^14 tokens together. On a CPU 2^10 tokens, if scores are copied to
# their columns in a second step: what such a product reads and writes fits into the L2 cache.
_TILE_QUERIES = 256
_FEW_QUERIES = 128
_FEW_IMAGES = 2**12
_TILE_TOKENS = 2**14
_CACHED_TOKENS = 2**10
_COLUMNS = 16  # a tile's number of columns is a multiple of it, padded with zeros if need be
BLOCK_ENTRIES = 2**27  # a block shrinks where [rows, N] would exceed this: 512 MiB of float32
_COPY_BYTES = 2**27  # a corpus of scattered rows is copied up to this size, else gathered tile by tile


def tile_rows(images: int) -> int:
    """Return the queries per tile, from the corpus size alone: a power of two within a block."""
    limit = _TILE_QUERIES
    if images <= _FEW_IMAGES:
        limit = min(limit, _FEW_QUERIES)
    rows_of_block = max(1, BLOCK_ENTRIES // max(1, images))
    power_of_two = 1 << (rows_of_block.bit_length() - 1)
    return min(limit, power_of_two)


class Corpus(NamedTuple):
    """Images to score: `tokens` [n, T, D] of any precision, or those at `gathered` [n] int64, and their `copies`."""

    tokens: Tensor
    gathered: Tensor | None
    copies: Copies

    @classmethod
    def of(cls, table: Tensor, rows: Tensor) -> Corpus:
        """Select `table[rows]`: as a view if the rows are contiguous, as a copy unless it would be large."""
        rows_of_table = rows.to(table.device)
        if len(rows) and bool((rows.diff() == 1).all()):
            tokens = table[int(rows[0]) : int(rows[-1]) + 1]
        elif len(rows) * table[:1].nbytes <= _COPY_BYTES:
            tokens = table[rows_of_table]
        else:
            return cls(table, rows_of_table, Copies.of(table, rows_of_table))
        return cls(tokens, None, Copies.of(tokens, None))


@torch.no_grad()
def tiled_relevance(queries: Tensor, corpus: Corpus, into: Tensor | None = None) -> Tensor:
    """Compute [b, n] `relevance` of [b, D] and a corpus of n images in float32, in tiles of fixed shape.

    Args:
        queries: on the tokens' device.
        corpus: the images.
        into: [at least b, n] float32, overwritten and returned in part: fresh memory costs as much as a pass over it.
    """
    tokens, gathered, copies = corpus
    images = len(tokens if gathered is None else gathered)
    _, tokens_per_image, width = tokens.shape
    cpu = queries.device.type == "cpu"
    one_tile = tokens_per_image == 1 and images <= (_FEW_IMAGES if cpu else _TILE_TOKENS)
    step = images
    if not one_tile:
        tokens_per_tile = _CACHED_TOKENS if cpu else _TILE_TOKENS
        step = min(images, tokens_per_tile // tokens_per_image)
    step = max(_COLUMNS, step // _COLUMNS * _COLUMNS)
    height = tile_rows(images)
    scores = torch.empty(len(queries), images, device=queries.device) if into is None else into[: len(queries)]
    # buffers for all tiles: new memory costs more than the conversion
    wide = (
        None if tokens.dtype == torch.float32 else tokens.new_empty(step, tokens_per_image, width, dtype=torch.float32)
    )
    direct = tokens_per_image == 1 and (
        one_tile or cpu
    )  # products are written to their columns, but for what is padded
    full_rows = direct and len(queries) % height == 0
    product = scores.new_empty(height * (_COLUMNS if full_rows else step * tokens_per_image))
    cuts = {*range(0, images, step), images // _COLUMNS * _COLUMNS if direct else images, images}
    queries = functional.pad(queries.float(), (0, 0, 0, -len(queries) % height))
    with torch.autocast(queries.device.type, enabled=False):
        for left, right in pairwise(sorted(cuts)):
            tile = tokens[left:right] if gathered is None else tokens[gathered[left:right]]
            if wide is not None:
                tile = wide[: len(tile)].copy_(tile)
            flat = tile.transpose(0, 1).reshape(-1, width)  # token by token: a maximum over blocks is fast
            padding = -len(flat) % _COLUMNS
            columns = (functional.pad(flat, (0, 0, 0, padding)) if padding else flat).T
            for top in range(0, len(queries), height):
                tile = scores[top : top + height, left:right]
                rows = queries[top : top + height]
                if full_rows and not padding:
                    torch.mm(rows, columns, out=tile)
                    continue
                part = product[: height * columns.shape[1]].view(height, -1)
                torch.mm(rows, columns, out=part)
                torch.amax(part[: len(tile), : len(flat)].unflatten(1, (tokens_per_image, -1)), 1, out=tile)
    return copies.level(scores)
