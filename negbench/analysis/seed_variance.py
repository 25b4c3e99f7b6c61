"""Variance of strategies' means over seeds, from one model of the whole table.

Three seeds say little about one strategy's variance, but a table of strategies says much about all of them. The seed
means y[s, k] of strategy k follow y = a_s + mu_k + e_sk: the effect of seed s on every strategy (which cancels in a
paired difference), the strategy's mean, and noise of its own variance sigma_k^2. The variances have a common scaled
inverse-chi-squared distribution, whose scale and degrees of freedom d0 are learned from the table: strategies that vary
alike lend each other degrees of freedom, others keep their own (Smyth, Statistical Applications in Genetics 3, 2004,
fits such a prior by moments and then trusts it entirely; here its uncertainty enters the intervals). Each strategy may
be an odd one, whose variance has a scale of its own (Phipson et al., Annals of Applied Statistics 10, 2016, allow for
such outliers): else many alike strategies would lend it a variance that it does not have. The posterior is drawn by
Gibbs sampling, for two strategies exactly; docs/statistics.md prints the calibration.
"""

import numpy as np
import scipy
from numpy.typing import NDArray

Array = NDArray[np.float64]

_DEGREES = np.array([1, 2, 3, 5, 8, 13, 21, 34], dtype=np.float64)  # of freedom of the prior, d0; equally likely
_ODD = 0.04  # probability that a strategy is an odd one
_ODD_SCALE = 10.0  # times the scale of the others' variances
_CHAINS, _WARM_UP, _THIN = 80, 60, 2


def repeats(strategies: int) -> int:
    """Return how many times the usual draws a table needs: few strategies leave the variances heavy tails."""
    return {2: 10, 3: 4}.get(strategies, 1)


def variance_draws(means: Array, draws: int, generator: np.random.Generator) -> Array:
    """Draw every strategy's variance over seeds from its posterior.

    Args:
        means: [K, S] seed means of K strategies; NaN where a strategy lacks a seed. A strategy with one seed takes its
            variance from the others.
        draws: their number R.
        generator: source of all random draws.

    Returns:
        [R, K] variances of a single seed's mean, without the effect of a seed on all strategies; zeros where nothing
        varies, or where no two strategies share two seeds.
    """
    observed = ~np.isnan(means)
    observed &= observed.sum(axis=0) > 1  # a seed that only one strategy has says nothing about differences
    count = observed.sum(axis=1).astype(np.float64)
    values = np.where(observed, means, 0.0)
    centred = np.where(observed, values - values.sum(axis=1, keepdims=True) / np.maximum(count, 1)[:, None], 0.0)
    seed_effect = centred.sum(axis=0) / np.maximum(observed.sum(axis=0), 1)
    residual = np.where(observed, centred - seed_effect, 0.0)
    scale = np.sqrt((residual**2).sum() / max(1, observed.sum()))
    if scale <= 1e-13 * np.abs(values).max():  # rounding errors
        return np.zeros((draws, len(means)))
    if len(means) == 2:  # exact, as in a paired t test; how much of it is either's variance changes no difference
        gaps = centred[0] - centred[1]
        variances = gaps @ gaps / 2 / generator.chisquare(count[0] - 1, (draws, 1))
        return np.repeat(variances, 2, axis=1)
    return np.asarray(_gibbs(centred / scale, observed, draws, generator) * scale**2, dtype=np.float64)


def _gibbs(values: Array, observed: NDArray[np.bool_], draws: int, generator: np.random.Generator) -> Array:
    """[R, K] draws of the variances, for values [K, S] of unit scale; zeros where they are not `observed`."""
    strategies, seeds = values.shape
    chains = _CHAINS * repeats(strategies)
    count = observed.sum(axis=1).astype(np.float64)
    mask = observed.astype(np.float64)
    variance = np.ones((chains, strategies))
    mean = np.zeros((chains, strategies))
    degrees = np.full((chains, 1), 5.0)
    scale = np.ones((chains, 1))
    squares = (values**2).sum(axis=1)
    sums = values.sum(axis=1)
    level = np.maximum(count, 1)
    half = _DEGREES / 2
    constant = half * np.log(half) - scipy.special.gammaln(half)
    precision = 1 / variance
    multiple = np.ones((chains, strategies))  # of the prior's scale: 1, or `_ODD_SCALE` for an odd one
    samples = list[Array]()
    for sweep in range(_WARM_UP + _THIN * (-(-draws // chains))):
        # a_s: the effect of seed s on all strategies
        weight = np.maximum(precision @ mask, 1e-12)
        effect = (precision @ values - (precision * mean) @ mask) / weight
        effect += generator.standard_normal((chains, seeds)) / np.sqrt(weight)
        effect -= effect.mean(axis=1, keepdims=True)  # mu and a are known up to a constant, which differences lack
        # mu_k
        effects = effect @ mask.T  # summed over a strategy's seeds
        mean = (sums - effects) / level
        mean = mean + generator.standard_normal(mean.shape) * np.sqrt(variance / level)
        # sigma_k^2, from the squares of y - a - mu
        rest = squares + (effect**2) @ mask.T + count * mean**2
        rest += 2 * (mean * effects - effect @ values.T - mean * sums)
        variance = (degrees * scale * multiple + np.maximum(rest, 0)) / generator.chisquare(degrees + count)
        variance = np.maximum(variance, 1e-12)
        precision = 1 / variance
        # which strategies are odd
        gain = degrees / 2 * (np.log(_ODD_SCALE) - (_ODD_SCALE - 1) * scale * precision)  # of the log likelihood
        is_odd = generator.random((chains, strategies)) < scipy.special.expit(gain + scipy.special.logit(_ODD))
        multiple = np.where(is_odd, _ODD_SCALE, 1.0)
        # the prior's scale and degrees of freedom
        inverse = (multiple * precision).sum(axis=1, keepdims=True)
        scale = generator.gamma(strategies * degrees / 2) / (degrees / 2 * inverse)
        logs = np.log(variance / multiple).sum(axis=1, keepdims=True)
        likelihood = strategies * (constant + half * np.log(scale))
        likelihood = likelihood - half * logs - half * scale * inverse
        drawn_index = (likelihood + generator.gumbel(size=likelihood.shape)).argmax(axis=1)
        degrees = _DEGREES[drawn_index][:, None]
        if sweep >= _WARM_UP and (sweep - _WARM_UP) % _THIN == 0:
            samples.append(variance)
    return np.concatenate(samples)[:draws]
