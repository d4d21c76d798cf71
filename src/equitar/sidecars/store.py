"""What do the sidecars of a source say? They are read when they are asked for, and the latest are kept."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from tqdm import tqdm

from equitar.bounded_cache import BoundedCache
from equitar.errors import StaleSidecarError
from equitar.sidecars.sidecar import Sidecar, read_sidecar
from equitar.sidecars.summary import Summary
from equitar.sources import Source, index_command
from equitar.storage.listing import ShardList, sidecar_url
from equitar.urls import shown

_THREADS = 16  # sidecars are small files: opening them is most of the time
_AHEAD = 64  # sidecars read before they are asked for
_LONG = 3.0  # seconds of reading after which one wants to see how far it is
SIDECAR_BYTES = 32 << 20  # kept in one worker, for all sources
_SIDECARS = 1024


def sidecar_shelf() -> BoundedCache[Sidecar]:
    """Return what keeps the latest sidecars of all sources."""
    return BoundedCache(SIDECAR_BYTES, _SIDECARS, bool)  # nothing is to be done to let one go


class Sidecars:
    """The sidecars of one source, read when they are asked for; the latest are kept."""

    def __init__(self, source: Source, shards: ShardList, summary: Summary, kept: BoundedCache[Sidecar]) -> None:
        """Read from where the source says; each sidecar must be that of the summary. Sources share what is kept."""
        self.source, self.shards, self._summary, self._kept = source, shards, summary, kept

    def __call__(self, shard: int) -> Sidecar:
        """Return the sidecar of a shard."""
        name = (self.source.name, shard)
        sidecar = self._kept.get(name)
        if sidecar is None:
            sidecar = self._read(shard)
            self._kept.put(name, sidecar, _memory_of(sidecar))
            self._kept.evict()
        return sidecar

    def all(self) -> Iterator[Sidecar]:
        """Yield the sidecars of all shards in order, without remembering them; what takes long shows a bar on a terminal."""
        what = f"sidecars of {self.source.name}"
        with (
            ThreadPoolExecutor(_THREADS) as pool,
            tqdm(desc=what, total=len(self.shards), unit="shard", delay=_LONG, leave=False, disable=None) as bar,
        ):
            for first in range(0, len(self.shards), _AHEAD):  # not all at once: those nobody has taken yet are held
                for sidecar in pool.map(self._read, range(first, min(first + _AHEAD, len(self.shards)))):
                    yield sidecar
                    bar.update()

    def _read(self, shard: int) -> Sidecar:
        url = sidecar_url(self.shards, self.shards.paths[shard])
        mend = index_command(self.source)
        sidecar = read_sidecar(url, mend=mend, storage_options=self.source.storage_options)
        if not self._summary.is_of(sidecar, shard):
            raise StaleSidecarError(
                f"{shown(url)} is not the sidecar that the summary of {self.source.name!r} was made of; {mend}"
            )
        return sidecar


def _memory_of(sidecar: Sidecar) -> int:
    """Return about how many bytes of memory a sidecar takes: 100 for each key, 8 for each number."""
    labels = 0 if sidecar.presence is None else 2 * len(sidecar.presence.ids)
    return 100 * sidecar.num_rows + 8 * (3 * len(sidecar.field) + 2 * sidecar.num_rows + labels)
