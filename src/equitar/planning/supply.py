"""Supplies: what a plan knows of a source, which is its shards and how often each row is repeated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from equitar.arrays import Int64, UInt64
from equitar.planning.repeat_factors import ONE, Rounding
from equitar.rng import text_id


@dataclass(frozen=True, slots=True)
class Once:
    """The factors of rows that are repeated once each. A class, so that it pickles."""

    num_rows: Int64

    def __call__(self, shard: int) -> Int64:
        """Return `ONE` for each row of the shard."""
        return np.full(self.num_rows[shard], ONE, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """What a plan knows of one source.

    Attributes:
        name: The source's name.
        shard_ids: Ids of its shards, from their paths, (shards,).
        num_rows: Samples in each shard, (shards,).
        sums: Sum of the repeat factors of each shard's rows, (shards,), in units of 2**-20 copies.
        largest: Largest repeat factor of a row, in units of 2**-20 copies.
        kept: Sum of the selection of all rows, in units of 2**-20 samples: `total` without repeats.
        factors: Gives the factors of one shard's rows, (rows,), in units of 2**-20 copies; 0 leaves a row out.
        rounding: How factors become copies. `ceil` has been applied to the factors already.
        total: Sum of all repeat factors, in units of 2**-20 copies.
    """

    name: str
    shard_ids: UInt64
    num_rows: Int64
    sums: Int64
    largest: int
    kept: int
    factors: Callable[[int], Int64]
    rounding: Rounding = "systematic"
    total: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", int(self.sums.sum()))

    @property
    def copies(self) -> int:
        """Whole copies in one pass."""
        return self.total >> 20

    @property
    def key(self) -> int:
        """Id of the source, from its name."""
        return text_id(self.name)

    @staticmethod
    def of(name: str, paths: list[str], factors: list[Int64], rounding: Rounding = "systematic") -> Supply:
        """Return the supply of a source from the factors of all its rows: one array for each shard."""
        return Supply(
            name=name,
            shard_ids=np.array([text_id(path) for path in paths], np.uint64),
            num_rows=np.array([len(rows) for rows in factors], np.int64),
            sums=np.array([int(rows.sum()) for rows in factors], np.int64),
            largest=max((int(rows.max(initial=0)) for rows in factors), default=0),
            kept=sum(int(np.minimum(rows, ONE).sum()) for rows in factors),
            factors=factors.__getitem__,
            rounding=rounding,
        )

    @staticmethod
    def once(name: str, paths: list[str], num_rows: Int64) -> Supply:
        """Return the supply of a source without repeats."""
        return Supply(
            name=name,
            shard_ids=np.array([text_id(path) for path in paths], np.uint64),
            num_rows=num_rows,
            sums=num_rows * ONE,
            largest=ONE if num_rows.any() else 0,
            kept=int(num_rows.sum()) * ONE,
            factors=Once(num_rows),
        )
