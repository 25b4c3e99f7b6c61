"""Planes against loops over queries and images: under the current model, as loaded, of a guide, a judge and a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from negbench.api import make_loss
from negbench.contracts import PLANES as EVERY_PLANE
from negbench.contracts import Backbone, BatchStrategy, PlaneName, ScoreView, Slot, Strategy
from negbench.data.scene import DataCache, load_backbone, load_split
from negbench.datasets.dataset import Dataset
from negbench.display import Display
from negbench.errors import DataError, NegbenchError, OptionError
from negbench.loop.mining_task import mining_task, offline_planes, planes_read
from negbench.loop.objective import Batch, Objective
from negbench.loop.runs import plan_run
from negbench.loop.training_calls import TrainingCalls
from negbench.mining.mine import mine
from negbench.plugins.registry import Plugin, registry
from negbench.scoring.rankings import read_trec
from negbench.settings.config import MiningConfig, resolve
from tests.runs import config_of, run, untrained
from tests.vector_files import WIDTH, write_vectors

PLANES: tuple[PlaneName, ...] = tuple(name for name in EVERY_PLANE if name != "listed")  # that: test_listed.py
SEEN: list[ScoreView] = []


@dataclass(frozen=True)
class Watching(Strategy):
    """Draw from all allowed images and record every view."""

    reads: ClassVar[tuple[PlaneName, ...]] = PLANES
    n_def: ClassVar[int] = 2

    def pool(self, view: ScoreView) -> Tensor:
        SEEN.append(view)
        return view.allowed.clone()


@dataclass(frozen=True)
class WatchingBatch(BatchStrategy):
    reads: ClassVar[tuple[PlaneName, ...]] = PLANES
    corrupts: ClassVar[tuple[Slot, ...]] = ("target", "query")
    pool = Watching.pool


@dataclass(frozen=True)
class Plain(Watching):
    reads: ClassVar[tuple[PlaneName, ...]] = ()


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    SEEN.clear()
    for cls in (Watching, WatchingBatch, Plain):
        key = ("strategies", cls.__name__.lower())
        monkeypatch.setitem(registry._classes, key, cls)
        monkeypatch.setitem(registry._files, key, Plugin(*key, __name__, Path(__file__), "this test"))


def guided_by(folder: Path, seed: int) -> str:
    """Write other vectors to a folder; return the `--set` text that makes them the guide."""
    write_vectors(folder, seed=seed)
    return f"mining.guide='precomputed:images={folder / 'images.npz'}:texts={folder / 'texts.npz'}'"


@pytest.fixture
def sets(vector_sets: list[str], tmp_path: Path) -> list[str]:
    """Return `--set` texts with other vectors as guide and a judge's file of two images of the first train query."""
    train = load_split(resolve(config_of(vector_sets, "plain")).dataset, "train", images=False)
    lines = [f"{train.queries[0].id} Q0 {train.images[c]} 1 {s} me" for c, s in ((3, -0.5), (1, 0.9))]
    (tmp_path / "judge.trec").write_text("\n".join(lines) + "\n")
    return [*vector_sets, guided_by(tmp_path / "guide", 1), f"mining.judge='{tmp_path / 'judge.trec'}'"]


@torch.no_grad()
def loops(name: str, backbone: Backbone, data: Dataset, query: int, image: str) -> float:
    """Return one plane's score of one query and one image, by id."""

    def tokens(name: str) -> Tensor:
        return backbone.candidates(backbone.features_of([name]))[0]

    def whole(name: str) -> Tensor:
        return normalize(tokens(name).mean(0), dim=0)

    row = data.queries[query]
    assert row.target is not None
    if name == "target":
        return float(whole(row.target) @ whole(image))
    if name == "reference":
        return float(whole(row.reference) @ whole(image))
    if name == "text":
        vector = backbone.text_queries([row.text])[0]
    else:
        assert name == "query"
        vector = backbone.queries(backbone.features_of([row.reference]), [row.text])[0]
    return max(float(vector @ token) for token in tokens(image))


def test_planes_of_a_task_are_those_of_loops(subtests, sets):
    opened = untrained(config_of(sets, "watching"))
    offline = offline_planes(PLANES, opened.config, opened.scene, Display())
    guide = load_backbone(opened.config.mining.backbones[0], 0).eval()
    data = opened.scene.train.dataset
    for parameter in opened.backbone.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    task = mining_task(opened.backbone, opened.scene, MiningConfig(), reads=PLANES, offline=offline, temperature=0.3)
    for name in ("target", "reference", "text"):  # read alone
        with subtests.test(name=name):
            alone = mining_task(opened.backbone, opened.scene, MiningConfig(), reads=(name,))
            block = task.planes[name].block(torch.arange(9), task.groups[0])
            assert torch.equal(alone.planes[name].block(torch.arange(9), task.groups[0]), block)
    mine(task.shard(torch.tensor([40, 0, 7])), Watching(), refresh=0, draws=1, generator=torch.Generator())
    assert {(view.temperature, view.dim) for view in SEEN} == {(0.3, WIDTH)}
    rows = iter([0, 7, 40])  # mined group by group
    for number, view in enumerate(SEEN):
        with subtests.test(view=number):
            for row, query in zip(range(len(view.scores)), rows, strict=False):
                columns = task.groups[int(task.group[query])].tolist()
                for name in ("target", "reference", "text", "guide"):
                    if name == "guide":
                        want = [loops("query", guide, data, query, data.images[c]) for c in columns]
                    else:
                        want = [loops(name, opened.backbone, data, query, data.images[c]) for c in columns]
                    assert view.plane(name)[row].tolist() == pytest.approx(want, abs=1e-5), (name, query)
                stored = {1: 0.9, 3: -0.5} if query == 0 else {}
                want = [stored.get(c, float("nan")) for c in columns]
                assert view.plane("judge")[row].tolist() == pytest.approx(want, nan_ok=True), query
    assert sum(len(view.scores) for view in SEEN) == 3


def test_tasks_share_a_cache_where_the_same_images_are_excluded(sets):
    opened = untrained(config_of(sets, "watching"))
    plain = MiningConfig()
    caches = {
        id(mining_task(opened.backbone, opened.scene, plain).cache),
        id(mining_task(opened.backbone, opened.scene, MiningConfig()).cache),
    }
    assert len(caches) == 1
    for name in ("exclude_reference", "exclude_relevant", "exclude_subset"):
        other = MiningConfig(**{name: not getattr(plain, name)})
        caches.add(id(mining_task(opened.backbone, opened.scene, other).cache))
    assert len(caches) == 4


def test_planes_of_a_batch_are_those_of_the_corpus(sets, subtests):
    """Row i, column j of the target slot is query i and target j; the query slot is its transpose."""
    opened = untrained(config_of(sets, "watchingbatch"))
    opened.backbone.eval()
    offline = offline_planes(PLANES, opened.config, opened.scene, Display())
    task = mining_task(opened.backbone, opened.scene, MiningConfig(), reads=PLANES, offline=offline)
    rows = torch.tensor([3, 0, 11, 30])
    loss = make_loss("info-nce")
    objective = Objective(
        TrainingCalls(opened.backbone, 0), WatchingBatch(), loss, opened.scene, opened.config.mining, None, offline
    )
    objective(Batch(rows, None, {name: values[rows] for name, values in opened.scene.train.tokens.items()}))
    targets, queries = SEEN
    assert torch.equal(queries.scores, targets.scores.T)
    assert targets.temperature == pytest.approx(opened.backbone.temperature.item())
    assert targets.dim == queries.dim == WIDTH
    for name in PLANES:
        with subtests.test(name=name):
            want = task.planes[name].block(rows, task.target[rows])
            torch.testing.assert_close(targets.plane(name), want, equal_nan=True)
            torch.testing.assert_close(queries.plane(name), want.T, equal_nan=True)


def test_a_fixed_tau_is_what_the_strategy_is_told(sets):
    opened = untrained(config_of(sets, "plain"))
    loss = make_loss("info-nce", tau=0.5)
    assert Objective(TrainingCalls(opened.backbone, 0), Plain(), loss, opened.scene, MiningConfig()).divisor == 0.5


def test_only_what_is_declared_is_computed_and_shown(sets):
    opened = untrained(config_of(sets, "plain"))
    assert offline_planes((), opened.config, opened.scene, Display()) == {}
    task = mining_task(opened.backbone, opened.scene, MiningConfig(), reads=("text",))
    assert list(task.planes) == ["text"]
    mine(task, Plain(), refresh=0, draws=1, generator=torch.Generator())
    assert [view.planes for view in SEEN] == [{}] * len(SEEN)
    with pytest.raises(NegbenchError, match="plane 'guide' is not in this view"):
        SEEN[0].plane("guide")


def test_a_run_may_be_guided_by_its_own_backbone_as_loaded(sets, tmp_path):
    files = dict(text.split("=", 1) for text in sets)
    images = files["backbone.images"].strip("'")
    texts = files["backbone.texts"].strip("'")
    more = (f"mining.guide='precomputed:images={images}:texts={texts}'", "schedule.refresh_epochs=[0,1]")
    run(config_of(sets, "watching", *more), tmp_path / "r")
    assert torch.equal(SEEN[0].plane("guide"), SEEN[0].scores)  # equal before any training
    assert not torch.equal(SEEN[-1].plane("guide"), SEEN[-1].scores)
    assert torch.equal(SEEN[0].plane("guide"), SEEN[-2].plane("guide"))  # two groups per refresh


# --- refusals --------------------------------------------------------------------------------------------------------


def test_a_plane_that_a_run_cannot_provide_is_one_line(vector_sets, sets, tmp_path, subtests):
    with pytest.raises(OptionError, match=r"Watching reads the plane 'guide', but the run has none: --set mining.gu"):
        plan_run(config_of(vector_sets, "watching"), DataCache())
    with pytest.raises(NegbenchError, match="did you mean 'tiny'"):
        plan_run(config_of(sets, "watching", "mining.guide=tinny"), DataCache())
    with pytest.raises(NegbenchError, match=r"file .*none.trec: No such file"):
        plan_run(config_of(sets, "watching", f"mining.judge='{tmp_path / 'none.trec'}'"), DataCache())
    other = tmp_path / "other.trec"
    for query, message in (("q", "scores no query of"), ("{}", "does not have, such as 'i'")):
        with subtests.test(message):
            opened = untrained(config_of(sets, "watching"))
            other.write_text(f"{query} Q0 i 1 0.5 me\n".format(opened.scene.train.dataset.queries[0].id))
            mining = opened.config.mining.model_copy(update={"judge": str(other)})
            with pytest.raises(DataError, match=message):
                offline_planes(("judge",), opened.config.model_copy(update={"mining": mining}), opened.scene, Display())


def test_files_that_are_no_scores(tmp_path, subtests):
    file = tmp_path / "x.trec"
    with pytest.raises(NegbenchError, match="cannot read"):
        read_trec(file)
    for content, message in (
        (b"0 Q0 i 1 0.5\n", "line 1: expected the six fields"),
        (b"0 Q0 i 1 high me\n", "line 1: expected the six fields"),
        (b"0 Q0 x 1 1 me\n0 Q0 x 2 0.5 me\n", "line 2: image 'x' of query '0' occurs twice"),
        (b"", "holds no ranking"),
        (b"\xff\xfe", "cannot read"),
    ):
        with subtests.test(message):
            file.write_bytes(content)
            with pytest.raises(NegbenchError, match=message):
                read_trec(file)


def test_pairs_that_change_have_no_plane_that_stays(sets, monkeypatch):
    opened = untrained(config_of(sets, "watching"))
    monkeypatch.setattr(type(opened.scene.train.dataset), "redraws", True)
    with pytest.raises(DataError, match="draws new pairs in each epoch, but plane 'guide' is computed once"):
        offline_planes(PLANES, opened.config, opened.scene, Display())


def test_guide_and_judge_are_part_of_what_a_run_is(sets, tmp_path):
    def hash_of(*more: str) -> str:
        return plan_run(config_of(sets, "watching", *more), DataCache()).hash

    before = hash_of()
    file = tmp_path / "judge.trec"
    (tmp_path / "copy.trec").write_text(file.read_text())
    assert hash_of(f"mining.judge='{tmp_path / 'copy.trec'}'") == before
    assert hash_of(guided_by(tmp_path / "third", 2)) != before
    file.write_text(file.read_text().replace("0.9", "0.8"))
    assert hash_of() != before
    assert resolve(config_of(sets, "plain")).identity()["mining"].keys() <= {"guide"}


def test_planes_read_by_a_partner_are_read_by_the_run():
    mining = MiningConfig(guide="tiny", judge="tiny")
    assert planes_read(registry.make("strategies", "watchingbatch+plain"), mining) == set(PLANES)
    assert planes_read(Plain(), mining) == set()
