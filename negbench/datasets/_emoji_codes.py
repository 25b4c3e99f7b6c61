"""Parse an emoji's code points into its family (firefighter, waving hand, ...) and look, and put looks into words."""

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

JOINER, VARIATION = "200d", "fe0f"
TONES = {"1f3fb": "light", "1f3fc": "medium-light", "1f3fd": "medium", "1f3fe": "medium-dark", "1f3ff": "dark"}
ADULTS = {"1f468": "man", "1f469": "woman", "1f9d1": "person"}
SIGNS = {"2640": "woman", "2642": "man"}
HAIR = {"1f9b0": "red", "1f9b1": "curly", "1f9b2": "no", "1f9b3": "white"}
RIGHT = "27a1"
PERSON = "1f9d1"
# short forms of two people share one skin tone; they are read as the long form, each person with that tone
LONG = {
    "1f46b": ("1f469", "1f91d", "1f468"),
    "1f46c": ("1f468", "1f91d", "1f468"),
    "1f46d": ("1f469", "1f91d", "1f469"),
    "1f46f": (PERSON, "1f430", PERSON),
    "1f48f": (PERSON, "2764", "1f48b", PERSON),
    "1f491": (PERSON, "2764", PERSON),
    "1f91d": ("1faf1", "1faf2"),
    "1f93c": (PERSON, "1faef", PERSON),
}
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
    family, tones, who = [], [], []
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
    tones, who = [*tones, "", ""], [*(who or ["person"]), ""]
    return Emoji("-".join(family), Look(tones[0], tones[1], who[0], who[1], hair, facing))


def _long(parts: list[list[str]]) -> list[list[str]]:
    """Expand a short form, applying a sign behind it to both people; return other sequences unchanged."""
    (base, *tone), *rest = parts
    if base not in LONG:
        return parts
    signs = {sign: code for code, name in ADULTS.items() for sign, said in SIGNS.items() if said == name}
    adult = next((signs[part[0]] for part in rest if part[0] in signs), None)
    people = [adult if adult and code == PERSON else code for code in LONG[base]]
    return [[code, *tone] if code in _SKINNED else [code] for code in people]


@cache
def difference(first: Look, second: Look) -> int:
    """Count the attributes in which two looks differ."""
    return sum(a != b for a, b in zip(first, second, strict=True))


# --- words -------------------------------------------------------------------------------------------------------

_SKIN = ("{} skin", "with {} skin", "a {} skin tone", "skin that is {}")
_NO_TONE = ("plain yellow skin", "without a skin tone", "the default yellow", "yellow all over")
_WHO = ("as a {}", "a {} instead", "make it a {}", "now a {}")
_HAIR = ("with {} hair", "{} hair", "the hair: {}", "give them {} hair")
_FACING = ("facing {}", "turned to the {}", "looking {}", "towards the {}")
_STYLE = ("as {} draws it", "in the hand of {}", "drawn by {}", "the one of {}")


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
        phrases.append(_STYLE[choice[-1] % len(_STYLE)].format(artist))
    return ", ".join(phrases)


def _phrase(name: str, value: str, choice: int, pair: bool) -> str:
    """Put one changed attribute into words."""
    side = {"other_tone": " on the right", "other_who": " on the right"}.get(name, " on the left") if pair else ""
    kind = name.removeprefix("other_")
    if kind == "tone":
        return (_SKIN if value else _NO_TONE)[choice % 4].format(value) + side
    if kind == "who":
        return _WHO[choice % 4].format(value) + side
    if kind == "hair":
        return _HAIR[choice % 4].format(value or "ordinary")
    return _FACING[choice % 4].format(value or "left")


def description(family: str, look: Look) -> str:
    """Describe a picture ('is firefighter, woman, dark skin.') for methods that read texts of reference and target.

    Args:
        family: its printed name.
        look: the look shown.
    """
    parts: Sequence[str] = (
        f"{look.tone} skin" if look.tone else "",
        f"{look.other_tone} skin on the right" if look.other_tone else "",
        look.who,
        f"{look.other_who} on the right" if look.other_who else "",
        f"{look.hair} hair" if look.hair else "",
        f"facing {look.facing}" if look.facing else "",
    )
    return f"is {', '.join([family, *filter(None, parts)])}."
