"""Encoders as a user of `negbench embed` writes them, sound ones and others; the tests read this file."""

import numpy as np
import torch
from torch import nn


class Mine(nn.Module):
    """Mean colour and height over width; lengths and letters. Random weights and dropout, which must be off."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.look = nn.Linear(4, 6)
        self.read = nn.Linear(2, 5)
        self.drop = nn.Dropout(0.5)

    def encode_image(self, images):
        assert not torch.is_grad_enabled()
        rows = [[*np.asarray(i).mean((0, 1)) / 255, i.height / i.width] for i in images if i.mode == "RGB"]
        return self.drop(self.look(torch.tensor(rows, dtype=torch.float32)))

    def encode_text(self, texts):
        return self.drop(self.read(torch.tensor([[len(t) / 9, t.count("e")] for t in texts])))


class Arrays:
    """No module: two rows an image, in double precision."""

    encode_image = staticmethod(lambda images: np.ones((len(images), 2, 3)))
    encode_text = staticmethod(lambda texts: np.array([[len(t), 0.5] for t in texts]))


class Bad:
    def __init__(self, image, text=lambda texts: np.ones((len(texts), 2))):
        self.encode_image, self.encode_text = image, text


def make():
    return Mine()


made = Mine()
few = Bad(lambda images: np.ones((1, 2)))
words = Bad(lambda images: "no")
nan = Bad(lambda images: np.where(np.arange(len(images))[:, None] == 1, np.nan, 1.0))
many = Bad(lambda images: np.ones((len(images), 2)), lambda texts: np.ones((len(texts), 1, 2)))
widths = Bad(lambda images: np.ones((len(images), len(images))))
large = Bad(lambda images: _full())
half = Bad(None)


def _full():
    raise RuntimeError("CUDA out of memory. Tried")


def raises():
    raise KeyError("no key")


class Late(Mine):
    def encode_text(self, texts):
        return texts[0].nothing
