"""Your own backbone: a notebook in percent format; tests/docs runs it."""
# %% [markdown]
# # Your own backbone
#
# A backbone embeds images, and queries (a reference image and a text), into one space. Write one if your model is to be
# trained, or composes queries in its own way. If your encoder stays frozen, [embedding](own_encoder.md) is less work.

# %%
from pathlib import Path

# %% [markdown]
# ## The file
#
# Shapes: B images or queries, L stored rows of width C per image, T candidate vectors, D the width of the space. The
# output of `image_features` is stored once and shared by all runs, so it must not train (or set
# `frozen_images = False`). The fields of the dataclass that `load` takes first are the options, checked by their types;
# `seed` is the run's. The file's name is the backbone's.
#
# Here an image is 16 mean colours and a text the counts of its letters; two projections are trained.

# %%
SOURCE = '''
"""Mean colours and letters: a toy backbone that trains in seconds."""

import hashlib
import math
from dataclasses import dataclass

import torch
from pydantic import PositiveInt
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d, normalize

import negbench

PAPER = "mine"


def pixels_of(image):
    """PIL image of any mode -> [3, 32, 32] float32; at module level, so that worker processes can pickle it."""
    small = image.convert("RGB").resize((32, 32))
    return torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8).reshape(32, 32, 3).permute(2, 0, 1) / 255


@dataclass(frozen=True, kw_only=True)
class ColoursOptions:
    """Options of `Colours`.

    Args:
        dim: width of the space.
    """

    dim: PositiveInt = 32


class Colours(negbench.Backbone):
    """Projected colours plus projected letters."""

    transform = staticmethod(pixels_of)

    def __init__(self, dim, seed):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)  # the only source of randomness
        self.colour = nn.utils.skip_init(nn.Linear, 48, dim, bias=False)  # draws no numbers of its own
        self.letters = nn.utils.skip_init(nn.Linear, 26, dim, bias=False)
        for layer in (self.colour, self.letters):
            nn.init.xavier_uniform_(layer.weight, generator=generator)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(0.07)))
        digest = hashlib.sha256()
        for _, tensor in sorted(self.state_dict().items()):
            digest.update(tensor.numpy().tobytes())
        count = sum(parameter.numel() for parameter in self.parameters())
        self._identity = negbench.BackboneIdentity(
            name="colours",
            weights=f"random:{seed}",
            revision="",
            sha256=digest.hexdigest(),
            parameters=count,
            trainable_parameters=count,
            embedding_dim=dim,
            tokens_per_image=1,
            preprocessing="32 x 32, 0 to 1",
        )

    @classmethod
    def load(cls, options: ColoursOptions, seed: int = 0):
        return cls(options.dim, seed)

    @property
    def identity(self):
        return self._identity

    @property
    def feature_key(self):  # whatever changes `image_features` must change it
        return "colours-4x4-of-32x32"

    @property
    def temperature(self):
        return self.log_temperature.exp()

    def image_features(self, pixels):  # [B, 3, 32, 32] -> [B, 1, 48]
        return adaptive_avg_pool2d(pixels, 4).flatten(1)[:, None]

    def candidates(self, features):  # [B, 1, 48] -> [B, 1, D]
        return normalize(self.colour(features.float()).float(), dim=-1)

    def tokenize(self, texts):  # one row per text; whatever `queries` reads
        rows = [[text.lower().count(letter) for letter in map(chr, range(97, 123))] for text in texts]
        return {"letters": torch.tensor(rows, dtype=torch.float32).reshape(-1, 26)}

    def text_queries(self, text):  # -> [B, D]
        tokens = self.tokenize(text) if not isinstance(text, dict) else text
        return normalize(self.letters(tokens["letters"].to(self.device)).float(), dim=-1)

    def queries(self, features, text):  # [B, 1, 48] and B texts -> [B, D]
        return normalize(self.candidates(features)[:, 0] + self.text_queries(text), dim=-1)
'''
Path("colours.py").write_text(SOURCE)

# %% [markdown]
# An error names missing methods: `--plugin colours.py: class Colours lacks candidates, tokenize`.
#
# ## In a comparison

# %%
from negbench.cli.main import run as negbench_command  # the shell's `negbench`

status = negbench_command(
    "compare --plugin colours.py --backbones colours --strategies top-k,in-batch --seeds 1 --datasets synthetic "
    "--set train.epochs=2 --set dataset.train_images=30 --set dataset.train_queries=30 --set dataset.val_images=30 "
    "--set dataset.val_queries=30 --lr fixed --name own-backbone --tracking-uri none --no-report".split()
)
print("exit status", status)

# %% [markdown]
# ## Test it
#
# This runs the test suite that every backbone passes; it needs pytest. Optional abilities (sub-queries, composed texts,
# features by id) are in the [API](../api/models.md): `HasSubQueries`, `ComposesTexts`, `HoldsFeatures`.
#
# ```python
# import pytest
# from colours import Colours
# from negbench.testing import BackboneTestCase, build
#
#
# class TestColours(BackboneTestCase):
#     @pytest.fixture
#     def make(self):
#         return lambda seed: build(Colours, seed=seed)
# ```
