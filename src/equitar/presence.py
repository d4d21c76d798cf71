"""Presence of labels in samples, as sparse rows: for each sample the ids of its labels, as a set.

A dense (samples x classes) matrix of 1.7 million samples and 365 classes takes 2.5 GB as int32; sparse rows take 28 MB.
Ids are kept as they were given: gaps stay gaps. How often a label occurs within a sample (boxes, words) is kept beside
it for the instance-aware factor, and never enters a frequency.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from equitar.arrays import Int64

_DENSE = 1 << 16  # ids that a table may have room for


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """Sparse rows of labels.

    Attributes:
        indptr: Row pointers, (rows + 1,), non-decreasing, from 0 to the number of entries.
        ids: Label ids, (entries,), strictly increasing within a row.
        counts: How often each label occurs in its sample, (entries,), >= 1.
    """

    indptr: Int64
    ids: Int64
    counts: Int64

    def __post_init__(self) -> None:
        if len(self.indptr) == 0 or self.indptr[0] != 0 or self.indptr[-1] != len(self.ids):
            raise ValueError(f"`indptr` must run from 0 to the number of ids, {len(self.ids)}; got {self.indptr!r}")
        if len(self.counts) != len(self.ids):
            raise ValueError(f"`counts` must have one entry for each of {len(self.ids)} ids; got {len(self.counts)}")

    @property
    def num_rows(self) -> int:
        """Number of samples."""
        return len(self.indptr) - 1

    def labels(self, row: int) -> Int64:
        """Return the label ids of one row, increasing."""
        return self.ids[self.indptr[row] : self.indptr[row + 1]]

    @staticmethod
    def of(label_sets: Iterable[Iterable[int]]) -> Presence:
        """Return the sparse rows of lists of label ids; a label that occurs twice in a row is counted twice.

        >>> rows = Presence.of([[17, 90, 17], [], [3]])
        >>> rows.indptr.tolist(), rows.ids.tolist(), rows.counts.tolist()
        ([0, 2, 2, 3], [17, 90, 3], [2, 1, 1])
        """
        rows = [list(labels) for labels in label_sets]
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum()))
        return Presence.of_entries(np.repeat(np.arange(len(rows)), lengths), ids, None, num_rows=len(rows))

    @staticmethod
    def of_entries(row_of: Int64, ids: Int64, times: Int64 | None, *, num_rows: int) -> Presence:
        """Return the sparse rows of (row, label) pairs in any order, all at once; equal pairs are counted together.

        Args:
            row_of: Row of each pair, in [0, num_rows), (pairs,).
            ids: Its label, (pairs,).
            times: How often it counts, >= 1, (pairs,); None is once each.
            num_rows: Number of rows.

        >>> Presence.of_entries(np.array([0, 2, 0]), np.array([9, 3, 9]), None, num_rows=3).counts.tolist()
        [2, 1]
        """
        order = np.lexsort((ids, row_of))
        row_of, ids = row_of[order], ids[order]
        is_first = np.ones(len(ids), bool)
        is_first[1:] = (row_of[1:] != row_of[:-1]) | (ids[1:] != ids[:-1])
        starts = np.flatnonzero(is_first)
        if times is None:
            counts = np.diff(np.append(starts, len(ids)))
        else:
            counts = np.add.reduceat(times[order], starts) if len(starts) else times[:0]
        lengths = np.bincount(row_of[starts], minlength=num_rows)
        indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Presence(indptr=indptr, ids=ids[starts], counts=counts.astype(np.int64))

    def kept(self, mask: NDArray[np.bool_]) -> Presence:
        """Return the rows for which `mask`, (rows,), is true."""
        is_kept = np.repeat(mask, np.diff(self.indptr))
        indptr = np.concatenate([[0], np.cumsum(np.diff(self.indptr)[mask])]).astype(np.int64)
        return Presence(indptr=indptr, ids=self.ids[is_kept], counts=self.counts[is_kept])

    def picked(self, rows: Int64) -> Presence:
        """Return some rows in any order, (n,); -1 is a row without labels.

        >>> Presence.of([[17, 90], [], [3]]).picked(np.array([2, -1, 0])).ids.tolist()
        [3, 17, 90]
        """
        lengths = np.diff(self.indptr, append=self.indptr[-1])[rows]  # the last one, where -1 points, is 0
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        entries = np.arange(indptr[-1]) + np.repeat(self.indptr[rows] - indptr[:-1], lengths)
        return Presence(indptr=indptr, ids=self.ids[entries], counts=self.counts[entries])

    @staticmethod
    def joined(parts: Sequence[Presence]) -> Presence:
        """Return the rows of all parts, one after another."""
        sizes = np.cumsum([0, *(len(part.ids) for part in parts)])
        none = np.zeros(0, np.int64)
        return Presence(
            indptr=np.concatenate([[0], *(part.indptr[1:] + size for part, size in zip(parts, sizes, strict=False))]),
            ids=np.concatenate([none, *(part.ids for part in parts)]),
            counts=np.concatenate([none, *(part.counts for part in parts)]),
        )


def positions_of(ids: Int64, wanted: Int64) -> Int64:
    """Return the position of each of `wanted`, (n,), is in `ids`, (classes,), which increase and hold all of them.

    >>> positions_of(np.array([3, 9]), np.array([9, 9, 3])).tolist()
    [1, 1, 0]
    """
    if not len(ids) or ids[-1] - ids[0] > _DENSE + 8 * len(ids):
        return np.searchsorted(ids, wanted)
    table = np.zeros(int(ids[-1] - ids[0]) + 1, np.int64)  # ids lie close together: a table is several times faster
    table[ids - ids[0]] = np.arange(len(ids))
    result: Int64 = table[wanted - ids[0]]
    return result
