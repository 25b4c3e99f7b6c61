"""How evenly do the attributes of pictures weigh in a backbone's features? Emoji beside worlds whose weights are known.

    python examples/evenness.py emoji lite --data-root DIR
    python examples/evenness.py vectors vectors --set backbone.decay=0.5

The weight of an attribute is the distance that it makes: of the squared distance between the features of two pictures
that differ in this attribute alone, the mean, less that of two pictures that differ in none; its root; all of them
scaled to unit length together. Pictures of one family by one artist are compared (emoji), or all (vectors). A world
of decay d gives its attributes the weights d^a; the decay whose weights are nearest to the measured ones, sorted, says
where other data lie between a world of 0.9 and one of 0.3.
"""

from __future__ import annotations

import argparse
from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import negbench
from negbench.display import Display
from negbench.own.scored_split import ScoredSplit, configure, open_split
from negbench.worlds._emoji_codes import Look
from negbench.worlds._garments import ATTRIBUTES

NAMES = {"vectors": ATTRIBUTES, "emoji": Look._fields}


def mean_distance(features: Tensor, groups: Sequence[Hashable], codes: Sequence[int] | None) -> tuple[float, int]:
    """Return the mean squared distance between pictures of a group that have different codes, and the number of pairs.

    Args:
        features: [N, C].
        groups: of each picture; others are not compared.
        codes: of each picture; None: all pairs of a group.
    """
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    total = 0.0
    pairs = 0
    for indices in members.values():
        if len(indices) < 2:
            continue
        squared = torch.cdist(features[indices], features[indices]).square()
        is_pair = torch.ones_like(squared, dtype=torch.bool).triu(1)
        if codes is not None:
            group_codes = torch.tensor([codes[index] for index in indices])
            is_pair &= group_codes[:, None] != group_codes
        total += float(squared[is_pair].sum())
        pairs += int(is_pair.sum())
    return (total / pairs if pairs else float("nan")), pairs


def weights(features: Tensor, codes: Tensor, groups: Sequence[Hashable]) -> pd.DataFrame:
    """Return the weight of each attribute, and the pairs that it was measured with: a row per attribute.

    Args:
        features: [N, C], one row per picture.
        codes: [N, A], the value of each attribute of each picture.
        groups: [N], of each picture; it is compared only with those of its own group.
    """
    rows = [tuple(row) for row in codes.tolist()]
    alike, _ = mean_distance(features, list(zip(groups, rows, strict=True)), None)
    noise = 0.0 if np.isnan(alike) else alike
    squares = []
    counts = []
    for attribute in range(codes.shape[1]):
        others = []
        for group, row in zip(groups, rows, strict=True):
            others.append((group, row[:attribute], row[attribute + 1 :]))
        distance, pairs = mean_distance(features, others, codes[:, attribute].tolist())
        squares.append(max(distance - noise, 0.0))
        counts.append(pairs)
    return pd.DataFrame({"weight": np.sqrt(np.array(squares) / np.nansum(squares)), "pairs": counts})


def nearest_decay(measured: pd.DataFrame) -> float:
    """Return the decay d, to 0.01, whose weights d^a, at unit length, are nearest to these, the largest first."""
    ordered = np.sort(measured["weight"].dropna().to_numpy())[::-1]
    decays = np.arange(1, 101) / 100
    powers = decays[:, None] ** np.arange(len(ordered))
    unit = powers / np.linalg.norm(powers, axis=1, keepdims=True)
    return float(decays[np.square(unit - ordered).sum(axis=1).argmin()])


def pictures_of(opened: ScoredSplit) -> tuple[Tensor, Tensor, list[Hashable]]:
    """Return features [N, C], attributes [N, A] and groups [N] of the pictures that show one thing."""
    dataset = opened.dataset
    codes = dataset.attribute_codes.images
    column = dataset.attribute_codes.column
    columns = torch.arange(len(dataset.images)) if column is None else column
    single = torch.bincount(columns)[columns] == 1
    columns = columns[single]
    features = opened.scene.source(opened.scene.train.images[columns]).float().mean(1)
    names = NAMES[dataset.card.name]
    first = 1 if dataset.card.name == "vectors" else 2  # after the category, or the family, which stands twice
    look = codes[single][:, first : first + len(names)]
    if dataset.card.name == "vectors":
        return features, look, [int(category) for category in codes[single][:, 0]]
    artists = [dataset.images[index].partition("/")[0] for index in columns.tolist()]
    families = codes[single][:, 0].tolist()
    return features, look, list(zip(families, artists, strict=True))


def main() -> None:
    """Read the command line, print the weights and the nearest decay."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=sorted(NAMES))
    parser.add_argument("backbone")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="sets", help="as negbench audit --set")
    words = parser.parse_args()
    options = negbench.Audit(
        dataset=words.dataset, backbone=words.backbone, data_root=words.data_root, sets=tuple(words.sets)
    )
    config, _, _ = configure(options, ["all-corpus"])
    features, codes, groups = pictures_of(open_split(config, "train", Display()))
    measured = weights(features, codes, groups)
    measured.insert(0, "attribute", NAMES[words.dataset])
    measured = measured[measured["pairs"] > 0].sort_values("weight", ascending=False)
    print(measured.round(3).to_string(index=False))
    print(f"nearest decay: {nearest_decay(measured):.2f}")


if __name__ == "__main__":
    main()
