"""Every recipe: the published numbers it resolves to, where each value is from, and two steps of it on toy data."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from negbench.cli.compare import build_grid
from negbench.config import RunConfig, build_config, read_recipe, resolved
from negbench.loop.train import run_config
from negbench.registry import registry
from negbench.systems.system import load_config

FOLDER = Path(__file__).parents[1] / "runs" / "recipes"
RECIPES = sorted(path.stem for path in FOLDER.glob("*.toml"))
GRIDS = ("dqe-bands", "qure-fig4")
STUDIES = ("band-table", "n-def-table", "negatives-table", "warm-up-table")  # see test_study.py
RUNS = [name for name in RECIPES if name not in (*GRIDS, *STUDIES)]

QURE: dict[str, Any] = {
    "strategy.name": "qure",
    "strategy.variant": "paper",
    "loss.name": "bradley-terry",
    "backbone.name": "blip2",
    "backbone.target_ratio": 1.25,
    "train.batch_size": 32,
    "train.weight_decay": 0.05,
    "schedule.n_def": 6,
}
CIRQRS: dict[str, Any] = {
    "strategy.name": "cirqrs",
    "loss.name": "bradley-terry",
    "backbone.name": "blip2",
    "backbone.weights": "Salesforce/blip2-itm-vit-g",
    "backbone.target_ratio": 1.5,
}
DQE: dict[str, Any] = {
    "strategy.name": "dqe",
    "strategy.alpha": 0.2,
    "strategy.beta": 0.8,
    "strategy.scale": "absolute",
    "loss.name": "margin-kl",
    "backbone.attribute_weights": True,
    "train.batch_size": 128,
}
HYCOLE: dict[str, Any] = {
    "strategy.name": "hycole",
    "loss.name": "info-nce",
    "loss.tau": None,
    "backbone.name": "clip",
    "backbone.weights": "openai",
    "backbone.fusion": "gated",
    "backbone.frozen": False,
    "backbone.gamma": 0.001,
    "backbone.grad_checkpointing": True,
    "hybrid.alpha": 0.4,
    "hybrid.beta": 0.1,
    "train.epochs": 64,
    "train.lr": 1e-4,
    "train.weight_decay": 0.01,
    "train.batch_size": 64,
    "train.lr_warmup_epochs": 6.0,
}
# what the papers and their released files say, as resolved
PUBLISHED: dict[str, dict[str, Any]] = {
    "qure-fashioniq": {
        **QURE, "dataset.name": "fashioniq", "dataset.caption_mode": "joined", "train.epochs": 30, "train.lr": 5e-6,
        "train.min_lr_ratio": 5e-8 / 5e-6, "schedule.refresh_epochs": [5, 10, 15, 20, 25],
    },
    "qure-cirr": {
        **QURE, "dataset.name": "cirr", "train.epochs": 50, "train.lr": 1e-5, "train.min_lr_ratio": 5e-8 / 1e-5,
        "schedule.refresh_epochs": [8, 16, 24, 32, 40, 48],
    },
    "cirqrs-fashioniq": {**CIRQRS, "dataset.name": "fashioniq", "strategy.n_neg": 50, "schedule.n_def": 5},
    "cirqrs-cirr": {**CIRQRS, "dataset.name": "cirr", "strategy.n_neg": 100, "schedule.n_def": 6},
    "dqe-fashioniq": {**DQE, "dataset.name": "fashioniq", "schedule.refresh_epochs": [5, 10, 15, 20, 25]},
    "dqe-cirr": {**DQE, "dataset.name": "cirr", "schedule.refresh_epochs": [10, 18, 26, 34, 42]},
    "hycole-fashioniq": {
        **HYCOLE, "dataset.name": "fashioniq", "dataset.caption_mode": "comma", "dataset.protocol": "val",
    },
    "hycole-fashion200k": {**HYCOLE, "dataset.name": "fashion200k", "dataset.text": "hycole"},
    "hycole-mit-states": {**HYCOLE, "dataset.name": "mit-states"},
}  # fmt: skip


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.toml"


def skip_without(dataset: str) -> None:
    if dataset not in registry.plugins("datasets"):
        pytest.skip(f"there is no loader of {dataset} yet")


# --- the numbers ---------------------------------------------------------------------------------------------------


def test_there_is_a_check_for_every_recipe() -> None:
    assert set(RUNS) == set(PUBLISHED)
    assert {*GRIDS, *STUDIES} < set(RECIPES)


@pytest.mark.parametrize("name", RUNS)
def test_a_recipe_resolves_to_the_published_numbers(name: str) -> None:
    skip_without(PUBLISHED[name]["dataset.name"])
    config = resolved(load_config(recipe=path_of(name)))
    flat = config.flat()
    assert {key: flat.get(key) for key in PUBLISHED[name]} == {
        key: pytest.approx(value) if isinstance(value, float) else value for key, value in PUBLISHED[name].items()
    }


@pytest.mark.parametrize("name", RUNS)
def test_pools_are_redefined_once_less_than_defined(name: str) -> None:
    """n_def counts the warm-up interval; CIRR's 50 epochs leave room for one more."""
    skip_without(PUBLISHED[name]["dataset.name"])
    config = resolved(load_config(recipe=path_of(name)))
    schedule = config.schedule
    epochs = list(schedule.refresh_epochs)
    if name.startswith("hycole"):
        assert epochs == []
    else:
        assert len(epochs) in (schedule.n_def - 1, schedule.n_def)
        begins = [0, *epochs] if schedule.rule == "multiples" else [*epochs, config.train.epochs]
        assert len(set(np.diff(begins))) == 1  # a warm-up of one interval (QuRe), or equal intervals after it (DQE)


@pytest.mark.parametrize("name", RECIPES)
def test_every_value_says_where_it_is_from(name: str) -> None:
    lines = path_of(name).read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ")
    for number, line in enumerate(lines, start=1):
        value = re.match(r"\s*(\w+ = [^\[{]|\{ name)", line) or re.match(r"\w+ = \[.*\]", line)
        if value and not line.startswith("name ="):
            assert re.search(r"\S +# \S", line), f"{name}.toml:{number} has no source: {line}"


@pytest.mark.parametrize("name", RUNS)
def test_what_is_ours_is_not_called_published(name: str) -> None:
    """What this file takes for published carries no mark of ours, so that the two cannot drift apart."""
    section = ""
    for line in path_of(name).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[] ")
        key = f"{section}.{line.split(' = ')[0]}"
        if key in PUBLISHED[name]:
            assert not line.partition("# ")[2].startswith("ours"), line


def test_the_grids_hold_the_published_rows() -> None:
    figure = build_grid(
        dict.fromkeys(("strategies", "losses", "backbones", "datasets", "seeds")), {}, path_of("qure-fig4"), None, None
    )
    assert [dict(s) for s in figure.strategies] == [
        {"name": "all-corpus"},
        {"name": "top-k", "k": 100},
        {"name": "after-target", "k": 100},
        {"name": "qure", "variant": "paper"},
    ]
    bands = build_grid(
        dict.fromkeys(("strategies", "losses", "backbones", "datasets", "seeds")), {}, path_of("dqe-bands"), None, None
    )
    assert [(s["alpha"], s["beta"]) for s in bands.strategies] == [
        (0.3, 0.7),
        (0.25, 0.75),
        (0.2, 0.8),
        (0.15, 0.85),
        (0.1, 0.9),
    ]
    assert len(figure.configs()) == 4 * 3
    assert len(bands.configs()) == 5 * 3
    for grid, base in ((figure, "qure-fashioniq"), (bands, "dqe-fashioniq")):
        alone = read_recipe(path_of(base))
        for config in grid.configs():
            for section in ("backbone", "dataset", "train", "schedule", "loss"):
                told = getattr(config, section).model_dump(exclude_unset=True)
                assert json.loads(json.dumps(told)) == alone[section], section


# --- two steps -----------------------------------------------------------------------------------------------------


def picture(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 26), (37 * number % 256, 91 * number % 256, 150)).save(path)


def toy_cirr(root: Path) -> Path:
    """Two groups of six images a split; every image of a group is asked for once."""
    for split, prefix in (("train", "train/0"), ("val", "dev")):
        ids = [f"{split}-{n}-0-img0" for n in range(12)]
        entries = []
        for n in range(12):
            group = ids[:6] if n < 6 else ids[6:]
            entries.append(
                {
                    "pairid": n, "reference": ids[n], "target_hard": group[(n + 1) % 6], "caption": f"{n} times as red",
                    "img_set": {"id": n // 6, "members": group, "reference_rank": 0},
                }
            )  # fmt: skip
        for n, name in enumerate(ids):
            picture(root / prefix / f"{name}.png", n)
        for folder, content in (
            ("captions/cap", entries),
            ("image_splits/split", {i: f"./{prefix}/{i}.png" for i in ids}),
        ):
            path = root / f"{folder}.rc2.{split}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(content))
    return root


def toy_fashion200k(root: Path) -> Path:
    colours = ("black", "blue", "red", "green", "white", "pink")
    for split in ("train", "test"):
        names = [f"women/dresses/{split}/{n}/{n}_0.jpeg" for n in range(12)]
        lines = [
            f"{name}\t1.0\t{colours[n % 6]} {'silk' if n < 6 else 'cotton'} dress\n" for n, name in enumerate(names)
        ]
        for n, name in enumerate(names):
            picture(root / name, n)
        path = root / "labels" / f"dress_{split}_detect_all.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(lines))
    (root / "test_queries.txt").write_text("".join(f"{names[n]} {names[n + 1]}\n" for n in range(5)))
    return root


def toy_mit_states(root: Path) -> Path:
    folders = [
        f"{adjective} {noun}" for noun in ("tree", "dog", "tomato", "glass") for adjective in ("old", "wet", "new")
    ]
    for number, folder in enumerate(folders):
        for n in range(2):
            picture(root / "images" / folder / f"{n}.jpg", 3 * number + n)
    return root


TOYS: Mapping[str, Callable[[Path], Path]] = {
    "cirr": toy_cirr,
    "fashion200k": toy_fashion200k,
    "mit-states": toy_mit_states,
}


def toy_layer(recipe: Mapping[str, Any], root: Path, queries: int) -> dict[str, Any]:
    """The recipe at toy size: two epochs of one step, so that pools are defined anew in between."""
    backbone = {key: value for key, value in recipe["backbone"].items() if key not in ("weights", "model")}
    schedule = {key: value for key, value in recipe.get("schedule", {}).items() if key != "refresh_epochs"}
    return {
        **recipe,
        "backbone": {**backbone, "init": "random", "size": "toy"},
        "dataset": {**recipe["dataset"], "root": str(root)},
        "train": {**recipe["train"], "epochs": 2, "batch_size": queries},
        "schedule": schedule,
        "compute": {"device": "cpu"},
    }


@pytest.fixture(scope="module")
def root_of(toy_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder with a toy of a data set; the synthetic one is in FashionIQ's layout, attribute files included."""
    made: dict[str, Path] = {"fashioniq": toy_root}

    def find(dataset: str) -> Path:
        if dataset not in made:
            made[dataset] = TOYS[dataset](tmp_path_factory.mktemp(dataset.replace("-", "_")) / dataset)
        return made[dataset]

    return find


def two_steps(config: RunConfig, folder: Path) -> dict[str, Any]:
    details = run_config(config, runs_dir=folder, tracking_uri="none").details
    assert details["steps"] == 2
    assert all(0 <= value <= 1 for value in details["metrics"].values())
    return details


def train_queries(recipe: Mapping[str, Any], root: Path) -> int:
    options = {key: value for key, value in recipe["dataset"].items() if key != "name"}
    data = registry.make("datasets", recipe["dataset"]["name"], **options, root=str(root), split="train", images=False)
    return len(data.queries)


@pytest.mark.parametrize("name", RUNS)
def test_a_recipe_runs_two_steps(name: str, root_of: Callable[[str], Path], tmp_path: Path) -> None:
    recipe = tomllib.loads(path_of(name).read_text(encoding="utf-8"))
    dataset = recipe["dataset"]["name"]
    skip_without(dataset)
    root = root_of(dataset)
    details = two_steps(build_config([toy_layer(recipe, root, train_queries(recipe, root))]), tmp_path)
    assert details["refresh_epochs"] == ([] if name.startswith("hycole") else [1])
    if not name.startswith("hycole"):
        assert details["behaviour"]["pool_size"] >= 1


@pytest.mark.parametrize("name", GRIDS)
def test_a_grids_cells_run_two_steps(name: str, root_of: Callable[[str], Path], tmp_path: Path) -> None:
    recipe = read_recipe(path_of(name))
    table = recipe.pop("compare")
    root = root_of("fashioniq")
    toy = toy_layer(recipe, root, train_queries(recipe, root))
    for row in (table["strategies"][0], table["strategies"][-1]):
        two_steps(build_config([toy, {"strategy": row, "loss": table["losses"][0], "seed": 0}]), tmp_path)
