"""HyCoLe's terms on privileged texts: values worked out by hand, then the same terms within a step."""

import dataclasses
import itertools
import math
import shutil
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from negbench.api import make_loss, make_strategy
from negbench.benchmarks.triplets import Triplets
from negbench.contracts import Backbone, BackboneIdentity, Query, QueryInputs, Slot, TextBatch
from negbench.contracts.card import DatasetCard
from negbench.datasets.dataset import columns_of
from negbench.errors import DataError, NegbenchError, OptionError
from negbench.loop.hybrid import HybridTerms, LossScalars, Members, check_hybrid
from negbench.loop.objective import Batch, Objective
from negbench.loop.training_calls import TrainingCalls
from negbench.loop.types import OpenRun
from negbench.settings.config import HybridConfig, MiningConfig
from tests.runs import config_of, untrained

TAU = 0.5


class Plane(Backbone):
    """Backbone of 2-D embeddings: a text is an angle in degrees; composing rotates by the modification's angle."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1.0))

    identity = BackboneIdentity("plane", "none", "", "", 1, 1, 2, 1, "none")
    feature_key = "plane"
    temperature = torch.tensor(TAU)

    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        return {"angle": torch.tensor([float(text or 0) for text in texts])}

    def _angle(self, text: TextBatch) -> Tensor:
        return (text if isinstance(text, dict) else self.tokenize(text))["angle"]

    def candidates(self, features: Tensor) -> Tensor:
        return features

    def text_queries(self, text: TextBatch) -> Tensor:
        return direction(self._angle(text) * self.scale)

    def compose_texts(self, reference_text: TextBatch, modification: TextBatch) -> Tensor:
        return direction((self._angle(reference_text) + self._angle(modification)) * self.scale)

    def cross_texts(self, reference_text: TextBatch, modification: TextBatch, *, chunk: int = 1024) -> Tensor:
        return direction((self._angle(reference_text)[:, None] + self._angle(modification)) * self.scale)


Plane.__abstractmethods__ = frozenset()  # the other methods are never called


def direction(degrees: Tensor) -> Tensor:
    return torch.stack([torch.cos(torch.deg2rad(degrees)), torch.sin(torch.deg2rad(degrees))], dim=-1)


class Textless(Plane):
    compose_texts = None


# reference text, modification, target text, angle of the reference image, angle of the target image
ROWS: list[tuple[str | None, str, str | None, float, float]] = [
    ("0", "20", "30", 5.0, 28.0),
    ("0", "50", "40", 10.0, 45.0),  # the text of row 0's reference
    ("80", "20", "110", 75.0, 100.0),
    ("200", "-30", "30", 190.0, 33.0),  # the text of row 0's target
]


def dataset(rows: Sequence[tuple[str | None, str, str | None, float, float]] = ROWS) -> Triplets:
    images, groups = columns_of({"all": [f"t{n}" for n in range(len(rows))]})
    queries = []
    for n, (first, text, last, _, _) in enumerate(rows):
        queries.append(Query(f"q{n}", f"r{n}", text, f"t{n}", "all", reference_text=first, target_text=last))
    card = DatasetCard(
        name="toy", protocol="plain", gallery="all", exclude_reference=False, text_template="as is", metrics=("r",),
        main="r",
    )  # fmt: skip
    return Triplets(card, "train", queries, images, groups, "content")


def members(rows: Sequence[int], slots: Sequence[Slot], data: Any = ROWS) -> Members:
    picked = [data[n] for n in rows]
    return Members(
        inputs=QueryInputs(
            rows=torch.tensor(list(rows)),
            pictures=torch.tensor(list(rows)),
            features=direction(torch.tensor([row[3] for row in picked]))[:, None],
            tokens={"angle": torch.tensor([float(row[1]) for row in picked])},
        ),
        target=direction(torch.tensor([row[4] for row in picked]))[:, None],
        allowed={slot: ~torch.eye(len(rows), dtype=torch.bool) for slot in slots},
    )


def cos(a: float, b: float) -> float:
    return math.cos(math.radians(a - b))


def info_nce(positive: float, negatives: list[float], tau: float = TAU) -> float:
    top = math.exp(positive / tau)
    return -math.log(top / (top + sum(math.exp(n / tau) for n in negatives)))


def degrees(text: str | None) -> float | None:
    return None if text is None else float(text)


def tcm(rows: Sequence[int], slots: Sequence[Slot], data: Any = ROWS, *, joint: bool = False) -> float:
    """Compute TCM by loops over the corrupted triples with another text, where all texts are known."""
    values: dict[str, list[float]] = {}
    for i in rows:
        first, turn, last = map(degrees, data[i][:3])
        if first is None or turn is None or last is None:
            continue
        negatives: dict[str, list[float]] = {slot: [] for slot in slots}
        for j in rows:
            other_first, other_turn, other_last = map(degrees, data[j][:3])
            if "reference" in slots and other_first not in (None, first):
                negatives["reference"].append(cos(other_first + turn, last))
            if "modification" in slots and j != i:
                negatives["modification"].append(cos(first + other_turn, last))
            if "target" in slots and other_last not in (None, last):
                negatives["target"].append(cos(first + turn, other_last))
            if "query" in slots and other_first is not None and other_last not in (None, last):
                negatives["query"].append(cos(other_first + other_turn, last))
        if joint:
            negatives = {"all": list(itertools.chain(*negatives.values()))}
        negatives = {slot: cosines for slot, cosines in negatives.items() if cosines}
        for slot, cosines in negatives.items():
            values.setdefault(slot, []).append(info_nce(cos(first + turn, last), cosines))
    return sum(sum(losses) / len(losses) for losses in values.values())


def match(pairs: list[tuple[str | None, float]]) -> float:
    """Compute RITM or TITM of texts and their images, both directions, over pairs of different texts."""
    known_texts = [(float(text), image) for text, image in pairs if text is not None]
    to_image = []
    to_text = []
    for text, image in known_texts:
        others = [(other, other_image) for other, other_image in known_texts if other != text]
        if others:
            positive = cos(text, image)
            to_image.append(info_nce(positive, [cos(text, other_image) for _, other_image in others]))
            to_text.append(info_nce(positive, [cos(other, image) for other, _ in others]))
    return sum(to_image) / len(to_image) + sum(to_text) / len(to_text)


def backbones(term: str) -> Tensor:
    """Return one temperature for all terms."""
    return torch.tensor(TAU)


def terms_of(config: HybridConfig, slots: Sequence[Slot], data: Any = ROWS) -> HybridTerms:
    strategy = make_strategy({("target",): "in-batch", BOTH: "in-batch-both"}.get(tuple(slots), "hycole"))
    return HybridTerms(config, TrainingCalls(Plane(), 0), make_loss("info-nce"), dataset(data), strategy)


ALL: tuple[Slot, ...] = ("reference", "modification", "target")
BOTH: tuple[Slot, ...] = ("target", "query")


@pytest.mark.parametrize("slots", [("target",), ALL, BOTH])
@pytest.mark.parametrize(("alpha", "beta"), [(0.4, 0.0), (0.0, 0.1), (0.4, 0.1)])
@pytest.mark.parametrize("how", ["sum", "joint"])
def test_terms_are_those_worked_out_by_loops(subtests, slots, alpha, beta, how):
    """The terms equal those of loops; queries without a text take no part."""
    data = [*ROWS, (None, "10", "60", 60.0, 70.0), ("15", "10", None, 14.0, 20.0), (None, "5", None, 1.0, 2.0)]
    terms = terms_of(HybridConfig.model_validate({"alpha": alpha, "beta": beta, "slots": how}), slots, data)
    for rows in ([0, 1, 2, 3], [2, 0], [3, 1, 2], [0, 1, 2, 3, 4, 5, 6]):
        with subtests.test(rows=rows):
            references = [(data[row][0], data[row][3]) for row in rows]
            targets = [(data[row][2], data[row][4]) for row in rows]
            want = alpha * tcm(rows, slots, data, joint=how == "joint") + beta * (match(references) + match(targets))
            assert float(terms(members(rows, slots, data), backbones).detach()) == pytest.approx(want, rel=1e-5)
    assert float(terms(members([4, 6], slots, data), backbones).detach()) == 0.0  # no query has a partner


def test_each_term_has_its_temperature():
    """Eq. 5 by hand over rows 0 and 2, with a temperature for each of the three terms."""
    temperatures = {"tcm": 0.2, "ritm": 0.4, "titm": 0.8}
    want = 0.0
    for term, texts, images in (("ritm", (0, 80), (5, 75)), ("titm", (30, 110), (28, 100))):
        for i, j in ((0, 1), (1, 0)):
            positive = cos(texts[i], images[i])
            want += 0.1 * info_nce(positive, [cos(texts[i], images[j])], temperatures[term]) / 2
            want += 0.1 * info_nce(positive, [cos(texts[j], images[i])], temperatures[term]) / 2
    for composed, last, other in ((20, 30, 110), (100, 110, 30)):
        want += 0.4 * info_nce(cos(composed, last), [cos(composed, other)], temperatures["tcm"]) / 2
    terms = terms_of(HybridConfig(alpha=0.4, beta=0.1), ("target",))
    loss = terms(members([0, 2], ("target",)), lambda term: torch.tensor(temperatures[term]))
    assert float(loss.detach()) == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("k", [2, 60])
def test_all_triples_of_texts_are_mined_by_the_strategy(k):
    """TCM under in-batch-cube uses the k best allowed (text a, modification b, target text c) that are no query's."""
    rows = [*ROWS, (None, "10", "60", 60.0, 70.0), ("15", "10", None, 14.0, 20.0)]
    everyone = range(len(rows))
    strategy = make_strategy("in-batch-cube", k=k)
    terms = HybridTerms(
        HybridConfig(alpha=1.0), TrainingCalls(Plane(), 0), make_loss("info-nce"), dataset(rows), strategy
    )
    others = ~torch.eye(len(rows), dtype=torch.bool)
    allowed = others[:, None].expand(-1, len(rows), -1)  # a query's own target is no negative of its reference
    turns = [turn for _, turn, _, _, _ in rows]
    other_turns = torch.tensor([[a != b for b in turns] for a in turns])
    batch = dataclasses.replace(members(everyone, (), rows), allowed={"modification": other_turns, "triple": allowed})
    triples = {(first, turn, last) for first, turn, last, _, _ in rows}
    cosines = []
    for (a, reference), turn, (c, target) in itertools.product(enumerate(rows), turns, enumerate(rows)):
        first = reference[0]
        last = target[2]
        if a != c and first is not None and last is not None and (first, turn, last) not in triples:
            cosines.append(cos(float(first) + float(turn), float(last)))
    assert len(cosines) > k
    hardest = sorted(cosines, reverse=True)[:k]
    losses = []
    for first, turn, last, _, _ in rows:
        if first is not None and last is not None:
            losses.append(info_nce(cos(float(first) + float(turn), float(last)), hardest))
    assert float(terms(batch, backbones).detach()) == pytest.approx(sum(losses) / len(losses), rel=1e-5)


# --- temperatures --------------------------------------------------------------------------------------------------


def test_who_has_a_temperature_of_its_own(subtests):
    loss = make_loss("info-nce")
    fixed = make_loss("info-nce", tau=0.1)
    for config, terms in (
        ({}, ()),
        ({"temperature": "own"}, ("icm",)),
        ({"alpha": 0.4}, ("icm", "tcm")),
        ({"beta": 0.1}, ("icm", "ritm", "titm")),
        ({"alpha": 0.4, "beta": 0.1}, ("icm", "tcm", "ritm", "titm")),
        ({"alpha": 0.4, "beta": 0.1, "temperature": "backbone"}, ()),
    ):
        with subtests.test(config=config):
            temperatures = LossScalars.of(HybridConfig.model_validate(config), loss).temperatures()
            assert temperatures == pytest.approx(dict.fromkeys(terms, math.exp(-1)))
            if config.get("temperature") != "own":
                assert not LossScalars.of(HybridConfig.model_validate(config), fixed).temperatures()
    with pytest.raises(OptionError, match=r"^hybrid\.temperature = 'own', but loss\.tau = 0\.1 fixes"):
        LossScalars.of(HybridConfig(temperature="own"), fixed)


def test_a_temperature_at_its_bound_can_rise_again():
    scalars = LossScalars(("icm",))
    with torch.no_grad():
        scalars.log["icm"].fill_(-20.0)
    assert float(scalars("icm").detach()) == pytest.approx(0.01)
    scalars("icm").backward()
    assert scalars.log["icm"].grad.item() == pytest.approx(math.exp(-20))


# --- mistakes ------------------------------------------------------------------------------------------------------


def test_a_data_set_without_texts_is_one_line():
    bare = dataset([(None, "10", "60", 0.0, 0.0), ("5", "10", None, 0.0, 0.0)])
    with pytest.raises(DataError, match=r"^hybrid\.alpha and hybrid\.beta need texts .* toy train has none") as caught:
        HybridTerms(
            HybridConfig(beta=0.1), TrainingCalls(Plane(), 0), make_loss("info-nce"), bare, make_strategy("in-batch")
        )
    assert "\n" not in str(caught.value)
    check_hybrid(HybridConfig(), Plane(), bare)  # switched off, it needs no texts


def test_a_backbone_without_text_composition_is_named():
    with pytest.raises(NegbenchError, match=r"^backbone 'plane' has no text composition: --set hybrid\.alpha=0, or "):
        check_hybrid(HybridConfig(alpha=0.4), Textless(), dataset())
    check_hybrid(HybridConfig(beta=0.1), Textless(), dataset())


def test_texts_are_missed_before_anything_is_encoded(toy_root, tmp_path, monkeypatch):
    shutil.copytree(toy_root, tmp_path / "fashioniq", ignore=shutil.ignore_patterns("tags"))
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path / "cache"))
    sets = [f"dataset.root='{tmp_path}'", "hybrid.beta=0.1"]
    config = config_of(sets, "hycole", dataset="fashioniq")
    with pytest.raises(DataError, match="fashioniq train has none"):
        untrained(config)
    assert not (tmp_path / "cache" / "features").exists()


# --- within a step -------------------------------------------------------------------------------------------------


def step(cell: OpenRun, strategy: str, hybrid: HybridConfig | None, loss: str = "info-nce") -> Tensor:
    if hybrid is not None:  # the tests above cover the temperatures
        hybrid = hybrid.model_copy(update={"temperature": "backbone"})
    rows = torch.tensor([3, 40, 11, 25, 6])
    negatives = None if make_strategy(strategy).scope == "batch" else torch.tensor([[5], [70], [9], [1], [2]])
    objective = Objective(
        TrainingCalls(cell.backbone, 0), make_strategy(strategy), make_loss(loss), cell.scene, MiningConfig(), hybrid
    )
    return objective(Batch(rows, negatives, {k: v[rows] for k, v in cell.scene.train.tokens.items()})).loss


@pytest.mark.parametrize("strategy", ["hycole", "in-batch", "qure"])
def test_weights_of_zero_are_exactly_the_plain_loss(cell, strategy):
    plain = step(cell, strategy, None)
    assert torch.equal(step(cell, strategy, HybridConfig()), plain)


@pytest.mark.parametrize(("strategy", "slots"), [("hycole", ALL), ("qure", ("target",))])
def test_a_step_adds_the_terms_of_its_own_texts(cell, strategy, slots):
    """A step adds the terms of its own rows, whose values the tests above work out by loops."""
    rows = torch.tensor([3, 40, 11, 25, 6])
    backbone = cell.backbone
    train = cell.scene.train
    config = HybridConfig(alpha=0.4, beta=0.1)
    terms = HybridTerms(
        config, TrainingCalls(backbone, 0), make_loss("info-nce"), train.dataset, make_strategy(strategy)
    )
    queries = [train.dataset.queries[row] for row in rows.tolist()]
    names = {"target": "target", "reference": "reference", "modification": "text"}
    apart = {}
    for slot in slots:
        values = [getattr(query, names[slot]) for query in queries]
        apart[slot] = torch.tensor([[one != other for other in values] for one in values])
    with torch.no_grad():
        reference = cell.scene.features(backbone, train.references[rows])
        target = cell.scene.features(backbone, train.images[train.dataset.target_columns[rows]])
        tokens = backbone.tokenize([query.text for query in queries])
        inputs = QueryInputs(rows, train.references[rows], reference, tokens)
        members = Members(inputs, backbone.candidates(target), apart)
        want = terms(members, lambda term: backbone.temperature)
        difference = step(cell, strategy, config) - step(cell, strategy, None)
    torch.testing.assert_close(difference, want, atol=1e-5, rtol=1e-5)


REACHED = [
    ("hycole", HybridConfig(alpha=1.0), ("fusion.linear.weight", "project_text.weight")),
    ("qure", HybridConfig(alpha=1.0), ("fusion.linear.weight", "project_text.weight")),
    ("hycole", HybridConfig(beta=1.0), ("project_image.weight", "project_text.weight")),
]


@pytest.mark.parametrize(("strategy", "hybrid", "reached"), REACHED)
def test_terms_reach_what_they_are_made_of(cell, strategy, hybrid, reached):
    backbone = cell.backbone
    backbone.zero_grad()
    (step(cell, strategy, hybrid) - step(cell, strategy, None)).backward()
    for name in reached:
        assert backbone.get_parameter(name).grad.abs().max() > 1e-6, name
    image = backbone.get_parameter("project_image.weight").grad
    if hybrid.alpha:  # composing texts needs no image: its gradients cancel
        assert image is None or image.abs().max() < 1e-5
    backbone.zero_grad()
