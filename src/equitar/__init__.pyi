from . import errors as errors
from . import samplers as samplers
from . import stages as stages
from .benchmarking.bench import bench as bench
from .errors import EquitarError as EquitarError
from .indexing.estimate import dry_run as dry_run
from .indexing.index import check as check
from .indexing.index import index as index
from .indexing.index import summarize as summarize
from .loading.batches import Batches as Batches
from .loading.builders import debiased as debiased
from .loading.builders import exact as exact
from .loading.builders import mixed as mixed
from .loading.loader import Loader as Loader
from .planning.repeat_factors import RepeatFactor as RepeatFactor
from .planning.weights import BySamples as BySamples
from .planning.weights import Passes as Passes
from .planning.weights import Temperature as Temperature
from .planning.weights import ZeroVL as ZeroVL
from .reporting.exporting import export as export
from .reporting.page import report as report
from .reporting.preview import emissions as emissions
from .reporting.preview import plan as plan
from .reporting.probing import caption_probe as caption_probe
from .reporting.probing import source_probe as source_probe
from .reporting.stats import stats as stats
from .samplers.distributed import DistributedSamplerWrapper as DistributedSamplerWrapper
from .samplers.samplers import DebiasedBatchSampler as DebiasedBatchSampler
from .samplers.samplers import RepeatFactorSampler as RepeatFactorSampler
from .sidecars.selection import write_exclusions as write_exclusions
from .sources import Cache as Cache
from .sources import Retries as Retries
from .sources import Source as Source
from .sources import split as split

__all__: list[str]
__version__: str
