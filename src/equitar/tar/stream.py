"""`tar_samples`: streams samples from local shards without an index, with all checks of the index.

It replaces ``wds.tarfile_to_samples()`` in pipelines composed by hand: the samples are the same, are read several times as fast,
and what webdataset silently ignores is an error. Ordinary shards are read in batches of headers (`equitar.tar.bulk`); where one
is not ordinary, the walk continues with the first sample that was not yielded.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from equitar.errors import ShardError, SourceError
from equitar.sources import Sample
from equitar.storage.streams import GZIP_MAGIC
from equitar.tar.bulk import BulkHeaders, BulkMembers, Pread, checked
from equitar.tar.grouping import RESERVED, SampleGrouper, split_name
from equitar.tar.walk import Member, walk
from equitar.urls import local_path, shown

_BATCH = 512  # headers: few enough for a quick first sample, enough for numpy
_SPAN = (
    1 << 15
)  # bytes up to which a sample is read at once and sliced; larger members are read one by one, without a copy


@dataclass(frozen=True, slots=True)
class TarSamples:
    """The stage that `tar_samples` returns."""

    def __call__(self, shards: Iterable[str | Mapping[str, Any]]) -> Iterator[Sample]:
        """Yield the samples of shards, given as URLs or as the dicts of `wds.SimpleShardList`."""
        for shard in shards:
            yield from _samples(shard if isinstance(shard, str) else shard["url"])


def tar_samples() -> TarSamples:
    """Return a stage that reads samples from local shards without an index, in place of ``wds.tarfile_to_samples()``.

    A sample is yielded once it is known to be complete: a truncated shard loses its last one and is a `ShardError`.

    >>> import webdataset as wds
    >>> pipeline = wds.DataPipeline(wds.SimpleShardList("shards-{000..003}.tar"), tar_samples())
    """
    return TarSamples()


def _samples(url: str) -> Iterator[Sample]:
    """Yield the samples of one shard."""
    path = local_path(url)
    if path is None:
        fix = "index its source, or read it by `wds.tarfile_to_samples()`"
        raise SourceError(f"`tar_samples` only reads local files; got {shown(url)!r}; {fix}")
    with closing(cast("BinaryIO", Path(path).open("rb", buffering=0))) as file:
        size = os.fstat(file.fileno()).st_size
        done = yield from _in_batches(file.fileno(), size, url)
        if done is not None:
            file.seek(0)
            yield from _walked(file, size, url, done)


def _in_batches(file: int, size: int, url: str) -> Generator[Sample, None, int | None]:
    """Yield the samples of a shard while it is ordinary; return their number where it is not, None at its end."""

    def pread(length: int, position: int) -> bytes:
        return os.pread(file, length, position)

    if pread(len(GZIP_MAGIC), 0) == GZIP_MAGIC:
        return 0
    headers = BulkHeaders(pread)
    seen: set[str] = set()
    empty = np.zeros(0, np.int64)
    last = BulkMembers([], empty, empty, [])  # of the last sample, which may not be complete
    while True:
        has_more = headers.advance(_BATCH)
        members = checked(headers) if has_more else last if headers.ends_with_mark(size) else None
        if members is None or headers.position > size:
            return len(seen)
        rows = _rows(_joined(last, members) if has_more else last, seen)
        if rows is None:
            return len(seen)
        last_row = len(rows.starts) - has_more
        for sample in _read(rows, max(0, last_row), pread, url):
            if sample is None:  # it was truncated just now
                return len(seen)
            seen.add(sample["__key__"])
            yield sample
        if not has_more:
            return None
        last = _row(rows, last_row) if last_row >= 0 else last


def _joined(first: BulkMembers, second: BulkMembers) -> BulkMembers:
    return BulkMembers(
        first.names + second.names,
        np.concatenate([first.offset, second.offset]),
        np.concatenate([first.size, second.size]),
        [],
    )


def _rows(members: BulkMembers, seen: set[str]) -> SampleGrouper | None:
    """Return the samples of a batch, None if any of them is left to the walk."""
    rows = SampleGrouper("")
    try:
        if not rows.add_uniform(members):
            rows.add_all(map(Member, members.names, members.offset.tolist(), members.size.tolist()))
    except ShardError:
        return None
    keys = rows.row_of.keys()
    # With both prefixes, `./a` and `a` may name the same file.
    prefixes = {key.startswith("./") for key in [*keys, *islice(seen, 1)]}
    is_odd = not seen.isdisjoint(keys) or not rows.fields.keys().isdisjoint(RESERVED) or len(prefixes) > 1
    return None if is_odd else rows


def _row(rows: SampleGrouper, row: int) -> BulkMembers:
    """Return the members of one sample again."""
    start = rows.starts[row]
    key, fields = list(rows.row_of)[row], list(rows.fields)
    names = [f"{key}.{fields[number]}" for number in rows.field[start:]]
    return BulkMembers(names, np.array(rows.offset[start:], np.int64), np.array(rows.size[start:], np.int64), [])


def _read(rows: SampleGrouper, count: int, pread: Pread, url: str) -> Iterator[Sample | None]:
    """Yield the first samples of a batch, and None if the file has become shorter."""
    names = [list(rows.fields)[number] for number in rows.field]
    offsets, sizes, ends = rows.offset, rows.size, [*rows.starts[1:], len(rows.field)]
    for key, first, last in zip(list(rows.row_of)[:count], rows.starts, ends, strict=False):
        sample: Sample = {"__key__": key, "__url__": url}
        begin = offsets[first]
        length = offsets[last - 1] + sizes[last - 1] - begin
        if length <= _SPAN:
            raw = pread(length, begin)
            for member in range(first, last):
                start = offsets[member] - begin
                sample[names[member]] = raw[start : start + sizes[member]]
            is_whole = len(raw) == length
        else:
            for member in range(first, last):
                sample[names[member]] = pread(sizes[member], offsets[member])
            is_whole = all(len(sample[names[member]]) == sizes[member] for member in range(first, last))
        yield sample if is_whole else None


def _walked(file: BinaryIO, size: int, url: str, done: int) -> Iterator[Sample]:
    """Yield the samples of any shard, after the first `done` of them."""
    where = shown(url)
    rows = SampleGrouper(where)
    members = walk(file, size=size, where=where, want=lambda _: True)
    keys: list[str] = []
    try:
        for member in members:
            num_fields = len(rows.fields)
            rows.add_all((member,))
            if len(rows.fields) > num_fields:
                rows.check_fields()
            if len(rows.starts) > len(keys):
                keys.append(next(reversed(rows.row_of)))
                rows.check_key(keys[-1])
                if len(keys) - 1 > done:
                    yield _sample(rows, keys, len(keys) - 2, url)
    except ShardError:
        after = split_name(members.truncated) if members.truncated is not None else None
        if after is not None and len(keys) > done and after[0] not in rows.row_of:  # the sample before it is complete
            yield _sample(rows, keys, len(keys) - 1, url)
        raise
    if not members.has_end_mark:
        rows.check_last()
    if len(keys) > done:
        yield _sample(rows, keys, len(keys) - 1, url)


def _sample(rows: SampleGrouper, keys: list[str], row: int, url: str) -> Sample:
    content, rows.contents[row] = rows.contents[row], {}
    return {"__key__": keys[row], "__url__": url, **content}
