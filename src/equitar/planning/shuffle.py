"""Windows: the shuffle buffer as a pure function, with the batches dealt from it and the substitutes of dropped samples.

A run of batches is cut into windows. In a window the copies of a sample, kept together, are shuffled with all others and
dealt like cards: the q-th card goes to batch ``q mod batches``. A sample has at most as many copies as the window has
batches, so no two of them meet in one. Then the batches are shuffled, by a key that is the same on all ranks: batch b of a
window is the same step everywhere. The first windows are short and double, so that the first batch does not wait for a full
buffer. Any window is computed alone.

A sample that lies on the cut between the runs of two ranks is dealt last by the one and first by the other. Both deal to
the same steps, and the first few batches of a window are not its last few, so its copies do not meet there either.

Where sources are mixed by share (`deal_by_source`) the cards lie source after source, so that each batch gets the floor or the
ceiling of every source's samples in the window; a sample on a cut goes to batches of even number on the one rank and of odd
number on the other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np

from equitar.arrays import Int64, UInt64
from equitar.planning.passes import PassPosition
from equitar.planning.plan import PlannedSamples
from equitar.planning.runs import DealerSpec, EpochRuns, Run, Runs
from equitar.rng import Purpose, draws, fold, permutation


def window_of(batch: int, *, demand: int, smallest: int, largest: int) -> tuple[int, int]:
    """Return the window of a run that holds a batch, as its first batch and the one after its last.

    Windows have from `smallest` to `largest` batches (up to ``largest + smallest - 1`` where nothing else fits); only a
    run that is shorter than `smallest` has a shorter one.

    Args:
        batch: Which batch of the run, in [0, demand).
        demand: Batches of the run.
        smallest: Batches a window needs at least, >= 1.
        largest: Batches of a full window, >= smallest.

    >>> edges = [window_of(batch, demand=18, smallest=2, largest=6) for batch in range(18)]
    >>> sorted(set(edges))
    [(0, 2), (2, 6), (6, 12), (12, 18)]
    """
    start, size = _grown(batch, smallest, largest)
    if start > 0 and demand - start < smallest:  # a tail too short to deal in belongs to the window before it
        start, size = _grown(start - 1, smallest, largest)
    if demand - start - size >= smallest:
        return start, start + size
    last = demand - start
    if last > largest and last >= 2 * smallest:
        middle = start + (last + 1) // 2
        return (start, middle) if batch < middle else (middle, demand)
    return start, demand


def _grown(batch: int, smallest: int, largest: int) -> tuple[int, int]:
    """Return first batch and size of the window that holds a batch of an endless run."""
    start, size = 0, smallest
    while size < largest and start + size <= batch:
        start, size = start + size, min(2 * size, largest)
    if size == largest:
        start += (batch - start) // largest * largest
    return start, size


def deal(
    samples: Int64,
    *,
    shared_before: Int64,
    shared_after: Int64,
    num_batches: int,
    samples_key: int,
    batches_key: int,
) -> Int64:
    """Return which items of a window go to each batch, (num_batches, batch_size).

    Args:
        samples: Which sample each item is a copy of, (num_batches x batch_size,).
        shared_before: Samples that the rank before has copies of too: dealt first.
        shared_after: Samples that the rank after has copies of too: dealt last.
        num_batches: Batches of the window.
        samples_key: Key of the order of the samples.
        batches_key: Key of the order of the batches, the same on all ranks.
    """
    hashes: UInt64 = draws(samples_key, samples) >> np.uint64(1)
    if len(shared_after):
        hashes[np.isin(samples, shared_after)] = np.uint64(1 << 63)
    if len(shared_before):
        hashes[np.isin(samples, shared_before)] = 0
    order = np.lexsort((samples, hashes))
    dealt: Int64 = order.reshape(-1, num_batches)[:, permutation(batches_key, num_batches)].T
    return dealt


def deal_by_source(
    samples: Int64,
    sources: Int64,
    *,
    shared_before: Int64,
    shared_after: Int64,
    num_batches: int,
    num_ranks: int,
    samples_key: int,
    batches_key: int,
) -> Int64:
    """Return which items of a window go to each batch, so that all have the floor or ceiling of every source's share.

    Source after source is dealt to the batches in turn. Of the samples that the ranks before and after have copies of too,
    those of the one go to batches of odd number, those of the other to even ones. This needs a window of more than twice as
    many batches, and copies of a source that has such samples, as a sample has copies.

    Args:
        samples: Which sample each item is a copy of, (num_batches x batch_size,).
        sources: Index of its source, (num_batches x batch_size,).
        shared_before: Samples that the rank before has copies of too.
        shared_after: Samples that the rank after has copies of too.
        num_batches: Batches of the window.
        num_ranks: Ranks that share each batch: every one gets its share of each source.
        samples_key: Key of the order of the samples.
        batches_key: Key of the order of the batches, the same on all ranks.
    """
    hashes = draws(samples_key, samples)
    order = np.lexsort((samples, hashes, sources))
    if len(shared_before) or len(shared_after):
        odd, even = np.isin(samples[order], shared_before), np.isin(samples[order], shared_after)
        for source in np.unique(sources[order][odd | even]).tolist():
            first, last = np.searchsorted(sources[order], [source, source + 1]).tolist()
            is_odd, is_even, block = odd[first:last], even[first:last], order[first:last].copy()
            batches = np.arange(first, min(last, first + num_batches)) % num_batches
            to_odd = np.flatnonzero(batches % 2)[: is_odd.sum()]
            to_even = np.flatnonzero(batches % 2 == 0)[: is_even.sum()]
            others = np.delete(np.arange(first, last), np.concatenate([to_odd, to_even]))
            order[first + to_odd], order[first + to_even] = block[is_odd], block[is_even]
            order[others] = block[~(is_odd | is_even)]
    dealt = order.reshape(-1, num_batches)[:, permutation(batches_key, num_batches)].T
    by_rank = dealt.reshape(num_batches, -1, num_ranks).swapaxes(1, 2)
    # In drawn order within a batch: whoever takes a part of it, for an accumulated gradient say, gets all sources too.
    mixed: Int64 = np.take_along_axis(by_rank, np.argsort(hashes[by_rank], axis=2), axis=2)
    return mixed.reshape(num_batches, -1)


class BatchIndex(NamedTuple):
    """Where a batch lies: its number in a lane of a segment."""

    segment: int
    lane: int
    batch: int


class _Window(NamedTuple):
    """A window that was dealt: batches [first, last) of a run."""

    segment: int
    first: int
    last: int
    samples: PlannedSamples


class Dealer:
    """The batches of one epoch of a source, or of all mixed sources, and their substitutes."""

    def __init__(self, spec: DealerSpec, lane_counts: Callable[[int], Int64]) -> None:
        """Prepare the runs; windows are dealt when they are asked for.

        Args:
            spec: What they are made from.
            lane_counts: Gives how many of the first so many turns lie in each lane, (lanes,).
        """
        self._spec = spec
        self._runs = EpochRuns(spec, lane_counts)
        self._starts = [segment.start for segment in self._runs.segments]
        self._counts = lru_cache(maxsize=1 << 8)(self._count)
        self._windows: dict[tuple[int, int], _Window] = {}  # by lane and rank: steps only increase

    def positions_after(self, turns: int) -> list[PassPosition]:
        """Return where each source stands in its passes if the epoch ends after so many turns."""
        return self._runs.positions_after(turns)

    def given_up(self, turns: int) -> list[int]:
        """Return how many copies of each source before its `positions_after` so many turns these turns do not emit.

        Exact, but where batches are composed independently the windows that are read are shared out evenly: the sum is exact.
        """
        if not turns:
            return [0] * len(self._spec.sources)
        segment, batches, due = self._runs.begun(turns)
        if len(due) == 1:
            each = self._spec.batch_size * self._spec.world_size * self._spec.num_worlds
            return [due[0] - int(batches.sum()) * each]
        emitted = sum(
            (self._emitted(segment, lane, last) for lane, last in enumerate(batches.tolist()) if last),
            np.zeros(len(due), np.int64),
        )
        result: list[int] = (np.array(due, np.int64) - emitted).tolist()
        return result

    def _emitted(self, segment: int, lane: int, last: int) -> Int64:
        """Return the copies of each source in the batches before `last` of a lane on all ranks, (sources,)."""
        first, end = self._edges(self._runs.runs(segment)[0], lane, last - 1)
        before, window = self._counts(segment, lane, first, end)
        if not self._spec.is_stratified:
            independent: Int64 = before + self._counts(segment, lane, first, last)[1].sum(axis=0)
            return independent
        # Copies lie source after source, and are dealt to the batches in turn: see `deal_by_source`.
        key = fold(self._spec.key, Purpose.WINDOW_BATCHES, *self._where(segment, lane, first))
        is_emitted = np.zeros(end - first, np.int64)
        is_emitted[permutation(key, end - first)[: last - first]] = 1
        emitted_before = np.concatenate([[0], np.cumsum(is_emitted)])
        edges = np.concatenate([np.zeros_like(window[:, :1]), np.cumsum(window, axis=1)], axis=1)
        rounds, rest = np.divmod(edges, end - first)
        stratified: Int64 = before + np.diff(rounds * (last - first) + emitted_before[rest], axis=1).sum(axis=0)
        return stratified

    def _count(self, segment: int, lane: int, first: int, last: int) -> tuple[Int64, Int64]:
        """Return the copies of each source before a batch of a lane, (sources,), and in a span of each rank, (ranks, sources)."""
        runs = [Run(segment, lane, rank) for rank in range(self._runs.runs(segment)[0].world_size)]
        spans = np.array(
            [[self._runs.spans(run, *span) for span in ((0, first), (first, last))] for run in runs], np.int64
        )
        before, within = (spans[..., 1] - spans[..., 0]).transpose(1, 0, 2)
        return before.sum(axis=0), within

    def locate(self, ordinal: int, lane: int, lane_ordinal: int) -> tuple[BatchIndex, Runs]:
        """Return where a turn lies, and how its segment is cut."""
        segment = bisect_right(self._starts, ordinal) - 1
        runs, before = self._runs.runs(segment)
        if runs.num_lanes == len(before):
            return BatchIndex(segment, lane, lane_ordinal - int(before[lane])), runs
        return BatchIndex(segment, 0, ordinal - self._runs.segments[segment].start), runs

    def batch(self, index: BatchIndex, rank: int) -> PlannedSamples:
        """Return one batch of a run."""
        runs, _ = self._runs.runs(index.segment)
        first, window = self._window(index, rank)
        start = (index.batch - first) * runs.batch_size
        return PlannedSamples(*(column[start : start + runs.batch_size] for column in window))

    def _edges(self, runs: Runs, lane: int, batch: int) -> tuple[int, int]:
        largest = max(self._spec.largest, runs.smallest)
        return window_of(batch, demand=int(runs.demand[lane]), smallest=runs.smallest, largest=largest)

    def _window(self, index: BatchIndex, rank: int) -> tuple[int, PlannedSamples]:
        """Return the window around a batch, with its first batch; the latest of each run is kept."""
        window = self._windows.get((index.lane, rank))
        if window is None or window.segment != index.segment or not window.first <= index.batch < window.last:
            first, last = self._edges(self._runs.runs(index.segment)[0], index.lane, index.batch)
            window = _Window(index.segment, first, last, self._deal(Run(index.segment, index.lane, rank), first, last))
            self._windows[index.lane, rank] = window
        return window.first, window.samples

    def _deal(self, run: Run, first: int, last: int) -> PlannedSamples:
        """Return a window, batch after batch."""
        columns = self._runs.copies(run, first, last)
        before, after = self._runs.shared(run)
        where = self._where(run.segment, run.lane, first)
        samples = self._runs.sample_ids(columns)
        samples_key = fold(self._spec.key, Purpose.WINDOW_SAMPLES, *where, run.rank)
        batches_key = fold(self._spec.key, Purpose.WINDOW_BATCHES, *where)
        if self._spec.is_stratified:
            has_cuts = self._runs.runs(run.segment)[0].world_size > 1  # otherwise cuts lie between lanes: other steps
            dealt = deal_by_source(
                samples,
                columns.source,
                shared_before=before if has_cuts else before[:0],
                shared_after=after if has_cuts else after[:0],
                num_batches=last - first,
                num_ranks=1 if has_cuts else self._spec.world_size,
                samples_key=samples_key,
                batches_key=batches_key,
            )
        else:
            dealt = deal(
                samples,
                shared_before=before,
                shared_after=after,
                num_batches=last - first,
                samples_key=samples_key,
                batches_key=batches_key,
            )
        return PlannedSamples(*(column[dealt.ravel()] for column in columns))

    def _where(self, segment: int, lane: int, first: int) -> tuple[int, ...]:
        """Return what the keys of a window are folded from."""
        return (self._spec.epoch, self._spec.world, *self._spec.sources, segment, lane, first)

    def substitutes(self, index: BatchIndex, rank: int, place: int) -> Iterator[tuple[int, int]]:
        """Yield (shard, row) of samples that may stand in for the one at a place, of the same source.

        They come from the runs of the same rank, the nearest window first, then from the remainder of the pass. Samples on
        cuts are left out, and the places that choose from the same samples take turns along one order of them: so no two
        choose the same one, none is in the global batch, and no place finds fewer than another because of its hash.
        """
        batch = self.batch(index, rank)
        source = int(batch.source[place])
        key = fold(self._spec.key, Purpose.SUBSTITUTE, self._spec.epoch, *index)
        rivals = np.flatnonzero(batch.source == source)
        in_runs = self._in_turn(self._pools(index, rank), source, key, seen=set(self._runs.sample_ids(batch).tolist()))
        yield from islice(in_runs, int(np.searchsorted(rivals, place)), None, len(rivals))
        runs, _ = self._runs.runs(index.segment)
        own = self._spec.sources.index(source)
        left_over = self._in_turn([self._runs.remainder(own, index.segment)], source, key, seen=set())
        yield from islice(left_over, rank * runs.batch_size + place, None, runs.world_size * runs.batch_size)

    def _in_turn(
        self, pools: Iterable[PlannedSamples], source: int, key: int, *, seen: set[int]
    ) -> Iterator[tuple[int, int]]:
        """Yield (shard, row) of the samples of a source that were not seen, each once, pool after pool."""
        for pool in pools:
            samples = self._runs.sample_ids(pool)
            for position in np.argsort(draws(key, samples), kind="stable").tolist():
                sample = int(samples[position])
                if pool.source[position] == source and sample not in seen:
                    seen.add(sample)
                    yield int(pool.shard[position]), int(pool.row[position])

    def _pools(self, index: BatchIndex, rank: int) -> Iterator[PlannedSamples]:
        """Yield samples that no other rank has at a step, window after window."""
        runs, _ = self._runs.runs(index.segment)
        for turn in range(runs.num_lanes):
            run = Run(index.segment, (index.lane + turn) % runs.num_lanes, rank)
            for first, last in self._windows_from(runs, run.lane, index.batch):
                is_own = turn == 0 and first <= index.batch < last
                window = self._window(index, rank)[1] if is_own else self._deal(run, first, last)
                alone = ~np.isin(self._runs.sample_ids(window), np.concatenate(self._runs.shared(run)))
                yield PlannedSamples(*(column[alone] for column in window))

    def _windows_from(self, runs: Runs, lane: int, batch: int) -> Iterator[tuple[int, int]]:
        """Yield the windows of a lane, beginning with that of a batch and wrapping round."""
        demand = int(runs.demand[lane])
        if demand == 0:
            return
        begin, end = self._edges(runs, lane, min(batch, demand - 1))
        yield begin, end
        while end % demand != begin:
            first, end = self._edges(runs, lane, end % demand)
            yield first, end
