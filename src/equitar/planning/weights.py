"""Weights: the share of the steps at which each source is drawn.

Shares by name are normalised to one. The classes here are other ways to give shares.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from equitar.checks import check_integer, plain_number
from equitar.errors import PlanError
from equitar.planning.repeat_factors import power_of
from equitar.planning.supply import Supply
from equitar.text import did_you_mean


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
    """Passes of each source in an epoch, by name; with `steps`, shares proportional to passes x size.

    Attributes:
        passes: A number >= 0 for every source.
    """

    passes: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class BySamples:
    """Shares proportional to the samples of each source before they are repeated: repeats do not change a source's share."""


@dataclass(frozen=True, slots=True)
class ZeroVL:
    """Sources drawn at each step with replacement, by size, as in ZeroVL (arXiv 2112.09331), but the same on all ranks.

    Quotas differ from epoch to epoch, and every epoch begins a pass of each source. For parity with published runs; exact
    quotas (any other weights) have less noise. Repeats are not allowed with it.
    """


Weights: TypeAlias = Mapping[str, float] | Temperature | Passes | BySamples | ZeroVL
Changes: TypeAlias = Sequence[tuple[int, Weights | None]]


def canonical(weights: Weights | None) -> Weights | None:
    """Return weights with their numbers checked and their names sorted: the order in which they are written changes nothing.

    Raises:
        PlanError: If they are not weights, or a number is negative or not finite.
    """
    if weights is None or isinstance(weights, Temperature | BySamples | ZeroVL):
        return weights
    if isinstance(weights, Passes):
        return Passes(_numbers(weights.passes, "passes"))
    return _numbers(weights, "weights")


def canonical_changes(weights: Weights | Changes | None) -> Weights | Changes | None:
    """Return weights, or the weights in a list of changes, in canonical form; see `canonical`."""
    if not isinstance(weights, Sequence):
        return canonical(weights)
    given: Sequence[object] = weights
    if not all(isinstance(change, Sequence) and len(change) == 2 for change in given):
        raise PlanError(
            f"`weights` must map the name of each source to a number, or list pairs (from_step, weights); got {weights!r}"
        )
    return [(check_integer("from_step", start, 0), canonical(changed)) for start, changed in weights]


def _numbers(numbers: Mapping[str, float], what: str) -> dict[str, float]:
    """Return finite numbers >= 0 by name, sorted and as plain numbers, so that they look the same in digests."""
    if not isinstance(numbers, Mapping):
        raise PlanError(f"`{what}` must map the name of each source to a number; got {numbers!r}")
    result = {}
    for name, value in sorted(numbers.items()):
        number = plain_number(value)
        if number is None or not 0 <= number < math.inf:
            raise PlanError(f"`{what}` must be finite numbers >= 0; got {value!r} for source {name!r}")
        result[name] = number
    return result


def shares(supplies: Sequence[Supply], weights: Weights | None, left_out: Collection[str]) -> list[Fraction]:
    """Return the share of each source, >= 0, not normalised.

    Raises:
        PlanError: If a weight is missing or for an unknown source, or all are zero.
    """
    if weights is None or isinstance(weights, ZeroVL):
        result = [Fraction(supply.total) for supply in supplies]
    elif isinstance(weights, BySamples):
        result = [Fraction(supply.kept) for supply in supplies]
    elif isinstance(weights, Temperature):
        root = 1 / weights.temperature
        result = [Fraction(power_of(supply.copies, root)) if supply.copies else Fraction(0) for supply in supplies]
    elif isinstance(weights, Passes):
        passes = by_name(weights.passes, supplies, "passes", left_out)
        result = [number * supply.total for number, supply in zip(passes, supplies, strict=True)]
    else:
        result = by_name(weights, supplies, "weights", left_out)
    if not any(result):
        raise PlanError(f"`weights` must be positive for at least one source that has samples; got {weights!r}")
    return result


def check_names(numbers: Mapping[str, object], names: Collection[str], what: str, left_out: Collection[str]) -> None:
    """Raise PlanError if a source has no number, or a number no source; those left out may have one or not."""
    known, optional = set(names), set(left_out)
    missing = [f"{name!r} has none" for name in names if name not in numbers and name not in optional]
    unknown = [
        f"{name!r}{did_you_mean(name, names)} is not a source"
        for name in numbers
        if name not in known and name not in optional
    ]
    if missing or unknown:
        problem = " and ".join([*missing[:1], *unknown[:1]])
        raise PlanError(f"`{what}` must have one number for each of the sources {', '.join(names)}; {problem}")


def by_name(
    numbers: Mapping[str, float], supplies: Sequence[Supply], what: str, left_out: Collection[str]
) -> list[Fraction]:
    """Return canonical numbers in the order of the supplies.

    Raises:
        PlanError: If a number is missing or for an unknown source.
    """
    names = [supply.name for supply in supplies]
    check_names(numbers, names, what, left_out)
    return [Fraction(numbers[name]) for name in names]


def check_shares(weights: Weights | Changes | None, names: Collection[str], *, some: bool) -> None:
    """Raise PlanError if weights by name do not fit the names of the sources; with `some`, sources may have none."""
    phases = [changed for _, changed in weights] if isinstance(weights, Sequence) else [weights]
    for phase in phases:
        numbers = phase.passes if isinstance(phase, Passes) else phase
        if isinstance(numbers, Mapping):
            check_names(numbers, names, "passes" if isinstance(phase, Passes) else "weights", names if some else ())
