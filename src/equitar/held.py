"""Hold one source for several steps: for losses that gather over the steps of gradient accumulation.

A held plan deals batches of `hold` times the size, and hands each out in `hold` steps. So the samples that a loss gathers over
these steps, on all ranks, are one global batch of the plan behind it: of one source, and without two copies of a sample.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from equitar.laid import Places
from equitar.mix64 import Int64
from equitar.passes import Place
from equitar.plan import Plan
from equitar.shape import Shape, SourceAccount


class HeldPlan:
    """A plan whose batches are handed out in parts; see `equitar.plan.Plan`."""

    is_whole = True

    def __init__(self, plan: Plan, shape: Shape, hold: int) -> None:
        """Hand out the batches of a plan.

        Args:
            plan: A plan of batches that are `hold` times too large.
            shape: The numbers as the user gave them.
            hold: Steps for each of its batches, >= 1.
        """
        self._plan, self._hold, self.shape = plan, hold, shape
        self.global_batch = shape.global_batch
        self.num_steps = plan.num_steps * hold
        self.digest = f"{plan.digest}-{hold}"
        self.names = plan.names
        self.account: tuple[SourceAccount, ...] = plan.account

    def sources(self, rank: int) -> Int64 | None:
        """Return the index of the source of every step on a rank, (steps,), or None where batches are mixed."""
        found = self._plan.sources(rank)
        return None if found is None else np.repeat(found, self._hold)

    def places_at(self, step: int) -> tuple[Place, ...]:
        """Return where each source stands in its passes before a step."""
        return self._plan.places_at(-(-step // self._hold))

    def share(self, step: int, rank: int, world_size: int) -> tuple[int, int]:
        """Return the slots [first, last) that a rank reads at a step."""
        each = self.global_batch // world_size
        return rank * each, (rank + 1) * each

    def places(self, step: int, first: int, last: int) -> Places:
        """Return what lies in slots [first, last) of a step."""
        found = [self._plan.places(step // self._hold, *span) for span in self._spans(step, first, last)]
        return found[0] if len(found) == 1 else Places(*map(np.concatenate, zip(*found, strict=True)))

    def substitutes(self, step: int, slot: int) -> Iterator[tuple[int, int]]:
        """Yield (shard, row) of samples of the same source that may stand in for a dropped one."""
        ((held, _),) = self._spans(step, slot, slot + 1)
        return self._plan.substitutes(step // self._hold, held)

    def _spans(self, step: int, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the slots of the held batch that are slots [first, last) of a step, rank by rank of those it was made for.

        So a step holds the same samples whatever the number of ranks that read it.
        """
        each = self.shape.batch_size
        while first < last:
            rank, place = divmod(first, each)
            stop = min(last, (rank + 1) * each)
            begin = (rank * self._hold + step % self._hold) * each + place
            yield begin, begin + stop - first
            first = stop
