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


def hashes(asked: Round) -> list[str]:
    return [each.hash for each in asked.cells]


def driven(course: Course, failing: Sequence[str] = ()) -> tuple[list[Round], Done]:
    """Answer every round, and return the rounds and what the course returns."""
    rounds, outcomes = list[Round](), None
    while True:
        try:
            rounds.append(course.send(outcomes))  # type: ignore[arg-type]
        except StopIteration as end:
            return rounds, end.value
        outcomes = [outcome_of(each, "mend this" if each.hash in failing else None) for each in rounds[-1].cells]


def until(*answers: Sequence[str]) -> Any:
    """Return an `undecided` that leaves the strategies of the next of these answers open."""
    left = iter(answers)

    def undecided(outcomes: Sequence[Outcome], running: Any) -> Any:
        names = next(left)
        return {place for place in running if {*place} & {*names}}, f"open: {''.join(names)}"

    return undecided


def looks_of(undecided: Any, looks: Looks | None = LOOKS, failing: Sequence[str] = (), names: str = "abc") -> Any:
    first = Round(FOLDER, cells(names, (0, 1, 2)), [outcome_of(cell("z", 0))])
    return driven(look_by_look(first, looks, undecided), failing)


# --- look by look ----------------------------------------------------------------------------------------------------


def test_only_undecided_strategies_get_more_seeds():
    rounds, done = looks_of(until("ab", ""))
    assert [len(each.cells) for each in rounds] == [9, 4]
    assert hashes(rounds[1]) == ["a3", "a4", "b3", "b4"]
    assert [len(each.before) for each in rounds] == [1, 1 + 9]
    assert [each.later_epochs for each in rounds] == [10 * 3 * 5, 10 * 2 * 3]
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
    rounds, done = looks_of(until(*answers), looks, failing)
    assert [len(each.cells) for each in rounds] == counts
    assert (rounds[0].later_epochs == 0) == (looks is None)
    assert sum(bool(each.error) for each in done.outcomes) == len(failing)
    assert any("without what failed" in line for line in done.words) == (0 < len(failing) < 9)


def test_all_places_of_a_run_have_the_same_seeds():
    """`b` is also the run of `x`, which is decided."""
    twin = [replace(each, columns={**each.columns, "strategy": "x"}) for each in cells("b", (0, 1, 2))]
    first = Round(FOLDER, [*cells("ab", (0, 1, 2)), *twin])
    rounds, _ = driven(look_by_look(first, replace(LOOKS, most=5), until("b", "")))
    again = [(each.labels["strategy"], each.seed) for each in rounds[1].cells]
    assert again == [("b", 3), ("b", 4), ("x", 3), ("x", 4)]


def test_the_budget_is_that_of_the_looks(monkeypatch):
    clock = itertools.count(0, 60)
    monkeypatch.setattr(seeds.time, "monotonic", lambda: next(clock))
    rounds, _ = looks_of(until("abc", "abc", "abc"), replace(LOOKS, budget=100.0))
    assert [len(each.cells) for each in rounds] == [9, 6]


# --- rates, looks, equal tuning --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MadeTrials:
    """Trials whose first group asks for one more."""

    trials: dict[Any, Any]
    grid: ClassVar[SettingGrid] = SettingGrid()

    @property
    def cells(self) -> list[Any]:
        return [each for trials in self.trials.values() for each in trials]

    def extend(self, runs: Path, cache: Any) -> "MadeTrials":
        return MadeTrials({**self.trials, "a": cells("t", (0, 1, 2))})

    def further_epochs(self) -> int:
        return 10 * sum(5 - len(trials) for trials in self.trials.values())


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> ComparisonPlan:
    """Return a plan of two strategies with rates; at its best rates the strategies are upper case."""
    plan = ComparisonPlan(Compare(tuned=4), FOLDER, cells("ab", (0, 1, 2)))
    monkeypatch.setattr(compare_course, "open_strategies", lambda folder, rules: until("ABab", ""))
    monkeypatch.setattr(ComparisonPlan, "at_best_settings", lambda self: replace(self, cells=cells("AB", (0, 1, 2))))
    trials: Any = MadeTrials({"a": cells("t", (0, 1)), "b": cells("u", (0, 1))})
    return replace(plan, trials=trials)


def test_rates_come_first_and_say_what_follows(planned):
    rounds, done = driven(compare_cells(planned, Rules(looks=replace(LOOKS, most=5))), failing=["t2"])
    assert [each.folder.path.name for each in rounds] == ["c-rates", "c-rates", "c", "c"]
    assert [hashes(each) for each in rounds[:2]] == [["t0", "t1", "u0", "u1"], ["t2"]]
    assert [len(each.before) for each in rounds] == [0, 4, 0, 6]
    assert hashes(rounds[2]) == ["A0", "A1", "A2", "B0", "B1", "B2"]
    assert rounds[0].command_cells == planned.cells
    assert [each.later_epochs for each in rounds] == [(3 + 3 + 4) * 10, (2 + 3 + 4) * 10, 4 * 10, 0]
    assert [each.cell.hash for each in done.trials if each.error] == ["t2"]
    with pytest.raises(NegbenchError, match=r"^1 of 15 cells failed; rerun the command to compute them again$"):
        done.check()


def test_equal_tuning_is_a_second_pass(planned, monkeypatch, subtests):
    """Its cells come after the looks of the defaults and after the trials; a search that failed has none."""
    config, spec = SimpleNamespace(model_copy=lambda update: update["seed"]), SimpleNamespace(seeds=(9,))
    results = {"A": (Tuning({"strategy": "A"}), [config]), "B": (Tuning({"strategy": "B"}, error="no"), [])}
    searches: Any = [equal_tuning.Combination({"strategy": name}, (), spec) for name in results]  # type: ignore[arg-type]
    monkeypatch.setattr(equal_tuning, "_open_study", lambda each, *_: (each, None))
    monkeypatch.setattr(equal_tuning, "_result", lambda each, *_: results[each.labels["strategy"]])
    monkeypatch.setattr(equal_tuning, "plan_cells", lambda configs, *_: [cell("aa", seed) for seed in configs])
    monkeypatch.setattr(equal_tuning, "open_strategies", lambda folder, rules: until(["aa"], ""))
    rules = Rules(looks=replace(LOOKS, most=5))
    course = equal_tuning.compare_and_tune(replace(planned, trials=None), rules, searches, None)
    rounds, done = driven(course)
    assert [isinstance(each, SearchRound) for each in rounds] == [False, False, True, False, False]
    assert rounds[0].later_epochs == (6 + 4 * 2) * 10 + 4 * 10  # the second pass, four trials of two studies, the looks
    assert rounds[2].words == ["look 2, 5 seeds: open: "]
    assert [hashes(each) for each in rounds[3:]] == [["aa0", "aa1", "aa2"], ["aa3", "aa4"]]
    assert len(rounds[3].before) == 6 + 4
    assert [each.cell.hash for each in done.outcomes][-5:] == ["aa0", "aa1", "aa2", "aa3", "aa4"]
    assert [each["error"] for each in done.folder.about["tuned"]["tunings"]] == ["", "no"]
    for errors, said in ((1 * ["B: no"], "1 search"), (2 * ["B: no"], "2 searches")):
        with (
            subtests.test(errors=errors, said=said),
            pytest.raises(NegbenchError, match=rf"^{said} failed \(B: no\); rerun the command to resume$"),
        ):
            replace(done, errors=done.errors + errors[1:]).check()


DEFAULT = "trial 0, the default, failed: no"


EARLY_ENDS = [
    ([(0, "note", "1.0"), (1, "done", 3)], {}, ["one: 1.0"]),
    ([(1, "failed", DEFAULT), (0, "note", "y")], {1: DEFAULT}, [f"two: worker 0: {DEFAULT}", "one: y"]),
    ([(2, "failed", "died"), (0, "note", "on")], {}, ["one: worker 1: died; 1 of 2 continue", "one: on"]),
    ([(n, "failed", "died") for n in range(4)] + [(0, "note", "too late")], {0: "died", 1: "died"}, [""] * 4),
]  # fmt: skip


@pytest.mark.parametrize(("events", "errors", "told"), EARLY_ENDS)
def test_a_search_ends_early_where_its_default_fails_or_all_its_workers_die(events, errors, told, tmp_path, logged):
    """Of two studies with two workers each."""

    def run(function: Any, tasks: Sequence[Any]) -> Any:
        assert [task.name for task in tasks] == ["one", "two"] * 2
        yield from (Event(*each) for each in events)

    def study(name: str) -> Any:
        counts = {"finished": 2, "pruned": 1, "failed": 0, "running": 9, "waiting": 9}
        (folder := tmp_path / name).mkdir()
        spec = SimpleNamespace(base={"strategy": {"name": name}})
        job = SimpleNamespace(name=name, trials=5, parent=Parent(Tracker.open(tmp_path, "none"), folder))
        return SimpleNamespace(folder=folder, spec=spec, counts=lambda: counts), job

    executor: Any = SimpleNamespace(workers=4, elsewhere=False, run=run)
    search = TrialSearch([study("one"), study("two")])
    search.run(Execution(executor, "none"))
    assert search.errors == errors
    lines = [record.getMessage().partition(" s  ")[2] for record in logged]
    assert len(lines) == len(told)
    assert all(line.startswith(start) for line, start in zip(lines, told, strict=True))
    assert logged[0].getMessage().startswith("[6/10] ")
    where = f"{tmp_path / 'one'}, {tmp_path / 'two'}"
    assert search.say_finished() == f"6 of 10 trials are finished and kept in {where}"


# --- the driver ------------------------------------------------------------------------------------------------------


@pytest.fixture
def computing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the driver compute nothing; each round's folder, which must be locked then, is listed."""
    seen = list[str]()

    def computed(folder: ComparisonFolder, asked: Sequence[Any], execution: Any, before: Any) -> list[Outcome]:
        with pytest.raises(BlockingIOError), files.lock_file(folder.path / ".lock", wait=False):
            pass
        seen.append(folder.path.name)
        return [Outcome(each, None, "mend this", False) for each in asked]

    monkeypatch.setattr(driver, "compute_and_log", computed)
    monkeypatch.setattr(driver, "forewarn", lambda asked, _, margin: seen.append(f"warned of {len(asked)}, {margin}"))
    return seen


def carry(course: Course, said: list[str]) -> Any:
    return carry_out(course, Execution(InProcess(), "none"), said.append)


def one_round(asked: Round, **more: Any) -> Course:
    outcomes = yield asked
    return Done(asked.folder, outcomes, **more)


def test_failures_are_told_after_the_block(computing, tmp_path, monkeypatch):
    """Data are warned of once, before the first round; comparison.json has what the course returned."""
    folder, said, there = ComparisonFolder(tmp_path / "c"), list[str](), list[bool]()
    monkeypatch.setattr(Parent, "complete", lambda parent: said.append(f"{parent.folder.name} is complete"))

    def course() -> Course:
        trials = yield Round(ComparisonFolder(tmp_path / "c-rates"), cells("t", (0,)), ahead=cells("a", (0, 1)))
        outcomes = yield Round(folder, cells("a", (0, 1)), words=["look"])
        return Done(folder, outcomes, trials, words=["last"])

    def held(name: str) -> bool:
        with suppress(BlockingIOError), files.lock_file(tmp_path / name / ".lock", wait=False):
            return False
        return True

    def judge() -> None:
        with carry(course(), said) as done:
            there.extend([(tmp_path / "c" / "comparison.json").exists(), held("c-rates"), done.any_finished])

    with pytest.raises(NegbenchError, match="3 of 3 cells failed"):
        judge()
    assert (there, said) == ([True, True, False], ["look", "last", "c-rates is complete"])
    assert computing == ["warned of 2, 0.0", "c-rates", "c"]
    assert not held("c")


def test_a_price_is_told_from_twenty_cells_on(computing, tmp_path, monkeypatch, subtests):
    monkeypatch.setattr(driver.Forecast, "price", lambda self, asked, runs: [f"{len(list(asked))} cells, {self.later}"])
    for count, want in ((19, []), (20, ["20 cells, (0.0, 5.0)"])):
        with subtests.test(count=count):
            said, execution = list[str](), Execution(InProcess(), "none")
            asked = Round(ComparisonFolder(tmp_path / "c"), cells("a", range(count)), later_epochs=5.0)
            with suppress(NegbenchError), carry_out(one_round(asked), execution, said.append):
                pass
            assert said == want
    asked = replace(asked, cells=[], ahead=[cell("a", 0), cell("a", 1, done=True)])
    with suppress(NegbenchError), carry_out(one_round(asked), execution, said.append):
        assert execution.forecast.later == (10.0, 15.0)  # without what is finished


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Stopped(15)])
@pytest.mark.parametrize("inside", [True, False])
def test_an_interruption_says_what_is_kept_and_frees_a_folder(computing, error, inside, tmp_path, monkeypatch, logged):
    """In a round, or within the course."""
    folder, real = ComparisonFolder(tmp_path / "c"), driver.compute_and_log

    def computed(*given: Any) -> list[Outcome]:
        if not inside:
            raise error
        folder.write([outcome_of(given[1][0]), outcome_of(given[1][1], "lost"), outcome_of(cell("b", 0))])
        return real(*given)

    def course() -> Course:
        yield Round(folder, cells("a", (0, 1)), [outcome_of(cell("b", 0))])
        raise error

    monkeypatch.setattr(driver, "compute_and_log", computed)
    with pytest.raises(type(error)), carry(course(), []):
        pytest.fail("it was not carried out")
    assert [record.getMessage() for record in logged] == [
        f"{2 * inside} of 3 cells are finished and kept in {tmp_path / 'c'}"
    ]
    with files.lock_file(tmp_path / "c" / ".lock", wait=False):
        pass


def test_a_second_command_of_the_same_name_waits(computing, tmp_path, logged, subtests):
    """Otherwise the two mix their cells, and the page has verdicts on strategies that it lacks."""
    for kind in ("comparison", "claims", "final"):
        with subtests.test(kind=kind):
            folder = ComparisonFolder(tmp_path / kind, {"kind": kind})
            first, order = folder.lock(), list[str]()
            first.__enter__()
            Timer(0.2, lambda: (order.append("freed"), first.__exit__(None, None, None))).start()  # noqa: B023
            with suppress(NegbenchError), carry(one_round(Round(folder, cells("a", (0,)))), []):
                order.append("computed")
            assert order == ["freed", "computed"]
            assert f"{kind} {kind} is being computed by another process: waiting for it" in [
                r.getMessage() for r in logged
            ]


def test_each_kind_of_folder_is_locked(subtests, computing, vector_sets, tmp_path, monkeypatch):
    """Those of a comparison, its rates, claims and a study's final runs; a study is shared, trial by trial."""
    where: dict[str, Any] = {"sets": vector_sets, "runs_dir": tmp_path, "tracking_uri": "none"}

    def run(self: TrialSearch, execution: Any) -> None:
        for book, _ in self.studies:
            with files.lock_file(book.folder / ".lock", wait=False):
                computing.append(book.folder.name)
            book.work(lambda trial: float(trial.number == 1), print)

    monkeypatch.setattr(TrialSearch, "run", run)
    kept = [text for text in vector_sets if not text.startswith("schedule.")]
    commands = {
        "compare": lambda: negbench.compare(strategies="top-k,in-batch", seeds=1, name="c", **where),
        "claims": lambda: negbench.claims(only="5", seeds=1, name="d", **{**where, "sets": kept}),
        "study": lambda: negbench.study(strategy="dqe", trials=2, final_seeds=1, name="s", **where),
    }
    for name, command in commands.items():
        with subtests.test(name), pytest.raises(NegbenchError, match="cells failed"):
            command()
    warned = "warned of 2, 0.0"
    assert computing == ["warned of 2, 0.01", "c-rates", "c", warned, "d", warned, "s", "s-final"]
