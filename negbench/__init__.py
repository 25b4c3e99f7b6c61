"""negbench: which negatives should a composed-image-retrieval model be trained against?

The public names load lazily, so that `import negbench` (and `negbench --help`) imports neither torch nor mlflow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from negbench.api import (
        audit,
        compare,
        embed,
        list_plugins,
        load,
        load_dataset,
        make_backbone,
        make_loss,
        make_strategy,
        run,
        study,
    )
    from negbench.command_options import Audit, Claims, Embed, Evaluate, Mine
    from negbench.contracts import (
        Backbone,
        BankStep,
        BankStrategy,
        BatchStrategy,
        Epoch,
        Loss,
        LossInput,
        OrderedBatches,
        Query,
        ScoreView,
        Strategy,
        SyntheticStrategy,
        tunable,
    )
    from negbench.errors import NegbenchError
    from negbench.options import Compare, Run, Study
    from negbench.own.miner import Miner

__version__ = "0.1.0"

_HOMES = {
    "negbench.api": (
        "audit",
        "compare",
        "embed",
        "list_plugins",
        "load",
        "load_dataset",
        "make_backbone",
        "make_loss",
        "make_strategy",
        "run",
        "study",
    ),
    "negbench.contracts": (
        "Backbone",
        "BankStep",
        "BankStrategy",
        "BatchStrategy",
        "Epoch",
        "Loss",
        "LossInput",
        "OrderedBatches",
        "Query",
        "ScoreView",
        "Strategy",
        "SyntheticStrategy",
        "tunable",
    ),
    "negbench.errors": ("NegbenchError",),
    "negbench.command_options": ("Audit", "Claims", "Embed", "Evaluate", "Mine"),
    "negbench.options": ("Compare", "Run", "Study"),
    "negbench.own.miner": ("Miner",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Audit",
    "Backbone",
    "BankStep",
    "BankStrategy",
    "BatchStrategy",
    "Claims",
    "Compare",
    "Embed",
    "Epoch",
    "Evaluate",
    "Loss",
    "LossInput",
    "Mine",
    "Miner",
    "NegbenchError",
    "OrderedBatches",
    "Query",
    "Run",
    "ScoreView",
    "Strategy",
    "Study",
    "SyntheticStrategy",
    "__version__",
    "audit",
    "compare",
    "embed",
    "list_plugins",
    "load",
    "load_dataset",
    "make_backbone",
    "make_loss",
    "make_strategy",
    "run",
    "study",
    "tunable",
]


def __getattr__(name: str) -> Any:
    """Import the public name's home on first use (PEP 562)."""
    if name in _HOME_OF:
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'negbench' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
