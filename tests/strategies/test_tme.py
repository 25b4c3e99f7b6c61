from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

from negbench.errors import NegbenchError
from negbench.strategies.tme import Tme, _clean


def mixture(seed: int) -> torch.Tensor:
    """Losses of 60 clean queries and 25 noisy ones, of any sign."""
    random = np.random.default_rng(seed)
    return torch.from_numpy(np.concatenate([random.normal(-3, 1, 60), random.normal(2 + seed, 2, 25)]))


def loops(losses: list[float]) -> list[float]:
    """Expectation and maximisation, number by number, from the two means that start at the extremes."""
    low, high = min(losses), max(losses)
    x = [(v - low) / (high - low) for v in losses]
    centre = [0.0, 1.0]
    for _ in range(100):
        near = [[float(abs(v - centre[k]) <= abs(v - centre[1 - k])) for k in (0, 1)] for v in x]
        centre = [sum(n[k] * v for n, v in zip(near, x, strict=True)) / sum(n[k] for n in near) for k in (0, 1)]
    bound, steps = -math.inf, 0
    while True:
        count = [sum(b[k] for b in near) for k in (0, 1)]
        mean = [sum(b[k] * v for b, v in zip(near, x, strict=True)) / count[k] for k in (0, 1)]
        square = [sum(b[k] * (v - mean[k]) ** 2 for b, v in zip(near, x, strict=True)) for k in (0, 1)]
        spread = [square[k] / count[k] + 5e-4 for k in (0, 1)]
        height = [count[k] / len(x) / math.sqrt(2 * math.pi * spread[k]) for k in (0, 1)]
        density = [[height[k] * math.exp(-((v - mean[k]) ** 2) / 2 / spread[k]) for k in (0, 1)] for v in x]
        near = [[d[k] / sum(d) for k in (0, 1)] for d in density]
        if steps == 10 or math.isnan(bound):
            return [b[0] for b in near]
        new, steps = sum(math.log(sum(d)) for d in density) / len(x), steps + 1
        bound = math.nan if abs(new - bound) < 1e-2 else new  # one more set of parameters, then it ends


@pytest.mark.parametrize("seed", range(6))
def test_against_loops(seed: int) -> None:
    losses = mixture(seed)
    want = loops(losses.tolist())
    assert _clean(losses).tolist() == pytest.approx(want, abs=1e-9)
    for threshold in (0.5, 0.9, 0.0):
        weights = Tme(threshold=threshold).query_weights(losses).tolist()
        assert weights == [float(p > threshold) for p in want]


@pytest.mark.parametrize("seed", range(6))
def test_against_scikit_learn(seed: int) -> None:
    """From the two means that scikit-learn's own search for them finds."""
    learn, cluster = pytest.importorskip("sklearn.mixture"), pytest.importorskip("sklearn.cluster")
    losses = mixture(seed).numpy()
    x = ((losses - losses.min()) / (losses.max() - losses.min()))[:, None]
    high = cluster.KMeans(2, init=np.array([[0.0], [1.0]]), n_init=1, tol=0).fit(x).labels_ == 1
    groups = [x[~high], x[high]]
    model = learn.GaussianMixture(
        n_components=2,
        max_iter=10,
        tol=1e-2,
        reg_covar=5e-4,
        weights_init=[len(g) / len(x) for g in groups],
        means_init=[g.mean(0) for g in groups],
        precisions_init=[[[1 / (g.var() + 5e-4)]] for g in groups],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ten steps need not be enough: so it is released
        want = model.fit(x).predict_proba(x)[:, model.means_[:, 0].argmin()]
    np.testing.assert_allclose(_clean(torch.from_numpy(losses)).numpy(), want, atol=1e-7)


def test_noise_is_left_out_and_what_is_unknown_counts() -> None:
    losses = torch.tensor([0.1, 0.2, 5.0, 0.15, math.nan, 5.2, 0.12], dtype=torch.float64)
    assert Tme().query_weights(losses).tolist() == [1, 1, 0, 1, 1, 0, 1]
    assert Tme().query_weights(losses - 9).tolist() == [1, 1, 0, 1, 1, 0, 1]
    assert Tme().query_weights(torch.full((3,), 0.7, dtype=torch.float64)).tolist() == [1, 1, 1]


@pytest.mark.parametrize("threshold", [1, -0.1, True])
def test_bad_options_are_quoted(threshold: float) -> None:
    with pytest.raises(NegbenchError, match="threshold must be a number >= 0 and < 1, got"):
        Tme(threshold=threshold)
