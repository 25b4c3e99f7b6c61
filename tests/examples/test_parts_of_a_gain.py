"""The example that takes a gain apart, against the runs' own results."""

from itertools import product

import numpy as np
import pytest

import negbench
from negbench.store.runfolder import RunFolder

FACTORS = ("negatives", "objective")


def test_own_terms_interaction_and_shares_by_hand(subtests, example, vector_sets, tmp_path):
    options = negbench.Compare(
        strategies="own", dials=[f"system.{factor}=plain,qure" for factor in FACTORS], seeds=1, lr="fixed",
        sets=(*vector_sets, "train.epochs=2"), runs_dir=tmp_path, tracking_uri="none", report=False, name="p",
    )  # fmt: skip
    cells = negbench.compare(options).cells
    kinds = {("plain", "plain"): ("in-batch", "info-nce"), ("qure", "plain"): ("qure", "info-nce")}
    kinds |= {("plain", "qure"): ("in-batch", "bradley-terry"), ("qure", "qure"): ("qure", "bradley-terry")}
    mean = {}
    for negatives, objective in product(("plain", "qure"), repeat=2):
        with subtests.test(negatives=negatives, objective=objective):
            rows = cells[(cells["system.negatives"] == negatives) & (cells["system.objective"] == objective)]
            assert {(row.plugin, row.loss) for row in rows.itertuples()} == {kinds[negatives, objective]}
            results = [RunFolder(tmp_path / run).result for run in rows.run]
            mean[negatives, objective] = 100 * np.mean([result["metrics"][result["main_metric"]] for result in results])
    none = mean["plain", "plain"]
    negatives_alone = mean["qure", "plain"]
    objective_alone = mean["plain", "qure"]
    both = mean["qure", "qure"]
    module = example("parts_of_a_gain")
    frame = module.parts(module.corners(tmp_path / "p")).set_index(["part", "of"])
    expected = {
        ("gain", "all"): both - none,
        ("own term", "negatives"): negatives_alone - none,
        ("own term", "objective"): objective_alone - none,
        ("interaction", "negatives and objective"): both - negatives_alone - objective_alone + none,
        ("Shapley share", "negatives"): (negatives_alone - none + both - objective_alone) / 2,
        ("Shapley share", "objective"): (objective_alone - none + both - negatives_alone) / 2,
    }
    assert frame["points"].to_dict() == pytest.approx(expected, abs=1e-6)
    assert both != none
    assert (frame["low"] <= frame["points"]).all()
    assert (frame["points"] <= frame["high"]).all()
