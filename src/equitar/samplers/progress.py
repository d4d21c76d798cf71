"""Where does a sampler stand? It counts what it has given out, in the main process; nothing is drawn here.

The epoch advances by itself with the last item of a pass; a pass that is broken off starts again; `set_epoch`, and a state that
is loaded, count from the next `iter()`. A DataLoader with workers takes items ahead of the training loop, so what was given
out is not what was trained on: `at` takes what the loop has counted itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

Item = TypeVar("Item")


class SamplerPosition(NamedTuple):
    """Where a pass begins.

    Attributes:
        epoch: Which epoch, >= 0.
        given: What was given out before in this epoch, in units of the sampler's own.
        world_size: Ranks the epoch was planned with; 0 means those of now.
    """

    epoch: int
    given: int
    world_size: int


class Progress:
    """The mark from which the next pass begins, and how far the latest one has come."""

    def __init__(self) -> None:
        """Stand at the beginning of epoch 0."""
        self.next = self._latest = self._begun = SamplerPosition(0, 0, 0)
        self._count, self._each = 0, 1
        self._turn = 0  # passes begun and marks set: an older pass must not move the mark any more

    def set_next(self, mark: SamplerPosition) -> None:
        """Begin the next pass at a mark."""
        self.next = self._latest = self._begun = mark
        self._count = 0
        self._turn += 1

    def set_epoch(self, epoch: int) -> None:
        """Begin the next pass at the start of an epoch.

        Raises:
            ValueError: If it is negative.
        """
        if epoch < 0:
            raise ValueError(f"`epoch` must be >= 0; got {epoch}")
        self.set_next(SamplerPosition(epoch, 0, 0))

    def counted(self, items: Iterator[Item], count: int, *, each: int = 1) -> Iterator[Item]:
        """Return a pass over the items from the mark on, `count` of them to the end of the epoch, `each` so many units."""
        self._turn += 1
        self._latest, self._begun, self._count, self._each = self.next, self.next, count, each
        return self._pass(items, self._turn)

    def _pass(self, items: Iterator[Item], turn: int) -> Iterator[Item]:
        for taken, item in enumerate(items, 1):
            if self._turn == turn:
                self._latest = self._after(taken)
                if taken == self._count:  # with the last item: who takes just so many never asks for the end
                    self.next = self._latest
            yield item

    def _after(self, taken: int) -> SamplerPosition:
        begun = self._begun
        if taken == self._count:
            return SamplerPosition(begun.epoch + 1, 0, 0)
        return begun._replace(given=begun.given + taken * self._each)

    def at(self, taken: int | None) -> SamplerPosition:
        """Return where the latest pass stands after `taken` items, or after all that it has given out.

        Raises:
            ValueError: If it has fewer items.
        """
        if taken is None:
            return self._latest
        if not 0 <= taken <= self._count:
            raise ValueError(f"`taken` must be in [0, {self._count}], the items of the latest pass; got {taken}")
        return self._after(taken) if taken else self._begun
