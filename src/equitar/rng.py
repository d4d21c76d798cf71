"""Random numbers: a counter-based generator that gives the same numbers on every machine.

A *key* is 64 bits folded from integers: the seed, what the numbers are for (`Purpose`), and the ids they belong to.
*Draws* mix the key with a counter, so that any of them can be computed alone and in any order. The mix is the finaliser of
splitmix64 (Steele, Lea and Flood 2014). No generator is read, seeded or shared, and only integer arithmetic is used,
so the numbers are equal under every platform and every version of numpy.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike

from equitar.arrays import Int64, UInt64

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


class Purpose(IntEnum):
    """What numbers are drawn for. The values are part of every plan: never renumber them."""

    SHARD_ORDER = 1
    ROUNDING_OFFSET = 2
    ROUNDING_ORDER = 3
    LINE_START = 4
    SCHEDULE = 5
    WINDOW_SAMPLES = 6
    WINDOW_BATCHES = 7
    SUBSTITUTE = 8
    BERNOULLI = 9
    SPLIT = 10
    SHUFFLE_STAGE = 11
    ROW_ORDER = 12
    SAMPLER_DRAW = 13
    ZEROVL = 14
    WORKER_SEED = 15
    PARTNERS = 16


def fold(*ids: int) -> int:
    """Return the 64-bit key of integers; their order matters.

    >>> hex(fold(1, 2)), fold(1, 2) == fold(2, 1)
    ('0xefe7970d49726162', False)
    """
    key = _GOLDEN
    for integer in ids:
        mixed = key ^ (integer & _MASK)
        mixed = (mixed ^ (mixed >> 30)) * _FIRST & _MASK
        mixed = (mixed ^ (mixed >> 27)) * _SECOND & _MASK
        key = ((mixed ^ (mixed >> 31)) + _GOLDEN) & _MASK
    return key


def text_id(text: str) -> int:
    """Return a 64-bit id of a text that is the same in every process (unlike `hash`).

    >>> text_id("cc3m") == text_id("cc3m"), text_id("cc3m") == text_id("sbu")
    (True, False)
    """
    raw = text.encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")


def draws(key: int, counters: ArrayLike) -> UInt64:
    """Return one uniform 64-bit number for each counter, in the shape of `counters`.

    Args:
        key: A key from `fold`.
        counters: Non-negative integers below 2**64.

    >>> draws(7, [3]) == draws(7, [1, 2, 3])[2]
    array([ True])
    """
    with np.errstate(over="ignore"):
        mixed = np.asarray(counters).astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(key)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_FIRST)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_SECOND)
        result: UInt64 = mixed ^ (mixed >> np.uint64(31))
        return result


def permutation(key: int, length: int) -> Int64:
    """Return a permutation of ``range(length)``, (length,).

    >>> sorted(permutation(3, 5).tolist())
    [0, 1, 2, 3, 4]
    """
    # Unstable, which is twice as fast: the mix maps different counters to different numbers, so there are no ties.
    return np.argsort(draws(key, np.arange(length)))


def multiply_shift(values: Int64, factor: int, *, shift: int) -> Int64:
    """Return ``values * factor >> shift``, exact although the product has up to 128 bits.

    Args:
        values: Integers in [0, 2**63), any shape.
        factor: An integer in [0, 2**63).
        shift: Bits to drop, in [32, 63]; the result must fit into 63 bits.

    >>> multiply_shift(np.array([10**17]), 3 << 40, shift=40)
    array([300000000000000000])
    """
    low_mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    value = np.asarray(values).astype(np.uint64)
    value_high, value_low = value >> half, value & low_mask
    factor_high, factor_low = np.uint64(factor >> 32), np.uint64(factor & 0xFFFFFFFF)
    low = value_low * factor_low
    middle = value_high * factor_low + (low >> half)  # below 2**64: (2**31)(2**32 - 1) + 2**32
    carry = value_low * factor_high + (middle & low_mask)
    high = value_high * factor_high + (middle >> half) + (carry >> half)
    bottom = (carry << half) | (low & low_mask)
    result: Int64 = ((high << np.uint64(64 - shift)) | (bottom >> np.uint64(shift))).astype(np.int64)
    return result
