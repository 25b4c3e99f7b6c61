"""The regime card of a run: when it is taken, that it is of the model as it then is, and where it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from negbench.api import make_strategy
from negbench.command_options import Audit
from negbench.config import RunConfig, resolved
from negbench.display import Display
from negbench.loop.observe import card_epochs
from negbench.loop.runs import Bench, run_config
from negbench.loop.types import RunResult
from negbench.mining.regime import Regime
from negbench.own.audit import audit
from negbench.own.subject import open_subject
from negbench.runfolder import final_values
from negbench.systems.system import load_config

FIELDS = list(Regime.__dataclass_fields__)


def config_of(strategy: str, sets: list[str], *more: str) -> RunConfig:
    return load_config(flags={"strategy": strategy}, sets=[*sets, *more])


def run(strategy: str, sets: list[str], runs: Path, *more: str) -> RunResult:
    return run_config(config_of(strategy, sets, *more), Bench.open(runs, "none"))


@pytest.mark.parametrize(
    ("strategy", "more", "want"),
    [
        ("qure", (), {0, 2, 4, 6, 8, 10}),
        ("in-batch", (), {0, 2, 4, 6, 8, 10}),
        ("all-corpus", (), {0, 2, 4, 6, 8, 10}),
        ("qure", ("schedule.refresh_epochs=[3,5]",), {0, 3, 5}),
        ("qure", ("schedule.refresh_epochs=[0]",), {0, 2, 4, 6, 8, 10}),
        ("cirqrs", ("schedule.n_def=3",), {0, 4, 8}),
    ],
)
def test_runs_of_one_length_are_looked_at_in_the_same_epochs(
    strategy: str, more: tuple[str, ...], want: set[int]
) -> None:
    assert card_epochs(resolved(config_of(strategy, [], "train.epochs=12", *more))) == want


@pytest.mark.parametrize("strategy", ["qure", "in-batch"])
def test_the_cards_are_of_the_model_as_it_is(strategy: str, toy_sets: list[str], tmp_path: Path) -> None:
    found = run(strategy, toy_sets, tmp_path, "schedule.refresh_epochs=[2]")
    result = found.folder.result
    epochs = [0, 2] if strategy == "qure" else [0, 1, 2, 3]
    assert [card["epoch"] for card in result["regime_by_refresh"]] == epochs
    assert result["regime"]["epoch"] == 4
    options = Audit(queries=0)
    ended = audit(
        open_subject(resolved(found.folder.config), "train", options, Display(), found.folder),
        {"all": make_strategy("all-corpus")},
        options,
    )
    assert list(ended.regime) == FIELDS
    for name, value in ended.regime.items():
        assert result["regime"][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    points = [point for point in found.folder.metrics() if "regime/images" in point]
    assert [point["epoch"] for point in points] == [*epochs, 4]
    for point, card in zip(points, [*result["regime_by_refresh"], result["regime"]], strict=True):
        assert {name: point.get(f"regime/{name}") for name in FIELDS} == {name: card[name] for name in FIELDS}
    at_end = final_values(result)
    assert {name: at_end[f"regime_end/{name}"] for name in FIELDS} == {name: result["regime"][name] for name in FIELDS}
    ranks = {card["target_rank_median"] for card in result["regime_by_refresh"]}
    assert len(ranks | {result["regime"]["target_rank_median"]}) > 1


def test_val_is_ranked_by_the_model_of_the_card_however_often_it_is_scored(toy_sets: list[str], tmp_path: Path) -> None:
    every, some = (run("in-batch", toy_sets, tmp_path, f"eval.every={n}").folder.result for n in (1, 2))
    cards = [[*result["regime_by_refresh"], result["regime"]] for result in (every, some)]
    assert cards[0] == cards[1]
    assert len({card["recall_val"] for card in cards[0]}) > 1
    assert all(card["fit_gap"] == card["recall_train"] - card["recall_val"] for card in cards[0])
