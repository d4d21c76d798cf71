"""How many batches does each source give? Shares of an epoch's steps, without rounding errors that add up.

A weight means the same everywhere: *the share of the steps* at which a source is drawn. Shares by name are normalised to
one; `Temperature` and `Passes` are two ways to arrive at shares.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import TypeAlias

from equitar.errors import PlanError
from equitar.line import Supply
from equitar.repeat import power_of


@dataclass(frozen=True, slots=True)
class Temperature:
    """Shares proportional to ``size ** (1 / temperature)``: 1 is by size, larger values even the sources out.

    Attributes:
        temperature: A number >= 1 (mT5, arXiv 2010.11934, calls its inverse alpha).
    """

    temperature: float

    def __post_init__(self) -> None:
        if not 1 <= self.temperature < math.inf:
            raise ValueError(f"`temperature` must be a finite number >= 1; got {self.temperature!r}")


@dataclass(frozen=True, slots=True)
class Passes:
    """How often each source is gone through in an epoch, by name; with `steps`, shares proportional to passes x size.

    Attributes:
        passes: A number >= 0 for every source.
    """

    passes: Mapping[str, float]


Weights: TypeAlias = Mapping[str, float] | Temperature | Passes
Changes: TypeAlias = Sequence[tuple[int, Weights | None]]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps of an epoch that share one set of weights.

    Attributes:
        start: First step.
        quotas: Batches of each source, (sources,); their sum is the number of steps.
        wanted: Whether each source has a share, (sources,), although it may round to no batch.
    """

    start: int
    quotas: tuple[int, ...]
    wanted: tuple[bool, ...]

    @property
    def stop(self) -> int:
        """The step after the last one."""
        return self.start + sum(self.quotas)


def largest_remainder(shares: Sequence[Fraction], total: int) -> list[int]:
    """Return whole numbers that sum to `total`, each the floor or the ceiling of its share of it.

    >>> largest_remainder([Fraction(1), Fraction(1), Fraction(1)], 10)
    [4, 3, 3]
    """
    whole = sum(shares)
    exact = [share * total / whole for share in shares]
    result = [int(one) for one in exact]
    by_remainder = sorted(range(len(shares)), key=lambda one: (result[one] - exact[one], one))
    for one in by_remainder[: total - sum(result)]:
        result[one] += 1
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
                (Fraction(2 * have - 1, 2 * quota), one) for one, (have, quota) in _pairs(result, quotas) if have
            )
            result[last[1]] -= 1
        else:
            due = min(
                (Fraction(2 * have + 1, 2 * quota), one) for one, (have, quota) in _pairs(result, quotas) if quota
            )
            result[due[1]] += 1
    return result


def _pairs(have: Sequence[int], quotas: Sequence[int]) -> list[tuple[int, tuple[int, int]]]:
    return list(enumerate(zip(have, quotas, strict=True)))


def stretches(
    supplies: Sequence[Supply],
    *,
    global_batch: int,
    weights: Weights | Changes | None,
    steps: int | None,
    left_out: Collection[str],
) -> list[Stretch]:
    """Return the epoch as stretches of steps with the quota of each source in them.

    Without `weights` and `steps`, every source gives as many global batches as one pass of it holds. Otherwise the steps
    (by default as many as all passes hold) are shared out by largest remainder; without `weights`, by size.

    Args:
        supplies: The sources.
        global_batch: Samples in a global batch, or 1 to count samples.
        weights: Shares, or a list of (from_step, shares) that begins at step 0.
        steps: Steps of the epoch.
        left_out: Names that weights may have although they are no supplies.

    Raises:
        PlanError: If weights and sources do not fit.
    """
    in_pass = [supply.copies // global_batch for supply in supplies]
    if weights is None and steps is None:
        return [Stretch(0, tuple(in_pass), (True,) * len(in_pass))]
    if isinstance(weights, Passes) and steps is None:
        passes = _by_name(weights.passes, supplies, "passes", left_out)
        found = [
            int(number * supply.total) // (global_batch << 20) for number, supply in zip(passes, supplies, strict=True)
        ]
        return [Stretch(0, tuple(found), tuple(number > 0 for number in passes))]
    steps = sum(in_pass) if steps is None else steps
    changes = list(weights) if isinstance(weights, Sequence) else [(0, weights)]
    starts = [start for start, _ in changes]
    if not starts or starts[0] != 0 or starts != sorted(set(starts)) or starts[-1] >= max(1, steps):
        raise PlanError(
            f"changes of `weights` must begin at step 0 and increase below {steps} steps; got steps {starts}"
        )
    result = []
    for (start, one), stop in zip(changes, [*starts[1:], steps], strict=True):
        share = shares(supplies, one, left_out)
        quotas = tuple(largest_remainder(share, stop - start))
        result.append(Stretch(start, quotas, tuple(one > 0 for one in share)))
    return result


def shares(supplies: Sequence[Supply], weights: Weights | None, left_out: Collection[str]) -> list[Fraction]:
    """Return the share of each source, >= 0, not normalised.

    Raises:
        PlanError: If a weight is missing, unknown, negative or not finite, or all are zero.
    """
    if weights is None:
        result = [Fraction(supply.total) for supply in supplies]
    elif isinstance(weights, Temperature):
        root = 1 / weights.temperature
        result = [Fraction(power_of(supply.copies, root)) if supply.copies else Fraction(0) for supply in supplies]
    elif isinstance(weights, Passes):
        passes = _by_name(weights.passes, supplies, "passes", left_out)
        result = [number * supply.total for number, supply in zip(passes, supplies, strict=True)]
    else:
        result = _by_name(weights, supplies, "weights", left_out)
    if not any(result):
        raise PlanError(f"`weights` must be positive for at least one source that has samples; got {weights!r}")
    return result


def _by_name(
    numbers: Mapping[str, float], supplies: Sequence[Supply], what: str, left_out: Collection[str]
) -> list[Fraction]:
    """Return the numbers in the order of the supplies, checked."""
    names = [supply.name for supply in supplies]
    if not isinstance(numbers, Mapping):
        raise PlanError(f"`{what}` must map the name of each source to a number; got {numbers!r}")
    missing, unknown = (
        [n for n in names if n not in numbers],
        [n for n in numbers if n not in names and n not in left_out],
    )
    if missing or unknown:
        found = f"{missing[0]!r} has none" if missing else f"{unknown[0]!r} is not a source"
        raise PlanError(f"`{what}` must have one number for each of the sources {', '.join(names)}; {found}")
    for name in names:
        if not isinstance(numbers[name], Real) or not (0 <= numbers[name] < math.inf):
            raise PlanError(f"`{what}` must be finite numbers >= 0; got {numbers[name]!r} for source {name!r}")
    return [Fraction(numbers[name]) for name in names]
