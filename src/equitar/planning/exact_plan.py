"""The plan for validation: every sample once over all ranks, in order.

Sources come by name, shards by path, rows as they lie. Step t holds the next global batch; each rank has consecutive slots of
it. The last step holds what is left, shared out evenly; a rank that would have nothing, or a batch that is to be full, gets
padding: samples from the beginning again, marked as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from equitar.arrays import Int64
from equitar.errors import PlanError
from equitar.planning.feasibility import checked_supplies
from equitar.planning.line import Line
from equitar.planning.passes import PassPosition
from equitar.planning.plan import DisplayedPlan, PlannedSamples, PlanSpec, account_of, digest_of
from equitar.planning.supply import Supply
from equitar.rng import fold


class ExactPlan(DisplayedPlan):
    """A plan of every sample once; see `equitar.planning.plan.Plan`."""

    is_whole = False

    def __init__(self, supplies: Sequence[Supply], spec: PlanSpec, *, pad: bool) -> None:
        """Lay the samples, or their copies, in order.

        Args:
            supplies: The sources.
            spec: The numbers that every plan needs; nothing is shuffled.
            pad: Whether the batches of the last step are filled up.

        Raises:
            PlanError: If there are no samples.
        """
        supplies = checked_supplies(supplies)
        self._lines = [
            Line(supply, key=fold(spec.seed, supply.key, 0), at_least=0, ordered=True) for supply in supplies
        ]
        self._ends = np.cumsum([line.length for line in self._lines])  # (sources,), copies up to the end of each
        self._total = int(self._ends[-1])
        if not self._total:
            raise PlanError(
                f"the sources {', '.join(supply.name for supply in supplies)} have no samples; check `keep`"
            )
        self._pad, self.spec = pad, spec
        self.global_batch = spec.global_batch
        self.num_steps = -(-self._total // spec.global_batch)
        self.names = tuple(supply.name for supply in supplies)
        lengths = [line.length for line in self._lines]
        self.account = account_of(supplies, lengths, lengths)
        self.digest = digest_of(supplies, spec, f"exact {pad}")

    def sources(self, rank: int) -> None:
        """Return None: batches may be mixed."""

    def pass_positions(self, step: int) -> tuple[PassPosition, ...]:
        """Return nothing: every epoch is all of it."""
        return ()

    def given_up(self, step: int) -> dict[str, int]:
        """Return how many copies of each source are lost if the epoch ends before a step."""
        emitted = step * self.global_batch
        lengths = [line.length for line in self._lines]
        left = np.minimum(lengths, np.maximum(0, self._ends - emitted)) * (step > 0)
        return dict(zip(self.names, left.tolist(), strict=True))

    def share(self, step: int, rank: int, world_size: int) -> tuple[int, int]:
        """Return the slots of a rank at a step."""
        left = min(self.global_batch, self._total - step * self.global_batch)
        if self._pad:
            left = self.global_batch
        first, last = left * rank // world_size, left * (rank + 1) // world_size
        return (first, last) if first < last else (left + rank, left + rank + 1)

    def samples(self, step: int, first: int, last: int) -> PlannedSamples:
        """Return what lies in slots [first, last) of a step; padding has -1 as its copy."""
        positions = step * self.global_batch + np.arange(first, last)
        wrapped = positions % self._total
        source: Int64 = np.searchsorted(self._ends, wrapped, side="right")
        starts = np.concatenate([[0], self._ends])
        columns = [np.empty(len(wrapped), np.int64) for _ in range(3)]
        for index in np.unique(source).tolist():
            here = source == index
            copies = self._lines[index].at(wrapped[here] - starts[index])
            for column, values in zip(columns, copies, strict=True):
                column[here] = values
        columns[2][positions >= self._total] = -1
        return PlannedSamples(source, *columns)

    def substitutes(self, step: int, slot: int) -> Iterator[tuple[int, int]]:
        """Yield nothing: a dropped sample is missing from its batch."""
        return iter(())
