"""How is a remote tar walked whose headers are known to be at certain places? They are fetched side by side, before the walk asks.

The walk itself is the same: it goes from header to header, and verifies each. A place that was wrong costs a request, and is never
taken at its word.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from equitar.mix64 import Int64
from equitar.ranges import Ranges, RangesFile

_GAP = 1 << 17  # bytes that are sooner fetched than a further request answered
_LARGEST = 1 << 22  # bytes of one request
_THREADS = 16  # requests under way; with the above, 64 MB at most


class ExpectedFile(RangesFile):
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
