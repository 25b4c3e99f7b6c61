"""The types that cross rooms, one file each: read the one that you subclass.

`strategy` and `view` (a strategy's input), `loss`, `backbone` and `optional` (capabilities of some), `dropout`, `calls`
(how a training step reaches a backbone), `query`.
"""

from negbench.contracts.backbone import Backbone as Backbone
from negbench.contracts.backbone import BackboneIdentity as BackboneIdentity
from negbench.contracts.backbone import TextBatch as TextBatch
from negbench.contracts.backbone import bound_below as bound_below
from negbench.contracts.calls import Calls as Calls
from negbench.contracts.calls import QueryInputs as QueryInputs
from negbench.contracts.dropout import RowDropout as RowDropout
from negbench.contracts.dropout import Rows as Rows
from negbench.contracts.dropout import by_rows as by_rows
from negbench.contracts.dropout import checking_generators as checking_generators
from negbench.contracts.dropout import computing as computing
from negbench.contracts.dropout import current_rows as current_rows
from negbench.contracts.dropout import recomputing as recomputing
from negbench.contracts.dropout import torch_dropout as torch_dropout
from negbench.contracts.loss import AspectScores as AspectScores
from negbench.contracts.loss import CandidateSet as CandidateSet
from negbench.contracts.loss import Loss as Loss
from negbench.contracts.loss import LossInput as LossInput
from negbench.contracts.loss import mean_over_rows as mean_over_rows
from negbench.contracts.optional import ComposesTexts as ComposesTexts
from negbench.contracts.optional import FreezesTexts as FreezesTexts
from negbench.contracts.optional import HasSubQueries as HasSubQueries
from negbench.contracts.optional import HoldsFeatures as HoldsFeatures
from negbench.contracts.optional import ListsFeatures as ListsFeatures
from negbench.contracts.optional import Outline as Outline
from negbench.contracts.optional import Outlines as Outlines
from negbench.contracts.optional import SeesTexts as SeesTexts
from negbench.contracts.optional import SubQuery as SubQuery
from negbench.contracts.optional import TextsSeen as TextsSeen
from negbench.contracts.query import Query as Query
from negbench.contracts.ranges import Range as Range
from negbench.contracts.ranges import tunable as tunable
from negbench.contracts.ranges import tunable_ranges as tunable_ranges
from negbench.contracts.scores import paired_relevance as paired_relevance
from negbench.contracts.scores import relevance as relevance
from negbench.contracts.strategy import BankStep as BankStep
from negbench.contracts.strategy import BankStrategy as BankStrategy
from negbench.contracts.strategy import BatchStrategy as BatchStrategy
from negbench.contracts.strategy import Epoch as Epoch
from negbench.contracts.strategy import OrderedBatches as OrderedBatches
from negbench.contracts.strategy import Slot as Slot
from negbench.contracts.strategy import Strategy as Strategy
from negbench.contracts.strategy import SyntheticStrategy as SyntheticStrategy
from negbench.contracts.view import PLANES as PLANES
from negbench.contracts.view import PlaneName as PlaneName
from negbench.contracts.view import ScoreView as ScoreView
from negbench.errors import check_option as check_option
from negbench.metrics.fixed import DEFAULT_TEMPERATURE as DEFAULT_TEMPERATURE
