"""Texts that an encoder cuts or cannot tell apart are counted."""

import torch

from negbench.contracts import SeesTexts, TextsSeen
from negbench.data.unseen import equal_vectors, text_lines
from tests.backbones.test_clip import toy

LONG = " ".join(["the same thing on a light ground in the same place"] * 9)


def test_words_of_what_is_not_seen():
    rows = torch.tensor([[1.0, 2.0], [1.0, 2.0], [3.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
    assert equal_vectors(rows, "images") == ["5 different images get 2 vectors"]
    assert equal_vectors(rows[2:4], "images") == []
    assert text_lines(TextsSeen(rows[:2], 2, 77)) == [
        "2 of 2 texts are longer than the 77 tokens that the model reads; 2 different texts get one vector"
    ]
    assert text_lines(TextsSeen(rows[1:4], 1, 8)) == ["1 of 3 texts are longer than the 8 tokens that the model reads"]
    assert text_lines(TextsSeen(rows[1:4])) == []


def test_clip_tells_which_texts_it_cuts():
    clip = toy()
    assert isinstance(clip, SeesTexts)
    texts = clip.texts_seen([f"{LONG} but number {number}" for number in range(8)])
    assert (texts.longer, texts.limit, len(texts.rows)) == (8, 77, 8)
    assert text_lines(texts)[0].endswith("; 8 different texts get one vector")
    pieces = "a " * 75
    assert [clip.texts_seen([text]).longer for text in (pieces, f"{pieces} a")] == [0, 1]
    assert text_lines(clip.texts_seen(["Red", "red", "blue"])) == ["2 different texts get one vector"]
