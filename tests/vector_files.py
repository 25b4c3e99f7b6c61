"""Write a data set and a backbone made of vectors into three small files; a run on them takes 0.1 seconds.

    sets = write_vectors(tmp_path)  # `--set` values that select them
    config = load_config(flags={"strategy": {"name": "top-k", "k": 3}}, sets=sets)

The data set is `triplets` and the backbone `precomputed`, so that training, mining and scoring use the real code.
No image is decoded and no text encoded.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

IMAGES = 20  # per group and split
TRAIN, VAL = 24, 20  # queries per group
GROUPS = ("left", "right")
TOKENS = 2  # per image
WIDTH = 8


def write_vectors(folder: Path, *, seed: int = 0) -> list[str]:
    """Write the files and return the `--set` values that make a run use them.

    Images come in similar pairs, and for every other query both twins are labelled relevant. A text's vector is the
    rotated difference of target and reference plus noise. Training has to learn the rotation, so an untrained model
    is far worse than a trained one, and text alone is worse than text and image together.

    Args:
        folder: folder for `triplets.jsonl`, `images.npz` and `texts.npz`.
        seed: seed of all random numbers.
    """
    random = np.random.default_rng(seed)
    turn = np.linalg.qr(random.normal(size=(WIDTH, WIDTH)))[0]
    rows = list[dict[str, object]]()
    images = dict[str, NDArray[np.float64]]()
    texts = dict[str, NDArray[np.float64]]()
    for split, count in (("train", TRAIN), ("val", VAL)):
        for group in GROUPS:
            names = [f"{split}-{group}-{number:02d}" for number in range(IMAGES)]
            looks = random.normal(size=(IMAGES // 2, WIDTH)).repeat(2, axis=0)
            looks += 0.3 * random.normal(size=looks.shape)
            tokens = looks[:, None] + 0.5 * random.normal(size=(IMAGES, TOKENS, WIDTH))
            images |= dict(zip(names, tokens, strict=True))
            for number in range(count):
                reference = number % IMAGES  # every image is a reference, so all are in the corpus
                target = (reference + 1 + int(random.integers(IMAGES - 1))) % IMAGES
                text = f"{split} {group} {number}"
                texts[text] = turn @ (looks[target] - looks[reference] + (0.3 * random.normal(size=WIDTH)))
                row: dict[str, object] = {"reference": names[reference], "text": text, "target": names[target]}
                if number % 2:
                    row["relevant"] = [names[target ^ 1]]
                rows.append({**row, "group": group, "split": split})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "triplets.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for file, ids, table in (("images", "ids", images), ("texts", "texts", texts)):
        vectors = np.stack(list(table.values())).astype(np.float32)
        named: dict[str, Any] = {ids: np.array(list(table), dtype=str), "features": vectors}
        np.savez(folder / f"{file}.npz", **named)
    return [
        "dataset.name=triplets",
        f"dataset.file='{folder / 'triplets.jsonl'}'",
        "backbone.name=precomputed",
        f"backbone.images='{folder / 'images.npz'}'",
        f"backbone.texts='{folder / 'texts.npz'}'",
    ]
