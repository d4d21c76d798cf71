"""Ranges: those near each other are joined, and each is held by one of the results."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from equitar.reading.prefetch import PrefetchBudget, PrefetchQueue
from equitar.storage.ranges import joined, spans

RANGES = st.lists(st.tuples(st.integers(0, 500), st.integers(1, 60)), max_size=12)
RAW = bytes(range(256)) * 4


@given(RANGES, st.integers(0, 40), st.integers(1, 200))
def test_every_range_is_within_a_joined_one(ranges: list[tuple[int, int]], gap: int, length: int) -> None:
    bounds = np.array([(start, start + size) for start, size in ranges], np.int64).reshape(-1, 2)
    result = joined(bounds, max_gap=gap, max_length=length)
    assert result == sorted(result)
    for start, stop in bounds.tolist():
        assert any(begin <= start and stop <= end for begin, end in result)
    wanted = {byte for start, stop in bounds.tolist() for byte in range(start, stop)}
    read = {byte for begin, end in result for byte in range(begin, end)}
    assert wanted <= read
    assert len(read) <= len(wanted) + gap * max(0, len(ranges) - 1)


def test_long_ranges_are_requested_in_parts() -> None:
    assert list(spans(np.array([[0, 9 << 20], [20 << 20, 21 << 20]]))) == [
        (0, 4 << 20), (4 << 20, 8 << 20), (8 << 20, 9 << 20), (20 << 20, 21 << 20)
    ]  # fmt: skip
    assert list(spans(np.zeros((0, 2), np.int64))) == []


class Shard:
    """A shard in memory."""

    is_local = False

    def __init__(self) -> None:
        self.fetched: list[tuple[int, int]] = []

    def prepare(self) -> object:
        return None

    def fetch(self, start: int, length: int) -> bytes:
        self.fetched.append((start, length))
        return RAW[start : start + length]


@given(RANGES)
def test_announced_ranges_are_given_once_each_and_nothing_stays_held(ranges: list[tuple[int, int]]) -> None:
    shard = Shard()
    queue, budget = PrefetchQueue(shard), PrefetchBudget(1 << 20)
    budget.fetch((queue, start, length) for start, length in ranges)
    assert budget.held <= 2 * sum(length for _, length in ranges)
    for start, length in ranges:
        assert queue.take(start, length) == RAW[start : start + length]
    assert not queue.spans
    assert budget.held == 0
    budget.close()


def test_neighbours_come_by_one_request() -> None:
    shard = Shard()
    queue, budget = PrefetchQueue(shard), PrefetchBudget(1 << 20)
    budget.fetch([(queue, 50, 10), (queue, 0, 10), (queue, 12, 8), (queue, 50, 10)])
    assert [queue.take(50, 10) for _ in range(2)] == 2 * [RAW[50:60]]
    budget.close()
    assert sorted(shard.fetched) == [(0, 20), (50, 10)]


def test_reading_local_files_does_not_load_fsspec() -> None:
    program = "import sys, equitar.reading.reader, equitar.tar.stream; print('fsspec' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "False"
