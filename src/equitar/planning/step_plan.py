"""How is a plan of equal steps put together? Worlds of ranks, each with a schedule, and a track for whatever takes a turn.

Hold one source for several steps: for losses that gather over the steps of gradient accumulation.

A held plan deals batches of `accumulation_steps` times the size, and hands each out in `accumulation_steps` steps. So the samples that a loss gathers over
these steps, on all ranks, are one global batch of the plan behind it: of one source, and without two copies of a sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from equitar.arrays import Int64
from equitar.planning.passes import PassPosition
from equitar.planning.plan import DisplayedPlan, Plan, PlannedSamples, PlanSpec, SourceAccount, account_of, digest_of
from equitar.planning.quotas import WeightPhase
from equitar.planning.runs import DealerSpec
from equitar.planning.schedule import Schedule, ShuffledSchedule, SingleSchedule
from equitar.planning.shuffle import BatchIndex, Dealer
from equitar.planning.supply import Supply
from equitar.rng import fold


class HeldPlan(DisplayedPlan):
    """A plan whose batches are handed out in parts; see `equitar.planning.plan.Plan`."""

    is_whole = True

    def __init__(self, plan: Plan, shape: PlanSpec, accumulation_steps: int) -> None:
        """Hand out the batches of a plan.

        Args:
            plan: A plan of batches that are `accumulation_steps` times too large.
            shape: The numbers as the user gave them.
            accumulation_steps: Steps for each of its batches, >= 1.
        """
        self._plan, self._hold, self.shape = plan, accumulation_steps, shape
        self.global_batch = shape.global_batch
        self.num_steps = plan.num_steps * accumulation_steps
        self.digest = f"{plan.digest}-{accumulation_steps}"
        self.names = plan.names
        self.account: tuple[SourceAccount, ...] = plan.account

    def sources(self, rank: int) -> Int64 | None:
        """Return the index of the source of every step on a rank, (steps,), or None where batches are mixed."""
        found = self._plan.sources(rank)
        return None if found is None else np.repeat(found, self._hold)

    def places_at(self, step: int) -> tuple[PassPosition, ...]:
        """Return where each source stands in its passes before a step."""
        return self._plan.places_at(-(-step // self._hold))

    def share(self, step: int, rank: int, world_size: int) -> tuple[int, int]:
        """Return the slots [first, last) that a rank reads at a step."""
        each = self.global_batch // world_size
        return rank * each, (rank + 1) * each

    def places(self, step: int, first: int, last: int) -> PlannedSamples:
        """Return what lies in slots [first, last) of a step."""
        found = [self._plan.places(step // self._hold, *span) for span in self._spans(step, first, last)]
        return found[0] if len(found) == 1 else PlannedSamples(*map(np.concatenate, zip(*found, strict=True)))

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


class _World(NamedTuple):
    """Ranks that draw the same source at each step."""

    schedule: Schedule
    tracks: Sequence[Dealer | None]  # None: never drawn


class _Slot(NamedTuple):
    """Where a slot of a step lies."""

    track: Dealer
    spot: BatchIndex
    rank: int
    place: int
    batch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """What each source gives in an epoch.

    Attributes:
        parts: Stretches of the schedule, counted in batches; None where batches are mixed.
        copies: Copies of each source in an epoch, (sources,).
        in_pass: Copies that a pass of each source gives, (sources,).
        num_worlds: Worlds of ranks that draw alike.
    """

    parts: Sequence[WeightPhase] | None
    copies: Sequence[int]
    in_pass: Sequence[int]
    num_worlds: int


class StepPlan(DisplayedPlan):
    """A plan of equal steps, as `debiased_plan` and `mixed_plan` make it; see `Plan`."""

    is_whole = True

    def __init__(self, supplies: Sequence[Supply], shape: PlanSpec, quotas: Quotas, detail: str) -> None:
        """Keep what the plan is made of; a world is made when one of its slots is asked for."""
        self._supplies, self.shape, self._quotas = supplies, shape, quotas
        self._world = lru_cache(maxsize=None)(self._make_world)
        self.global_batch = shape.global_batch
        self.num_steps = sum(quotas.copies) // shape.global_batch
        self.names = tuple(supply.name for supply in supplies)
        self.account = account_of(supplies, quotas.copies, quotas.in_pass)
        self.digest = digest_of(supplies, shape, detail)

    def sources(self, rank: int) -> Int64 | None:
        """Return the index of the source of every step on a rank, (steps,), or None where batches are mixed."""
        schedule = self._world(rank if self._quotas.num_worlds > 1 else 0).schedule
        return schedule.sources() if isinstance(schedule, ShuffledSchedule) else None

    def places_at(self, step: int) -> tuple[PassPosition, ...]:
        """Return where each source stands in its passes before a step, with those that have no turn in this epoch."""
        schedule, tracks = self._world(0)
        turns = zip(tracks, schedule.turns_before(step), strict=True)
        found = [place for track, gone in turns if track is not None for place in track.places_after(gone)]
        named = {place.source for place in found}
        return (*found, *(place for place in self.shape.walk.places if place.source not in named))

    def share(self, step: int, rank: int, world_size: int) -> tuple[int, int]:
        """Return the slots [first, last) that a rank reads at a step."""
        each = self.global_batch // world_size
        return rank * each, (rank + 1) * each

    def places(self, step: int, first: int, last: int) -> PlannedSamples:
        """Return what lies in slots [first, last) of a step."""
        found = []
        slot = first
        while slot < last:
            at = self._locate(step, slot)
            stop = min(at.batch_size, at.place + last - slot)
            batch = at.track.batch(at.spot, at.rank)
            is_all = stop - at.place == at.batch_size
            found.append(batch if is_all else PlannedSamples(*(column[at.place : stop] for column in batch)))
            slot += stop - at.place
        if len(found) == 1:
            return found[0]
        return PlannedSamples(*(np.concatenate(columns) for columns in zip(*found, strict=True)))

    def substitutes(self, step: int, slot: int) -> Iterator[tuple[int, int]]:
        """Yield (shard, row) of samples of the same source that may stand in for a dropped one."""
        at = self._locate(step, slot)
        return at.track.substitutes(at.spot, at.rank, at.place)

    def _locate(self, step: int, slot: int) -> _Slot:
        world, slot = divmod(slot, self.global_batch // self._quotas.num_worlds)
        schedule, tracks = self._world(world)
        turn = schedule.turn(step)
        track = tracks[turn.source]
        assert track is not None, "a source without quota has no turn"
        spot, runs = track.spot(turn.ordinal, step % self.shape.lanes, turn.lane_ordinal)
        rank, place = divmod(slot, runs.batch_size)
        return _Slot(track, spot, rank, place, runs.batch_size)

    def _make_world(self, world: int) -> _World:
        shape, quotas = self.shape, self._quotas
        if quotas.parts is None:
            straight = SingleSchedule(self.num_steps, shape.lanes)
            return _World(straight, [self._track(range(len(self._supplies)), world, straight)])
        schedule = ShuffledSchedule(quotas.parts, key=fold(shape.seed, shape.epoch, world), lanes=shape.lanes)
        sources = range(len(self._supplies))
        return _World(
            schedule, [self._track([one], world, schedule) if quotas.copies[one] else None for one in sources]
        )

    def _track(self, sources: Sequence[int], world: int, schedule: Schedule) -> Dealer:
        shape, quotas = self.shape, self._quotas
        setup = DealerSpec(
            sources=sources,
            supplies=[self._supplies[one] for one in sources],
            quota=[quotas.copies[one] for one in sources],
            in_pass=[quotas.in_pass[one] for one in sources],
            num_steps=sum(quotas.copies[one] for one in sources) // shape.global_batch,
            world=world,
            num_worlds=quotas.num_worlds,
            world_size=shape.world_size // quotas.num_worlds,
            batch_size=shape.batch_size,
            largest=shape.shuffle // shape.batch_size,
            key=fold(shape.seed),
            epoch=shape.epoch,
            walk=shape.walk,
        )
        return Dealer(setup, lambda turns: schedule.lane_counts(sources[0], turns))
