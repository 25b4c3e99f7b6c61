"""What a published table needs, against the recipes themselves."""

import json
import math
import re

import pytest

from negbench.benchmarks import cirr, fashioniq
from negbench.report.published import PATH, published_rows
from negbench.report.reproduce import reproduction, reproduction_page
from negbench.settings.layers import recipes
from negbench.systems.system import load_config


def test_every_table_names_a_recipe_that_runs_its_data():
    book = json.loads(PATH.read_text(encoding="utf-8"))
    with_recipe = [table for table in book["tables"] if "recipe" in table]
    others = [table for table in book["tables"] if "recipe" not in table]
    assert {(table["paper"], table["dataset"]) for table in others} == {
        ("HyCoLe-HNM", "css"),
        ("Papers with Code", "fashioniq"),
    }
    assert {table["recipe"] for table in with_recipe} <= set(recipes())
    queries = {"fashioniq": sum(fashioniq._ENTRIES["train"]), "cirr": cirr._SIZES["train"].queries}
    assert book["train_queries"] == queries | {"fashion200k": 108366, "mit-states": 43207}  # HyCoLe-HNM table 5
    cirr_images = sum(cirr._SIZES[split].gallery for split in ("train", "val"))
    assert book["images"] == {"fashioniq": 40151, "cirr": cirr_images}


@pytest.mark.data
def test_images_are_those_that_the_recipes_read(shared_data):
    """FashionIQ: references and targets of train, and the split files of val, each image once."""
    root = shared_data / "fashioniq"
    images = set()
    for category in fashioniq.CATEGORIES:
        images |= set(json.loads((root / f"image_splits/split.{category}.val.json").read_text()))
        for entry in json.loads((root / f"captions/cap.{category}.train.json").read_text()):
            images |= {entry["candidate"], entry["target"]}
    assert len(images) == json.loads(PATH.read_text(encoding="utf-8"))["images"]["fashioniq"]
    assert "disk: 21 GB of features for 40,151 images" in reproduction("qure-fashioniq")
    assert "disk: 29 GB of features for 40,151 images" in reproduction("cirqrs-fashioniq")


def test_memory_is_that_of_the_measured_backbones():
    assert "6.9 GB for 1,172 M parameters, 186 M trained; disk: 14 GB of features for 19,236 images" in reproduction(
        "cirqrs-cirr"  # 4 bytes x (1,172 M + 3 x 186 M), and 723,712 bytes x 19,236
    )
    assert "- memory: 2.5 GB for 154 M parameters, 154 M trained\n" in reproduction("hycole-fashioniq")


def test_the_page_has_every_printed_row_of_the_papers():
    page = reproduction_page()
    for row in published_rows():
        if not row.secondary and row.dataset != "css":  # no longer to be had
            assert f"| {row.row} | " in page, row.row
    assert len(re.findall(r"^\| QuRe \| ", page, re.MULTILINE)) == 5  # tables 2 to 5 and 7
    assert page.count("A run has another gallery") == 2  # Fashion200K's tables: no server and no run has theirs


def test_steps_are_those_of_the_recipe():
    config = load_config(recipe=recipes()["qure-cirr"], sets=["dataset.root='x'"])
    steps = config.train.epochs * math.ceil(28225 / config.train.batch_size)
    hours = config.train.epochs * 28225 / 239 / 3600
    text = f": {steps:,} steps over 28,225 training queries; about {hours:.1g} hours of training on one H200"
    assert text in reproduction("qure-cirr")
    assert reproduction("demo") == ""


def test_a_recipe_is_listed_with_the_rows_of_its_table(run_command):
    printed = run_command("list", "recipes", "cirqrs-table7").out
    assert "`negbench compare --recipe cirqrs-table7 --data-root DIR`" in printed
    assert "| 62.86 |" in printed
    assert "prints these rows beside one's own" in printed


def test_a_recipe_of_a_figure_has_no_table():
    figure = reproduction("qure-fig4")
    assert "- no table: a figure without printed numbers" in figure
    assert "- memory: " in figure
    assert figure not in reproduction_page()


@pytest.mark.parametrize(
    ("recipe", "steps"), [("sprc-fashioniq", 4200), ("sprc-cirr", 11000), ("clip4cir-cirr", 22000)]
)
def test_baselines_stand_beside_the_rows_that_papers_print_of_them(recipe, steps):
    """Their short batches are left out; the rows of other methods belong to the papers' own recipes."""
    page = reproduction(recipe)
    assert f": {steps:,} steps over" in page
    method = "SPRC" if recipe.startswith("sprc") else "CLIP4CIR"
    rows = re.findall(r"^\| (?!method|---)(.+?) \|", page, re.MULTILINE)
    assert set(rows) == {method}
    assert len(rows) == (3 if recipe.endswith("fashioniq") else 2)
