"""Progress of a sampler: it counts what it has given out, in the main process; nothing is drawn here.

The epoch advances by itself with the last item of a pass; a pass that is broken off starts again; `set_epoch`, and a state that
is loaded, count from the next `iter()`. A DataLoader with workers takes items ahead of the training loop, so what was given
out is not what was trained on: `after` takes what the loop has counted itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

Item = TypeVar("Item")
_BROKEN_OFF = 3  # passes in a row at one item, before it looks like a habit


class SamplerPosition(NamedTuple):
    """Where a pass begins."""

    epoch: int
    given: int  # items of this epoch that were given out before
    world_size: int  # ranks the epoch was planned with; 0 means those of now


class Progress:
    """The position from which the next pass begins, and how far the latest one has come."""

    def __init__(self) -> None:
        """Stand at the beginning of epoch 0."""
        self.next = self._latest = self._begun = SamplerPosition(0, 0, 0)
        self._count, self._each = 0, 1
        self._turn = 0  # passes begun and positions set: an older pass must not move the position any more
        self._is_under_way, self._broken_at, self._has_warned = False, list[int](), False

    @property
    def is_new(self) -> bool:
        """Whether no pass was begun, and no position set."""
        return not self._turn

    def set_next(self, position: SamplerPosition) -> None:
        """Begin the next pass at a position."""
        self.next = self._latest = self._begun = position
        self._count, self._is_under_way = 0, False
        self._turn += 1

    def set_epoch(self, epoch: int) -> None:
        """Begin the next pass at the start of an epoch; where a state was just loaded, in the middle of it.

        Raises:
            ValueError: If it is negative.
        """
        if epoch < 0:
            raise ValueError(f"`epoch` must be >= 0; got {epoch}")
        if not (self.next.given and self.next.epoch == epoch and not self._is_under_way):
            self.set_next(SamplerPosition(epoch, 0, 0))

    def counted(self, items: Iterator[Item], count: int, *, each: int = 1) -> Iterator[Item]:
        """Return a pass over the items from the next position on, `count` of them to the end of the epoch, `each` so many units."""
        self._note_broken_off()
        self._turn += 1
        self._latest, self._begun, self._count, self._each = self.next, self.next, count, each
        self._is_under_way = True
        return self._pass(items, self._turn)

    def _note_broken_off(self) -> None:
        """Warn once where passes end early as a habit: the rest of the data would never be seen."""
        taken = (self._latest.given - self._begun.given) // self._each
        if not (self._is_under_way and taken):
            return
        self._broken_at = [*self._broken_at, taken][-_BROKEN_OFF:]
        if not self._has_warned and self._broken_at == [taken] * _BROKEN_OFF:
            self._has_warned = True
            warnings.warn(
                f"{_BROKEN_OFF} passes in a row were broken off after {taken} of {self._count} items of this sampler, and each begins "
                "the same epoch again; give it `steps=`, or call its `set_epoch` before each pass (with Lightning: the "
                "callback `equitar.lightning.SetEpoch`)",
                stacklevel=4,
            )

    def _pass(self, items: Iterator[Item], turn: int) -> Iterator[Item]:
        for taken, item in enumerate(items, 1):
            if self._turn == turn:
                self._latest = self._position(taken)
                if taken == self._count:  # with the last item: who takes just so many never asks for the end
                    self.next, self._is_under_way = self._latest, False
                    self._broken_at.clear()
            yield item

    def _position(self, taken: int) -> SamplerPosition:
        begun = self._begun
        if taken == self._count:
            return SamplerPosition(begun.epoch + 1, 0, 0)
        return begun._replace(given=begun.given + taken * self._each)

    def after(self, taken: int | None) -> SamplerPosition:
        """Return where the latest pass stands after `taken` items, or after all that it has given out.

        Raises:
            ValueError: If it has fewer items.
        """
        if taken is None:
            return self._latest
        if not 0 <= taken <= self._count:
            raise ValueError(f"`taken` must be in [0, {self._count}], the items of the latest pass; got {taken}")
        return self._position(taken) if taken else self._begun
