"""What is a map-style dataset to a plan? A source whose rows are samples by index, in equal blocks that serve as shards.

Indices are those of the datasets one after another, as `torch.utils.data.ConcatDataset` counts them. Rows are laid on the line in
an order drawn once for the seed, unless neighbours shall stay near each other: datasets are often sorted by class, and a random
access costs nothing. A dataset of n rows has about as many blocks as rows in each, so that neither a pass over the blocks nor
a look into one takes long; which blocks come together changes with every pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from equitar.counting import count_classes
from equitar.errors import PlanError
from equitar.label_presence import LabelRows
from equitar.laid import Places
from equitar.line import Supply
from equitar.mix64 import Int64, Purpose, fold, permutation, text_id
from equitar.repeat import ONE, RepeatFactor, Rounding, class_factors, sample_factors

Factors: TypeAlias = NDArray[Any]  # int32 where it fits: half the memory
FactorsOf: TypeAlias = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Gives the factors of the rows of a block. A class, so that it pickles."""

    factors: Factors
    size: int

    def __call__(self, block: int) -> Int64:
        """Return the factors of a block, (rows,)."""
        return self.factors[block * self.size : (block + 1) * self.size].astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedSource:
    """One dataset.

    Attributes:
        supply: What a plan knows of it.
        first: Index of its first sample.
        block_size: Rows of a block; the last one may have fewer.
        order: Row of the dataset at each place of its blocks, (rows,); None is their own order.
    """

    supply: Supply
    first: int
    block_size: int
    order: NDArray[Any] | None

    def indices(self, block: Int64, row: Int64) -> Int64:
        """Return the indices of rows of blocks, (n,)."""
        at = block * self.block_size + row
        return self.first + (at if self.order is None else self.order[at].astype(np.int64))


def indices_of(sources: Mapping[str, IndexedSource], names: tuple[str, ...], places: Places) -> list[int]:
    """Return the index of each place, given the names of the sources in the order of the plan."""
    result = np.empty(len(places.row), np.int64)
    for number in np.unique(places.source).tolist():
        here = places.source == number
        result[here] = sources[names[number]].indices(places.shard[here], places.row[here])
    indices: list[int] = result.tolist()
    return indices


def indexed_sources(
    lengths: Mapping[str, int],
    factors: Mapping[str, Factors] | None,
    *,
    rounding: Rounding,
    seed: int,
    is_drawn: bool,
) -> dict[str, IndexedSource]:
    """Return datasets as sources.

    Args:
        lengths: Samples of each dataset by name, in the order in which they are indexed.
        factors: Repeat factors of their samples in units of 2**-20 copies, (samples,) each; None repeats nothing.
        rounding: How factors become copies.
        seed: Seed of the order of the rows.
        is_drawn: Whether rows lie in a drawn order, or in their own.
    """
    result, first = {}, 0
    for name, length in lengths.items():
        size = max(1, isqrt(length))
        order = permutation(fold(seed, Purpose.ROW_ORDER, text_id(name)), length) if is_drawn else None
        if order is not None and length < 1 << 32:
            order = order.astype(np.uint32)
        of_rows = None if factors is None else factors[name]
        laid = of_rows if of_rows is None or order is None else of_rows[order]
        result[name] = IndexedSource(
            supply=_supply(name, length, size, laid, rounding), first=first, block_size=size, order=order
        )
        first += length
    return result


def _supply(name: str, length: int, size: int, factors: Factors | None, rounding: Rounding) -> Supply:
    starts = np.arange(0, length, size)
    num_rows = np.diff(np.append(starts, length))
    if factors is None:
        return Supply.once(name, [str(block) for block in range(len(starts))], num_rows)
    return Supply(
        name=name,
        shard_ids=np.array([text_id(str(block)) for block in range(len(starts))], np.uint64),
        num_rows=num_rows,
        sums=np.add.reduceat(factors, starts, dtype=np.int64) if length else np.zeros(0, np.int64),
        largest=int(factors.max(initial=0)),
        kept=length * ONE,
        factors=_Blocks(factors, size),
        rounding="bernoulli" if rounding == "bernoulli" else "systematic",
    )


def factors_by_labels(labels: Mapping[str, LabelRows], how: RepeatFactor) -> dict[str, Factors]:
    """Return the repeat factor of every sample in units of 2**-20 copies, (samples,) each, from the labels of all datasets."""
    counts = [count_classes(rows.parts(), names=rows.names, empty=how.empty) for rows in labels.values()]
    result = {}
    for (name, rows), count, of_class in zip(labels.items(), counts, class_factors(counts, how), strict=True):
        factors, at = np.empty(rows.num_rows, _dtype_for(int(of_class.max(initial=ONE)))), 0
        for part in rows.parts():
            of_rows = sample_factors(part, count.ids, of_class, empty=how.without_labels)
            if how.rounding == "ceil":
                of_rows = -(-of_rows // ONE) * ONE
            factors[at : at + len(of_rows)] = of_rows
            at += len(of_rows)
        result[name] = factors
    return result


def factors_by_function(lengths: Mapping[str, int], function: FactorsOf) -> dict[str, Factors]:
    """Return the repeat factors that a function gives for the samples of each dataset, in units of 2**-20 copies.

    Raises:
        PlanError: If it gives anything else than a finite number >= 0 for each sample.
    """
    result = {}
    for name, length in lengths.items():
        numbers = np.asarray(function(name), np.float64)
        if numbers.shape != (length,) or not ((numbers >= 0) & (numbers < np.inf)).all():
            shown = f"shape {numbers.shape}" if numbers.shape != (length,) else f"numbers down to {numbers.min()}"
            wanted = f"a finite number >= 0 for each of {length} samples"
            raise PlanError(f"`repeat` must give {wanted} of source {name!r}; got {shown}")
        units = np.rint(numbers * ONE)
        result[name] = units.astype(_dtype_for(int(units.max(initial=0))))
    return result


def _dtype_for(largest: int) -> type[np.int32 | np.int64]:
    return np.int32 if largest + ONE < 1 << 31 else np.int64  # + ONE: `ceil` may add as much
