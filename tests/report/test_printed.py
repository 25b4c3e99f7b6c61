"""A leader table for a paper: what it holds, what is bold, and that TeX reads it."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from negbench.display import Grid
from negbench.errors import UnknownNameError
from negbench.report.finish import _grid
from negbench.report.tables import Table, paper_table

ROWS = [
    ("20", "top-k", "info-nce", "worse", "50.1 ± 0.2", "9.10 ± 0.10"),
    ("20", "qure_x", "info-nce", "best", "52.0 ± 0.3", "8.00 ± 0.10"),
    ("20", "top-k", "triplet", "equal", "9.9 ± 0.2", "7.00 ± 0.10"),
    ("20", "qure_x", "triplet", "highest", "10.0 ± 0.3", "7.00 ± 0.10"),
    ("120", "top-k", "triplet", "highest", "61.0 ± 0.2", "-"),
    ("120", "qure_x", "triplet", "worse", "60.0 ± 0.2", "6.00 ± 0.10"),
]
FRAME = pd.DataFrame(ROWS, columns=["epochs", "strategy", "loss", "against the best", "R@10", "R@1"])
FRAME = FRAME.assign(backbone="b_1", negatives="16", **{"behind the best": "+1.00 [0.10, 1.90]"})
TABLE = Table("table", "Leader table: percent; R@10 behind the best, 95 %", FRAME, best=("R@1", "R@10"))


def test_the_best_of_each_block_is_bold_and_what_is_constant_is_in_the_caption():
    text = paper_table(TABLE, "latex")
    body = text.split(r"\midrule", 1)[1].split(r"\bottomrule")[0]
    rows = [line.removesuffix(r" \\").split(" & ") for line in body.strip().splitlines() if "&" in line]
    labels = [[epochs, loss, strategy.replace("_", r"\_")] for epochs, strategy, loss, *_ in ROWS]
    assert [row[:3] for row in rows] == labels
    assert re.findall(r"\\textbf{([\d.]+)", body) == ["52.0", "10.0", "61.0"]
    assert body.count(r"\midrule") == 2
    assert r"epochs & loss & strategy & R@10 & behind the best \\" in text
    (caption,) = re.findall(r"\\caption{(.*)}", text)
    assert caption == (
        r"Percent; R@10 behind the best, 95 \%; bold: the highest R@10 between two lines; all rows: backbone b\_1, "
        r"negatives 16."
    )


def test_a_difference_that_an_earlier_look_decided_is_marked():
    """The printed means go on: the difference is no more that of the means beside it."""
    words = ["worse (after 3 seeds)", *FRAME["against the best"][1:]]
    early = replace(TABLE, frame=FRAME.assign(**{"against the best": words}))
    assert paper_table(early, "latex").count("+1.00 [0.10, 1.90] (after 3 seeds)") == 1
    assert paper_table(early, "markdown", ["against the best", "behind the best"]).count("(after 3 seeds)") == 1


def test_columns_and_budgets_are_chosen():
    text = paper_table(TABLE, "markdown", ["R@1", "R@10"], [20])
    about = text.splitlines()[0]
    assert about.startswith("Percent; bold: the highest R@1 and R@10 between two lines; all rows: backbone b_1,")
    one_block = replace(TABLE, frame=FRAME[:2].assign(**{"R@1": "7.0"}))
    assert "; bold: the highest R@10; all rows" in paper_table(one_block, "markdown", ["R@1", "R@10"])
    assert "bold" not in paper_table(one_block, "markdown", ["R@1"])
    assert "| loss | strategy | R@1 | R@10 |" in text
    assert "| info-nce | top-k | **9.10 ± 0.10** | 50.1 ± 0.2 |" in text
    assert "| triplet | top-k | 7.00 ± 0.10 |" in text  # all alike: none is bold
    with pytest.raises(UnknownNameError, match="--columns 'R@100': did you mean 'R@10'"):
        paper_table(TABLE, "latex", ["R@100"])
    with pytest.raises(UnknownNameError, match="--epochs '30': did you mean '20'"):
        paper_table(TABLE, "latex", (), [30])


def test_the_terminal_has_one_number_of_negatives_below_the_table():
    def grid(frame: pd.DataFrame) -> Grid:
        return _grid(replace(TABLE, frame=frame, folded=("backbone", "negatives")), Path("t.csv"))

    one_number = grid(FRAME)
    several = grid(FRAME.assign(negatives=list("123456")))
    assert one_number.caption == "backbone b_1, negatives 16 per query and step"
    assert several.caption == "backbone b_1, negatives: per query and step"
    assert set(several.frame) - set(one_number.frame) == {"negatives"}


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex")
def test_tex_reads_it(tmp_path):
    odd = FRAME.assign(strategy=[r"a\b", "50 % & more", "~^", "$x$ #1", "{q}", "a_b"])
    odd = odd.assign(loss=["bradley-terry", "info-nce"] * 3, negatives=["1", "52.9", "1"] * 2)  # as wide as most are
    text = paper_table(Table("table", "Leader: it's 5 %", odd, best=("R@10",)), "latex")
    document = r"\documentclass{article}\usepackage{booktabs}\begin{document}" + text + r"\end{document}"
    (tmp_path / "d.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "d.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout


def test_the_command_prints_it_and_refuses_what_has_no_effect(
    compared, tmp_path, run_command, expect_error, mistakes, subtests
):
    where = ["--runs-dir", str(compared)]
    text = run_command("report", "small", "--latex", "--columns", "R@10", "--out", str(tmp_path / "t.tex"), *where).out
    assert text.startswith(r"\begin{table}")
    assert (tmp_path / "t.tex").read_text(encoding="utf-8") == text.removesuffix("\n")
    for options, problem in mistakes["report"].items():
        with subtests.test(options):
            expect_error(["report", "small", *options.split(), *where], problem)


def test_the_page_shortens_names_of_worlds_and_leaves_out_those_that_points_tell():
    worlds = {"twins=1": "vectors@twins1-600x240-742e2b05", "twins=4": "vectors@twins4-600x240-435f1b3f"}
    rows = [(point, world, 1) for point, world in worlds.items()] * 2
    frame = pd.DataFrame(rows, columns=["point", "dataset", "R@10"])
    assert list(Table("table", "", frame).visible_frame) == ["point", "R@10"]
    visible = Table("table", "", frame.drop(columns="point")).visible_frame
    assert list(visible["dataset"]) == ["vectors@twins1", "vectors@twins4"] * 2
    of_lr = frame.assign(point=["lr=1", "lr=1", "lr=2", "lr=2"])  # both worlds at each point
    assert list(Table("table", "", of_lr).visible_frame) == ["point", "dataset", "R@10"]


@pytest.mark.parametrize(
    ("cells", "visible"),
    [
        (["-", "-", "-"], False),
        (["", "", ""], False),
        (["-", "", "-"], False),
        (["-", "", "0.5"], True),
        (["", "", 0], True),
    ],
    ids=str,
)
def test_a_column_without_any_value_is_hidden(cells, visible):
    frame = pd.DataFrame({"strategy": ["a", "b", "c"], "R@10": cells})
    assert ("R@10" in Table("table", "", frame).visible_frame) == visible
