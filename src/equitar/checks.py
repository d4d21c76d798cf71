"""What of a user's arguments can be refused at once, before a sidecar is read and a worker starts?"""

from __future__ import annotations

import math

from equitar.errors import PlanError


def check_number(name: str, value: object) -> None:
    """Raise PlanError if an argument is no finite number above zero."""
    if not isinstance(value, float | int) or not 0 < value < math.inf:
        raise PlanError(f"`{name}` must be a finite number > 0; got {value!r}")


def check_integer(name: str, value: object, lowest: int) -> None:
    """Raise PlanError if an argument is no integer from a number on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
        raise PlanError(f"`{name}` must be an integer >= {lowest}; got {value!r}")


def check_place(rank: int | None, world_size: int | None) -> None:
    """Raise PlanError if a rank is none of the world: it would take another one's share; None of both is to be detected."""
    if (rank is None) != (world_size is None):
        raise PlanError(f"`rank` and `world_size` go together; got {rank!r} and {world_size!r}")
    if rank is not None and world_size is not None:
        check_integer("world_size", world_size, 1)
        check_integer("rank", rank, 0)
        if rank >= world_size:
            raise PlanError(f"`rank` must be in [0, {world_size}); got {rank}")
