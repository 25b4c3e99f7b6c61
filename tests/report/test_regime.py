"""The regime card in tables and in words."""

import json
import shutil
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from negbench.analysis.answer import _regime
from negbench.analysis.columns import TABLES, texts
from negbench.analysis.frame import folders_of, labels_of
from negbench.analysis.leader import regime_of
from negbench.analysis.regime_card import in_words
from negbench.display import Grid
from negbench.mining.regime import Regime
from negbench.store.runfolder import RunFolder
from tests.made import again
from tests.made import group as group_from

CARD: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "card.json").read_text(encoding="utf-8"))
UNKNOWN = {"relevant", "false_negatives", "false_negatives_above", "false_negatives_below", "recall_val", "fit_gap"}


@pytest.fixture
def group_of(finished: Callable[..., RunFolder], tmp_path: Path) -> Callable[..., pd.DataFrame]:
    """Return a function that makes a group with one run per rank, which it has at its last refresh only."""
    run = finished("select=last")
    after_training = {**CARD, "epoch": 4.0, "target_rank_median": 1.0}

    def group(strategy: str, *ranks: float, **card: Any) -> pd.DataFrame:
        folders = []
        for seed, rank in enumerate(ranks):
            folder = RunFolder(Path(shutil.copytree(run.path, tmp_path / f"{strategy}-{seed}")))
            first = {**CARD, "band_start_median": 0.995}
            last = {**CARD, "epoch": 2.0, "target_rank_median": rank, **card}
            folder.write_result({**run.result, "regime_by_refresh": [first, last], "regime": after_training})
            folders.append(folder)
        labels = {"strategy": strategy, "loss": "bradley-terry", "backbone": "tiny", "dataset": "d"}
        return group_from(labels, folders)

    return group


def regime_frame(*groups: pd.DataFrame) -> pd.DataFrame:
    return texts(TABLES["regime"], [labels_of(group) | regime_of(group) for group in groups], ["strategy"])


def test_every_number_of_the_card_has_a_column(group_of):
    assert set(Regime.__dataclass_fields__) == {column.key for column in TABLES["regime"]}
    means = regime_of(group_of("qure", 4, 8))
    assert means["target_rank_median"] == 6  # of the last refresh, mean over seeds
    assert means["fit_gap"] == 0.07


def test_the_table_is_of_the_last_refresh_and_fits_a_narrow_terminal(subtests, group_of):
    groups = [group_of("qure", 4, 8), group_of("in-batch", 3)]
    frame = regime_frame(*groups)
    assert list(frame["strategy"]) == ["qure", "in-batch"]
    assert list(frame["rank"]) == ["6.0", "3.0"]
    assert list(frame["first %"]) == ["6.0", "6.0"]
    assert list(frame["bands top 5 %"]) == ["30.5", "30.5"]
    assert list(frame["FN random %"]) == ["0.32", "0.32"]
    console = Console(width=80, force_terminal=True, record=True, file=StringIO())
    console.print(Grid(frame, "regime"))
    text = console.export_text()
    for title in ("rank", "first %", "bands top 5 %", "gap", "FN above %", "tail"):
        with subtests.test(title=title):
            assert title in text.split("no room")[0]
    assert max(map(len, text.splitlines())) <= 80


def test_unknown_numbers_are_gaps(group_of):
    unknown = dict.fromkeys(UNKNOWN)
    frame = regime_frame(group_of("qure", 4, 8, **unknown))
    gaps = ["gap", "FN above %", "FN below %", "FN random %", "R@10 val", "relevant"]
    assert [frame.loc[0, title] for title in gaps] == ["-"] * 6
    assert frame.loc[0, "rank"] == "6.0"
    text = in_words([{**CARD, **unknown}])
    assert "false negatives are unknown" in text
    assert "the fit gap is unknown" in text


def test_in_words():
    one = in_words([CARD])
    assert one == (
        "the training target's median rank is 14 of 1,000, and 6.0 % rank first; QuRe's negatives (between the two "
        "steepest score drops below the target) would start in the top 5 % of the ranking for 30.5 % of the queries; "
        "0.32 % of random negatives are false, 9.6 % of those right above the target; recall at 10 on train minus val "
        "is 7.0 points"
    )
    two = in_words([CARD, {**CARD, "target_rank_median": 3.0, "target_first": 0.5, "fit_gap": -0.01}])
    assert "median rank is 3 to 14 of 1,000, and 6.0 to 50.0 % rank first" in two
    assert two.endswith("is -1.0 to 7.0 points")


def test_the_answer_names_the_regime_of_the_last_refresh(group_of):
    groups = [group_of("qure", 4, 8), group_of("in-batch", 3, target_first=0.5)]
    assert _regime(groups) == ["Valid for models that rank 6.0 to 50.0 % of their training targets first."]
    for run in folders_of(groups[1]):
        run.write_result({k: v for k, v in run.result.items() if "regime" not in k})  # of an earlier version
    earlier = again(groups[1])
    assert (_regime([earlier]), regime_of(earlier)) == ([], {})
