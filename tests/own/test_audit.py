"""The audit: its numbers are those of loops over the scores, its files hold them, a judge counts what looks alike."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from negbench.analysis.tables import audit_frame
from negbench.api import make_strategy
from negbench.cli.main import run as negbench
from negbench.command_options import Audit
from negbench.config import MiningConfig, RunConfig, resolved
from negbench.contracts import BatchStrategy, ScoreView, Strategy, relevance
from negbench.display import Display
from negbench.errors import OptionError
from negbench.loop.checkpoint import stream
from negbench.loop.runs import Bench, run_config
from negbench.mining.mine import mine
from negbench.mining.planes import EmbeddedPlane
from negbench.own.audit import audit
from negbench.own.audit_rows import diversity
from negbench.own.subject import Judge, Subject, generator_of, judge_of, open_subject
from negbench.runfolder import RunFolder
from negbench.systems.system import load_config

OPTIONS = Audit(queries=20, draws=6)


@pytest.fixture(scope="module")
def config(toy_sets: list[str]) -> RunConfig:
    return resolved(load_config(flags={"strategy": {"name": "top-k", "k": 5}}, sets=toy_sets))


@pytest.fixture(scope="module")
def subject(config: RunConfig) -> Subject:
    return open_subject(config, "train", OPTIONS, Display())


def judge_by(subject: Subject, threshold: float) -> Judge:
    """The audited model as its own judge."""
    return Judge("self", EmbeddedPlane(subject.images[subject.task.target], subject.images[:, None]), threshold)


def loops(subject: Subject, row: int) -> tuple[Tensor, Tensor, int, set[int]]:
    """Scores, corpus columns, target's column and relevant columns of one sampled query."""
    task = subject.task
    columns = task.groups[int(task.group[row])]
    scores = relevance(task.queries[row : row + 1], task.candidates[columns])[0]
    assert task.relevant is not None
    return scores, columns, int(task.target[row]), set(task.relevant.row(row).tolist())


def test_the_sample_is_of_the_train_queries(subject: Subject) -> None:
    assert len(subject.rows) == 20
    assert subject.rows.tolist() == sorted(set(subject.rows.tolist()))
    targets = [subject.dataset.queries[row].target for row in subject.rows.tolist()]
    assert targets == [subject.dataset.images[column] for column in subject.task.target.tolist()]


def test_rates_are_those_of_loops(subject: Subject) -> None:
    judge = judge_by(subject, 0.4)
    found = audit(subject, {"top": make_strategy("top-k", k=5)}, OPTIONS, judge=judge)
    (row,) = found.rows
    false, judged, hardness = [], [], []
    for query in range(20):
        scores, columns, target, relevant = loops(subject, query)
        pool = [int(columns[i]) for i in scores.argsort(descending=True) if int(columns[i]) != target][:5]
        false.append(sum(image in relevant for image in pool) / 5)
        judged.append(sum(float(subject.images[image] @ subject.images[target]) > 0.4 for image in pool) / 5)
        of = dict(zip(columns.tolist(), scores.tolist(), strict=True))
        hardness.append(of[target] - sum(of[image] for image in pool) / 5)
    assert row.pool_size == 5
    assert row.pool_size_median == 5
    assert row.false_negative_rate_pool == pytest.approx(sum(false) / 20)
    assert row.judged_rate_pool == pytest.approx(sum(judged) / 20)
    assert 0 < row.judged_rate_pool < 1
    assert found.truth
    whole = audit(subject, {"top": make_strategy("top-k", k=5)}, Audit(queries=20, draws=5)).rows[0]
    assert whole.hardness == pytest.approx(sum(hardness) / 20, abs=1e-5)  # five draws of five: each once
    assert whole.false_negative_rate_draws == pytest.approx(sum(false) / 20)
    assert math.isnan(whole.judged_rate_pool)
    assert not [title for title in audit_frame([vars(whole)]) if "judged" in title]


def test_diversity_is_the_mean_over_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.nn.functional.normalize(torch.randn(3, 5, 4, generator=generator), dim=-1)
    used = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [0, 1, 0, 0, 0]], dtype=torch.bool)
    found = diversity(drawn, used).tolist()
    for query, mask in enumerate(used.tolist()):
        members = [i for i, there in enumerate(mask) if there]
        pairs = [float(drawn[query, a] @ drawn[query, b]) for a, b in combinations(members, 2)]
        if pairs:
            assert found[query] == pytest.approx(1 - sum(pairs) / len(pairs), abs=1e-6)
        else:
            assert math.isnan(found[query])
    assert diversity(drawn[:, :1].expand(-1, 4, -1)).tolist() == pytest.approx([0, 0, 0], abs=1e-6)


def test_batch_strategies_are_used_whole(subject: Subject) -> None:
    (row,) = audit(subject, {"in-batch": make_strategy("in-batch")}, OPTIONS).rows
    order = torch.randperm(20, generator=stream(0, "audit batches"))
    sizes, false, hardness, varied = [], [], [], []
    for rows in order.split(16):
        for query in rows.tolist():
            target, relevant = int(subject.task.target[query]), loops(subject, query)[3]
            others = [int(subject.task.target[o]) for o in rows.tolist() if int(subject.task.target[o]) != target]
            score = relevance(subject.task.queries[query : query + 1], subject.task.candidates)[0]
            sizes.append(len(others))
            false.append(sum(image in relevant for image in others) / len(others))
            hardness.append(float(score[target] - score[others].mean()))
            vectors = subject.images[others]
            cosine = (vectors @ vectors.T).fill_diagonal_(0).sum() / (len(others) * (len(others) - 1))
            varied.append(1 - float(cosine))
    assert row.scope == "batch"
    assert row.queries == 20
    assert row.false_negative_rate_pool == pytest.approx(sum(false) / 20)
    assert row.hardness == pytest.approx(sum(hardness) / 20, abs=1e-5)
    assert row.diversity == pytest.approx(sum(varied) / 20, abs=1e-5)
    assert math.isnan(row.band_mean)
    assert row.empty == 0


@dataclass(frozen=True)
class Never(Strategy):
    """Chooses nothing."""

    def pool(self, view: ScoreView) -> Tensor:
        return torch.zeros_like(view.allowed)


@dataclass(frozen=True)
class NeverInBatch(BatchStrategy):
    def pool(self, view: ScoreView) -> Tensor:
        return torch.zeros_like(view.allowed)


def test_fallbacks_and_empty_rows_are_counted(subject: Subject) -> None:
    corpus, batch = audit(subject, {"never": Never(), "never-batch": NeverInBatch()}, OPTIONS).rows
    lowest = sum(
        loops(subject, q)[0].min() == loops(subject, q)[0][loops(subject, q)[1] == loops(subject, q)[2]]
        for q in range(20)
    )
    assert corpus.fallback_any == int(lowest)
    assert corpus.fallback_below + corpus.fallback_any == 20
    assert batch.empty == 20


def test_audits_are_reproducible_and_know_their_seed(subject: Subject, config: RunConfig) -> None:
    strategies = {"all": make_strategy("all-corpus"), "batch": make_strategy("in-batch")}
    first, again = (audit(subject, strategies, OPTIONS).plain() for _ in range(2))
    assert json.dumps(first) == json.dumps(again)
    before = torch.get_rng_state()
    other = audit(subject, strategies, Audit(queries=20, draws=6, seed=1)).plain()
    assert torch.equal(before, torch.get_rng_state())
    assert json.dumps(other["rows"]) != json.dumps(first["rows"])


def test_oracles_without_ground_truth(subject: Subject) -> None:
    from dataclasses import replace

    blind = replace(subject, task=replace(subject.task, relevant=None))
    strategies = {"oracle-all": make_strategy("oracle-all"), "top-k": make_strategy("top-k", k=3)}
    with pytest.raises(OptionError, match="needs ground truth"):
        audit(blind, strategies, OPTIONS)
    found = audit(blind, strategies, OPTIONS, skip_oracles=True)
    assert [row.strategy for row in found.rows] == ["top-k"]
    assert found.remarks[0].startswith("left out oracle-all")
    assert math.isnan(found.rows[0].false_negative_rate_pool)
    assert not found.truth
    seen = audit(subject, strategies, OPTIONS).rows[0]
    assert seen.false_negative_rate_pool == 0


def test_another_backbone_judges(config: RunConfig) -> None:
    judging = resolved(config.model_copy(update={"mining": MiningConfig(judge="tiny")}))
    subject = open_subject(judging, "train", OPTIONS, Display(), reads=("judge",))
    judge = judge_of(subject, 0.5)
    assert judge.name == "tiny > 0.5"
    every = torch.arange(len(subject.dataset.images))
    scores = judge.scores(torch.arange(20), every)
    assert scores.gather(1, subject.task.target[:, None]).flatten().tolist() == pytest.approx([1] * 20, abs=1e-5)
    own = judge_by(subject, 0.5).scores(torch.arange(20), every)
    assert not torch.allclose(scores, own, atol=1e-2)  # shipped weights judge random ones


def test_a_file_judges_what_it_holds(config: RunConfig, subject: Subject, tmp_path: Path) -> None:
    """Draws that the file does not score are not judged wrong, and have no part in the mean."""
    top = {"top": make_strategy("top-k", k=5)}
    drawn = mine(subject.task, top["top"], refresh=0, draws=6, generator=generator_of(OPTIONS, "draws")).negatives
    data = subject.dataset
    first, image = data.queries[int(subject.rows[0])].id, data.images[int(drawn[0, 0])]
    (tmp_path / "j.trec").write_text(f"{first} Q0 {image} 1 7.5 me\n")
    judging = resolved(config.model_copy(update={"mining": MiningConfig(judge=str(tmp_path / "j.trec"))}))
    seen = open_subject(judging, "train", OPTIONS, Display(), reads=("judge",))
    (row,) = audit(seen, top, OPTIONS, judge=judge_of(seen, 7.0)).rows
    assert row.judged_rate_pool == pytest.approx(1 / 5 / 20)
    assert row.judged_rate_draws == pytest.approx(int((drawn[0] == drawn[0, 0]).sum()) / 6 / 20)
    assert audit(seen, top, OPTIONS, judge=judge_of(seen, 8.0)).rows[0].judged_rate_pool == 0


# --- the command -------------------------------------------------------------------------------------------------


def command(toy_sets: list[str], *more: str) -> list[str]:
    return ["audit", *[part for text in toy_sets for part in ("--set", text)], "--queries", "30", *more]


def test_the_command_prints_and_writes(toy_sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    flags = ("--strategy", "top-k:k=5,in-batch", "--judge", "tiny:weights=random", "--threshold", "0.8")
    assert negbench(command(toy_sets, *flags, "--out", str(out))) == 0
    shown = capsys.readouterr().out
    assert "top-k(k=5)" in shown
    assert "judged" in shown
    table = pd.read_csv(out / "audit.csv")
    assert table["strategy"].tolist() == ["top-k(k=5)", "in-batch"]
    assert table.loc[0, "pool_size"] == 5
    stored = json.loads((out / "audit.json").read_text())["audits"][0]
    assert stored["judge"] == "tiny:weights=random > 0.8"
    assert [row["strategy"] for row in stored["rows"]] == table["strategy"].tolist()


def test_a_run_s_weights_are_audited(
    vector_sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    config = load_config(flags={"strategy": {"name": "after-target", "k": 7}}, sets=[*vector_sets, "train.epochs=1"])
    result = run_config(config, Bench.open(tmp_path, "none"))
    flags = ["audit", "--run", result.run_id, "--runs-dir", str(tmp_path), "--out", str(tmp_path / "out")]
    assert negbench(flags) == 0
    stored = json.loads((tmp_path / "out" / "audit.json").read_text())["audits"][0]
    assert stored["model"] == result.run_id
    assert [row["strategy"] for row in stored["rows"]] == ["after-target(k=7)"]
    untrained = open_subject(resolved(config), "train", Audit(), Display())
    trained = open_subject(resolved(config), "train", Audit(), Display(), RunFolder(result.path))
    assert not torch.equal(untrained.task.queries, trained.task.queries)
    want = audit(trained, {"after-target(k=7)": make_strategy("after-target", k=7)}, Audit())
    assert stored["rows"][0]["hardness"] == want.rows[0].hardness
    assert stored["regime"] == want.regime
    assert stored["regime"]["fit_gap"] == result.details["regime"]["fit_gap"]
    assert "regime  the training target's median rank is " in capsys.readouterr().out
    assert negbench([*flags, "--split", "val"]) == 0  # against itself there is no gap
    assert "the fit gap is unknown" in capsys.readouterr().out
    refused([*flags, "--backbone", "tiny"], "leave --backbone")


MISTAKES_ARE_ONE_LINE: list[tuple[Any, ...]] = [
    (["--strategy", "topk"], "did you mean 'top-k'"),
    (["--strategy", "top-k,top-k:k=100"], "names top-k twice"),
    (["--judge", "tiny", "--threshold", "2"], "--threshold must be a cosine"),
    (["--judge", "tinny"], "did you mean 'tiny'"),
    (["--judge", "tiny,clip"], "unknown backbone 'tiny,clip'"),
    (["--draws", "0"], "--draws 0: input should be greater than or equal to 2"),
    (["--queries", "1"], "--queries 1: must be 0 (all) or at least 2"),
    (["--run", "nothing"], "there is no run 'nothing'"),
]


def test_mistakes_are_one_line(toy_sets: list[str], refused: Callable[..., str], tmp_path: Path) -> None:
    for flags, message in MISTAKES_ARE_ONE_LINE:
        sets = [] if "--run" in flags else toy_sets
        refused(command(sets, *flags, "--runs-dir", str(tmp_path)), message)
