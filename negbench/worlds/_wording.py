"""Words of the synthetic data: captions by two simulated annotators, descriptions, and the vocabulary of both."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from negbench.datasets.stream import Stream
from negbench.worlds._garments import ATTRIBUTES, COLOURS, LENGTHS, SLEEVES, Attributes


class Clause(NamedTuple):
    """Half a sentence: `verb` is "is" or "has"."""

    verb: str
    phrase: str


@dataclass(frozen=True)
class CaptionNumbers:
    """What the two annotators of a query write.

    Args:
        again: per cent of the changed attributes that both mention; each is mentioned by one.
        exact: per cent of the second mentions that name the value; the others hint at it ("is darker").
        capital: per cent of the captions that begin with a capital letter.
        stop: per cent of the captions that end with a full stop.
    """

    again: int = 50
    exact: int = 60
    capital: int = 10
    stop: int = 10


FIXED = CaptionNumbers()
READS = ("_wording.toml",)


def _clauses_of(table: Mapping[str, Sequence[str]]) -> dict[str, tuple[Clause, ...]]:
    return {name: tuple(Clause(*form.split(" ", 1)) for form in forms) for name, forms in table.items()}


_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_name(*READS).read_text(encoding="utf-8"))
_OPENINGS = _TABLES["openings"]
_JOINTS = _TABLES["joints"]
_DESCRIPTIONS = _TABLES["descriptions"]
_NOUNS = _TABLES["nouns"]
_VAGUE = _clauses_of(_TABLES["vague"])
_COLOUR_WORDS: dict[str, list[str]] = _TABLES["colours"]
_COLOUR_FORMS: list[str] = _TABLES["colour_forms"]
_COLOUR_CLAUSES = _clauses_of(
    {c: [f.format(w) for w in own for f in _COLOUR_FORMS] for c, own in _COLOUR_WORDS.items()}
)
_LENGTH_FORMS = {name: _clauses_of(_TABLES["length"][name]) for name in _NOUNS}
_FORMS = {name: _clauses_of(table) for name, table in _TABLES["forms"].items()}  # worded alike in every category


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
        if stream.chance(FIXED.again):
            again = clauses(target, attribute) if stream.chance(FIXED.exact) else _hints(reference, target, attribute)
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
    phrases_of_first = [clause.phrase for clause in mixed if clause.verb == first]
    phrases_of_other = [clause.phrase for clause in mixed if clause.verb != first]
    text = f"{first} {stream.pick(_JOINTS).join(phrases_of_first)}"
    if phrases_of_other:
        link = stream.pick((" with ", " and has ")) if first == "is" else " and is "
        text += link + " and ".join(phrases_of_other)
    text = stream.pick(_OPENINGS).format(stream.pick(_NOUNS[category])) + text
    if stream.chance(FIXED.capital):
        text = text[0].upper() + text[1:]
    return f"{text}." if stream.chance(FIXED.stop) else text


def _vocabulary() -> tuple[str, ...]:
    texts = ["is has with and", *_OPENINGS, *(d.format(colour="", noun="") for d in _DESCRIPTIONS)]
    texts += [noun for nouns in _NOUNS.values() for noun in nouns]
    texts += [word for synonyms in _COLOUR_WORDS.values() for word in synonyms]
    texts += [form.partition(" ")[2] for form in _COLOUR_FORMS]
    tables = (*_FORMS.values(), _VAGUE, *_LENGTH_FORMS.values())
    texts += [clause.phrase for table in tables for forms in table.values() for clause in forms]
    return tuple(sorted({word for text in texts for word in words(text)}))


VOCABULARY: tuple[str, ...] = _vocabulary()  # every word that a caption, a description or an attribute list can hold
