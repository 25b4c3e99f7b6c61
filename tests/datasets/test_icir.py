"""i-CIR: values by hand on three instances with ties, two layouts of one benchmark, and what may be missing."""

import shutil

import pytest
import torch

from negbench.benchmarks.icir import Icir
from negbench.datasets.verify import verify
from negbench.errors import DataError
from negbench.metrics.average_precision import trapezoid_average_precision
from negbench.metrics.ragged import Ragged
from negbench.plugins.registry import build
from negbench.scoring.rankings import highest_ranks, ranks_of_rankings
from tests.datasets.test_dataset import block_of
from tests.runs import config_of, run

SCORES = {  # of each query, in the order of its instance's database: right images, two of hn/, another text
    "cup text a": (0.9, 0.5, 0.5, 0.7, 0.1, 0.1),
    "cup text b": (0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    "car text a": (0.2, 0.2, -0.1, 0.3, 0.2),
    "car text b": (0.1, 0.9, 0.1, 0.1, 0.1),
    "hat text a": (-0.9, 0.1, 0.1, 0.1),
}
AUTHORS = {  # by hand, the authors' rule in the order of the database
    "cup text a": (1 + (1 / 2 + 2 / 3) / 2) / 2.00001,
    "cup text b": (1 / 3) / 2 / 1.00001,
    "car text a": (1 / 2) / 2 / 1.00001,
    "car text b": 1 / 1.00001,
    "hat text a": (1 / 4) / 2 / 1.00001,
}
TIES = {"cup text a": (1 + 2 / 4) / 2, "cup text b": 1 / 6, "car text a": 1 / 4, "car text b": 1, "hat text a": 1 / 4}


@pytest.fixture(scope="module", params=["folder", "shards"])
def root(request, toys, tmp_path_factory):
    folder = tmp_path_factory.mktemp("icir")
    toys.icir(folder / "folder")
    if request.param == "shards":
        toys.icir_shards(folder / "shards", folder / "folder")
    return folder / request.param


def load(root, **options) -> Icir:
    return build(Icir, root=root, split="val", **options)


def test_values_by_hand(root):
    data = load(root)
    names = [f"{query.group} {query.text}" for query in data.queries]
    table = torch.full((5, len(data.images)), 9.0)  # images of other instances do not count
    for row, query in enumerate(data.queries):
        table[row, data.groups[query.group]] = torch.tensor(SCORES[names[row]])

    ranks = data.with_mistakes(data.rank(block_of(table), block=2), block_of(table))
    for metric, want in (("map", AUTHORS), ("map_ties", TIES)):
        values = data.per_query(ranks, [metric])[metric].values.tolist()
        assert dict(zip(names, values, strict=True)) == pytest.approx(want, abs=1e-12), metric
    assert data.summarise(ranks) == pytest.approx(
        {"map": sum(AUTHORS.values()) / 5, "map_ties": sum(TIES.values()) / 5}, abs=1e-12
    )
    mistakes = data.summarise_mistakes(ranks)
    assert mistakes["wrong_first"] == pytest.approx(3 / 5)
    assert mistakes["visual/wrong_at_10"] == pytest.approx((2 / 6 + 3 / 6 + 2 / 5 + 2 / 5 + 1 / 4) / 5)
    assert mistakes["unspecified/wrong_at_10"] == pytest.approx((2 / 6 + 2 / 6 + 2 / 5 + 2 / 5 + 2 / 4) / 5)
    assert "map" not in mistakes


def test_a_list_without_right_images_leaves_the_map_open(root):
    """Although a right image is the first in the database, and so the first of a tie."""
    data = load(root)
    last = {}  # query -> all images, the right ones last
    short = {}
    for query in data.queries:
        images = [data.images[column] for column in data.groups[query.group]]
        last[query.id] = sorted(images, key=lambda image, right=query.relevant: image in right)
        short[query.id] = last[query.id][:2]
    low = data.summarise(ranks_of_rankings(data, short))["map"]
    assert low == data.summarise(ranks_of_rankings(data, last))["map"]
    assert low < data.summarise(highest_ranks(data, short))["map"]


def test_trapezoids_by_hand():
    values = trapezoid_average_precision(Ragged.of([[3, 0], [], [1]]))
    assert values.tolist() == pytest.approx([(1 + (1 / 3 + 2 / 4) / 2) / 2.00001, 0, 0.25 / 1.00001], abs=1e-12)


def test_both_layouts_are_one_benchmark(root, toys, tmp_path):
    data = load(root)
    folder = build(Icir, **toys.icir(tmp_path), split="val")
    assert (data.queries, data.images) == (folder.queries, folder.images)
    for image in data.all_images:
        assert data.open_image(image).tobytes() == folder.open_image(image).tobytes(), image
    assert not list(root.rglob("*.png")) or (root / "query").is_dir()  # nothing is unpacked
    report = verify("icir", {"root": root})
    (split,) = report.splits
    assert (split.split, split.queries, sum(split.gallery.values())) == ("val", 5, 15)
    assert report.images == 18
    assert report.problems == []
    assert "1,883 of 202 are published" in " ".join(report.notes)


def test_an_image_of_the_database_needs_no_text_and_a_query_does(root, tmp_path):
    """As in the authors' reader: such an image answers no query of its instance."""
    copy = shutil.copytree(root, tmp_path / "copy")
    tables = copy / "annotations" if (copy / "annotations").is_dir() else copy
    before = load(copy, images=False)
    database = tables / "database_files.csv"
    queries = tables / "query_files.csv"
    database.write_text(f"{database.read_text()}database/cup/untitled.png,,cup\n")
    data = load(copy, images=False)
    assert set(data.images) - set(before.images) == {"database/cup/untitled.png"}
    assert [query.relevant for query in data.queries] == [query.relevant for query in before.queries]
    queries.write_text(f"{queries.read_text()}query/cup/q-cup.png,,cup\n")
    with pytest.raises(DataError, match="line 6: expected image,text,instance"):
        load(copy, images=False)


def test_what_is_missing_is_said(root, tmp_path, subtests):
    with pytest.raises(DataError, match=r"webdataset/query/\*.tar"):
        load(tmp_path)
    copy = shutil.copytree(root, tmp_path / "copy")
    tables = copy / "annotations" if (copy / "annotations").is_dir() else copy
    flawed = {
        "query_files.csv": (
            "query/cup/q-cup.png,text c,cup",
            "line 6: no image of instance 'cup' has the text 'text c'",
        ),
        "database_files.csv": ("database/cup/9.png,a, b,cup", "line 16: expected image,text,instance without other"),
    }
    for name, (line, message) in flawed.items():
        with subtests.test(name=name):
            text = (tables / name).read_text()
            (tables / name).write_text(f"{text}{line}\n")
            with pytest.raises(DataError, match=message):
                load(copy)
            (tables / name).write_text(text)
    last = max(copy.rglob("*.tar"), default=copy / "database/hat/other-hat.png")
    last.unlink()
    with pytest.raises(DataError, match="of 18 images are missing"):
        load(copy)
    assert load(copy, images=False).kinds == ("visual", "unspecified")
    if last.suffix == ".tar":
        last.write_bytes(b"no tar file")
        with pytest.raises(DataError, match=f"{last.name} is not a readable tar file"):
            load(copy)


def test_a_run_is_evaluated_on_it(root, tmp_path, toy_sets, document, run_command):
    folder = run(config_of(toy_sets, "all-corpus", "train.epochs=1"), tmp_path / "runs").folder
    metrics = document("evaluate", str(folder.path), "--dataset", "icir", "--data-root", str(root))["metrics"]
    assert list(metrics)[:2] == ["map", "map_ties"]
    assert 0 < metrics["map"] < 1
    assert 0 <= metrics["visual/wrong_at_10"] <= metrics["wrong_at_10"] <= 1
    assert run_command("data", "verify", "icir", "--data-root", str(root)).out.splitlines()[-1] == "clean"
