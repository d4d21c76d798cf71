"""The position at which the next iterator begins, in shared memory, which workers read when they start.

The main process writes, workers read; a worker never decides. The tensor travels to workers under fork, spawn and forkserver,
and persistent workers see it change.
"""

from __future__ import annotations

import torch

from equitar.progress import Position

# Cells after the position: 1 + the epoch that has begun; whether it was noted that one began again; `is_driven`.
_BEGUN, _NOTED, _DRIVEN = -3, -2, -1


class SharedPosition:
    """The position at which the next iterator begins."""

    def __init__(self) -> None:
        """Start at the beginning of epoch 0."""
        self._cells = torch.zeros(len(Position._fields) + 3, dtype=torch.int64)
        self._cells.share_memory_()  # type: ignore[no-untyped-call]  # torch has no types for it

    @property
    def position(self) -> Position:
        """Where the next iterator begins."""
        return Position(*self._cells[:_BEGUN].tolist())

    @position.setter
    def position(self, position: Position) -> None:
        self._cells[:_NOTED] = torch.tensor((*position, 0))

    @property
    def was_begun(self) -> bool:
        """Whether an epoch was begun in a worker."""
        return bool(self._cells[_BEGUN])

    def begins_again(self, epoch: int) -> bool:
        """Note that an epoch begins, and return whether it is the first that has begun before."""
        again = int(self._cells[_BEGUN]) == epoch + 1 and not int(self._cells[_NOTED])
        self._cells[_BEGUN] = epoch + 1
        self._cells[_NOTED] |= int(again)
        return again

    @property
    def is_driven(self) -> bool:
        """Whether a Loader is going through an epoch."""
        return bool(self._cells[_DRIVEN])

    @is_driven.setter
    def is_driven(self, is_driven: bool) -> None:
        self._cells[_DRIVEN] = int(is_driven)
