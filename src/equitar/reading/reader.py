"""Readers: one sample of a source, by shard and row.

A shard is opened when its first sample is read, and a limited number stay open. The size of a shard is compared with its sidecar
when it is opened, and a read that ends early is an error, so a shard that was replaced is never sliced wrongly.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Protocol, TypeAlias

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
    """Return the cache in which all readers of a worker keep their open shards; whoever reads evicts from it between reads."""
    return BoundedCache(OPEN_BYTES, OPEN_SHARDS, _closed)


def _closed(value: tuple[dict[int, OpenShard], int, OpenShard]) -> bool:
    """Close a shard, unless something is being fetched from it."""
    of_reader, number, shard = value
    if shard.prefetch is not None and shard.prefetch.spans:
        return False
    del of_reader[number]
    shard.close()
    return True


class SampleReader(Protocol):
    """What a feed needs of a reader; classes that read otherwise inherit the defaults."""

    may_lose: bool = False  # whether `read` may raise SampleLostError
    for_blocks: Reader | None = None  # reads the same samples, several steps at once

    def read(self, shard: int, row: int) -> Sample:
        """Return one sample.

        Raises:
            SampleLostError: If it cannot be read, and that is not an error.
        """

    def wanted(self, shard: int, row: int) -> list[Wanted]:
        """Return the remote ranges that a sample will be read by."""
        return []


class Reader(SampleReader):
    """Reads samples of one source by shard and row."""

    def __init__(self, sidecars: Sidecars, cache: OpenShards, *, fields: Collection[str] | None, copy: bool) -> None:
        """Prepare.

        Args:
            sidecars: The sidecars of the source.
            cache: Where open shards are kept, together with those of other sources.
            fields: Fields to read; None reads all.
            copy: Whether fields are `bytes`; otherwise they are read-only views of one buffer for each sample.
        """
        self._sidecars, self._cache, self._copy = sidecars, cache, copy
        self._fields = None if fields is None else frozenset(field.lower() for field in fields)
        self._open: dict[int, OpenShard] = {}
        self.for_blocks = self
        self._unchecked: set[int] = set()

    def open(self, shard: int) -> OpenShard:
        """Return a shard, open until the next `evict`.

        Raises:
            StaleSidecarError: If it has another size than when it was indexed.
        """
        return self._open.get(shard) or self._opened(shard)

    def read(self, shard: int, row: int) -> Sample:
        """Return one sample; other shards may be closed if its shard must be opened.

        Raises:
            StaleSidecarError: If the shard has another size than when it was indexed.
            ShardMismatchError: If it ends early.
        """
        opened = self._open.get(shard)
        if opened is None:
            self.evict()
            opened = self._opened(shard)
        return opened.sample(row)

    def read_checked(self, shard: int, row: int) -> Sample:
        """Return one sample of a shard that does not match its sidecar, if at least the sample does.

        Raises:
            ShardMismatchError: If the headers of its members are not there.
        """
        opened = self.open(shard)
        opened.check_headers(row)
        return opened.sample(row)

    def reopen(self, shard: int) -> None:
        """Open a shard from now on although it does not match its sidecar."""
        self._unchecked.add(shard)
        self._close(shard)

    @cached_property
    def is_remote(self) -> bool:
        """Whether its shards are worth prefetching."""
        urls = self._sidecars.shards.urls  # all in one place, as they have one root
        return bool(urls) and local_path(urls[0]) is None

    def wanted(self, shard: int, row: int) -> list[Wanted]:
        """Return the ranges that a sample will be read by; none if its shard is a local file."""
        if not self.is_remote:
            return []
        opened = self.open(shard)
        queue = opened.prefetch
        return [] if queue is None else [(queue, *span) for span in opened.ranges(row)]

    def key_of(self, shard: int, row: int) -> str:
        """Return the key of a sample, from the sidecar."""
        return self._sidecars(shard).keys[row]

    def evict(self) -> None:
        """Close shards, of this and the other readers of the cache, until it is within its bounds."""
        self._cache.evict()

    def _opened(self, shard: int) -> OpenShard:
        url, sidecar = self._sidecars.shards.urls[shard], self._sidecars(shard)
        file = open_ranges(url, sidecar, self._sidecars.source, unchecked=shard in self._unchecked)
        opened = OpenShard(url, sidecar, file, fields=self._fields, views=not self._copy)
        self._open[shard] = opened
        self._cache.put((id(self), shard), (self._open, shard, opened), opened.num_bytes)
        return opened

    def _close(self, shard: int) -> None:
        if shard in self._open:
            self._open.pop(shard).close()
            self._cache.drop((id(self), shard))

    def close(self) -> None:
        """Close all shards."""
        for shard in list(self._open):
            self._close(shard)
