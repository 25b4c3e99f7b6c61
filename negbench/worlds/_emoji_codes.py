"""Parse an emoji's code points into its family (firefighter, waving hand, ...) and look, and put looks into words."""

import hashlib
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

JOINER = "200d"
VARIATION = "fe0f"
RIGHT = "27a1"
PERSON = "1f9d1"
READS = ("_emoji_codes.toml",)
_TABLES: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name(*READS).read_text(encoding="utf-8"))
TONES = _TABLES["tones"]
ADULTS = _TABLES["adults"]
SIGNS = _TABLES["signs"]
HAIR = _TABLES["hair"]
LONG = _TABLES["long"]
_WORDS = _TABLES["words"]
_SHOWN = _TABLES["shown"]
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
    plain = "-".join(code for code in codes.split("-") if code != VARIATION)
    parts = _long([part.split("-") for part in plain.split(f"-{JOINER}-")])
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
        elif base in ADULTS:
            family.append(PERSON)
            who.append(ADULTS[base])
        else:
            family.append(base)
    tones = [*tones, "", ""]
    who = [*(who or ["person"]), ""]
    return Emoji("-".join(family), Look(tones[0], tones[1], who[0], who[1], hair, facing))


def _long(parts: list[list[str]]) -> list[list[str]]:
    """Expand a short form, applying a sign behind it to both people; return other sequences unchanged."""
    (base, *tone), *signs_behind = parts
    if base not in LONG:
        return parts
    code_of = {name: code for code, name in ADULTS.items()}
    signs = {sign: code_of[name] for sign, name in SIGNS.items() if name in code_of}
    adult = next((signs[part[0]] for part in signs_behind if part[0] in signs), None)
    people = [adult if adult and code == PERSON else code for code in LONG[base]]
    expanded = []
    for code in people:
        expanded.append([code, *tone] if code in _SKINNED else [code])
    return expanded


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
    pair = bool(before.other_who or before.other_tone or after.other_tone)
    phrases: list[str] = []
    for name, old, new in zip(Look._fields, before, after, strict=True):
        if new != old:
            phrases.append(_phrase(name, new, choice[len(phrases)], pair))
    if artist:
        phrases.append(_WORDS["artist"][choice[-1] % 4].format(artist))
    return ", ".join(phrases)


def _phrase(name: str, value: str, choice: int, pair: bool) -> str:
    """Put one changed attribute into words; of a pair, say whose tone or sex it is."""
    kind = name.removeprefix("other_")
    absent = {"hair": "ordinary", "facing": "left"}.get(kind, "")
    forms = "no_tone" if kind == "tone" and not value else kind
    form: str = _WORDS[forms][choice % 4]
    text = form.format(value or absent)
    if pair and kind in ("tone", "who"):
        text += " on the right" if name.startswith("other_") else " on the left"
    return text


def description(family: str, look: Look) -> str:
    """Describe a picture ('is firefighter, woman, dark skin.') for methods that read texts of reference and target.

    Args:
        family: its printed name.
        look: the look shown.
    """
    parts = [_SHOWN[name].format(value) for name, value in look._asdict().items() if value]
    return f"is {', '.join([family, *parts])}."
