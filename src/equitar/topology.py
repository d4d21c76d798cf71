"""Who consumes? One rank of a world, and within it the workers of a DataLoader."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The place of one consumer. Constructible in a test without any process.

    Attributes:
        rank: Which data-parallel process, in [0, world_size).
        world_size: Number of data-parallel processes, >= 1.
        worker: Which DataLoader worker of this rank, in [0, max(1, num_workers)).
        num_workers: DataLoader workers of each rank, >= 0; 0 reads in the main process.
    """

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    num_workers: int = 0

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ValueError(f"`world_size` must be >= 1; got {self.world_size}")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"`rank` must be in [0, {self.world_size}); got {self.rank}")
        if self.num_workers < 0:
            raise ValueError(f"`num_workers` must be >= 0; got {self.num_workers}")
        if not 0 <= self.worker < max(1, self.num_workers):
            raise ValueError(f"`worker` must be in [0, {max(1, self.num_workers)}); got {self.worker}")
