"""Timing runs: what is counted, against a run that counts it; what is timed, by a clock that ticks once a call."""

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch

from negbench.data.scene import DataCache
from negbench.loop import observe, pools, run_timer, train
from negbench.loop.run_timer import RunTimer, _PartTimer
from negbench.loop.runs import RunContext, compute_or_reuse, plan_run
from negbench.mining import curves
from negbench.scoring import evaluation
from negbench.settings.config import PluginConfig
from negbench.systems.system import load_config
from tests import standin

PARTS = {
    (evaluation, "rank"): "scoring",
    (evaluation, "rank_judged"): "scoring",
    (evaluation, "measure"): "scoring",
    (observe, "regime"): "regime_card",
    (curves, "score_curves"): "regime_card",
    (pools, "mine"): "refresh",
    (train, "train_epoch"): "epoch",
}
RUNS = [
    ("in-batch", ["train.epochs=5", "eval.every=2"]),
    ("top-k", ["train.epochs=5", "eval.every=3", "schedule.refresh_every=2"]),
    ("cirqrs", ["eval.reported=false", "eval.every=4"]),
    ("all-corpus:2>in-batch", ["eval.select='dev'"]),
    ("top-k:2>qure", ["schedule.n_def=4"]),
]


@pytest.mark.parametrize(("strategy", "sets"), RUNS, ids=[name for name, _ in RUNS])
def test_each_part_is_counted_as_often_as_a_run_does_it(strategy, sets, vector_sets, tmp_path, monkeypatch):
    counts = Counter[str]()
    cache = DataCache()
    planned = plan_run(load_config(flags={"strategy": {"name": strategy}}, sets=[*vector_sets, *sets]), cache)

    def count_call(part, function, *args, **options):
        counts[part] += 1
        return function(*args, **options)

    for (module, name), part in PARTS.items():
        monkeypatch.setattr(module, name, partial(count_call, part, getattr(module, name)))
    compute_or_reuse(planned, RunContext(tmp_path, RunContext.open(tmp_path, "none").tracker, cache=cache))
    for part in {*PARTS.values()}:
        for other in PARTS.values():
            monkeypatch.setattr(_PartTimer, other, lambda *_, is_it=other == part: float(is_it))
        assert RunTimer(cache).seconds(planned) == pytest.approx(counts[part] + run_timer._STORED), part


def test_another_data_set_counts_as_its_queries(toy_sets, tmp_path, monkeypatch):
    standin.write_preferences(tmp_path, users=4, judgements=6, images=40)
    for part in {*PARTS.values()}:
        monkeypatch.setattr(_PartTimer, part, lambda *_, is_it=part == "scoring": float(is_it))
    cache = DataCache()

    def plan(*sets):
        return plan_run(load_config(flags={"strategy": {"name": "qure"}}, sets=[*toy_sets, *sets]), cache)

    alone = RunTimer(cache)._seconds(plan())
    planned = plan(f"eval.also='hp-fashioniq:root={tmp_path}'")
    with_another = RunTimer(cache)._seconds(planned)
    points = 3  # two epochs and the untrained model
    queries = len(cache.splits(planned.config).val.queries)
    assert with_another - alone == pytest.approx(points * 24 / queries)


def test_some_queries_and_steps_stand_for_all(monkeypatch):
    """48 queries in 3 steps: of 16 the refresh counts three times, of two steps each counts one and a half times."""
    ticks = iter(range(1000))
    monkeypatch.setattr(run_timer, "_QUERIES", 16)
    monkeypatch.setattr(run_timer, "_STEPS", 2)
    monkeypatch.setattr(run_timer.time, "process_time", lambda: float(next(ticks)))
    monkeypatch.setattr(run_timer, "regime", lambda task: torch.rand(1))
    sizes = ("train_images=60", "train_queries=48", "val_images=60", "val_queries=20")
    sets = [*(f"dataset.{size}" for size in sizes), "backbone.dim=8", "train.epochs=4", "train.batch_size=16"]
    flags = {"strategy": {"name": "qure"}, "dataset": {"name": "vectors"}, "backbone": {"name": "vectors"}}
    config = load_config(flags=flags, sets=sets)
    cache = DataCache()
    before = torch.get_rng_state()
    timer = RunTimer(cache)
    first = timer.seconds(plan_run(config, cache))
    timed_parts = sorted((part, seconds) for (part, *_), seconds in timer._seconds_of.items())
    # the corpus before the first refresh is mined once too
    assert timed_parts == [("epoch", 2.5), ("refresh", 3), ("refresh", 3), ("regime_card", 1), ("scoring", 1)]
    assert torch.equal(torch.get_rng_state(), before)
    tick = next(ticks)
    assert timer.seconds(plan_run(config.model_copy(update={"seed": 1}), cache)) == first
    assert next(ticks) == tick + 1  # another world of the same kind is not timed again


def test_what_must_be_encoded_is_not_rehearsed(vector_sets, monkeypatch):
    monkeypatch.setattr(RunTimer, "_seconds", lambda self, planned: 5.0)
    cache = DataCache()
    planned = plan_run(load_config(flags={"strategy": {"name": "qure"}}, sets=vector_sets), cache)
    encoder = planned.config.model_copy(update={"backbone": PluginConfig(name="tiny")})
    assert RunTimer(cache).seconds(planned) == 5.0
    assert RunTimer(cache).seconds(replace(planned, config=encoder)) == 0.0
