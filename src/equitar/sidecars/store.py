"""The sidecars of a source, read on demand; the latest are kept in memory."""

from __future__ import annotations

from collections.abc import Iterator

from tqdm import tqdm

from equitar.bounded_cache import BoundedCache
from equitar.errors import StaleSidecarError
from equitar.sidecars.sidecar import Sidecar, read_sidecar
from equitar.sidecars.summary import Summary
from equitar.sources import Source
from equitar.storage.files import read_many
from equitar.storage.listing import ShardList, sidecar_url
from equitar.urls import shown

_LONG = 3.0  # seconds of reading after which a bar is shown
SIDECAR_BYTES = 32 << 20  # kept in one worker, for all sources
_SIDECARS = 1024


def sidecar_cache() -> BoundedCache[Sidecar]:
    """Return a cache of the latest sidecars of all sources."""
    return BoundedCache(SIDECAR_BYTES, _SIDECARS, bool)  # nothing is to be done at eviction


class Sidecars:
    """The sidecars of one source, read on demand; the latest are kept."""

    def __init__(self, source: Source, shards: ShardList, summary: Summary, cache: BoundedCache[Sidecar]) -> None:
        """Each sidecar must be the one in the summary. Sources share the cache."""
        self.source, self.shards, self._summary, self._cache = source, shards, summary, cache

    def __call__(self, shard: int) -> Sidecar:
        """Return the sidecar of a shard."""
        name = (self.source.name, shard)
        sidecar = self._cache.get(name)
        if sidecar is None:
            sidecar = self._read(shard)
            self._cache.put(name, sidecar, _memory_of(sidecar))
            self._cache.evict()
        return sidecar

    def all(self) -> Iterator[Sidecar]:
        """Yield the sidecars of all shards in order, without keeping them; a terminal shows a bar where this takes long."""
        what = f"sidecars of {self.source.name}"
        with tqdm(desc=what, total=len(self.shards), unit="shard", delay=_LONG, leave=False, disable=None) as bar:
            for sidecar in read_many(self._read, range(len(self.shards))):
                yield sidecar
                bar.update()

    def _read(self, shard: int) -> Sidecar:
        url = sidecar_url(self.shards, self.shards.paths[shard])
        fix = self.source.index_command()
        sidecar = read_sidecar(url, fix=fix, storage_options=self.source.storage_options, retries=self.source.retries)
        if not self._summary.is_of(sidecar, shard):
            raise StaleSidecarError(
                f"{shown(url)} is not the sidecar that the summary of {self.source.name!r} was made from; {fix}"
            )
        return sidecar


def _memory_of(sidecar: Sidecar) -> int:
    """Return about how many bytes of memory a sidecar takes: 100 for each key, 8 for each number."""
    labels = 0 if sidecar.presence is None else 2 * len(sidecar.presence.ids)
    return 100 * sidecar.num_rows + 8 * (3 * len(sidecar.table.field) + 2 * sidecar.num_rows + labels)
