"""The dry run of indexing: some shards are walked and timed, the cost of all is estimated; nothing is written.

A remote shard can be read in two ways. `index` walks its headers by ranges, which saves bytes where members are large and costs
requests where they are small. The other is to fetch it whole, by a ``pipe:`` URL or as a copy on a local disk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from equitar.errors import MissingShardError
from equitar.indexing.shard_task import Shard
from equitar.indexing.source_job import SourceJob, jobs_of_sources
from equitar.labels.extractors import labels_from_spec
from equitar.sources import Source
from equitar.storage.files import exists, read_many
from equitar.storage.ranges import RangesFile
from equitar.storage.streams import open_remote, open_stream
from equitar.tar.table import MemberTable, read_in_bulk, read_table
from equitar.urls import local_path

_PART = 8 << 20  # bytes of one request
_TIMED = 32 << 20  # bytes of a shard that are fetched to time the transfer of whole ones
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way of reading all shards of a source that are to be read.

    Attributes:
        how: A description.
        requests: Requests to the store, or reads of the disk.
        bytes: Bytes that are read.
        seconds: Time with as many processes as `Estimate.jobs`.
    """

    how: str
    requests: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What indexing a source would cost.

    Attributes:
        name: The source.
        shards: Its shards.
        to_read: Those that have no sidecar yet.
        walked: Shards that were walked; the numbers below are estimated from them.
        samples: Samples of the shards to read.
        bytes: Length of the shards to read.
        jobs: Processes.
        ways: Ways of reading them; the first is that of `index`.
    """

    name: str
    shards: int
    to_read: int
    walked: int
    samples: int
    bytes: int
    jobs: int
    ways: tuple[Way, ...]


class _Cost(NamedTuple):
    """The cost of reading one shard."""

    samples: int
    size: int
    ways: tuple[Way, ...]


def dry_run(
    sources: Source | Iterable[Source],
    *,
    labels: str | None = None,
    walked: int = 3,
    jobs: int = 1,
    force: bool = False,
    clock: Clock = time.perf_counter,
) -> list[Estimate]:
    """Return what `index` would read and about how long that would take; nothing is written.

    Args:
        sources: What would be indexed.
        labels: Where labels are in the shards, as for `index`; their members are read too.
        walked: Number of shards of each source to walk, >= 1.
        jobs: Number of processes.
        force: Whether shards that have sidecars would be read again.
        clock: Returns seconds.

    Raises:
        MissingShardError: If a shard to walk does not exist.
        ShardError: If one is damaged.
    """
    extract = None if labels is None else labels_from_spec(labels)
    fields = () if extract is None else extract.fields
    return [
        _estimate(job, fields, walked=walked, jobs=jobs, force=force, clock=clock) for job in jobs_of_sources(sources)
    ]


def _estimate(
    job: SourceJob, fields: Collection[str] | None, *, walked: int, jobs: int, force: bool, clock: Clock
) -> Estimate:
    shards = job.shards if force else _without_sidecar(job.shards)
    step = max(1, (len(shards) - 1) / max(1, walked - 1))
    chosen = [shards[round(number * step)] for number in range(min(walked, len(shards)))]
    costs = [_cost(shard, fields, clock) for shard in chosen]
    each = len(shards) / max(1, len(costs))  # shards that each of the walked ones stands for

    def scaled(how: str) -> Way:
        ways = [way for cost in costs for way in cost.ways if way.how == how]
        return Way(
            how=how,
            requests=round(each * sum(way.requests for way in ways)),
            bytes=round(each * sum(way.bytes for way in ways)),
            seconds=each * sum(way.seconds for way in ways) / jobs,
        )

    return Estimate(
        name=job.source.name,
        shards=len(job.shards),
        to_read=len(shards),
        walked=len(costs),
        samples=round(each * sum(cost.samples for cost in costs)),
        bytes=round(each * sum(cost.size for cost in costs)),
        jobs=jobs,
        ways=tuple(map(scaled, dict.fromkeys(way.how for cost in costs for way in cost.ways))),
    )


def _without_sidecar(shards: Sequence[Shard]) -> list[Shard]:
    has_sidecar = read_many(lambda shard: exists(shard.sidecar, shard.options, shard.retries), shards)
    return [shard for shard, is_there in zip(shards, has_sidecar, strict=True) if not is_there]


def _cost(shard: Shard, fields: Collection[str] | None, clock: Clock) -> _Cost:
    try:
        if local_path(shard.url) is not None:
            return _local(shard, fields, clock)
        return (_piped if shard.url.startswith("pipe:") else _remote)(shard, fields, clock)
    except FileNotFoundError as error:
        raise MissingShardError(f"{shard.where} is missing") from error


def _local(shard: Shard, fields: Collection[str] | None, clock: Clock) -> _Cost:
    begin = clock()
    with Path(cast("str", local_path(shard.url))).open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        counted = _Counted(lambda start, length: os.pread(file.fileno(), length, start), size)
        table = read_in_bulk(lambda length, start: counted.read(start, length), size, shard.where, fields)
        if table is None:
            table = _walked(counted, shard, fields)
    return _Cost(len(table.keys), size, (counted.way("headers, from a local disk", clock() - begin),))


def _piped(shard: Shard, fields: Collection[str] | None, clock: Clock) -> _Cost:
    begin = clock()
    with open_stream(shard.url, shard.options, shard.retries) as (file, size):
        table = read_table(file, size=size, where=shard.where, fields=fields)
    way = Way(how="whole shards, by their command", requests=1, bytes=size, seconds=clock() - begin)
    return _Cost(len(table.keys), size, (way,))


def _remote(shard: Shard, fields: Collection[str] | None, clock: Clock) -> _Cost:
    with closing(open_remote(shard.url, shard.options, shard.retries)) as ranges:
        begin = clock()
        size = ranges.size()
        counted = _Counted(ranges.read, size, requests=1)
        table = _walked(counted, shard, fields)
        walk = counted.way("headers, by ranges", clock() - begin)
        begin, whole = clock(), _Counted(ranges.read, size)
        for start in range(0, min(size, _TIMED), _PART):
            whole.read(start, min(_PART, size - start))
        seconds = (clock() - begin) * size / max(1, whole.bytes)
    fetched = Way(how="whole shards", requests=1 - (-size // _PART), bytes=size, seconds=seconds)
    return _Cost(len(table.keys), size, (walk, fetched))


def _walked(counted: _Counted, shard: Shard, fields: Collection[str] | None) -> MemberTable:
    file = cast("BinaryIO", RangesFile(counted))
    return read_table(file, size=counted.size(), where=shard.where, fields=fields)


class _Counted:
    """Ranges of a shard, counted."""

    descriptor = -1  # see `Ranges`

    def __init__(self, read: Callable[[int, int], bytes], size: int, *, requests: int = 0) -> None:
        self._read, self._size = read, size
        self.requests, self.bytes = requests, 0

    def read(self, start: int, length: int) -> bytes:
        """Return bytes of the shard."""
        self.requests += max(1, -(-length // _PART))
        raw = self._read(start, length)
        self.bytes += len(raw)
        return raw

    def size(self) -> int:
        """Return the length of the shard in bytes."""
        return self._size

    def close(self) -> None:
        """Do nothing: whoever opened the shard closes it."""

    def way(self, how: str, seconds: float) -> Way:
        """Return the way with these counts."""
        return Way(how=how, requests=self.requests, bytes=self.bytes, seconds=seconds)
