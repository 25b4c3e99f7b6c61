"""`--dry-run` of every command that computes: what it reads, what is left, how long; nothing is written."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np

import negbench as package
from negbench import display
from negbench.display import Display, duration
from negbench.loop.run_timer import RunTimer
from negbench.own import embed as own_embed
from negbench.own import negatives
from negbench.settings.command_options import Claims
from negbench.settings.options import Study
from negbench.tuning.search import plan_study
from tests.runs import config_of, flags_of


def test_a_run_is_a_round_of_one_cell(vector_flags, tmp_path, document, run_command):
    command = ["run", "--strategy", "qure", *vector_flags, "--runs-dir", str(tmp_path), "--tracking-uri", "none"]
    before = document(*command, "--dry-run")
    assert [cell["step"] for cell in before["cells"]] == ["anew"]
    reads, price = before["notes"]
    assert re.fullmatch(
        r"reads triplets@\S+ \(48 train and 40 scored queries, 80 images\), backbone precomputed\(.+\)", reads
    )
    assert re.match(r"the 1 runs: \d+ s of computing; [\d,]+ MiB of memory for each worker \(timed", price)
    assert not list(tmp_path.iterdir())
    run_command(*command)
    after = document(*command, "--dry-run")
    assert ([cell["step"] for cell in after["cells"]], after["notes"]) == (["reuse"], [reads])


def test_an_interrupted_run_is_foreseen_in_its_own_precision(vector_sets, tmp_path, document, interrupted, monkeypatch):
    """Started where "auto" is bf16, foreseen where it is fp32."""
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("negbench.loop.precision.automatic", lambda device: "bf16")
        interrupted(config_of(vector_sets, "qure"), tmp_path, 1)
    started = list[str | None]()

    def note(config: Any, cache: Any, precision: str | None) -> list[str]:
        started.append(precision)
        return []

    monkeypatch.setattr("negbench.campaign.driver.forecast_lines", note)
    for name, precision in (("qure", "bf16"), ("cirqrs", None)):
        started.clear()
        command = ["run", "--strategy", name, *flags_of(vector_sets), "--runs-dir", str(tmp_path)]
        document(*command, "--tracking-uri", "none", "--dry-run")
        assert started == [precision], name


def test_a_study_counts_its_trials_and_what_follows(longer, tmp_path, document, run_command):
    """Four epochs a run: three trials, two final runs of each of two, looks up to four seeds."""
    words = ["--strategy", "dqe", "--trials", "3", "--final-seeds", "2", "--until", "decided", "--max-seeds", "4"]
    command = ["study", *words, *flags_of(longer), "--name", "s", "--runs-dir", str(tmp_path), "--tracking-uri", "none"]
    before = document(*command, "--dry-run")
    assert before["notes"][0].startswith("s: dqe on triplets, 3 trials of 1 seed, scored on a dev part")
    assert [cell["strategy"] for cell in before["cells"][:2]] == ["dqe default"] * 2
    assert "the 3 runs: " in before["notes"][-1]
    assert not (tmp_path / "s").exists()
    options: dict[str, Any] = {"strategy": "dqe", "trials": 3, "final_seeds": 2, "until": "decided", "max_seeds": 4}
    plan = plan_study(Study(**options, sets=longer, name="s", runs_dir=tmp_path))
    assert plan.first().later_epochs == 4 * (2 + 2 + 2 * 2)  # other trials, the best's runs, two more seeds of both
    run_command(*command, "--trials", "1")
    after = document(*command, "--dry-run")
    assert after["notes"][0].startswith("s: dqe on triplets, 3 trials of 1 seed, 1 already ended, scored on")
    assert after["cells"][-1]["step"] == "reuse"
    assert plan.first().later_epochs == 4 * (2 + 2 + 2 * 2)


def test_claims_are_a_python_call_with_the_price_of_a_comparison(vector_sets, tmp_path, capsys, document):
    sets = [text for text in vector_sets if not text.startswith("schedule.")]
    where: dict[str, Any] = {"sets": sets, "runs_dir": tmp_path, "tracking_uri": "none"}
    command = ["claims", "--only", "8", "--seeds", "2", "--name", "c", *flags_of(sets), "--runs-dir", str(tmp_path)]
    assert "the 4 runs: " in document(*command, "--dry-run")["notes"][-1]
    judged = package.claims(Claims(only="8", name="c", **where), seeds=2)
    assert capsys.readouterr().out == ""
    assert [one.claim.number for one in judged.claims] == [8]
    assert judged.plain()["claims"][0]["verdict"] == judged.claims[0].verdict
    assert f"8: {judged.claims[0].verdict}: " in repr(judged)
    assert (judged.path / "report" / "index.html").exists()
    (*_, decided) = document(*command, "--dry-run")["notes"]
    assert decided.startswith("after 2 seeds ")


def test_a_first_comparison_that_cannot_be_timed_says_how_to_measure(
    vector_sets, tmp_path, document, run_command, monkeypatch
):
    """The command that it names prints what it promises."""
    monkeypatch.setattr(RunTimer, "seconds", lambda *_: 0.0)
    sets = [text for text in vector_sets if text != "train.epochs=2"]
    where = [*flags_of(sets), "--runs-dir", str(tmp_path)]
    command = ["compare", "--strategies", "qure,in-batch", "--lr", "fixed", *where]
    (line,) = [line for line in document(*command, "--dry-run")["notes"] if "is unknown: no such run" in line]
    measure = re.findall("`(.*)`", line)[0].split()
    printed = run_command(*measure[1:], "--strategy", "qure", *where).out
    assert re.search(r"seconds: .*train [\d.]+; .* peak memory: process [\d,]+ MiB", printed), printed


def test_mine_measures_five_queries_of_twenty(monkeypatch):
    def mine_rows(options: Any, most: int) -> Any:
        assert most == negatives._SAMPLE
        five = negatives.MinedNegatives([0] * 5, {}, 30, 2.5)  # type: ignore[arg-type]
        return five, 20

    monkeypatch.setattr(negatives, "_mine_rows", mine_rows)
    options = negatives.Mine(queries="q", images="i", targets="t", strategy="qure", out="o.parquet")
    reads, takes, *_ = negatives.dry_run(options)
    assert reads == "reads q, i and t: 20 queries, 30 images"
    assert takes.startswith(f"{duration(10)} of mining, ")


def test_embed_measures_a_batch_of_two_images_and_one_of_two_texts(monkeypatch, tmp_path):
    files = dict.fromkeys("abcdefg")
    distinct = {bytes(number): name for number, name in enumerate("abcdef")}
    monkeypatch.setattr(own_embed, "survey", lambda *_: None)
    monkeypatch.setattr(own_embed, "_names_in", lambda *_: (files, ["x", "y", "z"]))
    monkeypatch.setattr(own_embed, "_find_distinct", lambda _: ({}, distinct))
    monkeypatch.setattr(own_embed, "_check_room", lambda *_: None)

    def encode_all(options: Any, images: dict[str, Any], texts: list[str], stages: Display) -> None:
        assert (list(images), texts) == (["a", "b"], ["x", "y"])
        stages.seconds |= {"images": 4.0, "texts": 8.0}

    monkeypatch.setattr(own_embed, "_encode_all", encode_all)
    reads, takes, *_ = own_embed.dry_run(own_embed.Embed(folder=tmp_path, encoder="x", batch_size=2))
    assert reads == "reads 7 images (6 different ones) and 3 texts"
    assert takes.startswith(f"{duration(4.0 * 3 + 8.0 * 1.5)} of embedding, ")


def test_a_line_of_progress_now_and_then_where_no_bar_is_drawn(monkeypatch, logged):
    clock = iter([0.0, 10.0, 20.0, 31.0, 31.0, 40.0, 70.0, 70.0, *[80.0] * 99])
    monkeypatch.setattr(display.time, "monotonic", lambda: next(clock))
    with display.progress("embed") as stages, stages.stage("images", total=4000, note="again") as advance:
        for _ in range(4):
            advance(1000)
    assert [record.getMessage() for record in logged] == [
        "embed images again 2,000 of 4,000",
        "embed images again 4,000 of 4,000",
    ]
    assert Display()._logged == math.inf  # which shows nothing


def test_files_are_mined_in_part(tmp_path, run_command, monkeypatch):
    for name, size in (("q", 20), ("i", 30)):
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(0).normal(size=(size, 6)).astype(np.float32))
    np.save(tmp_path / "t.npy", np.arange(20))
    monkeypatch.setattr(negatives, "_SAMPLE", 5)
    names = {"--queries": "q.npy", "--images": "i.npy", "--targets": "t.npy"}
    files = [word for flag, name in names.items() for word in (flag, str(tmp_path / name))]
    out: Path = tmp_path / "out.parquet"
    printed = run_command("mine", *files, "--strategy", "top-k:k=4", "--out", out, "--dry-run").out
    assert ": 20 queries, 30 images\n" in printed
    assert "(measured on 5 queries)" in printed
    assert not out.exists()
