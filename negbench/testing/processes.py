"""Runs strategies in another process, under another hash seed, to see whether they answer the same."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Sequence

from negbench.contracts import Strategy
from negbench.testing.worlds import toy_view

# the class comes from its file, not its module name: plug-in files and test modules have names that only this process
# knows; pytest is never imported there
_CHILD = """
import importlib.util, json, sys
digests = []
for index, (path, name, options) in enumerate(json.load(sys.stdin)):
    spec = importlib.util.spec_from_file_location(f"strategy_{index}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    from negbench.testing.processes import pool_digest
    digests.append(pool_digest(getattr(module, name)(**options)))
print(json.dumps(digests))
"""


def pool_digest(strategy: Strategy) -> str:
    """Hash of the strategy's pools over a few toy views."""
    digest = hashlib.sha256()
    for seed in range(3):
        for ties in (False, True):
            pool = strategy.pool(toy_view(6, 6 if strategy.scope == "batch" else 24, seed=seed, ties=ties))
            digest.update(f"{pool.dtype} {tuple(pool.shape)}".encode())
            digest.update(pool.contiguous().numpy().tobytes())
    return digest.hexdigest()


def pool_digests_in_another_process(strategies: Sequence[Strategy]) -> list[str]:
    """`pool_digest` of each, all computed by one new process under another PYTHONHASHSEED.

    The classes must stand at the top level of a file, and their options must be what JSON can carry.

    Raises:
        RuntimeError: the other process failed; holds what it wrote.
    """
    told = [
        (inspect.getsourcefile(type(strategy)), type(strategy).__name__, dataclasses.asdict(strategy))
        for strategy in strategies
    ]
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", _CHILD], input=json.dumps(told), env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"the other process failed:\n{done.stderr}")
    digests: list[str] = json.loads(done.stdout)
    return digests
