"""What every strategy refuses as an option; `negbench.testing` checks that each message quotes the value."""

from __future__ import annotations

import math
import re

import pytest

from negbench.errors import NegbenchError
from negbench.registry import registry

WHOLE, TARGET = "must be a whole number >= 1", "top-k after-target oracle-after-target"
SIZE = f'{WHOLE}, or a share of the gallery such as "0.6%"'
REFUSED = [
    *((key, {"k": k}, f"k {SIZE}, got {k}") for key in TARGET.split() for k in (0, -3, 2.5, True)),
    *((key, {"k": 0}, f"k {SIZE}, got 0") for key in ("rocketqa", "trisampler", "margin-pos")),
    *((key, {"k": 0}, f"k {WHOLE}, got 0") for key in ("fnc", "ngame")),
    *(("cirqrs", {"n_neg": n}, f"n_neg {SIZE}, got {n}") for n in (0, -3, 2.5)),
    *(("in-batch-cube", {"k": k}, f"k {WHOLE}, or null, got {k!r}") for k in (0, -1, 1.5, True)),
    *(("hardness", {"alpha": a}, "alpha must be a number from 0 to 80") for a in (-1, 81, math.inf)),
    *(("hdc", {"share": s}, "share must be a number > 0 and <= 1") for s in (0, 1.5, True)),
    *(("pair-margin", {"margin": m}, "margin must be a number > 0 and <= 2, got") for m in (0, 2.1, True)),
    ("bank", {"k": 0}, f"k {WHOLE}, or left out, got 0"),
    ("distance-weighted", {"width": 2}, "width must be"),
    ("distance-weighted", {"cutoff": 0}, "cutoff must be"),
    ("distance-weighted", {"limit": 2}, "limit must be"),
    ("dqe", {"alpha": -0.1}, "alpha must be .* got -0.1"),
    ("dqe", {"alpha": 0.8}, "alpha must be .* got 0.8"),
    ("dqe", {"alpha": math.nan}, "alpha must be .* got nan"),
    ("dqe", {"beta": math.nan}, "beta must be .* got nan"),
    ("dqe", {"beta": 2.5}, "beta must be <= 2 where scale is 'absolute', got 2.5"),
    ("dqe", {"beta": 1.5, "scale": "minmax"}, "beta must be <= 1 where scale is 'minmax', got 1.5"),
    ("dqe", {"scale": "minmaxx"}, "scale must be .* got 'minmaxx'"),
    ("gist", {"relative": "percent"}, "relative must be true or false, got 'percent'"),
    ("in-batch-semi-hard", {"margin": 0}, "margin must be a number > 0, got 0"),
    ("margin-pos", {"margin": -0.1}, "margin must be"),
    ("mochi", {"hardest": 0}, f"hardest {WHOLE}, got 0"),
    ("mochi", {"pairs": -1}, "pairs must be a whole number >= 0, got -1"),
    ("multi-similarity", {"epsilon": -1}, "epsilon must be a number >= 0, got -1"),
    ("ngame", {"cluster": 0}, f"cluster {WHOLE}, got 0"),
    ("perc-pos", {"share": 0}, "share must be"),
    ("perc-pos", {"k": 0}, "k must be"),
    ("perc-pos", {"variant": "safe"}, "variant must be"),
    ("qure", {"variant": "papr"}, "variant must be 'paper' or 'release', got 'papr'"),
    ("qure", {"consecutive_threshold": 2}, "consecutive_threshold must be left out .* got 2"),
    *(
        ("qure", {"variant": "release", "consecutive_threshold": t}, f"must be a whole number >= 0, got {t}")
        for t in (-1, 1.5)
    ),
    ("semi-hard", {"margin": 0}, "margin must be"),
    ("semi-hard", {"triplets": "semihard"}, "triplets must be"),
    ("sentence-transformers", {"range_min": -1}, "range_min must be"),
    ("sentence-transformers", {"max_score": "high"}, "max_score must be"),
    ("sentence-transformers", {"absolute_margin": -0.1}, "absolute_margin must be"),
    ("sentence-transformers", {"relative_margin": math.nan}, "relative_margin must be"),
    ("sentence-transformers", {"num_negatives": 0}, "num_negatives must be"),
    ("sentence-transformers", {"sampling_strategy": "best"}, "sampling_strategy must be"),
    ("shifted-top-k", {"start": -1}, "start must be"),
    ("shifted-top-k", {"stop": 10}, "must be"),
    ("simans", {"a": -1}, "a must be"),
    ("simans", {"b": "x"}, "b must be"),
    ("simans", {"k": 0}, "k must be"),
    ("simans", {"variant": "code"}, "variant must be"),
    ("top-k-abs", {"limit": "0.7"}, "limit must be"),
    ("top-k-abs", {"k": -1}, "k must be"),
    ("uniform-bins", {"bins": 0}, f"bins {WHOLE}, got 0"),
    ("xbm", {"queue": 0}, f"queue {WHOLE}, got 0"),
]


def test_bad_options_are_quoted() -> None:
    for key, options, message in REFUSED:
        with pytest.raises(NegbenchError) as caught:
            registry.get("strategies", key)(**options)
        assert re.search(message, str(caught.value)), (key, options, str(caught.value))
