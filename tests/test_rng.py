"""Numbers that are the same on every machine, and that no one else's random numbers notice."""

from __future__ import annotations

import hashlib
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equitar.rng import Purpose, draws, fold, multiply_shift, permutation, text_id

MASK = (1 << 64) - 1


def splitmix64(state: int) -> int:
    """Return the number that splitmix64 gives after its state has become `state`."""
    mixed = state & MASK
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & MASK
    return mixed ^ (mixed >> 31)


def test_draws_are_the_published_numbers_of_splitmix64_seeded_with_zero() -> None:
    assert [hex(number) for number in draws(0, [1, 2, 3]).tolist()] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]


@given(st.integers(0, MASK), st.lists(st.integers(0, MASK), max_size=20))
def test_draws_follow_the_counter_alone(key: int, counters: list[int]) -> None:
    numbers = draws(key, np.array(counters, np.uint64))
    assert numbers.tolist() == [splitmix64(key + counter * 0x9E3779B97F4A7C15) for counter in counters]


def test_draws_keep_the_shape_of_their_counters() -> None:
    assert draws(1, np.zeros((2, 3), np.int64)).shape == (2, 3)
    assert draws(1, []).shape == (0,)
    assert int(draws(1, 5)) == int(draws(1, [5])[0])


@given(st.lists(st.integers(-(1 << 70), 1 << 70), max_size=6))
def test_fold_gives_64_bits_and_depends_on_every_id(ids: list[int]) -> None:
    key = fold(*ids)
    assert 0 <= key <= MASK
    assert fold(*ids, 0) != key
    for place in range(len(ids)):
        assert fold(*ids[:place], ids[place] + 1, *ids[place + 1 :]) != key


def test_fold_of_neighbouring_ids_does_not_collide() -> None:
    keys = {fold(a, b, c) for a in range(20) for b in range(20) for c in range(20)}
    assert len(keys) == 8000


def test_fold_and_text_id_stay_as_they_are() -> None:
    assert hex(fold(0, Purpose.SCHEDULE, 7)) == hex(fold(0, 5, 7))
    assert fold(1, 2) == 0xEFE7970D49726162
    assert text_id("cc3m") == int.from_bytes(hashlib.blake2b(b"cc3m", digest_size=8).digest(), "little")


def test_text_of_any_bytes_has_an_id() -> None:
    assert text_id(b"caf\xe9.tar".decode("utf-8", "surrogateescape")) != text_id("café.tar")


@given(st.integers(0, MASK), st.integers(0, 200))
def test_a_permutation_holds_each_number_once(key: int, length: int) -> None:
    assert sorted(permutation(key, length).tolist()) == list(range(length))


def test_all_permutations_of_four_come_about_equally_often() -> None:
    number = 24_000
    counts = Counter(tuple(permutation(fold(7, key), 4).tolist()) for key in range(number))
    assert len(counts) == 24
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 60  # chi-square, 23 degrees: 1 in 30,000


@pytest.mark.parametrize("bit", [0, 1, 20, 44, 63])
def test_each_bit_is_set_half_the_time(bit: int) -> None:
    ones = int((draws(fold(3), np.arange(40_000)) >> np.uint64(bit) & np.uint64(1)).sum())
    assert abs(ones - 20_000) < 5 * 100


def test_keys_of_neighbouring_ids_give_unrelated_numbers() -> None:
    first, second = (draws(fold(9, key), np.arange(20_000)).astype(np.float64) for key in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.04


@given(
    st.lists(st.integers(0, (1 << 63) - 1), min_size=1, max_size=8), st.integers(0, (1 << 63) - 1), st.integers(32, 63)
)
def test_multiply_shift_is_exact_in_128_bits(values: list[int], factor: int, shift: int) -> None:
    fitting = [value for value in values if value * factor >> shift < 1 << 63]
    products = multiply_shift(np.array(fitting, np.int64), factor, shift=shift)
    assert products.tolist() == [value * factor >> shift for value in fitting]


def test_no_global_generator_is_read_or_moved() -> None:
    before = random.getstate()
    state = random.Random(5).getstate()
    random.setstate(state)
    np.random.seed(5)  # noqa: NPY002
    following = np.random.random()  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    first = draws(fold(1, text_id("a")), permutation(3, 100)).tolist()
    assert random.getstate() == state
    assert np.random.random() == following  # noqa: NPY002
    random.setstate(before)
    assert draws(fold(1, text_id("a")), permutation(3, 100)).tolist() == first


def test_purposes_keep_the_numbers_that_plans_are_made_with() -> None:
    assert [Purpose(number).name for number in range(1, 12)] == [
        "SHARD_ORDER",
        "ROUNDING_OFFSET",
        "ROUNDING_ORDER",
        "LINE_START",
        "SCHEDULE",
        "WINDOW_SAMPLES",
        "WINDOW_BATCHES",
        "SUBSTITUTE",
        "BERNOULLI",
        "SPLIT",
        "SHUFFLE_STAGE",
    ]
