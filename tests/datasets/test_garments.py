"""Stream, renderer and wording of the synthetic garments."""

import dataclasses
import hashlib
import itertools

import numpy as np
import pytest

from negbench.datasets.stream import Stream
from negbench.worlds import _garments
from negbench.worlds._garments import ATTRIBUTES, CATEGORIES, Attributes, mutate, sample_attributes, values
from negbench.worlds._rendering import render
from negbench.worlds._wording import VOCABULARY, attribute_words, caption_pair, describe, words


def sample(*name: int | str) -> tuple[Attributes, _garments.Nuisance]:
    stream = Stream(*name)
    return sample_attributes(stream, stream.pick(CATEGORIES)), _garments.sample_nuisance(stream)


def calm() -> _garments.Nuisance:
    """Return a nuisance without shift, tilt, dimming and noise, on a plain backdrop."""
    drawn = _garments.sample_nuisance(Stream("calm"))
    return dataclasses.replace(drawn, shift=(0, 0), tilt=0, brightness=256, backdrop="plain", noise=0)


# --- stream --------------------------------------------------------------------------------------------------------


def test_stream_is_splitmix64():
    stream = Stream("any")
    stream._state = 1234567  # the published test vector of SplitMix64
    assert [stream.raw() for _ in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


# --- renderer ------------------------------------------------------------------------------------------------------


GOLDEN = "15218f13325fdb7974f32197ecd9a365ee8ae0db067f8f6d58df9c58440a8c12"


def test_pixels_are_the_golden_ones():
    # a change here changes every published number: raise GENERATOR in _synthesis.py
    assert hashlib.sha256(b"".join(render(*sample("golden", i)).tobytes() for i in range(40))).hexdigest() == GOLDEN


@pytest.mark.parametrize("category", CATEGORIES)
@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_every_value_is_visible(category, attribute):
    base = Attributes(category, "blue", "short", "round", "plain", "medium", "none")
    pictures = {}
    for value in values(category, attribute):
        pictures[value] = render(dataclasses.replace(base, **{attribute: value}), calm()).astype(int)
    for (one, picture), (other, other_picture) in itertools.combinations(pictures.items(), 2):
        # the smallest difference, between two necklines, is at least 12 clearly different pixels
        assert (np.abs(picture - other_picture).max(-1) >= 24).sum() >= 12, f"{one} and {other}"


# --- wording -------------------------------------------------------------------------------------------------------


def test_every_word_is_in_the_vocabulary_and_used():
    heard: set[str] = set()
    for i in range(4000):
        stream = Stream("words", i)
        reference = sample_attributes(stream, CATEGORIES[i % 3])
        target = mutate(stream, reference, stream.between(1, 3))
        texts = [*caption_pair(stream, reference, target), describe(target, stream)]
        texts += [word for part in attribute_words(target) for word in part]
        heard.update(words(" ".join(texts)))
    assert heard == set(VOCABULARY)
