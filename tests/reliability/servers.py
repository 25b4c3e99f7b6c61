"""Servers that stop and come back, and what an MLflow store shows of a comparison; for the tests beside this file."""

import os
import pwd
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Server:
    """An `mlflow server` on this machine alone; its store stays in `folder` while it is stopped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        words = ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1", "--artifacts-destination", "files"]
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", "sqlite:///store.db", *words]
        quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (self.folder / "log").open("ab") as log:
            how: dict[str, Any] = {"stdout": log, "stderr": log, "cwd": self.folder, "start_new_session": True}
            self._process = subprocess.Popen(command, env=os.environ | quiet, **how)
        for _ in range(1000):
            with suppress(URLError, OSError), urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                return
            assert self._process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.3)
        raise AssertionError(f"no answer: {(self.folder / 'log').read_text()}")

    def stop(self) -> None:
        """End it and its workers at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Line:
    """A line to a server on this machine that can be cut, at once or after some packets, and mended."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._packets_left = -1  # until it is cut; never if negative
        self._ends = list[socket.socket]()
        self.port = free_port()
        self.mend()

    def mend(self, sent: int = -1) -> None:
        """Connect; the line is cut at what the client sends after this many packets."""
        self.cut()
        self._packets_left = sent
        server = socket.create_server(("127.0.0.1", self.port))
        self._ends.append(server)
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()

    def cut(self) -> None:
        """Refuse connections, and end those that are open."""
        ends = self._ends
        self._ends = []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self, server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = server.accept()
                behind = socket.create_connection(("127.0.0.1", self._to))
                self._ends += [client, behind]
                threading.Thread(target=self._carry, args=(client, behind), daemon=True).start()

    def _carry(self, client: socket.socket, behind: socket.socket) -> None:
        with suppress(OSError, ValueError), client, behind:
            while True:
                for ready in select.select([client, behind], [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    if ready is behind:
                        client.sendall(data)
                        continue
                    if self._packets_left == 0:
                        self.cut()
                    self._packets_left -= 1
                    behind.sendall(data)


_MEASURED = re.compile("seconds|memory|mib|^used/.* s$|^used/.*MiB$")  # names of values that differ from run to run


def _unmeasured(metrics: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(pair for pair in metrics.items() if not _MEASURED.search(pair[0]))


def contents(uri: str, name: str) -> dict[str, Any]:
    """Return what a store shows of a comparison or a study: its runs, those outside of it, its answer, its files."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        return {}
    runs = sorted(client.search_runs([experiment.experiment_id]), key=lambda run: str(run.info.run_name))
    parents = [run.info.run_id for run in runs if run.data.tags["negbench.kind"] in ("comparison", "study")]
    below = {r.info.run_name: r.data.tags.get("mlflow.parentRunId") for r in runs if r.info.run_id not in parents}
    files = {run.info.run_name: sorted(file.path for file in client.list_artifacts(run.info.run_id)) for run in runs}
    return {
        "runs": Counter(f"{run.data.tags['negbench.kind']} {run.info.status}" for run in runs),
        "values": sorted((run.info.run_name, _unmeasured(run.data.metrics)) for run in runs),
        "loose": [name for name, parent in below.items() if parent not in parents],
        "answer": experiment.tags.get("mlflow.note.content"),
        "files": files,
    }


class Database:
    """A PostgreSQL server on this machine alone, for its superuser alice; RuntimeError where it cannot be started."""

    def __init__(self) -> None:
        tools = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        root = os.getuid() == 0
        self._as = ["runuser", "-u", "postgres", "--"] if root else []  # it refuses to run as root
        if not tools or (root and not self._has_other_user()):
            raise RuntimeError("needs PostgreSQL's server, and a user other than root to run it")
        self.port = free_port()
        self._tools = tools[-1]
        self._folder = Path(tempfile.mkdtemp(prefix="database-"))
        if root:
            shutil.chown(self._folder, "postgres")
        self._run("initdb", "-A", "trust", "-U", "alice", "--no-sync")
        options = f"-p {self.port} -k {self._folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        self._run("pg_ctl", "-w", "-l", str(self._folder / "log"), "-o", options, "start")
        for name in ("studies", "runs"):  # Optuna and MLflow each have a table alembic_version
            command = [self._tools / "createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "alice", name]
            subprocess.run(command, check=True)

    @staticmethod
    def _has_other_user() -> bool:
        """Return whether root can run a program as the user postgres."""
        return shutil.which("runuser") is not None and "postgres" in {user.pw_name for user in pwd.getpwall()}

    def _run(self, tool: str, *words: str) -> None:
        command = [*self._as, str(self._tools / tool), "-D", str(self._folder / "data"), *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")

    def stop(self) -> None:
        """End it, and delete what it stored."""
        self._run("pg_ctl", "-m", "immediate", "stop")
        shutil.rmtree(self._folder)
