"""How are many samples read at once? Batches that no stage looks at, in blocks of steps.

What a sample costs in Python is mostly looking up where its members lie. For a block of steps that is one indexing for each
shard; then each batch takes one positioned read for a sample, and one slice for a member. A large member has a read of its own,
straight into the `bytes` that is handed out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from equitar.laid import Places
from equitar.mix64 import Int64
from equitar.open_shard import OpenShard
from equitar.ranges import LocalRanges
from equitar.reader import Reader

_LARGE = 1 << 15  # bytes of a member: a batch of them is out of the cache before it could be sliced


class Alike:
    """Samples of the same fields in the same order, looked up and not yet read."""

    def __init__(self, shards: Sequence[OpenShard], shard_of: Int64, row: Int64, layout: tuple[str, ...]) -> None:
        """Look up where members lie.

        Args:
            shards: Open shards.
            shard_of: Which of them each sample is in, (n,).
            row: Row of each sample, (n,).
            layout: The fields of all of them.
        """
        self._layout = layout
        self._shard = [shards[one] for one in shard_of.tolist()]
        self._url = [shard.url for shard in self._shard]
        self._descriptor = [shard.descriptor for shard in self._shard]
        keys = np.empty(len(row), object)
        start, stop = (np.empty((len(layout), len(row)), np.int64) for _ in range(2))  # of each member
        for one in np.unique(shard_of).tolist():
            here = np.flatnonzero(shard_of == one)
            keys[here] = shards[one].keys(row[here])
            start[:, here], stop[:, here] = shards[one].members(row[here])
        self._key, self._start, self._stop = keys.tolist(), start, stop
        is_large = (stop - start).mean(axis=1) >= _LARGE
        edges = np.flatnonzero(is_large[1:] | is_large[:-1]) + 1
        self._parts = list(pairwise([0, *edges.tolist(), len(layout)]))  # members that are read together

    def columns(self, first: int, last: int) -> dict[str, list[Any]]:
        """Read samples [first, last); see `Block.columns`."""
        batch: dict[str, list[Any]] = {"__key__": self._key[first:last], "__url__": self._url[first:last]}
        for low, high in self._parts:
            names, begin = self._layout[low:high], self._start[low, first:last]
            spans = self._read(low, high, first, last)
            if len(names) == 1:
                batch[names[0]] = spans
                continue
            starts, stops = (one[low:high, first:last] - begin for one in (self._start, self._stop))
            for name, begins, ends in zip(names, starts.tolist(), stops.tolist(), strict=True):
                batch[name] = [span[a:b] for span, a, b in zip(spans, begins, ends, strict=True)]
        return batch

    def _read(self, low: int, high: int, first: int, last: int) -> list[Any]:
        """Read members [low, high) of samples [first, last), one range each."""
        start, stop = self._start[low, first:last], self._stop[high - 1, first:last]
        starts, lengths = start.tolist(), (stop - start).tolist()
        spans: list[Any] = list(map(os.pread, self._descriptor[first:last], lengths, starts))
        if list(map(len, spans)) != lengths:  # read again, for the rest or for the error that says what is wrong
            shards = self._shard[first:last]
            spans = [shard.file.read(*one) for shard, *one in zip(shards, starts, lengths, strict=True)]
        return [memoryview(span) for span in spans] if self._shard[0].has_views else spans


class Block:
    """The samples of some steps, looked up and not yet read: those of the same fields together."""

    def __init__(self, readers: Sequence[Reader], places: Places) -> None:
        """Open their shards, and look up where their members lie.

        Args:
            readers: A reader for each source; their shelf is not to be trimmed until the block is read.
            places: What lies in the steps of the block, step after step, (n,), n >= 1.
        """
        codes, shard_of = np.unique(_codes(places), return_inverse=True)
        shards = [readers[code >> 32].open(code & (1 << 32) - 1) for code in codes.tolist()]
        layouts = [shard.layout if isinstance(shard.file, LocalRanges) else None for shard in shards]
        kinds = list(dict.fromkeys(layouts))
        self._kind = np.array([kinds.index(one) for one in layouts])[shard_of]  # of each place, (n,)
        self._at = np.empty(len(shard_of), np.int64)  # where it is among those of its kind, (n,)
        self._alike: list[Alike | None] = []
        for kind, layout in enumerate(kinds):
            here = np.flatnonzero(self._kind == kind)
            self._at[here] = np.arange(len(here))
            self._alike.append(Alike(shards, shard_of[here], places.row[here], layout) if layout else None)

    def columns(self, first: int, last: int) -> dict[str, list[Any]] | None:
        """Read samples [first, last) of the block, as `equitar.columns.columns` would make a batch of them.

        Returns:
            The columns; None if the samples must be read one by one: they are of several kinds, or not of files here.

        Raises:
            ShardMismatchError: If a shard ends early.
        """
        kinds = self._kind[first:last]
        alike = self._alike[int(kinds[0])]
        if alike is None or (kinds != kinds[0]).any():
            return None
        at = int(self._at[first])
        return alike.columns(at, at + last - first)


def shards_in(places: Places) -> int:
    """Return how many shards are to be opened for some places."""
    return len(np.unique(_codes(places)))


def _codes(places: Places) -> Int64:
    return places.source << 32 | places.shard
