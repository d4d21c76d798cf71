from .loading.collate import with_partners as with_partners
from .loading.stages import batched_by_source as batched_by_source
from .loading.stages import read as read
from .loading.stages import repeats as repeats
from .loading.stages import shuffled as shuffled
from .loading.stages import slices as slices
from .sidecars.catalog import catalog_of as catalog_of
from .tar.stream import tar_samples as tar_samples

__all__: list[str]
