"""`negbench embed` with a user's encoder: from a folder of images and triplets to negatives; one-line errors."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
from tests.cli.test_init import commands_in

ENCODERS = (Path(__file__).parent / "encoders.py").read_text(encoding="utf-8")


pytestmark = pytest.mark.usefixtures("own_registry")


@pytest.fixture
def module(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(ENCODERS, encoding="utf-8")
    return file


def read(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the vectors of images, by id, and of texts."""
    return read_file(folder / "images.npz", "ids"), read_file(folder / "texts.npz", "texts")


def read_file(path: Path, key: str) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        assert set(arrays.files) == {key, "features"}, path.name
        return dict(zip(arrays[key].tolist(), arrays["features"], strict=True))


class Counting(nn.Module):
    """An encoder that records batch sizes and modes."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Dropout()
        self.batch_sizes: list[int] = []
        self.modes: set[bool] = set()

    def encode_image(self, images: Sequence[Any]) -> Tensor:
        self.batch_sizes.append(len(images))
        self.modes.add(self.part.training or torch.is_grad_enabled())
        return torch.tensor([[image.height, *image.getpixel((0, 0))] for image in images], dtype=torch.bfloat16)

    def encode_text(self, texts: Sequence[str]) -> list[list[float]]:
        self.batch_sizes.append(len(texts))
        return [[float(len(text))] for text in texts]


@pytest.fixture
def embed(pictures: Path, module: Path) -> Callable[..., Any]:
    """Return a function that embeds the pictures with this encoder, or with the one of this name in the module."""

    def run(encoder: Any, **more: Any) -> Any:
        if isinstance(encoder, str):
            name = encoder
        else:
            name = "given"
            import_file(module, "--encoder").given = encoder
        return package.embed(package.Embed(folder=pictures, encoder=f"{module}:{name}", **more))

    return run


class Page(NamedTuple):
    """The commands of docs/howto/ten_minutes.md, in their order, with the folder and the encoder of this test."""

    first_init: list[str]
    embed: list[str]
    init: list[str]
    audit: list[str]
    compare: list[str]


COLUMNS = "reference=ref,text=caption"
WARNING = "note: backbone 'tiny' was trained only on the pictures of synthetic, not on those of triplets"


@pytest.fixture
def page(pictures: Path, module: Path) -> Page:
    """Read the page's commands, and name the columns of the triplets as the page does."""
    triplets = pictures / "queries.jsonl"
    text = triplets.read_text(encoding="utf-8").replace('"reference"', '"ref"').replace('"text"', '"caption"')
    triplets.write_text(text, encoding="utf-8")
    markdown = (Path(__file__).parents[2] / "docs" / "howto" / "ten_minutes.md").read_text(encoding="utf-8")
    commands = []
    for line in markdown.split("```sh\n")[1].split("```")[0].splitlines():
        words = [word.replace("my-data", str(pictures)) for word in shlex.split(line)[1:]]
        commands.append([f"{module}:Mine" if word == "encoder.py:Mine" else word for word in words])
    return Page(*commands)


def test_init_of_a_folder_of_images_takes_the_backbone_tiny(page, pictures, run_command):
    assert commands_in(run_command(*page.first_init).out) == [page.audit, page.compare]
    recipe = read_recipe(pictures / "recipe.toml")
    assert recipe["backbone"]["name"] == "tiny"
    assert recipe["train"] == {"epochs": 10, "batch_size": 8, "lr": 3e-3}
    assert any(f"--columns {COLUMNS} --encoder" in line for line in inspect_folder(pictures, COLUMNS).present)


def test_init_leaves_an_edited_recipe_alone(page, pictures, run_command, expect_error):
    run_command(*page.first_init)
    with (pictures / "recipe.toml").open("a", encoding="utf-8") as file:
        file.write("# mine\n")
    expect_error(page.first_init, "already exists and was edited after `negbench init` wrote it: rename it")


@pytest.mark.slow
def test_audit_and_comparison_note_that_the_backbone_knows_other_images(page, tmp_path, run_command):
    run_command(*page.first_init)
    audit = "".join(run_command(*page.audit, "--queries", "20"))
    assert "my-strategy" in audit
    assert WARNING in audit
    short = ["--strategies", "in-batch,my-strategy", "--seeds", "1", "--set", "train.epochs=1", "--no-report"]
    runs = tmp_path / "runs"
    out, err = run_command(*page.compare, *short, "--runs-dir", runs, "--tracking-uri", "none")
    assert "answer" in out
    assert "val queries are few for a margin of 1 point" in err
    assert err.count(WARNING) == 1
    last_cell = read_json(runs / "first" / "comparison.json")["cells"][-1]
    remarks = RunFolder(runs / last_cell["run"]).result["remarks"]
    assert any(WARNING.removeprefix("note: ") in remark for remark in remarks)


@pytest.mark.slow
def test_negatives_are_mined_with_the_recipe_or_with_a_finished_run(page, pictures, tmp_path, run_command):
    run_command(*page.first_init)
    recipe = pictures / "recipe.toml"
    out = tmp_path / "negatives.parquet"
    mine = ["mine", "--recipe", recipe, "--strategy", "qure", "--draws", "5", "--out", out]
    assert run_command(*mine).err.count(WARNING) == 1
    negatives = pd.read_parquet(out)
    images = {file.stem for file in (pictures / "pictures").iterdir()}
    for row in negatives.itertuples():
        assert 1 <= len(row.negatives) == len(set(row.negatives)) <= 5, row
        assert set(row.negatives) <= images - {row.target}, row

    flags = ["--runs-dir", tmp_path / "runs", "--tracking-uri", "none"]
    run = json.loads(
        run_command("run", "--recipe", recipe, "--strategy", "in-batch", "--epochs", "1", *flags, "--json").out
    )
    lines = tmp_path / "negatives.jsonl"
    with_run = ["mine", "--run", run["run"], *flags[:2], "--strategy", "top-k:k=3", "--draws", "2", "--out", lines]
    run_command(*with_run)
    of_run = pd.read_json(lines, lines=True)
    assert of_run["query"].tolist() == negatives["query"].tolist()
    assert set(of_run["negatives"].map(len)) == {2}  # two draws from a pool of three


@pytest.mark.slow
def test_embed_and_init_replace_the_backbone_by_the_embeddings(page, pictures, run_command):
    run_command(*page.first_init)
    strategy = pictures / "my_strategy.py"
    with strategy.open("a", encoding="utf-8") as file:
        file.write("# mine\n")
    assert commands_in(run_command(*page.embed).out) == [page.init]
    assert commands_in(run_command(*page.init).out) == [page.audit, page.compare]
    recipe = read_recipe(pictures / "recipe.toml")
    assert recipe["backbone"]["name"] == "precomputed"
    assert recipe["dataset"]["columns"] == COLUMNS
    assert strategy.read_text(encoding="utf-8").endswith("# mine\n")
    assert {file.suffix for file in pictures.iterdir()} == {"", ".jsonl", ".toml", ".py", ".npz"}
    assert "my-strategy" in run_command(*page.audit, "--queries", "10").out
    out = pictures / "negatives.parquet"
    run_command("mine", "--recipe", pictures / "recipe.toml", "--strategy", "qure", "--draws", "5", "--out", out)
    assert json.loads(run_command(*page.embed, "--overwrite", "--json").out)["image_shape"] == [24, 6]


def test_beside_an_edited_recipe_init_says_how_to_use_the_embeddings(page, pictures, run_command, expect_error):
    run_command(*page.first_init)
    run_command(*page.embed)
    recipe = pictures / "recipe.toml"
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(text.replace("epochs = 10", "epochs = 3"), encoding="utf-8")
    expect_error(page.init, f'set name = "precomputed", images = "{pictures}')


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
    assert encoder.batch_sizes == [10, 10, 4, 3]
    assert encoder.modes == {False}
    assert read(pictures)[0]["p1"].dtype == np.float32
    options = package.Audit(strategies="qure", backbone=embedded.backbone, dataset=embedded.dataset, queries=10)
    assert package.audit(options).rows[0]["pool_size"] > 0


def test_equal_files_are_encoded_once(pictures, embed):
    files = sorted((pictures / "pictures").glob("*.png"))
    for copy in files[3:]:
        copy.write_bytes(files[int(copy.stem[1:]) % 3].read_bytes())
    encoder = Counting()
    embed(encoder, batch_size=2)
    assert encoder.batch_sizes == [2, 1, 2, 1]  # three pictures, three texts
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

    def write_texts_only(path: Path, mode: Any) -> Any:
        if path.name == "images.npz":
            raise KeyboardInterrupt
        return atomic_write(path, mode)

    monkeypatch.setattr("negbench.own.embed.atomic_write", write_texts_only)
    encoder = Counting()
    encoder.encode_text = lambda texts: torch.full((len(texts), 2), 0.5)
    with pytest.raises(KeyboardInterrupt):
        embed(encoder, overwrite=True)
    assert (pictures / "texts.npz").read_bytes() != before
    expect_error(["init", str(pictures)], "no embeddings of images: save them beside texts.npz")


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_encoded(embed, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    encoder = Counting()
    with pytest.raises(NegbenchError, match=r"cannot write .*my data"):
        embed(encoder)
    assert not encoder.batch_sizes
