"""Small copies of all registered data sets, with images."""

import dataclasses
import io
import itertools
import json
import tarfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.standin import write_images, write_preferences

COLOURS = ("black", "blue", "red", "green", "white", "pink")


def put(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def fashioniq(root: Path) -> dict[str, Any]:
    for category in ("dress", "shirt", "toptee"):
        for split in ("train", "val"):
            ids = [f"{category}-{split}-{n}" for n in range(6)]
            entries = []
            for number in range(4):
                captions = [f"is {COLOURS[number]}.", "has no sleeves"]
                entries.append({"candidate": ids[number], "target": ids[number + 1], "captions": captions})
            put(root / f"captions/cap.{category}.{split}.json", entries)
            put(root / f"image_splits/split.{category}.{split}.json", ids)
            put(root / f"asin2attr.{category}.{split}.json", {ids[0]: [["red"], ["short"]]})
            write_images(root / "images", ids)
    return {"root": root}


def synthetic(root: Path) -> dict[str, Any]:
    from negbench.worlds.synthetic import Spec, ensure

    spec = Spec(world=1, twins=2, train_images=12, train_queries=8, val_images=10, val_queries=6)
    return {"root": ensure(root, spec)}


def cirr(root: Path) -> dict[str, Any]:
    for split, prefix in (("train", "train"), ("val", "dev")):
        ids = [f"{prefix}-{n}-0-img0" for n in range(12)]
        entries = []
        for number in range(12):
            group = number // 6
            members = ids[6 * group : 6 * group + 6]
            entry = {"pairid": number, "reference": ids[number], "target_hard": members[(number + 1) % 6]}
            entries.append({**entry, "caption": f"{number} times", "img_set": {"id": group, "members": members}})
        put(root / f"captions/cap.rc2.{split}.json", entries)
        put(root / f"image_splits/split.rc2.{split}.json", {name: f"./{prefix}/{name}.png" for name in ids})
        write_images(root / prefix, ids)
    return {"root": root}


def circo(root: Path) -> dict[str, Any]:
    entries = []
    for number in range(6):
        entry = {"id": number, "reference_img_id": 100 + number, "target_img_id": 101 + number}
        entry |= {"gt_img_ids": [101 + number, 102 + number], "relative_caption": f"has {number} of them"}
        entries.append({**entry, "shared_concept": "a dog", "semantic_aspects": ["Cardinality"]})
    put(root / "annotations/val.json", entries)
    info = {"images": [{"id": 100 + n} for n in range(12)]}
    put(root / "COCO2017_unlabeled/annotations/image_info_unlabeled2017.json", info)
    write_images(root / "COCO2017_unlabeled/unlabeled2017", [f"{100 + n:012d}" for n in range(12)])
    return {"root": root}


def icir(root: Path) -> dict[str, Any]:
    """Write three instances of six, five and four images, two texts each; two rows of a database are hard negatives."""
    database = []
    queries = []
    for instance, right in (("cup", "aab"), ("car", "ab"), ("hat", "a")):
        names = [f"database/{instance}/{instance}{n}.png" for n in range(len(right))]
        names += [f"database/{instance}/{name}-{instance}.png" for name in ("hn/x", "hn/y", "other")]
        texts = [f"text {letter}" for letter in right] + ["", "text z", "text z"]
        database += [(name, text or "none", instance) for name, text in zip(names, texts, strict=True)]
        queries += [(f"query/{instance}/q-{instance}.png", f"text {letter}", instance) for letter in sorted({*right})]
    for name, rows in (("query", queries), ("database", database)):
        put(root / f"{name}_files.csv", "".join(f"icir/{','.join(row)}\n" for row in rows))
        for image in {row[0] for row in rows}:
            write_images((root / image).parent, [Path(image).stem])
    return {"root": root}


def icir_shards(root: Path, folder: Path) -> dict[str, Any]:
    """Write the folder's data as shards of two pictures each."""
    for part in ("query", "database"):
        text = (folder / f"{part}_files.csv").read_text()
        put(root / f"annotations/{part}_files.csv", text)
        (root / "webdataset" / part).mkdir(parents=True)
        images = sorted({line.split(",")[0] for line in text.split() if "/" in line})
        for shard in range(0, len(images), 2):
            with tarfile.open(root / f"webdataset/{part}/{part}-{shard:06}.tar", "w") as tar:
                for number, image in enumerate(images[shard : shard + 2], shard):
                    entry = {"img_path": image, "instance": image.split("/")[2], "text": "as in the table"}
                    contents = {
                        "json": json.dumps(entry).encode(),
                        "png": (folder / image.removeprefix("icir/")).read_bytes(),
                    }
                    for ending, raw in contents.items():
                        member = tarfile.TarInfo(f"{number:09}.{ending}")
                        member.size = len(raw)
                        tar.addfile(member, io.BytesIO(raw))
    return {"root": root}


def fashion200k(root: Path) -> dict[str, Any]:
    for split in ("train", "test"):
        names = [f"women/dresses/{split}/{n}/{split}{n}_0" for n in range(12)]
        captions = [f"{COLOURS[n % 6]} {'silk' if n < 6 else 'cotton'} dress" for n in range(12)]
        lines = [f"{name}.jpeg\t1.0\t{caption}\n" for name, caption in zip(names, captions, strict=True)]
        put(root / f"labels/dress_{split}_detect_all.txt", "".join(lines))
        for name in names:
            write_images((root / name).parent, [Path(name).name])
    put(root / "test_queries.txt", "".join(f"{names[n]}.jpeg {names[n + 1]}.jpeg\n" for n in range(5)))
    return {"root": root}


def mit_states(root: Path) -> dict[str, Any]:
    for noun in ("tree", "dog", "tomato", "glass"):
        for adjective in ("old", "wet", "new"):
            write_images(root / "images" / f"{adjective} {noun}", [f"{adjective}{noun}{n}" for n in range(2)])
    return {"root": root}


def triplets(root: Path) -> dict[str, Any]:
    lines = []
    for split in ("train", "val"):
        images = [f"{split}{number}" for number in range(8)]
        write_images(root / "images", images)
        for number in range(6):
            row = {"reference": images[number], "text": f"is {COLOURS[number]}", "target": images[number + 1]}
            row |= {"relevant": [images[number + 2]], "group": "ab"[number % 2], "split": split}
            lines.append(json.dumps(row))
    put(root / "pairs.jsonl", "\n".join(lines))
    return {"file": root / "pairs.jsonl"}


def vectors(root: Path) -> dict[str, Any]:
    return {"train_images": 24, "train_queries": 20, "val_images": 16, "val_queries": 12, "twins": 2.0}


EMOJI_TONES = ("", "-1f3fb", "-1f3ff")
EMOJI_HANDS = ("1f44b", "1f44d", "1f590", "1f443", "270a", "1f4aa")  # vary in skin tone
EMOJI_JOBS = ("1f692", "1f33e", "1f680")  # after an adult's code point: vary in who, too


def emoji_codes() -> list[str]:
    codes = [f"{base}{tone}" for base, tone in itertools.product(EMOJI_HANDS, EMOJI_TONES)]
    for job, who, tone in itertools.product(EMOJI_JOBS, ("1f468", "1f469", "1f9d1"), EMOJI_TONES):
        codes.append(f"{who}{tone}-200d-{job}")
    return codes


def icon(key: str) -> str:
    """Return a drawing that differs from key to key."""
    number = zlib.crc32(key.encode())
    return f'<rect x="{number % 7}" y="{number // 7 % 7}" width="9" height="9" fill="#{number & 0xFFFFFF:06x}"/>'


def icon_package(folder: Path, bodies: Mapping[str, str]) -> None:
    """Write the three files of an icon package (code points -> body) and make its hashes the known ones."""
    from negbench.machine.files import sha256_of
    from negbench.worlds._icons import PACKAGES

    icons = {f"icon-{codes}": {"body": body} for codes, body in bodies.items()}
    put(folder / "icons.json", {"prefix": folder.name, "icons": icons, "width": 16, "height": 16})
    put(folder / "chars.json", {codes: f"icon-{codes}" for codes in bodies})
    put(folder / "info.json", {"license": {"spdx": "MIT"}})
    hashes = {name: sha256_of(folder / f"{name}.json") for name in ("icons", "chars")}
    PACKAGES[folder.name] = dataclasses.replace(PACKAGES[folder.name], **hashes)


def emoji(root: Path) -> dict[str, Any]:
    pytest.importorskip("resvg_py")
    for artist in ("noto", "twemoji", "openmoji", "fluent"):
        icon_package(root / artist, {codes: icon(f"{artist} {codes}") for codes in emoji_codes()})
    return {"root": root}


def preferences(root: Path) -> dict[str, Any]:
    write_preferences(root, users=1, judgements=6, images=24)
    return {"root": root}


TOYS: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "circo": circo,
    "cirr": cirr,
    "emoji": emoji,
    "fashion200k": fashion200k,
    "fashioniq": fashioniq,
    "hp-fashioniq": preferences,
    "icir": icir,
    "mit-states": mit_states,
    "synthetic": synthetic,
    "triplets": triplets,
    "vectors": vectors,
}


def kind_of(wrong: set[int], changes: set[int]) -> str:
    """Tell the kind from the attributes that are wrong and those that the text changes."""
    has_every_change = not wrong & changes
    if not wrong:
        return "relevant"
    if len(wrong) == 1 and (has_every_change or len(changes) > 1):
        return "composed"
    if wrong <= changes:
        return "visual"
    if has_every_change and len(wrong) >= 2:
        return "textual"
    return "unrelated"
