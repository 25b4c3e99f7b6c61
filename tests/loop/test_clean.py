"""Queries that look wrong are left out of the loss: the mixture, the losses by a loop, and a run on wrong triplets."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

from negbench.errors import NegbenchError
from negbench.loop.clean import low_component, query_losses
from negbench.loop.runs import compute_or_reuse
from negbench.plugins.registry import registry
from negbench.scoring.evaluation import Embeddings
from negbench.settings.config import MiningConfig
from tests.runs import config_of, run, untrained
from tests.steps import batch_of, gradients_of, made_guide, objective_of

WORLD = ("dataset.name=vectors", "backbone.name=vectors", "dataset.train_images=200", "dataset.train_queries=160")


def test_the_lower_of_two_gaussians_is_clean():
    generator = torch.Generator().manual_seed(0)
    right = 0.5 + 0.2 * torch.rand(300, generator=generator)
    wrong = 4 + torch.rand(60, generator=generator)
    clean = low_component(torch.cat([right, wrong]), 0)
    assert clean[:300].all()
    assert not clean[300:].any()
    assert torch.equal(clean, low_component(torch.cat([right, wrong]), 0))
    assert low_component(torch.full((5,), 2.0), 0).all()


def test_losses_are_those_of_a_loop_over_random_batches():
    generator = torch.Generator().manual_seed(1)
    queries = normalize(torch.randn(7, 4, generator=generator), dim=-1)
    images = normalize(torch.randn(9, 2, 4, generator=generator), dim=-1)
    targets = torch.tensor([3, 1, 4, 1, 5, 8, 2])
    losses = query_losses(Embeddings(queries, images), targets, 0.2, 3, torch.Generator().manual_seed(5))
    a, b, c, d, e, f, last = torch.randperm(7, generator=torch.Generator().manual_seed(5)).tolist()
    rows = set()
    # the last batch is filled with the first two, whose losses are those of their own batch
    for batch, scored in (([a, b, c], [a, b, c]), ([d, e, f], [d, e, f]), ([last, a, b], [last])):
        for row in scored:
            scores = {other: float((images[targets[other]] @ queries[row]).max()) / 0.2 for other in batch}
            want = math.log(sum(math.exp(score) for score in scores.values())) - scores[row]
            assert float(losses[row]) == pytest.approx(want, rel=1e-5), f"row {row}"
            rows.add(row)
    assert rows == set(range(7))


@pytest.mark.parametrize("loss", registry.plugins("losses"))
@pytest.mark.parametrize("strategy", ["in-batch", "in-batch+qure"])
def test_rows_that_are_left_out_have_no_gradient_and_the_mean_is_over_the_others(loss, strategy, tuned):
    """The loss of rows 0, 2 and 5 alone, whichever text the others have."""
    mining = MiningConfig(exclude_relevant=loss == "multi-positive")
    options = {"kl_over": "batch"} if loss == "margin-kl" else {}
    guide = {"guide": made_guide(tuned)}
    objective = objective_of(tuned, strategy, loss, mining, terms=False, offline=guide, **options)
    batch = batch_of(tuned, strategy)
    clean = torch.tensor([True, False, True, False, False, True])
    some, _ = gradients_of(objective, replace(batch, clean=clean), 0)
    whole, _ = gradients_of(objective, batch, 0)
    other = {name: value[[0, 0, 2, 2, 2, 5]] for name, value in batch.tokens.items()}
    same, _ = gradients_of(objective, replace(batch, clean=clean, tokens=other), 0)
    assert some == pytest.approx(same, rel=1e-6)
    assert some != pytest.approx(whole, rel=1e-3)
    if loss != "siglip":
        single = []
        for row in (0, 2, 5):
            alone, _ = gradients_of(objective, replace(batch, clean=torch.arange(6) == row), 0)
            single.append(alone)
        assert some == pytest.approx(sum(single) / 3, rel=1e-5)
    nothing, _ = gradients_of(objective, replace(batch, clean=torch.zeros(6, dtype=torch.bool)), 0)
    assert nothing == 0


def test_a_run_finds_the_wrong_triplets(tmp_path):
    """Of 160 triplets 64 have a wrong target; what is left out is wrong twice as often as what is kept."""
    more = ("train.wrong=0.4", "train.wrong_kind=target", "train.epochs=8", "train.clean_after=5", "train.lr=0.01")
    config = config_of(WORLD, "in-batch", *more, loss={"name": "info-nce", "tau": 0.1})
    masks = []

    def note_clean(parts, state, batch):
        masks.append((state.epoch, None if state.clean is None else state.clean.clone()))

    result = run(config, tmp_path, stepped=note_clean)
    assert {epoch for epoch, clean in masks if clean is None} == set(range(5))
    wrong = untrained(config).scene.train.dataset.queries
    right = untrained(config_of(WORLD, "in-batch")).scene.train.dataset.queries
    spoiled = torch.tensor([one.target != other.target for one, other in zip(wrong, right, strict=True)])
    assert int(spoiled.sum()) == 64
    _, clean = masks[-1]
    assert float(spoiled[~clean].float().mean()) > 2 * float(spoiled[clean].float().mean())
    shares = [point["train/clean_share"] for point in result.folder.metrics() if "train/clean_share" in point]
    assert len(shares) == 3
    assert shares[-1] == pytest.approx(float(clean.float().mean()))


def test_a_resumed_run_leaves_out_the_same(vector_sets, tmp_path, interrupted):
    config = config_of(vector_sets, "qure", "train.epochs=4", "train.clean_after=1", "train.lr=0.01")
    whole = run(config, tmp_path / "whole").folder.weights()
    plain = run(config_of(vector_sets, "qure", "train.epochs=4", "train.lr=0.01"), tmp_path / "plain").folder.weights()
    resumed = compute_or_reuse(config, interrupted(config, tmp_path / "half", 2)).folder.weights()
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name
    assert [name for name, value in whole.items() if not torch.equal(value, plain[name])]


REFUSED = {
    "too late": (("train.clean_after=9", "train.epochs=3"), r"^train\.clean_after = 9: the run has 3 epochs"),
    "terms": (("train.clean_after=1", "hybrid.alpha=0.4"), r"^train\.clean_after leaves .* --set hybrid\.alpha=0"),
}


@pytest.mark.parametrize(("sets", "message"), REFUSED.values(), ids=REFUSED)
def test_what_contradicts_is_one_line(sets, message, toy_root, tmp_path):
    base = (f"dataset.root='{toy_root}'", "backbone.weights='random'")
    with pytest.raises(NegbenchError, match=message) as caught:
        run(config_of(base, "in-batch", *sets), tmp_path)
    assert "\n" not in str(caught.value)
