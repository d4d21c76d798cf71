"""What is a weight? The share of the steps at which a source is drawn: the same meaning everywhere.

Shares by name are normalised to one. The classes here are other ways to arrive at shares.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import TypeAlias

from equitar.errors import PlanError
from equitar.planning.repeat_factors import power_of
from equitar.planning.supply import Supply


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
    """Return weights with their names sorted: the order in which they are written changes nothing."""
    if isinstance(weights, Passes) and isinstance(weights.passes, Mapping):
        return Passes(dict(sorted(weights.passes.items())))
    return dict(sorted(weights.items())) if isinstance(weights, Mapping) else weights


def canonical_changes(weights: Weights | Changes | None) -> Weights | Changes | None:
    """Return weights, or the weights in a list of changes, with their names sorted."""
    if isinstance(weights, Sequence):
        return [(step, canonical(one)) for step, one in weights]
    return canonical(weights)


def shares(supplies: Sequence[Supply], weights: Weights | None, left_out: Collection[str]) -> list[Fraction]:
    """Return the share of each source, >= 0, not normalised.

    Raises:
        PlanError: If a weight is missing, unknown, negative or not finite, or all are zero.
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
    """Raise PlanError if numbers are not of the sources that have these names; those left out may have one or not."""
    missing = [f"{name!r} has none" for name in names if name not in numbers and name not in left_out]
    unknown = [f"{name!r} is not a source" for name in numbers if name not in names and name not in left_out]
    if missing or unknown:
        found = " and ".join([*missing[:1], *unknown[:1]])
        raise PlanError(f"`{what}` must have one number for each of the sources {', '.join(names)}; {found}")


def by_name(
    numbers: Mapping[str, float], supplies: Sequence[Supply], what: str, left_out: Collection[str]
) -> list[Fraction]:
    """Return the numbers in the order of the supplies, checked."""
    names = [supply.name for supply in supplies]
    if not isinstance(numbers, Mapping):
        raise PlanError(f"`{what}` must map the name of each source to a number; got {numbers!r}")
    check_names(numbers, names, what, left_out)
    for name in names:
        if not isinstance(numbers[name], Real) or not (0 <= numbers[name] < math.inf):
            raise PlanError(f"`{what}` must be finite numbers >= 0; got {numbers[name]!r} for source {name!r}")
    return [Fraction(numbers[name]) for name in names]


def check_shares(weights: Weights | Changes | None, names: Collection[str], *, some: bool) -> None:
    """Raise PlanError if weights that go by name are not of these sources; `some` need not have any."""
    parts = [one for _, one in weights] if isinstance(weights, Sequence) else [weights]
    for part in parts:
        by_name = part.passes if isinstance(part, Passes) else part
        if isinstance(by_name, Mapping):
            check_names(by_name, names, "passes" if isinstance(part, Passes) else "weights", names if some else ())
