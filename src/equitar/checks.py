"""Checks of arguments: numbers that are refused at once, before a sidecar is read or a worker starts."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from equitar.errors import PlanError


def plain_number(value: object) -> int | float | None:
    """Return a number as one of Python, so that those of numpy look the same in digests and texts; None if it is not one.

    >>> plain_number(np.int64(8)), plain_number(np.float32(0.5)), plain_number(True), plain_number("8")
    (8, 0.5, None, None)
    """
    if isinstance(value, bool | np.bool_):
        return None
    if isinstance(value, int | np.integer):
        return int(value)
    return float(value) if isinstance(value, float | np.floating | Fraction) else None


def check_number(name: str, value: object) -> float:
    """Return an argument as a plain number.

    Raises:
        PlanError: If it is not a finite number > 0.
    """
    number = plain_number(value)
    if number is None or not 0 < number < math.inf:
        raise PlanError(f"`{name}` must be a finite number > 0; got {value!r}")
    return number


def check_integer(name: str, value: object, lowest: int) -> int:
    """Return an argument as a plain integer.

    Raises:
        PlanError: If it is not an integer >= `lowest`.
    """
    number = plain_number(value)
    if not isinstance(number, int) or number < lowest:
        raise PlanError(f"`{name}` must be an integer >= {lowest}; got {value!r}")
    return number


def check_place(rank: int | None, world_size: int | None) -> tuple[int, int] | tuple[None, None]:
    """Return rank and world size as plain integers, or None for both: they are to be detected.

    Raises:
        PlanError: If only one is given, or the rank is not below the world size: it would take the share of another one.
    """
    if rank is None and world_size is None:
        return None, None
    if rank is None or world_size is None:
        raise PlanError(f"`rank` and `world_size` go together; got {rank!r} and {world_size!r}")
    rank, world_size = check_integer("rank", rank, 0), check_integer("world_size", world_size, 1)
    if rank >= world_size:
        raise PlanError(f"`rank` must be in [0, {world_size}); got {rank}")
    return rank, world_size
