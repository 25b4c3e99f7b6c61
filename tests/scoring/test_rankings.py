"""Ready-made rankings: metrics of the scores they came from; cut lists count pessimistically; errors are clear."""

import dataclasses
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import negbench.metrics
from negbench.benchmarks import circo, cirr, fashioniq
from negbench.benchmarks.fashioniq import FashionIQOptions
from negbench.contracts import Query
from negbench.datasets.dataset import Dataset, columns_of
from negbench.errors import NegbenchError
from negbench.scoring.rankings import doubts, highest_ranks, ranks_of_rankings, read_rankings
from negbench.testing.datasets import toy_table


def make(kind: str, *, queries: int = 30, size: int = 70, seed: int = 0) -> Dataset:
    """Return a data set of random queries under a real protocol."""
    source = random.Random(seed)
    ids = [str(1000 + n) for n in range(size)]
    made_queries = []
    groups = {"dress": ids[: size // 2], "shirt": ids[size // 3 :]} if kind == "fashioniq" else {"all": ids}
    for n in range(queries):
        group = source.choice(list(groups))
        reference, target, *more = source.sample(groups[group], 6)
        query: dict[str, Any] = {"id": str(n), "reference": reference, "text": "x", "target": target, "group": group}
        if kind == "cirr":
            query["subset"] = (*more, target)
        if kind == "circo":
            query["relevant"] = (target, *more[: n % 4])
        made_queries.append(Query(**query))
    images, columns = columns_of(groups)
    split: dict[str, Any] = {"split": "val", "queries": made_queries, "images": images, "groups": columns}
    if kind == "cirr":
        return cirr.Cirr(card=cirr.card("val"), **split, content="c")
    if kind == "circo":
        return circo.Circo(card=circo.card(circo.CircoOptions()), **split, content="c")
    return fashioniq.FashionIQ(card=fashioniq.card(FashionIQOptions(), "val"), **split, content="c")


def block(scores: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda rows, columns: scores[rows][:, columns]


def lists_of(data: Dataset, scores: Tensor, cut: int | None = None) -> dict[str, list[str]]:
    """Return each query's gallery, best first, with the reference in it."""
    lists = {}
    for query, row in zip(data.queries, scores.tolist(), strict=True):
        columns = sorted(data.groups[query.group].tolist(), key=lambda c: -row[c])
        lists[query.id] = [data.images[c] for c in columns[:cut]]
    return lists


def metrics_of(data: Dataset, rankings: Any) -> dict[str, float]:
    return data.summarise(ranks_of_rankings(data, rankings))


def worst_completion(gallery: list[str], ranking: list[str], relevant: list[str]) -> list[str]:
    """Complete a ranking: irrelevant images first, then the relevant ones as the data set lists them."""
    irrelevant_rest = [image for image in gallery if image not in ranking and image not in relevant]
    relevant_rest = [image for image in relevant if image not in ranking]
    return [*ranking, *irrelevant_rest, *relevant_rest]


@pytest.mark.parametrize("cut", [0, 1, 7, 60])
@pytest.mark.parametrize("kind", ["cirr", "circo", "fashioniq"])
def test_what_a_list_leaves_out_comes_last(kind, cut):
    data = make(kind, seed=3)
    lists = lists_of(data, toy_table(data, 3, "negative"), cut)
    ranks = ranks_of_rankings(data, lists)
    for index, query in enumerate(data.queries):
        gallery = [data.images[c] for c in data.groups[query.group].tolist()]
        if kind == "cirr":
            gallery.remove(query.reference)
        ranking = [image for image in lists[query.id] if image in gallery]
        relevant = list(query.relevant) or [str(query.target)]
        order = worst_completion(gallery, ranking, relevant)
        relevant_ranks = [1 + order.index(image) for image in relevant]
        assert ranks.relevant_ranks.row(index).tolist() == relevant_ranks, f"query {query.id}"
        target_rank = 1 + order.index(str(query.target)) if query.target in ranking else len(gallery)
        assert int(ranks.target_rank[index]) == target_rank, f"query {query.id}"
        if kind == "cirr":
            subset = [image for image in ranking if image in query.subset]
            subset_rank = 1 + subset.index(str(query.target)) if query.target in subset else 5
            assert int(ranks.subset_rank[index]) == subset_rank, f"query {query.id}"


def test_submission_files_of_cirr_score_as_they_are():
    data = make("cirr", queries=50, size=90, seed=4)
    scores = toy_table(data, 4, "negative")
    files = json.loads(json.dumps(data.submission(block(scores))))
    recall = files["cirr-val-recall.json"]
    subset = files["cirr-val-recall_subset.json"]
    assert recall["metric"] == "recall"
    full = data.evaluate(scores)
    assert fixed_metrics(data, recall) == {name: full[name] for name in full if name.startswith("recall")}
    assert fixed_metrics(data, subset) == {name: full[name] for name in full if name.startswith("subset")}


def fixed_metrics(data: Dataset, rankings: Any) -> dict[str, float]:
    """Return the metrics that the best and the worst possible ranks agree on."""
    best = data.summarise(highest_ranks(data, rankings))
    return {name: value for name, value in metrics_of(data, rankings).items() if best[name] == value}


@pytest.mark.parametrize("kind", ["cirr", "circo", "fashioniq"])
@pytest.mark.parametrize("size", [16, 24])
def test_a_metric_is_known_if_no_completion_of_the_rankings_changes_it(kind, size):
    """Oracle: every order of the last four images of every ranking, by the full protocol."""
    data = make(kind, queries=12, size=size, seed=8)
    full = lists_of(data, toy_table(data, 8, "negative"))
    values: dict[str, set[tuple[float, ...]]] = {}
    for order in itertools.permutations(range(-4, 0)):
        lists = {}
        for query, images in full.items():
            lists[query] = images[:-4] + [images[index] for index in order]
        ranks = ranks_of_rankings(data, lists)
        for name, measured in data.per_query(ranks, data.metrics(ranks)).items():
            values.setdefault(name, set()).add(tuple(measured.values.tolist()))
    fixed = {name for name, variants in values.items() if len(variants) == 1}
    assert set(fixed_metrics(data, {query: images[:-4] for query, images in full.items()})) == fixed
    if (kind, size) != ("fashioniq", 16):
        assert 0 < len(fixed) < len(values)


def test_an_unlisted_answer_beside_a_listed_target_leaves_later_precision_open():
    data = make("circo", queries=8, size=40, seed=11)
    lists = {}
    for query in data.queries:
        wrong = [image for image in data.images if image not in (query.target, *query.relevant)]
        lists[query.id] = [str(query.target), *wrong[:6]]
    fixed = fixed_metrics(data, lists)
    assert set(fixed) == {"map_at_5", "recall_at_5", "recall_at_10", "recall_at_25", "recall_at_50"}


def spelled_lists(data: Dataset, change: Callable[[str], str]) -> dict[str, list[str]]:
    lists = lists_of(data, toy_table(data, 9, "negative"))
    return {query: [change(image) for image in images] for query, images in lists.items()}


SPELLINGS: dict[str, Callable[[str], str]] = {
    "ending": "{}.PNG".format,
    "folder": "./dev/{}.png".format,
    "backslash": r"dev\{}.jpg".format,
    "zeros": lambda image: image.zfill(12),
}


@pytest.mark.parametrize("change", SPELLINGS.values(), ids=SPELLINGS)
def test_ids_in_other_spellings_score_alike(change):
    data = make("cirr", seed=9)
    lists = spelled_lists(data, str)
    metrics = metrics_of(data, lists)
    assert metrics_of(data, spelled_lists(data, change)) == metrics
    assert metrics_of(data, {change(query): images for query, images in lists.items()}) == metrics


def test_an_id_that_fits_two_images_is_refused_with_an_example():
    data = make("circo", size=20)
    ids = ["a/7.jpg", "b/7.jpg", *data.images[2:]]
    names = dict(zip(data.images, ids, strict=True))
    queries = []
    for query in data.queries:
        relevant = tuple(names[image] for image in query.relevant)
        renamed = {"reference": names[query.reference], "target": names[str(query.target)], "relevant": relevant}
        queries.append(dataclasses.replace(query, **renamed))
    data = dataclasses.replace(data, images=ids, queries=queries)
    with pytest.raises(NegbenchError, match=r"image '7.jpg' .* whose ids are like 'a/7.jpg'$"):
        metrics_of(data, {q.id: ["7.jpg"] for q in queries})
    with pytest.raises(NegbenchError, match=r"image 'b/7\.jpg' occurs twice"):
        metrics_of(data, {q.id: ["b/7.jpg", "b/7.jpg"] for q in queries})
    with pytest.raises(NegbenchError, match="query '3' has two rankings; the second is called '03'"):
        metrics_of(data, {**{q.id: [] for q in queries}, "03": []})


def test_scores_and_trec_runs_rank_by_score_and_equal_scores_tie(tmp_path):
    data = make("circo", seed=10)
    table = (toy_table(data, 10, "negative") * 8).round()  # many ties
    scores = {}
    lines = []
    for query, row in zip(data.queries, table.tolist(), strict=True):
        scores[query.id] = dict(zip(data.images, row, strict=True))
        for rank, (image, score) in enumerate(scores[query.id].items()):
            lines.append(f"{query.id} Q0 {image} {rank} {score} tag")
    assert metrics_of(data, scores) == data.evaluate(table)
    for text in ("\n".join(lines), "\ufeff" + "\r\n".join(lines).replace(" ", "\t"), json.dumps(scores)):
        (tmp_path / "run.json").write_text(text)  # whatever the ending says
        assert metrics_of(data, read_rankings(tmp_path / "run.json")) == data.evaluate(table), text[:40]


def test_submission_file_of_circo_scores_as_it_is():
    data = make("circo", queries=40, size=120, seed=5)
    scores = toy_table(data, 5, "negative")
    lists = json.loads(json.dumps(data.submission(block(scores))))["circo-val.json"]
    assert isinstance(lists["0"][0], int)
    assert metrics_of(data, lists) == data.evaluate(scores)


ERRORS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no list": (lambda r: r.pop("7"), r"no ranking for query '7' \(1 of 30 queries of cirr val have none\)"),
    "unknown query": (lambda r: r.update({"99": []}), r"\(1 of 31 are not in cirr val, whose first query is '0'\)$"),
    "unknown image": (
        lambda r: r["3"].append("../x"),
        r"'\.\./x' in .* query '3' .*, 'all' of cirr val, whose ids are like '1000'$",
    ),
    "image twice": (lambda r: r["3"].append(r["3"][0]), r"the ranking of query '3': image '1\d\d\d' occurs twice"),
    "a string": (lambda r: r.update({"3": "1001"}), r"query '3': expected a list of image ids, .* got '1001'"),
    "a number": (lambda r: r.update({"3": 1001}), r"expected a list of image ids, .* got 1001"),
    "no id": (lambda r: r["3"].append(None), r"query '3': expected image ids, got None"),
    "true": (lambda r: r["3"].append(True), r"expected image ids, got True"),
    "no scores": (lambda r: r.update({"3": {"1001": "0.5"}}), r"query '3': expected a finite score for each"),
    "nan": (lambda r: r.update({"3": {"1001": float("nan")}}), r"query '3': expected a finite score for each"),
}


@pytest.mark.parametrize(("change", "message"), ERRORS.values(), ids=ERRORS)
def test_errors_are_one_clear_line(change, message):
    data = make("cirr")
    rankings: dict[str, Any] = lists_of(data, toy_table(data, 0, "negative"))
    change(rankings)
    with pytest.raises(NegbenchError, match=message) as caught:
        metrics_of(data, rankings)
    assert len(str(caught.value).splitlines()) == 1


def test_files_that_are_no_rankings_are_refused(tmp_path):
    data = make("fashioniq")
    lists = lists_of(data, toy_table(data, 0, "negative"))
    lists[next(q.id for q in data.queries if q.group == "dress")].append(data.images[-1])  # a shirt
    with pytest.raises(NegbenchError, match="is not in its gallery, 'dress' of"):
        metrics_of(data, lists)
    with pytest.raises(NegbenchError, match=r"rankings must map query ids to lists of image ids, got \[\]"):
        metrics_of(data, [])
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(NegbenchError, match=r"cannot read .*x\.json: .*: recreate the file"):
        read_rankings(tmp_path / "x.json")


def test_the_package_stays_light():
    code = "import sys, negbench.metrics; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'evaluate'"):
        _ = negbench.metrics.evaluate


# --- doubts ------------------------------------------------------------------------------------------------------


def run_file(folder: Path, score: Callable[[int], float], rank: Callable[[int], object] = lambda n: n) -> Path:
    """Write a TREC run of twelve queries with five images, whose scores and ranks are functions of their numbers."""
    lines = []
    for query in range(12):
        for n in range(1, 6):
            lines.append(f"q{query} Q0 i{n} {rank(n)} {score(n)} t")
    (folder / "run.trec").write_text("\n".join(lines))
    return folder / "run.trec"


RUNS: dict[str, tuple[Any, Any, str]] = {
    "distances": (lambda n: 0.1 * n, lambda n: n, "12 of 12 queries: are the scores distances?"),
    "one pair": (lambda n: [9, 8, 7, 6, 6.5][n - 1], lambda n: n, "12 of 12 queries: the scores count"),
    "right": (lambda n: -n, lambda n: n, ""),
    "equal ranks": (lambda n: n, lambda n: 0, ""),
    "no ranks": (lambda n: n, lambda n: "-", ""),
    "ties": (lambda n: [3, 3, 2, 2, 1][n - 1], lambda n: n, ""),
}


@pytest.mark.parametrize("case", RUNS)
def test_ranks_that_contradict_their_scores_are_noted(tmp_path, case, logged):
    score, rank, message = RUNS[case]
    read_rankings(run_file(tmp_path, score, rank))
    lines = [record.getMessage() for record in logged]
    if message:
        (line,) = lines
        assert message in line
        assert "the ranks and the scores of" in line
    else:
        assert lines == []


def scores_of(data: Dataset, score: Callable[[bool, int], float]) -> dict[str, dict[str, float]]:
    """Return scores of each query's gallery: a function of whether the image is the target, and of its number."""
    scores = {}
    for query in data.queries:
        images = [data.images[column] for column in data.groups[query.group].tolist()]
        scores[query.id] = {image: score(image == query.target, n) for n, image in enumerate(images)}
    return scores


DOUBTS: dict[str, tuple[Callable[[bool, int], float], str]] = {
    "distances": (lambda target, n: 0.0 if target else 1.0 + n, "30 of 30 queries the target has the lowest"),
    "constant": (lambda target, n: 0.5, "the scores of 30 of 30 queries are all equal"),
    "right": (lambda target, n: 100.0 if target else -float(n), ""),
    "by chance": (lambda target, n: float(n * 37 % 11), ""),
}


@pytest.mark.parametrize("case", DOUBTS)
def test_scores_that_mean_something_else_are_doubted(case):
    data = make("circo")
    score, message = DOUBTS[case]
    lines = doubts(data, scores_of(data, score))
    if message:
        (line,) = lines
        assert message in line
    else:
        assert lines == []


@pytest.mark.parametrize("case", DOUBTS)
@pytest.mark.parametrize("name", ["circo", "fashioniq"])
def test_a_table_whose_scores_mean_something_else_is_doubted(name, case, logged):
    """By `data.evaluate`, which computes what the scores give."""
    data = make(name)
    score, message = DOUBTS[case]
    table = torch.full((len(data.queries), len(data.images)), -1e3)
    for row, of_query in enumerate(scores_of(data, score).values()):
        for image, value in of_query.items():
            table[row, data.images.index(image)] = value
    metrics = data.evaluate(table)
    notes = [record.getMessage() for record in logged if record.getMessage().startswith("note: ")]
    if message:
        (note,) = notes
        assert message.split(" queries ")[-1] in note
    else:
        assert notes == []
    assert metrics == data.measure(block(table))


def test_lists_in_reverse_are_doubted():
    data = make("fashioniq")
    lists = {query: sorted(row, key=row.get) for query, row in scores_of(data, DOUBTS["right"][0]).items()}
    (line,) = doubts(data, lists)
    assert "or the rankings in reverse" in line
    best_first = {query: row[::-1] for query, row in lists.items()}
    assert doubts(data, best_first) == []
