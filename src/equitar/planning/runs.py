"""Runs: which part of a line each rank reads in each lane.

A turn of the schedule belongs to one source when batches are debiased, and to all sources together when they are mixed. Then
every source has its own line, and the copies of a run are shared out evenly along it: each source has its share of any
consecutive steps, exactly or but for a few copies (`quotas.stratified`, `quotas.spread`).

A DataLoader hands out steps round robin, so step t belongs to lane ``t % lanes``. The line of a segment is cut into runs,
lane by lane and, within a lane, ranks side by side, each exactly as long as what its steps demand:

    lane 0: rank 0 | rank 1 | ... | rank R-1 || lane 1: rank 0 | rank 1 | ...

Any copy can be a cut, so there is work for every consumer even when a source has a single shard.

A window needs as many batches as a sample can have copies. Where the demand of a lane is below that, the segment has one
lane, whose batches the workers share out. Where several sources with repeats are mixed, the copies of a sample must also not
reach over more than one cut, and those on the cuts of all sources must find room in a window. Where even one lane is too short
for that, ranks do not get runs of their own either: they share the batches of one run of global batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from equitar.arrays import Int64
from equitar.errors import PlanError
from equitar.planning.line import Line, most_of
from equitar.planning.passes import PassPart, PassPosition, PassStart, Segment, segments_of
from equitar.planning.plan import PlannedSamples
from equitar.planning.quotas import spread, stratified, widest_gap
from equitar.planning.supply import Supply
from equitar.rng import fold


class Runs(NamedTuple):
    """How a segment is cut."""

    demand: Int64  # batches of each lane, (lanes,)
    world_size: int  # ranks that have a run of their own in each lane; 1 where they share one
    batch_size: int  # samples in a batch of a run
    smallest: int  # batches that a window needs at least

    @property
    def num_lanes(self) -> int:
        """Number of lanes."""
        return len(self.demand)

    def first(self, lane: int, rank: int) -> int:
        """Return the first copy of a run."""
        before = int(self.demand[:lane].sum()) * self.world_size + rank * int(self.demand[lane])
        return before * self.batch_size


def cut(demand: Int64, *, world_size: int, batch_size: int, most: int, room: int, reach: int) -> Runs:
    """Return the runs of a segment.

    Args:
        demand: Steps of the segment in each lane, (lanes,).
        world_size: Ranks.
        batch_size: Samples per rank and step.
        most: Most copies that a sample of the segment can have; the segment has at least as many steps.
        room: Batches of a window that keep the samples on a cut apart: the sum of the most copies of all sources with
            repeats, >= most.
        reach: Copies of a run within which every source with repeats has as many as a sample of it can have.

    >>> cut(np.array([3, 2]), world_size=2, batch_size=4, most=3, room=3, reach=0)
    Runs(demand=array([5]), world_size=2, batch_size=4, smallest=3)
    """
    smallest = most if world_size == 1 else room
    needed = smallest if world_size == 1 else max(room, -(-reach // batch_size))
    if demand[demand > 0].min() < needed:
        demand = np.array([demand.sum()])
    if demand.sum() < needed:
        return Runs(demand, 1, world_size * batch_size, most)
    return Runs(demand, world_size, batch_size, smallest)


def round_by_round(positions: Int64, *, length: int, rounds: int) -> Int64:
    """Return where a run's positions lie on its line when it is read in rounds, (n,).

    Copies of a sample lie side by side on a line. Taking every `rounds`-th copy, then those after them, and so on, goes
    through all samples once before the first comes back.

    Args:
        positions: Positions in emission order, in [0, length), (n,).
        length: Copies of the run.
        rounds: Number of rounds, >= 1.

    >>> round_by_round(np.arange(7), length=7, rounds=3).tolist()
    [0, 3, 6, 1, 4, 2, 5]
    """
    if rounds == 1:
        return positions
    each, longer = divmod(length, rounds)
    in_longer = positions < longer * (each + 1)
    rest = positions - longer * (each + 1)
    which = np.where(in_longer, positions // (each + 1), longer + rest // max(1, each))
    within = np.where(in_longer, positions % (each + 1), rest % max(1, each))
    result: Int64 = which + within * rounds
    return result


class Run(NamedTuple):
    """Which run: what one rank reads in one lane of one segment."""

    segment: int
    lane: int
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DealerSpec:
    """What a dealer is made from."""

    sources: Sequence[int]  # index of each source in the plan, (sources,)
    supplies: Sequence[Supply]
    quota: Sequence[int]  # copies of each source in an epoch, over all worlds, (sources,)
    in_pass: Sequence[int]  # copies that a pass of each source gives, (sources,)
    num_steps: int  # turns of the dealer in an epoch
    world: int  # which world of ranks, in [0, num_worlds); its runs begin where those of the world before it end
    num_worlds: int  # worlds that draw the source, each at its own turns
    world_size: int  # ranks of a world
    batch_size: int  # samples per rank and step
    largest: int  # batches of a full window
    key: int  # key of the seed
    epoch: int
    pass_start: PassStart
    is_stratified: bool  # whether every batch has the floor or ceiling of the share of each source


class EpochRuns:
    """All runs of one epoch on their lines."""

    def __init__(self, spec: DealerSpec, lane_counts: Callable[[int], Int64]) -> None:
        """Prepare the segments; lines are made when they are asked for.

        Args:
            spec: What they are made from.
            lane_counts: Gives how many of the first so many turns lie in each lane, (lanes,).
        """
        self._spec, self._lane_counts = spec, lane_counts
        self._per_turn = spec.world_size * spec.batch_size
        self._at_least = [max(pair) for pair in zip(spec.quota, spec.in_pass, strict=True)]
        self._most = most_of(spec.supplies, spec.quota, spec.in_pass)
        self._rounds = [  # passes of a source, where there is more than one
            -((-quota << 20) // supply.total) if quota > whole else 1
            for quota, whole, supply in zip(spec.quota, spec.in_pass, spec.supplies, strict=True)
        ]
        bases = np.cumsum([0, *(int(supply.num_rows.sum()) for supply in spec.supplies)])
        self._first_sample = [  # (shards + 1,) each, number of each shard's first sample
            base + np.concatenate([[0], np.cumsum(supply.num_rows)])
            for base, supply in zip(bases[:-1].tolist(), spec.supplies, strict=True)
        ]
        self.segments = self._segments()
        self.line = lru_cache(maxsize=2 * len(spec.supplies))(self._make_line)
        self.runs = lru_cache(maxsize=8)(self._cut)

    def _segments(self) -> list[Segment]:
        spec = self._spec
        if spec.pass_start.restart_each_epoch:
            parts = tuple(PassPart(spec.epoch, 0, quota) for quota in spec.quota)
            return [Segment(0, spec.num_steps, parts)]
        if spec.epoch < spec.pass_start.epoch:  # it would go back along the passes, to what was emitted
            raise PlanError(
                f"the epoch must be at least {spec.pass_start.epoch}, at which this run continued with other arguments or sources; "
                f"got {spec.epoch}; call `set_epoch` with {spec.pass_start.epoch} or more"
            )
        unit = self._per_turn * spec.num_worlds if len(spec.supplies) == 1 else 1  # whole batches of a single source
        return segments_of(
            spec.epoch - spec.pass_start.epoch,
            num_steps=spec.num_steps,
            in_pass=spec.in_pass,
            most=max(1, *self._most),
            taken=self._taken,
            begin=[
                spec.pass_start.begin(supply.name, supply.copies, whole, unit)
                for supply, whole in zip(spec.supplies, spec.in_pass, strict=True)
            ],
        )

    def positions_after(self, turns: int) -> list[PassPosition]:
        """Return where each source stands in its passes if the epoch ends after so many turns.

        That is the end of the segment of the last turn: its runs are read side by side, so what was emitted of the segment
        is not the first part of it, and the rest is given up.
        """
        segment = self.segments[self._segment_of(turns)]
        return [
            PassPosition(supply.name, part.pass_number + (turns > 0), 0, supply.copies)
            if begins
            else PassPosition(supply.name, part.pass_number, part.first + (turns > 0) * part.num_copies, supply.copies)
            for supply, part, begins in zip(self._spec.supplies, segment.parts, self._begins_each_epoch(), strict=True)
        ]

    def begun(self, turns: int) -> tuple[int, Int64, list[int]]:
        """Return the segment of the last of so many turns, what these turns take of it, and what the epoch takes from it on.

        The former are batches of each lane, (lanes,), the latter copies of each source before its `positions_after`, (sources,).
        """
        number = self._segment_of(turns)
        start, num_steps, _ = self.segments[number]
        before, end, last = self._taken(start), self._taken(start + num_steps), self._taken(self._spec.num_steps)
        runs, lanes_before = self.runs(number)
        batches = self._lane_counts(turns) - lanes_before
        if runs.num_lanes != len(lanes_before):
            batches = batches.sum(keepdims=True)
        due = [
            (last if begins else end)[source] - before[source]
            for source, begins in enumerate(self._begins_each_epoch())
        ]
        return number, batches, due

    def _segment_of(self, turns: int) -> int:
        """Return the segment of the last of so many turns, or the first one."""
        return max(0, sum(segment.start < turns for segment in self.segments) - 1)

    def _begins_each_epoch(self) -> list[bool]:
        """Return whether each source begins a pass with every epoch, (sources,)."""
        spec = self._spec
        return [
            spec.pass_start.restart_each_epoch or quota >= whole
            for quota, whole in zip(spec.quota, spec.in_pass, strict=True)
        ]

    def _taken(self, turns: int) -> list[int]:
        """Return the copies of each source that the first turns take, over all worlds."""
        return self._taken_by(turns * self._spec.world_size * self._spec.num_worlds)

    def _taken_by(self, batches: int) -> list[int]:
        """Return the copies of each source in the first so many batches of ranks, run after run."""
        spec = self._spec
        if spec.is_stratified:
            return stratified(spec.quota, batches, spec.num_steps * spec.world_size)
        return spread(spec.quota, batches * spec.batch_size)

    def _make_line(self, source: int, segment: int) -> Line:
        """Return the line of a source in a segment."""
        supply = self._spec.supplies[source]
        key = fold(self._spec.key, supply.key, self.segments[segment].parts[source].pass_number)
        return Line(supply, key=key, at_least=self._at_least[source])

    def _cut(self, segment: int) -> tuple[Runs, Int64]:
        """Return the runs of a segment and the turns of each lane before it."""
        start, num_steps, _ = self.segments[segment]
        before = self._lane_counts(start)
        runs = cut(
            self._lane_counts(start + num_steps) - before,
            world_size=self._spec.world_size,
            batch_size=self._spec.batch_size,
            most=max(1, *self._most),
            room=self._room(),
            reach=0 if self._spec.is_stratified else self._reach(),
        )
        return runs, before

    def _room(self) -> int:
        """Return the batches of a window that keep the samples on a cut apart."""
        repeated = [(most, quota) for most, quota in zip(self._most, self._spec.quota, strict=True) if most > 1]
        if not self._spec.is_stratified or not repeated:
            return max(1, sum(most for most, _ in repeated))
        num_batches = self._spec.num_steps * self._spec.world_size
        room = 1 + 2 * max(
            most for most, _ in repeated
        )  # as many batches, and copies of each source: see `deal_by_source`
        while room < num_batches:
            gap = widest_gap(room, num_batches)
            if all(quota // gap > 2 * most for most, quota in repeated):
                break
            room += 1 + room // 4
        return room

    def _reach(self) -> int:
        """Return the copies of a run among which every source with repeats has as many as one of its samples."""
        if len(self._most) == 1:
            return 0  # a run of a single source has more than that
        total, pairs = sum(self._spec.quota), zip(self._most, self._spec.quota, strict=True)
        # By so much the share of a source in a span may be off: a copy for each other source.
        margin = len(self._most) + 1
        return max((-(-(most + margin) * total // quota) for most, quota in pairs if most > 1), default=0)

    def spans(self, run: Run, first: int, last: int) -> list[tuple[int, int]]:
        """Return the copies of each source between two batches of a run, counted from the start of the segment."""
        runs, _ = self.runs(run.segment)
        start, num_steps, _ = self.segments[run.segment]
        origin = self._spec.world * num_steps * self._per_turn + runs.first(run.lane, run.rank)
        low, high = origin + first * runs.batch_size, origin + last * runs.batch_size
        before = start * self._per_turn * self._spec.num_worlds
        taken = [self._taken_by((before + position) // self._spec.batch_size) for position in (0, low, high)]
        return [(below - base, above - base) for base, below, above in zip(*taken, strict=True)]

    def whole(self, run: Run) -> list[tuple[int, int]]:
        """Return the copies of each source in a run, counted from the start of the segment."""
        return self.spans(run, 0, int(self.runs(run.segment)[0].demand[run.lane]))

    def copies(self, run: Run, first: int, last: int) -> PlannedSamples:
        """Return the copies between two batches of a run, source after source."""
        parts = []
        for source, (span, (begin, end)) in enumerate(zip(self.spans(run, first, last), self.whole(run), strict=True)):
            positions = np.arange(span[0] - begin, span[1] - begin)
            within = round_by_round(positions, length=end - begin, rounds=self._rounds[source])
            parts.append(self._copies_at(source, run.segment, begin + within))
        return PlannedSamples(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def shared(self, run: Run) -> tuple[Int64, Int64]:
        """Return the samples that a run shares with the run before it, and with the one after it."""
        before, after = [], []
        for source, (low, high) in enumerate(self.whole(run)):
            if self._most[source] > 1 and low < high:
                edges = self._copies_at(source, run.segment, np.array([low - 1, low, high - 1, high]))
                outside_low, inside_low, inside_high, outside_high = self.sample_ids(edges).tolist()
                before += [inside_low] if outside_low == inside_low else []
                after += [inside_high] if outside_high == inside_high else []
        return np.array(before, np.int64), np.array(after, np.int64)

    def remainder(self, source: int, segment: int) -> PlannedSamples:
        """Return what the pass of a source leaves over, without the samples at its ends: they lie on cuts."""
        length, taken = self.line(source, segment).length, self._at_least[source]
        left = self._copies_at(source, segment, np.arange(taken, length) - self.segments[segment].parts[source].first)
        ids = self.sample_ids(left)
        inner = (ids != ids[0]) & (ids != ids[-1]) if len(ids) and self._most[source] > 1 else slice(None)
        return PlannedSamples(*(column[inner] for column in left))

    def sample_ids(self, samples: PlannedSamples) -> Int64:
        """Return a number for each copy that is the same for copies of one sample and for nothing else, (n,)."""
        result: Int64 = samples.row.copy()
        for source, base in zip(self._spec.sources, self._first_sample, strict=True):
            here = samples.source == source
            result[here] += base[samples.shard[here]]
        return result

    def _copies_at(self, source: int, segment: int, positions: Int64) -> PlannedSamples:
        """Return copies of a source, counted from the start of a segment."""
        copies = self.line(source, segment).at(self.segments[segment].parts[source].first + positions)
        return PlannedSamples(np.full(len(positions), self._spec.sources[source], np.int64), *copies)
