"""Both directions of a batch, in a step, against loops and a library's cross-entropy."""

import pytest
import torch

from negbench.api import make_loss, make_strategy
from negbench.contracts import relevance
from negbench.data.scene import DataCache
from negbench.display import Display
from negbench.loop.objective import Batch, Objective
from negbench.loop.runs import open_run
from negbench.scoring import evaluation
from negbench.settings.config import HybridConfig, MiningConfig
from negbench.systems.system import load_config


@torch.no_grad()
@pytest.mark.parametrize("slots", ["sum", "joint"])
def test_a_step_goes_both_ways(slots, vector_sets):
    opened = open_run(
        load_config(flags={"strategy": {"name": "in-batch-both"}}, sets=vector_sets), Display(), DataCache()
    )
    opened.backbone.eval()
    train = opened.scene.train
    embeddings = evaluation.embed(opened.backbone, opened.scene, train)
    columns = train.dataset.target_columns
    first = {column: row for row, column in reversed(list(enumerate(columns.tolist())))}
    rows = torch.tensor(list(first.values())[:6])  # distinct targets: the loss is CLIP's, nothing is masked
    scores = relevance(embeddings.queries[rows], embeddings.candidates[columns[rows]]) / opened.backbone.temperature
    hybrid = HybridConfig.model_validate({"slots": slots})
    parts = (opened.backbone, make_strategy("in-batch-both"), make_loss("info-nce"), opened.scene, MiningConfig())
    result = Objective(*parts, hybrid)(Batch(rows, None, {k: v[rows] for k, v in train.tokens.items()}))
    assert result.negatives == 2 * 6 * 5
    if slots == "sum":
        own = torch.arange(6)
        entropy = torch.nn.functional.cross_entropy
        want = entropy(scores, own) + entropy(scores.T, own)
    else:
        rows_of = [
            torch.cat([scores[i, i : i + 1], *(t[:, i][torch.arange(6) != i] for t in (scores, scores.T))])
            for i in range(6)
        ]
        want = torch.stack([-row.log_softmax(0)[0] for row in rows_of]).mean()
    assert float(result.loss) == pytest.approx(float(want), abs=1e-5)


def test_a_query_of_the_same_target_is_no_negative_either_way(vector_sets):
    config = load_config(flags={"strategy": {"name": "in-batch-both"}}, sets=vector_sets)
    train = open_run(config, Display(), DataCache()).scene.train
    rows, mining = torch.arange(48), MiningConfig(exclude_relevant=True)
    there, back = (train.batch_allowed(slot, rows, mining) for slot in ("target", "query"))
    assert torch.equal(back, there.T)
    assert not torch.equal(back, there)  # a target may be relevant to another query, and not the other way round
