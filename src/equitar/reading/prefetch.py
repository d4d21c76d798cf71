"""Prefetch: ranges of remote shards are requested before they are needed, as the plan knows what comes next.

Steps are announced in rounds, each as long as the budget allows: the longer a round is, the more of the ranges it needs are
neighbours in a shard and share one request. The first rounds are short and double, so that the first batch does not wait for
the last. What is fetched is held until it is used, and counts against the budget until then. Local shards are not announced:
they are read when they are needed, from the page cache.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

import numpy as np

from equitar.storage.ranges import joined

_GAP = 1 << 14  # bytes between two ranges: fetching them may be cheaper than another request
_LARGEST = 8 << 20  # bytes of one request
_THREADS = 16  # concurrent requests: stores have a high latency
_STEPS = 512  # announced at most, where steps need few bytes
Step = TypeVar("Step")
Wanted = tuple["PrefetchQueue", int, int]  # start and length


class Fetches(Protocol):
    """A shard whose ranges are fetched."""

    is_local: bool  # whether it needs no requests for ranges, once it is prepared

    def prepare(self) -> object:
        """Open it."""

    def fetch(self, start: int, length: int) -> bytes:
        """Return a range of it, in any thread."""


class PrefetchedRange:
    """A range that is fetched, for one or more announced ranges in it."""

    def __init__(self, start: int, fetched: Future[bytes], length: int, uses: int) -> None:
        """Keep the range and its result."""
        self.start, self.fetched, self.length, self.uses = start, fetched, length, uses


class PrefetchQueue:
    """The ranges of one shard that were announced and not yet read; used only by the thread that reads."""

    def __init__(self, shard: Fetches) -> None:
        """Begin with none."""
        self.shard = shard
        self.spans: dict[tuple[int, int], list[PrefetchedRange]] = {}
        self.is_prepared = False
        self.budget: PrefetchBudget | None = None

    def take(self, start: int, length: int) -> bytes | None:
        """Return an announced range, None if it was not announced."""
        spans = self.spans.get((start, length))
        if not spans:
            return None
        span = spans.pop()
        if not spans:
            del self.spans[start, length]
        fetched = span.fetched
        self._used(span)
        return fetched.result()[start - span.start : start - span.start + length]

    def clear(self) -> None:
        """Forget what was announced."""
        for spans in self.spans.values():
            for span in spans:
                span.fetched.cancel()
                self._used(span)
        self.spans.clear()

    def _used(self, span: PrefetchedRange) -> None:
        span.uses -= 1
        if span.uses == 0 and self.budget is not None:
            self.budget.held -= span.length


class PrefetchBudget:
    """Bytes that may be held, for all sources of one worker, and the threads that fetch them."""

    def __init__(self, limit: int) -> None:
        """Hold nothing yet; threads start with the first fetch, in the process that reads."""
        self.limit, self.held = limit, 0
        self._pool: ThreadPoolExecutor | None = None

    def fetch(self, wanted: Iterable[Wanted]) -> None:
        """Begin to fetch ranges; neighbours in a shard share one request."""
        by_shard: dict[int, tuple[PrefetchQueue, list[tuple[int, int]]]] = {}
        for queue, start, length in wanted:
            by_shard.setdefault(id(queue), (queue, []))[1].append((start, length))
        for queue, ranges in by_shard.values():
            queue.budget = self
            if queue.shard.is_local:
                if not queue.is_prepared:
                    queue.is_prepared = True
                    self._threads().submit(queue.shard.prepare)
                continue
            self._fetch(queue, ranges)

    def _fetch(self, queue: PrefetchQueue, ranges: Sequence[tuple[int, int]]) -> None:
        lengths = [length for _, length in ranges]
        bounds = np.array([(start, start + length) for start, length in ranges], np.int64)
        # On average no gap is longer than a range, so gaps at most double what is held.
        spans = joined(bounds, max_gap=min(_GAP, sum(lengths) // len(lengths)), max_length=_LARGEST)
        starts = [start for start, _ in spans]
        members: list[list[tuple[int, int]]] = [[] for _ in spans]
        for member in ranges:
            members[bisect_right(starts, member[0]) - 1].append(member)
        for (start, stop), inside in zip(spans, members, strict=True):
            if not inside:  # a longer span begins at the same byte
                continue
            length = stop - start
            fetched = self._threads().submit(queue.shard.fetch, start, length)
            span = PrefetchedRange(start, fetched, length, len(inside))
            self.held += length
            for member in inside:
                queue.spans.setdefault(member, []).append(span)

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, "equitar-ahead")
        return self._pool

    def close(self) -> None:
        """End the threads; they do not wait for shards that are closed already."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


class Prefetcher(Generic[Step]):
    """Announces the steps of one consumer before they are due."""

    def __init__(self, budget: PrefetchBudget, wanted: Callable[[Step], Iterable[Wanted]]) -> None:
        """Prepare.

        Args:
            budget: What may be held.
            wanted: Returns the remote ranges that a step needs.
        """
        self._budget, self._wanted = budget, wanted

    def over(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Yield steps, each announced ahead of time."""
        coming = ((step, list(self._wanted(step))) for step in steps)
        waiting = next(coming, None)  # the first step that is not announced
        queue = deque[Step]()
        most = 1  # bytes of a round
        while queue or waiting is not None:
            room = self._budget.limit - self._budget.held
            if not queue or (len(queue) < _STEPS // 2 and 2 * room >= self._budget.limit):
                wanted: list[Wanted] = []
                taken = 0
                while waiting is not None and len(queue) < _STEPS:
                    needed = sum(length for _, _, length in waiting[1])
                    if queue and taken + needed > min(most, room // 2):  # gaps may double it
                        break
                    queue.append(waiting[0])
                    wanted += waiting[1]
                    taken += needed
                    waiting = next(coming, None)
                self._budget.fetch(wanted)
                most = 2 * max(most, taken)
            yield queue.popleft()
