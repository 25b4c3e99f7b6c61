"""The states of the global generators, which no plug-in may move."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import torch


def global_generators() -> tuple[Any, ...]:
    """Return the states of Python's, numpy's and torch's global generators."""
    return random.getstate(), pickle.dumps(np.random.get_state()), torch.get_rng_state().tolist()  # noqa: NPY002
