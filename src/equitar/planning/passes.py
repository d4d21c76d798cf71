"""Passes: which part of which pass of each source is an epoch.

Epochs continue along an endless row of passes: a source that is asked for less than a pass an epoch continues where the last epoch stopped, so that every sample comes once
a pass. Where an epoch crosses into the next pass it is cut into *segments*: within a segment every source stays in one pass,
so a sample cannot meet its own next pass in a batch. A segment has no steps or at least as many as a sample can have copies,
for only then can the copies be dealt to different batches. So at most that many batches are lost at the end of a pass, and
fewer than twice as many where an epoch is too short to be cut in two, or where mixed sources cross one soon after another.

A source that is asked for a pass or more an epoch starts a pass with each epoch.

A run that continues with other sources or numbers after an epoch begins in the middle of the row: a `PassStart` says where.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

_NEAR = 4  # copies by which the share of a source in the first steps of an epoch is off, at most, most of the time
_STEPS_CACHED = 1 << 14  # steps for which the copies they take are cached while an epoch is located


class PassPosition(NamedTuple):
    """Where a source stands in its row of passes: `taken` of the `copies` of a pass are emitted."""

    source: str
    pass_number: int
    taken: int
    copies: int


@dataclass(frozen=True, slots=True)
class PassStart:
    """Where epochs begin along the passes."""

    # Whether every epoch starts a pass of each source, whatever is left of the last one.
    restart_each_epoch: bool = False
    epoch: int = 0  # the epoch at whose start the positions hold
    # Where sources stand then; a source that is not named stands at the beginning.
    positions: tuple[PassPosition, ...] = ()

    def begin(self, source: str, copies: int, in_pass: int, unit: int) -> tuple[int, int]:
        """Return the pass and how many of its copies are taken, for a pass that may hold another number of copies now.

        Args:
            source: Name of the source.
            copies: Copies of a pass now.
            in_pass: Those of them that the pass gives.
            unit: Copies are taken in multiples of this: rounded up, so that none comes twice.
        """
        for position in self.positions:
            if position.source == source:
                taken = -(-position.taken * copies // max(1, position.copies) // unit) * unit
                return position.pass_number, min(taken, in_pass)
        return 0, 0


class PassPart(NamedTuple):
    """What one segment takes of one source: copies [first, first + num_copies) of the line of a pass."""

    pass_number: int
    first: int
    num_copies: int


class Segment(NamedTuple):
    """Consecutive steps within which every source stays in one pass."""

    start: int
    num_steps: int
    parts: tuple[PassPart, ...]


def segments_of(
    epoch: int,
    *,
    num_steps: int,
    in_pass: Sequence[int],
    most: int,
    taken: Callable[[int], Sequence[int]],
    begin: Sequence[tuple[int, int]],
) -> list[Segment]:
    """Return the segments of an epoch.

    Args:
        epoch: Which epoch, counted from the one that `begin` is for, >= 0.
        num_steps: Steps of every epoch, >= `most`.
        in_pass: Copies that a pass of each source gives, (sources,).
        most: Steps that a segment must have at least.
        taken: Gives the copies taken of each source, (sources,), by the first so many steps of an epoch.
        begin: Pass of each source, and the copies taken of it, at the start of epoch 0, (sources,).

    >>> ten_a_step = lambda step: [step * 10]
    >>> for segment in segments_of(1, num_steps=3, in_pass=[40], most=1, taken=ten_a_step, begin=[(0, 0)]):
    ...     print(segment.start, segment.num_steps, *segment.parts)
    0 1 PassPart(pass_number=0, first=30, num_copies=10)
    1 2 PassPart(pass_number=1, first=0, num_copies=20)
    """
    taken = lru_cache(maxsize=_STEPS_CACHED)(taken)
    quota = taken(num_steps)
    passes, gone = [number for number, _ in begin], [copies for _, copies in begin]
    for source, (each, whole, have) in enumerate(zip(quota, in_pass, gone, strict=True)):
        if each >= whole:  # such a source begins a pass with each epoch
            passes[source] += epoch + (have > 0)
    _walk(epoch, passes, gone, num_steps=num_steps, in_pass=in_pass, most=most, taken=taken)
    crossings = _crossings(quota, in_pass, gone, num_steps=num_steps, most=most, taken=taken)
    return _cut(crossings, passes, gone, num_steps=num_steps, in_pass=in_pass, taken=taken)


def _walk(
    epochs: int,
    passes: list[int],
    gone: list[int],
    *,
    num_steps: int,
    in_pass: Sequence[int],
    most: int,
    taken: Callable[[int], Sequence[int]],
) -> None:
    """Advance the passes and the copies gone of them, (sources,) each, by so many epochs, from crossing to crossing."""
    quota, now = taken(num_steps), 0
    while True:
        skip = min(epochs - now, _epochs_until_crossing(quota, in_pass, gone))
        now += skip
        _move(gone, quota, in_pass, skip)
        if now == epochs:
            return
        crossings = _crossings(quota, in_pass, gone, num_steps=num_steps, most=most, taken=taken)
        _move(gone, quota, in_pass, 1)
        for source, step in crossings.items():
            passes[source] += 1
            gone[source] = quota[source] - taken(step)[source]
        now += 1


def _move(gone: list[int], quota: Sequence[int], in_pass: Sequence[int], epochs: int) -> None:
    """Advance the sources that do not begin a pass with each epoch by so many epochs."""
    for source, (each, whole) in enumerate(zip(quota, in_pass, strict=True)):
        if each < whole:
            gone[source] += epochs * each


def _epochs_until_crossing(quota: Sequence[int], in_pass: Sequence[int], gone: Sequence[int]) -> int:
    """Return how many whole epochs fit before some source runs out of its pass."""
    fitting = [
        (whole - have) // each for each, whole, have in zip(quota, in_pass, gone, strict=True) if 0 < each < whole
    ]  # a source that takes a whole pass or more starts one with every epoch: it never crosses
    return min(fitting, default=1 << 62)


def _crossings(
    quota: Sequence[int],
    in_pass: Sequence[int],
    gone: Sequence[int],
    *,
    num_steps: int,
    most: int,
    taken: Callable[[int], Sequence[int]],
) -> dict[int, int]:
    """Return the step of the epoch at which each source that runs out goes into its next pass."""
    supplied = {
        source: _steps_supplied(source, whole - have, num_steps, taken)
        for source, (each, whole, have) in enumerate(zip(quota, in_pass, gone, strict=True))
        if each < whole and whole - have < each
    }
    result, last = {}, 0
    for source in sorted(supplied, key=lambda source: (supplied[source], source)):
        step = min(supplied[source], num_steps - most)
        last = step if step - last >= most else last
        result[source] = last
    return result


def _steps_supplied(source: int, left: int, num_steps: int, taken: Callable[[int], Sequence[int]]) -> int:
    """Return the most steps whose copies of a source do not exceed what is left of its pass."""
    low, high = 0, num_steps
    quota = max(1, taken(num_steps)[source])
    for step in ((left - _NEAR) * num_steps // quota, (left + _NEAR) * num_steps // quota + 1):
        if low < step < high:
            low, high = (step, high) if taken(step)[source] <= left else (low, step - 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if taken(middle)[source] <= left else (low, middle - 1)
    return low


def _cut(
    crossings: dict[int, int],
    passes: Sequence[int],
    gone: Sequence[int],
    *,
    num_steps: int,
    in_pass: Sequence[int],
    taken: Callable[[int], Sequence[int]],
) -> list[Segment]:
    """Cut the epoch where sources cross."""
    edges = sorted({0, num_steps, *crossings.values()})
    result = []
    for start, stop in pairwise(edges):
        before, after = taken(start), taken(stop)
        parts = []
        for source, whole in enumerate(in_pass):
            count = after[source] - before[source]
            if taken(num_steps)[source] >= whole:
                parts.append(PassPart(passes[source], before[source], count))
            elif crossings.get(source, num_steps) <= start:
                parts.append(PassPart(passes[source] + 1, before[source] - taken(crossings[source])[source], count))
            else:
                parts.append(PassPart(passes[source], gone[source] + before[source], count))
        result.append(Segment(start, stop - start, tuple(parts)))
    return result
