"""Byte ranges of files: the interface `Ranges`, local files, and ranges as a file object that can seek.

`PrefetchedFile` fetches ranges concurrently before they are read, for walking a remote tar whose headers are expected at
certain positions. The walk still verifies each header; a wrong position only costs another request.
"""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO, Protocol

import numpy as np

from equitar.arrays import Int64
from equitar.errors import ShardMismatchError

_FIRST_BLOCK, _LARGEST_BLOCK = 1 << 16, 1 << 22  # bytes read ahead of a walk through headers


class Ranges(Protocol):
    """A file of which ranges are read."""

    @property
    def descriptor(self) -> int:
        """File descriptor of a local file; -1 for any other, and once it is closed."""

    def read(self, start: int, length: int) -> bytes:
        """Return exactly `length` bytes of the file.

        Raises:
            ShardMismatchError: If the file is shorter, or was changed.
            StorageError: If its store fails.
        """

    def size(self) -> int:
        """Return the length of the file in bytes."""

    def close(self) -> None:
        """Close the file, and end requests under way."""


class LocalRanges:
    """A local file."""

    prefetch: None = None  # nothing is fetched ahead, see `equitar.reading.shard_file`

    def __init__(self, file: int, where: str) -> None:
        """Take over a file descriptor.

        Args:
            file: The descriptor.
            where: Name of the file in errors.
        """
        self.descriptor, self._where = file, where  # -1 once closed

    @classmethod
    def opened(cls, path: str, where: str) -> LocalRanges:
        """Return the file at a path."""
        return cls(os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)), where)

    @classmethod
    def of(cls, file: BinaryIO, where: str) -> LocalRanges:
        """Return an open file, which may have no name, and close the given object."""
        with file:
            file.flush()
            return cls(os.dup(file.fileno()), where)

    def read(self, start: int, length: int) -> bytes:
        """Return bytes of the file; see `Ranges`."""
        data = os.pread(self.descriptor, length, start)
        if len(data) != length:
            data += self._rest(start + len(data), length - len(data))
        return data

    def _rest(self, start: int, length: int) -> bytes:
        """Return the rest of a short read; systems return at most 2 GiB at once."""
        parts = []
        while length and (part := os.pread(self.descriptor, length, start)):
            parts.append(part)
            start, length = start + len(part), length - len(part)
        if length:
            raise ShardMismatchError(
                f"{self._where} ends at byte {start} but its sidecar has data up to {start + length}; restore the shard "
                "or run `equitar index` again"
            )
        return b"".join(parts)

    def size(self) -> int:
        """Return the length of the file in bytes."""
        return os.fstat(self.descriptor).st_size

    def close(self) -> None:
        """Close the file."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class RangesFile(io.RawIOBase):
    """Ranges as a file that can seek. It reads ahead more and more while reads are sequential, and little after a jump."""

    def __init__(self, ranges: Ranges) -> None:
        """Wrap ranges, which the caller closes."""
        super().__init__()
        self._ranges, self._size = ranges, ranges.size()
        self._position = self._start = 0
        self._buffer = b""  # bytes from `_start`
        self._block = _FIRST_BLOCK

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the position, and return it."""
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes; none only at the end."""
        left = self._size - self._position
        length = left if size < 0 else min(size, left)
        if length <= 0:
            return b""
        begin = self._position - self._start
        if not 0 <= begin < len(self._buffer):
            is_sequential = 0 <= begin - len(self._buffer) < self._block
            self._block = min(2 * self._block, _LARGEST_BLOCK) if is_sequential else _FIRST_BLOCK
            self._buffer = self._ranges.read(self._position, min(max(length, self._block), left))
            self._start, begin = self._position, 0
        data = self._buffer[begin : begin + length]
        self._position += len(data)
        return data


_GAP = 1 << 17  # bytes that are fetched faster than another request is answered
_LARGEST = 1 << 22  # bytes of one request
_THREADS = 16  # concurrent requests; with the above, at most 64 MB


class PrefetchedFile(RangesFile):
    """Ranges as a file, of which those expected are fetched ahead; any other costs a request."""

    def __init__(self, ranges: Ranges, expected: Int64) -> None:
        """Wrap ranges, which the caller closes after this file.

        Args:
            ranges: The shard.
            expected: Begin and end of the reads to come, in bytes, (reads, 2).
        """
        super().__init__(ranges)
        self._pool = ThreadPoolExecutor(_THREADS, "equitar-expected")
        self._spans = spans(np.minimum(expected, ranges.size()))
        self._fetched: deque[tuple[int, int, Future[bytes]]] = deque()

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes; none only at the end."""
        while self._fetched and self._fetched[0][1] <= self._position:
            self._fetched.popleft()[2].cancel()
        self._fetch()  # not before the first read: there may be none
        if size <= 0 or not self._fetched or self._position < self._fetched[0][0]:
            return super().read(size)
        start, _, fetched = self._fetched[0]
        begin = self._position - start
        data = fetched.result()[begin : begin + size]
        self._position += len(data)
        return data

    def close(self) -> None:
        """End requests under way."""
        self._pool.shutdown(cancel_futures=True)
        super().close()

    def _fetch(self) -> None:
        while len(self._fetched) < _THREADS and (span := next(self._spans, None)) is not None:
            start, stop = span
            self._fetched.append((start, stop, self._pool.submit(self._ranges.read, start, stop - start)))


def spans(expected: Int64) -> Iterator[tuple[int, int]]:
    """Yield ranges (begin, end) that hold all expected ones, in order and apart; those near each other are joined.

    >>> list(spans(np.array([[900_000, 900_100], [0, 10], [5, 600]])))
    [(0, 600), (900000, 900100)]
    """
    end = 0
    for start, stop in joined(expected, max_gap=_GAP, max_length=_LARGEST):
        for begin in range(max(start, end), stop, _LARGEST):
            yield begin, min(begin + _LARGEST, stop)
        end = max(end, stop)


def joined(ranges: Int64, *, max_gap: int, max_length: int) -> list[tuple[int, int]]:
    """Return ranges (begin, end) that hold all given ones, in order.

    Args:
        ranges: Begin and end of each, in any order, (ranges, 2).
        max_gap: Most bytes between two ranges that are joined.
        max_length: Most bytes of joined ranges; a longer single one is kept whole.
    """
    from fsspec.utils import merge_offset_ranges  # noqa: PLC0415  (slow to import, and not needed for local files)

    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    # Rising ends: older versions of fsspec lose the end of a range that contains the next one.
    starts, ends = ranges[:, 0].tolist(), np.maximum.accumulate(ranges[:, 1]).tolist()
    paths = [""] * len(starts)  # of one file
    _, starts, ends = merge_offset_ranges(paths, starts, ends, max_gap=max_gap, max_block=max_length, sort=False)
    return list(zip(starts, ends, strict=True))
