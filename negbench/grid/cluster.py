"""Ray executor: run tasks on any node of a cluster that has room. The only file that imports ray."""

import fcntl
import logging
import os
import signal
import socket
import sys
import uuid
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from negbench.errors import NegbenchError, OptionError, without_secrets
from negbench.grid.executors import GRACE, Event, Function, death, last_event
from negbench.machine.files import lock_file
from negbench.machine.signals import check_stopped, ending_of

MOVES_SCORES = False  # where a run is computed does not change it

# prefixes of the environment variables that workers inherit: paths, and how to reach servers
_PASSED = ("NEGBENCH_", "MLFLOW_", "PG", "HF_", "AWS_")


@dataclass(frozen=True)
class Ray:
    """Computes tasks on a Ray cluster, as many at a time as its nodes have room for; made by `Ray.open`.

    A task whose process or node dies is retried, on another node if there is one. Nodes that join later get waiting
    tasks.

    Args:
        shared: folders that all nodes must share; `run` fails at a node that does not share one.
        cpus: CPUs per task.
        gpus: GPUs per task; below 1, tasks share a GPU.
        room: how many tasks fit at a time, counted when connecting.
        most: maximum number of tasks at a time; None: as many as fit.
        retries: how often a task is retried after its process or node died.
    """

    shared: tuple[Path, ...]
    cpus: float
    gpus: float
    room: int
    most: int | None = None
    retries: int = 3
    elsewhere: ClassVar[bool] = True

    @classmethod
    def open(
        cls,
        shared: Sequence[Path],
        address: str | None = None,
        *,
        cpus: float = 1.0,
        gpus: float | None = None,
        most: int | None = None,
    ) -> Self:
        """Connect this process to a cluster; the connection ends with the process.

        Args:
            address: HOST:PORT of the cluster's head; None: the variable RAY_ADDRESS, else a new cluster of this machine
                alone, which ends with the process.
            gpus: GPUs per task; None: 1 if any node has a GPU, else 0.
            shared, cpus, most: see the class.

        Raises:
            ImportError: ray is not installed.
            OptionError: the cluster cannot be reached, or no node has room for a task.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # for a cluster started here
        import ray

        _connect(address or os.environ.get("RAY_ADDRESS") or "local")
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if gpus is None:
            gpus = float(any(node.get("GPU", 0) >= 1 for node in nodes))
        needs = {kind: count for kind, count in (("CPU", cpus), ("GPU", gpus)) if count}
        room = 0  # in tasks
        for node in nodes:
            room += int(min(node.get(kind, 0.0) / count for kind, count in needs.items()) + 1e-9)
        if room == 0:
            most_cpus = max(node.get("CPU", 0) for node in nodes)
            most_gpus = max(node.get("GPU", 0) for node in nodes)
            raise OptionError(
                f"--executor ray:cpus={cpus:g}:gpus={gpus:g}: no node has room for such a task: the largest "
                f"of {len(nodes)} has {most_cpus:g} CPUs and {most_gpus:g} GPUs; ask for less, or start nodes first"
            )
        return cls(tuple(path.resolve() for path in shared), cpus, gpus, room, most)

    @property
    def workers(self) -> int:
        """Number of tasks computed at a time, as counted when connecting."""
        return self.most or self.room

    def run(self, function: Function, tasks: Sequence[Any]) -> Iterator[Event]:
        """See `Executor`; tasks start in the order given.

        Raises:
            NegbenchError: a node that does not share the folders, or cannot import negbench.
        """
        import ray

        work = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0)(_work)
        pending = deque(enumerate(tasks))
        deaths = Counter[int]()
        active: dict[Any, int] = {}  # Ray's reference to a task's result -> its index
        with self._start_task() as start, _mailbox() as mailbox:
            try:
                while pending or active:
                    check_stopped()
                    while pending and (self.most is None or len(active) < self.most):
                        index, task = pending.popleft()
                        active[work.remote(function, index, task, start, mailbox)] = index
                    ready, _ = ray.wait(list(active), timeout=1.0)
                    waiting = mailbox.qsize()
                    if waiting:
                        yield from mailbox.get_nowait_batch(waiting)
                    for reference in ready:
                        index = active.pop(reference)
                        event = self._result(reference, index, deaths)
                        if event.kind == "note":  # its process died
                            pending.append((index, tasks[index]))
                        yield event
            except SystemError as error:  # from Ray's compiled code, if a signal handler raises
                raise ending_of(error) or error from None
            finally:
                _cancel(list(active))

    def _result(self, reference: Any, index: int, deaths: Counter[int]) -> Event:
        """Return the last event of a task that has ended; if its process died, count that.

        Raises:
            NegbenchError: its node cannot start tasks, or does not share the folders.
        """
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            event: Event = ray.get(reference)
        except RayTaskError as error:  # a task's own errors come as events: it did not start
            reason = str(error).strip().splitlines()[-1]
            raise NegbenchError(
                f"a node cannot start a task ({reason}): it needs the same negbench, and the same "
                "packages, as this machine"
            ) from error
        except RayError as error:
            deaths[index] += 1
            return death(index, _end_of(error), deaths[index], self.retries)
        if event.kind == "apart":
            raise NegbenchError(event.value)
        return event

    @contextmanager
    def _start_task(self) -> "Iterator[_Start]":
        """Provide what a task needs to run as if here, with marker files in the shared folders meanwhile."""
        environment = {key: value for key, value in os.environ.items() if key.startswith(_PASSED)}
        if not self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ""  # Ray shows all GPUs of a node to a task that asked for none
        with ExitStack() as locks:
            marks = [folder / f".seen-{uuid.uuid4().hex[:12]}.partial" for folder in self.shared]  # see `files.sweep`
            for mark in marks:
                locks.enter_context(lock_file(mark))
                locks.callback(mark.unlink, missing_ok=True)
            yield _Start(tuple(marks), Path.cwd(), environment)


@dataclass(frozen=True)
class _Start:
    """Where a command was started, which each node checks and adopts before every task."""

    marks: tuple[Path, ...]  # files that the command holds locked
    folder: Path
    environment: dict[str, str]

    def enter(self) -> str | None:
        """Adopt the command's environment and folder; return a line if a shared folder is not shared here."""
        os.environ.update(self.environment)
        with suppress(OSError):  # without the folder, no relative path works either
            os.chdir(self.folder)
        for mark in self.marks:
            fault = _wrong(mark)
            if fault is not None:
                return fault
        return None


def _wrong(mark: Path) -> str | None:
    """Say why this node does not share a mark's folder; None if it does."""
    host = socket.gethostname()
    folder = mark.parent
    try:
        with mark.open("r+b") as file, suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return (
                f"{folder} is shared with node {host}, but its locks are not: two nodes could compute the same "
                "run: mount it with locks (NFS 4; Lustre with -o flock)"
            )
    except OSError as error:
        return (
            f"node {host} does not share {folder} with this machine ({error.strerror}): use a folder that all nodes "
            "mount: --runs-dir for runs, NEGBENCH_CACHE for data and features"
        )
    return None


def _work(function: Function, index: int, task: Any, start: _Start, mailbox: Any) -> Event:
    """Compute a task on its node. `KeyboardInterrupt`, which cancels it, passes through."""
    # Ray cancels through Python's Ctrl-C handler, which a node that a script started in the background lacks
    signal.signal(signal.SIGINT, signal.default_int_handler)
    wrong = start.enter()
    if wrong:
        return Event(index, "apart", wrong)
    return last_event(function, index, task, mailbox.put)


def _end_of(error: Exception) -> str:
    """Describe how a task's process ended, from Ray's error."""
    ends = {
        "NodeDiedError": "its node died",
        "WorkerCrashedError": "its worker process died",
        "OutOfMemoryError": "its node ran out of memory, and its worker process was killed",
    }
    kind = type(error).__name__
    return ends.get(kind) or f"{kind}: {str(error).strip()}".splitlines()[0]


def _cancel(references: list[Any]) -> None:
    """Interrupt tasks as Ctrl-C does, so that they can be resumed; kill those that do not end in time."""
    import ray

    if not references:
        return
    for reference in references:
        ray.cancel(reference)
    _, running = ray.wait(references, num_returns=len(references), timeout=GRACE)
    for reference in running:
        ray.cancel(reference, force=True)


@contextmanager
def _mailbox() -> Iterator[Any]:
    """Open a queue on this machine for tasks' notes; `put` returns once the note is in it."""
    import ray
    from ray.util.queue import Queue
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    on_this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    queue = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": on_this_node})
    try:
        yield queue
    finally:
        queue.shutdown(force=True)


def _connect(address: str) -> None:
    """Join a cluster, or start one of this machine alone ("local").

    Raises:
        OptionError: it cannot be reached.
    """
    import ray
    from ray._private import worker

    if ray.is_initialized():
        return
    # Ray prints what nodes log to standard output, where our results go, and has no option against it
    worker.listen_error_messages = lambda *_: None
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    alone: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    try:
        with chdir(sys.prefix):  # workers can import from the folder of this call
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **alone)
    except (OSError, RuntimeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise OptionError(
            without_secrets(f"--address {address}: cannot join a Ray cluster there ({reason})", address)
            + "; give HOST:PORT, as printed by `ray start --head`; a cluster started with a token needs "
            "RAY_AUTH_MODE=token and the token here, too"
        ) from None  # Ray's text holds the address
    finally:
        for number, handler in handlers.items():  # Ray replaces them with its own
            signal.signal(number, handler)
