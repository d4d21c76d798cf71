"""Progress: where the next pass begins, and how far the latest one has come. For the loader and for samplers.

The epoch advances with the last item of a pass; a pass that is broken off begins again; `set_epoch`, and a state that is loaded,
count from the next `iter()`. A DataLoader with workers takes items ahead of the training loop, so what was handed out is not
always what was trained on: `after` takes what the loop has counted itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

Item = TypeVar("Item")
_HABIT = 3  # passes in a row that end at the same step


class Position(NamedTuple):
    """A place in an epoch.

    Attributes:
        epoch: The epoch, >= 0.
        step: What was handed out before in this epoch: steps, or samples where a sampler gives single ones.
        lanes: Lanes the epoch was planned with; 0 means those of now.
        world_size: Ranks the epoch was planned with; 0 means those of now.
    """

    epoch: int
    step: int = 0
    lanes: int = 0
    world_size: int = 0


class Progress:
    """The position at which the next pass begins, and how far the latest one has come."""

    def __init__(self, *, unit: str, fix: str) -> None:
        """Stand at the beginning of epoch 0.

        Args:
            unit: What is counted, for the warning about passes that are broken off: "step" or "item".
            fix: What to do about these.
        """
        self._unit, self._fix, self._has_warned = unit, fix, False
        self.next = self.latest = self._begun = Position(0)
        self.is_under_way = False  # whether a pass has begun that is not complete
        self._count, self._each = 0, 1
        self.turn = 0  # passes begun and positions set: an older pass must not move the position any more
        self._broken_off: list[int] = []  # steps at which the latest passes were broken off, since one was complete

    @property
    def is_new(self) -> bool:
        """Whether no pass was begun, and no position set."""
        return not self.turn

    def set_next(self, position: Position) -> None:
        """Begin the next pass at a position."""
        self.next = self.latest = self._begun = position
        self.is_under_way = False
        self._count = 0
        self.turn += 1

    def set_epoch(self, epoch: int) -> None:
        """Begin the next pass at the start of an epoch; if a state was just loaded, in the middle of it.

        Raises:
            ValueError: If it is negative.
        """
        checked_epoch(epoch)
        if not (self.next.step and self.next.epoch == epoch and not self.is_under_way):
            self.set_next(Position(epoch))

    def counted(self, items: Iterator[Item], count: int, *, each: int = 1) -> Iterator[Item]:
        """Return a pass over items from the next position on; the epoch ends after `count` of them, of `each` so many steps."""
        self._note_broken_off()
        self.latest = self._begun = self.next
        self.is_under_way, self._count, self._each = True, count, each
        self.turn += 1
        return self._pass(items, self.turn)

    def _note_broken_off(self) -> None:
        """Warn once where passes end early as a habit: the rest of the data would never be seen."""
        if not self.is_under_way or self.latest == self._begun:
            return
        step = self.latest.step // self._each
        self._broken_off = [*self._broken_off, step][-_HABIT:]
        if not self._has_warned and self._broken_off == [step] * _HABIT:
            self._has_warned = True
            total = self._begun.step // self._each + self._count
            warnings.warn(
                f"the last passes were all broken off at {self._unit} {step} of {total}, and each begins the same epoch again; "
                f"{self._fix}",
                stacklevel=4,
            )

    def _pass(self, items: Iterator[Item], turn: int) -> Iterator[Item]:
        for taken, item in enumerate(items, 1):
            if self.turn == turn:
                self.latest = self._after(taken)
                if taken == self._count:  # with the last item: who takes exactly that many never asks for the end
                    self.next, self.is_under_way = self.latest, False
                    self._broken_off.clear()
            yield item

    def _after(self, taken: int) -> Position:
        if taken == self._count:
            return Position(self._begun.epoch + 1)
        return self._begun._replace(step=self._begun.step + taken * self._each)

    def after(self, taken: int | None) -> Position:
        """Return where the latest pass stands after `taken` items, or after all that it has handed out.

        Raises:
            ValueError: If it has fewer items.
        """
        if taken is None:
            return self.latest
        if not 0 <= taken <= self._count:
            raise ValueError(f"`taken` must be in [0, {self._count}], the items of the latest pass; got {taken}")
        return self._after(taken) if taken else self._begun


def checked_epoch(epoch: int) -> int:
    """Return an epoch.

    Raises:
        ValueError: If it is negative.
    """
    if epoch < 0:
        raise ValueError(f"`epoch` must be >= 0; got {epoch}")
    return epoch
