"""Every pool that is a function of its row, against a loop over that row; `tests/strategies/test_NAME.py` has the rest.

A loop returns the set of columns of a mask, or a row of weights.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch

from negbench.api import make_strategy
from negbench.contracts import OrderedBatches, ScoreView, Strategy, SyntheticStrategy
from negbench.errors import NegbenchError
from negbench.plugins.registry import registry
from negbench.settings.layers import parse_plugin
from negbench.strategies.cirqrs import Cirqrs
from negbench.strategies.distance_weighted import DistanceWeighted
from negbench.strategies.dqe import Dqe
from negbench.strategies.simans import Simans
from negbench.testing import StrategyTestCase, as_sets, ranking, ranking_below, toy_view, toy_views

Loop = Callable[[ScoreView, int, Any], set[int] | list[float]]


@cache
def views() -> list[ScoreView]:
    """Return tables of 1 to 60 columns at several refreshes; their planes have gaps and the guide few values."""
    tables = []
    widths = [toy_view(8, n, seed=n, ties=n < 9) for n in (1, 2, 3, 4, 60)]
    for number, view in enumerate([*toy_views(12), *widths]):
        holes = torch.rand(view.scores.shape, generator=torch.Generator().manual_seed(number)) < 0.2
        planes = {**view.planes, "guide": (8 * view.planes["guide"]).round() / 8}
        planes = {name: plane.masked_fill(holes, torch.nan) for name, plane in planes.items()}
        tables.append(replace(view, refresh=number % 4, planes=planes))
    return tables


def allowed(view: ScoreView, row: int, strategy: Any = None) -> set[int]:
    return set(view.allowed[row].nonzero()[:, 0].tolist())


def gaps(view: ScoreView, row: int) -> dict[int, float]:
    """Return s+ - s for every allowed image."""
    scores = view.scores[row].tolist()
    return {j: scores[int(view.target[row])] - scores[j] for j in allowed(view, row)}


def distances(view: ScoreView, row: int) -> list[float]:
    return [math.sqrt(2 - 2 * score) for score in view.scores[row].tolist()]


def shares(weight: list[float]) -> list[float]:
    return [w / sum(weight) if sum(weight) else 0.0 for w in weight]


def halve(k: int, view: ScoreView) -> int:
    for _ in range(view.refresh):
        k = max(k // 2, 1)
    return k


def the_best_by(view: ScoreView, row: int, strategy: Any) -> set[int]:
    """The k images that one modality alone ranks highest; an image without a score is none of them."""
    scores = view.planes[strategy.by][row].tolist()
    scored = [j for j in allowed(view, row) if not math.isnan(scores[j])]
    return set(sorted(scored, key=lambda j: (-scores[j], j))[: strategy.k])


def the_best(view: ScoreView, row: int, strategy: Any) -> set[int]:
    k = halve(strategy.k, view) if getattr(strategy, "halve", False) else strategy.k
    return set(ranking(view, row)[:k])


def after_target(view: ScoreView, row: int, strategy: Any) -> set[int]:
    return set(ranking_below(view, row)[: strategy.k])


def cirqrs(view: ScoreView, row: int, strategy: Cirqrs) -> set[int]:
    return set(ranking_below(view, row)[: halve(int(strategy.n_neg), view)])


def oracle_all(view: ScoreView, row: int, strategy: Any) -> set[int]:
    return {j for j in allowed(view, row) if not view.relevant[row, j]}


def oracle_kind(view: ScoreView, row: int, strategy: Any) -> set[int]:
    names = ("unrelated", "composed", "visual", "textual", "unspecified")
    return {j for j in oracle_all(view, row, strategy) if names[view.kinds[row, j]] == strategy.kind}


def oracle_after_target(view: ScoreView, row: int, strategy: Any) -> set[int]:
    free = oracle_all(view, row, strategy)
    return set([j for j in ranking_below(view, row) if j in free][: strategy.k])


def shifted_top_k(view: ScoreView, row: int, strategy: Any) -> set[int]:
    scores = view.scores[row].tolist()
    target = int(view.target[row])
    ranked = sorted({*allowed(view, row), target}, key=lambda j: (-scores[j], j))

    def position(end: int | str) -> int:
        if isinstance(end, str):  # a share of the gallery, as "12.5%"
            return math.floor(float(end[:-1]) * view.scores.shape[1] / 100 + 0.5)
        return end

    return set(ranked[position(strategy.start) : position(strategy.stop)]) - {target}


def at_most(limit: Callable[[Any, float], float], *, strictly: bool = False) -> Loop:
    """Return a loop for the k best images not above a limit, computed from the strategy and the target's score."""

    def loop(view: ScoreView, row: int, strategy: Any) -> set[int]:
        most = limit(strategy, float(view.positive[row]))
        if not strictly:
            most += 1e-9
        scores = view.scores[row].tolist()
        below = [j for j in ranking(view, row) if scores[j] < most]
        return set(below[: strategy.k])

    return loop


def perc_pos(strategy: Any, positive: float) -> float:
    if strategy.variant == "sign-safe" and positive < 0:
        return positive * (2 - strategy.share)
    return positive * strategy.share


def triplets(view: ScoreView, row: int, strategy: Any) -> set[int]:
    near = {j: gap for j, gap in gaps(view, row).items() if gap <= strategy.margin}
    if strategy.triplets == "semi-hard":
        return {j for j, gap in near.items() if gap > 0}
    if strategy.triplets == "hard":
        return {j for j, gap in near.items() if gap <= 0}
    return set(near)


def multi_similarity(view: ScoreView, row: int, strategy: Any) -> set[int]:
    return {j for j, gap in gaps(view, row).items() if gap < strategy.epsilon}


def pair_margin(view: ScoreView, row: int, strategy: Any) -> set[int]:
    far = distances(view, row)
    return {j for j in allowed(view, row) if far[j] < strategy.margin}


def listed_images(view: ScoreView, row: int, strategy: Any) -> set[int]:
    plane = view.plane("listed")[row].tolist()
    return {column for column in allowed(view, row, strategy) if not math.isnan(plane[column])}


def hdc(view: ScoreView, row: int, strategy: Any) -> set[int]:
    scores = []
    for i in range(len(view.scores)):
        scores += [float(view.scores[i, j]) for j in allowed(view, i)]
    hardest = sorted(scores, reverse=True)[: math.ceil(strategy.share * len(scores))]
    return {j for j in allowed(view, row) if float(view.scores[row, j]) >= hardest[-1]}


def dqe(view: ScoreView, row: int, strategy: Dqe) -> set[int]:
    ranked = ranking(view, row)
    by_column = gaps(view, row)
    pool = set()
    for position, j in enumerate(ranked):
        gap = by_column[j]
        first = by_column[ranked[0]]
        last = by_column[ranked[-1]]
        if gap < 0 or (strategy.scale == "minmax" and first == last):
            continue
        if strategy.scale == "absolute":
            scaled = gap
        elif strategy.scale == "minmax":
            scaled = (gap - first) / (last - first)
        else:
            scaled = position / max(len(ranked) - 1, 1)
        if strategy.alpha <= scaled <= strategy.beta:
            pool.add(j)
    return pool


def fnc(view: ScoreView, row: int, strategy: Any) -> set[int]:
    likeness = view.planes["target"][row].nan_to_num(-math.inf).tolist()
    nearest = sorted(allowed(view, row), key=lambda j: (-likeness[j], j))[: strategy.k]
    return {j for j in allowed(view, row) if not (j in nearest and likeness[j] > strategy.threshold)}


def gist(view: ScoreView, row: int, strategy: Any) -> set[int]:
    guide = view.planes["guide"][row].tolist()
    positive = guide[int(view.target[row])]
    limit = positive - strategy.margin * (abs(positive) if strategy.relative else 1)
    return {j for j in allowed(view, row) if not guide[j] > limit}


def rocketqa(view: ScoreView, row: int, strategy: Any) -> set[int]:
    ranked = ranking(view, row)
    guide = view.planes["guide"][row].tolist()
    denoised = [j for j in ranked[: strategy.k] if guide[j] < strategy.limit][: strategy.n]
    return set(denoised or ranked[strategy.k :])


def sentence_transformers(view: ScoreView, row: int, rule: Any) -> set[int]:
    scores = view.scores[row].tolist()
    target = int(view.target[row])
    limits = []
    if rule.absolute_margin is not None:
        limits.append(scores[target] - rule.absolute_margin)
    if rule.relative_margin is not None:
        limits.append(scores[target] - rule.relative_margin * abs(scores[target]))
    if rule.max_score is not None:
        limits.append(rule.max_score)
    if rule.range_max:
        last = rule.range_max
    else:  # ten times as many if some may be left out
        last = rule.range_min + rule.num_negatives * (10 if limits else 1) + 1
    most = min([*limits, 1.0])
    least = -1.0 if rule.min_score is None else rule.min_score
    ranked = sorted({*allowed(view, row), target}, key=lambda j: (-scores[j], j))[: last + 1]
    inside = [j for j in ranked if j != target and least <= scores[j] <= most][rule.range_min : last]
    if rule.sampling_strategy == "top":
        inside = inside[: rule.num_negatives]
    return set(inside)


def hardness(view: ScoreView, row: int, strategy: Any) -> list[float]:
    images = allowed(view, row)
    scores = view.scores[row].tolist()
    return [math.exp(strategy.alpha * score) if j in images else 0.0 for j, score in enumerate(scores)]


def simans(view: ScoreView, row: int, strategy: Simans) -> list[float]:
    weight = [0.0] * view.scores.shape[1]
    by_column = gaps(view, row)
    for j in ranking(view, row)[: int(strategy.k)]:
        gap = by_column[j]
        if strategy.variant == "absolute":
            weight[j] = math.exp(-strategy.a * abs(gap))
        elif strategy.variant == "release":
            weight[j] = math.exp(-strategy.a * (gap - strategy.b) ** 2)
        else:
            weight[j] = math.exp(-strategy.a * (gap + strategy.b) ** 2)
    return shares(weight)


def distance_weighted(view: ScoreView, row: int, strategy: DistanceWeighted) -> list[float]:
    n = strategy.width or view.dim
    weight = []
    images = allowed(view, row)
    for j, distance in enumerate(distances(view, row)):
        if j in images and distance < strategy.limit:
            d = max(distance, strategy.cutoff)
            weight.append(d ** (2 - n) * (1 - d * d / 4) ** ((3 - n) / 2))
        else:
            weight.append(0.0)
    return shares(weight)


def trisampler(view: ScoreView, row: int, strategy: Any) -> list[float]:
    likeness = view.planes["target"][row].nan_to_num(-math.inf).tolist()
    by_column = gaps(view, row)
    weights = [0.0] * view.scores.shape[1]
    for j in ranking(view, row)[: strategy.k]:
        weights[j] = math.exp(-(by_column[j] ** 2) / 4) * max(0.0, likeness[j] - float(view.scores[row, j]))
    return weights


def uniform_bins(view: ScoreView, row: int, strategy: Any) -> list[float]:
    every = distances(view, row)
    far = {j: every[j] for j in allowed(view, row)}
    low = min(far.values(), default=0.0)
    high = max(far.values(), default=0.0)
    last = strategy.bins - 1
    span = (high - low) or 1.0
    bin_of = {j: min(last, int((d - low) / span * strategy.bins)) for j, d in far.items()}
    count = Counter(bin_of.values())
    return [1 / count[bin_of[j]] if j in bin_of else 0.0 for j in range(view.scores.shape[1])]


EVERYTHING = ("all-corpus", "hycole", "in-batch", "in-batch-both", "mochi", "no-duplicates", "xbm")
LIMITS = ({"limit": -0.5, "k": 3}, {"limit": 0.0, "k": 3}, {"limit": 0.7, "k": 99})
KINDS = [
    {"triplets": kind, "margin": margin} for kind, margin in product(("semi-hard", "hard", "all"), (0.2, 0.375, 0.5))
]
BANDS = ((0.2, 0.8), (0.0, 0.5), (0.5, 1.0), (0.25, 0.5), (0.0, 1.0))
SCALES = [
    {"scale": scale, "alpha": alpha, "beta": beta}
    for scale, (alpha, beta) in product(("absolute", "minmax", "quantile"), BANDS)
]
SHARES = [
    {"share": share, "k": k, "variant": variant}
    for share, k, variant in product((0.5, 0.75, 1.0), (3, 99), ("sign-safe", "published"))
]
LOOPS: list[tuple[str, Loop, tuple[dict[str, Any], ...]]] = [
    *((name, allowed, ({},)) for name in EVERYTHING),
    ("listed", listed_images, ({},)),
    *((name, the_best, ({"k": 1}, {"k": 4}, {"k": 100})) for name in ("top-k", "in-batch-cube", "ngame", "bank")),
    *((name, the_best, ({"k": None},)) for name in ("in-batch-cube", "bank")),
    ("top-k", the_best, ({"k": 20, "halve": True},)),
    ("top-k", the_best_by, ({"k": 4, "by": "reference"}, {"k": 7, "by": "text"})),
    ("after-target", after_target, ({"k": 1}, {"k": 4}, {"k": 100})),
    ("cirqrs", cirqrs, ({"n_neg": 1}, {"n_neg": 5}, {"n_neg": 50})),
    ("oracle-all", oracle_all, ({},)),
    ("oracle-kind", oracle_kind, ({}, {"kind": "visual"}, {"kind": "unspecified"}, {"kind": "unrelated"})),
    ("oracle-after-target", oracle_after_target, ({"k": 1}, {"k": 4}, {"k": 100})),
    ("shifted-top-k", shifted_top_k, (
        {"start": 0, "stop": 3}, {"start": 2, "stop": 7}, {"start": 10, "stop": 210}, {"start": "12.5%", "stop": "50%"},
        {"start": 1, "stop": "75%"}, {"start": "0%", "stop": 2}, {"start": "50%", "stop": 3},
    )),
    ("margin-pos", at_most(lambda s, positive: positive - s.margin), (
        {"margin": 0.0, "k": 4}, {"margin": 0.25, "k": 3}, {"margin": 0.5, "k": 99},
    )),
    ("top-k-abs", at_most(lambda s, positive: s.limit, strictly=True), LIMITS),
    ("perc-pos", at_most(perc_pos), tuple(SHARES)),
    ("semi-hard", triplets, tuple(KINDS)),
    ("in-batch-semi-hard", triplets, tuple(KINDS[1::3])),
    ("multi-similarity", multi_similarity, ({"epsilon": 0.0}, {"epsilon": 0.1}, {"epsilon": 0.25}, {"epsilon": 0.5})),
    ("pair-margin", pair_margin, ({"margin": 0.8}, {"margin": 1.5}, {"margin": 2.0})),
    ("hdc", hdc, ({"share": 0.1}, {"share": 0.5}, {"share": 0.9}, {"share": 1.0})),
    ("dqe", dqe, tuple(SCALES)),
    ("fnc", fnc, ({}, {"threshold": 0.0, "k": 2}, {"threshold": -0.5, "k": 5})),
    ("gist", gist, ({}, {"margin": 0.25}, {"margin": -0.5}, {"margin": 0.5, "relative": True})),
    ("rocketqa", rocketqa, (
        {"k": 6, "n": 2, "limit": 0.0}, {"k": 2, "n": 4, "limit": -0.5}, {"k": 4, "n": 1, "limit": 0.9}, {"k": 1},
    )),
    ("sentence-transformers", sentence_transformers, (
        {}, {"range_min": 2, "range_max": 5, "sampling_strategy": "random"}, {"absolute_margin": 0.25, "range_min": 1},
        {"relative_margin": 0.25, "num_negatives": 2},
        {"relative_margin": 0.5, "range_max": 8, "sampling_strategy": "random"},
        {"max_score": 0.25, "min_score": -0.5, "num_negatives": 5},
        {"min_score": -1.0, "sampling_strategy": "random"},  # does not widen the window
        {"absolute_margin": 0.0, "sampling_strategy": "random"},
        {"relative_margin": 0.0, "range_min": 5, "sampling_strategy": "random"},
        {"max_score": 1.0, "num_negatives": 2, "sampling_strategy": "random"},
    )),
    ("hardness", hardness, ({"alpha": 0.0}, {"alpha": 5.0}, {"alpha": 9.0})),
    ("simans", simans, (
        {}, {"a": 20, "b": 0.25, "k": 7}, {"a": 20, "b": 0.25, "k": 7, "variant": "release"},
        {"a": 3, "variant": "absolute"}, {"a": 0, "k": 3},
    )),
    ("distance-weighted", distance_weighted, ({}, {"width": 8, "cutoff": 0.9, "limit": 1.9})),
    ("trisampler", trisampler, ({"k": 3}, {"k": 100})),
    ("uniform-bins", uniform_bins, ({"bins": 1}, {"bins": 3}, {"bins": 100})),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(LOOPS)), ids=lambda number: LOOPS[number][0])
def test_a_pool_is_that_of_a_loop(number):
    name, loop, variants = LOOPS[number]
    tolerance = 1e-5 if loop is hardness else 1e-9
    for options in variants:
        strategy = make_strategy(name, **options)
        sizes = set()
        for view in views():
            pool = strategy.pool(view)
            for row, members in enumerate(as_sets(pool)):
                want = loop(view, row, strategy)
                if isinstance(want, set):
                    assert members == want, (options, row)
                else:
                    weights = pool[row].tolist()
                    if loop in (simans, distance_weighted):
                        weights = shares(weights)
                    assert weights == pytest.approx(want, rel=tolerance, abs=1e-300), (options, row)
                sizes.add(len(members))
        assert len(sizes) > 1, options


# --- the suite of plug-in authors ------------------------------------------------------------------------------------

VARIANTS = (  # of other code than the defaults, which are in the class below
    "in-batch-cube:k=null",
    "top-k:k=20:halve=true",
    "shifted-top-k:start=50%:stop=3",
    "perc-pos:variant=published",
    "semi-hard:triplets=hard",
    "in-batch-semi-hard:triplets=all",
    "dqe:scale=minmax",
    "dqe:scale=quantile",
    "fnc:threshold=-0.5:k=5",
    "gist:margin=0.5:relative=true",
    "rocketqa:k=1",
    "qure:variant=release",
    "simans:variant=release:b=0.5:k=5:a=100.0",
    "simans:variant=absolute:a=1000.0",
    "ngame:cluster=3:k=2",
    "distance-weighted:width=2048:limit=1.99",
    "mochi:queue=5:hardest=2:pairs=0:with_query=3",
    "sentence-transformers:max_score=1.0:num_negatives=2:sampling_strategy=random",
    "sentence-transformers:relative_margin=0.25:max_score=0.5:min_score=-0.75",
)
RULES = [  # rules that an option can break
    "form", "precision", "small_and_flat_tables", "pure", "rows_are_independent", "columns_are_permutable",
    "disallowed_images_are_as_if_absent", "planes_may_be_partial",
]  # fmt: skip


@pytest.mark.parametrize("key", registry.plugins("strategies"))
class TestEveryStrategy(StrategyTestCase):
    @pytest.fixture
    def strategy(self, key: str) -> Strategy:
        return registry.make("strategies", key)


@pytest.mark.parametrize("variant", VARIANTS)
def test_options(variant):
    suite = StrategyTestCase()
    strategy = make_strategy(**parse_plugin(variant))
    rules = list(RULES)
    if isinstance(strategy, SyntheticStrategy):
        rules.append("synthetic")
    if isinstance(strategy, OrderedBatches):
        rules.append("order")
    for rule in rules:
        getattr(suite, f"test_{rule}")(strategy)


def test_every_strategy_is_tested():
    assert set(registry.plugins("strategies")) == {name for name, *_ in LOOPS} | {"qure"}


def test_no_weight_underflows():
    view = ScoreView(torch.tensor([[0.0, 0.96875, 0.5, 0.0625, 0.0]]), torch.tensor([0]))
    assert as_sets(DistanceWeighted(width=100_000).pool(view)) == [{1, 2, 3}]  # sqrt(2) is beyond 1.4
    weights = Simans(a=1e6).pool(ScoreView(torch.tensor([[1.0, -0.5, -0.75, -1.0]]), torch.tensor([0])))
    assert as_sets(weights) == [{1, 2, 3}]
    assert weights[0, 1] == 1


def test_the_width_is_that_of_the_embeddings():
    by_hand = ScoreView(torch.tensor([[0.0, -0.5, 0.5]]), torch.tensor([0]))
    with pytest.raises(NegbenchError, match="width must be given: the width of the embeddings is unknown or"):
        DistanceWeighted().pool(by_hand)
    assert as_sets(DistanceWeighted(width=3).pool(by_hand)) == [{2}]
