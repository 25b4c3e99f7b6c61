"""Advice: neighbours by a loop, worlds where the card tells and worlds where it does not, the command on own data."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from negbench.advise.advise import FEATURES, MARGIN, World, Worlds, advise, read_worlds
from negbench.cli.main import run as negbench
from negbench.errors import DataError, NegbenchError


def world(place: float, behind: dict[str, float], other: float = 0.0) -> World:
    """A world whose card tells its place, and one more number."""
    cards = {"untrained": {"target_first": place, "tail": other}, "trained": {"target_first": place / 2, "tail": other}}
    return World({"x": place}, cards, behind, frozenset(name for name, gap in behind.items() if gap == 0))


def told(count: int = 40) -> Worlds:
    """`low` is the best below 0.5, `high` above it."""
    places = (np.arange(count) + 0.5) / count
    return Worlds(
        "recall_at_10", 3, 100,
        tuple(world(p, {"low": 0.0, "high": 0.1} if p < 0.5 else {"low": 0.2, "high": 0.0}) for p in places),
    )  # fmt: skip


def noise(seed: int, count: int = 60) -> Worlds:
    """The card tells nothing: who is ahead is drawn, `often` more often."""
    generator = np.random.default_rng(seed)
    worlds = []
    for _ in range(count):
        best = "often" if generator.random() < 0.7 else "seldom"
        behind = {name: 0.0 if name == best else float(generator.uniform(0.01, 0.1)) for name in ("often", "seldom")}
        worlds.append(world(float(generator.random()), behind, float(generator.normal())))
    return Worlds("recall_at_10", 3, 100, tuple(worlds))


def test_the_nearest_worlds_by_a_loop() -> None:
    worlds = noise(3)
    card = {"target_first": 0.3, "tail": -0.2}
    found = advise(card, worlds, "untrained", neighbours=4)
    table = np.array([[w.cards["untrained"][name] for name in ("target_first", "tail")] for w in worlds.worlds])
    mean, sd = table.mean(0), table.std(0)
    distances = []
    for row in table:
        distances.append(math.sqrt(sum(((a - b) / s) ** 2 for a, b, s in zip(row, (0.3, -0.2), sd, strict=True)) / 2))
    order = np.argsort(distances)[:4]
    assert [w.dials for w, _ in found.nearest] == [worlds.worlds[i].dials for i in order]
    assert [d for _, d in found.nearest] == pytest.approx([distances[i] for i in order])
    weight = 1 / np.array([distances[i] for i in order])
    for name, value in found.expected.items():
        behind = np.array([worlds.worlds[i].behind[name] for i in order])
        assert value == pytest.approx(float((weight * behind).sum() / weight.sum()))
    assert found.features == ("target_first", "tail")
    assert mean.shape == (2,)


def test_a_card_that_tells_is_followed() -> None:
    low, high = (advise({"target_first": place}, told(), "untrained") for place in (0.1, 0.9))
    assert (low.strategy, high.strategy) == ("low", "high")
    assert low.held.better
    assert low.held.advised > 0.9 > 0.6 > low.held.constant
    assert low.held.regret < low.held.constant_regret
    assert low.expected["low"] == pytest.approx(0)
    assert advise({"target_first": 0.1}, told(), "trained").features == ("target_first",)


@pytest.mark.parametrize("seed", range(5))
def test_a_card_that_tells_nothing_is_not_followed(seed: int) -> None:
    found = advise({"target_first": 0.2, "tail": 0.1}, noise(seed), "untrained")
    assert not found.held.better
    assert found.strategy == found.constant == "often"
    assert found.held.constant >= 0.5


def test_what_lies_outside_the_map_is_named() -> None:
    found = advise({"target_first": 1.5, "tail": 0.0, "skewness": 3.0}, told(), "untrained")
    assert list(found.outside) == ["target_first"]
    assert found.outside["target_first"] == pytest.approx((1.5, 0.0125, 0.9875))
    assert found.features == ("target_first", "tail")
    with pytest.raises(NegbenchError, match="no number in common"):
        advise({"target_first": math.nan}, told(), "untrained")


def test_within_the_margin_is_as_good() -> None:
    one = world(0.5, {"a": 0.0, "b": MARGIN, "c": 2 * MARGIN})
    assert [one.good(name) for name in "abc"] == [True, True, False]


def test_a_table_that_cannot_advise_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "worlds.json"
    path.write_text(json.dumps({"metric": "m", "seeds": 1, "queries": 2, "worlds": []}))
    with pytest.raises(DataError, match="0 worlds cannot advise"):
        read_worlds(path)
    path.write_text(json.dumps({"worlds": [{}]}))
    with pytest.raises(DataError, match="not the worlds of a map"):
        read_worlds(path)


# --- from a map to advice on other data ------------------------------------------------------------------------------


def test_a_map_advises_on_own_embeddings(
    tmp_path: Path, vector_sets: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [part for text in vector_sets for part in ("--set", text)]
    dials = ["--dial", "train.lr=0.001,0.003,0.01,0.03,0.1", "--dial", "train.epochs=1,2"]
    command = ["map", *dials, "--strategies", "all-corpus,top-k", "--seeds", "1", "--tracking-uri", "none"]
    command += ["--runs-dir", str(tmp_path), *sets]
    assert negbench(command) == 0
    path = tmp_path / "map" / "worlds.json"
    table: Any = json.loads(path.read_text())
    assert len(table["worlds"]) == 10
    assert set(table["worlds"][0]["cards"]["untrained"]) <= {
        *FEATURES,
        "false_negatives",
        "recall_val",
        "tail",
        "kurtosis",
    }
    assert table["worlds"][0]["cards"]["untrained"]["train_queries"] == 48
    capsys.readouterr()
    assert negbench(["advise", "--worlds", str(path), "--runs-dir", str(tmp_path), *sets]) == 0
    out = capsys.readouterr().out
    assert "regime" in out
    assert "held out, 10 worlds" in out
    assert negbench(["advise", "--worlds", str(path), "--runs-dir", str(tmp_path), *sets, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["strategy"] in ("all-corpus", "top-k")
    assert document["regime"]["train_queries"] == 48
    assert any(f"{name}: " in out.split("advice")[-1] for name in ("all-corpus", "top-k"))
