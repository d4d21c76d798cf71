"""Which part of which pass is an epoch? Epochs go on along an endless row of passes.

A source that is asked for less than a pass an epoch continues where the last epoch stopped, so that every sample comes once
a pass. Where an epoch crosses into the next pass it is cut into *segments*: within a segment every source stays in one pass,
so a sample cannot meet its own next pass in a batch. A segment has no steps or at least as many as a sample can have copies,
for only then can the copies be dealt to different batches. So at most that many batches are lost at the end of a pass, and
fewer than twice as many where an epoch is too short to be cut in two, or where mixed sources cross one soon after another.

A source that is asked for a pass or more an epoch starts a pass with each epoch.

A run that goes on with other sources or numbers after an epoch begins its walk in the middle of the row: a `PassStart` says where.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple


_KEPT = 1 << 14  # steps for which what they take is remembered while an epoch is looked for


class PassPosition(NamedTuple):
    """Where a source stands in its row of passes: `at` of the `copies` of a pass are gone through."""

    source: str
    pass_number: int
    at: int
    copies: int


@dataclass(frozen=True, slots=True)
class PassStart:
    """How epochs go along the passes.

    Attributes:
        restart_each_epoch: Whether every epoch starts a pass of each source, whatever is left of the last one.
        epoch: The epoch at whose start the places hold.
        places: Where sources stand then; one that is not named stands at the beginning.
    """

    restart_each_epoch: bool = False
    epoch: int = 0
    places: tuple[PassPosition, ...] = ()

    def begin(self, source: str, copies: int, in_pass: int, unit: int) -> tuple[int, int]:
        """Return pass and copies of it gone through, for a pass that may hold another number of copies now.

        Args:
            source: Name of the source.
            copies: Copies of a pass now.
            in_pass: Those of them that the pass gives.
            unit: Copies of which a whole number must be gone through: rounded up, so that none comes twice.
        """
        for place in self.places:
            if place.source == source:
                at = -(-place.at * copies // max(1, place.copies) // unit) * unit
                return place.pass_number, min(at, in_pass)
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
        epoch: Which epoch, counted from where the walk begins, >= 0.
        num_steps: Steps of every epoch, >= `most`.
        in_pass: Copies that a pass of each source gives, (sources,).
        most: Steps that a segment must have at least.
        taken: Gives the copies taken of each source, (sources,), by the first so many steps of an epoch.
        begin: Pass of each source, and the copies of it gone through, at the start of epoch 0, (sources,).

    >>> ten_a_step = lambda step: [step * 10]
    >>> for segment in segments_of(1, num_steps=3, in_pass=[40], most=1, taken=ten_a_step, begin=[(0, 0)]):
    ...     print(segment.start, segment.num_steps, *segment.parts)
    0 1 Part(pass_number=0, first=30, num_copies=10)
    1 2 Part(pass_number=1, first=0, num_copies=20)
    """
    taken = lru_cache(maxsize=_KEPT)(taken)
    quota = taken(num_steps)
    passes, at = [one for one, _ in begin], [gone for _, gone in begin]
    for source, (each, whole, have) in enumerate(zip(quota, in_pass, at, strict=True)):
        if each >= whole:  # such a source begins a pass with each epoch
            passes[source] += epoch + (have > 0)
    _walk(epoch, passes, at, num_steps=num_steps, in_pass=in_pass, most=most, taken=taken)
    crossings = _crossings(quota, in_pass, at, num_steps=num_steps, most=most, taken=taken)
    return _cut(crossings, passes, at, num_steps=num_steps, in_pass=in_pass, taken=taken)


def _walk(
    epochs: int,
    passes: list[int],
    at: list[int],
    *,
    num_steps: int,
    in_pass: Sequence[int],
    most: int,
    taken: Callable[[int], Sequence[int]],
) -> None:
    """Move passes and places, (sources,) each, on by so many epochs: from each in which some source crosses to the next."""
    quota, now = taken(num_steps), 0
    while True:
        skip = min(epochs - now, _epochs_until_crossing(quota, in_pass, at))
        now += skip
        _move(at, quota, in_pass, skip)
        if now == epochs:
            return
        crossings = _crossings(quota, in_pass, at, num_steps=num_steps, most=most, taken=taken)
        _move(at, quota, in_pass, 1)
        for source, step in crossings.items():
            passes[source] += 1
            at[source] = quota[source] - taken(step)[source]
        now += 1


def _move(at: list[int], quota: Sequence[int], in_pass: Sequence[int], epochs: int) -> None:
    """Move the places of sources that do not begin a pass with each epoch on by so many epochs."""
    for source, (each, whole) in enumerate(zip(quota, in_pass, strict=True)):
        if each < whole:
            at[source] += epochs * each


def _epochs_until_crossing(quota: Sequence[int], in_pass: Sequence[int], at: Sequence[int]) -> int:
    """Return how many whole epochs fit before some source runs out of its pass."""
    fitting = [
        (whole - have) // each for each, whole, have in zip(quota, in_pass, at, strict=True) if 0 < each < whole
    ]  # a source that takes a whole pass or more starts one with every epoch: it never crosses
    return min(fitting, default=1 << 62)


def _crossings(
    quota: Sequence[int],
    in_pass: Sequence[int],
    at: Sequence[int],
    *,
    num_steps: int,
    most: int,
    taken: Callable[[int], Sequence[int]],
) -> dict[int, int]:
    """Return the step of the epoch at which each source that runs out goes into its next pass."""
    supplied = {
        source: _steps_supplied(source, whole - have, num_steps, taken)
        for source, (each, whole, have) in enumerate(zip(quota, in_pass, at, strict=True))
        if each < whole and whole - have < each
    }
    result, last = {}, 0
    for source in sorted(supplied, key=lambda one: (supplied[one], one)):
        step = min(supplied[source], num_steps - most)
        last = step if step - last >= most else last
        result[source] = last
    return result


def _steps_supplied(source: int, left: int, num_steps: int, taken: Callable[[int], Sequence[int]]) -> int:
    """Return the most steps whose copies of a source do not exceed what is left of its pass."""
    low, high = 0, num_steps
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if taken(middle)[source] <= left else (low, middle - 1)
    return low


def _cut(
    crossings: dict[int, int],
    passes: Sequence[int],
    at: Sequence[int],
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
                parts.append(PassPart(passes[source], at[source] + before[source], count))
        result.append(Segment(start, stop - start, tuple(parts)))
    return result
