"""Words of the synthetic data: captions by two simulated annotators, descriptions, and the vocabulary of both."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from negbench.datasets._garments import ATTRIBUTES, COLOURS, LENGTHS, SLEEVES, Attributes
from negbench.datasets._stream import Stream


class Clause(NamedTuple):
    """Half a sentence: `verb` is "is" or "has"."""

    verb: str
    phrase: str


_COLOUR_WORDS = {name: (name,) for name in COLOURS} | {
    "grey": ("grey", "gray"),
    "purple": ("purple", "violet"),
    "brown": ("brown", "tan"),
    "blue": ("blue", "royal blue"),
}
_COLOUR_FORMS = (
    Clause("is", "{}"),
    Clause("is", "{}"),
    Clause("is", "more {}"),
    Clause("is", "{} in color"),
    Clause("is", "{} colored"),
    Clause("has", "a {} color"),
)
_COLOUR_CLAUSES = {
    name: tuple(Clause(verb, form.format(colour)) for colour in own for verb, form in _COLOUR_FORMS)
    for name, own in _COLOUR_WORDS.items()
}
_SLEEVE_FORMS = {
    "none": (Clause("is", "sleeveless"), Clause("has", "no sleeves"), Clause("has", "bare arms")),
    "short": (Clause("has", "short sleeves"), Clause("is", "short sleeved"), Clause("has", "cap sleeves")),
    "three-quarter": (
        Clause("has", "3/4 sleeves"),
        Clause("has", "three quarter sleeves"),
        Clause("has", "elbow length sleeves"),
    ),
    "long": (Clause("has", "long sleeves"), Clause("is", "long sleeved"), Clause("has", "full length sleeves")),
}
_NECKLINE_FORMS = {
    "round": (Clause("has", "a round neck"), Clause("has", "a crew neck"), Clause("has", "a round neckline")),
    "v": (Clause("has", "a v neck"), Clause("has", "a v-neck"), Clause("has", "a v shaped neckline")),
    "square": (Clause("has", "a square neck"), Clause("has", "a square neckline"), Clause("is", "square necked")),
    "collar": (Clause("has", "a collar"), Clause("is", "collared"), Clause("has", "a collar and a front closing")),
}
_PATTERN_FORMS = {
    "plain": (Clause("is", "plain"), Clause("is", "solid"), Clause("has", "no pattern")),
    "striped": (Clause("is", "striped"), Clause("has", "stripes"), Clause("has", "horizontal stripes")),
    "checked": (Clause("is", "checked"), Clause("is", "plaid"), Clause("has", "a checkered pattern")),
    "dotted": (Clause("is", "dotted"), Clause("has", "polka dots"), Clause("has", "dots all over")),
    "colourblock": (Clause("is", "color blocked"), Clause("is", "two toned"), Clause("has", "a color block design")),
}
_GOWN = {
    "short": (Clause("is", "mini"), Clause("is", "above the knee"), Clause("has", "a short skirt")),
    "medium": (Clause("is", "knee length"), Clause("is", "of medium length"), Clause("has", "a midi skirt")),
    "long": (Clause("is", "floor length"), Clause("is", "maxi"), Clause("has", "a maxi skirt")),
}
_UPPER = {
    "short": (Clause("is", "cropped"), Clause("is", "waist length"), Clause("has", "a high hem")),
    "medium": (Clause("is", "hip length"), Clause("is", "of regular length"), Clause("has", "a regular hem")),
    "long": (Clause("is", "tunic length"), Clause("is", "thigh length"), Clause("has", "a low hem")),
}
_LENGTH_FORMS = {"dress": _GOWN, "shirt": _UPPER, "toptee": _UPPER}
_PRINT_FORMS = {
    "none": (Clause("has", "no print"), Clause("has", "no graphic"), Clause("has", "nothing on the chest")),
    "star": (Clause("has", "a star on it"), Clause("has", "a star print"), Clause("has", "a star graphic")),
    "heart": (Clause("has", "a heart on it"), Clause("has", "a heart print"), Clause("has", "a heart graphic")),
    "logo": (Clause("has", "a logo on it"), Clause("has", "writing on it"), Clause("has", "a text logo")),
}
_FORMS: Mapping[str, Mapping[str, tuple[Clause, ...]]] = {  # attributes worded alike in every category
    "sleeve": _SLEEVE_FORMS,
    "neckline": _NECKLINE_FORMS,
    "pattern": _PATTERN_FORMS,
    "print": _PRINT_FORMS,
}
_NOUNS = {"dress": ("dress", "gown"), "shirt": ("shirt", "tee shirt"), "toptee": ("top", "blouse")}
# how an annotator hints at a change without saying what is new; the other annotator then says it
_VAGUE = {
    "colour lighter": (Clause("is", "lighter"), Clause("is", "brighter"), Clause("is", "a different color")),
    "colour darker": (Clause("is", "darker"), Clause("is", "less bright"), Clause("is", "a different color")),
    "sleeve longer": (Clause("has", "longer sleeves"), Clause("has", "more sleeve")),
    "sleeve shorter": (Clause("has", "shorter sleeves"), Clause("has", "less sleeve")),
    "length longer": (Clause("is", "longer"), Clause("is", "longer in the body")),
    "length shorter": (Clause("is", "shorter"), Clause("is", "shorter in the body")),
    "neckline": (Clause("has", "a different neckline"), Clause("has", "another neck")),
    "pattern": (Clause("has", "a different pattern"), Clause("is", "patterned another way")),
    "print": (Clause("has", "a different graphic"), Clause("has", "something else on the chest")),
}
_OPENINGS = ("", "", "", "", "it ", "the {} ", "this {} ", "similar but ", "the same {} but it ")
_JOINTS = (" and ", " and ", ", ")
_DESCRIPTIONS = ("a {colour} {noun}", "{colour} {noun}", "this is a {colour} {noun}", "a picture of a {colour} {noun}")


def words(text: str) -> list[str]:
    """Lower-case words of a text; "3/4" and "v-neck" are one word each."""
    return re.findall(r"[a-z0-9]+(?:[/-][a-z0-9]+)*", text.lower())


def clauses(attributes: Attributes, attribute: str) -> tuple[Clause, ...]:
    """Return every wording of the garment's value of an attribute (one of ATTRIBUTES)."""
    value: str = getattr(attributes, attribute)
    if attribute == "colour":
        return _COLOUR_CLAUSES[value]
    return (_LENGTH_FORMS[attributes.category] if attribute == "length" else _FORMS[attribute])[value]


def phrases() -> dict[tuple[str, ...], tuple[str, str] | None]:
    """Map the words of every phrase that names a value to (attribute, value), and those of every vague hint to None.

    A leading "a" is dropped, and colours count by their own words: "more red" and "a red color" both hold ("red",).
    """
    named = [(phrase, ("colour", value)) for value, own in _COLOUR_WORDS.items() for phrase in own]
    for attribute, table in [*_FORMS.items(), *(("length", table) for table in _LENGTH_FORMS.values())]:
        named += [(clause.phrase, (attribute, value)) for value, own in table.items() for clause in own]
    hints = [(clause.phrase, None) for own in _VAGUE.values() for clause in own]
    return {tuple(words(phrase.removeprefix("a "))): value for phrase, value in [*hints, *named]}


def caption_pair(stream: Stream, reference: Attributes, target: Attributes) -> tuple[str, str]:
    """Write the captions of two annotators who see both pictures, in the manner of FashionIQ.

    Together the two state the target's value of every attribute that differs; each alone may leave some out or only
    hint at them ("is darker"). Attributes that do not differ are not mentioned; only the reference image shows them.
    """
    said: tuple[list[Clause], list[Clause]] = ([], [])
    for attribute in reference.changed(target):
        speaker = stream.below(2)
        said[speaker].append(stream.pick(clauses(target, attribute)))
        if stream.chance(50):
            again = clauses(target, attribute) if stream.chance(60) else _hints(reference, target, attribute)
            said[1 - speaker].append(stream.pick(again))
    for own in said:
        if not own:  # an annotator always writes something
            own.append(stream.pick(_hints(reference, target, stream.pick(reference.changed(target)))))
    return _sentence(stream, said[0], target.category), _sentence(stream, said[1], target.category)


def describe(attributes: Attributes, stream: Stream) -> str:
    """Describe a garment in varied wording: "a red dress, plain, mini, with a collar, short sleeves and no print"."""
    colour = stream.pick(_COLOUR_WORDS[attributes.colour])
    chosen = [stream.pick(clauses(attributes, a)) for a in stream.shuffled(ATTRIBUTES) if a != "colour"]
    text = stream.pick(_DESCRIPTIONS).format(colour=colour, noun=stream.pick(_NOUNS[attributes.category]))
    for clause in chosen:
        if clause.verb == "is":
            text += f", {clause.phrase}"
    owned = [clause.phrase for clause in chosen if clause.verb == "has"]
    if len(owned) > 1:
        owned[-2:] = [f"{owned[-2]} and {owned[-1]}"]
    return f"{text}, with {', '.join(owned)}" if owned else text


def attribute_words(attributes: Attributes) -> list[list[str]]:
    """Five lists of words as in FashionIQ's attribute files: texture, fabric (here: colour), shape, part, style."""
    said = {name: clauses(attributes, name)[0].phrase.removeprefix("a ") for name in ATTRIBUTES}
    return [[said["pattern"]], [said["colour"]], [said["length"]], [said["sleeve"], said["neckline"]], [said["print"]]]


# --- sentences ---------------------------------------------------------------------------------------------------


def _hints(reference: Attributes, target: Attributes, attribute: str) -> tuple[Clause, ...]:
    old, new = (getattr(a, attribute) for a in (reference, target))
    if attribute == "colour":
        return _VAGUE[f"colour {'lighter' if sum(COLOURS[new]) > sum(COLOURS[old]) else 'darker'}"]
    if attribute in ("sleeve", "length"):
        order = SLEEVES if attribute == "sleeve" else LENGTHS[target.category]
        return _VAGUE[f"{attribute} {'longer' if order[new] > order[old] else 'shorter'}"]
    return _VAGUE[attribute]


def _sentence(stream: Stream, said: list[Clause], category: str) -> str:
    """Make one caption, clauses of one verb together: "is black and has no sleeves" or "is black with no sleeves"."""
    mixed = stream.shuffled(said)
    first = mixed[0].verb
    groups = [[c.phrase for c in mixed if c.verb == verb] for verb in (first, "has" if first == "is" else "is")]
    text = f"{first} {stream.pick(_JOINTS).join(groups[0])}"
    if groups[1]:
        link = stream.pick((" with ", " and has ")) if first == "is" else " and is "
        text += link + " and ".join(groups[1])
    text = stream.pick(_OPENINGS).format(stream.pick(_NOUNS[category])) + text
    if stream.chance(10):
        text = text[0].upper() + text[1:]
    return f"{text}." if stream.chance(10) else text


def _vocabulary() -> tuple[str, ...]:
    texts = ["is has with and", *_OPENINGS, *(d.format(colour="", noun="") for d in _DESCRIPTIONS)]
    texts += [noun for nouns in _NOUNS.values() for noun in nouns]
    texts += [word for synonyms in _COLOUR_WORDS.values() for word in synonyms]
    texts += [form.phrase for form in _COLOUR_FORMS]
    tables = (*_FORMS.values(), _VAGUE, *_LENGTH_FORMS.values())
    texts += [clause.phrase for table in tables for forms in table.values() for clause in forms]
    return tuple(sorted({word for text in texts for word in words(text)}))


VOCABULARY: tuple[str, ...] = _vocabulary()  # every word that a caption, a description or an attribute list can hold
