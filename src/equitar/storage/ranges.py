"""How are parts of a shard read? `Ranges` is all that readers ask of a file, wherever it lies.

How is a remote tar walked whose headers are known to be at certain places? They are fetched side by side, before the walk asks.

The walk itself is the same: it goes from header to header, and verifies each. A place that was wrong costs a request, and is never
taken at its word.
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

    def read(self, start: int, length: int) -> bytes:
        """Return bytes of the file, exactly as many as asked for.

        Raises:
            ShardMismatchError: If the file ends before, or is no longer what it was.
            StorageError: If its store does not give them.
        """

    def size(self) -> int:
        """Return the length of the file in bytes."""

    def close(self) -> None:
        """Let go of it; reading is over."""


class LocalRanges:
    """A file that is open here.

    Attributes:
        descriptor: Its file descriptor, until it is closed.
    """

    def __init__(self, file: int, where: str) -> None:
        """Take over a file descriptor.

        Args:
            file: The descriptor.
            where: What the file is called in errors.
        """
        self.descriptor, self._where = file, where

    @classmethod
    def opened(cls, path: str, where: str) -> LocalRanges:
        """Return the file at a path."""
        return cls(os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)), where)

    @classmethod
    def of(cls, file: BinaryIO, where: str) -> LocalRanges:
        """Return an open file, which may have no name, and close the object that held it."""
        with file:
            file.flush()
            return cls(os.dup(file.fileno()), where)

    def read(self, start: int, length: int) -> bytes:
        """Return bytes of the file; see `Ranges`."""
        found = os.pread(self.descriptor, length, start)
        if len(found) != length:
            found += self._rest(start + len(found), length - len(found))
        return found

    def _rest(self, start: int, length: int) -> bytes:
        """Return what a read left out; systems give at most 2 GiB at once."""
        parts = []
        while length and (part := os.pread(self.descriptor, length, start)):
            parts.append(part)
            start, length = start + len(part), length - len(part)
        if length:
            raise ShardMismatchError(
                f"{self._where} ended at byte {start} but its sidecar has data up to {start + length}; restore the shard "
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
    """Ranges as a file that can seek, for a walk; it reads ahead while the walk is near, and little where it jumps."""

    def __init__(self, ranges: Ranges) -> None:
        """Read from ranges, which the caller closes."""
        super().__init__()
        self._ranges, self._size = ranges, ranges.size()
        self._at = self._start = 0
        self._held = b""
        self._block = _FIRST_BLOCK

    def seekable(self) -> bool:
        """Return that it can seek."""
        return True

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a byte, and return which."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes, none only at the end."""
        length = min(self._size - self._at if size < 0 else size, self._size - self._at)
        if length <= 0:
            return b""
        begin = self._at - self._start
        if not 0 <= begin < len(self._held):
            is_local = 0 <= begin - len(self._held) < self._block
            self._block = min(2 * self._block, _LARGEST_BLOCK) if is_local else _FIRST_BLOCK
            self._held = self._ranges.read(self._at, min(max(length, self._block), self._size - self._at))
            self._start, begin = self._at, 0
        found = self._held[begin : begin + length]
        self._at += len(found)
        return found


_GAP = 1 << 17  # bytes that are sooner fetched than a further request answered
_LARGEST = 1 << 22  # bytes of one request
_THREADS = 16  # requests under way; with the above, 64 MB at most


class PrefetchedFile(RangesFile):
    """Ranges as a file, of which some are expected to be read in order; others cost a request each."""

    def __init__(self, ranges: Ranges, expected: Int64) -> None:
        """Read from ranges, which the caller closes after this file.

        Args:
            ranges: The shard.
            expected: Where reads will be: begin and end of each, (places, 2), bytes.
        """
        super().__init__(ranges)
        self._pool = ThreadPoolExecutor(_THREADS, "equitar-expected")
        self._coming = spans(np.minimum(expected, ranges.size()))
        self._fetched: deque[tuple[int, int, Future[bytes]]] = deque()

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes, none only at the end."""
        while self._fetched and self._fetched[0][1] <= self._at:
            self._fetched.popleft()[2].cancel()
        self._fetch()  # with the first read, not before: there may be none
        if size <= 0 or not self._fetched or self._at < self._fetched[0][0]:
            return super().read(size)
        start, _, fetched = self._fetched[0]
        begin = self._at - start
        found = fetched.result()[begin : begin + size]
        self._at += len(found)
        return found

    def close(self) -> None:
        """End what is under way."""
        self._pool.shutdown(cancel_futures=True)
        super().close()

    def _fetch(self) -> None:
        while len(self._fetched) < _THREADS and (span := next(self._coming, None)) is not None:
            start, stop = span
            self._fetched.append((start, stop, self._pool.submit(self._ranges.read, start, stop - start)))


def spans(places: Int64) -> Iterator[tuple[int, int]]:
    """Yield ranges that hold all places, in order and apart: what lies between near ones is fetched with them.

    >>> list(spans(np.array([[900_000, 900_100], [0, 10], [5, 600]])))
    [(0, 600), (900000, 900100)]
    """
    start = stop = 0
    for begin, end in places[np.argsort(places[:, 0], kind="stable")].tolist():
        if begin - stop > _GAP or end - start > _LARGEST:
            yield from _parts(start, stop)
            start = max(begin, stop)
        stop = max(stop, end)
    yield from _parts(start, stop)


def _parts(start: int, stop: int) -> Iterator[tuple[int, int]]:
    for begin in range(start, stop, _LARGEST):
        yield begin, min(begin + _LARGEST, stop)
