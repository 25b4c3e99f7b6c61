"""Courses and their driver with made cells and outcomes: what is asked for, in which order, locked, told and raised."""

import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import negbench
from negbench.analysis.tuned_gain import Tuning
from negbench.analysis.verdicts import Rules
from negbench.campaign import compare as compare_course
from negbench.campaign import driver, seeds
from negbench.campaign.compare import compare_cells
from negbench.campaign.driver import Course, Done, Round, SearchRound, carry_out
from negbench.campaign.plan import ComparisonPlan
from negbench.campaign.seeds import look_by_look
from negbench.errors import NegbenchError
from negbench.grid.cells import Outcome
from negbench.grid.comparison import ComparisonFolder
from negbench.grid.compute import Execution
from negbench.grid.executors import Event, InProcess
from negbench.grid.looks import Looks
from negbench.grid.setting_trials import SettingGrid
from negbench.machine import files
from negbench.machine.signals import Stopped
from negbench.settings.options import Compare
from negbench.store.parents import Parent
from negbench.store.tracking import Tracker
from negbench.tuning import equal_tuning
from negbench.tuning.trials import TrialSearch
from tests.made import cell, cells, outcome_of

FOLDER = ComparisonFolder(Path("runs/c"))
LOOKS = Looks((0, 1, 2), 8)  # looks at 3, 5 and 8 seeds


def hashes(planned_round: Round) -> list[str]:
    return [planned.hash for planned in planned_round.cells]


def drive(course: Course, failing: Sequence[str] = ()) -> tuple[list[Round], Done]:
    """Answer every round, and return the rounds and what the course returns."""
    rounds = list[Round]()
    outcomes = None
    while True:
        try:
            rounds.append(course.send(outcomes))  # type: ignore[arg-type]
        except StopIteration as end:
            return rounds, end.value
        outcomes = []
        for planned in rounds[-1].cells:
            outcomes.append(outcome_of(planned, "mend this" if planned.hash in failing else None))


def leave_open(*answers: Sequence[str]) -> Any:
    """Return an `undecided` that leaves the strategies of the next of these answers open."""
    next_answers = iter(answers)

    def undecided(outcomes: Sequence[Outcome], running: Any) -> Any:
        names = next(next_answers)
        return {group for group in running if {*group} & {*names}}, f"open: {''.join(names)}"

    return undecided


def look(undecided: Any, looks: Looks | None = LOOKS, failing: Sequence[str] = (), names: str = "abc") -> Any:
    """Drive the looks at strategies of three seeds each, and return the rounds and what the course returns."""
    first = Round(FOLDER, cells(names, (0, 1, 2)), [outcome_of(cell("z", 0))])
    return drive(look_by_look(first, looks, undecided), failing)


# --- look by look ----------------------------------------------------------------------------------------------------


def test_only_undecided_strategies_get_more_seeds():
    rounds, done = look(leave_open("ab", ""))
    assert [len(one.cells) for one in rounds] == [9, 4]
    assert hashes(rounds[1]) == ["a3", "a4", "b3", "b4"]
    assert [len(one.before) for one in rounds] == [1, 1 + 9]
    assert [one.later_epochs for one in rounds] == [10 * 3 * 5, 10 * 2 * 3]
    assert [*rounds[1].words, *done.words] == ["look 1, 3 seeds: open: ab", "look 2, 5 seeds: open: "]
    assert len(done.outcomes) == 9 + 4


ENDS = [
    (None, (), (), [9]),
    (LOOKS, ("abc", "abc", "abc"), (), [9, 6, 9]),
    (replace(LOOKS, budget=0.0), ("abc",), (), [9]),
    (LOOKS, ("bc", ""), ("a1",), [9, 4]),  # what failed leaves
    (LOOKS, (), [f"{name}{seed}" for name in "abc" for seed in range(3)], [9]),  # nothing to look at
]


@pytest.mark.parametrize(("looks", "answers", "failing", "counts"), ENDS)
def test_when_looks_end(looks, answers, failing, counts):
    rounds, done = look(leave_open(*answers), looks, failing)
    assert [len(one.cells) for one in rounds] == counts
    assert (rounds[0].later_epochs == 0) == (looks is None)
    assert sum(bool(one.error) for one in done.outcomes) == len(failing)
    assert any("without what failed" in line for line in done.words) == (0 < len(failing) < 9)


def test_all_cells_of_a_run_have_the_same_seeds():
    """`b` is also the run of `x`, which is decided."""
    twin = [replace(of_b, columns={**of_b.columns, "strategy": "x"}) for of_b in cells("b", (0, 1, 2))]
    first = Round(FOLDER, [*cells("ab", (0, 1, 2)), *twin])
    rounds, _ = drive(look_by_look(first, replace(LOOKS, most=5), leave_open("b", "")))
    _, second = rounds
    labels = [(planned.labels["strategy"], planned.seed) for planned in second.cells]
    assert labels == [("b", 3), ("b", 4), ("x", 3), ("x", 4)]


def test_the_budget_is_that_of_the_looks(monkeypatch):
    clock = itertools.count(0, 60)
    monkeypatch.setattr(seeds.time, "monotonic", lambda: next(clock))
    rounds, _ = look(leave_open("abc", "abc", "abc"), replace(LOOKS, budget=100.0))
    assert [len(one.cells) for one in rounds] == [9, 6]


# --- rates, looks, equal tuning --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MadeTrials:
    """Trials whose first group asks for one more."""

    trials: dict[Any, Any]
    grid: ClassVar[SettingGrid] = SettingGrid()

    @property
    def cells(self) -> list[Any]:
        return [trial for trials in self.trials.values() for trial in trials]

    def extend(self, runs: Path, cache: Any) -> "MadeTrials":
        return MadeTrials({**self.trials, "a": cells("t", (0, 1, 2))})

    def further_epochs(self) -> int:
        return 10 * sum(5 - len(trials) for trials in self.trials.values())


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> ComparisonPlan:
    """Return a plan of two strategies with rates; at its best rates the strategies are upper case."""
    plan = ComparisonPlan(Compare(tuned=4), FOLDER, cells("ab", (0, 1, 2)))
    monkeypatch.setattr(compare_course, "open_strategies", lambda folder, rules: leave_open("ABab", ""))
    monkeypatch.setattr(ComparisonPlan, "at_best_settings", lambda self: replace(self, cells=cells("AB", (0, 1, 2))))
    trials: Any = MadeTrials({"a": cells("t", (0, 1)), "b": cells("u", (0, 1))})
    return replace(plan, trials=trials)


def test_settings_of_its_own_may_double_the_runs_that_follow(plan, monkeypatch):
    """Until the trials are finished nobody knows which rows' own setting is the common one."""
    with_settings = []
    for one in plan.cells:
        settings = "own" if one.labels["strategy"] == "a" else "common"
        with_settings.append(replace(one, columns={**one.columns, "settings": settings}))
    monkeypatch.setattr(ComparisonPlan, "settings_open", True)
    (trials, *_), _ = drive(compare_cells(replace(plan, cells=with_settings), Rules()))
    assert trials.later_epochs == 3 * 10 + (3 + 3) * 10


def test_rates_come_first_and_say_what_follows(plan):
    rounds, done = drive(compare_cells(plan, Rules(looks=replace(LOOKS, most=5))), failing=["t2"])
    assert [one.folder.path.name for one in rounds] == ["c-rates", "c-rates", "c", "c"]
    trials, more_trials, at_best_rates, _ = rounds
    assert hashes(trials) == ["t0", "t1", "u0", "u1"]
    assert hashes(more_trials) == ["t2"]
    assert hashes(at_best_rates) == ["A0", "A1", "A2", "B0", "B1", "B2"]
    assert [len(one.before) for one in rounds] == [0, 4, 0, 6]
    assert trials.command_cells == plan.cells
    assert [one.later_epochs for one in rounds] == [(3 + 3 + 4) * 10, (2 + 3 + 4) * 10, 4 * 10, 0]
    assert [outcome.cell.hash for outcome in done.trials if outcome.error] == ["t2"]
    with pytest.raises(NegbenchError, match=r"^1 of 15 cells failed; rerun the command to compute them again$"):
        done.check()


@pytest.fixture
def tuned(plan: ComparisonPlan, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Round], Done]:
    """Drive a comparison with equal tuning, in which the search of B fails."""
    config = SimpleNamespace(model_copy=lambda update: update["seed"])
    spec: Any = SimpleNamespace(seeds=(9,))
    results = {"A": (Tuning({"strategy": "A"}), [config]), "B": (Tuning({"strategy": "B"}, error="no"), [])}
    searches: Any = [equal_tuning.Combination({"strategy": name}, (), spec) for name in results]
    monkeypatch.setattr(equal_tuning, "_open_study", lambda combination, *_: (combination, None))
    monkeypatch.setattr(equal_tuning, "_result", lambda combination, *_: results[combination.labels["strategy"]])
    monkeypatch.setattr(equal_tuning, "plan_cells", lambda configs, *_: [cell("aa", seed) for seed in configs])
    monkeypatch.setattr(equal_tuning, "open_strategies", lambda folder, rules: leave_open(["aa"], ""))
    rules = Rules(looks=replace(LOOKS, most=5))
    return drive(equal_tuning.compare_and_tune(replace(plan, trials=None), rules, searches, None))


def test_equal_tuning_is_a_second_pass(tuned):
    """Its cells come after the looks of the defaults and after the trials; a search that failed has none."""
    rounds, done = tuned
    assert [isinstance(one, SearchRound) for one in rounds] == [False, False, True, False, False]
    defaults, _, search, first_tuned, second_tuned = rounds
    assert defaults.later_epochs == (6 + 4 * 2) * 10 + 4 * 10  # the second pass, four trials of two studies, the looks
    assert search.words == ["look 2, 5 seeds: open: "]
    assert hashes(first_tuned) == ["aa0", "aa1", "aa2"]
    assert hashes(second_tuned) == ["aa3", "aa4"]
    assert len(first_tuned.before) == 6 + 4
    assert [outcome.cell.hash for outcome in done.outcomes][-5:] == ["aa0", "aa1", "aa2", "aa3", "aa4"]
    assert [tuning["error"] for tuning in done.folder.about["tuned"]["tunings"]] == ["", "no"]


@pytest.mark.parametrize(("more_errors", "count"), [([], "1 search"), (["B: no"], "2 searches")], ids=["one", "two"])
def test_searches_that_failed_are_counted(tuned, more_errors, count):
    _, done = tuned
    with pytest.raises(NegbenchError, match=rf"^{count} failed \(B: no\); rerun the command to resume$"):
        replace(done, errors=done.errors + more_errors).check()


DEFAULT = "trial 0, the default, failed: no"
ALL_DIE = [
    Event(0, "failed", "died"),
    Event(1, "failed", "died"),
    Event(2, "failed", "died"),
    Event(3, "failed", "died"),
    Event(0, "note", "too late"),
]
EARLY_ENDS: dict[str, tuple[list[Event], dict[int, str], list[str]]] = {
    "none": ([Event(0, "note", "1.0"), Event(1, "done", 3)], {}, ["one: 1.0"]),
    "a default fails": (
        [Event(1, "failed", DEFAULT), Event(0, "note", "y")],
        {1: DEFAULT},
        [f"two: worker 0: {DEFAULT}", "one: y"],
    ),
    "one worker dies": (
        [Event(2, "failed", "died"), Event(0, "note", "on")],
        {},
        ["one: worker 1: died; 1 of 2 continue", "one: on"],
    ),
    "all workers die": (ALL_DIE, {0: "died", 1: "died"}, ["", "", "", ""]),
}


@pytest.mark.parametrize(("events", "errors", "starts"), EARLY_ENDS.values(), ids=EARLY_ENDS)
def test_a_search_ends_early_where_its_default_fails_or_all_its_workers_die(events, errors, starts, tmp_path, logged):
    """Of two studies with two workers each."""

    def run(function: Any, tasks: Sequence[Any]) -> Any:
        assert [task.name for task in tasks] == ["one", "two"] * 2
        yield from events

    def study(name: str) -> Any:
        counts = {"finished": 2, "pruned": 1, "failed": 0, "running": 9, "waiting": 9}
        folder = tmp_path / name
        folder.mkdir()
        spec = SimpleNamespace(base={"strategy": {"name": name}})
        job = SimpleNamespace(name=name, trials=5, parent=Parent(Tracker.open(tmp_path, "none"), folder))
        return SimpleNamespace(folder=folder, spec=spec, counts=lambda: counts), job

    executor: Any = SimpleNamespace(workers=4, elsewhere=False, run=run)
    search = TrialSearch([study("one"), study("two")])
    search.run(Execution(executor, "none"))
    assert search.errors == errors
    lines = [record.getMessage().partition(" s  ")[2] for record in logged]
    for line, start in zip(lines, starts, strict=True):
        assert line.startswith(start), lines
    assert logged[0].getMessage().startswith("[6/10] ")
    where = f"{tmp_path / 'one'}, {tmp_path / 'two'}"
    assert search.say_finished() == f"6 of 10 trials are finished and kept in {where}"


# --- the driver ------------------------------------------------------------------------------------------------------


@pytest.fixture
def computing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the driver compute nothing; each round's folder, which must be locked then, is listed."""
    calls = list[str]()

    def compute(folder: ComparisonFolder, planned: Sequence[Any], execution: Any, before: Any) -> list[Outcome]:
        with pytest.raises(BlockingIOError), files.lock_file(folder.path / ".lock", wait=False):
            pass
        calls.append(folder.path.name)
        return [Outcome(cell, None, "mend this", False) for cell in planned]

    def forewarn(configs: Sequence[Any], cache: Any, margin: float) -> None:
        calls.append(f"warned of {len(configs)}, {margin}")

    monkeypatch.setattr(driver, "compute_and_log", compute)
    monkeypatch.setattr(driver, "forewarn", forewarn)
    return calls


def carry(course: Course, lines: list[str]) -> Any:
    return carry_out(course, Execution(InProcess(), "none"), lines.append)


def one_round(first: Round, **more: Any) -> Course:
    outcomes = yield first
    return Done(first.folder, outcomes, **more)


def test_failures_are_told_after_the_block(computing, tmp_path, monkeypatch):
    """Data are warned of once, before the first round; comparison.json has what the course returned."""
    folder = ComparisonFolder(tmp_path / "c")
    lines = list[str]()
    in_the_block = list[bool]()
    monkeypatch.setattr(Parent, "complete", lambda parent: lines.append(f"{parent.folder.name} is complete"))

    def course() -> Course:
        trials = yield Round(ComparisonFolder(tmp_path / "c-rates"), cells("t", (0,)), ahead=cells("a", (0, 1)))
        outcomes = yield Round(folder, cells("a", (0, 1)), words=["look"])
        return Done(folder, outcomes, trials, words=["last"])

    def is_locked(name: str) -> bool:
        with suppress(BlockingIOError), files.lock_file(tmp_path / name / ".lock", wait=False):
            return False
        return True

    def judge() -> None:
        with carry(course(), lines) as done:
            in_the_block.append((tmp_path / "c" / "comparison.json").exists())
            in_the_block.append(is_locked("c-rates"))
            in_the_block.append(done.any_finished)

    with pytest.raises(NegbenchError, match="3 of 3 cells failed"):
        judge()
    assert in_the_block == [True, True, False]
    assert lines == ["look", "last", "c-rates is complete"]
    assert computing == ["warned of 2, 0.0", "c-rates", "c"]
    assert not is_locked("c")


def test_a_price_is_told_from_twenty_cells_on(computing, tmp_path, monkeypatch, subtests):
    def price(forecast: Any, planned: Any, runs: Path) -> list[str]:
        return [f"{len(list(planned))} cells, {forecast.later}"]

    monkeypatch.setattr(driver.Forecast, "price", price)
    for count, expected in ((19, []), (20, ["20 cells, (0.0, 5.0)"])):
        with subtests.test(count=count):
            lines = list[str]()
            first = Round(ComparisonFolder(tmp_path / "c"), cells("a", range(count)), later_epochs=5.0)
            with suppress(NegbenchError), carry(one_round(first), lines):
                pass
            assert lines == expected


def test_what_follows_a_round_is_estimated_without_what_is_finished(computing, tmp_path):
    execution = Execution(InProcess(), "none")
    ahead = [cell("a", 0), cell("a", 1, done=True)]
    first = Round(ComparisonFolder(tmp_path / "c"), [], ahead=ahead, later_epochs=5.0)
    estimates = []
    with suppress(NegbenchError), carry_out(one_round(first), execution, print):
        estimates.append(execution.forecast.later)
    assert estimates == [(10.0, 15.0)]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Stopped(15)])
@pytest.mark.parametrize("inside", [True, False])
def test_an_interruption_says_what_is_kept_and_frees_a_folder(computing, error, inside, tmp_path, monkeypatch, logged):
    """In a round, or within the course."""
    folder = ComparisonFolder(tmp_path / "c")
    compute_and_log = driver.compute_and_log

    def write_and_compute(round_folder: ComparisonFolder, planned: Sequence[Any], *more: Any) -> list[Outcome]:
        if not inside:
            raise error
        first, second = planned
        folder.write([outcome_of(first), outcome_of(second, "lost"), outcome_of(cell("b", 0))])
        return compute_and_log(round_folder, planned, *more)

    def course() -> Course:
        yield Round(folder, cells("a", (0, 1)), [outcome_of(cell("b", 0))])
        raise error

    monkeypatch.setattr(driver, "compute_and_log", write_and_compute)
    with pytest.raises(type(error)), carry(course(), []):
        pytest.fail("it was not carried out")
    finished = 2 if inside else 0
    (record,) = logged
    assert record.getMessage() == f"{finished} of 3 cells are finished and kept in {tmp_path / 'c'}"
    with files.lock_file(tmp_path / "c" / ".lock", wait=False):
        pass


@pytest.mark.parametrize("kind", ["comparison", "claims", "final"])
def test_a_second_command_of_the_same_name_waits(computing, tmp_path, logged, kind):
    """Otherwise the two mix their cells, and the page has verdicts on strategies that it lacks."""
    folder = ComparisonFolder(tmp_path / kind, {"kind": kind})
    first = folder.lock()
    order = list[str]()

    def free() -> None:
        order.append("freed")
        first.__exit__(None, None, None)

    first.__enter__()
    Timer(0.2, free).start()
    with suppress(NegbenchError), carry(one_round(Round(folder, cells("a", (0,)))), []):
        order.append("computed")
    assert order == ["freed", "computed"]
    messages = [record.getMessage() for record in logged]
    assert f"{kind} {kind} is being computed by another process: waiting for it" in messages


def test_each_kind_of_folder_is_locked(subtests, computing, vector_sets, tmp_path, monkeypatch):
    """Those of a comparison, its rates, claims and a study's final runs; a study is shared, trial by trial."""
    where: dict[str, Any] = {"sets": vector_sets, "runs_dir": tmp_path, "tracking_uri": "none"}

    def run(self: TrialSearch, execution: Any) -> None:
        for book, _ in self.studies:
            with files.lock_file(book.folder / ".lock", wait=False):
                computing.append(book.folder.name)
            book.work(lambda trial: float(trial.number == 1), print)

    monkeypatch.setattr(TrialSearch, "run", run)
    without_schedule = [text for text in vector_sets if not text.startswith("schedule.")]
    commands = {
        "compare": lambda: negbench.compare(strategies="top-k,in-batch", seeds=1, name="c", **where),
        "claims": lambda: negbench.claims(only="5", seeds=1, name="d", **{**where, "sets": without_schedule}),
        "study": lambda: negbench.study(strategy="dqe", trials=2, final_seeds=1, name="s", **where),
    }
    for name, command in commands.items():
        with subtests.test(name), pytest.raises(NegbenchError, match="cells failed"):
            command()
    warned = "warned of 2, 0.0"
    assert computing == ["warned of 2, 0.01", "c-rates", "c", warned, "d", warned, "s", "s-final"]
