"""The example that gives rows their own temperature and draws their gains, against the runs' own results."""

import json
import re

import pandas as pd
import pytest

import negbench

TOP = "in-batch+top-k(k=5)"
BY = ["train.batch_size"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, vector_sets):
    """Trials of one seed at two temperatures and two batch sizes, and a comparison of two seeds at all of them."""
    folder = tmp_path_factory.mktemp("gain")
    sets = tuple(text for text in vector_sets if "batch_size" not in text)
    for name, seeds in (("trials", "0,"), ("reported", "0,1")):
        options = negbench.Compare(
            strategies="in-batch,in-batch+top-k:k=5", losses="info-nce", lr="fixed", sets=sets,
            dials=["train.batch_size=8,24", "loss.tau=0.07,0.5"], seeds=seeds, runs_dir=folder, tracking_uri="none",
            report=False, name=name,
        )  # fmt: skip
        negbench.compare(options)
    return folder


@pytest.fixture
def gain(example):
    return example("gain_figure")


def means(folder, name):
    """Return R@10 in % by batch size, strategy and temperature, from the stored results."""
    results = negbench.load(name, runs_dir=folder).results
    return results.groupby(["train.batch_size", "strategy", "loss.tau"])["recall_at_10"].mean()


def test_trials_with_unequal_seeds_choose_nothing(gain, runs):
    trials = gain.cells_of([runs / "reported"], [*BY, *gain.PAIR])
    assert len(gain.best_pairs(trials, BY, "recall_at_10")) > 0
    unfinished = trials.drop(trials.index[0])
    with pytest.raises(SystemExit, match="fewer seeds than others of their row"):
        gain.best_pairs(unfinished, BY, "recall_at_10")


def test_a_row_takes_the_pair_that_is_best_in_the_trials(gain, runs):
    pairs = gain.best_pairs(gain.cells_of([runs / "trials"], [*BY, *gain.PAIR]), BY, "recall_at_10")
    found = means(runs, "trials")
    assert len(pairs) == 4
    for row in pairs.itertuples(index=False):
        size, strategy, tau, rate, mean = row
        assert 100 * mean == pytest.approx(found[size, strategy].max()), row
        assert found[size, strategy, tau] == pytest.approx(found[size, strategy].max()), row
        assert rate == 0.03, row


def test_of_equal_pairs_the_lower_temperature_then_the_lower_rate(gain):
    rows = [(8, "a", 0.15, 0.1, 0.5), (8, "a", 0.07, 0.3, 0.5), (8, "a", 0.07, 0.1, 0.5), (8, "a", 0.03, 0.1, 0.4)]
    trials = pd.DataFrame(rows, columns=[*BY, "strategy", *gain.PAIR, "metrics/recall_at_10"]).assign(seed=0)
    pairs = gain.best_pairs(trials, BY, "recall_at_10")
    assert pairs[gain.PAIR].to_numpy().tolist() == [[0.07, 0.1]]


def test_commands_run_every_row_at_its_own_pair(gain):
    rows = [(8, "in-batch", 0.07, 0.01), (8, TOP, 0.15, 0.01), (32, "in-batch", 0.15, 0.03), (32, TOP, 0.15, 0.03)]
    pairs = pd.DataFrame(rows, columns=[*BY, "strategy", *gain.PAIR])
    top = "in-batch+top-k:k=5"
    assert gain.commands(pairs, BY, "C", "bs") == [
        "C --set train.batch_size=8 --losses info-nce:tau=0.07 --lr 0.01 --strategies in-batch --name bs-8-0.07-0.01",
        f"C --set train.batch_size=8 --losses info-nce:tau=0.15 --lr 0.01 --strategies {top} --name bs-8-0.15-0.01",
        f"C --set train.batch_size=32 --losses info-nce:tau=0.15 --lr 0.03 --strategies in-batch,{top} "
        "--name bs-32-0.15-0.03",
    ]


def test_a_gain_is_the_difference_of_the_rows_own_means(gain, runs):
    settings = [*BY, *gain.PAIR]
    pairs = gain.best_pairs(gain.cells_of([runs / "trials"], settings), BY, "recall_at_10")
    cells = gain.cells_of([runs / "reported", runs / "reported"], settings)  # a run that is named twice stands once
    found = gain.gains(gain.at_their_own(cells, pairs, BY), BY[0], [])
    chosen_tau = pairs.set_index([*BY, "strategy"])["loss.tau"]
    reported = means(runs, "reported")
    for row in found[found["metric"] == "recall_at_10"].to_dict("records"):
        size = row["train.batch_size"]
        alone = reported[size, "in-batch", chosen_tau[size, "in-batch"]]
        assert row["batch alone"] == pytest.approx(alone), size
        assert row["gain"] == pytest.approx(reported[size, TOP, chosen_tau[size, TOP]] - alone, abs=1e-6), size
        assert row["low"] <= row["gain"] <= row["high"], size
        assert row["seeds"] == 2, size
    assert len(found) == 2 * len(gain.METRICS)


def test_intervals_hold_for_all_settings_of_a_panel(gain, runs):
    cells = gain.cells_of([runs / "reported"], [*BY, "loss.tau"])
    together = gain.gains(cells, BY[0], ["loss.tau"])
    alone = gain.gains(cells[cells[BY[0]] == 8], BY[0], ["loss.tau"])
    columns = [BY[0], "loss.tau", "metric", "strategy"]
    both = alone.merge(together, on=columns, suffixes=("_alone", "_together"))
    assert len(both) == len(alone) == 2 * len(gain.METRICS)
    assert (both["high_alone"] - both["low_alone"] < both["high_together"] - both["low_together"]).all()


def test_the_command_prints_tables_and_writes_a_small_picture(gain, runs, monkeypatch, capsys):
    words = (
        f"gain_figure.py draw {runs}/reported --trials {runs}/trials --by {BY[0]} --out {runs}/a.svg "
        "--mark 16:emoji --mark 9999:elsewhere --level 0:never"
    )
    monkeypatch.setattr("sys.argv", words.split())
    gain.main()
    printed = capsys.readouterr().out
    assert printed.count("nothing: R@") == 2  # and mAP@10
    assert printed.count(f"| `{TOP}` |") == 3
    drawn = (runs / "a.svg").read_text()
    assert len(drawn) < 200_000
    for word in ("emoji", "R@10", "points over the batch alone"):
        assert word in drawn, word
    assert "elsewhere" not in drawn  # no panel reaches to 9,999
    assert "never" not in drawn  # nor is R@10 that low
    found = means(runs, "reported")
    pairs = gain.best_pairs(gain.cells_of([runs / "trials"], [*BY, *gain.PAIR]), BY, "recall_at_10")
    for size, tau in pairs[pairs["strategy"] == "in-batch"][[*BY, "loss.tau"]].to_numpy():
        under = [float(number) for number in re.findall(r">([\d.]+) %<", drawn)]  # the ticks
        assert any(number == pytest.approx(found[size, "in-batch", tau], abs=0.051) for number in under)


LEVELS = {
    "between two settings": ("40:here", [(0.5, "here")]),
    "at a setting": ("60:here", [(1.0, "here")]),
    "between the next two": ("75:here", [(1.75, "here")]),
    "never reached": ("90:here", []),
}


@pytest.mark.parametrize(("level", "positions"), LEVELS.values(), ids=LEVELS)
def test_a_level_lies_where_the_batch_alone_reaches_it(level, positions, gain):
    rows = pd.DataFrame({"x": [1, 1, 2, 2, 4, 4], "batch alone": [20.0, 20.0, 60.0, 60.0, 80.0, 80.0]})
    assert gain._level_positions(rows, "x", [level]) == positions


def test_settings_without_the_batch_alone_are_given_that_of_another_comparison(gain, runs, capsys, monkeypatch):
    """The runs of the variants are links to those of `reported`, one of them without the rows of the batch alone."""
    for name, strategies in (("variant", [TOP]), ("whole", ["in-batch", TOP])):
        document = json.loads((runs / "reported" / "comparison.json").read_text())
        document["cells"] = [
            cell
            for cell in document["cells"]
            if cell["strategy"] in strategies and cell["point"] == "batch_size=8, tau=0.5"
        ]
        (runs / name).mkdir()
        (runs / name / "comparison.json").write_text(json.dumps(document))
    cells = gain.beside_the_batch([runs / "variant", runs / "whole"], runs / "whole")
    found = gain.gains(cells, "comparison", [])
    assert set(found["comparison"]) == {"variant", "whole"}
    reported = means(runs, "reported")
    for row in found[found["metric"] == "recall_at_10"].itertuples():
        assert row.gain == pytest.approx(reported[8, TOP, 0.5] - reported[8, "in-batch", 0.5], abs=1e-6)
    with pytest.raises(SystemExit, match="variant has no row in-batch: name a comparison that has it with --alone"):
        gain.beside_the_batch([runs / "variant"], None)
    monkeypatch.setattr("sys.argv", f"gain_figure.py settings {runs}/variant --alone {runs}/whole".split())
    gain.main()
    printed = capsys.readouterr().out
    assert "| in addition to the batch | variant |" in printed
