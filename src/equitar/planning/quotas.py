"""Quotas: how many batches each source gives in an epoch, without rounding errors that add up."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from math import gcd, lcm

import numpy as np

from equitar.errors import PlanError
from equitar.planning.supply import Supply
from equitar.planning.weights import Changes, Passes, Weights, ZeroVL, by_name, shares
from equitar.rng import Purpose, draws, fold

_DRAWN_AT_ONCE = 1 << 20
_CANDIDATES = 100


@dataclass(frozen=True, slots=True)
class WeightPhase:
    """Steps of an epoch that share one set of weights."""

    start: int  # first step
    quotas: tuple[int, ...]  # batches of each source, (sources,); their sum is the number of steps
    wanted: tuple[bool, ...]  # whether each source has a share, (sources,), although it may round to no batch

    @property
    def stop(self) -> int:
        """The step after the last one."""
        return self.start + sum(self.quotas)


def largest_remainder(shares: Sequence[Fraction], total: int) -> list[int]:
    """Return whole numbers that sum to `total`, each the floor or the ceiling of its share of it.

    >>> largest_remainder([Fraction(1), Fraction(1), Fraction(1)], 10)
    [4, 3, 3]
    """
    unit = lcm(*(share.denominator for share in shares))
    units = [share.numerator * (unit // share.denominator) for share in shares]  # far quicker than fractions
    whole = sum(units)
    result = [total * number // whole for number in units]
    by_remainder = sorted(range(len(shares)), key=lambda index: -(total * units[index] % whole))
    for index in by_remainder[: total - sum(result)]:
        result[index] += 1
    return result


def spread(quotas: Sequence[int], first: int) -> list[int]:
    """Return how many of the first so many items each source has, when its quota is spread evenly over all items.

    The j-th of q items of a source lies at (j + 1/2) / q of the way; ties go to the earlier source. So the result grows
    with `first` in every source, sums to `first`, and stays within a few items of the exact share.

    Args:
        quotas: Items of each source, (sources,).
        first: How many items, in [0, sum(quotas)].

    >>> [spread([4, 2], first) for first in range(7)]
    [[0, 0], [1, 0], [1, 1], [2, 1], [3, 1], [3, 2], [4, 2]]
    """
    total = sum(quotas)
    if len(quotas) == 1 or first in (0, total):
        return [first] if len(quotas) == 1 else [quota if first else 0 for quota in quotas]
    result = [(2 * quota * first + total) // (2 * total) for quota in quotas]
    while (excess := sum(result) - first) != 0:
        if excess > 0:  # take away the latest of the last items
            last = max(
                (Fraction(2 * have - 1, 2 * quota), index) for index, have, quota in _rows(result, quotas) if have
            )
            result[last[1]] -= 1
        else:
            due = min(
                (Fraction(2 * have + 1, 2 * quota), index) for index, have, quota in _rows(result, quotas) if quota
            )
            result[due[1]] += 1
    return result


def _rows(have: Sequence[int], quotas: Sequence[int]) -> list[tuple[int, int, int]]:
    return list(zip(range(len(have)), have, quotas, strict=True))


def stratified(quotas: Sequence[int], first: int, num_batches: int) -> list[int]:
    """Return how many items of each source the first so many batches have, if each has the floor or ceiling of every share.

    This is systematic sampling: the shares of a batch lie side by side on a line, ``quota / num_batches`` each, and every
    whole number from a start on takes one item of the source where it falls. Batch p starts at the fraction of
    ``p * multiplier / num_batches``; over all batches each start comes once, so that the quotas are exact.

    Args:
        quotas: Items of each source, (sources,); their sum is a multiple of `num_batches`.
        first: How many batches, in [0, num_batches].
        num_batches: Batches of the epoch.

    >>> [stratified([6, 3, 1], first, 5) for first in range(6)]
    [[0, 0, 0], [1, 0, 1], [2, 1, 1], [3, 2, 1], [5, 2, 1], [6, 3, 1]]
    """
    multiplier = _multiplier(num_batches)
    sums = [_floor_sum(first, num_batches, multiplier, edge) for edge in accumulate(quotas, initial=0)]
    return [after - before for before, after in pairwise(sums)]


def widest_gap(batches: int, num_batches: int) -> int:
    """Return the widest gap between the starts of so many consecutive batches, in units of ``1 / num_batches``."""
    starts = np.sort(np.arange(batches, dtype=object) * _multiplier(num_batches) % num_batches)
    return int(max(np.diff(starts, append=starts[0] + num_batches)))


@lru_cache(maxsize=1 << 10)
def _multiplier(num_batches: int) -> int:
    """Return a number without common divisor whose multiples are spread evenly: its continued fraction has small terms."""
    golden = num_batches * 1_618_034 // 1_000_000 - num_batches
    candidates = range(max(1, golden - _CANDIDATES), max(2, min(golden + _CANDIDATES, num_batches)))
    coprime = [number for number in candidates if gcd(number, num_batches) == 1]
    return min(
        coprime, key=lambda number: (sum(term * term for term in _continued_fraction(num_batches, number)), number)
    )


def _continued_fraction(numerator: int, denominator: int) -> Iterator[int]:
    while denominator:
        yield numerator // denominator
        numerator, denominator = denominator, numerator % denominator


def _floor_sum(count: int, divisor: int, step: int, start: int) -> int:
    """Return the sum of ``(start + i * step) // divisor`` for i in range(count), by Euclid's algorithm."""
    result = 0
    while count:
        result += (count - 1) * count // 2 * (step // divisor) + count * (start // divisor)
        step, start = step % divisor, start % divisor
        count, start = divmod(step * count + start, divisor)
        divisor, step = step, divisor
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSpec:
    """What the steps of an epoch are shared out by."""

    weights: Weights | Changes | None  # shares, or a list of (from_step, shares) that begins at step 0; None is by size
    steps: int | None  # steps of the epoch; None is as many as one pass of all sources holds
    left_out: Collection[str]  # names that weights may have although the plan has no such sources
    max_passes: float | None  # how often an epoch may go through a source; None is without limit


def weight_phases(supplies: Sequence[Supply], spec: QuotaSpec, *, global_batch: int, key: int) -> list[WeightPhase]:
    """Return the phases of an epoch, each with the quota of every source.

    Without `weights` and `steps`, every source gives as many global batches as one pass of it holds. Otherwise the steps
    are shared out by largest remainder.

    Args:
        supplies: The sources.
        spec: What the steps are shared out by.
        global_batch: Samples in a global batch, or 1 to count samples.
        key: Key of the epoch, for what is drawn.

    Raises:
        PlanError: If weights do not fit the sources.
    """
    in_pass = [supply.copies // global_batch for supply in supplies]
    weights, steps = spec.weights, spec.steps
    if weights is None and steps is None:
        return [WeightPhase(0, tuple(in_pass), (True,) * len(in_pass))]
    if isinstance(weights, ZeroVL):
        drawn = _drawn(shares(supplies, weights, spec.left_out), sum(in_pass) if steps is None else steps, key)
        return [WeightPhase(0, tuple(drawn), (False,) * len(drawn))]
    if isinstance(weights, Passes) and steps is None:
        passes = by_name(weights.passes, supplies, "passes", spec.left_out)
        quotas = tuple(
            int(number * supply.total) // (global_batch << 20) for number, supply in zip(passes, supplies, strict=True)
        )
        phases = [WeightPhase(0, quotas, tuple(number > 0 for number in passes))]
        return _capped(phases, supplies, spec, global_batch)
    steps = sum(in_pass) if steps is None else steps
    changes = list(weights) if isinstance(weights, Sequence) else [(0, weights)]
    starts = [start for start, _ in changes]
    if not starts or starts[0] != 0 or starts != sorted(set(starts)) or starts[-1] >= max(1, steps):
        raise PlanError(
            f"changes of `weights` must begin at step 0 and increase below {steps} steps; got steps {starts}"
        )
    result = []
    for (start, changed), stop in zip(changes, [*starts[1:], steps], strict=True):
        share = shares(supplies, changed, spec.left_out)
        quotas = tuple(largest_remainder(share, stop - start))
        result.append(WeightPhase(start, quotas, tuple(part > 0 for part in share)))
    return _capped(result, supplies, spec, global_batch)


def copies_of_passes(supplies: Sequence[Supply], weights: Passes) -> list[int]:
    """Return the whole copies of each source that passes ask for, (sources,)."""
    passes = by_name(weights.passes, supplies, "passes", ())
    return [int(number * supply.total) >> 20 for number, supply in zip(passes, supplies, strict=True)]


def most_allowed(supplies: Sequence[Supply], max_passes: float, global_batch: int) -> list[int]:
    """Return how many global batches so many passes of each source allow, (sources,)."""
    return [int(Fraction(max_passes) * supply.total) // (global_batch << 20) for supply in supplies]


def _capped(
    phases: list[WeightPhase], supplies: Sequence[Supply], spec: QuotaSpec, global_batch: int
) -> list[WeightPhase]:
    """Return phases in which no source has more passes than allowed; the others get its steps, by their shares."""
    if spec.max_passes is None:
        return phases
    most = most_allowed(supplies, spec.max_passes, global_batch)
    quotas = [sum(column) for column in zip(*(phase.quotas for phase in phases), strict=True)]
    over = [index for index, (quota, cap) in enumerate(zip(quotas, most, strict=True)) if quota > cap]
    if not over:
        return phases
    if isinstance(spec.weights, Sequence):
        raise PlanError(
            f"`max_passes` is {spec.max_passes} but source {supplies[over[0]].name!r} would give {quotas[over[0]]} batches "
            f"where that allows {most[over[0]]}; lower its weight in the list of changes"
        )
    share = shares(supplies, spec.weights, spec.left_out)
    steps, fixed = sum(quotas), dict[int, int]()
    while over:
        fixed.update({index: most[index] for index in over})
        free = [index for index in range(len(supplies)) if index not in fixed and share[index]]
        if not free:
            raise PlanError(
                f"`max_passes={spec.max_passes}` allows {sum(most)} steps of all sources with a weight; got {steps}; lower "
                "`steps` or raise `max_passes`"
            )
        rest = largest_remainder([share[index] for index in free], steps - sum(fixed.values()))
        quotas = [fixed.get(index, 0) for index in range(len(supplies))]
        for index, quota in zip(free, rest, strict=True):
            quotas[index] = quota
        over = [index for index in free if quotas[index] > most[index]]
    return [WeightPhase(0, tuple(quotas), phases[0].wanted)]


def _drawn(share: Sequence[Fraction], steps: int, key: int) -> list[int]:
    """Return how often each source is drawn in so many independent draws by share."""
    whole, so_far, edges = sum(share), Fraction(0), []
    for part in share[:-1]:
        so_far += part
        edges.append(min(int(so_far * (1 << 64) / whole), (1 << 64) - 1))
    counts = np.zeros(len(share), np.int64)
    for first in range(0, steps, _DRAWN_AT_ONCE):
        drawn = draws(fold(key, Purpose.ZEROVL), np.arange(first, min(steps, first + _DRAWN_AT_ONCE)))
        counts += np.bincount(np.searchsorted(np.array(edges, np.uint64), drawn, side="right"), minlength=len(share))
    return [int(count) for count in counts]
