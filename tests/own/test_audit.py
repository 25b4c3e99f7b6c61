"""The audit: its numbers equal those of loops over the scores."""

import json
import math
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

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


@dataclass(frozen=True)
class Query:
    """A sampled query: the score of each image of its corpus, by column, its target and all relevant images."""

    scores: dict[int, float]
    target: int
    relevant: set[int]

    def first_others(self, count: int) -> list[int]:
        """Return the images with the highest scores, without the target."""
        others = [column for column in self.scores if column != self.target]
        return sorted(others, key=self.scores.__getitem__, reverse=True)[:count]


def queries_of(split: ScoredSplit) -> list[Query]:
    task = split.task
    queries = []
    for row in range(len(task.queries)):
        columns = task.groups[int(task.group[row])]
        scores = relevance(task.queries[row : row + 1], task.candidates[columns])[0]
        by_column = dict(zip(columns.tolist(), scores.tolist(), strict=True))
        queries.append(Query(by_column, int(task.target[row]), set(task.relevant.row(row).tolist())))
    return queries


def test_the_sample_is_of_the_train_queries(scored):
    assert len(scored.rows) == 20
    assert scored.rows.tolist() == sorted(set(scored.rows.tolist()))
    targets = [scored.dataset.queries[row].target for row in scored.rows.tolist()]
    assert targets == [scored.dataset.images[column] for column in scored.task.target.tolist()]


def test_rates_of_pools_are_those_of_loops(scored):
    audited = audit(scored, {"top": make_strategy("top-k", k=5)}, OPTIONS)
    (row,) = audited.rows
    shares = [len(query.relevant.intersection(query.first_others(5))) / 5 for query in queries_of(scored)]
    assert row["pool_size"] == row["pool_size_median"] == 5
    assert row["false_negative_rate_pool"] == pytest.approx(sum(shares) / 20)
    assert audited.truth
    assert audited.frame()["pool_size"].tolist() == [5]
    assert "FN pool %" in audit_frame(audited.rows)


def test_rates_of_draws_are_those_of_loops(scored):
    """Five draws from a pool of five: each image once."""
    (row,) = audit(scored, {"top": make_strategy("top-k", k=5)}, Audit(queries=20, draws=5)).rows
    hardness = []
    shares = []
    for query in queries_of(scored):
        pool = query.first_others(5)
        hardness.append(query.scores[query.target] - sum(query.scores[image] for image in pool) / 5)
        shares.append(len(query.relevant.intersection(pool)) / 5)
    assert row["hardness"] == pytest.approx(sum(hardness) / 20, abs=1e-5)
    assert row["false_negative_rate_draws"] == pytest.approx(sum(shares) / 20)


def test_an_audit_says_with_which_batches_and_passes_mining_gained(scored):
    audited = audit(scored, {"top": make_strategy("top-k", k=5)}, OPTIONS)
    train = scored.config.train
    settings = f"your batch of {train.batch_size} and {train.epochs} passes"
    assert audited.gained.startswith(f"{settings} are no more than those with which mining gained")


def test_likeness_is_the_judges_cosine_of_draws_and_target(config, scored):
    """The judge is the audited backbone, untrained, so its images are those of the task."""
    with_judge = config.model_copy(update={"mining": config.mining.model_copy(update={"judge": "tiny:weights=random"})})
    split = open_split(with_judge, "train", Display(), reads={"judge"}, queries=OPTIONS.queries)
    options = Audit(queries=20, draws=5)  # a pool of five: each once
    (row,) = audit(split, {"top": make_strategy("top-k", k=5)}, options).rows
    images = torch.nn.functional.normalize(split.task.candidates.mean(1), dim=-1)
    cosines = []
    for query in queries_of(split):
        cosines += [float(images[query.target] @ images[column]) for column in query.first_others(5)]
    assert row["likeness"] == pytest.approx(sum(cosines) / len(cosines), abs=1e-5)
    assert row["likeness_90"] == pytest.approx(np.quantile(cosines, 0.9), abs=1e-5)
    assert row["likeness_10"] < row["likeness"] < row["likeness_90"]
    assert "likeness" in audit_frame([row])
    assert "likeness" not in audit(scored, {"t": make_strategy("top-k")}, options).rows[0]


def test_diversity_is_the_mean_over_pairs():
    draws = torch.nn.functional.normalize(torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0)), dim=-1)
    for query, distance in enumerate(diversity(draws).tolist()):
        cosines = [float(one @ other) for one, other in combinations(draws[query], 2)]
        assert distance == pytest.approx(1 - sum(cosines) / len(cosines), abs=1e-6), f"query {query}"
    assert diversity(draws[:, :1].expand(-1, 4, -1)).tolist() == pytest.approx([0, 0, 0], abs=1e-6)


def test_fallbacks_are_counted(scored):
    """Below the target, or, if it is the last, in the whole corpus."""
    (row,) = audit(scored, {"never": Function(lambda view: torch.zeros_like(view.allowed))}, OPTIONS).rows
    is_last = [query.scores[query.target] == min(query.scores.values()) for query in queries_of(scored)]
    assert row["fallback_any"] == sum(is_last)
    assert row["fallback_below"] + row["fallback_any"] == 20


def test_audits_are_reproducible_and_know_their_seed(scored):
    strategies = {"all": make_strategy("all-corpus"), "top": make_strategy("top-k", k=5)}
    first = audit(scored, strategies, OPTIONS).plain()
    again = audit(scored, strategies, OPTIONS).plain()
    assert json.dumps(first) == json.dumps(again)
    before = torch.get_rng_state()
    other = audit(scored, strategies, Audit(queries=20, draws=6, seed=1)).plain()
    assert torch.equal(before, torch.get_rng_state())
    assert json.dumps(other["rows"]) != json.dumps(first["rows"])


def test_oracles_without_ground_truth(scored):
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


def test_the_command_prints_the_strategies_that_are_asked_for(toy_sets, document, run_command):
    flags = command(toy_sets, "--strategy", "top-k:k=5,all-corpus")
    assert "top-k(k=5)" in run_command(*flags).out
    top_k, all_corpus = document(*flags)["rows"]
    assert (top_k["strategy"], top_k["pool_size"]) == ("top-k(k=5)", 5)
    assert top_k["overlap"] is None  # JSON has no NaN
    assert all_corpus["strategy"] == "all-corpus"
    assert all_corpus["pool_size"] != 5


def test_the_command_prints_every_corpus_strategy(toy_sets, document):
    strategies = {row["strategy"] for row in document(*command(toy_sets))["rows"]}
    assert {"qure", "cirqrs", "oracle-all"} <= strategies
    assert not {"in-batch", "hycole"} & strategies


@pytest.mark.parametrize(
    ("sets", "negatives", "tau"),
    [([], 1, None), (["train.num_negatives=16"], 16, None), (["loss.tau=0.03"], 1, 0.03)],
    ids=["one negative", "16 negatives", "a fixed temperature"],
)
def test_the_command_names_a_window(toy_sets, document, sets, negatives, tau):
    audited = document(*command(toy_sets, *flags_of(sets), "--strategy", "all-corpus"))
    card = audited["regime"]
    assert audited["window"] == window(card["target_rank_median"], negatives, card["images"], tau)


@pytest.mark.parametrize(
    ("sets", "reason"),
    [
        (["loss.tau=0.2"], "at temperatures of 0.01 to 0.15 and at a learned one, not at 0.2"),
        (["loss.tau=0.07", "train.num_negatives=17"], "at a fixed temperature it was judged with 1 to 16 negatives"),
        (["loss.name=triplet"], "triplet"),
        (["train.num_negatives=64"], "64"),
    ],
    ids=["temperature", "negatives at a fixed temperature", "loss", "negatives"],
)
def test_the_command_says_why_it_names_no_window(toy_sets, document, sets, reason):
    audited = document(*command(toy_sets, *flags_of(sets), "--strategy", "all-corpus"))
    assert audited["window"] == ""
    (remark,) = [remark for remark in audited["remarks"] if remark.startswith("no window")]
    assert reason in remark


def ends_of(text: str) -> tuple[int, int]:
    """Return the ends of a window such as "shifted-top-k:start=0:stop=32"."""
    _name, start, stop = text.split(":")
    return int(start.removeprefix("start=")), int(stop.removeprefix("stop="))


@pytest.mark.parametrize("tau", [None, 0.05, 0.07, 0.14])
@pytest.mark.parametrize("negatives", [1, 4, 16])
@pytest.mark.parametrize("target", [18.5, 400])
def test_the_window_lies_around_a_multiple_of_the_target_s_rank(target, negatives, tau):
    start, stop = ends_of(window(target, negatives, 9000, tau))
    if tau is None:
        multiple = 1.6 * negatives**0.24
    else:
        multiple = 0.85 * negatives**0.15 * (tau / 0.07) ** 1.25
    assert stop - start == max(start, 2 * negatives)
    assert math.sqrt((start + 1) * stop) == pytest.approx(multiple * target, rel=0.06)


def test_the_window_lies_in_the_gallery():
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
    open_scene = scored_split.open_scene

    def note_and_open(config: Any, splits: Any, backbone: Any, *more: Any) -> Any:
        precisions.append(backbone.precision)
        return open_scene(config, splits, backbone, *more)

    monkeypatch.setattr(scored_split, "open_scene", note_and_open)
    monkeypatch.setattr(RunFolder, "precision", "fp16")
    half = resolve(config_of(vector_sets, "qure", "train.epochs=1", "train.precision=fp16"))
    open_split(half, "train", Display(), RunFolder(result.path))
    assert precisions == ["fp16"]


def test_mistakes_are_one_line(toy_sets, expect_error, tmp_path, mistakes, subtests):
    for flags, message in mistakes["audit"].items():
        with subtests.test(flags):
            sets = [] if "--run" in flags else toy_sets
            expect_error(command(sets, *flags.split(), "--runs-dir", str(tmp_path)), message)
