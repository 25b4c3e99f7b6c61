"""A password in a store's address reaches no file, no printed line and no record in the store."""

import itertools
import sys
from pathlib import Path

import pytest
from mlflow.store.db.db_types import DATABASE_ENGINES
from mlflow.tracking._tracking_service.utils import _tracking_store_registry

from negbench.cli.main import run as negbench
from negbench.errors import without_secrets
from negbench.machine.files import read_json
from negbench.store.tracking import Tracker

SECRET = "hunter2-Geheimnis"
URI = f"http://alice:{SECRET}@127.0.0.1:9"


UNTOUCHED = (
    *("sqlite:////runs/mlflow.db", "http://127.0.0.1:5000", "http://[::1]:5000/a@b", "postgresql://alice@host/db"),
    *("https://host/path@1?x=1#a@b", "databricks", "file:///a/b@c", "no address at all, user@host"),
)


def test_no_secret_is_left_of_an_address_and_all_else_is(subtests, spelled):
    addresses = {**spelled["addresses"], **{address: address for address in UNTOUCHED}}
    for address, want in addresses.items():
        with subtests.test(address=address):
            assert without_secrets(address) == want


SCHEMES = sorted({*_tracking_store_registry._registry, *DATABASE_ENGINES, "postgresql+psycopg", "redis"} - {"", "file"})
RESTS = (
    *(f"alice:{password}@host:1/db" for password in (SECRET, f"a/{SECRET}", f"a?b={SECRET}", f"@{SECRET}#a@")),
    *(f"host/db?{name}={SECRET}" for name in ("sig", "key", "token", "X-Amz-Signature", "password", "apiKey")),
    *(f"alice@host/db?a=1&{name}={SECRET}&b=2" for name in ("sig", "key", "access_token")),
    f"host/db#token={SECRET}",
)


def test_every_scheme_that_a_store_may_have(subtests):
    """Secrets are removed for every scheme of MLflow and SQLAlchemy, in sentences and in parts of an address."""
    for scheme, rest in itertools.product(SCHEMES, RESTS):
        with subtests.test(scheme=scheme, rest=rest):
            address = f"{scheme}://{rest}"
            assert SECRET not in without_secrets(address)
            assert SECRET not in without_secrets(f"no route to '{address}': (url: {address})")
            part = f"Max retries exceeded with url: /{rest}/api (host='{SECRET}', to 'alice:{SECRET}')"
            assert SECRET not in without_secrets(part, address)
            assert "host" in without_secrets(address)
    for scheme in ("databricks", "https", "uc"):  # a user that may be a token
        with subtests.test(scheme=scheme):
            assert without_secrets(f"{scheme}://{SECRET}@host") == f"{scheme}://host"


def found_in(folder: Path) -> list[str]:
    """Return the files whose bytes contain the secret."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [str(path) for path in files if SECRET.encode() in path.read_bytes()]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let an sqlite file answer as the store under the secret address; return the working folder."""
    store = Tracker.open(tmp_path / "elsewhere")
    store.root.mkdir()
    client = Tracker.client
    monkeypatch.setattr(Tracker, "client", lambda _: client(store))
    for name in ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "PGPASSWORD"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_no_file_of_any_command_holds_it(elsewhere, vector_flags, capfd, monkeypatch):
    """A run, a comparison, its report, a study and the doctor leave the secret in no file and no output."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", URI)
    store = ["--runs-dir", "runs", "--tracking-uri", URI]
    study = ["study", "--strategy", "dqe", "--trials", "2", "--name", "s", "--seeds", "1", "--final-seeds", "0"]
    for command in (
        ["run", "--strategy", "qure", *vector_flags, *store],
        ["compare", "--strategies=dqe", "--seeds=1", "--lr=fixed", "--name=c", "--no-report", *vector_flags, *store],
        ["run", "--strategy", "qure", *vector_flags, *store],
        ["report", "c", "--runs-dir", "runs"],
        [*study, *vector_flags, *store],
        ["doctor", *store],
    ):
        assert negbench(command) == 0, (command, capfd.readouterr().err)
    out, err = capfd.readouterr()
    assert SECRET not in out + err
    assert found_in(elsewhere) == []
    assert read_json(next((elsewhere / "runs").glob("qure-*/mlflow.json")))["uri"] == "http://127.0.0.1:9"
    stored = Tracker.open(elsewhere / "runs", URI).client().search_runs(["1", "2", "3"])
    assert {run.info.status for run in stored} == {"FINISHED"}


def test_a_store_that_fails_is_named_without_it(subtests, vector_flags, tmp_path, capfd, monkeypatch):
    """The error names the store without its password, though MLflow's messages hold the whole address."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    store = ["--runs-dir", str(tmp_path / "runs"), "--tracking-uri", URI]
    grid = ["compare", "--strategies", "qure", "--seeds=1", "--lr=fixed", "--name=c", "--no-report"]
    assert negbench(["run", "--strategy", "qure", *vector_flags, *store]) == 0
    assert negbench([*grid, *vector_flags, *store]) == 0
    for command in (["ui"], ["doctor"]):
        with subtests.test(command=command):
            assert negbench([*command, *store]) == 2
    out, err = capfd.readouterr()
    assert "http://127.0.0.1:9 fails (" in err
    assert "Traceback" not in err
    assert SECRET not in out + err
    assert found_in(tmp_path) == []


def test_the_pages_are_served_here_alone_and_no_list_of_processes_shows_it(elsewhere, vector_flags, capfd, ui_commands):
    uri = f"postgresql://alice:{SECRET}@127.0.0.1:9/runs"
    store = ["--runs-dir", "runs", "--tracking-uri", uri]
    assert negbench(["run", "--strategy", "qure", *vector_flags, *store]) == 0
    assert negbench(["ui", *store]) == 0
    ((command, environment),) = ui_commands
    assert command[:4] == [sys.executable, "-m", "mlflow", "ui"]
    assert "--workers 1 " in " ".join(command)
    assert command[command.index("--host") + 1] == "127.0.0.1"
    out, err = capfd.readouterr()
    assert "Close MLflow's Assistant" in out  # told before the server takes over
    assert SECRET not in " ".join(command) + out + err
    assert environment["MLFLOW_BACKEND_STORE_URI"] == uri
