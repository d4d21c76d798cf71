"""Did the batches come in turn? For loaders that are not ours, which may hand them out as they are ready."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from equitar.errors import PlanError

Batch = TypeVar("Batch")


def check_order(batches: Iterable[Batch], first_step: int = 0) -> Iterator[Batch]:
    """Yield batches, and raise at the first that is out of turn.

    A plain DataLoader with ``in_order=False`` would give ranks different sources at a step, and a data set cannot see it.

    Args:
        batches: Batches with ``__step__``, such as those of a DataLoader.
        first_step: The step that the first must have, >= 0.

    Raises:
        PlanError: If a batch is out of turn, or has no ``__step__``.

    >>> [batch["__step__"] for batch in check_order([{"__step__": 0}, {"__step__": 1}])]
    [0, 1]
    """
    for due, batch in enumerate(batches, first_step):
        step = batch.get("__step__") if isinstance(batch, dict) else None
        if step is None:
            raise PlanError(f"`check_order` needs batches with '__step__'; got {type(batch).__name__} at step {due}")
        if step != due:
            raise PlanError(f"step {step} came when step {due} was due; use `in_order=True`, or equitar.Loader")
        yield batch
