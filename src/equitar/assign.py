"""Who reads which part of a line? Lanes and ranks, each with one consecutive run.

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

from typing import NamedTuple

import numpy as np

from equitar.mix64 import Int64


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
