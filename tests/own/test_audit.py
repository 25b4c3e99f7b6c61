"""The audit: its numbers equal those of loops over the scores."""

import json
import math
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from negbench.analysis.run_tables import audit_frame
from negbench.api import make_strategy
from negbench.contracts import relevance
from negbench.display import Display
from negbench.errors import OptionError
from negbench.mining.window import window
from negbench.own import scored_split
from negbench.own.audit import audit, diversity
from negbench.own.scored_split import ScoredSplit, open_split
from negbench.settings.command_options import Audit
from negbench.settings.config import RunConfig, resolve
from negbench.store.runfolder import RunFolder
from tests.mining.test_mining import Function
from tests.runs import config_of, flags_of, run

OPTIONS = Audit(queries=20, draws=6)


@pytest.fixture(scope="module")
def config(toy_sets: list[str]) -> RunConfig:
    return resolve(config_of(toy_sets, "top-k:k=5"))


@pytest.fixture(scope="module")
def scored(config: RunConfig) -> ScoredSplit:
    return open_split(config, "train", Display(), queries=OPTIONS.queries)


def loops(scored: ScoredSplit, row: int) -> tuple[Tensor, Tensor, int, set[int]]:
    """Return scores, corpus columns, target's column and relevant columns of one sampled query."""
    task = scored.task
    columns = task.groups[int(task.group[row])]
    scores = relevance(task.queries[row : row + 1], task.candidates[columns])[0]
    return scores, columns, int(task.target[row]), set(task.relevant.row(row).tolist())


def test_the_sample_is_of_the_train_queries(scored):
    assert len(scored.rows) == 20
    assert scored.rows.tolist() == sorted(set(scored.rows.tolist()))
    targets = [scored.dataset.queries[row].target for row in scored.rows.tolist()]
    assert targets == [scored.dataset.images[column] for column in scored.task.target.tolist()]


def test_rates_are_those_of_loops(scored):
    audited = audit(scored, {"top": make_strategy("top-k", k=5)}, OPTIONS)
    (row,) = audited.rows
    train = scored.config.train
    assert audited.gained.startswith(
        f"your batch of {train.batch_size} and {train.epochs} passes are no more than those with which mining gained"
    )
    false, hardness = [], []
    for query in range(20):
        scores, columns, target, relevant = loops(scored, query)
        pool = [int(columns[i]) for i in scores.argsort(descending=True) if int(columns[i]) != target][:5]
        false.append(sum(image in relevant for image in pool) / 5)
        of = dict(zip(columns.tolist(), scores.tolist(), strict=True))
        hardness.append(of[target] - sum(of[image] for image in pool) / 5)
    assert row["pool_size"] == row["pool_size_median"] == 5
    assert row["false_negative_rate_pool"] == pytest.approx(sum(false) / 20)
    assert audited.truth
    whole = audit(scored, {"top": make_strategy("top-k", k=5)}, Audit(queries=20, draws=5)).rows[0]
    assert whole["hardness"] == pytest.approx(sum(hardness) / 20, abs=1e-5)  # five draws, pool of five: each once
    assert whole["false_negative_rate_draws"] == pytest.approx(sum(false) / 20)
    assert audited.frame()["pool_size"].tolist() == [5]
    assert "FN pool %" in audit_frame(audited.rows)


def test_likeness_is_the_judges_cosine_of_draws_and_target(config, scored):
    """The judge is the audited backbone, untrained, so its images are those of the task."""
    judged = config.model_copy(update={"mining": config.mining.model_copy(update={"judge": "tiny:weights=random"})})
    read = open_split(judged, "train", Display(), reads={"judge"}, queries=OPTIONS.queries)
    options = Audit(queries=20, draws=5)  # a pool of five: each once
    row = audit(read, {"top": make_strategy("top-k", k=5)}, options).rows[0]
    images = torch.nn.functional.normalize(read.task.candidates.mean(1), dim=-1)
    cosines = []
    for query in range(20):
        scores, columns, target, _ = loops(read, query)
        pool = [int(columns[i]) for i in scores.argsort(descending=True) if int(columns[i]) != target][:5]
        cosines += [float(images[target] @ images[column]) for column in pool]
    assert row["likeness"] == pytest.approx(sum(cosines) / len(cosines), abs=1e-5)
    assert row["likeness_90"] == pytest.approx(np.quantile(cosines, 0.9), abs=1e-5)
    assert row["likeness_10"] < row["likeness"] < row["likeness_90"]
    assert "likeness" in audit_frame([row])
    assert "likeness" not in audit(scored, {"t": make_strategy("top-k")}, options).rows[0]


def test_diversity_is_the_mean_over_pairs():
    drawn = torch.nn.functional.normalize(torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0)), dim=-1)
    for query, distance in enumerate(diversity(drawn).tolist()):
        pairs = [float(drawn[query, a] @ drawn[query, b]) for a, b in combinations(range(5), 2)]
        assert distance == pytest.approx(1 - sum(pairs) / len(pairs), abs=1e-6), f"query {query}"
    assert diversity(drawn[:, :1].expand(-1, 4, -1)).tolist() == pytest.approx([0, 0, 0], abs=1e-6)


def test_fallbacks_are_counted(scored):
    (row,) = audit(scored, {"never": Function(lambda view: torch.zeros_like(view.allowed))}, OPTIONS).rows
    queries = [loops(scored, query) for query in range(20)]
    lowest = sum(scores.min() == scores[columns == target] for scores, columns, target, _ in queries)
    assert row["fallback_any"] == int(lowest)
    assert row["fallback_below"] + row["fallback_any"] == 20


def test_audits_are_reproducible_and_know_their_seed(scored):
    strategies = {"all": make_strategy("all-corpus"), "top": make_strategy("top-k", k=5)}
    first, again = (audit(scored, strategies, OPTIONS).plain() for _ in range(2))
    assert json.dumps(first) == json.dumps(again)
    before = torch.get_rng_state()
    other = audit(scored, strategies, Audit(queries=20, draws=6, seed=1)).plain()
    assert torch.equal(before, torch.get_rng_state())
    assert json.dumps(other["rows"]) != json.dumps(first["rows"])


def test_oracles_without_ground_truth(scored):
    from dataclasses import replace

    blind = replace(scored, task=replace(scored.task, relevant=None))
    strategies = {"oracle-all": make_strategy("oracle-all"), "top-k": make_strategy("top-k", k=3)}
    with pytest.raises(OptionError, match="needs ground truth"):
        audit(blind, strategies, OPTIONS)
    audited = audit(blind, strategies, OPTIONS, skip_oracles=True)
    assert [row["strategy"] for row in audited.rows] == ["top-k"]
    assert audited.remarks[0].startswith("left out oracle-all")
    assert math.isnan(audited.rows[0]["false_negative_rate_pool"])
    assert not audited.truth
    assert audit(scored, strategies, OPTIONS).rows[0]["false_negative_rate_pool"] == 0


# --- the command -------------------------------------------------------------------------------------------------


def command(toy_sets: list[str], *more: str) -> list[str]:
    return ["audit", *flags_of(toy_sets), "--queries", "30", *more]


def test_the_command_prints_every_corpus_strategy(subtests, toy_sets, document, run_command):
    flags = command(toy_sets, "--strategy", "top-k:k=5,all-corpus")
    assert "top-k(k=5)" in run_command(*flags).out
    stored = document(*flags)
    rows, card = stored["rows"], stored["regime"]
    assert rows[0]["overlap"] is None  # JSON has no NaN
    assert stored["window"] == window(card["target_rank_median"], 1, card["images"])
    assert [(row["strategy"], row["pool_size"] == 5) for row in rows] == [("top-k(k=5)", True), ("all-corpus", False)]
    sixteen = document(*command(toy_sets, "--set", "train.num_negatives=16"))
    assert sixteen["window"] == window(card["target_rank_median"], 16, card["images"])
    for settings, why in (
        (["loss.tau=0.2"], "at temperatures of 0.01 to 0.15 and at a learned one, not at 0.2"),
        (["loss.tau=0.07", "train.num_negatives=17"], "at a fixed temperature it was judged with 1 to 16 negatives"),
        (["loss.name=triplet"], "triplet"),
        (["train.num_negatives=64"], "64"),
    ):
        with subtests.test(why=why):
            audited = document(*command(toy_sets, *flags_of(settings), "--strategy", "all-corpus"))
            assert audited["window"] == ""
            assert [why in remark for remark in audited["remarks"] if remark.startswith("no window")] == [True]
    cold = document(*command(toy_sets, "--set", "loss.tau=0.03", "--strategy", "all-corpus"))
    assert cold["window"] == window(card["target_rank_median"], 1, card["images"], 0.03)
    every = {row["strategy"] for row in sixteen["rows"]}
    assert {"qure", "cirqrs", "oracle-all"} <= every
    assert not {"in-batch", "hycole"} & every


def test_the_window_lies_around_a_multiple_of_the_target_s_rank(subtests):
    for target, negatives, tau in product((18.5, 400), (1, 4, 16), (None, 0.05, 0.07, 0.14)):
        with subtests.test(target=target, negatives=negatives, tau=tau):
            start, stop = (int(part.split("=")[1]) for part in window(target, negatives, 9000, tau).split(":")[1:])
            assert stop - start == max(start, 2 * negatives)
            at = 1.6 * negatives**0.24 if tau is None else 0.85 * negatives**0.15 * (tau / 0.07) ** 1.25
            assert math.sqrt((start + 1) * stop) == pytest.approx(at * target, rel=0.06)
    assert window(1, 16, 9000) == "shifted-top-k:start=0:stop=32"
    assert window(400, 16, 1000) == "shifted-top-k:start=880:stop=1000"  # no further than the gallery
    assert window(3, 16, 20) == "shifted-top-k:start=0:stop=20"


def test_a_run_s_weights_are_audited(vector_sets, tmp_path, document, run_command):
    config = config_of(vector_sets, "after-target:k=7", "train.epochs=1")
    result = run(config, tmp_path)
    flags = ["audit", "--run", result.run_id, "--runs-dir", str(tmp_path)]
    stored = document(*flags)
    assert (stored["model"], stored["window"]) == (result.run_id, "")
    assert [row["strategy"] for row in stored["rows"]] == ["after-target(k=7)"]
    untrained = open_split(resolve(config), "train", Display())
    trained = open_split(resolve(config), "train", Display(), RunFolder(result.path))
    assert not torch.equal(untrained.task.queries, trained.task.queries)
    want = audit(trained, {"after-target(k=7)": make_strategy("after-target", k=7)}, Audit())
    assert stored["rows"][0]["hardness"] == want.rows[0]["hardness"]
    assert stored["regime"] == want.regime
    assert stored["regime"]["fit_gap"] == result.details["regime"]["fit_gap"]
    assert "regime  the training target's median rank is " in run_command(*flags).out
    assert "the fit gap is unknown" in run_command(*flags, "--split", "val").out  # val against itself has no gap


def test_a_run_is_audited_in_its_own_precision(vector_sets, tmp_path, monkeypatch):
    """A CPU audits a run of a GPU's fp16, as it evaluates it; it refuses only to train so."""
    config = config_of(vector_sets, "qure", "train.epochs=1")
    result = run(config, tmp_path)
    precisions = list[str]()
    opened = scored_split.open_scene

    def note(config: Any, splits: Any, backbone: Any, *more: Any) -> Any:
        precisions.append(backbone.precision)
        return opened(config, splits, backbone, *more)

    monkeypatch.setattr(scored_split, "open_scene", note)
    monkeypatch.setattr(RunFolder, "precision", "fp16")
    half = resolve(config_of(vector_sets, "qure", "train.epochs=1", "train.precision=fp16"))
    open_split(half, "train", Display(), RunFolder(result.path))
    assert precisions == ["fp16"]


def test_mistakes_are_one_line(toy_sets, expect_error, tmp_path, mistakes, subtests):
    for flags, message in mistakes["audit"].items():
        with subtests.test(flags):
            given = command(([] if "--run" in flags else toy_sets), *flags.split(), "--runs-dir", str(tmp_path))
            expect_error(given, message)
