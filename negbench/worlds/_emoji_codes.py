"""Parse an emoji's code points into its family (firefighter, waving hand, ...) and look, and put looks into words."""

import hashlib
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

JOINER, VARIATION = "200d", "fe0f"
RIGHT, PERSON = "27a1", "1f9d1"
READS = ("_emoji_codes.toml",)
_TABLES: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name(*READS).read_text(encoding="utf-8"))
TONES, ADULTS, SIGNS, HAIR, LONG, _WORDS, _SHOWN = (
    _TABLES[name] for name in ("tones", "adults", "signs", "hair", "long", "words", "shown")
)
_SKINNED = {*ADULTS, "1faf1", "1faf2"}  # code points that take a skin tone in a long form


class Look(NamedTuple):
    """Attributes that vary within a family; "other" is the right-hand one of two people. Empty if unspecified."""

    tone: str = ""
    other_tone: str = ""
    who: str = "person"
    other_who: str = ""
    hair: str = ""
    facing: str = ""


class Emoji(NamedTuple):
    """Family and look of an emoji."""

    family: str
    look: Look


@cache
def parse(codes: str) -> Emoji:
    """Parse code points (hexadecimal, joined by '-') into family and look.

    Example:
        >>> parse("1f469-1f3ff-200d-1f692") == Emoji("1f9d1-1f692", Look(tone="dark", who="woman"))
        True
    """
    kept = "-".join(code for code in codes.split("-") if code != VARIATION)
    parts = _long([part.split("-") for part in kept.split(f"-{JOINER}-")])
    family = []
    tones = []
    who = []
    hair = facing = ""
    for number, part in enumerate(parts):
        tones += [TONES[code] for code in part[1:] if code in TONES]
        base = "-".join(part[:1] + [code for code in part[1:] if code not in TONES])
        if number and base in SIGNS:
            who.append(SIGNS[base])
        elif number and base in HAIR:
            hair = HAIR[base]
        elif number and base == RIGHT:
            facing = "right"
        else:
            family.append(PERSON if base in ADULTS else base)
            who += [ADULTS[base]] if base in ADULTS else []
    tones = [*tones, "", ""]
    who = [*(who or ["person"]), ""]
    return Emoji("-".join(family), Look(tones[0], tones[1], who[0], who[1], hair, facing))


def _long(parts: list[list[str]]) -> list[list[str]]:
    """Expand a short form, applying a sign behind it to both people; return other sequences unchanged."""
    (base, *tone), *rest = parts
    if base not in LONG:
        return parts
    code_of = {name: code for code, name in ADULTS.items()}
    signs = {sign: code_of[name] for sign, name in SIGNS.items() if name in code_of}
    adult = next((signs[part[0]] for part in rest if part[0] in signs), None)
    people = [adult if adult and code == PERSON else code for code in LONG[base]]
    return [[code, *tone] if code in _SKINNED else [code] for code in people]


@cache
def difference(first: Look, second: Look) -> int:
    """Count the attributes in which two looks differ."""
    return sum(a != b for a, b in zip(first, second, strict=True))


# --- words -------------------------------------------------------------------------------------------------------


def modification(before: Look, after: Look, key: str, artist: str = "") -> str:
    """Describe in English how to change one look into another, in one of several wordings.

    Args:
        before, after: looks of one family.
        key: determines the wording.
        artist: printed name of the artist asked for; empty for any.

    Example:
        >>> modification(Look(), Look(who="woman", facing="right"), "a")
        'make it a woman, towards the right'
    """
    choice = hashlib.sha256(key.encode()).digest()
    changed = [(name, value) for name, old, value in zip(Look._fields, before, after, strict=True) if value != old]
    pair = bool(before.other_who or before.other_tone or after.other_tone)
    phrases = [_phrase(name, value, choice[place], pair) for place, (name, value) in enumerate(changed)]
    if artist:
        phrases.append(_WORDS["artist"][choice[-1] % 4].format(artist))
    return ", ".join(phrases)


def _phrase(name: str, value: str, choice: int, pair: bool) -> str:
    """Put one changed attribute into words."""
    side = {"other_tone": " on the right", "other_who": " on the right"}.get(name, " on the left") if pair else ""
    kind = name.removeprefix("other_")
    absent = {"hair": "ordinary", "facing": "left"}.get(kind, "")
    form: str = _WORDS["no_tone" if kind == "tone" and not value else kind][choice % 4]
    text = form.format(value or absent)
    return text + side if kind in ("tone", "who") else text


def description(family: str, look: Look) -> str:
    """Describe a picture ('is firefighter, woman, dark skin.') for methods that read texts of reference and target.

    Args:
        family: its printed name.
        look: the look shown.
    """
    parts = [_SHOWN[name].format(value) for name, value in look._asdict().items() if value]
    return f"is {', '.join([family, *parts])}."
