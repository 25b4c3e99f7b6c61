"""Servers that do not answer, drip or never end cost ten seconds, and then nothing for a minute."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from negbench.errors import RunError, without_secrets

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient
    from requests import PreparedRequest, Response
    from requests.adapters import HTTPAdapter

MOVES_SCORES = False  # only copies results

PATIENCE = 10  # seconds for a store to answer
FORGET = 60.0  # seconds in which a store that did not answer is not asked again
SILENT: dict[str, tuple[float, RunError]] = {}  # URI -> when it did not answer, and the error
_SLOWEST = 2**16  # bytes per second of a line on which artifacts are sent
_MOST_BYTES = 2**26  # of a server's answer


def seconds_for(sent: int = 0) -> float:
    """Return the seconds for a server to answer: ten, or what the user gives MLflow, and more for bytes to send."""
    seconds: float = PATIENCE
    with suppress(ValueError):
        seconds = float(os.environ.get("MLFLOW_HTTP_REQUEST_TIMEOUT") or PATIENCE)
    return seconds + sent / _SLOWEST


def within(seconds: float, uri: str, action: Callable[[], Any]) -> Any:
    """Return what an action returns, in a thread that is left alone if it takes too long.

    MLflow's own limit counts from one received byte to the next: a server that sends a byte a second never meets it.

    Raises:
        RunError: it takes longer; the store is then left alone for a minute.
    """
    answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put((action(), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=work, daemon=True, name="negbench-store").start()
    try:
        value, error = answers.get(timeout=seconds)
    except queue.Empty:
        silent = RunError(f"{without_secrets(uri)} fails (its answer is not whole after {seconds:g} seconds)")
        SILENT[uri] = time.monotonic(), silent
        raise silent from None
    if error is not None:
        raise error
    return value


class Patient:
    """An MLflow client of a server, each of whose calls ends in time, however the server answers."""

    def __init__(self, client: MlflowClient, uri: str) -> None:
        self._client = client
        self._uri = uri

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            size = 0
            if name == "log_artifact":
                _, file, *_ = args
                size = Path(file).stat().st_size
            method = getattr(self._client, name)
            return within(seconds_for(size), self._uri, partial(method, *args, **options))

        return call


@cache
def bound_adapter(adapter: type[HTTPAdapter]) -> type[HTTPAdapter]:
    """Return a kind of connection that refuses answers of more than 64 MiB, which would fill the memory in time."""
    if adapter.__name__ == "Bounded":
        return adapter
    from requests import ConnectionError

    class Bounded(adapter):  # type: ignore[misc, valid-type]
        def send(self, request: PreparedRequest, stream: bool = False, *args: Any, **options: Any) -> Response:
            answer: Response = super().send(request, True, *args, **options)
            if not stream:
                content = answer.raw.read(_MOST_BYTES + 1, decode_content=True)
                if len(content) > _MOST_BYTES:
                    answer.close()
                    raise ConnectionError(f"the answer has more than {_MOST_BYTES:,} bytes")
                answer._content = content
            return answer

    return Bounded
