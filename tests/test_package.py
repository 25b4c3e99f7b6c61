"""The installed package: contents of the wheel, commands outside the checkout and without the extra [full]."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import negbench
from negbench.errors import UnknownNameError, missing_package
from negbench.settings.layers import read_recipe, recipes

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# What an interpreter of its own does for three tests, as it takes seconds to start: import modules and run light
# commands; run commands with the packages of the extra [full] hidden; import MLflow.
_ALONE = """
import contextlib
import importlib.machinery
import importlib.metadata
import sys

import negbench.api
import negbench.mining.mine
import negbench.report.gallery
import negbench.report.page
from negbench.cli.main import main, run
from negbench.errors import _FULL


def late_modules():
    return [name for name in (*sys.argv[1].split(), *_FULL) if name in sys.modules]


print(late_modules(), negbench.__file__)
print(run(["list"]), run(sys.argv[2].split()), late_modules())


class Hiding(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in _FULL:
            return None
        return super().find_spec(name, path, target)

    @classmethod
    def find_distributions(cls, context=importlib.metadata.DistributionFinder.Context()):
        if context.name in (*_FULL, "open_clip_torch", "scikit-learn"):
            return iter(())
        return super().find_distributions(context)


finders = [*sys.meta_path]
sys.meta_path[:] = [Hiding if finder is importlib.machinery.PathFinder else finder for finder in finders]
print(*[run(command.split(" ")) for command in sys.argv[3:]])
sys.meta_path[:] = finders
with contextlib.suppress(SystemExit):
    main(["--version"])

import negbench.store.tracking  # which imports MLflow so that it sends nothing
import huggingface_hub.constants
import mlflow.telemetry.client

print(mlflow.telemetry.client.get_telemetry_client(), huggingface_hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the unpacked sdist, as pip does."""
    where = tmp_path_factory.mktemp("dist")
    code = "import setuptools.build_meta as b, sys; print(getattr(b, sys.argv[1])(sys.argv[2]))"

    def build_in(source: Path, kind: str) -> Path:
        command = [sys.executable, "-c", code, kind, str(where)]
        done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=True)
        return where / done.stdout.splitlines()[-1]

    with tarfile.open(build_in(ROOT, "build_sdist")) as archive:
        archive.extractall(where / "source", filter="data")
    (source,) = (where / "source").iterdir()
    return build_in(source, "build_wheel")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an environment with the wheel in front of this environment's packages; return its `bin` folder."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # .pth files there are not read, which keeps an editable negbench out
    (site / "behind.pth").write_text(str(Path(np.__file__).parents[1]), encoding="utf-8")
    return home / "bin"


@pytest.fixture(scope="module")
def printed(installed: Path, vector_sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Return what `_ALONE` prints outside the checkout and pytest: to standard output, and as errors."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("outside")
    for name, shape in (("q", (20, 8)), ("i", (40, 8))):
        np.save(folder / f"{name}.npy", rng.normal(size=shape))
    np.save(folder / "t.npy", rng.integers(0, 40, 20))
    sets = " ".join(f"--set {text}" for text in vector_sets)
    commands = [
        "compare --recipe qure-fig4 --datasets vectors --backbones vectors --seeds 1 --dry-run",
        "mine --queries q.npy --images i.npy --targets t.npy --strategy qure --out n.parquet",
        f"run --strategy qure {sets} --tracking-uri none",
        f"study --strategy qure {sets}",
    ]
    variables = ("PATH", "HOME", "NEGBENCH_CACHE", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
    plain = {name: os.environ[name] for name in variables if name in os.environ}
    words = [str(installed / "python"), "-c", _ALONE, LATE, *commands]
    done = subprocess.run(words, cwd=folder, env=plain, capture_output=True, text=True, check=False)
    return done.stdout, done.stderr


def test_the_wheel_holds_what_is_read_at_run_time(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    packaged_as = {
        "strategies": "negbench/strategies",
        "backbones": "negbench/backbones",
        "runs/recipes": "negbench/recipes",
        "negbench": "negbench",
    }
    for folder, package in packaged_as.items():
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix not in (".pyc", ".lock"):
                assert f"{package}/{path.relative_to(ROOT / folder)}" in names
    assert {"negbench/py.typed", "negbench/backbones/tiny.safetensors"} <= names
    assert not [name for name in names if name.startswith(("tests", "strategies", "runs"))]
    assert f"Version: {negbench.__version__}\n" in text
    assert re.search(r"^Requires-Dist: mlflow.*extra == .full.$", text, re.M)


LATE = "numba scipy.stats scipy.optimize sympy torch._dynamo"  # and the packages of the extra


@pytest.mark.slow
def test_an_installed_negbench_works_outside_the_checkout_and_imports_what_it_may_not_need_late(installed, printed):
    out, errors = printed
    assert out.startswith(f"[] {installed.parent}/"), errors
    assert "\n0 0 []\n" in out, errors
    for name in ("qure", "bradley-terry", "blip2", "fashioniq", "hycole", "qure-fig4"):
        assert re.search(rf"^  {name} ", out, re.M), name
    assert "4 cells (4 strategies" in out


def test_without_the_extra_mining_and_training_work_and_the_rest_says_what_to_install(printed):
    out, errors = printed
    assert "\n0 0 2\n" in out, errors
    assert "negbench: error: this needs optuna: pip install 'negbench[full]'" in errors.splitlines()


def test_neither_usage_data_nor_a_token_is_sent(printed):
    """Outside pytest: MLflow counts a process of pytest or of a CI as a test, and sends nothing then."""
    assert printed[0].splitlines()[-1] == "None True", printed[1]


def test_recipes_are_found_by_name_and_by_path(tmp_path, monkeypatch):
    home = ROOT / "runs" / "recipes"
    files = [*home.rglob("*.toml")]
    assert set(recipes()) == {path.stem for path in files}
    assert len(recipes()) == len(files)  # no two have one name
    named = read_recipe(Path("qure-cirr"))  # it extends another recipe
    assert named == read_recipe(home / "papers" / "qure-cirr.toml")
    assert named == read_recipe(home / "qure-cirr.toml")  # where it was before it had a folder
    assert named["dataset"]["name"] == "cirr"
    with pytest.raises(UnknownNameError, match="did you mean 'qure-cirr'"):
        read_recipe(Path("qure-cir"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qure-cirr").write_text("seed = 7", encoding="utf-8")
    assert read_recipe(Path("qure-cirr")) == {"seed": 7}  # a file in the working directory comes first


def test_every_package_of_the_extra_is_known_by_its_module():
    modules = {"open_clip_torch": "open_clip", "scikit-learn": "sklearn"}
    extras = PROJECT["project"]["optional-dependencies"]
    names = [re.split(r"[^\w-]", requirement)[0] for requirement in extras["full"]]
    for name in names:
        module = modules.get(name, name)
        error = ModuleNotFoundError(f"No module named '{module}'", name=f"{module}.inner")
        assert missing_package(error) == f"this needs {module}: pip install 'negbench[full]'", name
    assert missing_package(ModuleNotFoundError("No module named 'nothing'", name="nothing")) is None
    assert "full" in extras["dev"][0]


def test_one_version_and_one_import_line():
    assert f"\nversion: {negbench.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert "version" in PROJECT["project"]["dynamic"]
    code = "import sys, negbench; sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'pandas', 'mlflow')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- the Dockerfile --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def docker_file() -> dict[str, list[str]]:
    """Return the Dockerfile's lines by instruction, without it."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")  # continued lines joined
    lines = defaultdict[str, list[str]](list)
    for line in text.splitlines():
        instruction, _, rest = line.partition(" ")
        if instruction.isupper():
            lines[instruction].append(rest)
    return lines


def test_the_docker_file_has_a_python_that_is_supported(docker_file):
    (base,) = docker_file["FROM"]
    (python,) = re.fullmatch(r"python:(3\.\d+)-slim-[a-z]+", base).groups()  # it pins a Debian release
    assert f"Programming Language :: Python :: {python}" in PROJECT["project"]["classifiers"]


def test_the_docker_file_installs_what_is_there(docker_file, subtests):
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert docker_file["COPY"] == [". ."]
    (install,) = (line for line in docker_file["RUN"] if "pip install" in line)
    (extra,) = re.findall(r"\.\[(\w+)\]", install)
    assert extra in PROJECT["project"]["optional-dependencies"]
    (pins,) = re.findall(r"-c (\S+)", install)
    for needed in (pins, "pyproject.toml", PROJECT["project"]["readme"], "negbench", "strategies", "backbones"):
        with subtests.test(needed=needed):
            assert (ROOT / needed).exists()
            assert needed not in ignored
    assert "!runs/recipes" in ignored  # the demo needs its recipe


def test_the_docker_file_does_not_run_as_root(docker_file):
    (user,) = re.findall(r"useradd .*--uid (\d+)", " ".join(docker_file["RUN"]))
    assert docker_file["USER"] == [user]
    assert int(user) > 0


def test_the_docker_file_runs_the_demo(docker_file):
    (entry_point,) = docker_file["ENTRYPOINT"]
    assert json.loads(entry_point) == [*PROJECT["project"]["scripts"]]
    (arguments,) = docker_file["CMD"]
    command = json.loads(arguments)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (demo,) = re.findall(r"negbench (compare .*--name demo)$", makefile, flags=re.MULTILINE)
    assert command == demo.split()
    assert command[command.index("--recipe") + 1] in recipes()
