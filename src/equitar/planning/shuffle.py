"""What lies in a batch? The batches of whatever takes one turn of the schedule, and what may stand in for them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from equitar.assign import Runs
from equitar.laid import Laid, Places, Run, TrackSetup
from equitar.mix64 import Int64, Purpose, draws, fold
from equitar.passes import Place
from equitar.window import deal, window_of


class Spot(NamedTuple):
    """A batch of a lane: where in the track a turn lies."""

    segment: int
    lane: int
    batch: int


class _Window(NamedTuple):
    """A window that was dealt: batches [first, last) of a run."""

    segment: int
    first: int
    last: int
    places: Places


class Track:
    """The batches of one turn-taker in one epoch."""

    def __init__(self, setup: TrackSetup, lane_counts: Callable[[int], Int64]) -> None:
        """Prepare the track; windows are dealt when they are asked for.

        Args:
            setup: What it is made from.
            lane_counts: Gives how many of the track's first so many turns lie in each lane, (lanes,).
        """
        self._setup = setup
        self._laid = Laid(setup, lane_counts)
        self._starts = [segment.start for segment in self._laid.segments]
        self._windows: dict[tuple[int, int], _Window] = {}  # by lane and rank: steps only go forward

    def places_after(self, turns: int) -> list[Place]:
        """Return where each source stands in its passes after so many turns of the epoch."""
        return self._laid.places_after(turns)

    def spot(self, ordinal: int, lane: int, lane_ordinal: int) -> tuple[Spot, Runs]:
        """Return where a turn lies, and how its segment is cut."""
        segment = bisect_right(self._starts, ordinal) - 1
        runs, before = self._laid.runs(segment)
        if runs.num_lanes == len(before):
            return Spot(segment, lane, lane_ordinal - int(before[lane])), runs
        return Spot(segment, 0, ordinal - self._laid.segments[segment].start), runs

    def batch(self, spot: Spot, rank: int) -> Places:
        """Return one batch of a run."""
        runs, _ = self._laid.runs(spot.segment)
        first, window = self._window(spot, rank)
        at = (spot.batch - first) * runs.batch_size
        return Places(*(column[at : at + runs.batch_size] for column in window))

    def _edges(self, runs: Runs, lane: int, batch: int) -> tuple[int, int]:
        largest = max(self._setup.largest, runs.smallest)
        return window_of(batch, demand=int(runs.demand[lane]), smallest=runs.smallest, largest=largest)

    def _window(self, spot: Spot, rank: int) -> tuple[int, Places]:
        """Return the window around a batch, with its first batch; the latest of each run is remembered."""
        found = self._windows.get((spot.lane, rank))
        if found is None or found.segment != spot.segment or not found.first <= spot.batch < found.last:
            first, last = self._edges(self._laid.runs(spot.segment)[0], spot.lane, spot.batch)
            found = _Window(spot.segment, first, last, self._deal(Run(spot.segment, spot.lane, rank), first, last))
            self._windows[spot.lane, rank] = found
        return found.first, found.places

    def _deal(self, run: Run, first: int, last: int) -> Places:
        """Return a window, batch after batch."""
        columns = self._laid.copies(run, first, last)
        before, after = self._laid.shared(run)
        where = (self._setup.epoch, self._setup.world, *self._setup.sources, run.segment, run.lane, first)
        order = deal(
            self._laid.samples(columns),
            shared_before=before,
            shared_after=after,
            num_batches=last - first,
            samples_key=fold(self._setup.key, Purpose.WINDOW_SAMPLES, *where, run.rank),
            batches_key=fold(self._setup.key, Purpose.WINDOW_BATCHES, *where),
        ).ravel()
        return Places(*(column[order] for column in columns))

    def substitutes(self, spot: Spot, rank: int, place: int) -> Iterator[tuple[int, int]]:
        """Yield (shard, row) of samples that may stand in for the one at a place, of the same source.

        They come from the runs of the same rank, the nearest window first, then from the remainder of the pass. Samples on
        cuts are left out, and the places that choose from the same samples take turns along one order of them: so no two
        choose the same one, none is in the global batch, and no place finds fewer than another because of its hash.
        """
        batch = self.batch(spot, rank)
        source = int(batch.source[place])
        key = fold(self._setup.key, Purpose.SUBSTITUTE, self._setup.epoch, *spot)
        rivals = np.flatnonzero(batch.source == source)
        in_runs = self._in_turn(self._pools(spot, rank), source, key, seen=set(self._laid.samples(batch).tolist()))
        yield from islice(in_runs, int(np.searchsorted(rivals, place)), None, len(rivals))
        runs, _ = self._laid.runs(spot.segment)
        own = self._setup.sources.index(source)
        left_over = self._in_turn([self._laid.remainder(own, spot.segment)], source, key, seen=set())
        yield from islice(left_over, rank * runs.batch_size + place, None, runs.world_size * runs.batch_size)

    def _in_turn(self, pools: Iterable[Places], source: int, key: int, *, seen: set[int]) -> Iterator[tuple[int, int]]:
        """Yield (shard, row) of the samples of a source that were not seen, each once, pool after pool."""
        for pool in pools:
            samples = self._laid.samples(pool)
            for at in np.argsort(draws(key, samples), kind="stable").tolist():
                sample = int(samples[at])
                if pool.source[at] == source and sample not in seen:
                    seen.add(sample)
                    yield int(pool.shard[at]), int(pool.row[at])

    def _pools(self, spot: Spot, rank: int) -> Iterator[Places]:
        """Yield samples that no other rank has at a step, window after window."""
        runs, _ = self._laid.runs(spot.segment)
        for turn in range(runs.num_lanes):
            run = Run(spot.segment, (spot.lane + turn) % runs.num_lanes, rank)
            for first, last in self._windows_from(runs, run.lane, spot.batch):
                is_own = turn == 0 and first <= spot.batch < last
                window = self._window(spot, rank)[1] if is_own else self._deal(run, first, last)
                alone = ~np.isin(self._laid.samples(window), np.concatenate(self._laid.shared(run)))
                yield Places(*(column[alone] for column in window))

    def _windows_from(self, runs: Runs, lane: int, batch: int) -> Iterator[tuple[int, int]]:
        """Yield the windows of a lane, from the one that holds a batch round to the one before it."""
        demand = int(runs.demand[lane])
        if demand == 0:
            return
        begin, at = self._edges(runs, lane, min(batch, demand - 1))
        yield begin, at
        while at % demand != begin:
            first, at = self._edges(runs, lane, at % demand)
            yield first, at
