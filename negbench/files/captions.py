"""Two captions of one query, written as one text; texts that differ from epoch to epoch."""

import dataclasses
import random
from collections.abc import Sequence

from negbench.contracts import Query


def join_captions(*captions: str) -> str:
    """Return 'First and second', as CLIP4Cir and QuRe evaluate (and QuRe trains).

    Example:
        >>> join_captions("is Darker.", " has no sleeves")
        'Is darker and has no sleeves'
    """
    first, *others = (caption.strip(".?, ") for caption in captions)
    return " and ".join([first.capitalize(), *others])


def list_captions(first: str, second: str) -> str:
    """Return 'first, second.', as HyCoLe trains and evaluates (Wang et al., Findings of EMNLP 2022, sec. 4.2.1).

    Example:
        >>> list_captions("is Darker.", " has no sleeves")
        'is Darker, has no sleeves.'
    """
    return f"{first.strip('.?, ')}, {second.strip('.?, ')}."


def draw_texts(queries: Sequence[Query], epoch: int, seed: int) -> list[Query]:
    """Return the queries with the texts of an epoch, a function of (epoch, seed) alone.

    A query with captions a and b gets "a and b", "b and a", a or b, a quarter each, as CLIP4Cir and SPRC train on
    FashionIQ. In general half of the texts are all captions in a random order, and half are one of them; a query with
    one caption keeps its text.
    """
    order = random.Random(f"captions {seed} {epoch}")
    with_texts = []
    for query in queries:
        captions = list(query.captions)
        if len(captions) < 2:
            with_texts.append(query)
            continue
        order.shuffle(captions)
        if order.random() < 0.5:
            captions = captions[:1]
        with_texts.append(dataclasses.replace(query, text=join_captions(*captions)))
    return with_texts
