"""Lines: all copies of a source in one pass, side by side on a circle, and where each of them lies.

The shards of the source, in an order drawn for the pass, lie one after another, each row as often as it is repeated.
Repeat factors are rounded to whole copies *systematically*: with C the running sum of the factors along the order of
the shards and u in [0, 1) drawn for the pass, a row gets ``floor(C_i + u) - floor(C_{i-1} + u)`` copies. That is the floor
or the ceiling of its factor, with mean exactly the factor, and the copies of a shard follow from the sum of its factors
alone: a line over 200,000 shards is built from 200,000 integers, and only rows that are asked for are ever looked at.
Within a shard, C runs in an order drawn for rounding only, so that no pattern of the rows meets the period of the factors.

A line that must hold more copies than the source has is stretched: all factors are multiplied, exactly, so that a
source which is seen 2.5 times gives each sample 2 or 3 times its factor.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from equitar.arrays import Int64
from equitar.errors import PlanError
from equitar.planning.repeat_factors import ONE
from equitar.planning.supply import Supply
from equitar.rng import Purpose, draws, fold, multiply_shift, permutation

_STRETCH_BITS = 40  # a stretch of 2**-40 too much is less than one copy in 10**12
_ROWS_KEPT = 16  # shards whose copies are remembered; a window touches a few


class Copies(NamedTuple):
    """Copies on a line, (n,) each: which shard and row, and which copy of that row in this pass."""

    shard: Int64
    row: Int64
    copy: Int64


def stretch_for(total: int, at_least: int) -> int:
    """Return the factor, in units of 2**-40, that makes `at_least` copies of `total` units; 2**40 if it has them.

    It is rounded down, so that no sample gets more copies than its own factor says; the line makes up for it.
    """
    if at_least * ONE <= total:
        return 1 << _STRETCH_BITS
    stretch = (at_least * ONE << _STRETCH_BITS) // total
    if stretch >= 1 << 63:
        raise PlanError(f"a source may be seen at most {1 << 22} times an epoch; {at_least} copies need more than that")
    return stretch


def most_copies(supply: Supply, at_least: int) -> int:
    """Return the largest number of copies that one sample can have on a line of at least `at_least` copies."""
    if not supply.total:
        return 0
    scaled = -(-(supply.largest * stretch_for(supply.total, at_least)) >> _STRETCH_BITS)
    return -(-scaled >> 20)


class Line:
    """The copies of one source in one pass, on a circle that begins at a drawn copy."""

    def __init__(self, supply: Supply, *, key: int, at_least: int, ordered: bool = False) -> None:
        """Arrange shards and copies.

        Args:
            supply: The source.
            key: Key of the pass, folded from the seed, the source and the pass.
            at_least: Copies that must lie on it; the supply must not be empty if there are any.
            ordered: Keep shards and copies in order and begin at the first one.
        """
        if supply.rounding == "bernoulli":
            supply = _drawn(supply, key, at_least)
        self._supply, self._key = supply, key
        num_shards = len(supply.shard_ids)
        order = np.argsort(draws(fold(key, Purpose.SHARD_ORDER), supply.shard_ids), kind="stable")
        self._order = np.arange(num_shards) if ordered else order  # (shards,), shard at each place of the line
        self._sums = np.concatenate([[0], np.cumsum(supply.sums[self._order])])  # (shards + 1,), 2**-20 copies
        self._stretch = stretch_for(int(self._sums[-1]), at_least)
        # The offset is drawn from where all copies that are needed lie on the line: the stretch was rounded down.
        lacking = max(0, at_least * ONE - int(self._scaled(self._sums[-1:])[0]))
        self._offset = lacking + int(draws(fold(key, Purpose.ROUNDING_OFFSET), 0)) % (ONE - lacking)
        self._starts = self._whole(self._sums)  # (shards + 1,), first copy of each place
        self.length = int(self._starts[-1])  # copies on the line, at least `at_least`
        start = int(draws(fold(key, Purpose.LINE_START), 0)) % max(1, self.length)
        self._rotation = 0 if ordered else start
        self._ends: OrderedDict[int, Int64] = OrderedDict()

    def _whole(self, sums: Int64) -> Int64:
        """Return the whole copies before each running sum."""
        whole: Int64 = (self._scaled(sums) + self._offset) >> 20
        return whole

    def _scaled(self, sums: Int64) -> Int64:
        return sums if self._stretch == 1 << _STRETCH_BITS else multiply_shift(sums, self._stretch, shift=_STRETCH_BITS)

    def copies(self, shard: int) -> Int64:
        """Return how often each row of a shard lies on the line, (rows,)."""
        place = int(np.flatnonzero(self._order == shard)[0])
        copies: Int64 = np.diff(self._row_ends(place), prepend=0)
        return copies

    def _row_ends(self, place: int) -> Int64:
        """Return the running number of copies over the rows of the shard at a place, (rows,)."""
        if place in self._ends:
            self._ends.move_to_end(place)
            return self._ends[place]
        shard = int(self._order[place])
        factors = self._supply.factors(shard)
        if self._stretch == 1 << _STRETCH_BITS and not (factors & ONE - 1).any():
            copies = factors >> 20  # whole as they are, whatever the offset and the order
        else:
            key = fold(self._key, Purpose.ROUNDING_ORDER, int(self._supply.shard_ids[shard]))
            order = permutation(key, len(factors))
            sums = self._sums[place] + np.concatenate([[0], np.cumsum(factors[order])])
            copies = np.empty(len(factors), np.int64)
            copies[order] = np.diff(self._whole(sums))
        self._ends[place] = np.cumsum(copies)
        if len(self._ends) > _ROWS_KEPT:
            self._ends.popitem(last=False)
        return self._ends[place]

    def at(self, positions: Int64) -> Copies:
        """Return the copies at positions of the circle, (n,); fastest where these increase."""
        wrapped = (positions + self._rotation) % max(1, self.length)
        place = np.searchsorted(self._starts, wrapped, side="right") - 1  # (n,), never an empty shard
        row, copy = np.empty(len(wrapped), np.int64), np.empty(len(wrapped), np.int64)
        cuts = [0, *(np.flatnonzero(np.diff(place)) + 1).tolist(), len(place)] if len(place) else [0]
        for first, last in pairwise(cuts):
            ends = self._row_ends(int(place[first]))
            within = wrapped[first:last] - self._starts[place[first]]
            here = np.searchsorted(ends, within, side="right")
            row[first:last] = here
            copy[first:last] = within - np.concatenate([[0], ends])[here]
        shard: Int64 = self._order[place]
        return Copies(shard, row, copy)


def _drawn(supply: Supply, key: int, at_least: int) -> Supply:
    """Return the supply with every factor drawn to its floor or ceiling, each row alone (Detectron2).

    Where the draw falls short of the copies that are needed, the rows that were nearest to their ceiling get it too.
    """
    stretch = stretch_for(max(1, supply.total), at_least)

    def exact(shard: int) -> Int64:
        factors = supply.factors(shard)
        return factors if stretch == 1 << _STRETCH_BITS else multiply_shift(factors, stretch, shift=_STRETCH_BITS)

    def margins(shard: int, factors: Int64) -> Int64:
        """Return by how much a row missed its ceiling, in units of 2**-63; below 0 where it is drawn."""
        hashes = draws(fold(key, Purpose.BERNOULLI, int(supply.shard_ids[shard])), np.arange(len(factors)))
        missed = (hashes >> np.uint64(1)).astype(np.int64) - (factors % ONE << 43)
        return np.where(factors % ONE == 0, np.iinfo(np.int64).max, missed)

    all_rows = [(exact(shard), margins(shard, exact(shard))) for shard in range(len(supply.num_rows))]
    lacking = at_least - sum(int((factors // ONE + (missed < 0)).sum()) for factors, missed in all_rows)
    limit = 0
    if lacking > 0:
        near = np.concatenate([missed[missed >= 0] for _, missed in all_rows])
        limit = int(np.partition(near, lacking - 1)[lacking - 1]) + 1

    def factors(shard: int) -> Int64:
        rows = exact(shard)
        drawn: Int64 = (rows // ONE + (margins(shard, rows) < limit)) * ONE
        return drawn

    sums = np.array([int(((rows // ONE + (missed < limit)) * ONE).sum()) for rows, missed in all_rows], np.int64)
    return replace(supply, factors=factors, sums=sums, rounding="systematic")


def most_of(supplies: Sequence[Supply], quota: Sequence[int], in_pass: Sequence[int]) -> list[int]:
    """Return the most copies that a sample of each source can have in an epoch, (sources,); 0 for one that gives nothing."""
    return [
        most_copies(supply, max(asked, whole)) if asked else 0
        for supply, asked, whole in zip(supplies, quota, in_pass, strict=True)
    ]
