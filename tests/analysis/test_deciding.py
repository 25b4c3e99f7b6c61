"""`--until decided`: the schedule of looks, verdicts that freeze at a look, seeds still needed, cells computed."""

import multiprocessing
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from itertools import accumulate, combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from negbench.analysis import deciding
from negbench.analysis.deciding import open_strategies, rules_of
from negbench.analysis.differences import Differences, differences, differences_by_look
from negbench.analysis.leader import row_line
from negbench.analysis.prices import floor_of, more_seeds, seeds_for
from negbench.analysis.statistics import Design, Difference, Interval, Pairs, ValueTable, against, pairs
from negbench.analysis.verdict_record import read_verdicts
from negbench.analysis.verdicts import Rules, VerdictTable, verdicts_of
from negbench.analysis.words import estimate_text
from negbench.cli.main import run as command
from negbench.errors import OptionError, RunError
from negbench.grid.axis import group_key
from negbench.grid.comparison import ComparisonFolder
from negbench.grid.looks import Looks
from negbench.machine.files import read_json
from negbench.metrics.query_ranks import QueryRanks
from negbench.metrics.ragged import Ragged
from negbench.report import finish as finish_of
from negbench.scoring.values import Values, values_of
from negbench.settings.config import build_config
from negbench.settings.options import Compare, parse_budget, parse_seeds
from negbench.store.runfolder import RunFolder
from negbench.store.tracking import Tracker
from tests.made import rank_anew

FILES = ("table.csv", "statistics.csv", "statistics.json", "behaviour.csv")


def looks_of(**options: Any) -> Looks:
    return Looks.of(Compare(until="decided", **options), parse_seeds(options.get("seeds", 3)))


# --- looks -------------------------------------------------------------------------------------------------------


def test_looks_are_fixed_in_advance():
    assert looks_of().counts == (3, 5, 8, 12, 18, 27, 40, 60)
    assert looks_of(seeds=4, max_seeds=10).counts == (4, 5, 8, 10)
    assert looks_of(seeds=5, max_seeds=5).counts == (5,)
    assert looks_of(seeds="7,1,0", max_seeds=6).seeds(6) == (7, 1, 0, 8, 9, 10)
    assert Looks.of(Compare(), (0, 1, 2)) is None


@pytest.mark.parametrize(
    "options", [{}, {"seeds": 4, "max_seeds": 10}, {"max_seeds": 3}], ids=["usual", "4 to 10 seeds", "3 seeds"]
)
def test_looks_spend_all_of_alpha(options):
    looks = looks_of(**options)
    assert sum(looks.shares) == pytest.approx(1)
    assert list(accumulate(looks.shares)) == pytest.approx([(count / looks.most) ** 0.5 for count in looks.counts])


@pytest.mark.parametrize("options", [{"seeds": 1}, {"seeds": 9, "max_seeds": 8}], ids=["one", "more than the most"])
def test_looks_need_two_seeds_and_room_for_the_first_ones(options):
    with pytest.raises(OptionError, match="--until decided starts with"):
        looks_of(**options)


def test_a_budget_has_a_unit():
    assert [parse_budget(text) for text in ("90s", "30m", "1.5h")] == [90, 1800, 5400]
    with pytest.raises(OptionError, match="expected a number and its unit"):
        Compare(budget="30")


@pytest.mark.parametrize(
    ("options", "pairs_in_question"),
    [
        ({}, "best"),
        ({"tuned": 3}, "baseline"),
        ({"systems": "all"}, "baseline"),
        ({"dials": ("a=1",)}, "baseline"),
        ({"pairs": "all"}, "all"),
    ],
    ids=["plain", "tuned", "systems", "dials", "all pairs"],
)
def test_first_place_is_the_question_of_a_plain_comparison(options, pairs_in_question):
    looks = rules_of(Compare(until="decided", **options), []).looks
    assert looks is not None
    assert looks.pairs == pairs_in_question


# --- verdicts ----------------------------------------------------------------------------------------------------


def simulate(gaps: list[float], counts: list[int], sd: float = 0.003) -> dict[str, Values]:
    """Return simulated values in which strategy k is better by `gaps[k]` and has `counts[k]` seeds."""
    rng = np.random.default_rng(3)
    easy = rng.random((1, 400))
    values = {}
    for number, (gap, count) in enumerate(zip(gaps, counts, strict=True)):
        noise = sd * rng.standard_normal((max(counts), 1)) + 0.02 * rng.standard_normal((max(counts), 400))
        values[f"s{number}"] = Values((gap + easy + noise)[:count], tuple(range(count)), None)
    return values


def update_undecided(differences: dict[Any, Difference], latest: dict[Any, Difference]) -> None:
    """Take a look's difference of each pair that has none, or an undecided one of fewer seeds."""
    for pair, difference in latest.items():
        earlier = differences.get(pair)
        if earlier is None or (earlier.verdict == "undecided" and earlier.seeds < difference.seeds):
            differences[pair] = difference


def brute_force(values: dict[str, Values], looks: Looks) -> tuple[dict[Any, Difference], dict[Any, Difference]]:
    """Return differences to s0 and of all pairs: recompute every test at each look, keep the first that decides."""
    to_baseline: dict[Any, Difference] = {}
    of_all_pairs: dict[Any, Difference] = {}
    for count, share in zip(looks.counts, looks.shares, strict=True):
        part = {name: of_name.of_seeds(range(count)) for name, of_name in values.items()}
        design = Design(alpha=0.05 * share, margin=0.02, draws=round(4000 / share**0.5))
        rows = {name: of_name.values for name, of_name in part.items()}
        seeds = {name: of_name.seeds for name, of_name in part.items()}
        table = ValueTable(rows, design, seeds)
        update_undecided(to_baseline, against(table, "s0", table.generator()))
        update_undecided(of_all_pairs, pairs(table, table.generator()).differences)
    return to_baseline, of_all_pairs


def intervals_and_verdicts(differences: dict[Any, Difference]) -> dict[Any, tuple[float, float, str, int]]:
    facts = {}
    for pair, difference in differences.items():
        interval = difference.interval
        facts[pair] = (interval.low, interval.high, difference.verdict, difference.seeds)
    return facts


def test_replayed_looks_are_those_of_a_plain_loop():
    looks = Looks((0, 1, 2), 8)
    values = simulate([0.0, 0.05, 0.012, 0.0], [8, 3, 8, 5])
    tests = differences_by_look(values, "s0", looks, margin=0.02, alpha=0.05)
    to_baseline, of_all_pairs = brute_force(values, looks)
    assert {difference.seeds for difference in of_all_pairs.values()} > {3}  # pairs are decided at different looks
    assert {difference.verdict for difference in to_baseline.values()} >= {"better", "equal"}
    assert intervals_and_verdicts(tests.against) == intervals_and_verdicts(to_baseline)
    assert intervals_and_verdicts(tests.pairs.differences) == intervals_and_verdicts(of_all_pairs)
    for name, difference in tests.against.items():
        assert (difference.p_adjusted <= 0.05) == (difference.verdict in ("better", "worse")), name


def test_a_decided_pair_keeps_its_verdict_whatever_comes_later():
    """s1 is better in the first 3 of 5 seeds and far worse in the others; the verdict of the first look stays."""
    looks = Looks((0, 1, 2), 5)
    values = simulate([0.0, 0.05, 0.0], [5, 5, 5])
    turned = values["s1"].values.copy()
    turned[3:] -= 0.2
    of_five = {**values, "s1": Values(turned, values["s1"].seeds, None)}
    of_three = {name: of_name.of_seeds(range(3)) for name, of_name in of_five.items()}
    before = differences_by_look(of_three, "s0", looks, margin=0.01, alpha=0.05)
    after = differences_by_look(of_five, "s0", looks, margin=0.01, alpha=0.05)
    assert before.against["s1"].verdict == "better"
    assert after.against["s1"] == before.against["s1"]
    assert after.means["s1"].seeds == 5


def outcome(low: float, high: float) -> Difference:
    """Return a difference of which only interval and verdict matter."""
    interval = Interval(low, high, 0.95)
    return Difference(0.0, interval, interval, 1.0, 1.0, Design(margin=0.01).verdict(interval), 0.0, 3)


@dataclass(frozen=True)
class RandomTable:
    """Strategies with a random number of negatives and random intervals; and who is first, by plain loops."""

    negatives: dict[str, float]
    collapsed: set[str]
    differences: dict[tuple[str, str], Difference]

    @classmethod
    def draw(cls, rng: np.random.Generator) -> "RandomTable":
        names = [f"s{number}" for number in range(int(rng.integers(2, 6)))]
        negatives = {name: float(rng.choice([1, 1, 63])) for name in names}
        collapsed = {name for name in names if rng.random() < 0.1}
        ends = np.sort(rng.choice([-0.03, -0.02, -0.01, -0.005, 0.005, 0.01, 0.02, 0.03], size=(10, 2)))
        differences = {
            pair: outcome(low, high) for pair, (low, high) in zip(combinations(names, 2), ends, strict=False)
        }
        return cls(negatives, collapsed, differences)

    def rivals(self, name: str) -> list[str]:
        """Return the other strategies with as many negatives."""
        return [other for other in self.negatives if other != name and self.negatives[other] == self.negatives[name]]

    def is_beaten(self, name: str, other: str) -> bool:
        if (name, other) in self.differences:
            return self.differences[name, other].verdict == "worse"
        return self.differences[other, name].verdict == "better"

    def lead(self, name: str, other: str) -> float:
        """Return by how much a strategy can be ahead of another."""
        if (name, other) in self.differences:
            return self.differences[name, other].interval.high
        return -self.differences[other, name].interval.low

    def candidates(self) -> set[str]:
        """Return who can be first: who did not collapse, and no rival beats."""
        names = set()
        for name in self.negatives:
            beaten = any(self.is_beaten(name, rival) for rival in self.rivals(name))
            if name not in self.collapsed and not beaten:
                names.add(name)
        return names

    def firsts(self) -> set[str]:
        """Return the candidates of which no other can be ahead by more than the margin."""
        candidates = self.candidates()
        names = set()
        for name in candidates:
            if all(self.lead(rival, name) <= 0.01 for rival in self.rivals(name) if rival in candidates):
                names.add(name)
        return names

    def undecided_pairs(self) -> set[tuple[str, str]]:
        return {pair for pair, difference in self.differences.items() if difference.verdict == "undecided"}

    def undecided_candidates(self) -> set[tuple[str, str]]:
        """Return the undecided pairs of candidates with equally many negatives."""
        candidates = self.candidates()
        pairs = set()
        for name, other in self.undecided_pairs():
            if name in candidates and other in candidates and other in self.rivals(name):
                pairs.add((name, other))
        return pairs


def test_first_place_is_open_between_strategies_that_no_equal_number_beats():
    """Draw random intervals; compare with loops over the definition, and with what the end of a comparison means."""
    rng = np.random.default_rng(5)
    ended = 0
    shared = 0
    for number in range(300):
        table = RandomTable.draw(rng)
        tests = Differences({}, {}, Pairs(tuple(table.negatives), table.differences))
        open_pairs = tests.find_undecided("best", None, table.negatives, table.collapsed)
        firsts = table.firsts()
        decided_numbers = {table.negatives[name] for name in firsts}
        candidates = table.undecided_candidates()
        expected = {(name, other) for name, other in candidates if table.negatives[name] not in decided_numbers}
        assert set(open_pairs) == expected, f"table {number}"
        assert set(tests.find_undecided("all", None, table.negatives)) == table.undecided_pairs(), f"table {number}"
        ended += not open_pairs
        shared += any(firsts.intersection(pair) for pair in candidates)
    assert 50 < ended < 280
    assert shared > 20


def test_who_was_beaten_is_not_best_for_a_mean_over_fewer_easier_seeds():
    """s1 lost in the first three worlds, where all score 20 points more than in the later ones."""
    values = simulate([0.05, 0.0, 0.049], [5, 3, 5])
    for of_strategy in values.values():
        of_strategy.values[:3] += 0.2
    table = VerdictTable(dict.fromkeys(("dataset", "loss", "backbone"), "x"), "m", {"m": values})
    rows = verdicts_of(table, Rules(looks=Looks((0, 1, 2), 5, "best")))
    assert max(rows, key=lambda row: row.mean.value).strategy == "s1"
    beaten = {row.strategy: row for row in rows}["s1"]
    assert (beaten.standing, beaten.undecided) == ("worse", ())
    assert {*beaten.beaten_by} == {"s0", "s2"}


def test_a_pair_that_an_earlier_look_decided_says_after_how_many_seeds():
    """The printed means go on: the gap is no more their difference."""
    values = simulate([0.0, 0.05, 0.0495], [5, 5, 5])
    values["s0"].values[3:] += 0.03
    table = VerdictTable(dict.fromkeys(("dataset", "loss", "backbone"), "x"), "m", {"m": values})
    rows = {row.strategy: row for row in verdicts_of(table, Rules("s0", looks=Looks((0, 1, 2), 5, "all")))}
    early = rows["s0"].against_best
    assert (early.seeds, early.after) == (3, " (after 3 seeds)")
    best = max((rows["s1"], rows["s2"]), key=lambda row: row.mean.value)
    assert early.value != pytest.approx(rows["s0"].mean.value - best.mean.value)
    assert early.reverse().seeds == 3
    assert estimate_text(early).endswith("] (after 3 seeds)")
    assert rows["s1"].against_baseline.seeds == 3
    line = row_line(rows["s0"])
    assert line["standing"] == "worse (after 3 seeds)"
    assert row_line(rows["s1"])["verdict"] == "better (after 3 seeds)"
    other = next(row for row in (rows["s1"], rows["s2"]) if row is not best)
    assert (other.standing, other.against_best.seeds) == ("undecided", None)
    one_look = {row.strategy: row for row in verdicts_of(table, Rules("s0"))}
    assert one_look["s0"].against_best.after == ""


# --- seeds still needed ------------------------------------------------------------------------------------------


def test_prices_are_those_of_the_widths_that_come():
    """If only seeds vary, half-widths shrink with the root of their number; if queries vary too, there is a floor."""
    values = simulate([0.0, 0.0], [20, 20], sd=0.02)
    looks = Looks(tuple(range(20)), 20)
    alone = differences_by_look(values, "s0", looks, margin=0.01, alpha=0.05).against["s1"]
    half = (alone.interval.high - alone.interval.low) / 2
    assert seeds_for(alone, half, nested=True) == pytest.approx(20, rel=0.05)
    assert seeds_for(alone, half / 2, nested=True) == pytest.approx(80, rel=0.05)
    assert floor_of(alone, nested=True) == 0
    floor = floor_of(alone, nested=False)
    assert 0 < floor < half / 4
    assert seeds_for(alone, floor * 0.99, nested=False) == np.inf
    assert seeds_for(alone, floor * 1.01, nested=False) > 1000
    assert more_seeds(alone, 4 * half, nested=True) == 1  # the target is wider than the interval


# --- cells -------------------------------------------------------------------------------------------------------

# Four strategies need fewer random draws than two or three.
FLAGS = ("--strategies", "qure,in-batch,all-corpus,top-k", "--seeds", "2", "--max-seeds", "3")
FLAGS += ("--margin", "20", "--pairs", "baseline")


def flags_of(vector_sets: list[str], runs: Path, *more: str) -> list[str]:
    sets = [part for text in vector_sets for part in ("--set", text)]
    words = ["compare", "--lr=fixed", "--until", "decided", *FLAGS, "--runs-dir", str(runs), "--tracking-uri", "none"]
    return [*words, "--baseline", "qure", "--name", "c", "--no-report", *sets, *more]


def cells_of(runs: Path) -> dict[str, list[int]]:
    seeds: dict[str, list[int]] = {}
    for cell in read_json(runs / "c" / "comparison.json")["cells"]:
        seeds.setdefault(cell["strategy"], []).append(cell["seed"])
    return seeds


@pytest.fixture(scope="module")
def vector_sets(vector_sets: list[str]) -> list[str]:
    """Return `vector_sets` with a rate at which two seeds decide a pair."""
    return [*(text for text in vector_sets if not text.startswith("train.lr=")), "train.lr=0.1"]


@pytest.fixture(scope="module")
def straight(vector_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the runs folder of an uninterrupted comparison."""
    runs = tmp_path_factory.mktemp("straight")
    assert command(flags_of(vector_sets, runs)) == 0
    return runs


def test_open_strategies_run_on_and_decided_ones_stop(straight):
    """all-corpus and top-k are as good as qure within the margin; in-batch stays undecided."""
    cells = cells_of(straight)
    rows = {row.strategy: row for row in read_verdicts(straight / "c") if row.main}
    others = [row for row in rows.values() if row.verdict != "baseline"]
    for row in others:
        assert cells[row.strategy] == list(range(row.paired_seeds)), row.strategy
        assert row.verdict != "undecided" or row.paired_seeds == 3, row.strategy
        assert row.undecided == (("qure",) if row.verdict == "undecided" else ()), row.strategy
    assert len(cells["qure"]) == max(row.paired_seeds for row in others)
    assert len({row.paired_seeds for row in others}) > 1  # they stopped at different looks


def test_what_was_to_be_compared_with_a_failed_strategy_alone_stops_with_it(tmp_path, monkeypatch):
    """`c`, which failed, is no longer running; `b` had only that comparison left."""

    @dataclass(frozen=True)
    class Row:
        strategy: str
        undecided: tuple[str, ...]
        collapsed: bool = False

    rows = [Row("a", ("c", "d")), Row("b", ("c",)), Row("c", ("a", "b")), Row("d", ("a",)), Row("e", ())]
    judged = list[Any]()

    def note_rows(groups: object, rows_of_running: list[Any]) -> str:
        judged.extend(rows_of_running)
        return ""

    monkeypatch.setattr(deciding, "judge_so_far", lambda *_: SimpleNamespace(verdicts=rows, groups=()))
    monkeypatch.setattr(deciding, "open_pairs", note_rows)
    undecided = open_strategies(ComparisonFolder(tmp_path), Rules())
    running = {group_key({"strategy": name}) for name in "abde"}
    still_open, words = undecided([], running)
    assert still_open == {group_key({"strategy": name}) for name in "ad"}
    assert [(row.strategy, row.undecided) for row in judged] == [("a", ("d",)), ("b", ()), ("d", ("a",)), ("e", ())]
    assert words == "each difference from the baseline is decided"


@pytest.mark.slow
def test_half_done_it_ends_with_the_same_table_of_two_workers(straight, vector_sets, tmp_path, monkeypatch):
    """Two workers compute the rest, bit for bit, and have ended when the report begins: it needs their memory."""
    for run in sorted(path.parent for path in straight.glob("*/result.json"))[::2]:
        shutil.copytree(run, tmp_path / run.name)
    alive = list[int]()
    finish = finish_of.finish

    def count_children_and_finish(*args: Any, **options: Any) -> Any:
        alive.append(len(multiprocessing.active_children()))
        return finish(*args, **options)

    monkeypatch.setattr(finish_of, "finish", count_children_and_finish)
    assert command(flags_of(vector_sets, tmp_path, "--workers", "2")) == 0
    assert alive == [0]
    for name in FILES:
        assert (straight / "c" / name).read_bytes() == (tmp_path / "c" / name).read_bytes(), name
    for run in (path.parent for path in straight.glob("*/result.json")):
        of_one_process = RunFolder(run)
        of_two_workers = RunFolder(tmp_path / run.name)
        assert of_two_workers.result["metrics"] == of_one_process.result["metrics"], run.name
        assert of_two_workers.metrics() == of_one_process.metrics(), run.name


def test_given_again_it_writes_and_judges_nothing_and_leaves_no_mlflow_run(
    straight, vector_sets, tmp_path, run_command, statuses, spy_on
):
    """The folder already has the cells of all looks; each look is reported from its own cells alone.

    It is judged again where a run, or what was stored of the looks, has changed.
    """
    shutil.copytree(straight, tmp_path, dirs_exist_ok=True)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    outputs = []
    files = []
    judged = spy_on(deciding, "judge_so_far")

    def again() -> None:
        lines = run_command(*flags_of(vector_sets, tmp_path, "--tracking-uri", uri)).out.splitlines()
        outputs.append([line for line in lines if "already finished" not in line])
        files.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()})

    again()  # copies the runs into the store
    again()
    assert files[0] == files[1]
    assert not judged
    (tmp_path / "c" / "looks.json").write_text("{")
    again()
    assert outputs[0] == outputs[1] == outputs[2]
    assert len(judged) == 2
    run = RunFolder(next(tmp_path.glob("qure-*-s0-*")))
    rank_anew(run, run.ranks().assign(target_rank=2))
    again()
    assert judged[2:]
    assert command(flags_of(vector_sets, tmp_path, "--tracking-uri", uri, "--max-seeds", "2")) == 0
    assert set().union(*cells_of(tmp_path).values()) == {0, 1}
    assert set(statuses(tmp_path, uri)) == {"FINISHED"}
    assert Tracker.open(tmp_path, uri).client().get_experiment_by_name("c") is not None


# --- worlds and clusters -------------------------------------------------------------------------------------------


def run_of(runs: Path, seed: int, *, world: str = "", first: int = 0, cluster: bool = False) -> RunFolder:
    """Return a finished run of twelve queries, with `cluster` in clusters of three."""
    rank = torch.arange(1, 13)
    queries = tuple(f"q{first + n}" for n in range(12))
    names = tuple(f"family {n // 3}" for n in range(12)) if cluster else None
    ranks = QueryRanks(queries, ("",) * 12, rank, rank, Ragged.of([[r] for r in rank.tolist()]), cluster=names)
    folder = RunFolder(runs / f"{seed}-{world}-{first}")
    config = build_config([{"strategy": {"name": "qure"}, "dataset": {"name": "triplets"}, "seed": seed}])
    dataset = {"world": world} if world else {}
    folder.write_manifest({"config": config.model_dump(mode="json"), "hash": "0" * 64, "dataset": dataset})
    folder.write_ranks(ranks.to_frame())
    return folder


def test_runs_of_different_worlds_are_nested_and_compared_within_a_seed(tmp_path, subtests):
    of_worlds = [run_of(tmp_path, seed, world=f"w{seed}", first=100 * seed) for seed in (0, 1)]
    queries: dict[Any, Any] = {}
    assert values_of(of_worlds, ["recall_at_10"], queries)["recall_at_10"].nested
    for world in ("w", ""):
        of_one_world = values_of([run_of(tmp_path, seed, world=world) for seed in (0, 1)], ["recall_at_10"])
        assert not of_one_world["recall_at_10"].nested, f"world '{world}'"
    values_of([run_of(tmp_path, 1, world="w1", first=100)], ["recall_at_10"], queries)  # as of another strategy
    for other in (run_of(tmp_path, 1, world="w2", first=100), run_of(tmp_path, 1, world="w1", first=7)):
        with subtests.test(other=other.path.name), pytest.raises(RunError, match="ranks of other queries"):
            values_of([other], ["recall_at_10"], queries)
    with pytest.raises(RunError, match="ranks of other queries"):
        values_of([run_of(tmp_path, 0), run_of(tmp_path, 1, first=1)], ["recall_at_10"])


def test_clusters_reach_the_statistics_from_stored_ranks(tmp_path):
    """Queries of a cluster count once: the interval for these models equals that of the cluster means."""
    of_clusters = np.random.default_rng(0).normal(size=(2, 12))[:, ::3]
    of_queries = np.repeat(of_clusters, 3, axis=1)
    stored = values_of([run_of(tmp_path, 0, cluster=True)], ["recall_at_10"])["recall_at_10"]

    def width(noise: np.ndarray, clusters: Any = None) -> float:
        """Return the width of the interval of two strategies whose values are the rows of `noise`."""
        values = {}
        for number, name in enumerate("ab"):
            values[name] = replace(stored, values=noise[number : number + 1], clusters=clusters)
        interval = differences(values, "a").against["b"].models
        return interval.high - interval.low

    clustered = width(of_queries, stored.clusters)
    assert clustered == pytest.approx(width(of_clusters), rel=0.1)
    assert width(of_queries) < 0.6 * clustered


def test_a_plan_says_what_seeds_resolve(straight, vector_sets, tmp_path, run_command):
    """Forty val queries leave an uncertainty far above one point, whatever the number of seeds."""

    def plan(runs: Path) -> str:
        return " ".join(run_command(*flags_of(vector_sets, runs, "--dry-run")).out.split())

    output = plan(straight)
    assert "seeds needed to resolve a difference in R@10 of 1 point: needs more queries; of 2 points: needs" in output
    assert "even with unlimited seeds, these queries leave an interval of ± " in output
    assert "run a pilot first (--seeds 3)" in plan(tmp_path)


def test_every_point_of_a_dial_is_decided_by_itself(straight, vector_sets, tmp_path):
    """At a rate of almost 0 the two score alike; at the other, of `straight`, the pair is open."""
    shutil.copytree(straight, tmp_path, dirs_exist_ok=True)
    more = ("--dial", "train.lr=0.1,1e-30", "--strategies", "qure,in-batch", "--name", "dial")
    vector_sets = [text for text in vector_sets if not text.startswith("train.lr=")]
    assert command(flags_of(vector_sets, tmp_path, *more)) == 0
    rows = [row for row in read_verdicts(tmp_path / "dial") if row.main]
    cells = read_json(tmp_path / "dial" / "comparison.json")["cells"]
    cells_by_row = Counter((cell["point"], cell["strategy"]) for cell in cells)
    assert {(row.point, row.strategy): row.seeds for row in rows} == cells_by_row
    assert {(row.point, row.seeds, bool(row.undecided)) for row in rows if row.strategy == "in-batch"} == {
        ("lr=0.1", 3, True), ("lr=1e-30", 2, False),
    }  # fmt: skip
