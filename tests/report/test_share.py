"""What is meant for others holds names of files, and neither folders nor the user's name."""

import json
import shutil
from pathlib import Path

import pytest

from negbench.cli.main import run as negbench
from negbench.grid.axes import Axes
from negbench.grid.axis import dials_of, parse_dial, plain_dials, points_of, short
from negbench.machine.files import flaws_in, without_folders
from tests.runs import flags_of
from tests.vector_files import write_vectors

SECRET = b"alice.secretname"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("/home/alice/x.npz", "x.npz"),
        ("~/x.npz", "x.npz"),
        ("../../alice/my vectors/x.npz", "x.npz"),
        ("data/x.parquet", "x.parquet"),
        ("a/b/weights", "weights"),
        ("precomputed(images=../a/i.npz, texts=/b/t.npz)", "precomputed(images=i.npz, texts=t.npz)"),
        ("lavis:/home/alice/blip.pth,tower=b/c.pth", "lavis:blip.pth,tower=c.pth"),
        ("openai/clip-vit-base-patch32", "openai/clip-vit-base-patch32"),
        ("timm/vit_base_patch32_clip_224.openai@main", "timm/vit_base_patch32_clip_224.openai@main"),
        ("https://host/a/b/c", "https://host/a/b/c"),
        ("R@10 +/- 1", "R@10 +/- 1"),
        ("", ""),
        ("/", "/"),
    ],
)
def test_paths_are_cut_and_other_texts_are_not(text, want):
    assert without_folders(text) == want


def test_a_sentence_keeps_its_other_words():
    text = "cannot read '/home/alice/x.npz': no such file, see a/b/c.txt"
    assert without_folders(text, prose=True) == "cannot read 'x.npz': no such file, see c.txt"


def test_labels_that_would_become_equal_stay_apart():
    labels = ["p(images=/a/x.npz)", "p(images=/b/x.npz)", "p(images=/a/y.npz)", "q"]
    cut = short(labels)
    assert len({*cut.values()}) == 4
    assert [name for name in cut.values() if "/" in name] == []
    assert cut["p(images=/a/y.npz)"] == "p(images=y.npz)"
    assert short(labels[:2]) == {label: cut[label] for label in labels[:2]}


def test_points_that_differ_in_a_path_have_names_of_files():
    """The settings keep the paths; two files of one name stay apart."""
    dial = parse_dial("backbone.texts=/home/alice/t.npz,/home/bob/t.npz,../x/u.npz")
    axes = Axes((), (dial, parse_dial("dataset.twins=1,2")))
    columns = [axes.columns({dial.key: text, "dataset.twins": twins}) for text, twins in points_of(axes.axes)]
    written = json.dumps([columns, plain_dials(axes.axes)])
    assert [name for name in ("alice", "bob", "/") if name in written] == []
    assert len({*map(str, columns)}) == 6
    assert columns[4] == {"backbone.texts": "u.npz", "dataset.twins": 1}
    read = dials_of({"dials": plain_dials(axes.axes)})
    assert [{axis.column: axis.table_value(axis.values[0]) for axis in read}] == columns[:1]


@pytest.fixture(scope="module")
def proj(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compute a comparison whose paths hold a user's name, relative ones and absolute ones."""
    proj = tmp_path_factory.mktemp("home") / SECRET.decode() / "proj"
    first, second, third, *others = write_vectors(proj / "data")
    relative = [text.replace(f"{proj}/", f"../../{SECRET.decode()}/proj/") for text in (first, second, third)]
    sets = [*relative, *others, "train.epochs=2", "train.lr=0.03"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(proj)
        (texts,) = [text for text in sets if text.startswith("backbone.texts=")]
        sets.remove(texts)
        flags = flags_of(sets)
        grid = ["compare", "--strategies", "qure,in-batch", "--seeds", "1", "--lr", "fixed", "--name", "c"]
        shutil.copy(proj / "data" / "texts.npz", proj / "data" / "others.npz")
        dial = ["--dial", f"{texts},{proj}/data/others.npz"]
        assert negbench([*grid, *dial, *flags, "--runs-dir", "runs"]) == 0
        for form in (["--card"], ["--latex", "--out", "runs/c/t.tex"], ["--markdown", "--out", "runs/c/t.md"]):
            assert negbench(["report", "c", *form, "--runs-dir", "runs"]) == 0, " ".join(form)
        assert negbench(["report", "c", "--share", "copy", "--runs-dir", "runs"]) == 0
    return proj


def test_nothing_that_is_meant_for_others_names_a_folder(proj):
    staying_at_home = {"mlflow.json", "mlflow-summary.json"}
    files = [path for path in (proj / "runs" / "c").rglob("*") if path.is_file() and path.name not in staying_at_home]
    files += [path for path in (proj / "copy").rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"card.json", "card.md", "index.html", "t.tex", "t.md", "config.json", "table.csv"} <= names
    assert [str(path) for path in files if SECRET in path.read_bytes()] == []
    assert any(SECRET in path.read_bytes() for path in (proj / "runs").rglob("config.json"))  # the test's own eyes


def test_a_shared_copy_is_whole_and_reported_with_the_same_table(proj, tmp_path, run_command):
    shutil.copytree(proj / "copy", tmp_path / "theirs")
    for folder in (tmp_path / "theirs").iterdir():
        assert flaws_in(folder).damaged == [], folder.name
    run_command("report", "c", "--runs-dir", tmp_path / "theirs")
    table = Path("c", "report", "tables", "table.csv")
    of_the_copy = (tmp_path / "theirs" / table).read_text(encoding="utf-8")
    assert of_the_copy == (proj / "runs" / table).read_text(encoding="utf-8")
    cells = json.loads((tmp_path / "theirs" / "c" / "comparison.json").read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        assert (tmp_path / "theirs" / cell["run"] / "ranks.parquet").exists(), cell["run"]


def test_a_folder_that_exists_is_not_shared_into(proj, tmp_path, run_command):
    shutil.copytree(proj / "copy", tmp_path / "theirs")
    printed = run_command("report", "c", "--share", tmp_path / "theirs", "--runs-dir", proj / "runs", code=2)
    assert "exists: name another folder" in printed.err
