"""One open shard, sliced by its member table: one positioned read for all members of a row, and no header is parsed.

A sample is what webdataset would have made of the same tar: a dict of ``__key__``, ``__url__`` and the bytes of each field.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np

from equitar.arrays import Int64
from equitar.errors import ShardMismatchError, SourceError
from equitar.reading.shard_file import ShardFile
from equitar.sidecars.sidecar import Sidecar
from equitar.sources import Sample
from equitar.tar.grouping import what_differs
from equitar.tar.headers import HEADER_BYTES
from equitar.urls import shown

_GAP = 1 << 16  # bytes between two members up to which one read is cheaper than two
_KEY_BYTES = 100  # about what a key takes in memory
_FEW = 16  # all keys are decoded once more than one in so many was requested


class _Table(NamedTuple):
    """The keys of a shard, and its member table as machine integers: compact, and as quick to index as lists."""

    keys: list[str]
    begin: array[int]  # of each row
    length: array[int]  # of each row
    first: array[int]  # member of each row
    field: array[int]  # of each member
    low: array[int]  # where each member begins in its row
    high: array[int]  # and ends


class OpenShard:
    """An open shard."""

    def __init__(
        self, url: str, sidecar: Sidecar, file: ShardFile, *, fields: Collection[str] | None, views: bool
    ) -> None:
        """Prepare to slice.

        Args:
            url: Its URL.
            sidecar: Its sidecar.
            file: The shard, which `close` closes.
            fields: Fields to read, in lower case; None reads all.
            views: Whether fields are views of what was read, instead of `bytes`.

        Raises:
            SourceError: If it has none of the fields.
        """
        self.url, self.file, self._texts = url, file, sidecar.keys
        self._keys: list[str] | None = None  # decoded, as is the table, when they are first needed
        self._asked = 0  # keys that were asked for one by one
        self._table: _Table | None = None
        wanted = np.array([fields is None or name in fields for name in sidecar.table.fields], bool)
        if fields and not wanted.any() and sidecar.table.fields:
            raise SourceError(
                f"`fields` must name a field of each shard; got {sorted(fields)} but {shown(url)} has {', '.join(sidecar.table.fields)}"
            )
        self._names = sidecar.table.fields
        # Of each row, its first chosen member, (rows + 1,); of each chosen member, its field, and where it begins and ends.
        self._first, self._field, self._start, size = (
            sidecar.table.indptr,
            sidecar.table.field,
            sidecar.table.offset,
            sidecar.table.size,
        )
        if not wanted.all():
            chosen = np.flatnonzero(wanted[sidecar.table.field]) if len(sidecar.table.field) else np.zeros(0, np.int64)
            self._first = np.searchsorted(chosen, sidecar.table.indptr)
            self._field, self._start, size = (
                sidecar.table.field[chosen],
                sidecar.table.offset[chosen],
                sidecar.table.size[chosen],
            )
        self._stop = self._start + size
        self.is_whole = self._is_whole()
        # The fields of each row, in order, if all rows have the same and one read serves a row.
        self.layout = self._layout() if self.is_whole else None
        self.has_views = views
        self.descriptor, self.prefetch = file.descriptor, file.prefetch
        self._read: Callable[[int, int], Any] = _viewed(file.read) if views else file.read
        self.num_bytes = sidecar.num_rows * (24 + _KEY_BYTES) + 48 * len(self._start)  # estimated memory

    def _is_whole(self) -> bool:
        """Return whether the members of every row lie close together and in order."""
        gaps = self._start[1:] - self._stop[:-1]
        # Whether a member is in the row of the one before it; one more, as there may be empty rows at the end.
        is_within = np.ones(len(self._start) + 1, bool)
        is_within[self._first] = False
        return bool(((gaps >= 0) & (gaps <= _GAP))[is_within[1:-1]].all())

    def _layout(self) -> tuple[str, ...] | None:
        counts = np.diff(self._first)
        if not len(counts) or (counts != counts[0]).any():
            return None
        in_rows = self._field.reshape(len(counts), -1)
        return tuple(self._names[field] for field in in_rows[0].tolist()) if (in_rows == in_rows[0]).all() else None

    def _make_table(self) -> _Table:
        first, start, stop = self._first, self._start, self._stop
        num_rows = len(first) - 1
        begin, end = np.zeros(num_rows, np.int64), np.zeros(num_rows, np.int64)
        has_any = first[:-1] < first[1:]
        begin[has_any], end[has_any] = start[first[:-1][has_any]], stop[first[1:][has_any] - 1]
        of_row = np.repeat(begin, np.diff(first))
        columns = (begin, end - begin, first, self._field, start - of_row, stop - of_row)
        arrays = (array("q", column.astype(np.int64, copy=False).tobytes()) for column in columns)
        self._table = _Table(self._all_keys(), *arrays)
        return self._table

    def _all_keys(self) -> list[str]:
        if self._keys is None:
            self._keys = list(self._texts)
        return self._keys

    def sample(self, row: int) -> Sample:
        """Return one sample.

        Raises:
            ShardMismatchError: If the shard ends early.
        """
        keys, begins, lengths, first, field, low, high = self._table or self._make_table()
        sample: Sample = {"__key__": keys[row], "__url__": self.url}
        begin, length, member = begins[row], lengths[row], first[row]
        if not self.is_whole:
            for index in range(member, first[row + 1]):
                sample[self._names[field[index]]] = self._read(begin + low[index], high[index] - low[index])
            return sample
        # The next lines are most of what a sample costs: no call that can be avoided.
        span: Any = os.pread(self.descriptor, length, begin) if self.descriptor >= 0 else self._read(begin, length)
        if len(span) != length:
            span = self._read(begin, length)  # the rest, or the error that says what is wrong
        elif self.has_views:
            span = memoryview(span)
        for name in self.layout or self._names_of(row):
            sample[name] = span[low[member] : high[member]]
            member += 1
        return sample

    def _names_of(self, row: int) -> list[str]:
        return [self._names[field] for field in self._field[self._first[row] : self._first[row + 1]].tolist()]

    def keys(self, rows: Int64) -> list[str]:
        """Return the keys of rows, (n,)."""
        self._asked += len(rows)
        keys = self._texts if _FEW * self._asked < len(self._texts) else self._all_keys()
        return [keys[row] for row in rows.tolist()]

    def members(self, rows: Int64) -> tuple[Int64, Int64]:
        """Return where the members of rows, (n,), begin and end, (fields, n) each; only for a shard with a layout."""
        assert self.layout is not None
        start, stop = (column.reshape(-1, len(self.layout))[rows].T for column in (self._start, self._stop))
        return start, stop

    def ranges(self, row: int) -> list[tuple[int, int]]:
        """Return the ranges (start, length) that a sample is read by."""
        spans = self._spans(row)
        if self.is_whole and spans:
            return [(spans[0][0], spans[-1][1] - spans[0][0])]
        return [(start, stop - start) for start, stop in spans]

    def _spans(self, row: int) -> list[tuple[int, int]]:
        members = slice(self._first[row], self._first[row + 1])
        return list(zip(self._start[members].tolist(), self._stop[members].tolist(), strict=True))

    def check_headers(self, row: int) -> None:
        """Raise ShardMismatchError if the headers before the members of a row do not match them."""
        (key,) = self.keys(np.array([row]))
        for field, (start, stop) in zip(self._names_of(row), self._spans(row), strict=True):
            differs = what_differs(
                self.file.read(start - HEADER_BYTES, HEADER_BYTES), key=key, field=field, size=stop - start
            )
            if differs:
                raise ShardMismatchError(f"{shown(self.url)} is damaged at byte {start - HEADER_BYTES}: {differs}")

    def close(self) -> None:
        """Close the shard."""
        self.file.close()


def _viewed(read: Callable[[int, int], bytes]) -> Callable[[int, int], memoryview]:
    return lambda start, length: memoryview(read(start, length))
