"""Windows: where they begin and end, and that dealing keeps copies apart, also over a cut."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equitar.arrays import Int64
from equitar.planning.runs import round_by_round
from equitar.planning.shuffle import deal, window_of
from helpers.strategies import drawn

NONE = np.zeros(0, np.int64)


def edges(demand: int, smallest: int, largest: int) -> list[tuple[int, int]]:
    return [window_of(batch, demand=demand, smallest=smallest, largest=largest) for batch in range(demand)]


@pytest.mark.parametrize("smallest", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("more", [0, 1, 2, 5, 13, 40])
def test_windows_tile_a_run_and_are_neither_too_short_nor_too_long(smallest: int, more: int) -> None:
    largest = smallest + more
    for demand in range(1, 130):
        windows_of_batch = edges(demand, smallest, largest)
        windows = sorted(set(windows_of_batch))
        assert all(first <= batch < last for batch, (first, last) in enumerate(windows_of_batch))
        assert [first for first, _ in windows] == [0, *(last for _, last in windows[:-1])]
        assert windows[-1][1] == demand
        for first, last in windows:
            assert min(smallest, demand) <= last - first <= largest + smallest - 1


def test_first_windows_are_short_and_double() -> None:
    assert sorted(set(edges(100, 2, 20))) == [
        (0, 2),
        (2, 6),
        (6, 14),
        (14, 30),
        (30, 50),
        (50, 70),
        (70, 90),
        (90, 100),
    ]


def test_any_window_of_an_endless_run_is_found_alone() -> None:
    first, last = window_of(10**15, demand=2 * 10**15, smallest=4, largest=1000)
    assert first <= 10**15 < last
    assert last - first == 1000


def dealt(samples: list[int], num_batches: int, key: int = 1, **shared: Int64) -> list[list[int]]:
    """Return the samples of each batch."""
    order = deal(
        np.array(samples),
        shared_before=shared.get("before", NONE),
        shared_after=shared.get("after", NONE),
        num_batches=num_batches,
        samples_key=key,
        batches_key=99,
    )
    assert sorted(order.ravel().tolist()) == list(range(len(samples)))
    return [[samples[place] for place in batch] for batch in order.tolist()]


@drawn(80)
@given(st.integers(1, 8), st.integers(1, 6), st.integers(0, 1 << 30), st.data())
def test_copies_of_a_sample_go_to_different_batches(
    num_batches: int, batch_size: int, key: int, data: st.DataObject
) -> None:
    samples: list[int] = []
    while len(samples) < num_batches * batch_size:
        room = num_batches * batch_size - len(samples)
        samples += [len(samples)] * data.draw(st.integers(1, min(num_batches, room)))
    for batch in dealt(samples, num_batches, key):
        assert len(set(batch)) == len(batch) == batch_size


@drawn(80)
@given(st.integers(2, 9), st.integers(1, 5), st.integers(0, 1 << 30), st.data())
def test_copies_on_a_cut_go_to_different_batches_on_both_sides(
    num_batches: int, batch_size: int, key: int, data: st.DataObject
) -> None:
    size = num_batches * batch_size
    here = data.draw(st.integers(1, num_batches - 1))
    there = data.draw(st.integers(1, num_batches - here))
    cut = 1000  # copies of this sample lie at the end of the one run and at the beginning of the next
    low = dealt([*range(size - here), *[cut] * here], num_batches, key, after=np.array([cut]))
    high = dealt([*[cut] * there, *range(2000, 2000 + size - there)], num_batches, key + 1, before=np.array([cut]))
    assert all((cut in batch) + (cut in other) <= 1 for batch, other in zip(low, high, strict=True))


def test_batches_are_shuffled_alike_on_all_ranks_and_samples_are_not() -> None:
    orders = [
        deal(
            np.arange(40),
            shared_before=np.array([0]),
            shared_after=NONE,
            num_batches=10,
            samples_key=key,
            batches_key=5,
        )
        for key in (1, 2)
    ]
    first = [next(place for place, batch in enumerate(order.tolist()) if 0 in batch) for order in orders]
    assert first[0] == first[1]
    assert not np.array_equal(orders[0], orders[1])


def test_each_sample_comes_to_each_batch_about_equally_often() -> None:
    counts: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for key in range(3000):
        order = deal(
            np.arange(12), shared_before=NONE, shared_after=NONE, num_batches=4, samples_key=key, batches_key=key + 7
        )
        for batch, items in enumerate(order.tolist()):
            counts[batch].update(items)
    assert all(abs(number - 750) < 5 * 24 for batch in counts.values() for number in batch.values())


@given(st.integers(1, 200), st.integers(1, 9))
def test_rounds_go_through_every_position_once(length: int, rounds: int) -> None:
    places = round_by_round(np.arange(length), length=length, rounds=rounds).tolist()
    assert sorted(places) == list(range(length))
    assert places == [place for first in range(rounds) for place in range(first, length, rounds)]


@given(st.integers(1, 200), st.integers(1, 9), st.data())
def test_positions_of_rounds_are_had_alone(length: int, rounds: int, data: st.DataObject) -> None:
    whole = round_by_round(np.arange(length), length=length, rounds=rounds)
    asked = np.array(data.draw(st.lists(st.integers(0, length - 1), max_size=9)), np.int64)
    assert np.array_equal(round_by_round(asked, length=length, rounds=rounds), whole[asked])
