"""negbench: which negatives should a composed-image-retrieval model be trained against?

The public names load lazily, so that `import negbench` (and `negbench --help`) imports neither torch nor mlflow.
"""

import ast
import importlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from negbench.api import audit as audit
    from negbench.api import claims as claims
    from negbench.api import compare as compare
    from negbench.api import embed as embed
    from negbench.api import list_plugins as list_plugins
    from negbench.api import load as load
    from negbench.api import load_dataset as load_dataset
    from negbench.api import make_backbone as make_backbone
    from negbench.api import make_loss as make_loss
    from negbench.api import make_strategy as make_strategy
    from negbench.api import mine as mine
    from negbench.api import run as run
    from negbench.api import study as study
    from negbench.contracts import AspectScores as AspectScores
    from negbench.contracts import Backbone as Backbone
    from negbench.contracts import BackboneIdentity as BackboneIdentity
    from negbench.contracts import BankStep as BankStep
    from negbench.contracts import BankStrategy as BankStrategy
    from negbench.contracts import BatchStrategy as BatchStrategy
    from negbench.contracts import ComposesTexts as ComposesTexts
    from negbench.contracts import Epoch as Epoch
    from negbench.contracts import FreezesTexts as FreezesTexts
    from negbench.contracts import HasSubQueries as HasSubQueries
    from negbench.contracts import HoldsFeatures as HoldsFeatures
    from negbench.contracts import Loss as Loss
    from negbench.contracts import LossInput as LossInput
    from negbench.contracts import OrderedBatches as OrderedBatches
    from negbench.contracts import Query as Query
    from negbench.contracts import ScoreView as ScoreView
    from negbench.contracts import Strategy as Strategy
    from negbench.contracts import SubQuery as SubQuery
    from negbench.contracts import SyntheticStrategy as SyntheticStrategy
    from negbench.contracts import check_option as check_option
    from negbench.contracts import mean_over_rows as mean_over_rows
    from negbench.contracts import tunable as tunable
    from negbench.contracts.card import DatasetCard as DatasetCard
    from negbench.datasets.dataset import Dataset as Dataset
    from negbench.datasets.dataset import columns_of as columns_of
    from negbench.errors import NegbenchError as NegbenchError
    from negbench.metrics.metric import Metric as Metric
    from negbench.own.miner import Miner as Miner
    from negbench.settings.command_options import Audit as Audit
    from negbench.settings.command_options import Claims as Claims
    from negbench.settings.command_options import Embed as Embed
    from negbench.settings.command_options import Evaluate as Evaluate
    from negbench.settings.command_options import Mine as Mine
    from negbench.settings.options import Compare as Compare
    from negbench.settings.options import Run as Run
    from negbench.settings.options import Study as Study

__version__ = "0.1.0"


@cache
def _homes() -> dict[str, str]:
    """Return public name -> defining module, parsed from the imports above, which only type checkers run."""
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


__all__ = ["__version__", *_homes()]


def __getattr__(name: str) -> Any:
    """Import a public name's module on first use (PEP 562)."""
    if name in _homes():
        value = getattr(importlib.import_module(_homes()[name]), name)
        if hasattr(value, "model_rebuild"):
            value.model_rebuild()  # a model of options is built when it is used: its signature lists the options then
        return value
    raise AttributeError(f"module 'negbench' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
