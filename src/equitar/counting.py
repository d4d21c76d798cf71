"""How many samples contain each label? Counted over parts of a source, such as shards or blocks of rows, one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from equitar.mix64 import Int64
from equitar.presence import Presence, places_of
from equitar.repeat import ClassCounts, Empty


def count_classes(parts: Iterable[Presence], *, names: Mapping[int, str] | None, empty: Empty) -> ClassCounts:
    """Return how many samples, and how many instances, have each label.

    Args:
        parts: The rows of a source, in any division.
        names: Names of all labels, or None: then the vocabulary is the labels that occur.
        empty: Whether rows without labels count as samples (``"keep"``) or not (``"drop"``).

    >>> counts = count_classes([Presence.of([[3, 3, 7], []]), Presence.of([[7]])], names=None, empty="keep")
    >>> counts.ids.tolist(), counts.num_samples.tolist(), counts.total
    ([3, 7], [1, 2], 3)
    """
    found, samples, instances, total = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
    for part in parts:
        ids = _different(part.ids)
        at = places_of(ids, part.ids)
        found.append(ids)
        samples.append(np.bincount(at, minlength=len(ids)))
        instances.append(samples[-1] if (part.counts == 1).all() else _sums(at, part.counts, len(ids)))
        total += part.num_rows if empty == "keep" else int((np.diff(part.indptr) > 0).sum())
    occurring = np.concatenate(found)
    vocabulary = np.unique(occurring if names is None else np.array(list(names), np.int64))
    at = np.searchsorted(vocabulary, occurring)
    return ClassCounts(
        ids=vocabulary,
        num_samples=_sums(at, np.concatenate(samples), len(vocabulary)),
        total=total,
        names=None if names is None else tuple(names[one] for one in vocabulary.tolist()),
        num_instances=_sums(at, np.concatenate(instances), len(vocabulary)),
    )


def _different(ids: Int64) -> Int64:
    """Return the different ids, increasing."""
    lowest = int(ids.min(initial=0))
    if int(ids.max(initial=0)) - lowest >= len(ids):
        return np.unique(ids)
    there: Int64 = np.flatnonzero(np.bincount(ids - lowest)) + lowest  # without sorting
    return there


def _sums(at: Int64, numbers: Int64, length: int) -> Int64:
    """Return the sum of the numbers at each place, exactly: `bincount` with weights would count in floats."""
    sums = np.zeros(length, np.int64)
    np.add.at(sums, at, numbers)
    return sums
