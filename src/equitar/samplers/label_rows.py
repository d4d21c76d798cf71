"""Label rows: which labels each sample of an indexed dataset has, as sparse rows in blocks of the smallest integers.

A dataset offers them through one method, `label_presence`. `LabelRows` are made in one pass from whatever there is: label sets,
a generator, sparse or dense matrices; `label_files` makes them from files and sidecars. 1.7 million rows of 365 classes take some
20 MB. Whatever is computed from the rows is computed block by block, as it is shard by shard for tars.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from equitar.arrays import Int64
from equitar.errors import LabelError
from equitar.presence import Presence

Classes: TypeAlias = Mapping[int, str] | Sequence[str]
ROWS_PER_BLOCK = 16_384  # rows: some MB while a block is made


@runtime_checkable
class LabelPresence(Protocol):
    """What a dataset offers so that its samples can be repeated by their labels."""

    def label_presence(self) -> LabelRows:
        """Return the labels of every sample, in the order of the samples."""


class _Block(NamedTuple):
    """Consecutive rows, each array in the smallest integers that hold it."""

    lengths: NDArray[Any]  # labels of each row, (rows,)
    ids: NDArray[Any]  # ids of the labels, increasing within a row, (labels,)
    counts: NDArray[Any] | None  # how often each occurs in its row, (labels,); None if all occur once


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelRows:
    """The labels of the samples of one dataset, as sets, with how often each occurs.

    Attributes:
        num_rows: Number of samples.
        names: Name of each class by id, or None: then ids mean something within this dataset only. Datasets with names share
            their frequencies by name.
        blocks: The rows.
    """

    num_rows: int
    names: Mapping[int, str] | None
    blocks: tuple[_Block, ...]

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.num_rows

    def label_presence(self) -> LabelRows:
        """Return the rows themselves: they are their own `LabelPresence`."""
        return self

    @property
    def nbytes(self) -> int:
        """Bytes that the rows take."""
        return sum(array.nbytes for block in self.blocks for array in block if array is not None)

    def parts(self) -> Iterator[Presence]:
        """Yield the rows in parts of some thousand."""
        for lengths, ids, counts in self.blocks:
            wide = np.ones(len(ids), np.int64) if counts is None else counts.astype(np.int64)
            indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
            yield Presence(indptr=indptr, ids=ids.astype(np.int64), counts=wide)

    @staticmethod
    def of_sets(label_sets: Iterable[Iterable[int | str]], *, classes: Classes | None = None) -> LabelRows:
        """Return the rows of label sets, one for each sample: a list of them, or a generator, which is gone through once.

        Args:
            label_sets: Ids of labels, or their names if `classes` are given; one that occurs twice in a row counts twice.
            classes: Names of all classes by id; a label that is not one of them is an error.

        >>> rows = LabelRows.of_sets([[17, 90, 17], [], [3]])
        >>> len(rows), [part.labels(0).tolist() for part in rows.parts()]
        (3, [[17, 90]])

        Raises:
            LabelError: If a label is neither an id nor a class, with its row.
        """
        names = _names(classes)
        ids = {name: number for number, name in names.items()} if names is not None else {}

        def parts() -> Iterator[Presence]:
            rows, first = iter(label_sets), 0
            while block := [list(row) for row in islice(rows, ROWS_PER_BLOCK)]:
                yield _of_lists(block, ids, first)
                first += len(block)

        return collected(parts(), names)

    @staticmethod
    def of_csr(indptr: Any, indices: Any, counts: Any = None, *, classes: Classes | None = None) -> LabelRows:
        """Return the rows of a sparse matrix (samples x classes) in the CSR format, as numpy or ``scipy.sparse`` have it.

        Args:
            indptr: Row pointers, (samples + 1,).
            indices: Ids of labels, in any order within a row.
            counts: The values (scipy's ``data``); entries below 1 are absent. None is 1 each.
            classes: Names of all classes by id.

        >>> matrix_indptr, matrix_indices, matrix_data = [0, 2, 3], [1, 0, 1], [1, 0, 5]
        >>> [part.ids.tolist() for part in LabelRows.of_csr(matrix_indptr, matrix_indices, matrix_data).parts()]
        [[1, 1]]
        """
        pointers, ids = np.asarray(indptr), np.asarray(indices)
        values = None if counts is None else np.asarray(counts)
        wrong = len(pointers) == 0 or pointers[0] != 0 or pointers[-1] != len(ids) or (np.diff(pointers) < 0).any()
        if wrong or (values is not None and len(values) != len(ids)):
            got = f"{len(ids)} indices, {'no' if values is None else len(values)} counts and pointers {pointers!r}"
            raise LabelError(f"`indptr` must run from 0 to the number of `indices` and of `counts`; got {got}")

        def part(first: int) -> Presence:
            ends = pointers[first : first + ROWS_PER_BLOCK + 1].astype(np.int64)
            row_of = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
            span = slice(ends[0], ends[-1])
            return _of_values(
                row_of, ids[span].astype(np.int64), None if values is None else values[span], len(ends) - 1
            )

        return collected(map(part, range(0, len(pointers) - 1, ROWS_PER_BLOCK)), _names(classes))

    @staticmethod
    def of_dense(matrix: Any, *, classes: Classes | None = None) -> LabelRows:
        """Return the rows of a matrix (samples x classes), whose columns are the ids: an array, or chunks of its rows.

        Args:
            matrix: Truth values or counts, in an array (a ``numpy.memmap`` is read in parts) or an iterable of arrays, which is
                gone through once; entries below 1 are absent.
            classes: Names of all classes by id.

        >>> [part.ids.tolist() for part in LabelRows.of_dense(iter([[[0, 1]], [[2, 1]]])).parts()]
        [[1], [0, 1]]
        """
        is_array = hasattr(matrix, "shape")
        starts = range(0, len(matrix), ROWS_PER_BLOCK) if is_array else range(0)
        chunks = (matrix[start : start + ROWS_PER_BLOCK] for start in starts) if is_array else iter(matrix)

        def part(chunk: Any) -> Presence:
            values = np.asarray(chunk)
            if values.ndim != 2:
                raise LabelError(f"`matrix` must be (samples, classes) or chunks of that; got shape {values.shape}")
            row_of, ids = np.nonzero(values)
            return _of_values(row_of, ids, values[row_of, ids], len(values))

        return collected(map(part, chunks), _names(classes))


def rows_of(labels: LabelPresence, where: str) -> LabelRows:
    """Return the label rows of what offers them.

    Raises:
        LabelError: If it offers something else.
    """
    rows = labels.label_presence()
    if not isinstance(rows, LabelRows):
        raise LabelError(
            f"`label_presence` must return LabelRows; got {type(rows).__name__} for {where}; see LabelRows.of_sets"
        )
    return rows


def collected(parts: Iterable[Presence], names: Mapping[int, str] | None) -> LabelRows:
    """Return parts of rows, each made small as it comes; a label outside `names` is a LabelError."""
    blocks, first = [], 0
    known = None if names is None else np.array(sorted(names), np.int64)
    for part in parts:
        if known is not None:
            _check_known(part, known, first)
        counts = None if (part.counts == 1).all() else _narrow(part.counts)
        blocks.append(_Block(_narrow(np.diff(part.indptr)), _narrow(part.ids), counts))
        first += part.num_rows
    return LabelRows(num_rows=first, names=names, blocks=tuple(blocks))


def _check_known(part: Presence, known: Int64, first: int) -> None:
    foreign = np.flatnonzero(~np.isin(part.ids, known))
    if len(foreign):
        row = first + int(np.searchsorted(part.indptr, foreign[0], side="right")) - 1
        raise LabelError(
            f"label {int(part.ids[foreign[0]])} of row {row} is not one of the {len(known)} classes; add it to `classes` or fix "
            "the label"
        )


def _of_lists(block: Sequence[Sequence[int | str]], ids: Mapping[str, int], first: int) -> Presence:
    flat = list(chain.from_iterable(block))
    kinds = set(map(type, flat))
    row_of = np.repeat(np.arange(len(block)), np.fromiter(map(len, block), np.int64, len(block)))
    if str in kinds:
        flat = [ids.get(label, label) if isinstance(label, str) else label for label in flat]
        kinds = set(map(type, flat))
    if wrong := {kind for kind in kinds if kind is bool or not issubclass(kind, int | np.integer)}:
        entry = next(entry for entry, label in enumerate(flat) if type(label) in wrong)
        raise LabelError(
            f"a label must be an id (an integer) or a name in `classes`; got {flat[entry]!r} in row "
            f"{first + int(row_of[entry])}; fix the label"
        )
    return _of_values(row_of, np.array(flat, np.int64), None, len(block))


def _of_values(row_of: Int64, ids: Int64, values: NDArray[Any] | None, num_rows: int) -> Presence:
    if values is None or values.dtype == bool:
        present, times = slice(None) if values is None else values, None
    else:
        present = values >= 1  # a share is not a label, nor is -1
        times = values[present].astype(np.int64)
    return Presence.of_entries(row_of[present], ids[present], times, num_rows=num_rows)


def _narrow(values: Int64) -> NDArray[Any]:
    """Return integers in the smallest dtype that holds them."""
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    return values.astype(np.promote_types(np.min_scalar_type(low), np.min_scalar_type(high)))


def _names(classes: Classes | None) -> Mapping[int, str] | None:
    if classes is None:
        return None
    names = dict(classes) if isinstance(classes, Mapping) else dict(enumerate(classes))
    if len(set(names.values())) < len(names):
        raise LabelError(f"`classes` must have a name of its own for each class; got {names!r}")
    return names
