"""How is one sample read? Shards are opened when one of their samples is asked for, and a few stay open.

The size of a shard is compared with its sidecar when it is opened, and a read that ends early is an error: a shard that has
become another is never sliced wrongly.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from equitar.bounded_cache import BoundedCache
from equitar.reading.prefetch import Wanted
from equitar.reading.shard import OpenShard
from equitar.reading.shard_file import open_ranges
from equitar.sidecars.store import Sidecars
from equitar.sources import Sample
from equitar.urls import local_path

OPEN_BYTES = 64 << 20  # of member tables, in one worker
OPEN_SHARDS = 256  # a process may have some 1,000 files open
OpenShards: TypeAlias = BoundedCache[tuple[dict[int, OpenShard], int, OpenShard]]


def open_shards() -> OpenShards:
    """Return the shelf on which all readers of a worker put their open shards; whoever reads trims it between reads."""
    return BoundedCache(OPEN_BYTES, OPEN_SHARDS, _closed)


def _closed(value: tuple[dict[int, OpenShard], int, OpenShard]) -> bool:
    """Close a shard, unless something is fetched of it."""
    of_reader, shard, one = value
    if one.file.announced is not None and one.file.announced.spans:
        return False
    del of_reader[shard]
    one.close()
    return True


class Reader:
    """Reads samples of one source by shard and row."""

    def __init__(self, sidecars: Sidecars, shelf: OpenShards, *, fields: Collection[str] | None, copy: bool) -> None:
        """Prepare.

        Args:
            sidecars: The sidecars of the source.
            shelf: Where open shards are kept, beside those of other sources.
            fields: Fields to read; None reads all.
            copy: Whether fields are `bytes`; otherwise they are read-only views of one buffer for each sample.
        """
        self._sidecars, self._shelf, self._copy = sidecars, shelf, copy
        self._fields = None if fields is None else frozenset(field.lower() for field in fields)
        self._open: dict[int, OpenShard] = {}
        self._as_it_is: set[int] = set()

    def open(self, shard: int) -> OpenShard:
        """Return a shard, open until the shelf is trimmed.

        Raises:
            StaleSidecarError: If it has another size than when it was indexed.
        """
        return self._open.get(shard) or self._opened(shard)

    def read(self, shard: int, row: int) -> Sample:
        """Return one sample; the shelf is trimmed if its shard is to be opened.

        Raises:
            StaleSidecarError: If the shard has another size than when it was indexed.
            ShardMismatchError: If it ends early.
        """
        one = self._open.get(shard)
        if one is None:
            self.evict()
            one = self._opened(shard)
        return one.sample(row)

    def read_checked(self, shard: int, row: int) -> Sample:
        """Return one sample of a shard that is not what its sidecar says, if at least the sample is.

        Raises:
            ShardMismatchError: If the headers of its members are not there.
        """
        one = self.open(shard)
        one.check_headers(row)
        return one.sample(row)

    def reopen(self, shard: int) -> None:
        """Open a shard although it is not what its sidecar says, from now on."""
        self._as_it_is.add(shard)
        self._close(shard)

    @property
    def is_remote(self) -> bool:
        """Whether its shards are worth reading ahead of."""
        urls = self._sidecars.shards.urls  # which are all in one place, as they have one root
        return bool(urls) and local_path(urls[0]) is None

    def wanted(self, shard: int, row: int) -> list[Wanted]:
        """Return the ranges that a sample will be read by; none if its shard is here."""
        one = self.open(shard)
        queue = one.file.announced
        return [] if queue is None else [(queue, *span) for span in one.ranges(row)]

    def key_of(self, shard: int, row: int) -> str:
        """Return the key of a sample, from the sidecar."""
        return self._sidecars(shard).keys[row]

    def evict(self) -> None:
        """Close shards, of this and the other readers of the shelf, until its bounds are kept."""
        self._shelf.evict()

    def _opened(self, shard: int) -> OpenShard:
        url, sidecar = self._sidecars.shards.urls[shard], self._sidecars(shard)
        file = open_ranges(url, sidecar, self._sidecars.source, as_it_is=shard in self._as_it_is)
        one = OpenShard(url, sidecar, file, fields=self._fields, views=not self._copy)
        self._open[shard] = one
        self._shelf.put((id(self), shard), (self._open, shard, one), one.num_bytes)
        return one

    def _close(self, shard: int) -> None:
        if shard in self._open:
            self._open.pop(shard).close()
            self._shelf.drop((id(self), shard))

    def close(self) -> None:
        """Close all shards."""
        for shard in list(self._open):
            self._close(shard)
