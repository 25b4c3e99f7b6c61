"""`negbench init`: present and missing files; its recipe in an audit, a comparison and mined negatives."""

import json
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from negbench.backbones.precomputed import Precomputed
from negbench.settings.layers import read_recipe

MANY = "reference,text,target\n" + "".join(f"p{n},more,p{n + 1}\n" for n in range(15))


pytestmark = pytest.mark.usefixtures("own_registry")


def embeddings(folder: Path, images: int, queries: int, width: int) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(1)
    names = [f"x{number}" for number in range(images)]
    texts = [f"change {number}" for number in range(50)]
    np.savez(folder / "pictures.npz", ids=np.array(names), features=rng.normal(size=(images, width)).astype(np.float32))
    np.savez(folder / "words.npz", texts=np.array(texts), clip=rng.normal(size=(50, width)).astype(np.float32))
    columns = {"reference": names, "text": texts, "target": names}
    frame = pd.DataFrame({column: rng.choice(values, size=queries) for column, values in columns.items()})
    frame.to_csv(folder / "queries.csv", index=False)
    return folder


def commands_in(out: str) -> list[list[str]]:
    """Return the commands that `init` or `embed` prints as what to do next, without `negbench`."""
    return [shlex.split(line)[1:] for line in out.splitlines() if line.startswith("  negbench ")]


def test_embeddings_make_a_recipe_of_precomputed(tmp_path, run_command):
    folder = embeddings(tmp_path / "vectors", 60, 40, 8)
    out, _ = run_command("init", folder)
    assert "val queries are few for a margin of 1 point" in out
    assert "of 60 images that its rows name" in out
    recipe = read_recipe(folder / "recipe.toml")
    assert recipe["train"]["lr"] == Precomputed.recommended["lr"]
    assert recipe["plugins"] == [str(folder / "my_strategy.py")]
    files = {"images": str(folder / "pictures.npz"), "texts": str(folder / "words.npz")}
    assert recipe["backbone"] == {"name": "precomputed", **files}
    audit, *_ = commands_in(out)
    out, err = run_command(*audit, "--json")
    text = (folder / "recipe.toml").read_text(encoding="utf-8")
    single = next(line for line in text.splitlines() if "--name single" in line)
    assert single.endswith(f",dqe,{json.loads(out)['window']}")  # for training without the batch
    assert recipe["compare"]["strategies"][:2] == ["in-batch", "in-batch+all-corpus"]
    assert recipe["loss"] == {"name": "info-nce"}
    assert "note: backbone" not in err  # no note for a user's own vectors


MISSING = (
    ({"t.jsonl": "[" * 100_000}, "t.jsonl: line 1 is not valid JSON"),
    ({"t.csv": MANY, "p0.png": "", "p1.png": ""}, "images are missing below"),
)


def test_what_is_missing_is_one_line(subtests, tmp_path, run_command, mistakes):
    for number, (files, message) in enumerate([*mistakes["init"]["cases"], *MISSING]):
        with subtests.test(number=number):
            folder = tmp_path / str(number)
            folder.mkdir()
            for name, text in files.items():
                (folder / name).write_text(text or "x", encoding="utf-8")
            out, err = run_command("init", folder, code=2)
            assert message in err
            assert err.count("\n") == 1
            assert "missing" not in out  # reported only once
            assert ("no triplets:" in err) == (message == "cannot start yet: no triplets: save a .jsonl")
            assert {file.name for file in folder.iterdir()} == set(files)


@pytest.mark.parametrize("columns", ["", "reference=Bild,text=Wunsch,target=Ziel"], ids=["usual", "named"])
def test_a_table_with_the_columns_is_the_one_whose_rows_are_wrong(tmp_path, run_command, columns):
    header = "Bild;Wunsch;Ziel" if columns else "reference;text;target"
    (tmp_path / "export.csv").write_text(f"{header}\na.png;rot;b.png,c.png\n", encoding="utf-8")
    (tmp_path / "shops.csv").write_text("name;place\nMüller;Köln\n", encoding="utf-8")
    _, err = run_command("init", tmp_path, *(["--columns", columns] if columns else []), code=2)
    assert "export.csv: line 2, column 'target'" in err
    assert "shops.csv" not in err
    (tmp_path / "export.csv").unlink()
    _, err = run_command("init", tmp_path, code=2)
    assert "shops.csv: no column reference" in err


def test_embeddings_that_lack_a_text_name_it(tmp_path, expect_error):
    folder = embeddings(tmp_path / "w", 40, 30, 8)
    np.savez(folder / "words.npz", texts=np.array(["change 0"]), clip=np.zeros((1, 8), np.float32) + 1)
    expect_error(["init", str(folder)], "cannot start yet: words.npz lacks")
    np.savez(folder / "words.npz", captions=np.array(["change 0"]), vectors=np.zeros((1, 8), np.float32) + 1)
    assert expect_error(["init", str(folder)], "no embeddings of texts: save them").endswith(
        "npz has captions, vectors"
    )


def test_mine_wants_files_or_a_data_set(tmp_path, expect_error, mistakes, subtests):
    base = ["mine", "--strategy", "qure", "--out", str(tmp_path / "n.parquet")]
    for more, message in mistakes["mine-from"].items():
        with subtests.test(more):
            expect_error([*base, *more.split()], message)


def test_a_strategy_that_init_did_not_write_is_not_put_into_the_recipe(pictures, run_command):
    """A received folder may bring code; one that init wrote stays in the recipe, edited or not."""
    (pictures / "my_strategy.py").write_text("raise SystemExit('ran')\n", encoding="utf-8")
    for _ in range(2):  # the second time it finds its own recipe
        out = run_command("init", pictures).out
        assert "the recipe leaves out my_strategy.py, which init did not write here: read it before" in out
        assert "plugins" not in read_recipe(pictures / "recipe.toml")
        audit, *_ = commands_in(out)
        run_command(*audit, "--queries", "5")
    (pictures / "my_strategy.py").unlink()
    for _ in range(2):
        run_command("init", pictures)
        assert read_recipe(pictures / "recipe.toml")["plugins"] == [str(pictures / "my_strategy.py")]
        with (pictures / "my_strategy.py").open("a", encoding="utf-8") as file:
            file.write("# edited\n")


def test_control_characters_in_names_reach_neither_terminal_nor_recipe(pictures, run_command, expect_error):
    strange = pictures.rename(pictures.with_name("a\nb\x1b[31m\x7f"))
    (strange / "queries.jsonl").rename(strange / "q\x1b]0;x\x07\n.jsonl")
    assert not {"\x1b", "\x7f", "\x07"} & {*"".join(run_command("init", strange))}
    assert read_recipe(strange / "recipe.toml")["dataset"]["root"] == str(strange)
    assert "\x1b" not in expect_error(["init", str(strange / "\x1b[31m")], "no such folder")


def test_ids_match_whatever_the_separator_and_a_mismatch_shows_both_sides(
    subtests, tmp_path, run_command, expect_error
):
    folder = embeddings(tmp_path / "vectors", 60, 40, 8)
    table = pd.read_csv(folder / "queries.csv")
    for column in ("reference", "target"):
        table[column] = "img\\" + table[column]
    table.to_csv(folder / "queries.csv", index=False)
    arrays = dict(np.load(folder / "pictures.npz"))
    for start, fits in (("old/", False), ("img\\", True), ("", True)):
        with subtests.test(start=start, fits=fits):
            np.savez(folder / "pictures.npz", **{**arrays, "ids": np.char.add(start, arrays["ids"])})
            if fits:
                run_command("init", folder)
            else:
                assert "; it has 'old/x0'; embed each id" in expect_error(["init", str(folder)], "the first: 'img/x")


def test_texts_saved_as_ids_are_named(tmp_path, expect_error):
    folder = embeddings(tmp_path / "vectors", 60, 40, 8)
    words = np.load(folder / "words.npz")
    np.savez(folder / "texts.npz", ids=words["texts"], embeddings=words["clip"])
    (folder / "words.npz").unlink()
    line = expect_error(["init", str(folder)], "texts.npz: its names are 'ids', which are images'")
    assert "no embeddings of texts" not in line
