"""Words of the synthetic data: captions by two simulated annotators, descriptions, and the vocabulary of both."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
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
    """Divide each wording ("is plain") into verb and phrase."""
    clauses_by_name = {}
    for name, forms in table.items():
        clauses_by_name[name] = tuple(Clause(*form.split(" ", 1)) for form in forms)
    return clauses_by_name


_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_name(*READS).read_text(encoding="utf-8"))
_OPENINGS = _TABLES["openings"]
_JOINTS = _TABLES["joints"]
_DESCRIPTIONS = _TABLES["descriptions"]
_NOUNS = _TABLES["nouns"]
_VAGUE = _clauses_of(_TABLES["vague"])
_COLOUR_WORDS: dict[str, list[str]] = _TABLES["colours"]
_COLOUR_FORMS: list[str] = _TABLES["colour_forms"]
_COLOUR_CLAUSES = _clauses_of(
    {
        colour: [form.format(word) for word, form in product(synonyms, _COLOUR_FORMS)]
        for colour, synonyms in _COLOUR_WORDS.items()
    }
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
    if attribute == "length":
        return _LENGTH_FORMS[attributes.category][value]
    return _FORMS[attribute][value]


def phrases() -> dict[tuple[str, ...], tuple[str, str] | None]:
    """Map the words of every phrase that names a value to (attribute, value), and those of every vague hint to None.

    A leading "a" is dropped, and colours count by their own words: "more red" and "a red color" both hold ("red",).
    """
    meanings: dict[tuple[str, ...], tuple[str, str] | None] = {}

    def add(phrase: str, meaning: tuple[str, str] | None) -> None:
        meanings[tuple(words(phrase.removeprefix("a ")))] = meaning

    for hints in _VAGUE.values():
        for hint in hints:
            add(hint.phrase, None)
    for colour, synonyms in _COLOUR_WORDS.items():
        for word in synonyms:
            add(word, ("colour", colour))
    lengths = [("length", table) for table in _LENGTH_FORMS.values()]
    for attribute, table in [*_FORMS.items(), *lengths]:
        for value, wordings in table.items():
            for clause in wordings:
                add(clause.phrase, (attribute, value))
    return meanings


def caption_pair(stream: Stream, reference: Attributes, target: Attributes) -> tuple[str, str]:
    """Write the captions of two annotators who see both pictures, in the manner of FashionIQ.

    Together the two state the target's value of every attribute that differs; each alone may leave some out or only
    hint at them ("is darker"). Attributes that do not differ are not mentioned; only the reference image shows them.
    """
    annotators: tuple[list[Clause], list[Clause]] = ([], [])
    differences = reference.differences(target)
    for attribute in differences:
        speaker = stream.below(2)
        annotators[speaker].append(stream.pick(clauses(target, attribute)))
        if stream.chance(FIXED.again):
            exact = stream.chance(FIXED.exact)
            wordings = clauses(target, attribute) if exact else _hints(reference, target, attribute)
            annotators[1 - speaker].append(stream.pick(wordings))
    for mentions in annotators:
        if not mentions:  # an annotator always writes something
            mentions.append(stream.pick(_hints(reference, target, stream.pick(differences))))
    first, second = annotators
    return _sentence(stream, first, target.category), _sentence(stream, second, target.category)


def describe(attributes: Attributes, stream: Stream) -> str:
    """Describe a garment in varied wording: "a red dress, plain, mini, with a collar, short sleeves and no print"."""
    colour = stream.pick(_COLOUR_WORDS[attributes.colour])
    picked = [stream.pick(clauses(attributes, name)) for name in stream.shuffle(ATTRIBUTES) if name != "colour"]
    text = stream.pick(_DESCRIPTIONS).format(colour=colour, noun=stream.pick(_NOUNS[attributes.category]))
    for clause in picked:
        if clause.verb == "is":
            text += f", {clause.phrase}"
    parts = [clause.phrase for clause in picked if clause.verb == "has"]
    if len(parts) > 1:
        parts[-2:] = [f"{parts[-2]} and {parts[-1]}"]
    return f"{text}, with {', '.join(parts)}" if parts else text


def attribute_words(attributes: Attributes) -> list[list[str]]:
    """Return five lists of words as FashionIQ's attribute files: texture, fabric (our colour), shape, part, style."""
    word = {name: clauses(attributes, name)[0].phrase.removeprefix("a ") for name in ATTRIBUTES}
    return [[word["pattern"]], [word["colour"]], [word["length"]], [word["sleeve"], word["neckline"]], [word["print"]]]


# --- sentences ---------------------------------------------------------------------------------------------------


def _hints(reference: Attributes, target: Attributes, attribute: str) -> tuple[Clause, ...]:
    """Return the wordings that only hint at how an attribute differs."""
    old = getattr(reference, attribute)
    new = getattr(target, attribute)
    if attribute == "colour":
        direction = "lighter" if sum(COLOURS[new]) > sum(COLOURS[old]) else "darker"
        return _VAGUE[f"colour {direction}"]
    if attribute in ("sleeve", "length"):
        order = SLEEVES if attribute == "sleeve" else LENGTHS[target.category]
        direction = "longer" if order[new] > order[old] else "shorter"
        return _VAGUE[f"{attribute} {direction}"]
    return _VAGUE[attribute]


def _sentence(stream: Stream, mentions: list[Clause], category: str) -> str:
    """Make one caption, clauses of one verb together: "is black and has no sleeves" or "is black with no sleeves"."""
    order = stream.shuffle(mentions)
    verb = order[0].verb
    with_verb = [clause.phrase for clause in order if clause.verb == verb]
    with_other_verb = [clause.phrase for clause in order if clause.verb != verb]
    text = f"{verb} {stream.pick(_JOINTS).join(with_verb)}"
    if with_other_verb:
        link = stream.pick((" with ", " and has ")) if verb == "is" else " and is "
        text += link + " and ".join(with_other_verb)
    text = stream.pick(_OPENINGS).format(stream.pick(_NOUNS[category])) + text
    if stream.chance(FIXED.capital):
        text = text[0].upper() + text[1:]
    return f"{text}." if stream.chance(FIXED.stop) else text


def _vocabulary() -> tuple[str, ...]:
    """Return every word that a caption, a description or an attribute list can hold."""
    texts = ["is has with and", *_OPENINGS]
    texts += [form.format(colour="", noun="") for form in _DESCRIPTIONS]
    for nouns in _NOUNS.values():
        texts += nouns
    for synonyms in _COLOUR_WORDS.values():
        texts += synonyms
    texts += [form.partition(" ")[2] for form in _COLOUR_FORMS]
    for table in (*_FORMS.values(), _VAGUE, *_LENGTH_FORMS.values()):
        for wordings in table.values():
            texts += [clause.phrase for clause in wordings]
    return tuple(sorted(set(words(" ".join(texts)))))


VOCABULARY: tuple[str, ...] = _vocabulary()
