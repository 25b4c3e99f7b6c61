"""Both directions of a batch: its two slots allow the same pairs; tests of planes and slots have scores and loss."""

import torch

from negbench.settings.config import MiningConfig
from tests.runs import config_of, untrained


def test_a_query_of_the_same_target_is_no_negative_either_way(vector_sets):
    train = untrained(config_of(vector_sets, "in-batch-both")).scene.train
    rows, mining = torch.arange(48), MiningConfig(exclude_relevant=True)
    there, back = (train.batch_allowed(slot, rows, mining) for slot in ("target", "query"))
    assert torch.equal(back, there.T)
    assert not torch.equal(back, there)  # a target may be relevant to another query, and not the other way round
