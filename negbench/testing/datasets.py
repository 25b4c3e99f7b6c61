"""The conformance suite of data sets: what training, scoring and verifying rely on, checked on a small copy."""

import dataclasses
import inspect
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from negbench.datasets.dataset import Dataset, FolderOptions, QueryRanks
from negbench.datasets.submission import HasTestServer, submittable
from negbench.errors import DataError, NegbenchError
from negbench.files.reader import note_files
from negbench.plugins.registry import build, make_options, option_defaults, options_class
from negbench.testing.worlds import global_generators

SIGNS = ("mixed", "negative", "ties")


def toy_table(data: Dataset, seed: int, sign: str = "mixed") -> Tensor:
    """[Q, N] float32 scores: "mixed" in sign, all "negative", or whole numbers with "ties"."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(data.queries), len(data.images))
    if sign == "ties":
        return torch.randint(-2, 2, shape, generator=generator).float()
    return torch.randn(shape, generator=generator) - (9 if sign == "negative" else 0)


def answer_key(data: Dataset) -> Tensor:
    """[Q, N] scores that rank the target first, then every other relevant image, then the rest."""
    scores = torch.full((len(data.queries), len(data.images)), -3.0)
    for row, query in enumerate(data.queries):
        for image in query.relevant:
            if image in data.column_of:
                scores[row, data.column_of[image]] = -2.0
    scores[torch.arange(len(scores)), data.target_columns] = -1.0
    return scores


def loop_rank(data: Dataset, scores: Tensor, row: int) -> int:
    """Rank the target by a loop over its gallery; among equal scores it comes last."""
    query = data.queries[row]
    gallery = [data.images[column] for column in data.groups[query.group].tolist()]
    rivals = {*gallery} - {query.target} - ({query.reference} if data.card.exclude_reference else set())
    target_score = float(scores[row, data.target_columns[row]])
    return 1 + sum(float(scores[row, data.column_of[image]]) >= target_score for image in rivals)


def _rank(data: Dataset, scores: Tensor, block: int = 1024) -> QueryRanks:
    return data.rank(lambda rows, columns: scores[rows][:, columns], block)


class DatasetTestCase:
    """Subclass it as ``TestX`` with the fixtures `dataset` and `options`; tests may damage its files.

    The copy that `options` load needs a dozen images and two training targets; its `val` split has targets.
    """

    splits: ClassVar[tuple[str, ...]] = ("train", "val")  # leave "train" out where there is nothing to train on
    ranked: ClassVar[bool] = True  # False if the metrics do not follow from ranks

    @pytest.fixture
    def dataset(self) -> type[Dataset]:
        """The class under test."""
        raise NotImplementedError("define the fixture `dataset` in your test class")

    @pytest.fixture
    def options(self) -> Mapping[str, Any]:
        """Options of `load` that find a small copy with images, usually ``{"root": tmp_path}``."""
        raise NotImplementedError("define the fixture `options` in your test class")

    @pytest.fixture
    def load(self, dataset: type[Dataset], options: Mapping[str, Any]) -> Callable[..., Dataset]:
        """Loader of the copy that accepts further options."""

        def load_copy(**further_options: Any) -> Dataset:
            return build(dataset, **{**options, **further_options})

        return load_copy

    # --- what it is ----------------------------------------------------------------------------------------------

    def test_options_have_defaults_and_are_documented(self, dataset: type[Dataset]) -> None:
        """The options of every data set, and each of its own named in its dataclass's docstring."""
        declared = options_class(dataset)
        assert issubclass(declared, FolderOptions)
        text = "\n".join(inspect.getdoc(base) or "" for base in declared.__mro__)
        for name, default in option_defaults(dataset).items():
            assert default is not dataclasses.MISSING, name
            assert re.search(rf"^ +(\w+, )*{name}(, \w+)*: ", text, re.MULTILINE), f"{name} is not documented"

    def test_card(self, load: Callable[..., Dataset], dataset: type[Dataset], options: Mapping[str, Any]) -> None:
        """The card describes the benchmark and names every metric once; one known in advance needs no file."""
        with note_files() as files:
            card = load(images=False).card
        card_in_advance = dataset.made_card(make_options(dataset, options))
        assert card_in_advance is None or (card_in_advance == card and not files)
        for field in ("name", "protocol", "version", "source", "licence", "gallery", "text_template"):
            assert getattr(card, field), field
        assert len(set(card.metrics)) == len(card.metrics)

    def test_loading_is_repeatable(self, load: Callable[..., Dataset]) -> None:
        """With or without images: the same queries, galleries and identity per split; no global generator moves."""
        assert len({load(split=split, images=False).identity for split in self.splits}) == len(self.splits)
        for split in self.splits:
            before = global_generators()
            data = load(split=split)
            again = load(split=split, images=False)
            assert global_generators() == before
            assert (data.queries, data.images, data.content) == (again.queries, again.images, again.content)
            assert data.identity == again.identity
            assert re.fullmatch(rf"{data.card.name}@{re.escape(data.card.protocol)}-[0-9a-f]{{8}}", data.identity)
            assert again.files is None
            assert pickle.loads(pickle.dumps(data)).identity == data.identity

    def test_queries(self, load: Callable[..., Dataset]) -> None:
        """Texts are stripped and not empty; relevant images are listed once, the target first."""
        for split in self.splits:
            data = load(split=split, images=False)
            for query in data.queries:
                assert query.text == query.text.strip() != ""
                assert query.target is not None
                assert query.reference in data.all_images
                assert len(set(query.relevant)) == len(query.relevant)
                assert query.relevant[:1] in ((), (query.target,))
                assert query.reference not in query.subset

    # --- files ---------------------------------------------------------------------------------------------------

    def test_every_image_opens(self, load: Callable[..., Dataset]) -> None:
        """Gallery and reference images decode; a data set without images refuses `images=True`."""
        if not load(images=False).has_images:
            with pytest.raises(NegbenchError, match="has no images") as caught:
                load(images=True)
            assert len(str(caught.value).splitlines()) == 1
            return
        for split in self.splits:
            data = load(split=split)
            assert not data.partial
            for image in data.all_images:
                assert min(data.open_image(image).size) > 0

    def test_a_missing_image(self, load: Callable[..., Dataset]) -> None:
        """An empty file is missing: a one-line error; `allow_missing` drops what needs it and changes the identity."""
        whole = load(split="val")
        if not whole.has_images:
            pytest.skip("there are no image files")
        assert whole.files is not None
        lost = str(whole.queries[0].target)
        whole.files.path(lost).write_bytes(b"")
        with pytest.raises(DataError) as caught:
            load(split="val")
        assert re.search(r"\b1 of .*empty file", str(caught.value))
        assert "--allow-missing" in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
        data = load(split="val", allow_missing=True)
        assert (data.missing, data.partial) == ((lost,), True)
        assert data.identity != whole.identity
        assert lost not in data.all_images
        for query in data.queries:
            assert lost not in (query.reference, query.target, *query.relevant, *query.subset)

    def test_an_unknown_split(self, load: Callable[..., Dataset]) -> None:
        """An unknown split raises a one-line error that quotes it."""
        with pytest.raises(NegbenchError, match="'no-such-split'") as caught:
            load(split="no-such-split")
        assert len(str(caught.value).splitlines()) == 1

    def test_an_empty_folder(self, load: Callable[..., Dataset], options: Mapping[str, Any], tmp_path: Path) -> None:
        """An empty folder raises a one-line error that names it and the source of the data."""
        if "root" not in options:
            pytest.skip("read from a file")
        (tmp_path / "empty").mkdir()
        with pytest.raises(DataError) as caught:
            load(root=tmp_path / "empty")
        assert str(tmp_path / "empty") in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1

    # --- scoring -------------------------------------------------------------------------------------------------

    @pytest.fixture
    def val(self, load: Callable[..., Dataset]) -> Dataset:
        """The reported split."""
        if not self.ranked:
            pytest.skip("ranks do not judge this data set")
        return load(split="val", images=False)

    def test_the_right_answers_score_one(self, val: Dataset) -> None:
        """Every metric is 1, with all scores negative and the reference on top where it is not ranked."""
        scores = answer_key(val)
        if val.card.exclude_reference:
            in_corpus = val.reference_columns >= 0
            scores[in_corpus.nonzero()[:, 0], val.reference_columns[in_corpus]] = 9.0
        metrics = val.evaluate(scores)
        assert metrics == pytest.approx(dict.fromkeys(metrics, 1.0), abs=2e-5)  # i-CIR's recall step is 1 / (n + 1e-5)
        assert val.card.main in metrics
        assert [name for name in val.card.metrics if name in metrics] == [n for n in metrics if n in val.card.metrics]
        assert set(metrics) <= set(val.card.metrics) or val.partial

    def test_a_constant_scorer_finds_nothing(self, val: Dataset) -> None:
        """Ties count against the model: no target is first."""
        ranks = _rank(val, torch.zeros(len(val.queries), len(val.images)))
        alone = ranks.gallery_size == ranks.relevant_ranks.lengths
        assert (ranks.target_rank[~alone] > 1).all()
        assert all(0 <= value <= 1 for value in val.summarise(ranks).values())

    def test_ranks_are_those_of_a_loop(self, val: Dataset) -> None:
        """Ranks equal a loop's for every block size; a data set of classes ranks the target class's best image."""
        for sign in SIGNS:
            scores = toy_table(val, 3, sign)
            ranks = _rank(val, scores)
            small = _rank(val, scores, block=2)
            loops = torch.tensor([loop_rank(val, scores, row) for row in range(len(val.queries))])
            listed = ranks.relevant_ranks
            best = torch.tensor([int(listed.row(row).min()) for row in range(len(val.queries))])
            assert torch.equal(ranks.target_rank, loops) or torch.equal(ranks.target_rank, best)
            assert torch.equal(small.target_rank, ranks.target_rank)
            assert torch.equal(small.relevant_ranks.values, listed.values)

    def test_per_query_values_average_to_the_metric(self, val: Dataset) -> None:
        """Per-query values average to the metric for all queries, some, and a stored table of ranks."""
        ranks = _rank(val, toy_table(val, 5, "ties"))
        some = ranks.select(range(0, len(ranks), 2))
        for table in (ranks, some, QueryRanks.from_frame(ranks.to_frame())):
            reported = val.summarise(table)
            per_query = val.per_query(table, list(reported))
            assert list(per_query) == list(reported)
            for name, value in reported.items():
                assert per_query[name].mean == pytest.approx(value, abs=1e-9), name
                assert len(per_query[name].values) == len(per_query[name].rows)
        assert val.summarise(QueryRanks.from_frame(ranks.to_frame())) == val.summarise(ranks)

    def test_a_part_is_scored_as_those_queries(self, val: Dataset) -> None:
        """Galleries stay whole."""
        rows = list(range(0, len(val.queries), 2))
        scores = toy_table(val, 7)
        part = val.with_queries(rows, "every other one")
        assert part.evaluate(scores[rows]) == val.summarise(_rank(val, scores).select(rows))
        assert part.identity != val.identity

    def test_submission(self, val: Dataset) -> None:
        """Written where there is a test server; else the refusal is one line."""
        scores = toy_table(val, 1)
        if isinstance(val, HasTestServer):
            files = val.submission(lambda rows, columns: scores[rows][:, columns])
            for lists in files.values():
                assert {query.id for query in val.queries} <= set(lists)
        else:
            with pytest.raises(DataError, match="no test server"):
                submittable(val)

    # --- training ------------------------------------------------------------------------------------------------

    @pytest.fixture
    def train(self, load: Callable[..., Dataset]) -> Dataset:
        """The training split."""
        if "train" not in self.splits:
            pytest.skip("this data set has no train split")
        return load(split="train", images=False)

    def test_dev_part(self, train: Dataset) -> None:
        """No target is in both parts, in any epoch."""
        rest, dev = train.split_dev(0.4, 0)
        dev_targets = {query.target for query in dev.queries}
        assert len(rest.queries) + len(dev.queries) == len(train.queries)
        for epoch in range(3):
            assert dev_targets.isdisjoint({query.target for query in rest.at_epoch(epoch, 0).queries})

    def test_epochs(self, train: Dataset) -> None:
        """An epoch is a function of its number and the seed; the images stay, so that feature rows stay valid."""
        before = global_generators()
        for epoch in range(3):
            drawn = train.at_epoch(epoch, 11)
            assert drawn.images == train.images
            assert set(drawn.all_images) <= set(train.all_images)
            assert len(drawn.queries) == len(train.queries)
            assert drawn.queries == train.at_epoch(epoch, 11).queries
            assert drawn.queries == train.at_epoch(2 - epoch, 4).at_epoch(epoch, 11).queries
            assert (drawn.identity, drawn.split) == (train.identity, train.split)
            assert (drawn.target_columns >= 0).all()
            assert all(query.text.strip() for query in drawn.queries)
        assert global_generators() == before
