"""Data sets: one benchmark, one file; the file name is the registry key. Here is what an author imports."""

from negbench.contracts.query import Query as Query
from negbench.datasets._read import Reader as Reader
from negbench.datasets._read import check_choice as check_choice
from negbench.datasets._read import get as get
from negbench.datasets._read import image_id as image_id
from negbench.datasets.card import Counts as Counts
from negbench.datasets.card import DatasetCard as DatasetCard
from negbench.datasets.dataset import Dataset as Dataset
from negbench.datasets.dataset import FolderOptions as FolderOptions
from negbench.datasets.dataset import columns_of as columns_of
from negbench.datasets.image_files import ImageFiles as ImageFiles
from negbench.metrics.metric import Metric as Metric
from negbench.metrics.metric import hits as hits
from negbench.metrics.metric import precision as precision
from negbench.metrics.query_ranks import QueryRanks as QueryRanks
