"""The rules of the plan once more, in plain Python and as naive as can be: what the package is held against.

Nothing here comes from the package. Factors are integers in units of 2**-20 copies, everything else is exact fractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, floor
from typing import NamedTuple

ONE = 1 << 20


class WeightPhase(NamedTuple):
    """Steps that share one set of weights: batches of each source, and which sources shall have some."""

    start: int
    quotas: list[int]
    wanted: list[bool]


class Segment(NamedTuple):
    """Batches of an epoch that lie in one pass: which pass, and from which of its batches on."""

    pass_number: int
    first: int
    num_batches: int


def share_out(shares: Sequence[Fraction], total: int) -> list[int]:
    """Largest remainder, one item at a time."""
    exact = [share * total / sum(shares) for share in shares]
    result = [floor(share) for share in exact]
    while sum(result) < total:
        missing = [share - have for share, have in zip(exact, result, strict=True)]
        result[missing.index(max(missing))] += 1
    return result


def spread_out(quotas: Sequence[int], first: int) -> list[int]:
    """Lay all items of all sources evenly between 0 and 1, sort them, and take the first ones."""
    items = sorted((Fraction(2 * j + 1, 2 * q), source) for source, q in enumerate(quotas) for j in range(q))
    taken = [source for _, source in items[:first]]
    return [taken.count(source) for source in range(len(quotas))]


def passes_of(total: int, copies: int) -> Fraction:
    """By how much the factors of a source (their sum is `total`) are multiplied to give so many copies; at least 1."""
    return max(Fraction(1), Fraction(copies * ONE, total))


def bounds(factor: int, passes: Fraction) -> tuple[int, int]:
    """Fewest and most copies of a sample in so many passes."""
    exact = passes * Fraction(factor, ONE)
    return floor(exact), ceil(exact)


def walk(epoch: int, *, per_pass: int, per_epoch: int, most: int) -> list[Segment]:
    """Where an epoch of `per_epoch` batches lies on the endless row of passes of `per_pass` batches each.

    A part of an epoch in one pass has 0 or at least `most` batches.
    """
    if per_epoch >= per_pass:
        return [Segment(epoch, 0, per_epoch)]
    pass_number = taken = 0
    segments: list[Segment] = []
    for _ in range(epoch + 1):
        left = per_pass - taken
        if left >= per_epoch:
            segments, taken = [Segment(pass_number, taken, per_epoch)], taken + per_epoch
            continue
        old = max((n for n in range(left + 1) if n == 0 or n >= most <= per_epoch - n), default=0)
        segments = [Segment(pass_number, taken, old)] if old else []
        pass_number, taken = pass_number + 1, per_epoch - old
        segments.append(Segment(pass_number, 0, taken))
    return segments
