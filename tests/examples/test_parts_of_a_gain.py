"""The example that takes a gain apart, against the runs' own results."""

from itertools import product

import numpy as np
import pytest

import negbench
from negbench.store.runfolder import RunFolder

FACTORS = ("negatives", "objective")


def test_own_terms_interaction_and_shares_by_hand(subtests, example, vector_sets, tmp_path):
    asked = negbench.Compare(
        strategies="own", dials=[f"system.{factor}=plain,qure" for factor in FACTORS], seeds=1, lr="fixed",
        sets=(*vector_sets, "train.epochs=2"), runs_dir=tmp_path, tracking_uri="none", report=False, name="p",
    )  # fmt: skip
    cells = negbench.compare(asked).cells
    kinds = {("plain", "plain"): ("in-batch", "info-nce"), ("qure", "plain"): ("qure", "info-nce")}
    kinds |= {("plain", "qure"): ("in-batch", "bradley-terry"), ("qure", "qure"): ("qure", "bradley-terry")}
    mean = {}
    for place in product(("plain", "qure"), repeat=2):
        with subtests.test(place=place):
            rows = cells[(cells["system.negatives"] == place[0]) & (cells["system.objective"] == place[1])]
            assert {(row.plugin, row.loss) for row in rows.itertuples()} == {kinds[place]}
            results = [RunFolder(tmp_path / run).result for run in rows.run]
            mean[place] = 100 * np.mean([result["metrics"][result["main_metric"]] for result in results])
    none, negatives, objective, both = (
        mean[place] for place in (("plain", "plain"), ("qure", "plain"), ("plain", "qure"), ("qure", "qure"))
    )
    module = example("parts_of_a_gain")
    frame = module.parts(module.corners(tmp_path / "p")).set_index(["part", "of"])
    want = {
        ("gain", "all"): both - none,
        ("own term", "negatives"): negatives - none,
        ("own term", "objective"): objective - none,
        ("interaction", "negatives and objective"): both - negatives - objective + none,
        ("Shapley share", "negatives"): (negatives - none + both - objective) / 2,
        ("Shapley share", "objective"): (objective - none + both - negatives) / 2,
    }
    assert frame["points"].to_dict() == pytest.approx(want, abs=1e-6)
    assert both != none
    assert (frame["low"] <= frame["points"]).all()
    assert (frame["points"] <= frame["high"]).all()
