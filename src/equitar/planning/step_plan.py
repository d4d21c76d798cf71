"""Plans of equal steps: worlds of ranks, each with a schedule, and a dealer for whatever takes a turn.

With gradient accumulation, a plan deals batches of `accumulation_steps` times the size and hands each out in so many steps. So
the samples that a loss gathers over these steps, on all ranks, are one global batch of the plan behind it: of one source, and
without two copies of a sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from equitar.arrays import Int64
from equitar.planning.passes import PassPosition
from equitar.planning.plan import DisplayedPlan, PlannedSamples, PlanSpec, SourceAccount, account_of, digest_of
from equitar.planning.quotas import WeightPhase, largest_remainder
from equitar.planning.runs import DealerSpec
from equitar.planning.schedule import Schedule, ShuffledSchedule, SingleSchedule
from equitar.planning.shuffle import BatchIndex, Dealer
from equitar.planning.supply import Supply
from equitar.rng import fold


class AccumulationPlan(DisplayedPlan):
    """A plan whose batches are handed out in several steps each; see `Plan`."""

    is_whole = True

    def __init__(self, plan: StepPlan, spec: PlanSpec, accumulation_steps: int) -> None:
        """Keep the plan whose batches are handed out.

        Args:
            plan: A plan of batches that are `accumulation_steps` times too large.
            spec: The numbers as the user gave them.
            accumulation_steps: Steps for each of its batches, >= 1.
        """
        self._plan, self._accumulation_steps, self.spec = plan, accumulation_steps, spec
        self.global_batch = spec.global_batch
        self.num_steps = plan.num_steps * accumulation_steps
        self.digest = f"{plan.digest}-{accumulation_steps}"
        self.names = plan.names
        self.account: tuple[SourceAccount, ...] = plan.account

    def sources(self, rank: int) -> Int64 | None:
        """Return the index of the source of every step on a rank, (steps,), or None where batches are mixed."""
        sources = self._plan.sources(rank)
        return None if sources is None else np.repeat(sources, self._accumulation_steps)

    def pass_positions(self, step: int) -> tuple[PassPosition, ...]:
        """Return where each source stands in its passes if the epoch ends before a step."""
        return self._plan.pass_positions(-(-step // self._accumulation_steps))

    def given_up(self, step: int) -> dict[str, int]:
        """Return how many copies of each source are lost if the epoch ends before a step."""
        batch, part = divmod(step, self._accumulation_steps)
        if not part:
            return self._plan.given_up(batch)
        result, drawn = self._plan.given_up(batch + 1), self._plan.drawn(batch)
        return {**result, drawn: result[drawn] + (self._accumulation_steps - part) * self.global_batch}

    def share(self, step: int, rank: int, world_size: int) -> tuple[int, int]:
        """Return the slots [first, last) that a rank reads at a step."""
        each = self.global_batch // world_size
        return rank * each, (rank + 1) * each

    def samples(self, step: int, first: int, last: int) -> PlannedSamples:
        """Return what lies in slots [first, last) of a step."""
        parts = [self._plan.samples(step // self._accumulation_steps, *span) for span in self._spans(step, first, last)]
        return parts[0] if len(parts) == 1 else PlannedSamples(*map(np.concatenate, zip(*parts, strict=True)))

    def substitutes(self, step: int, slot: int) -> Iterator[tuple[int, int]]:
        """Yield (shard, row) of samples of the same source that may stand in for a dropped one."""
        ((held, _),) = self._spans(step, slot, slot + 1)
        return self._plan.substitutes(step // self._accumulation_steps, held)

    def _spans(self, step: int, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the slots of the plan behind it that are slots [first, last) of a step, rank by rank of those it was made for.

        So a step holds the same samples whatever the number of ranks that read it.
        """
        each = self.spec.batch_size
        while first < last:
            rank, place = divmod(first, each)
            stop = min(last, (rank + 1) * each)
            begin = (rank * self._accumulation_steps + step % self._accumulation_steps) * each + place
            yield begin, begin + stop - first
            first = stop


class _World(NamedTuple):
    """Ranks that draw the same source at each step."""

    schedule: Schedule
    dealers: Sequence[Dealer | None]  # None: never drawn


class _Slot(NamedTuple):
    """Where a slot of a step lies."""

    dealer: Dealer
    batch_index: BatchIndex
    rank: int
    place: int
    batch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """What each source gives in an epoch."""

    phases: Sequence[WeightPhase] | None  # phases of the schedule, counted in batches; None where batches are mixed
    copies: Sequence[int]  # copies of each source in an epoch, (sources,)
    in_pass: Sequence[int]  # copies that a pass of each source gives, (sources,)
    num_worlds: int  # worlds of ranks that draw alike
    is_stratified: bool = False  # whether every batch has the floor or ceiling of the share of each source


class StepPlan(DisplayedPlan):
    """A plan of equal steps, as `debiased_plan` and `mixed_plan` make it; see `Plan`."""

    is_whole = True

    def __init__(self, supplies: Sequence[Supply], spec: PlanSpec, quotas: Quotas, detail: str) -> None:
        """Keep what the plan is made of; a world is made when one of its slots is asked for."""
        self._supplies, self.spec, self._quotas = supplies, spec, quotas
        self._world = lru_cache(maxsize=None)(self._make_world)
        self._turns = lru_cache(maxsize=2)(self._turns_before)
        self.global_batch = spec.global_batch
        self.num_steps = sum(quotas.copies) // spec.global_batch
        self.names = tuple(supply.name for supply in supplies)
        self.account = account_of(supplies, quotas.copies, quotas.in_pass)
        self.digest = digest_of(supplies, spec, detail)

    def sources(self, rank: int) -> Int64 | None:
        """Return the index of the source of every step on a rank, (steps,), or None where batches are mixed."""
        schedule = self._world(rank if self._quotas.num_worlds > 1 else 0).schedule
        return schedule.sources() if isinstance(schedule, ShuffledSchedule) else None

    def drawn(self, step: int) -> str:
        """Return the source of a step; where each rank draws its own, that of the first rank."""
        return self.names[self._world(0).schedule.turn(step).source]

    def pass_positions(self, step: int) -> tuple[PassPosition, ...]:
        """Return where each source stands in its passes if the epoch ends before a step.

        Sources that have no turn in this epoch keep their place.
        """
        dealers = zip(self._world(0).dealers, self._turns(step), strict=True)
        positions = [
            position for dealer, turns in dealers if dealer is not None for position in dealer.positions_after(turns)
        ]
        named = {position.source for position in positions}
        return (*positions, *(kept for kept in self.spec.pass_start.positions if kept.source not in named))

    def given_up(self, step: int) -> dict[str, int]:
        """Return how many copies of each source are lost if the epoch ends before a step.

        Where each rank draws its own source, the sum is exact and is shared out by quota: counting would take a schedule for
        every rank.
        """
        if self._quotas.num_worlds > 1:
            left = (self.num_steps - step) * self.global_batch if step else 0
            return dict(zip(self.names, largest_remainder([*map(Fraction, self._quotas.copies)], left), strict=True))
        result = dict.fromkeys(self.names, 0)
        dealers = self._world(0).dealers
        for first, (dealer, turns) in enumerate(zip(dealers, self._turns(step), strict=True)):
            if dealer is not None:
                result.update(zip(self.names[first:], dealer.given_up(turns), strict=False))
        return result

    def _turns_before(self, step: int) -> tuple[int, ...]:
        """Return how many turns each dealer has begun before a step; where each rank draws its own source, all or none."""
        if self._quotas.num_worlds > 1:
            return tuple(copies // self.global_batch if step else 0 for copies in self._quotas.copies)
        return tuple(self._world(0).schedule.turns_before(step))

    def share(self, step: int, rank: int, world_size: int) -> tuple[int, int]:
        """Return the slots [first, last) that a rank reads at a step."""
        each = self.global_batch // world_size
        return rank * each, (rank + 1) * each

    def samples(self, step: int, first: int, last: int) -> PlannedSamples:
        """Return what lies in slots [first, last) of a step."""
        parts = []
        slot = first
        while slot < last:
            dealer, index, rank, place, batch_size = self._locate(step, slot)
            stop = min(batch_size, place + last - slot)
            batch = dealer.batch(index, rank)
            is_all = stop - place == batch_size
            parts.append(batch if is_all else PlannedSamples(*(column[place:stop] for column in batch)))
            slot += stop - place
        if len(parts) == 1:
            return parts[0]
        return PlannedSamples(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def substitutes(self, step: int, slot: int) -> Iterator[tuple[int, int]]:
        """Yield (shard, row) of samples of the same source that may stand in for a dropped one."""
        dealer, index, rank, place, _ = self._locate(step, slot)
        return dealer.substitutes(index, rank, place)

    def _locate(self, step: int, slot: int) -> _Slot:
        world, slot = divmod(slot, self.global_batch // self._quotas.num_worlds)
        schedule, dealers = self._world(world)
        turn = schedule.turn(step)
        dealer = dealers[turn.source]
        assert dealer is not None, "a source without quota has no turn"
        index, runs = dealer.locate(turn.ordinal, step % self.spec.lanes, turn.lane_ordinal)
        rank, place = divmod(slot, runs.batch_size)
        return _Slot(dealer, index, rank, place, runs.batch_size)

    def _make_world(self, world: int) -> _World:
        spec, quotas = self.spec, self._quotas
        if quotas.phases is None:
            single = SingleSchedule(self.num_steps, spec.lanes)
            return _World(single, [self._dealer(range(len(self._supplies)), world, single)])
        schedule = ShuffledSchedule(quotas.phases, key=fold(spec.seed, spec.epoch, world), lanes=spec.lanes)
        return _World(
            schedule,
            [
                self._dealer([source], world, schedule) if copies else None
                for source, copies in enumerate(quotas.copies)
            ],
        )

    def _dealer(self, sources: Sequence[int], world: int, schedule: Schedule) -> Dealer:
        spec, quotas = self.spec, self._quotas
        dealer_spec = DealerSpec(
            sources=sources,
            supplies=[self._supplies[source] for source in sources],
            quota=[quotas.copies[source] for source in sources],
            in_pass=[quotas.in_pass[source] for source in sources],
            num_steps=sum(quotas.copies[source] for source in sources) // spec.global_batch,
            world=world,
            num_worlds=quotas.num_worlds,
            world_size=spec.world_size // quotas.num_worlds,
            batch_size=spec.batch_size,
            largest=spec.shuffle // spec.batch_size,
            key=fold(spec.seed),
            epoch=spec.epoch,
            pass_start=spec.pass_start,
            is_stratified=quotas.is_stratified and len(sources) > 1,
        )
        return Dealer(dealer_spec, lambda turns: schedule.lane_counts(sources[0], turns))
