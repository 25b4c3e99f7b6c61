"""Numbers that draw generated data and that no option changes: each has a text, and each changes the data."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from negbench.backbones import vectors as encoders
from negbench.backbones.vectors import VectorOptions, Vectors
from negbench.cli.explain import fixed_numbers
from negbench.datasets.stream import Stream
from negbench.worlds import _garments, _rendering, _synthesis, _wording, emoji
from negbench.worlds._garments import Attributes, sample_nuisance
from negbench.worlds._rendering import render
from negbench.worlds._synthesis import Spec, fits_one, plan
from negbench.worlds.emoji import EmojiOptions, EmojiPictures

WORLD = Spec(world=3, twins=1.5, train_images=60, train_queries=40, val_images=16, val_queries=8)
GARMENT = Attributes("dress", "red", "short", "v", "checked", "long", "none")
NEARLY_FULL = Spec(twins=1, train_images=9000, val_images=16)  # of 10,560 possible dresses


def fixed_names(module: Any) -> list[str]:
    """Return the names of the fixed numbers of a module."""
    return [field.name for field in fields(module.FIXED)]


PAIRS = [
    *((_synthesis, name) for name in fixed_names(_synthesis)),
    *((_wording, name) for name in fixed_names(_wording)),
    *((_garments, name) for name in fixed_names(_garments)),
    *((encoders, name) for name in fixed_names(encoders)),
]


def another(value: Any) -> Any:
    """Return another possible value of a number."""
    if isinstance(value, float):
        return value * 0.8
    if isinstance(value, int):
        return value + 1 if value < 10 else value + 20
    if isinstance(value, dict):
        return {key: another(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [another(entry) for entry in value]
    if len(value) == 2:
        return value[0] + 2, value[1] + 3
    return value[1:]


def less_and_more(value: Any) -> list[tuple[Any, Any]]:
    """Return much less and much more of a number that is drawn with: one pair, or of a tuple one for each entry."""
    if isinstance(value, int):
        return [(value // 4 if value > 3 else value - 1, 4 * value)]
    if isinstance(value, tuple):
        pairs = []
        for index, entry in enumerate(value):
            for pair in less_and_more(entry):
                pairs.append(tuple((*value[:index], other, *value[index + 1 :]) for other in pair))
        return pairs
    return [(another(value), another(value))]


def plan_worlds() -> list[Any]:
    """Return all garments, queries and captions of two small worlds, and which category a large one needs."""
    parts = [plan(WORLD, "train", "dress"), plan(WORLD, "train", "dress", in_lines=True)]
    return [*parts, fits_one(NEARLY_FULL, "dress")]


def photograph() -> list[bytes]:
    """Return the pixels of one garment in many pictures."""
    return [render(GARMENT, sample_nuisance(Stream(0, index))).tobytes() for index in range(24)]


def draw() -> list[bytes]:
    """Return the pixels of garments that have every neckline, pattern and print, without noise."""
    pictures = []
    for index, (neckline, pattern, printed) in enumerate(
        [
            ("round", "striped", "star"),
            ("v", "checked", "heart"),
            ("square", "dotted", "logo"),
            ("collar", "colourblock", "none"),
        ]
    ):
        colour = ("grey", "blue", "white", "black")[index]
        garment = Attributes("dress", colour, "long", neckline, pattern, "long", printed)
        for backdrop in ("gradient", "blotches"):
            nuisance = replace(sample_nuisance(Stream(2, index)), backdrop=backdrop, noise=0, brightness=256)
            pictures.append(render(garment, nuisance).tobytes())
    return pictures


def encode() -> tuple[list[float], list[int]]:
    """Return features of a garment of the second category, and the numbers of words that no caption holds."""
    model = Vectors(VectorOptions(dim=8), 0)
    features = model.features_of(["shirt-train-0-a31203-00017"])
    return features.flatten().tolist(), model.tokenize(["zebra quagga okapi"])["ids"].flatten().tolist()


MADE: dict[ModuleType, Callable[[], Any]] = {
    _synthesis: plan_worlds,
    _wording: plan_worlds,
    _garments: photograph,
    encoders: encode,
}


@pytest.mark.parametrize(("module", "name"), PAIRS, ids=[f"{m.__name__.rpartition('.')[2]}.{n}" for m, n in PAIRS])
def test_each_number_changes_the_data(module, name, monkeypatch):
    before = MADE[module]()
    monkeypatch.setattr(module, "FIXED", replace(module.FIXED, **{name: another(getattr(module.FIXED, name))}))
    assert MADE[module]() != before


@pytest.fixture(scope="module")
def unchanged() -> list[bytes]:
    return draw()


@pytest.mark.parametrize("name", fixed_names(_rendering))
def test_each_part_of_a_number_changes_the_drawing(name, unchanged, monkeypatch):
    fixed = _rendering.FIXED
    for index, values in enumerate(less_and_more(getattr(fixed, name))):
        for value in values:
            monkeypatch.setattr(_rendering, "FIXED", replace(fixed, **{name: value}))
            if draw() != unchanged:
                break
        else:
            pytest.fail(f"entry {index} draws nothing else at {values}")


@pytest.mark.parametrize(("name", "value"), [("held_out", 0.7), ("changes", 1)])
def test_each_number_of_the_emoji_changes_them(name, value, tmp_path: Path, toys: ModuleType, monkeypatch):
    pytest.importorskip("resvg_py")
    toys.emoji(tmp_path / "emoji")
    before = EmojiPictures.load(EmojiOptions(root=tmp_path / "emoji"), "train")
    monkeypatch.setattr(emoji, "FIXED", replace(emoji.FIXED, **{name: value}))
    after = EmojiPictures.load(EmojiOptions(root=tmp_path / "emoji"), "train")
    assert [query.id for query in after.queries] != [query.id for query in before.queries]


@pytest.mark.parametrize(
    ("kind", "name", "modules"),
    [
        ("datasets", "vectors", [_synthesis, _wording]),
        ("datasets", "synthetic", [_synthesis, _wording, _garments, _rendering]),
        ("datasets", "emoji", [emoji]),
        ("backbones", "vectors", [encoders]),
        ("datasets", "cirr", []),
    ],
)
def test_list_explains_each_number(kind, name, modules):
    numbers = [number for numbers in fixed_numbers(kind, name).values() for number in numbers]
    assert [number.name for number in numbers] == [name for module in modules for name in fixed_names(module)]
    assert [number.name for number in numbers if not number.text.endswith(".")] == []
