"""How evenly classes are emitted: the groups of LVIS, samples that hold a rare class, entropy, and the commonest beside the rarest.

LVIS (Gupta, Dollar and Girshick 2019, arXiv 1908.03195) calls a class rare that 1 to 10 images of the training set contain, common with
11 to 100, and frequent with more. The groups are of the samples as they are, before repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from equitar.arrays import Float64, Int64
from equitar.planning.repeat_factors import ClassCounts

GROUPS = ("rare", "common", "frequent")
GROUP_RANGES = ("1 to 10", "11 to 100", "more than 100")  # samples of a class
_MOST_SAMPLES = (10, 100)  # of a rare class, and of a common one


class Balance(NamedTuple):
    """How evenly one pass of all sources emits their classes: expected numbers.

    Attributes:
        times: Copies of a class in its samples, the mean over the classes of each of `GROUPS`; None where a group has no class.
        rare_share: Share of what is emitted that holds a rare class, of the sources with labels.
        bits: Entropy of the classes that are emitted, in bits; a sample counts for each of its classes.
        evenness: The same in that of as many classes that are equally frequent, in [0, 1].
        ratio: Copies of the commonest class, in those of the rarest.
    """

    times: tuple[float | None, ...]
    rare_share: float
    bits: float
    evenness: float
    ratio: float


def group_of_classes(samples: Int64) -> Int64:
    """Return the index in `GROUPS` of each class from its samples, (classes,) each.

    >>> group_of_classes(np.array([1, 10, 11, 100, 101])).tolist()
    [0, 0, 1, 1, 2]
    """
    return np.searchsorted(_MOST_SAMPLES, samples)


def balance_of(samples: Int64, copies: Float64, *, rare_copies: float, total: float) -> Balance:
    """Return how evenly classes are emitted.

    Args:
        samples: Samples that contain each class, (classes,), >= 1.
        copies: Copies of samples with it, (classes,).
        rare_copies: Copies of samples that hold a rare class.
        total: Copies of all samples.

    >>> balance_of(np.array([1, 20, 20]), np.array([5.0, 20.0, 20.0]), rare_copies=5.0, total=45.0).times
    (5.0, 1.0, None)
    """
    groups, emitted = group_of_classes(samples), copies[copies > 0]
    shares = emitted / max(emitted.sum(), 1e-300)
    bits = float(-(shares * np.log2(shares)).sum())
    is_in = [groups == group for group in range(len(GROUPS))]
    return Balance(
        times=tuple(
            float((copies[of_group] / samples[of_group]).mean()) if of_group.any() else None for of_group in is_in
        ),
        rare_share=rare_copies / total if total else 0.0,
        bits=bits,
        evenness=bits / float(np.log2(len(samples))) if len(samples) > 1 else 1.0,
        ratio=float(emitted.max(initial=0) / emitted.min(initial=np.inf)) if len(emitted) else 1.0,
    )


def joined_classes(names: Sequence[str], counts: Sequence[ClassCounts]) -> tuple[list[str], list[Int64]]:
    """Return the names of the classes of all sources, those of one name once, and where the classes of each source are among them.

    Args:
        names: Name of each source; ids without class names become ``source/id``.
        counts: Its classes.
    """
    column_of: dict[str, int] = {}
    columns = []
    for source, of_source in zip(names, counts, strict=True):
        known = of_source.names or [f"{source}/{label}" for label in of_source.ids.tolist()]
        columns.append(np.array([column_of.setdefault(name, len(column_of)) for name in known], np.int64))
    return list(column_of), columns


def summed_by_class(
    num_classes: int, columns: Sequence[Int64], numbers: Sequence[Float64] | Sequence[Int64]
) -> Float64:
    """Return the sum of numbers of the classes of each source by the classes of all, (num_classes,)."""
    sums = np.zeros(num_classes)
    for column, of_source in zip(columns, numbers, strict=True):
        np.add.at(sums, column, of_source)
    return sums
