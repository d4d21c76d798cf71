"""The circle of copies: everything on it once, copies side by side, and any part of it alone."""

from __future__ import annotations

import pickle
from collections import Counter
from itertools import groupby, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equitar.errors import PlanError
from equitar.planning.line import Line, most_copies, stretch_for
from equitar.planning.repeat_factors import ONE
from equitar.planning.supply import Supply
from helpers.strategies import Stock, drawn, stocks

KEYS = st.integers(0, (1 << 64) - 1)


def circle(line: Line) -> list[tuple[int, int, int]]:
    """Return (shard, row, copy) of every position."""
    return list(zip(*(column.tolist() for column in line.at(np.arange(line.length))), strict=True))


def counted(line: Line, stock: Stock) -> dict[tuple[int, int], int]:
    """Return the copies of each row, asked shard by shard."""
    return {
        (shard, row): int(copies)
        for shard in range(len(stock.shards))
        for row, copies in enumerate(line.copies(shard))
        if copies
    }


@drawn(60)
@given(stocks("a", rows=(0, 120)), KEYS, st.integers(0, 400))
def test_every_copy_lies_on_the_circle_once(stock: Stock, key: int, at_least: int) -> None:
    line = Line(stock.supply(), key=key, at_least=at_least if stock.total else 0)
    copies_on_circle = circle(line)
    assert line.length >= (at_least if stock.total else 0)
    assert len(set(copies_on_circle)) == len(copies_on_circle) == line.length
    assert Counter((shard, row) for shard, row, _ in copies_on_circle) == counted(line, stock)
    for (shard, row), number in counted(line, stock).items():
        assert {copy for a, b, copy in copies_on_circle if (a, b) == (shard, row)} == set(range(number))


@drawn(40)
@given(stocks("a", rows=(1, 120)), KEYS)
def test_copies_of_a_row_and_rows_of_a_shard_lie_side_by_side(stock: Stock, key: int) -> None:
    copies_on_circle = circle(Line(stock.supply(), key=key, at_least=0))
    for axis in (lambda position: position[0], lambda position: position[:2]):
        runs = [value for value, _ in groupby(copies_on_circle, key=axis)]
        if len(runs) > 1 and runs[0] == runs[-1]:
            runs.pop()  # the circle begins within it
        assert len(set(runs)) == len(runs)
    for before, after in pairwise(copies_on_circle):
        if before[0] == after[0] and before[:2] != after[:2]:
            assert after[1] > before[1] or after[1] == min(
                row for shard, row, _ in copies_on_circle if shard == before[0]
            )


@drawn(40)
@given(stocks("a", rows=(1, 120)), KEYS, st.lists(st.integers(-500, 2000), max_size=20))
def test_any_positions_are_those_of_the_whole_circle(stock: Stock, key: int, positions: list[int]) -> None:
    line = Line(stock.supply(), key=key, at_least=0)
    if not line.length:
        return
    whole = circle(line)
    fresh = Line(stock.supply(), key=key, at_least=0)
    looked_up = fresh.at(np.array(positions, np.int64))
    for position, shard, row, copy in zip(positions, *(column.tolist() for column in looked_up), strict=True):
        assert (shard, row, copy) == whole[position % line.length]


def test_a_circle_begins_somewhere_else_in_each_pass() -> None:
    supply = Supply.of("a", ["0"], [np.full(50, ONE)])
    starts = Counter(circle(Line(supply, key=key * 7919, at_least=0))[0][1] for key in range(5000))
    assert len(starts) == 50
    assert sum((count - 100) ** 2 / 100 for count in starts.values()) < 110  # chi-square, 49 degrees


def test_shards_come_in_an_order_of_each_pass() -> None:
    supply = Supply.of("a", ["0", "1", "2"], [np.full(1, ONE)] * 3)
    orders = Counter(tuple(shard for shard, _, _ in circle(Line(supply, key=key, at_least=0))) for key in range(3000))
    assert len(orders) == 6
    assert min(orders.values()) > 400


def test_an_ordered_line_is_the_list_of_rows() -> None:
    supply = Supply.of("a", ["z", "y", "x"], [np.full(2, ONE), np.array([2 * ONE]), np.zeros(1, np.int64)])
    line = Line(supply, key=3, at_least=0, ordered=True)
    assert circle(line) == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 0, 1)]


def test_more_shards_than_are_remembered_are_read_all_the_same() -> None:
    supply = Supply.of("a", [f"{shard}" for shard in range(60)], [np.full(3, 3 * ONE // 2)] * 60)
    line = Line(supply, key=1, at_least=0)
    mixed_up = np.random.default_rng(0).permutation(line.length)
    looked_up = line.at(mixed_up)
    whole = circle(Line(supply, key=1, at_least=0))
    assert [whole[position] for position in mixed_up.tolist()] == list(
        zip(*(column.tolist() for column in looked_up), strict=True)
    )


def test_a_line_without_copies_is_empty() -> None:
    line = Line(Supply.of("a", ["0", "1"], [np.zeros(3, np.int64), np.zeros(0, np.int64)]), key=0, at_least=0)
    assert line.length == 0
    assert line.at(np.zeros(0, np.int64)).row.tolist() == []


def test_only_shards_that_are_asked_for_are_looked_at() -> None:
    asked = []

    def factors(shard: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        asked.append(shard)
        return np.full(1000, ONE)

    many = 10_000
    supply = Supply(
        name="a",
        shard_ids=np.arange(many).astype(np.uint64),
        num_rows=np.full(many, 1000),
        sums=np.full(many, 1000 * ONE),
        largest=ONE,
        kept=many * 1000 * ONE,
        factors=factors,
    )
    Line(supply, key=5, at_least=0).at(np.arange(500))
    assert len(asked) <= 2


def test_once_is_a_supply_of_ones_and_pickles() -> None:
    sizes = np.array([3, 0, 5])
    once = Supply.once("a", ["0", "1", "2"], sizes)
    same = Supply.of("a", ["0", "1", "2"], [np.full(size, ONE) for size in sizes])
    again = pickle.loads(pickle.dumps(once))
    for supply in (once, again):
        assert (
            (supply.total, supply.copies, supply.largest)
            == (same.total, same.copies, same.largest)
            == (8 * ONE, 8, ONE)
        )
        assert circle(Line(supply, key=9, at_least=20)) == circle(Line(same, key=9, at_least=20))
    assert Supply.once("a", [], np.zeros(0, np.int64)).largest == 0


@given(st.integers(1, 1 << 50), st.integers(0, 1 << 20))
def test_a_stretch_reaches_nearly_what_is_asked_and_no_more(total: int, at_least: int) -> None:
    if at_least * ONE << 40 >= total << 62:
        return
    stretch = stretch_for(total, at_least)
    assert stretch >= 1 << 40
    assert stretch == 1 << 40 or total * stretch <= at_least * ONE << 40  # no sample gets more than its own factor says
    assert total * (stretch + 1) > at_least * ONE << 40


def test_more_passes_than_numbers_can_hold_are_refused() -> None:
    with pytest.raises(PlanError, match="at most 4194304 times an epoch; 10000000 copies"):
        stretch_for(ONE, 10_000_000)


@pytest.mark.parametrize(
    ("factors", "at_least", "most"),
    [([1, 1], 0, 1), ([1, 3], 4, 3), ([1.5, 1], 0, 2), ([1, 1], 4, 2), ([1, 1], 5, 3), ([0, 0], 0, 0), ([0.25], 0, 1)],
)
def test_the_most_copies_are_the_ceiling_of_the_largest_factor(factors: list[float], at_least: int, most: int) -> None:
    supply = Supply.of("a", ["0"], [np.array([int(factor * ONE) for factor in factors])])
    assert most_copies(supply, at_least) == most


def test_sources_of_billions_of_copies_are_cut_exactly() -> None:
    shards, rows = 2000, 1_000_000
    supply = Supply.once("a", [f"{shard}" for shard in range(shards)], np.full(shards, rows))
    assert Line(supply, key=1, at_least=0).length == shards * rows
    line = Line(supply, key=1, at_least=5 * shards * rows // 2)
    assert 0 <= line.length - 5 * shards * rows // 2 <= 1
    row, copy = line.at(np.arange(line.length - 10, line.length + 10))[1:]
    assert (copy < 3).all()
    assert ((row >= 0) & (row < rows)).all()
