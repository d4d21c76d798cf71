"""Which copies does a run hold? The segments, lines and runs of everything that shares a turn of the schedule.

A turn of the schedule belongs to one source when batches are debiased, and to all sources together when they are mixed. In the
latter case every source has its own line, and the copies of a run are shared out evenly along it: whatever stretch of steps
one looks at, each source has its share there.

Who reads which part of a line? Lanes and ranks, each with one consecutive run.

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
from equitar.planning.line import Line, most_of
from equitar.planning.passes import PassPart, PassPosition, PassStart, Segment, segments_of
from equitar.planning.plan import PlannedSamples
from equitar.planning.quotas import spread
from equitar.planning.supply import Supply
from equitar.rng import fold


class Runs(NamedTuple):
    """How a segment is cut.

    Attributes:
        demand: Batches of each lane, (lanes,).
        world_size: Ranks that have a run of their own in each lane; 1 where they share one.
        batch_size: Samples in a batch of a run.
        smallest: Batches that a window needs at least.
    """

    demand: Int64
    world_size: int
    batch_size: int
    smallest: int

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
    """Return where a run's positions lie on its line when it is gone through in rounds, (n,).

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
    """What a track is made from.

    Attributes:
        sources: Index of each source in the plan, (sources,).
        supplies: The sources.
        quota: Copies of each source in an epoch, over all worlds, (sources,).
        in_pass: Copies that a pass of each source gives, (sources,).
        num_steps: Turns of the track in an epoch.
        world: Which world of ranks this is, in [0, num_worlds); its runs begin where those of the world before it end.
        num_worlds: Worlds that draw the track's source each at its own turns.
        world_size: Ranks of a world.
        batch_size: Samples per rank and step.
        largest: Batches of a full window.
        key: Key of the seed.
        epoch: Which epoch.
        walk: How epochs go along the passes.
    """

    sources: Sequence[int]
    supplies: Sequence[Supply]
    quota: Sequence[int]
    in_pass: Sequence[int]
    num_steps: int
    world: int
    num_worlds: int
    world_size: int
    batch_size: int
    largest: int
    key: int
    epoch: int
    walk: PassStart


class EpochRuns:
    """All runs of one epoch, laid on their lines.

    Attributes:
        segments: The segments of the epoch.
    """

    def __init__(self, setup: DealerSpec, lane_counts: Callable[[int], Int64]) -> None:
        """Prepare the runs; lines are laid when they are asked for.

        Args:
            setup: What they are made from.
            lane_counts: Gives how many of the first so many turns lie in each lane, (lanes,).
        """
        self._setup, self._lane_counts = setup, lane_counts
        self._per_turn = setup.world_size * setup.batch_size
        self._at_least = [max(pair) for pair in zip(setup.quota, setup.in_pass, strict=True)]
        self._most = most_of(setup.supplies, setup.quota, setup.in_pass)
        self._rounds = [  # how often a source is gone through, where that is more than once
            -((-quota << 20) // supply.total) if quota > whole else 1
            for quota, whole, supply in zip(setup.quota, setup.in_pass, setup.supplies, strict=True)
        ]
        bases = np.cumsum([0, *(int(supply.num_rows.sum()) for supply in setup.supplies)])
        self._first_sample = [  # (shards + 1,) each, number of each shard's first sample
            base + np.concatenate([[0], np.cumsum(supply.num_rows)])
            for base, supply in zip(bases[:-1].tolist(), setup.supplies, strict=True)
        ]
        self.segments = self._segments()
        self.line = lru_cache(maxsize=2 * len(setup.supplies))(self._lay)
        self.runs = lru_cache(maxsize=8)(self._cut)

    def _segments(self) -> list[Segment]:
        setup = self._setup
        if setup.walk.restart_each_epoch:
            parts = tuple(PassPart(setup.epoch, 0, quota) for quota in setup.quota)
            return [Segment(0, setup.num_steps, parts)]
        unit = self._per_turn * setup.num_worlds if len(setup.supplies) == 1 else 1  # whole batches of a single source
        return segments_of(
            setup.epoch - setup.walk.epoch,
            num_steps=setup.num_steps,
            in_pass=setup.in_pass,
            most=max(1, *self._most),
            taken=self._taken,
            begin=[
                setup.walk.begin(supply.name, supply.copies, whole, unit)
                for supply, whole in zip(setup.supplies, setup.in_pass, strict=True)
            ],
        )

    def places_after(self, turns: int) -> list[PassPosition]:
        """Return where each source stands in its passes after so many turns of the epoch."""
        segment = max(0, sum(one.start < turns for one in self.segments) - 1)
        before, now = self._taken(self.segments[segment].start), self._taken(turns)
        result = []
        for source, part in enumerate(self.segments[segment].parts):
            supply, whole = self._setup.supplies[source], self._setup.in_pass[source]
            if (
                self._setup.quota[source] >= whole or self._setup.walk.restart_each_epoch
            ):  # it begins a pass with each epoch
                result.append(PassPosition(supply.name, part.pass_number + (turns > 0), 0, supply.copies))
            else:
                at = part.first + now[source] - before[source]
                result.append(PassPosition(supply.name, part.pass_number, at, supply.copies))
        return result

    def _taken(self, turns: int) -> list[int]:
        """Return the copies of each source that the first turns take, over all worlds."""
        return spread(self._setup.quota, turns * self._per_turn * self._setup.num_worlds)

    def _lay(self, source: int, segment: int) -> Line:
        """Return the line of a source in a segment."""
        supply = self._setup.supplies[source]
        key = fold(self._setup.key, supply.key, self.segments[segment].parts[source].pass_number)
        return Line(supply, key=key, at_least=self._at_least[source])

    def _cut(self, segment: int) -> tuple[Runs, Int64]:
        """Return the runs of a segment and the turns of each lane before it."""
        start, num_steps, _ = self.segments[segment]
        before = self._lane_counts(start)
        runs = cut(
            self._lane_counts(start + num_steps) - before,
            world_size=self._setup.world_size,
            batch_size=self._setup.batch_size,
            most=max(1, *self._most),
            room=max(1, sum(one for one in self._most if one > 1)),
            reach=self._reach(),
        )
        return runs, before

    def _reach(self) -> int:
        """Return the copies of a run among which every source with repeats has as many as one of its samples."""
        if len(self._most) == 1:
            return 0  # a run of a single source has more than that
        total, pairs = sum(self._setup.quota), zip(self._most, self._setup.quota, strict=True)
        # By so much the share of a source in a span may be off: a copy for each other source.
        margin = len(self._most) + 1
        return max((-(-(most + margin) * total // quota) for most, quota in pairs if most > 1), default=0)

    def spans(self, run: Run, first: int, last: int) -> list[tuple[int, int]]:
        """Return the copies of each source between two batches of a run, counted from the start of the segment."""
        runs, _ = self.runs(run.segment)
        start, num_steps, _ = self.segments[run.segment]
        origin = self._setup.world * num_steps * self._per_turn + runs.first(run.lane, run.rank)
        low, high = origin + first * runs.batch_size, origin + last * runs.batch_size
        before = start * self._per_turn * self._setup.num_worlds
        taken = [spread(self._setup.quota, before + at) for at in (0, low, high)]
        return [(below - base, above - base) for base, below, above in zip(*taken, strict=True)]

    def whole(self, run: Run) -> list[tuple[int, int]]:
        """Return the copies of each source in a run, counted from the start of the segment."""
        return self.spans(run, 0, int(self.runs(run.segment)[0].demand[run.lane]))

    def copies(self, run: Run, first: int, last: int) -> PlannedSamples:
        """Return the copies between two batches of a run, source after source."""
        found = []
        for source, (span, all_of_it) in enumerate(zip(self.spans(run, first, last), self.whole(run), strict=True)):
            begin, end = all_of_it
            positions = np.arange(span[0] - begin, span[1] - begin)
            within = round_by_round(positions, length=end - begin, rounds=self._rounds[source])
            found.append(self._at(source, run.segment, begin + within))
        return PlannedSamples(*(np.concatenate(columns) for columns in zip(*found, strict=True)))

    def shared(self, run: Run) -> tuple[Int64, Int64]:
        """Return the samples that a run shares with the run before it, and with the one after it."""
        before, after = [], []
        for source, (low, high) in enumerate(self.whole(run)):
            if self._most[source] > 1 and low < high:
                edges = self._at(source, run.segment, np.array([low - 1, low, high - 1, high]))
                outside_low, inside_low, inside_high, outside_high = self.samples(edges).tolist()
                before += [inside_low] if outside_low == inside_low else []
                after += [inside_high] if outside_high == inside_high else []
        return np.array(before, np.int64), np.array(after, np.int64)

    def remainder(self, source: int, segment: int) -> PlannedSamples:
        """Return what the pass of a source leaves over, without the samples at its ends: they lie on cuts."""
        length, taken = self.line(source, segment).length, self._at_least[source]
        left = self._at(source, segment, np.arange(taken, length) - self.segments[segment].parts[source].first)
        samples = self.samples(left)
        inner = (
            (samples != samples[0]) & (samples != samples[-1])
            if len(samples) and self._most[source] > 1
            else slice(None)
        )
        return PlannedSamples(*(column[inner] for column in left))

    def samples(self, places: PlannedSamples) -> Int64:
        """Return a number for each place that is the same for copies of one sample and for nothing else, (n,)."""
        result: Int64 = places.row.copy()
        for source, base in zip(self._setup.sources, self._first_sample, strict=True):
            here = places.source == source
            result[here] += base[places.shard[here]]
        return result

    def _at(self, source: int, segment: int, positions: Int64) -> PlannedSamples:
        """Return copies of a source, counted from the start of a segment."""
        copies = self.line(source, segment).at(self.segments[segment].parts[source].first + positions)
        return PlannedSamples(np.full(len(positions), self._setup.sources[source], np.int64), *copies)
