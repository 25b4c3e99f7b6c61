"""`negbench embed` with a user's encoder: from a folder of images and triplets to negatives; one-line errors."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import negbench as package
from negbench.errors import NegbenchError
from negbench.machine.files import atomic_write, read_json
from negbench.own.init import inspect_folder
from negbench.plugins.registry import import_file
from negbench.settings.layers import read_recipe
from negbench.store.runfolder import RunFolder
from tests.cli.test_init import told_next

ENCODERS = (Path(__file__).parent / "encoders.py").read_text(encoding="utf-8")


pytestmark = pytest.mark.usefixtures("own_registry")


@pytest.fixture
def module(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(ENCODERS, encoding="utf-8")
    return file


def read(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    tables = []
    for name, key in (("images.npz", "ids"), ("texts.npz", "texts")):
        with np.load(folder / name) as arrays:
            assert set(arrays.files) == {key, "features"}, name
            tables.append(dict(zip(arrays[key].tolist(), arrays["features"], strict=True)))
    return tables[0], tables[1]


class Counting(nn.Module):
    """An encoder that records batch sizes and modes."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.asked, self.modes = nn.Dropout(), list[int](), set[bool]()

    def encode_image(self, images: Sequence[Any]) -> Tensor:
        self.asked.append(len(images))
        self.modes.add(self.part.training or torch.is_grad_enabled())
        return torch.tensor([[image.height, *image.getpixel((0, 0))] for image in images], dtype=torch.bfloat16)

    def encode_text(self, texts: Sequence[str]) -> list[list[float]]:
        self.asked.append(len(texts))
        return [[float(len(text))] for text in texts]


@pytest.fixture
def embed(pictures: Path, module: Path) -> Callable[..., Any]:
    """Return a function that embeds the pictures with this encoder, or with the one of this name in the module."""

    def run(encoder: Any, **more: Any) -> Any:
        if not isinstance(encoder, str):
            import_file(module, "--encoder").given = encoder
        name = encoder if isinstance(encoder, str) else "given"
        return package.embed(package.Embed(folder=pictures, encoder=f"{module}:{name}", **more))

    return run


@pytest.mark.slow
def test_a_folder_of_images_from_init_to_negatives_and_to_embeddings(
    pictures, module, tmp_path, run_command, expect_error
):
    """Run the commands of docs/howto/ten_minutes.md on a file with other column names, the last two before `embed`.

    Then mine. Audit, comparison and mining must note that the backbone learned from other images.
    """
    page = (Path(__file__).parents[2] / "docs" / "howto" / "ten_minutes.md").read_text(encoding="utf-8")
    printed = [shlex.split(line)[1:] for line in page.split("```sh\n")[1].split("```")[0].splitlines()]
    renamed = (pictures / "queries.jsonl").read_text(encoding="utf-8")
    renamed = renamed.replace('"reference"', '"ref"').replace('"text"', '"caption"')
    (pictures / "queries.jsonl").write_text(renamed, encoding="utf-8")
    names = "reference=ref,text=caption"

    def as_printed(line: list[str]) -> list[str]:
        """Replace the folder and encoder of the page's command by this test's."""
        words = [word.replace("my-data", str(pictures)) for word in line]
        return [f"{module}:Mine" if word == "encoder.py:Mine" else word for word in words]

    first, embedding, init, *after = map(as_printed, printed)
    assert told_next(run_command(*first).out) == after
    recipe, own = pictures / "recipe.toml", pictures / "my_strategy.py"
    assert read_recipe(recipe)["backbone"]["name"] == "tiny"
    assert read_recipe(recipe)["train"] == {"epochs": 10, "batch_size": 8, "lr": 3e-3}
    assert any(f"--columns {names} --encoder" in line for line in inspect_folder(pictures, names).present)
    own.write_text(own.read_text(encoding="utf-8") + "# mine\n", encoding="utf-8")
    written = recipe.read_text(encoding="utf-8")
    recipe.write_text(written + "# mine\n", encoding="utf-8")
    expect_error(first, "already exists and was edited after `negbench init` wrote it: rename it")
    recipe.write_text(written, encoding="utf-8")

    audit, compare = after
    mining = ["mine", "--recipe", recipe, "--strategy", "qure", "--draws", "5", "--out", pictures / "negatives.parquet"]
    warning = "note: backbone 'tiny' was trained only on the pictures of synthetic, not on those of triplets"
    audited = "".join(run_command(*audit, "--queries", "20"))
    assert "my-strategy" in audited
    assert warning in audited
    runs = ["--runs-dir", tmp_path / "runs"]
    short = ["--strategies", "in-batch,my-strategy", "--seeds", "1", "--set", "train.epochs=1", "--no-report"]
    out, err = run_command(*compare, *short, *runs, "--tracking-uri", "none")
    assert "answer" in out
    assert "val queries are few for a margin of 1 point" in err
    assert err.count(warning) == 1
    run = RunFolder(tmp_path / "runs" / read_json(tmp_path / "runs" / "first" / "comparison.json")["cells"][-1]["run"])
    assert any(warning[6:] in remark for remark in run.result["remarks"])
    assert run_command(*mining).err.count(warning) == 1
    mined = pd.read_parquet(pictures / "negatives.parquet")
    images = {file.stem for file in (pictures / "pictures").iterdir()}
    for row in mined.itertuples():
        assert 1 <= len(row.negatives) == len(set(row.negatives)) <= 5, row
        assert set(row.negatives) <= images - {row.target}, row
    # with a finished run, as JSON lines
    again = ["mine", "--run", run.run_id, *runs, "--strategy", "top-k:k=3", "--draws", "2"]
    run_command(*again, "--out", tmp_path / "negatives.jsonl")
    lines = pd.read_json(tmp_path / "negatives.jsonl", lines=True)
    assert lines["query"].tolist() == mined["query"].tolist()
    assert {*lines["negatives"].map(len)} == {2}  # two draws from a pool of three

    assert told_next(run_command(*embedding).out) == [init]
    assert told_next(run_command(*init).out) == after
    assert read_recipe(recipe)["backbone"]["name"] == "precomputed"
    assert read_recipe(recipe)["dataset"]["columns"] == names
    assert own.read_text(encoding="utf-8").endswith("# mine\n")
    assert {file.suffix for file in pictures.iterdir()} == {"", ".jsonl", ".toml", ".py", ".npz", ".parquet"}
    assert "my-strategy" in run_command(*audit, "--queries", "10").out
    run_command(*mining)
    assert json.loads(run_command(*embedding, "--overwrite", "--json").out)["image_shape"] == [24, 6]
    # with an edited recipe, the error says how to use the embeddings
    recipe.write_text(written.replace("epochs = 10", "epochs = 3"), encoding="utf-8")
    expect_error(init, f'set name = "precomputed", images = "{pictures}')


def test_vectors_are_those_of_each_item_alone(pictures, module, embed):
    written = set()
    for name in ("make", "made", "Mine"):
        saved = embed(name, batch_size=5, overwrite=True)
        written.add(saved.images.read_bytes())
    assert len(written) == 1
    assert (saved.image_shape, saved.text_shape) == ((24, 6), (3, 5))
    images, texts = read(pictures)
    encoder = import_file(module, "--encoder").Mine().eval()
    with torch.no_grad():
        for image, row in images.items():
            with Image.open(pictures / "pictures" / f"{image}.png") as opened:  # ignores the EXIF orientation
                want = encoder.encode_image([opened.convert("RGB")])[0]
            torch.testing.assert_close(torch.from_numpy(row), want)
        for text, row in texts.items():
            torch.testing.assert_close(torch.from_numpy(row), encoder.encode_text([text])[0])
    assert sorted(texts) == ["in blue", "longer", "with stripes and a zip"]


def test_an_encoder_is_asked_in_batches_in_evaluation_mode(pictures, embed):
    encoder = Counting()
    embedded = embed(encoder, batch_size=10)
    assert encoder.asked == [10, 10, 4, 3]
    assert encoder.modes == {False}
    assert read(pictures)[0]["p1"].dtype == np.float32
    asked = package.Audit(strategies="qure", backbone=embedded.backbone, dataset=embedded.dataset, queries=10)
    assert package.audit(asked).rows[0]["pool_size"] > 0


def test_equal_files_are_encoded_once(pictures, embed):
    files = sorted((pictures / "pictures").glob("*.png"))
    for copy in files[3:]:
        copy.write_bytes(files[int(copy.stem[1:]) % 3].read_bytes())
    encoder = Counting()
    embed(encoder, batch_size=2)
    assert encoder.asked == [2, 1, 2, 1]  # three pictures, three texts
    images, _ = read(pictures)
    assert len(images) == 24
    pairs = {(row.tobytes(), (pictures / f"pictures/{name}.png").read_bytes()) for name, row in images.items()}
    assert len(pairs) == len({vector for vector, _ in pairs}) == 3


def test_splits_of_ones_own_relevant_images_and_a_gallery(pictures, module, run_command):
    (pictures / "queries.jsonl").unlink()
    (pictures / "lists").mkdir()
    (pictures / "lists" / "t.csv").write_text(
        "reference,text,target,relevant,split\np0,a,p1,p2;p3,train\np4,b,p5,,val\npictures/p6,a,p7.png,,rest\n",
        encoding="utf-8",
    )
    (pictures / "gallery.txt").write_text("p8\np0\n", encoding="utf-8")
    run_command("embed", pictures, "--encoder", f"{module}:Arrays", "--gallery", pictures / "gallery.txt")
    images, texts = read(pictures)
    assert sorted(images) == ["p0", "p1", "p2", "p3", "p4", "p5", "p7.png", "p8", "pictures/p6"]
    assert sorted(texts) == ["a", "b"]
    assert images["p0"].shape == (2, 3)
    assert texts["a"].tolist() == [1.0, 0.5]


def line_of(text: str) -> int:
    return ENCODERS[: ENCODERS.index(text)].count("\n") + 1


ONE_LINE = {
    "mine.py:raises": f"failed in line {line_of('raise KeyError')}: KeyError: 'no key'",
    "mine.py:Late": f"failed in line {line_of('return texts[0]')}: AttributeError: 'str' object",
}


def test_what_is_wrong_with_an_encoder_is_one_line(subtests, pictures, module, monkeypatch, expect_error, mistakes):
    monkeypatch.chdir(module.parent)
    for spec, message in (mistakes["own-encoders"] | ONE_LINE).items():
        with subtests.test(spec=spec):
            expect_error(["embed", str(pictures), "--encoder", spec, "--batch-size", "10"], message)
            assert not list(pictures.glob("*.npz"))


def test_what_is_wrong_with_the_folder_is_one_line(pictures, module, embed, tmp_path, expect_error):
    def fails(message: str, *more: str, folder: Path = pictures) -> None:
        expect_error(["embed", str(folder), "--encoder", f"{module}:Arrays", *more], message)

    fails("no such folder", folder=tmp_path / "nowhere")
    fails("nothing to embed yet: no triplets: save a .jsonl", folder=pictures / "pictures")
    fails("names.txt is missing: put the file there, or correct", "--gallery", str(tmp_path / "names.txt"))
    fails("--batch-size 0: input should be greater than or equal to 1", "--batch-size", "0")
    fails("--device gpu9", "--device", "gpu9")
    before = embed("Arrays").images.read_bytes()
    fails("images.npz already exists")
    assert embed("Mine", overwrite=True).images.read_bytes() != before
    (pictures / "images.npz").rename(pictures / "earlier.npz")
    fails("earlier.npz already holds embeddings of images: move it away", "--overwrite")
    (pictures / "earlier.npz").unlink()
    (pictures / "pictures" / "p7.png").write_bytes(b"torn")
    fails("p7.png is not a readable image", "--overwrite")
    (pictures / "pictures" / "p7.png").unlink()
    fails("queries have one as reference or target; put them there, or leave them out with --allow", "--overwrite")


def test_a_missing_library_is_named_with_its_extra(pictures, monkeypatch, expect_error, subtests):
    for spec, module in (("transformers:x/y", "transformers"), ("open_clip:x", "open_clip")):
        with subtests.test(spec=spec):
            monkeypatch.setitem(sys.modules, module, None)
            expect_error(
                ["embed", str(pictures), "--encoder", spec], f"this needs {module}: pip install 'negbench[full]'"
            )


def test_a_kill_between_the_two_files_leaves_no_pair_of_two_encoders(pictures, embed, monkeypatch, expect_error):
    before = embed(Counting()).texts.read_bytes()
    write = atomic_write

    def killed(path: Path, mode: Any) -> Any:
        if path.name == "images.npz":
            raise KeyboardInterrupt
        return write(path, mode)

    monkeypatch.setattr("negbench.own.embed.atomic_write", killed)
    encoder = Counting()
    encoder.encode_text = lambda texts: torch.full((len(texts), 2), 0.5)
    with pytest.raises(KeyboardInterrupt):
        embed(encoder, overwrite=True)
    assert (pictures / "texts.npz").read_bytes() != before
    expect_error(["init", str(pictures)], "no embeddings of images: save them beside texts.npz")


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_encoded(embed, monkeypatch):
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    encoder = Counting()
    with pytest.raises(NegbenchError, match=r"cannot write .*my data"):
        embed(encoder)
    assert not encoder.asked
