"""The course of a comparison: the trials that choose settings, then the cells look by look."""

from collections.abc import Generator, Sequence
from dataclasses import replace

from negbench.analysis.deciding import open_strategies
from negbench.analysis.verdicts import Rules
from negbench.campaign.driver import Course, Round
from negbench.campaign.plan import ComparisonPlan
from negbench.campaign.seeds import epochs_of_looks, look_by_look
from negbench.grid.cells import Cell, Outcome
from negbench.grid.setting import OWN
from negbench.loop.runs import DATA


def compare_cells(planned: ComparisonPlan, rules: Rules, later: float = 0.0) -> Course:
    """Ask for all that a comparison needs.

    Args:
        planned: its plan.
        rules: how strategies are compared.
        later: epochs of the runs that may follow it.
    """
    trials: Sequence[Outcome] = ()
    if planned.choice is not None:
        planned, trials = yield from _at_chosen(planned, rules, later)
    first = Round(planned.folder, planned.cells, later=later)
    undecided = open_strategies(planned.folder, rules)
    return replace((yield from look_by_look(first, rules.looks, undecided)), trials=trials)


def _at_chosen(
    planned: ComparisonPlan, rules: Rules, later: float
) -> Generator[Round, Sequence[Outcome], tuple[ComparisonPlan, list[Outcome]]]:
    """Ask for each group's trials and for those that they ask for; return the plan at the best settings."""
    choice = planned.choice
    assert choice is not None
    if rules.looks is not None:
        later += epochs_of_looks(planned.cells, rules.looks, len(rules.looks.first))
    if planned.settings_open:
        later += _epochs_of_own(planned.cells)
    outcomes: list[Outcome] = []
    while True:
        computed = {outcome.cell.hash for outcome in outcomes}
        trials = [cell for cell in choice.cells if cell.hash not in computed]
        if not trials:
            return replace(planned, choice=choice).at_best_settings(), outcomes
        outcomes += yield Round(planned.trials, trials, list(outcomes), planned.cells, later + choice.further_epochs())
        choice = choice.grown(planned.folder.path.parent, DATA)


def _epochs_of_own(cells: Sequence[Cell]) -> int:
    """Return the epochs of the rows at settings of their own: as many runs more, if no row's is the common one."""
    return sum(cell.config.train.epochs for cell in cells if cell.labels["settings"] == OWN)
