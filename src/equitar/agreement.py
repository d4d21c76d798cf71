"""Do all ranks have the same? Asked once, before the first step: ranks that differ overlap, or wait for each other for ever."""

from __future__ import annotations

import time
from typing import Any

from torch import distributed

from equitar.errors import PlanError

_MOMENT = 0.02  # seconds


def compare_over_ranks(digest: str, world_size: int, *, what: str, mend: str) -> None:
    """Raise PlanError if ranks have different digests, where they can be asked.

    Args:
        digest: What must be equal.
        world_size: Ranks that share the data; if these are not all of the process group, nothing is asked.
        what: What it is the digest of.
        mend: What to do.
    """
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() != world_size:
        return
    found: list[Any] = [None] * world_size
    distributed.all_gather_object(found, digest)
    different = [rank for rank, one in enumerate(found) if one != found[0]]
    if different:
        raise PlanError(f"all ranks must have the same {what}; rank {different[0]} has another than rank 0: {mend}")


def let_collectives_end() -> None:
    """Wait a moment before workers are forked, where ranks talk to each other.

    Workers forked right after a collective of gloo were seen to hang within the fork, in CPython 3.11. As far as could be seen,
    its thread still held a lock of the interpreter, which the child takes before it makes it anew.
    """
    if distributed.is_available() and distributed.is_initialized():
        time.sleep(_MOMENT)
