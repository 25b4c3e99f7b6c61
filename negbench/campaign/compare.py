"""The course of a comparison: the trials that choose settings, then the cells look by look."""

from collections.abc import Generator, Sequence
from dataclasses import replace

from negbench.analysis.deciding import open_strategies
from negbench.analysis.verdicts import Rules
from negbench.campaign.driver import Course, Round
from negbench.campaign.plan import ComparisonPlan
from negbench.campaign.seeds import epochs_of_looks, look_by_look
from negbench.grid.cells import Cell, Outcome
from negbench.grid.setting import OWN_SETTING
from negbench.loop.runs import DATA


def compare_cells(planned: ComparisonPlan, rules: Rules, later_epochs: float = 0.0) -> Course:
    """Ask for all that a comparison needs.

    Args:
        planned: its plan.
        rules: how strategies are compared.
        later_epochs: epochs of the runs that may follow it.
    """
    trials: Sequence[Outcome] = ()
    if planned.trials is not None:
        planned, trials = yield from _choose_settings(planned, rules, later_epochs)
    first = Round(planned.folder, planned.cells, later_epochs=later_epochs)
    undecided = open_strategies(planned.folder, rules)
    done = yield from look_by_look(first, rules.looks, undecided)
    return replace(done, trials=trials)


def _choose_settings(
    planned: ComparisonPlan, rules: Rules, later_epochs: float
) -> Generator[Round, Sequence[Outcome], tuple[ComparisonPlan, list[Outcome]]]:
    """Ask for the trials of each group, then for further ones where a grid goes on.

    Returns:
        The plan at the best settings, and the outcomes of the trials.
    """
    trials = planned.trials
    assert trials is not None
    if rules.looks is not None:
        later_epochs += epochs_of_looks(planned.cells, rules.looks, len(rules.looks.first))
    if planned.settings_open:
        later_epochs += _epochs_at_own_settings(planned.cells)
    outcomes: list[Outcome] = []
    while True:
        computed = {outcome.cell.hash for outcome in outcomes}
        missing = [cell for cell in trials.cells if cell.hash not in computed]
        if not missing:
            return replace(planned, trials=trials).at_best_settings(), outcomes
        outcomes += yield Round(
            planned.trials_folder,
            missing,
            before=list(outcomes),
            ahead=planned.cells,
            later_epochs=later_epochs + trials.further_epochs(),
        )
        trials = trials.extend(planned.folder.path.parent, DATA)


def _epochs_at_own_settings(cells: Sequence[Cell]) -> int:
    """Return the epochs of the rows at settings of their own: as many runs more, if no row's is the common one."""
    return sum(cell.config.train.epochs for cell in cells if cell.labels["settings"] == OWN_SETTING)
