"""Blocks of samples: batches without stages, looked up for many steps at once.

Most of what a sample costs in Python is looking up where its members are. For a block of steps that takes one indexing
operation per shard; then each batch takes one positioned read per sample and one slice per member. A large member has a read of
its own, straight into the `bytes` that is handed out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from equitar.arrays import Int64
from equitar.planning.plan import PlannedSamples
from equitar.reading.reader import Reader
from equitar.reading.shard import OpenShard

_LARGE = 1 << 15  # bytes of a member: a batch of them is out of the cache before it could be sliced


class _MemberSpan(NamedTuple):
    """Neighbouring members of samples, which are read together. Lists: batches take them a slice at a time."""

    whole: str | None  # the field, if there is only one: what is read is the member
    members: list[
        tuple[str, list[int], list[int]]
    ]  # otherwise each field, and where its members begin and end in what is read
    starts: list[int]  # where each sample is read from
    lengths: list[int]  # bytes of each sample

    @staticmethod
    def of(names: Sequence[str], start: Int64, stop: Int64) -> _MemberSpan:
        """Return the span of some fields, from where their members begin and end, (fields, n) each."""
        begin = start[0]
        starts, lengths = begin.tolist(), (stop[-1] - begin).tolist()
        if len(names) == 1:
            return _MemberSpan(names[0], [], starts, lengths)
        members = zip(names, (start - begin).tolist(), (stop - begin).tolist(), strict=True)
        return _MemberSpan(None, list(members), starts, lengths)


class UniformSamples:
    """Samples of the same fields in the same order, looked up and not yet read."""

    def __init__(self, shards: Sequence[OpenShard], shard_of: Int64, row: Int64, layout: tuple[str, ...]) -> None:
        """Look up where members are.

        Args:
            shards: Open shards.
            shard_of: Which of them each sample is in, (n,).
            row: Row of each sample, (n,).
            layout: The fields of all of them.
        """
        self._shards, self._shard_of = shards, shard_of
        self._url: list[str] = np.array([shard.url for shard in shards], object)[shard_of].tolist()
        self._descriptor: list[int] = np.array([shard.descriptor for shard in shards])[shard_of].tolist()
        keys = np.empty(len(row), object)
        start, stop = (np.empty((len(layout), len(row)), np.int64) for _ in range(2))  # of each member
        for shard in np.unique(shard_of).tolist():
            here = np.flatnonzero(shard_of == shard)
            keys[here] = shards[shard].keys(row[here])
            start[:, here], stop[:, here] = shards[shard].members(row[here])
        self._key = keys.tolist()
        is_large = (stop - start).mean(axis=1) >= _LARGE
        edges = np.flatnonzero(is_large[1:] | is_large[:-1]) + 1
        self._member_spans = [
            _MemberSpan.of(layout[low:high], start[low:high], stop[low:high])
            for low, high in pairwise([0, *edges.tolist(), len(layout)])
        ]

    def columns(self, first: int, last: int) -> dict[str, list[Any]]:
        """Read samples [first, last); see `SampleBlock.columns`."""
        batch: dict[str, list[Any]] = {"__key__": self._key[first:last], "__url__": self._url[first:last]}
        for member_span in self._member_spans:
            spans = self._read(member_span, first, last)
            for name, begins, ends in member_span.members:
                slices = zip(spans, begins[first:last], ends[first:last], strict=True)
                batch[name] = [span[begin:end] for span, begin, end in slices]
            if member_span.whole is not None:
                batch[member_span.whole] = spans
        return batch

    def _read(self, member_span: _MemberSpan, first: int, last: int) -> list[Any]:
        """Read some members of samples [first, last), one range each."""
        starts, lengths = member_span.starts[first:last], member_span.lengths[first:last]
        spans: list[Any] = list(map(os.pread, self._descriptor[first:last], lengths, starts))
        if list(map(len, spans)) != lengths:  # read again, for the rest or for the error that says what is wrong
            files = [self._shards[shard].file for shard in self._shard_of[first:last].tolist()]
            spans = [file.read(start, length) for file, start, length in zip(files, starts, lengths, strict=True)]
        return [memoryview(span) for span in spans] if self._shards[0].has_views else spans


class SampleBlock:
    """The samples of some steps, looked up and not yet read: those of the same fields together."""

    def __init__(self, readers: Sequence[Reader], places: PlannedSamples) -> None:
        """Open their shards, and look up where their members are.

        Args:
            readers: A reader for each source; their open shards must not be evicted until the block is read.
            places: What lies in the steps of the block, step after step, (n,), n >= 1.
        """
        codes, shard_of = np.unique(_codes(places), return_inverse=True)
        shards = [readers[code >> 32].open(code & (1 << 32) - 1) for code in codes.tolist()]
        layouts = [shard.layout if shard.descriptor >= 0 else None for shard in shards]
        kinds = list(dict.fromkeys(layouts))
        self._kind = np.array([kinds.index(layout) for layout in layouts])[shard_of]  # of each place, (n,)
        self._index = np.empty(len(shard_of), np.int64)  # where it is among those of its kind, (n,)
        self._uniform: list[UniformSamples | None] = []
        for kind, layout in enumerate(kinds):
            here = np.flatnonzero(self._kind == kind)
            self._index[here] = np.arange(len(here))
            self._uniform.append(UniformSamples(shards, shard_of[here], places.row[here], layout) if layout else None)

    def columns(self, first: int, last: int) -> dict[str, list[Any]] | None:
        """Read samples [first, last) of the block, as `equitar.loading.collate.columns` would make a batch of them.

        Returns:
            The columns; None if the samples must be read one by one: they are of several kinds, or not in local files.

        Raises:
            ShardMismatchError: If a shard ends early.
        """
        kinds = self._kind[first:last]
        uniform = self._uniform[int(kinds[0])]
        if uniform is None or (kinds != kinds[0]).any():
            return None
        begin = int(self._index[first])
        return uniform.columns(begin, begin + last - first)


def shards_in(places: PlannedSamples) -> int:
    """Return how many shards must be opened for some planned samples."""
    return len(np.unique(_codes(places)))


def _codes(places: PlannedSamples) -> Int64:
    return places.source << 32 | places.shard
