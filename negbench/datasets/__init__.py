"""What a data set is, and all that the author of one imports; the built-in ones are in `benchmarks` and `worlds`."""

from negbench.contracts.card import Counts as Counts
from negbench.contracts.card import DatasetCard as DatasetCard
from negbench.contracts.query import Query as Query
from negbench.datasets.dataset import Dataset as Dataset
from negbench.datasets.dataset import FolderOptions as FolderOptions
from negbench.datasets.dataset import columns_of as columns_of
from negbench.files.image_files import ImageFiles as ImageFiles
from negbench.files.reader import Reader as Reader
from negbench.files.reader import check_choice as check_choice
from negbench.files.reader import get as get
from negbench.files.reader import image_id as image_id
from negbench.metrics.metric import Metric as Metric
from negbench.metrics.metric import hits as hits
from negbench.metrics.metric import precision as precision
from negbench.metrics.query_ranks import QueryRanks as QueryRanks
