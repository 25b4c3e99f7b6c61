"""Pictures as people have them: formats, names, orientation, transparency, size; said, and applied if asked."""

import json
import os
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from negbench.benchmarks.triplets import TripletOptions, Triplets
from negbench.errors import DataError
from negbench.files import picture_kinds as kinds_of_pictures
from negbench.files.image_files import EXTENSIONS, ImageFiles, Spellings, is_picture, read_image, unread_format
from negbench.files.picture_kinds import picture_kinds, picture_remarks
from negbench.machine import contents
from negbench.machine.contents import content_hashes
from negbench.machine.files import open_file
from negbench.machine.viewed import plain_path, shown_path


def picture(seed: int = 0, width: int = 6, height: int = 4) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype="u1"))


def folder_with(tmp_path: Path, names: list[str], written: list[str] | None = None) -> Path:
    """Write a table that names these pictures, two a row, and files of the same or other names."""
    for seed, name in enumerate(names if written is None else written):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        picture(seed).save(tmp_path / name)
    pairs = zip(names, [*names[1:], names[0]], strict=True)
    rows = [{"reference": one, "text": "t", "target": other, "split": "val"} for one, other in pairs]
    table = tmp_path / "t.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return table


def load(table: Path, **options: Any) -> Triplets:
    return Triplets.load(TripletOptions(file=table, **options), "val")


# --- formats -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["gif", "bmp", "tif", "tiff", "jfif", "avif", "ppm", "tga", "PNG", "jp2"])
def test_what_pillow_reads_is_read(tmp_path, ending):
    table = folder_with(tmp_path, ["a.png", f"b.{ending}"])
    data = load(table)
    assert data.open_image("b" if "b" in data.all_images else f"b.{ending}").size == (6, 4)
    assert is_picture(f"b.{ending}")
    assert unread_format(f"b.{ending}") is None


def test_every_ending_can_be_opened_by_pillow():
    Image.init()
    assert {Image.registered_extensions()[ending] for ending in EXTENSIONS} <= {*Image.OPEN}


@pytest.mark.parametrize("ending", ["heic", "svg", "psd", "CR2"])
def test_a_picture_of_another_format_is_named_with_a_remedy(tmp_path, ending):
    table = folder_with(tmp_path, ["a.png", f"b.{ending}"], ["a.png"])
    (tmp_path / f"b.{ending}").write_bytes(b"1")
    with pytest.raises(DataError, match=rf"there is 'b\.{ending}', but \.{ending.lower()} is not read .*: save it as"):
        load(table)


def test_of_equal_ids_a_common_format_is_taken(tmp_path):
    for name in ("a.png", "a.gif", "b.gif"):
        picture().save(tmp_path / name)
    files = ImageFiles.scan(tmp_path)
    assert files.paths == {"a": (tmp_path / "a.png",), "b": (tmp_path / "b.gif",)}


# --- names -------------------------------------------------------------------------------------------------------


NFC, NFD = (unicodedata.normalize(form, "café 3.png") for form in ("NFC", "NFD"))
SPELLED = {
    "composed, decomposed": (NFC, NFD),
    "decomposed, composed": (NFD, NFC),
    "case": ("p03.png", "P03.PNG"),
    "percent signs in the table": ("p%2003.png", "p 03.png"),
    "percent signs on the disk": ("p 03.png", "p%2003.png"),
    "in a folder": ("Sub/É.png", unicodedata.normalize("NFD", "sub/é.png")),
}


@pytest.mark.parametrize("case", SPELLED)
def test_names_are_matched_in_all_spellings_that_one_file_fits(tmp_path, case):
    named, written = SPELLED[case]
    data = load(folder_with(tmp_path, ["a.png", named], ["a.png", written]))
    assert (tmp_path / written) in data.image_paths().values()


def test_two_files_of_one_spelling_are_shown(tmp_path):
    table = folder_with(tmp_path, ["a.png", "qP.png"], ["a.png", "QP.png", "qp.png"])
    with pytest.raises(DataError, match=r"qP\.png \(no file\); there are 'QP\.png', 'qp\.png', spelled alike: name"):
        load(table)


def test_a_link_to_nothing_is_shown(tmp_path):
    table = folder_with(tmp_path, ["a.png", "b.png"], ["a.png"])
    (tmp_path / "b.png").symlink_to("../.git/annex/objects/b.png")
    with pytest.raises(DataError, match=r"'b\.png' is a link to '.*annex.*', which is not there: fetch what it leads"):
        load(table)


def test_an_exact_name_wins_over_another_spelling():
    spellings = Spellings(["P3", "p3", "É"])
    assert [spellings.find(name) for name in ("P3", "p3", "é", "x/É", "P%33")] == ["P3", "p3", "É", "É", None]


def test_two_names_of_one_file_are_refused(tmp_path):
    table = folder_with(tmp_path, ["P3.png", "p3.png"], ["p3.png"])
    with pytest.raises(DataError, match="are one image"):
        load(table)


# --- what cannot be decoded --------------------------------------------------------------------------------------


def test_a_picture_above_the_limit_says_so_everywhere(tmp_path):
    table = folder_with(tmp_path, ["a.png", "b.png"])
    Image.new("1", (20_000, 10_000)).save(tmp_path / "b.png")
    why = "it has 200 million pixels, more than Pillow's limit of 179 million: make it smaller"
    data = load(table)
    assert list(data.files.undecodable(data.all_images).values()) == [why]
    with pytest.raises(DataError, match=why):
        read_image(tmp_path / "b.png")


KINDS = {
    "a web page": (b"<html>not found</html>", "it is a web page"),
    "an LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", "the pointer of Git LFS"),
    "HEIC": (b"\0\0\0\x18ftypheic\0\0\0\0", "it is an HEIC picture"),
    "broken JPEG": (b"\xff\xd8\xff broken", "it begins as a JPEG picture but is broken: fetch it again"),
    "broken PNG": (b"\x89PNG\r\n", "it begins as a PNG picture but is broken: fetch it again"),
    "cut off": (b"", ""),
    "noise": (b"\x01\x02\x03\x04" * 9, "in no format that Pillow reads"),
}


@pytest.mark.parametrize("case", KINDS)
def test_why_a_picture_cannot_be_decoded(tmp_path, case):
    content, message = KINDS[case]
    path = tmp_path / "b.jpg"
    if not content:
        picture(0, 64, 64).save(path)
        content, message = path.read_bytes()[:300], "runcated"
    path.write_bytes(content)
    fault = ImageFiles.scan(tmp_path).undecodable(["b"])["b"]
    assert message in fault
    with pytest.raises(DataError) as error:
        read_image(path)
    assert fault in str(error.value)


# --- orientation, transparency and other kinds -------------------------------------------------------------------


def write_kinds(folder: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(1).save(folder / "turned.jpg", exif=exif, quality=95)
    picture(1).save(folder / "turned.png", exif=exif)
    clear = picture(2).convert("RGBA")
    clear.putpixel((0, 0), (255, 0, 0, 0))
    clear.save(folder / "clear.png")
    picture(2).convert("RGBA").save(folder / "opaque.png")
    palette = picture(3).convert("P")
    palette.save(folder / "palette.gif", transparency=palette.getpixel((0, 0)))
    picture(4).save(folder / "moving.gif", save_all=True, append_images=[picture(5)])
    Image.fromarray(np.full((4, 6), 40_000, dtype="u2")).save(folder / "deep.png")
    picture(6).convert("CMYK").save(folder / "cmyk.jpg")
    picture(7).save(folder / "plain.png")


def test_kinds_are_counted(tmp_path):
    write_kinds(tmp_path)
    kinds_of = {path.name: kinds for path, kinds in picture_kinds(sorted(tmp_path.iterdir())).items()}
    turned = {name for name, kinds in kinds_of.items() if "turned" in kinds}
    assert turned == {"turned.jpg", "turned.png"}
    assert {name for name, kinds in kinds_of.items() if "transparent" in kinds} == {"clear.png", "palette.gif"}
    assert kinds_of["moving.gif"] == ("animated",)
    assert kinds_of["deep.png"] == ("deep",)
    assert kinds_of["cmyk.jpg"] == ("cmyk",)
    assert kinds_of["opaque.png"] == kinds_of["plain.png"] == ()
    lines = picture_remarks(tmp_path.iterdir(), as_shown=False)
    assert lines[0].startswith("2 of 9 images are turned by EXIF orientation, which is not applied: --set dataset.as")
    assert [line.split(" images ")[0] for line in lines] == ["2 of 9", "2 of 9", "1 of 9", "1 of 9", "1 of 9"]


def test_kinds_of_a_changed_file_are_read_again(tmp_path):
    path = tmp_path / "x.png"
    picture().save(path)
    os.utime(path, (1, 1))
    assert picture_kinds([path])[path] == ()
    picture().convert("CMYK").save(path, "jpeg")
    assert picture_kinds([path])[path] == ("cmyk",)


def test_the_kinds_of_unchanged_files_are_read_from_the_cache_once(tmp_path, monkeypatch, count_opened):
    """Each split of each cell of a plan asks for them."""
    monkeypatch.setenv("NEGBENCH_CACHE", str(tmp_path / "cache"))
    for module in (contents, kinds_of_pictures):
        monkeypatch.setattr(module, "SETTLED", 0)  # files of a moment ago count as unchanged
    (tmp_path / "made").mkdir()
    write_kinds(tmp_path / "made")
    files = sorted((tmp_path / "made").iterdir())
    first = picture_kinds(files)
    with count_opened(tmp_path / "cache" / "features") as opened, count_opened(tmp_path / "made") as read:
        assert [picture_kinds(files), picture_kinds(files)] == [first, first]
    assert opened["pictures.json"] == 1
    assert not read
    picture().save(tmp_path / "made" / "cmyk.jpg")
    assert picture_kinds(files)[tmp_path / "made" / "cmyk.jpg"] == ()


def test_the_option_applies_orientation_and_transparency(tmp_path):
    table = folder_with(tmp_path, ["a.png", "turned.png", "clear.png"], ["a.png"])
    write_kinds(tmp_path)
    stored = load(table)
    viewed = load(table, as_shown=True)
    name = {path.stem: image for image, path in stored.image_paths().items()}
    assert stored.open_image(name["turned"]).size == (6, 4)
    turned = np.asarray(viewed.open_image(name["turned"]).convert("RGB"))
    np.testing.assert_array_equal(turned, np.rot90(np.asarray(picture(1)), -1))
    clear = viewed.open_image(name["clear"])
    assert clear.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    assert clear.convert("RGB").getpixel((1, 1)) == picture(2).getpixel((1, 1))
    assert viewed.image_paths()[name["a"]] == stored.image_paths()[name["a"]]
    hashes = content_hashes(stored.image_paths(), tmp_path / "cache")
    viewed_hashes = content_hashes(viewed.image_paths(), tmp_path / "cache")
    differing = {image for image in hashes if hashes[image] != viewed_hashes[image]}
    assert differing == {name["turned"], name["clear"]}
    assert "1 of 3 images are turned as EXIF says" in viewed.remarks
    assert "1 of 3 images have transparent parts, put on white" in viewed.remarks


def test_paths_of_shown_pictures(tmp_path):
    write_kinds(tmp_path)
    path = tmp_path / "turned.jpg"
    assert plain_path(shown_path(path)) == path
    assert plain_path(path) is None
    with open_file(shown_path(path)) as file, Image.open(file) as image:
        assert image.size == (4, 6)
        assert image.getexif().get(0x0112, 1) == 1
