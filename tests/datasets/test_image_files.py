"""Images are found under any nesting and extension; flawed files are named."""

import re
from pathlib import Path

import pytest
from PIL import Image

from negbench.errors import DataError
from negbench.files.image_files import ImageFiles, Spellings, decode_ahead, readable


def write(path: Path, color: tuple[int, int, int] = (200, 10, 10)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), color).save(path)
    return path


def test_any_nesting_and_extension(tmp_path):
    names = ["a.jpg", "dress/b.PNG", "x/y/z/c.JPEG", "d.webp", "e.v2.png"]
    for name in names:
        write(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    files = ImageFiles.scan(tmp_path)
    assert sorted(files.paths) == ["a", "b", "c", "d", "e.v2"]
    assert files.missing(["a", "b", "c", "d", "e.v2"]) == {}
    assert files.path("c") == tmp_path / "x/y/z/c.JPEG"
    assert files.open("b").getpixel((0, 0)) == (200, 10, 10)


def test_linked_folders_are_followed_and_a_loop_ends(tmp_path):
    write(tmp_path / "elsewhere" / "a.png")
    root = tmp_path / "root"
    root.mkdir()
    (root / "images").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "loop").symlink_to(root)
    for name, leads in (("self.png", "self.png"), ("gone.png", "nowhere.png")):
        (root / name).symlink_to(root / leads)
    assert list(ImageFiles.scan(root).paths) == ["a"]
    assert len(ImageFiles.scan(root).paths["a"]) == 1


def test_copies_are_one_image_but_different_files_are_an_error(tmp_path):
    first = write(tmp_path / "a" / "i.png")
    copy = write(tmp_path / "b" / "i.png")
    files = ImageFiles.scan(tmp_path)
    assert files.missing(["i"]) == {}
    assert files.path("i") == first
    write(copy, (1, 2, 3))
    with pytest.raises(DataError, match=r"'i' is ambiguous: .*a/i\.png and .*b/i\.png differ"):
        files.missing(["i"])
    assert files.missing(["other"]) == {"other": "no file"}  # copies of an image that is not requested are not compared


def test_missing_and_empty_are_listed(tmp_path):
    write(tmp_path / "good.png")
    (tmp_path / "empty.png").write_bytes(b"")
    files = ImageFiles.scan(tmp_path)
    needed = ["good", "empty", *(f"gone{i}" for i in range(6))]
    assert files.missing(needed) == {"empty": "empty file"} | {f"gone{i}": "no file" for i in range(6)}
    assert files.require(["good"], allow_missing=False) == ()
    assert files.require(needed, allow_missing=True) == tuple(needed[1:])
    with pytest.raises(DataError) as caught:
        files.require(needed, allow_missing=False)
    message = str(caught.value)
    assert "7 of 8 images are missing" in message
    assert "empty (empty file), gone0 (no file)" in message
    assert "--allow-missing" in message
    assert "gone4" not in message
    assert "\n" not in message


def test_where_no_id_names_a_file_one_is_shown(tmp_path, subtests):
    for name in ("a/x/1.PNG", "a/y/1.jpg", "a/y/2.jpg"):
        write(tmp_path / name)
    for names, images, text in (
        ((), ["C:/old/z/9.jpg", "C:/old/y/1.jpg"], "; there is 'a/y/1.jpg': name images by such paths; put them there"),
        ((), ["y/1.jpg"], f"'a/y/1.jpg': name images by such paths, or move what 'a' holds into {tmp_path}; put"),
        ((), ["y/3"], "(no file); put them there"),
        (("2",), ["old/y/1.jpg"], "(no file); there is 'a/y/1.jpg', in another folder or of another spelling; put"),
    ):
        with subtests.test(text=text):
            files = ImageFiles(tmp_path, {name: (tmp_path / f"a/y/{name}.jpg",) for name in names})
            with pytest.raises(DataError, match=re.escape(text)):
                files.require(images, allow_missing=False)


def test_files_that_cannot_be_decoded_are_named(tmp_path, subtests):
    whole = write(tmp_path / "whole.png").read_bytes()
    contents = {"text": b"<html>404</html>", "half": whole[: len(whole) // 2], "empty": b""}
    for name, content in contents.items():
        (tmp_path / f"{name}.png").write_bytes(content)
    files = ImageFiles.scan(tmp_path)
    for name in contents:
        with subtests.test(name=name):
            with pytest.raises(DataError, match=rf"{name}\.png is not a readable image: ") as caught:
                files.open(name)
            assert "\n" not in str(caught.value), name
    with pytest.raises(DataError, match="image 'absent': no file of that name below"):
        files.open("absent")


def test_files_are_decoded_in_order_and_the_unreadable_ones_reported(subtests, tmp_path):
    paths = [write(tmp_path / f"{number}.png", (number, 0, 0)) for number in range(150)]
    paths[70].write_bytes(b"")

    def red_of(image: Image.Image) -> int:
        return image.getpixel((0, 0))[0]

    for threads in (1, 3):
        with subtests.test(threads=threads):
            outcomes = list(decode_ahead(paths, red_of, threads=threads))
            assert str(outcomes.pop(70)).startswith(f"{paths[70]} is not a readable image")
            assert outcomes == [*range(70), *range(71, 150)]
    reds = readable(decode_ahead(paths, red_of))
    assert [next(reds) for _ in range(70)] == [*range(70)]
    with pytest.raises(DataError, match=r"70\.png is not a readable image"):
        next(reds)


def test_an_unreadable_root(tmp_path):
    with pytest.raises(DataError, match=r"folder .*nowhere cannot be read: No such file"):
        ImageFiles.scan(tmp_path / "nowhere")


def test_large_images_are_decoded_fewer_ahead(subtests, tmp_path):
    """Of 40 images of 30 kB of pixels, a bound of 300 kB lets 10 be decoded before they are taken."""
    paths = [tmp_path / f"{number}.png" for number in range(40)]
    for path in paths:
        Image.new("RGB", (100, 100)).save(path)
    decoded = list[Image.Image]()
    outcomes = decode_ahead(paths, decoded.append, threads=2, ahead=300_000)
    for count in range(1, 41):
        with subtests.test(count=count):
            next(outcomes)
            assert len(decoded) <= count + 10
    assert len(decoded) == 40


def test_an_id_is_found_by_other_spellings_if_one_alone_fits():
    names = ["a", "b.jpg", "men/c", "x/d", "y/d", "000017", "COCO_val_000018", "z19", "020", "00020", "e f.v2"]
    table = {"a.PNG": "a", "./dev/a": "a", r"dev\a.webp": "a", "b": "b.jpg", "c": "men/c", "all/men/c.png": "men/c",
             "women/c": None, "d": None, "y/d.jpg": "y/d", "17": "000017", "0017.jpg": "000017", "19": None, "20": None,
             "18": "COCO_val_000018", "020": "020", "e f.v2.jpg": "e f.v2", "e f": None, "A": "a", "a/b": None,
             "a.jpg/b.jpg": None}  # fmt: skip
    assert {spelling: Spellings(names).find(spelling) for spelling in table} == table
