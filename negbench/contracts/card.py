"""A benchmark and its scoring rules, declared once; its identity is recorded with every result."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Counts(NamedTuple):
    """Published size of one gallery group of a split."""

    queries: int
    gallery: int


@dataclass(frozen=True, kw_only=True)
class DatasetCard:
    """One benchmark under one protocol.

    Args:
        name, protocol: registry key; name of the protocol: results of two protocols are not comparable.
        version: of the reader; raised when a change affects scores.
        source, licence: project page of the data, and licence of the annotations.
        citation: the paper: authors, title, venue and year.
        gallery: the rule that makes a query's gallery.
        exclude_reference: whether the reference image is taken out of the gallery when ranking.
        text_template: how the modification text is made from the annotation.
        metrics, main: names as `Dataset.summarise` returns them; the one that selection and tables use.
        world: name of the generated world; empty for data that are not generated.
        expected: split -> group -> published counts; empty where nothing is published.
    """

    name: str
    protocol: str
    version: str = "1"
    source: str = "the user's own files"
    licence: str = "the user's own"
    citation: str = ""
    gallery: str
    exclude_reference: bool
    text_template: str
    metrics: tuple[str, ...]
    main: str
    world: str = ""
    expected: Mapping[str, Mapping[str, Counts]] = field(default_factory=dict)

    def identity(self, content: str, *details: str) -> str:
        """Return `name@protocol-HASH8`, whose hash covers everything that determines a result.

        Args:
            content: hash of the annotation files as loaded.
            details: other properties that change results (split, part, images left out).
        """
        rules = [
            self.name, self.protocol, self.version, self.gallery, self.exclude_reference, self.text_template,
            content, *details,
        ]  # fmt: skip
        digest = hashlib.sha256(json.dumps(rules).encode()).hexdigest()
        return f"{self.name}@{self.protocol}-{digest[:8]}"

    def remarks(self, split: str, by_group: Mapping[str, Counts]) -> tuple[str, ...]:
        """Return a line per count of `by_group` that differs from the published one; none for an unpublished split."""
        published = self.expected.get(split, {})
        remarks = []
        for group, counts in by_group.items():
            for what, actual, want in zip(Counts._fields, counts, published.get(group, counts), strict=True):
                if actual != want:
                    remarks.append(f"{group} {split}: {actual:,} {what}, but {want:,} are published")
        return tuple(remarks)
