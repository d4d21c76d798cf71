"""Schedules: which source is drawn at each step.

A schedule is a shuffled multiset: every source comes exactly as often as its quota says.
The schedule is made in blocks of 65,536 steps, so that its memory does not grow with the epoch. Each block holds what its
sources are owed so far, and is shuffled within. It depends on (seed, epoch, quotas) and on nothing else: every rank and
every worker computes the same one.

A step belongs to lane ``step % lanes``. For each step a schedule knows how many steps of the same source came before it, in
the epoch (`ordinal`) and in its lane (`lane_ordinal`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from equitar.arrays import Int64
from equitar.planning.quotas import WeightPhase, spread
from equitar.rng import Purpose, fold, permutation

STEPS_PER_BLOCK = 65_536


class Turn(NamedTuple):
    """One step as its source sees it."""

    source: int
    ordinal: int
    lane_ordinal: int


class Schedule(Protocol):
    """Whose turn each step is."""

    num_steps: int

    def turn(self, step: int) -> Turn:
        """Return the source of a step, and its ordinals."""

    def lane_counts(self, source: int, ordinal: int) -> Int64:
        """Return how many of a source's first `ordinal` steps lie in each lane, (lanes,)."""

    def turns_before(self, step: int) -> list[int]:
        """Return how many steps before a step each source was drawn at, (sources,)."""


class SingleSchedule:
    """The schedule of a single source: it is drawn at every step."""

    def __init__(self, num_steps: int, lanes: int) -> None:
        """Keep the number of steps and of lanes."""
        self.num_steps, self._lanes = num_steps, lanes

    def turn(self, step: int) -> Turn:
        """Return the source of a step, and its ordinals."""
        return Turn(0, step, step // self._lanes)

    def lane_counts(self, source: int, ordinal: int) -> Int64:
        """Return how many of the first `ordinal` steps lie in each lane, (lanes,)."""
        assert source == 0
        counts: Int64 = (ordinal + self._lanes - 1 - np.arange(self._lanes)) // self._lanes
        return counts

    def turns_before(self, step: int) -> list[int]:
        """Return how many steps before a step each source was drawn at, (1,)."""
        return [step]


class _Block(NamedTuple):
    """The steps of one block, (steps,) each."""

    source: Int64
    ordinal: Int64
    lane_ordinal: Int64


class ShuffledSchedule:
    """The schedule of several sources with exact quotas."""

    def __init__(self, phases: Sequence[WeightPhase], *, key: int, lanes: int) -> None:
        """Count what each block holds; blocks are shuffled when they are asked for.

        Args:
            phases: The phases of the epoch.
            key: Key of the schedule, folded from the seed and the epoch.
            lanes: Number of lanes, >= 1.
        """
        self._key, self._lanes = key, lanes
        self.num_steps = phases[-1].stop
        starts: list[int] = []
        counts = []
        for phase in phases:
            edges = [*range(0, phase.stop - phase.start, STEPS_PER_BLOCK), phase.stop - phase.start]
            owed = np.array([spread(phase.quotas, edge) for edge in edges], np.int64)
            starts += [phase.start + edge for edge in edges[:-1]]
            counts.append(np.diff(owed, axis=0))
        self._starts = starts  # first step of each block
        self._counts = np.concatenate(counts)  # (blocks, sources), steps of each source
        self._before = np.concatenate([np.zeros_like(self._counts[:1]), np.cumsum(self._counts, axis=0)])
        self._lane_before: Int64 | None = None
        self._block = lru_cache(maxsize=2)(self._shuffle)

    def __getstate__(self) -> None:
        raise TypeError("a schedule cannot be pickled: make it from its arguments where it is used")

    def sources(self) -> Int64:
        """Return the source of every step, (steps,): as long as the epoch, so for reports only."""
        return np.concatenate([self._sequence(block) for block in range(len(self._starts))])

    def turn(self, step: int) -> Turn:
        """Return the source of a step, and its ordinals."""
        block = bisect_right(self._starts, step) - 1
        within = step - self._starts[block]
        return Turn(*(int(column[within]) for column in self._block(block)))

    def lane_counts(self, source: int, ordinal: int) -> Int64:
        """Return how many of a source's first `ordinal` steps lie in each lane, (lanes,)."""
        table = self._lanes_before_blocks()
        block = int(np.searchsorted(self._before[:, source], ordinal, side="left")) - 1
        if block < 0:
            return np.zeros(self._lanes, np.int64)
        steps = np.flatnonzero(self._sequence(block) == source)[: ordinal - int(self._before[block, source])]
        lanes = (self._starts[block] + steps) % self._lanes
        counts: Int64 = table[block, source] + np.bincount(lanes, minlength=self._lanes)
        return counts

    def turns_before(self, step: int) -> list[int]:
        """Return how many steps before a step each source was drawn at, (sources,)."""
        block = bisect_right(self._starts, step) - 1
        within = self._sequence(block)[: step - self._starts[block]]
        counts: list[int] = (self._before[block] + np.bincount(within, minlength=self._counts.shape[1])).tolist()
        return counts

    def _sequence(self, block: int) -> Int64:
        """Return the source of each step of a block, (steps,)."""
        counts = self._counts[block]
        order = permutation(fold(self._key, Purpose.SCHEDULE, self._starts[block]), int(counts.sum()))
        return np.repeat(np.arange(len(counts)), counts)[order]

    def _shuffle(self, block: int) -> _Block:
        source = self._sequence(block)
        lane = (self._starts[block] + np.arange(len(source))) % self._lanes
        before = self._lanes_before_blocks()[block]  # (sources, lanes)
        return _Block(
            source,
            self._before[block][source] + _times_before(source),
            before[source, lane] + _times_before(source * self._lanes + lane),
        )

    def _lanes_before_blocks(self) -> Int64:
        """Return the steps of each source in each lane before each block, (blocks + 1, sources, lanes)."""
        if self._lanes == 1:
            return self._before[:, :, np.newaxis]
        if self._lane_before is None:
            num_blocks, num_sources = self._counts.shape
            table = np.zeros((num_blocks + 1, num_sources, self._lanes), np.int64)
            for block, start in enumerate(self._starts):
                source = self._sequence(block)
                cell = source * self._lanes + (start + np.arange(len(source))) % self._lanes
                counts = np.bincount(cell, minlength=num_sources * self._lanes)
                table[block + 1] = table[block] + counts.reshape(num_sources, self._lanes)
            self._lane_before = table
        return self._lane_before


def _times_before(values: Int64) -> Int64:
    """Return for each value how often it came before, (n,)."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.searchsorted(ordered, ordered, side="left")
    result = np.empty(len(values), np.int64)
    result[order] = np.arange(len(values)) - first
    return result
