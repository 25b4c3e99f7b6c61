"""The example that measures how evenly attributes weigh, on features whose weights are known."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

from negbench.backbones.vectors import VectorOptions, Vectors
from negbench.worlds._garments import ATTRIBUTES


@pytest.mark.parametrize("decay", [0.9, 0.7, 0.5, 0.3])
def test_the_dial_of_a_world_comes_back(example, decay):
    module = example("evenness")
    # every third value, and two pictures of each garment, whose difference is noise alone
    codes = list(itertools.product(range(0, 6, 3), *[range(2)] * 5))
    names = ["".join(map(str, code)) for code in codes]
    ids = [f"dress-train-0-{name}-{number:05}" for number, name in enumerate(2 * names)]
    features = Vectors(VectorOptions(decay=decay, dim=512), 0).features_of(ids).mean(1)
    found = module.weights(features, torch.tensor(2 * codes), ["dress"] * len(ids))
    wanted = decay ** np.arange(len(ATTRIBUTES))
    assert found["weight"].tolist() == pytest.approx((wanted / np.linalg.norm(wanted)).tolist(), abs=0.06)
    assert module.nearest_decay(found) == pytest.approx(decay, abs=0.04)


def test_only_pictures_of_one_group_that_differ_in_one_attribute_are_compared(example):
    module = example("evenness")
    features = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0], [9.0, 9.0]])
    codes = torch.tensor([[0, 0], [1, 0], [0, 1], [0, 1]])
    found = module.weights(features, codes, ["a", "a", "a", "b"])
    assert found["pairs"].tolist() == [1, 1]
    assert found["weight"].tolist() == pytest.approx([0.6, 0.8])


def test_an_attribute_that_never_differs_alone_has_no_weight(example):
    module = example("evenness")
    features = torch.tensor([[0.0], [1.0]])
    found = module.weights(features, torch.tensor([[0, 5], [1, 5]]), ["a", "a"])
    assert found["pairs"].tolist() == [1, 0]
    assert found["weight"].isna().tolist() == [False, True]
    assert module.nearest_decay(pd.DataFrame({"weight": [1.0, np.nan]})) > 0
