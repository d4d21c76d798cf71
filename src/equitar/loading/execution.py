"""Execution: what one process needs to turn a request into batches: the plan of each epoch, and where to begin in it.

Everything expensive (reading summaries, looking up the rank) happens when a plan is first needed, not when a builder is called.
The result travels to the workers with the pipeline.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from equitar.errors import EquitarError, StageError, blame
from equitar.loading.feed import label_of
from equitar.loading.position import SharedPosition
from equitar.loading.record import Record
from equitar.loading.request import Request
from equitar.loading.state import State, pass_start_in, position_in, state_of
from equitar.planning.passes import PassStart
from equitar.planning.plan import Plan
from equitar.planning.recipes import Debiased
from equitar.progress import Position
from equitar.ranks import Topology, consumer, detect_workers

logger = logging.getLogger("equitar")


class Execution:
    """Plans the epochs of a request, and runs them."""

    def __init__(self, request: Request) -> None:
        """Keep a request; nothing is read yet."""
        self.request = request
        self.stages: list[Any] = []  # composed: over batches
        self.pass_start = PassStart()
        self.start = SharedPosition()  # where the next iterator begins
        self.end: int | None = None  # a step before the end of the epoch at which consumers stop
        self._latest: tuple[tuple[int, ...], Plan] | None = None
        self._has_logged_left_out = False

    def __getstate__(self) -> dict[str, Any]:
        _ = self.request.resolved  # workers must not look for their rank, nor read all summaries again
        return {**self.__dict__, "_latest": None}

    def copied(self) -> Execution:
        """Return the same execution, which begins where this one does whenever that is set."""
        # Not by `copy`, which resolves the request: a launcher may not have made the ranks yet.
        result = type(self).__new__(type(self))
        result.__dict__.update(self.__dict__, _latest=None, stages=copy.copy(self.stages))
        return result

    def plan_at(self, position: Position, num_workers: int) -> Plan:
        """Return the plan of the epoch that begins at a position; the latest is kept."""
        name = (position.epoch, position.lanes, position.world_size, num_workers)
        if self._latest is None or self._latest[0] != name:
            self._latest = (name, self.request.plan(position, num_workers, self.pass_start))
            self._log_left_out(self._latest[1])
        return self._latest[1]

    @property
    def latest_plan(self) -> Plan | None:
        """The plan that was used last, if there is one; nothing is read."""
        return None if self._latest is None else self._latest[1]

    def _log_left_out(self, plan: Plan) -> None:
        """Log once which sources are too small for the plan."""
        left_out = [supply for supply in self.request.resolved.supplies if supply.name not in plan.names]
        if self._has_logged_left_out or detect_workers()[1]:
            return
        self._has_logged_left_out = bool(left_out)
        recipe = self.request.recipe
        accumulation_steps = recipe.accumulation_steps if isinstance(recipe, Debiased) else 1
        for supply in left_out:
            logger.warning(
                "source %r is left out: it has %d samples but one global batch needs %d",
                supply.name,
                supply.copies,
                plan.global_batch * accumulation_steps,
            )

    def state_at(self, position: Position, num_workers: int) -> State:
        """Return the state of a run at a position."""
        return state_of(self.request, self.plan_at(position, num_workers), position)

    def follow(self, pass_start: PassStart) -> None:
        """Plan along other passes."""
        self.pass_start, self._latest = pass_start, None

    def follow_state(self, state: State) -> Position:
        """Plan along the passes of a state, and return its position."""
        position = position_in(state)
        self.follow(pass_start_in(state))
        return position

    def use_summaries(self, summaries: Mapping[str, str]) -> None:
        """Use the summaries that a state names, although its sources may have grown since; for others the newest."""
        self.request = self.request.with_summaries(summaries)
        self._latest = None

    def consumer(self) -> tuple[Topology, Position]:
        """Return who reads in this process, and where it begins."""
        resolved = self.request.resolved
        return consumer(resolved.rank, resolved.world_size), self.start.position

    def recorded(self) -> Iterator[tuple[Record, Any]]:
        """Return an iterator over the epoch that begins next, each batch with its record; for a Loader, which sets the start."""
        topology, position = self.consumer()
        batches = self.run(topology, position, position.step + topology.worker)
        if self.end is None:
            return batches
        return islice(batches, len(range(position.step + topology.worker, self.end, max(1, topology.num_workers))))

    def run(self, topology: Topology, position: Position, first_step: int) -> Iterator[tuple[Record, Any]]:
        """Yield the batches of one consumer, from one of its steps on, each with its record."""
        plan = self.plan_at(position, topology.num_workers)
        return self.composed(self.request.emitted(plan, topology, position.epoch, first_step))

    def composed(self, batches: Iterator[tuple[Record, Any]]) -> Iterator[tuple[Record, Any]]:
        """Take batches through the composed stages, and their records past them."""
        if not self.stages:
            yield from batches
            return
        records: list[Record] = []

        def without_records() -> Iterator[Any]:
            for record, batch in batches:
                records.append(record)
                yield batch

        stream: Iterable[Any] = without_records()
        for stage in self.stages:
            applied = getattr(stage, "run", stage)(stream)  # webdataset's PipelineStage has `run`
            stream = _blaming(applied, f"stage {label_of(stage)!r}", records)
        for batch in stream:
            if len(records) != 1:
                raise StageError(f"a composed stage must give one batch for each; it took {len(records)} for one")
            yield records.pop(), batch
        if records:
            raise StageError("a composed stage must give one batch for each; it dropped the last one")


def _blaming(batches: Iterable[Any], stage: str, records: Sequence[Record]) -> Iterator[Any]:
    """Yield what a composed stage gives; its errors name the stage and the latest batch."""
    try:
        yield from batches
    except EquitarError:
        raise
    except Exception as error:
        blame(error, f"{stage} at {records[-1].where()}" if records else stage)
        raise
