"""Every recipe resolves to the published numbers and names the source of each value; some run on toy data."""

import itertools
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from negbench.campaign.plan import with_recipe
from negbench.data.scene import load_split
from negbench.errors import NegbenchError
from negbench.grid.axes import Axes
from negbench.grid.axis import parse_dial
from negbench.mining.window import JUDGED_IN_WORLDS, JUDGED_ON_EMOJI, where_judged
from negbench.settings.config import ResolvedConfig, resolve
from negbench.settings.layers import read_recipe
from negbench.settings.options import Compare, Study
from negbench.systems.system import load_config
from negbench.tuning.search import plan_study
from tests.datasets import toys
from tests.runs import run

FOLDER = Path(__file__).parents[1] / "runs" / "recipes"
RECIPES = sorted(path.stem for path in FOLDER.rglob("*.toml"))

# of what the papers and their released files say: settings of recipes, rows of comparisons, values of studies
BOOK = tomllib.loads((Path(__file__).parent / "golden" / "recipes.toml").read_text(encoding="utf-8"))


def over_base(table: dict[str, Any]) -> dict[str, Any]:
    """Return settings with those of the table that they lie over."""
    settings = dict[str, Any]()
    if "over" in table:
        settings |= over_base(BOOK["base"][table["over"]])
    for key, value in table.items():
        if key != "over":
            settings[key] = None if value == "null" else value
    return settings


PUBLISHED: dict[str, dict[str, Any]] = {name: over_base(table) for name, table in BOOK["recipe"].items()}
RUNS = list(PUBLISHED)

TABLE_4 = "hycole-table4"  # of HyCoLe-HNM: two strategies at three rates of the towers
ROWS = BOOK["rows"]
STUDIES = BOOK["study"]
RootOf = Callable[[str], Path]


def path_of(name: str) -> Path:
    (path,) = FOLDER.rglob(f"{name}.toml")
    return path


def sets_of(name: str, root_of: RootOf) -> list[str]:
    """Return the `--set` value for a toy copy of the recipe's data set."""
    dataset = read_recipe(path_of(name)).get("dataset")
    return [f"dataset.root='{root_of(dataset['name'])}'"] if dataset else []


def axes_of(recipe: str | Path, sets: list[str], **options: Any) -> Axes:
    """Return the recipe's axes; of its dials, none."""
    path = path_of(recipe) if isinstance(recipe, str) else recipe
    axes = Axes.of(with_recipe(Compare(recipe=path, sets=tuple(sets), **options)))
    return axes.without(*(dial.key for dial in axes.dials))


def configs_of(name: str, seeds: int = 1) -> list[ResolvedConfig]:
    """Return the resolved configurations of a recipe's cells."""
    return [resolve(config) for config in axes_of(name, [], seeds=seeds).configs()]


# --- the numbers ---------------------------------------------------------------------------------------------------


OF_LAVIS = [name for name in RECIPES if read_recipe(path_of(name)).get("backbone", {}).get("name") in ("blip", "blip2")]


@pytest.mark.parametrize("name", OF_LAVIS)
def test_blip_and_blip2_start_from_files_with_their_temperature(name):
    """A repository of the hub holds none; LAVIS's BLIP-2 has its tower in a file of its own, BLIP's holds it."""
    backbone = read_recipe(path_of(name))["backbone"]
    files = backbone["weights"].removeprefix("lavis:").split(",")
    assert backbone["weights"].startswith("lavis:")
    assert len(files) == (2 if backbone["name"] == "blip2" else 1)
    if backbone["name"] == "blip2":
        assert files[1].startswith("tower=")


# negbench's own recipes on drawn vectors
DRAWN = [name for name in RECIPES if name.startswith(("map-", "premise-", "world"))]
WORLDS = ("definitions-world", "demo-single", "dqe-margins", "warm-up-world", *DRAWN)


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_draws_alike(name):
    """All use drawn vectors; each has one negative per query and moves a dial, except the recipes listed below."""
    configs = configs_of(name)
    assert {config.dataset.name for config in configs} == {config.backbone.name for config in configs} == {"vectors"}
    if name not in ("premise-slots", "world-systems"):
        assert {config.train.num_negatives for config in configs} == {1}
    dials = [parse_dial(text) for text in with_recipe(Compare(recipe=path_of(name))).dials]
    assert bool(dials) == (name not in ("demo-single", "world", "world-paper", "world-small", "world-systems"))
    assert len({config.train.epochs for config in configs}) == 1 + (name in ("world", "world-paper"))
    for dial in dials:
        assert dial.key in configs[0].flat(), dial.key
        assert len(dial.values) > 1, dial.key


def test_the_demo_asks_beside_the_batch_and_without_it_in_one_world():
    beside = configs_of("demo")
    single = configs_of("demo-single")
    alone, *others = [config.strategy.name for config in beside]
    assert alone == "in-batch"
    rules = {name.removeprefix("in-batch+") for name in others}
    assert rules == {config.strategy.name for config in single} == {"all-corpus", "top-k", "qure", "cirqrs", "dqe"}
    assert {config.dataset.model_dump_json() for config in [*beside, *single]} == {beside[0].dataset.model_dump_json()}
    assert {(config.loss.name, config.train.num_negatives) for config in single} == {("bradley-terry", 1)}
    assert {config.loss.name for config in beside} == {"info-nce"}


@pytest.mark.parametrize("count", [1, 4, 16, 63])
def test_zones_are_windows_as_wide_as_their_start_beside_the_papers_rules(count):
    configs = configs_of(f"zone-{count}")
    starts = {0, *(count * 2**power for power in range(11))}
    if count > 1:
        starts.add(count // 2)
    windows = {(start, start + max(2 * count, start)) for start in starts if start <= 1024}
    shifted = [config.strategy.options for config in configs if config.strategy.name == "shifted-top-k"]
    assert {(options["start"], options["stop"]) for options in shifted} == windows
    rules = {config.strategy.name for config in configs} - {"shifted-top-k"}
    assert rules == {"all-corpus", "in-batch", "top-k", "after-target", "cirqrs", "dqe", "qure"}
    assert {config.train.num_negatives for config in configs} == {count}
    assert {config.dataset.options["train_images"] for config in configs} == {4000}


@pytest.mark.parametrize("count", [1, 16])
def test_zones_of_emoji_are_some_of_those_windows_at_two_budgets(count):
    configs = configs_of(f"zone-emoji-{count}")
    of_worlds = {str(config.strategy) for config in configs_of(f"zone-{count}")}
    assert {str(config.strategy) for config in configs} <= of_worlds
    assert len({str(config.strategy) for config in configs}) == 11  # six windows, five rules
    assert {(config.train.num_negatives, config.train.epochs) for config in configs} == {(count, 20), (count, 60)}
    assert {config.dataset.options["style"] for config in configs} == {"kept"}


PICTURES = BOOK["pictures"]  # styles, number of galleries


@pytest.mark.parametrize("name", PICTURES)
def test_recipes_of_pictures_differ_in_what_they_name_alone(name):
    styles, galleries = PICTURES[name]
    configs = configs_of(name)
    assert sorted({config.flat()["dataset.style"] for config in configs}) == styles
    assert len({str(config.dataset) for config in configs}) == galleries
    alike = {"backbone.name": "lite", "train.lr": 1e-3, "train.epochs": 20, "dataset.train_queries": 4000}
    alike |= {"mining.exclude_reference": True, "eval.reported": name != "emoji-rates"}  # rates are chosen without val
    for config in configs:
        assert config.flat().items() >= alike.items(), config.strategy.name
    options = with_recipe(Compare(recipe=path_of(name)))
    systems, losses = ("all", None) if name == "emoji-systems" else (None, ["info-nce"])
    assert options.systems == systems
    assert options.losses == losses
    assert tuple(options.negatives) == {"emoji-equal": (1, 32), "emoji-rates": (), "emoji-systems": ()}.get(name, (1,))
    rates = {}
    if name == "emoji-rates":
        rates = {"train.lr": (3e-4, 1e-3, 3e-3), "train.num_negatives": (1, 32)}
    dials = [parse_dial(text) for text in options.dials]
    assert {dial.key: dial.values for dial in dials} == rates


def test_there_is_a_check_for_every_recipe():
    claims = ["claims-world", "claims-world-few"]  # tests/claims/test_command.py
    zones = [f"zone-{count}" for count in (1, 4, 16, 63, "emoji-1", "emoji-16")]
    practice = ["practice", *(f"practice-{name}" for name in ("emoji", "field", "hardest", "own", "small", "soft"))]
    others = ["batch-size", "demo", "evenness", "kinds-1", *practice, *claims, *zones]
    assert sorted([*RUNS, *ROWS, *STUDIES, *WORLDS, *PICTURES, TABLE_4, *others]) == RECIPES


@pytest.mark.parametrize("name", RUNS)
def test_a_recipe_resolves_to_the_published_numbers(name, root_of):
    flat = resolve(load_config(recipe=path_of(name), sets=sets_of(name, root_of))).flat()
    want = dict[str, Any]()
    for key, value in PUBLISHED[name].items():
        want[key] = pytest.approx(value) if isinstance(value, float) else value
    assert {key: flat[key] for key in want} == want


COUNTS = {
    "batch-size": 21,
    "evenness": 15,
    "practice": 264,
    "practice-emoji": 48,
    "practice-field": 60,
    "practice-hardest": 15,
    "practice-own": 42,
}


@pytest.mark.parametrize(("name", "count"), COUNTS.items(), ids=COUNTS)
def test_practice_uses_the_whole_batch_and_one_draw(name, count):
    configs = configs_of(name, seeds=3)
    assert len(configs) == count
    in_batch = [config for config in configs if config.strategy.name == "in-batch"]
    mined = [config for config in configs if config.strategy.name != "in-batch"]
    assert {config.train.num_negatives for config in in_batch} == {None}
    assert {config.train.num_negatives for config in mined} == {1}


JUDGED = {"zone-1": JUDGED_IN_WORLDS, "zone-16": JUDGED_IN_WORLDS, "zone-emoji-1": JUDGED_ON_EMOJI}


@pytest.mark.parametrize(("name", "settings"), JUDGED.items(), ids=JUDGED)
def test_the_audit_s_window_was_judged_where_it_says(name, settings):
    for config in configs_of(name):
        flat = config.flat()
        assert {key: flat[key] for key in settings} == settings, config.strategy.name
    for value in settings.values():
        assert str(value) in where_judged()


def test_every_value_says_where_it_is_from(subtests):
    """Each value has a source comment; values that this file lists as published are not marked "ours"."""
    for name in RECIPES:
        with subtests.test(name=name):
            lines = path_of(name).read_text(encoding="utf-8").splitlines()
            assert lines[0].startswith("# ")
            section = ""
            for number, line in enumerate(lines, start=1):
                if line.startswith("["):
                    section = line.strip("[] ")
                value = re.match(r"\s*(\w+ = [^\[{]|\{ name)", line) or re.match(r"\w+ = [\[{].*[\]}]", line)
                if value and not line.startswith(("name =", "extends =")):
                    assert re.search(r"\S+ +# \S", line), f"{name}.toml:{number} has no source: {line}"
                key = f"{section}.{line.split(' = ')[0]}"
                if key in PUBLISHED.get(name, {}) and key != "schedule.warmup":
                    assert not line.partition("# ")[2].startswith("ours"), line


@pytest.mark.parametrize("name", ROWS)
def test_a_grid_holds_the_published_rows_and_changes_nothing_else(name, root_of):
    rows = ROWS[name]["rows"]
    sets = sets_of(name, root_of)
    whole = resolve(load_config(recipe=path_of(ROWS[name]["base"]), sets=sets)).flat()
    configs = axes_of(name, sets).configs()
    count = len(rows)
    assert [config.seed for config in configs] == [*[0] * count, *[1] * count, *[2] * count]
    for config, row in zip(configs, 3 * rows, strict=True):
        flat = resolve(config).flat()
        changes = {key: value for key, value in flat.items() if value != whole.get(key, "absent")}
        unread = ("seed", "eval.dev_seed", "schedule.")  # irrelevant to strategies whose pools ignore scores
        assert {key: value for key, value in changes.items() if not key.startswith(unread)} == row, row
        if flat["strategy.name"] not in ("all-corpus", "in-batch-cube"):
            assert [key for key in changes if key.startswith("schedule.")] == [], row


def test_hycoles_table_4_moves_the_towers_rate_and_the_negatives(root_of):
    (dial,) = [parse_dial(text) for text in with_recipe(Compare(recipe=path_of(TABLE_4))).dials]
    assert (dial.key, dial.values) == ("backbone.gamma", (0, 0.001, 1.0))
    configs = [resolve(config).flat() for config in axes_of(TABLE_4, sets_of(TABLE_4, root_of), seeds=1).configs()]
    assert [flat["strategy.name"] for flat in configs] == ["hycole", "in-batch-cube"]
    assert {flat["backbone.frozen"] for flat in configs} == {False}


def test_recipes_on_worlds_redefine_as_often_as_they_say():
    def refreshes(name: str) -> list[tuple[int, ...]]:
        (dial,) = [parse_dial(text) for text in with_recipe(Compare(recipe=path_of(name))).dials]
        epochs = []
        for value in dial.values:
            sets = [f"{dial.key}={value}"]
            config = load_config(recipe=path_of(name), flags={"strategy": {"name": "qure"}}, sets=sets)
            epochs.append(resolve(config).schedule.refresh_epochs or ())
        return epochs

    assert [len(epochs) for epochs in refreshes("definitions-world")] == [3, 6, 12]
    assert {epochs[0] for epochs in refreshes("definitions-world")} == {20}
    warm = refreshes("warm-up-world")
    assert [epochs[0] for epochs in warm] == [0, 10, 20, 40]
    for epochs in warm:
        assert {later - former for former, later in itertools.pairwise(epochs)} == {20}, epochs


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_lists_the_published_value_first(name, toy_root, logged):
    system, key, values = STUDIES[name].values()
    plan = plan_study(Study(recipe=path_of(name), sets=(f"dataset.root='{toy_root}'",)))
    spec = plan.job.spec
    base = spec.config
    assert base.strategy.name == system
    assert base.mining.replacement
    assert not logged
    assert base.loss.name == {"qure": "bradley-terry", "dqe": "margin-kl"}[system]
    assert list(dict.fromkeys(point[key] for point in spec.queued_points)) == values
    assert plan.job.trials == len(spec.queued_points) == (9 if name == "band-table" else len(values))
    for point in spec.queued_points:
        resolve(spec.space.config(base, point, 0))


# --- systems and recipes below recipes -------------------------------------------------------------------------------


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_recipe_lies_over_the_one_that_it_extends(tmp_path):
    (tmp_path / "below").mkdir()
    write(
        tmp_path / "below",
        "a",
        'system = "dqe"\n[train]\nepochs = 7\nlr = 0.1\n[backbone]\nname = "blip2"\npooling = "text"',
    )
    write(tmp_path, "b", 'extends = "below/a.toml"\n[train]\nepochs = 9\n[strategy]\nbeta = 0.7')
    config = load_config(recipe=write(tmp_path, "c", 'extends = "b.toml"'), flags={"backbone": {"name": "clip"}})
    assert (config.train.epochs, config.train.lr) == (9, 0.1)
    assert config.strategy.model_dump() == {"name": "dqe", "alpha": 0.2, "beta": 0.7, "scale": "absolute"}
    assert config.backbone.model_dump() == {"name": "clip", "fusion": "sum", "attribute_weights": True}


def test_a_recipe_that_extends_itself_or_nothing(tmp_path):
    write(tmp_path, "a", 'extends = "b.toml"')
    with pytest.raises(NegbenchError, match=r"a\.toml: extends .*b\.toml, which extends it in turn"):
        read_recipe(write(tmp_path, "b", 'extends = "a.toml"'))
    with pytest.raises(NegbenchError, match=r"nowhere\.toml: No such file"):
        read_recipe(write(tmp_path, "c", 'extends = "nowhere.toml"'))


def test_a_recipe_is_a_small_regular_file(tmp_path, subtests):
    for path, problem in [("/dev/zero", "is no regular file"), (tmp_path, "is no regular file")]:
        with subtests.test(path=path), pytest.raises(NegbenchError, match=problem):
            read_recipe(Path(path))
    large = tmp_path / "large.toml"
    with large.open("wb") as file:
        file.truncate(2**20 + 1)
    with pytest.raises(NegbenchError, match="has 1,048,577 bytes; expected a TOML file of at most 1,048,576 bytes"):
        read_recipe(large)


def test_flags_beat_the_recipe_and_the_recipe_its_system(tmp_path):
    recipe = write(tmp_path, "r", 'system = "cirqrs"\n[strategy]\nn_neg = 100\n[schedule]\nn_def = 6')
    config = load_config(recipe=recipe, sets=["schedule.n_def=3"])
    assert (config.strategy.options, config.schedule.n_def, config.loss.name) == ({"n_neg": 100}, 3, "bradley-terry")
    named = load_config(recipe=recipe, flags={"strategy": {"name": "cirqrs"}})
    assert named.strategy.options == {"n_neg": 100}  # the option belongs to the system's strategy
    other = load_config(recipe=recipe, flags={"strategy": {"name": "top-k"}})
    assert (other.strategy.options, other.schedule.n_def, other.mining.replacement) == ({}, 6, True)
    plain = load_config(recipe=write(tmp_path, "q", 'system = "cirqrs"'), flags={"system": "plain"})
    assert plain.loss.name == "info-nce"
    with pytest.raises(NegbenchError, match="unknown system 'cirqr'"):
        load_config(recipe=write(tmp_path, "s", 'system = "cirqr"'))


def test_what_cannot_be_carried_is_a_remark_of_every_command(vector_sets, tmp_path, toy_root, logged):
    recipe = write(tmp_path, "r", 'system = "dqe"')
    line = "DQE-CIR without its attribute weights (eq. 1, 7): backbone 'precomputed' has no option attribute_weights"
    with pytest.warns(UserWarning, match=re.escape(line)) as warned:
        load_config(recipe=recipe, sets=vector_sets)
    assert len(warned) == 1
    remarks = list[str]()
    axes_of(recipe, vector_sets, strategies="dqe,top-k", seeds=1).configs(note=remarks.append)
    assert remarks == [line]  # one remark for all cells
    plan_study(Study(recipe=recipe, sets=tuple(vector_sets)))
    assert [record.getMessage() for record in logged] == [f"note: {line}"]
    # each cell gets the parts that its backbone supports
    configs = axes_of(recipe, [f"dataset.root='{toy_root}'"], backbones="tiny,blip2").configs()
    assert {config.backbone.name: config.backbone.options for config in configs} == {
        "tiny": {"fusion": "sum", "attribute_weights": True},
        "blip2": {"attribute_weights": True},
    }
    assert {config.loss.name for config in configs} == {"margin-kl"}


def test_encode_and_audit_take_recipes(vector_flags, toy_root, tmp_path, run_command):
    """Also a comparison's recipe: its system and settings apply, its axes do not."""
    recipe = str(write(tmp_path, "r", 'system = "dqe"\nseed = 3\n[strategy]\nbeta = 0.7\n[compare]\nseeds = [1]'))
    toy = ["--set", f"dataset.root='{toy_root}'", "--set", "backbone.weights='random'"]
    assert "144 images: 144 encoded" in run_command("data", "encode", "--recipe", recipe, *toy).out
    output = run_command("audit", "--recipe", recipe, "--strategy", "dqe,top-k", "--json", *vector_flags)
    assert " ".join(output.err.split()).count("note: DQE-CIR without its attribute weights") == 1
    assert '"dqe(beta=0.7)"' in output.out


def test_a_comparisons_world_serves_one_run_and_a_study(subtests):
    """Their own flags replace the table [compare]."""
    run = load_config(recipe=Path("world"), flags={"strategy": {"name": "top-k"}})
    study = plan_study(Study(strategy="top-k", recipe=Path("map-twins-fit"))).job.spec.config
    for config, train_images in ((run, 4000), (study, 500)):
        with subtests.test(train_images=train_images):
            assert (config.dataset.model_dump()["train_images"], config.strategy.name) == (train_images, "top-k")


# --- two steps -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def root_of(toy_root: Path, tmp_path_factory: pytest.TempPathFactory) -> RootOf:
    """Return a function that gives a toy data set's folder; synthetic data in FashionIQ's layout serve as FashionIQ."""
    roots: dict[str, Path] = {"fashioniq": toy_root}

    def find(dataset: str) -> Path:
        if dataset not in roots:
            roots[dataset] = toys.TOYS[dataset](tmp_path_factory.mktemp("toys") / dataset)["root"]
        return roots[dataset]

    return find


def toy_sets_of(name: str, root_of: RootOf) -> list[str]:
    """Return `--set` values for the recipe at toy size: two epochs of one step, with a pool refresh in between."""
    sets = sets_of(name, root_of)
    queries = len(load_split(load_config(recipe=path_of(name), sets=sets).dataset, "train", images=False).queries)
    if name.startswith("hycole"):
        sets.append("backbone.model=null")
    sets += ["backbone.init=random", "backbone.size=toy", "backbone.weights=null", "compute.device=cpu"]
    return [*sets, "train.epochs=2", f"train.batch_size={queries}", "schedule.warmup=1"]


# each system, backbone family and kind of data set once (Fashion200k's is that of MIT-States); the numbers are above
@pytest.mark.parametrize("name", ["qure-cirr-blip", "cirqrs-fashioniq", "dqe-cirr", "hycole-mit-states"])
def test_a_recipe_runs_two_steps(name, root_of, tmp_path):
    config = load_config(recipe=path_of(name), sets=toy_sets_of(name, root_of))
    details = run(config, tmp_path).details
    assert details["steps"] == 2
    assert {metric: value for metric, value in details["metrics"].items() if not 0 <= value <= 1} == {}
    assert details["refresh_epochs"] == ([] if name.startswith("hycole") else [1])
    if not name.startswith("hycole"):
        assert details["behaviour"]["pool_size"] >= 1
