"""Equal images have equal scores, whatever the shape, the precision, the threads and the block."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from negbench.api import make_strategy
from negbench.benchmarks.triplets import Triplets
from negbench.contracts import Calls, Query, QueryInputs, ScoreView, Strategy, relevance
from negbench.contracts.card import DatasetCard
from negbench.data.reading import RowsInMemory
from negbench.data.scene import Features, Splits, open_scene
from negbench.datasets.dataset import columns_of
from negbench.display import Display
from negbench.files.image_files import ImageFiles
from negbench.loop.chosen import slot_scores
from negbench.metrics.equal_rows import Copies
from negbench.mining.filters import Filters
from negbench.scoring.evaluation import block_scorer, embed_candidates
from negbench.scoring.tiles import Corpus, tiled_relevance
from negbench.settings.config import build_config
from negbench.settings.layers import parse_plugin

ABOUT: dict[str, Any] = {"name": "toy", "protocol": "plain", "gallery": "all", "text_template": "as is"}
CARD = DatasetCard(**ABOUT, metrics=("recall_at_1",), main="recall_at_1", exclude_reference=False)


def with_copies(count: int, tokens: int, width: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return [N, T, D] images of which about half are copies, and [N] the first of each one's kind."""
    images = normalize(torch.randn(count, tokens, width, generator=generator), dim=-1)
    kind = torch.randint(max(1, count // 2), (count,), generator=generator)
    first = torch.tensor([kind.tolist().index(k) for k in kind.tolist()])
    return images[first], first


def score_in_tiles(queries: Tensor, images: Tensor) -> Tensor:
    return tiled_relevance(queries, Corpus.of(images, torch.arange(len(images))))


def score_in_reverse(queries: Tensor, images: Tensor) -> Tensor:
    return tiled_relevance(queries, Corpus.of(images.flip(0), torch.arange(len(images)).flip(0)))


def score_for_learning(queries: Tensor, images: Tensor) -> Tensor:
    return relevance(queries.float(), images.float().requires_grad_()).detach()


def score_at_once(queries: Tensor, images: Tensor) -> Tensor:
    with torch.no_grad():
        return relevance(queries, images)


PATHS: list[Callable[[Tensor, Tensor], Tensor]] = [score_in_tiles, score_in_reverse, score_for_learning, score_at_once]


def check(path: Callable[[Tensor, Tensor], Tensor], step: int = 5) -> int:
    """Compare copies bit by bit, and scores with float64, over small and large shapes; count the shapes."""
    generator = torch.Generator().manual_seed(0)
    sizes = list(itertools.product(range(1, 41, 2 * step), range(1, 41, step)))
    sizes += torch.randint(1, 700, (30 // step, 2), generator=generator).tolist()
    sizes += [(128, 32)] * 6  # whole tiles
    shapes = list(itertools.product(sizes, (torch.float32, torch.float16)))
    for (queries, count), dtype in shapes:
        tokens = int(torch.randint(1, 4, (), generator=generator))
        width = int(torch.randint(1, 70, (), generator=generator))
        images, first = with_copies(count, tokens, width, generator)
        rows = torch.randn(queries, width, generator=generator).to(dtype)
        images = images.to(dtype)
        scores = path(rows, images)
        assert torch.equal(scores, scores[:, first]), (queries, count, tokens, width, dtype)
        exact = torch.einsum("bd,ntd->bnt", rows.double(), images.double()).amax(-1)
        torch.testing.assert_close(scores.double(), exact, atol=1e-5 if scores.dtype == torch.float32 else 2e-2, rtol=0)
    return len(shapes)


@pytest.mark.parametrize("path", PATHS)
def test_copies_have_the_same_bits(path):
    check(path)


def test_copies_have_the_same_bits_with_two_threads():
    """In a process of its own: a process that has used threads must not be forked."""
    command = [sys.executable, __file__, "2", "29"]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "2"}, timeout=900)


def test_copies_share_a_score_where_the_product_rounds_each_column_otherwise(subtests, monkeypatch):
    product = torch.mm
    noise = torch.arange(2**11) / 2**20
    monkeypatch.setattr(torch, "mm", lambda a, b, *, out: product(a, b, out=out).add_(noise[: b.shape[1]]))
    for tokens in (1, 3):
        with subtests.test(tokens=tokens):
            images, first = with_copies(700, tokens, 9, torch.Generator().manual_seed(0))
            queries = torch.randn(5, 9, generator=torch.Generator().manual_seed(1))
            scores = score_in_tiles(queries, images)
            assert torch.equal(scores, scores[:, first])
            assert not torch.equal(scores, score_at_once(queries, images))


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_score_does_not_depend_on_the_row_of_its_query(tokens):
    generator = torch.Generator().manual_seed(0)
    for count, width in itertools.product([*range(1, 41, 2), 345], (32, 257)):
        images = torch.randn(count, tokens, width, generator=generator)
        query = torch.randn(1, width, generator=generator)
        scores = score_in_tiles(query.repeat(257, 1), images)
        assert torch.equal(scores, scores[:1].expand_as(scores)), (count, width)


@pytest.mark.parametrize("few", [0, 100])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_copies_by_loops(subtests, dtype, few, monkeypatch):
    monkeypatch.setattr("negbench.metrics.equal_rows._FEW", few)
    generator = torch.Generator().manual_seed(0)
    for count, tokens, width in ((0, 1, 3), (1, 2, 4), (60, 1, 2), (200, 2, 9)):
        # few values: most keys of rows that differ are equal, and zeros have both signs
        with subtests.test(count=count, tokens=tokens):
            rows = torch.randint(-1, 2, (count, tokens, width), generator=generator).to(dtype) * -1e-3
            rows[count // 2 :, :, 1:] = rows[count // 2 - 1 : -1, :, 1:] if count > 1 else 0
            rows[: count // 4] = 0
            some = torch.randperm(count, generator=generator)[: count - count // 3]
            for selection, index in ((None, torch.arange(count)), (some, some)):
                with subtests.test(index=index):
                    firsts: dict[tuple[float, ...], int] = {}
                    want = []
                    for at, row in enumerate(rows[index]):
                        first = firsts.setdefault(tuple(row.flatten().tolist()), at)
                        if first < at:
                            want.append((at, first))
                    copies, originals = Copies.of(rows, selection)
                    assert list(zip(copies.tolist(), originals.tolist(), strict=True)) == want


def plain_relevance(queries: Tensor, images: Tensor) -> Tensor:
    return torch.einsum("bd,ntd->bnt", queries, images).amax(-1)


@pytest.mark.parametrize("tokens", [1, 3])
def test_each_copy_keeps_its_own_gradient(tokens):
    generator = torch.Generator().manual_seed(0)
    images, first = with_copies(12, tokens, 5, generator)
    queries = torch.randn(7, 5, generator=generator)
    weights = torch.randn(7, 12, generator=generator)
    gradients = []
    for score in (relevance, plain_relevance):
        leaf = images.clone().requires_grad_()
        (score(queries, leaf) * weights).sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients)
    assert not torch.allclose(gradients[0], gradients[0][first])


@pytest.mark.parametrize(("count", "width"), [(6, 40), (10, 512), (167, 33)])
def test_ranks_and_lists_do_not_depend_on_the_block(count, width):
    """Every image stands twice in the gallery: the target's copy counts against the model."""
    generator = torch.Generator().manual_seed(0)
    images = normalize(torch.randn(count, 1, width, generator=generator), dim=-1).repeat(2, 1, 1)
    names = [f"i{n}" for n in range(2 * count)]
    queries = [Query(f"q{n}", names[0], "text", names[n % len(names)], "all") for n in range(61)]
    data = Triplets(CARD, "val", queries, *columns_of({"all": names}), content="c")
    rows = normalize(torch.randn(len(queries), width, generator=generator) / 9 + images[data.target_columns, 0], dim=-1)
    score_block = block_scorer(rows, images)
    ranks = data.rank(score_block, block=1).target_rank
    for block in (3, 1024):
        assert torch.equal(data.rank(score_block, block=block).target_rank, ranks), f"blocks of {block}"
    assert set((ranks % 2).tolist()) == {0}
    top = data.top(score_block, 4, block=1)
    other = data.top(score_block, 4, block=256)
    assert torch.equal(other.columns, top.columns)
    assert torch.equal(other.scores, top.scores)
    assert torch.equal(top.columns[:, 0] + count, top.columns[:, 1])  # the lower column first
    for columns in torch.arange(2 * count).split([count, count]):  # one gallery after the other
        anew = block_scorer(rows, images)(torch.arange(9), columns)
        assert torch.equal(score_block(torch.arange(9), columns), anew), f"columns from {int(columns[0])}"


class _Uneven:
    """A fine-tuned backbone whose features depend on their row in the batch, as a matrix product's last bits may."""

    frozen_images = False
    device = torch.device("cpu")

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        yield

    def transform(self, image: Image.Image) -> Tensor:
        return torch.tensor(image.getpixel((0, 0)), dtype=torch.float32)[None]

    def image_features(self, pixels: Tensor) -> Tensor:
        return pixels + torch.arange(len(pixels))[:, None, None] / 2**20

    candidates = image_features

    def tokenize(self, texts: list[str]) -> dict[str, Tensor]:
        return {"ids": torch.zeros(len(texts), 1)}

    def cross_queries(self, reference: Tensor, tokens: dict[str, Tensor]) -> Tensor:
        cross = reference[:, None, 0] + tokens["ids"].float()[None]
        return cross + torch.arange(cross.numel()).view(cross.shape) / 2**18


def test_images_with_the_same_features_have_the_same_embedding():
    features, first = with_copies(20, 3, 8, torch.Generator().manual_seed(0))
    rows = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    scene = Features(RowsInMemory(features), frozen=True, encoded=0)
    embedded = embed_candidates(cast(Any, _Uneven()), scene, rows, batch=7)
    kinds = first[rows]
    assert torch.equal((embedded[:, None] == embedded).flatten(2).all(2), kinds[:, None] == kinds)
    torch.testing.assert_close(embedded, features[rows], atol=1e-5, rtol=0)


def test_equal_pictures_of_a_fine_tuned_tower_are_encoded_once(tmp_path):
    """In batches of three, no picture has the place of its copy."""
    for number in range(14):
        Image.new("RGB", (4, 4), (number % 7, 9, 0)).save(tmp_path / f"i{number}.png")
    files = ImageFiles.scan(tmp_path)
    queries = [Query("q", "i0", "text", "i1", "all")]
    galleries = columns_of({"all": [f"i{n}" for n in range(14)]})
    data = Triplets(CARD, "val", queries, *galleries, content="c", files=files)
    config = build_config([{"strategy": {"name": "top-k"}}])
    backbone: Any = _Uneven()
    scene = open_scene(config, Splits(data, None, data), backbone, backbone.device, Display())
    assert len({*scene.row_of.values()}) == len(scene.val.images.unique()) == 7
    embedded = embed_candidates(backbone, scene, scene.val.images, batch=3)
    assert torch.equal(embedded[:7], embedded[7:])
    assert embedded[:, 0, 0].int().tolist() == [*range(7)] * 2
    assert int(scene.val.references[0]) == int(scene.val.images[7])


def test_triples_with_the_same_text_or_reference_have_the_same_score(subtests):
    generator = torch.Generator().manual_seed(0)
    kind = torch.tensor([0, 1, 2, 0, 1, 0])
    reference = torch.randn(3, 1, 5, generator=generator)[kind]
    query = torch.randn(3, 1, 5, generator=generator)[kind]
    tokens = {"ids": torch.randn(3, 5, generator=generator)[kind.flip(0)], "number": kind.flip(0)}
    for images in (1, 2):
        with subtests.test(images=images):
            embedded = torch.randn(6, images, 5, generator=generator).requires_grad_()
            inputs = QueryInputs(torch.arange(6), torch.arange(6), reference, tokens)
            calls = Calls(cast(Any, _Uneven()), 0)
            scores = slot_scores(calls, inputs, query[:, 0], embedded, ("modification", "reference"))
            for slot, kinds in (("modification", kind.flip(0)), ("reference", kind)):
                with subtests.test(slot=slot):
                    same = (scores[slot][:, :, None] == scores[slot][:, None]).all(0)
                    assert torch.equal(same, kinds[:, None] == kinds)
            scores["modification"].sum().backward()


RULES = [
    "qure",
    "qure:variant=release",
    "dqe:alpha=0.1:beta=0.5",
    "dqe:scale=minmax",
    "semi-hard",
    "pair-margin",
    "semi-hard:triplets=all",
    "in-batch-semi-hard",
    "multi-similarity",
    "hdc",
    "distance-weighted:width=9",
]
OF_SCORE: dict[str, Strategy | Filters] = {rule: make_strategy(**parse_plugin(rule)) for rule in RULES}
OF_SCORE |= {"margin": Filters(margin=0.25), "relative margin": Filters(relative_margin=0.3)}


@pytest.mark.parametrize("name", OF_SCORE)
def test_rules_of_score_take_all_copies_or_none(subtests, name):
    generator = torch.Generator().manual_seed(0)
    rule = OF_SCORE[name]
    mixed = 0
    for width in (3, 5, 9, 40):
        with subtests.test(width=width):
            scores = torch.randint(-8, 9, (60, width), generator=generator) / 8
            allowed = torch.rand(scores.shape, generator=generator) < 0.8
            view = ScoreView(scores, torch.randint(width, (60,), generator=generator), allowed)
            members = rule.keep(view) if isinstance(rule, Filters) else rule.pool(view) > 0
            alike = (scores[:, :, None] == scores[:, None]) & view.allowed[:, :, None] & view.allowed[:, None]
            assert not (alike & (members[:, :, None] != members[:, None])).any()
            has_members = (members & view.allowed).any(1)
            has_others = (~members & view.allowed).any(1)
            mixed += int((has_members & has_others).sum())
    assert mixed > 10


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    for score in PATHS:
        print(score.__name__, check(score, int(sys.argv[2])), "shapes")
