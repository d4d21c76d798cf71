"""How is one open shard sliced? By its member table: one positioned read for all members of a row, and no header is parsed.

A sample is what webdataset would have made of the same tar: a dict of ``__key__``, ``__url__`` and the bytes of each field.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from equitar.errors import ShardMismatchError, SourceError
from equitar.grouping import what_differs
from equitar.headers import BLOCK
from equitar.mix64 import Int64
from equitar.ranges import LocalRanges, Ranges
from equitar.redact import shown
from equitar.sidecar import Sidecar
from equitar.sources import Sample

_GAP = 1 << 16  # bytes between two members up to which one read for both is cheaper than two
_KEY_BYTES = 100  # about what a key takes in memory


class OpenShard:
    """An open shard, with its member table as arrays of machine integers: compact, and as quick to index as lists.

    Attributes:
        file: The shard.
        layout: The fields of each row, in order, where all rows have the same and one read serves a row; else None.
        has_views: Whether fields are views of what was read.
        descriptor: Of a file that is here; else -1.
        num_bytes: About how much memory it takes.
    """

    def __init__(
        self, url: str, sidecar: Sidecar, file: Ranges, *, fields: Collection[str] | None, views: bool
    ) -> None:
        """Prepare to slice.

        Args:
            url: Where it is.
            sidecar: What is in it.
            file: The shard, which `close` closes.
            fields: Fields to read, in lower case; None reads all.
            views: Whether fields are views of what was read, in place of `bytes`.

        Raises:
            SourceError: If it has none of the fields.
        """
        self.url, self.keys, self.file = url, list(sidecar.keys), file
        wanted = np.array([fields is None or name in fields for name in sidecar.fields], bool)
        if fields and not wanted.any() and sidecar.fields:
            raise SourceError(
                f"`fields` must name a field of each shard; got {sorted(fields)} but {shown(url)} has {', '.join(sidecar.fields)}"
            )
        chosen = np.flatnonzero(wanted[sidecar.field]) if len(sidecar.field) else np.zeros(0, np.int64)
        first = np.searchsorted(chosen, sidecar.indptr)  # (rows + 1,), first chosen member of each row
        row = np.repeat(np.arange(sidecar.num_rows), np.diff(first))
        offset, end = sidecar.offset[chosen], sidecar.offset[chosen] + sidecar.size[chosen]
        begin, stop = np.zeros(sidecar.num_rows, np.int64), np.zeros(sidecar.num_rows, np.int64)
        has_any = first[:-1] < first[1:]
        begin[has_any], stop[has_any] = offset[first[:-1][has_any]], end[first[1:][has_any] - 1]
        self._names = sidecar.fields
        self._first, self._field = _machine(first), _machine(sidecar.field[chosen])
        self._begin, self._length = _machine(begin), _machine(stop - begin)  # of each row
        self._low, self._high = _machine(offset - begin[row]), _machine(end - begin[row])  # of each member in its row
        self.is_whole = _is_whole(offset, end, row)
        self.layout = self._layout(first, sidecar.field[chosen]) if self.is_whole else None
        self.has_views = views
        self.descriptor = file.descriptor if isinstance(file, LocalRanges) else -1
        self._read: Callable[[int, int], Any] = _viewed(file.read) if views else file.read
        self.num_bytes = sidecar.num_rows * (16 + _KEY_BYTES) + 24 * len(chosen)

    def _layout(self, first: Int64, field: Int64) -> tuple[str, ...] | None:
        counts = np.diff(first)
        if not len(counts) or (counts != counts[0]).any():
            return None
        in_rows = field.reshape(len(counts), -1)
        return tuple(self._names[one] for one in in_rows[0].tolist()) if (in_rows == in_rows[0]).all() else None

    def sample(self, row: int) -> Sample:
        """Return one sample.

        Raises:
            ShardMismatchError: If the shard ends early.
        """
        sample: Sample = {"__key__": self.keys[row], "__url__": self.url}
        low, high, begin, length = self._low, self._high, self._begin[row], self._length[row]
        if not self.is_whole:
            for member in range(self._first[row], self._first[row + 1]):
                start = low[member]
                sample[self._names[self._field[member]]] = self._read(begin + start, high[member] - start)
            return sample
        # The next lines are most of what a sample costs: no call is made that need not be.
        span: Any = os.pread(self.descriptor, length, begin) if self.descriptor >= 0 else self._read(begin, length)
        if len(span) != length:
            span = self._read(begin, length)  # the rest, or the error that says what is wrong
        elif self.has_views:
            span = memoryview(span)
        member = self._first[row]
        for name in self.layout or self._names_of(row):
            sample[name] = span[low[member] : high[member]]
            member += 1
        return sample

    def _names_of(self, row: int) -> list[str]:
        return [self._names[one] for one in self._field[self._first[row] : self._first[row + 1]]]

    def members(self, rows: Int64) -> tuple[Int64, Int64]:
        """Return where the members of rows, (n,), begin and end, (fields, n) each; only for a shard that has a layout."""
        assert self.layout is not None
        begin, low, high = (np.frombuffer(one, np.int64) for one in (self._begin, self._low, self._high))
        return tuple(begin[rows] + one.reshape(-1, len(self.layout))[rows].T for one in (low, high))

    def ranges(self, row: int) -> list[tuple[int, int]]:
        """Return the ranges (start, length) that a sample is read by."""
        members = range(self._first[row], self._first[row + 1])
        begin = self._begin[row]
        if self.is_whole:
            return [(begin, self._length[row])] if members else []
        return [(begin + self._low[one], self._high[one] - self._low[one]) for one in members]

    def check_headers(self, row: int) -> None:
        """Raise ShardMismatchError if the headers before the members of a row are not theirs."""
        for member in range(self._first[row], self._first[row + 1]):
            self._check_header(row, member)

    def _check_header(self, row: int, member: int) -> None:
        begin, size = self._begin[row] + self._low[member], self._high[member] - self._low[member]
        header, field = self.file.read(begin - BLOCK, BLOCK), self._names[self._field[member]]
        differs = what_differs(header, key=self.keys[row], field=field, size=size)
        if differs:
            raise ShardMismatchError(f"{shown(self.url)} is damaged at byte {begin - BLOCK}: {differs}")

    def close(self) -> None:
        """Close the shard."""
        self.file.close()


def _machine(values: Int64) -> array[int]:
    return array("q", values.astype(np.int64, copy=False).tobytes())


def _viewed(read: Callable[[int, int], bytes]) -> Callable[[int, int], memoryview]:
    return lambda start, length: memoryview(read(start, length))


def _is_whole(offset: Int64, end: Int64, row: Int64) -> bool:
    """Return whether the members of every row lie close together and in order."""
    gaps = offset[1:] - end[:-1]
    within = row[1:] == row[:-1]
    return bool(((gaps >= 0) & (gaps <= _GAP))[within].all())
