"""What follows from a benchmark, in words? A few rules over its numbers."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

from equitar.bench_result import Bench, Group, PartTime, ShardTime, SourceTime, Speed

_LITTLE = 0.05  # a share of the time that does not matter
_BUSY = 0.7  # a share of the time in which the main process computes, from which on more workers do not help
_FASTER = 1.1  # times as fast: less may be noise
_MUCH_TO_RECEIVE = 0.2  # of the time that making a sample takes
_SLOW = 3.0  # times as long as others
_NOTICEABLE = 0.0005  # seconds for a sample, below which a difference is noise, or no harm

_NAMES = {
    "open": "opening shards",
    "read": "reading",
    "collate": "collating",
    "rest": "planning and handing on",
}


def name_of_part(part: PartTime) -> str:
    """Return what a part is called in a sentence."""
    return _NAMES.get(part.kind) or f"`{part.name}`"


def conclusions(found: Bench) -> list[str]:
    """Return what follows, a sentence or two each: what takes the time, whether workers help, what is gained, what is slow."""
    said = [_of_parts(found.sources, is_far=found.is_far)]
    if found.busy is not None and found.receiving is not None:
        said.append(_of_workers(found, found.busy, found.receiving))
    said += _of_disk(found) + _of_sources(found.sources) + _of_shards(found.shards) + _of_gain(found)
    return said


def overall(sources: Sequence[SourceTime]) -> dict[str, float]:
    """Return the seconds that a sample costs in each part, over all sources, the largest first."""
    total, seconds = sum(one.samples for one in sources), defaultdict[str, float](float)
    for one in sources:
        for part in one.parts:
            seconds[name_of_part(part)] += part.seconds * one.samples / total
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def _of_parts(sources: Sequence[SourceTime], *, is_far: bool) -> str:
    seconds = overall(sources)
    total = sum(seconds.values())
    (first, most), *others = seconds.items()
    said = (
        f"In one process {first} takes {_percent(most / total)} of the time of a sample ({_ms(most)} of {_ms(total)})"
    )
    reading = seconds.get("reading", 0.0) + seconds.get("opening shards", 0.0)
    if first != "reading" and reading / total <= _LITTLE:
        return f"{said}; reading does not matter ({_percent(reading / total)})."
    if is_far and first == "reading":
        return (
            f"{said}, as each read waits for its answer there; batches are read ahead of, so look at the first table."
        )
    return f"{said}, {others[0][0]} {_percent(others[0][1] / total)}." if others else f"{said}."


def _of_workers(found: Bench, busy: float, receiving: float) -> str:
    one, many = ours_in(found, "batches"), ours_in(found, "workers")
    workers = counted(found.num_workers, "worker")
    if one is None or many is None:
        return f"With {workers} the main process waits {_percent(1 - busy)} of the time."
    if one.median > _FASTER * many.median:
        return _of_one_process(found, one.median / many.median, receiving * one.median)
    if busy >= _BUSY:
        return (
            f"The way from workers is the limit: the main process spends {_percent(busy)} of the time on receiving; more "
            "workers do not help."
        )
    said = f"Workers set the limit: with {workers} the main process waits {_percent(1 - busy)} of the time"
    useful = math.ceil(1 / one.median / receiving)  # so many are as fast as the main process receives
    useful = round(useful, 1 - int(math.log10(useful)))  # no more digits than it is worth
    if useful <= found.num_workers:
        return f"{said}, and receives about as fast as they send; more hardly help."
    if found.cores <= found.num_workers:
        return f"{said}; more help, up to about {useful}, where there are more cores than the {found.cores} here."
    return f"{said}; more help, up to about {min(useful, found.cores)}."


def _of_one_process(found: Bench, times: float, share: float) -> str:
    """Return why one process may be faster than workers; the share is that of receiving a sample in making one."""
    said = f"One process alone is {times:.1f} times as fast as {counted(found.num_workers, 'worker')}"
    if share >= _MUCH_TO_RECEIVE:
        return f"{said}: passing batches on is what costs; workers help only while the training loop itself computes."
    return (
        f"{said}, although a batch is quickly received: they do not get the cores they need (here are {found.cores})."
    )


def _of_disk(found: Bench) -> list[str]:
    """Return whether the first time, when the page cache is empty, is slow."""
    warm, cold = (_reading(found.sources, is_first=is_first) for is_first in (False, True))
    total = sum(overall(found.sources).values())
    if found.is_far or cold < _SLOW * warm or cold - warm < max(_LITTLE * total, _NOTICEABLE):
        return []
    times = f"{cold / warm:.1f} times as long as from memory"
    return [
        f"From disk, the first time, reading takes {_ms(cold)} a sample, {times}; the other numbers are from memory."
    ]


def _reading(sources: Sequence[SourceTime], *, is_first: bool) -> float:
    total = sum(one.samples for one in sources)
    return sum(
        (part.first if is_first else part.seconds) * one.samples / total
        for one in sources
        for part in one.parts
        if part.kind == "read"
    )


def _of_sources(sources: Sequence[SourceTime]) -> list[str]:
    """Return which source costs much more than the others do."""
    ordered = sorted(sources, key=lambda one: one.seconds)
    if len(ordered) < 2 or ordered[-1].seconds < _SLOW * ordered[-2].seconds:
        return []
    slow, next_one = ordered[-1], ordered[-2]
    times = f"{slow.seconds / next_one.seconds:.1f} times as long as one of {next_one.name}"
    return [f"A sample of {slow.name} takes {times} ({_ms(slow.seconds)})."]


def _of_shards(shards: Sequence[ShardTime]) -> list[str]:
    """Return which shards are much slower than most of their source."""
    said = []
    for source in sorted({one.source for one in shards}):
        own = [one for one in shards if one.source == source]
        half = statistics.median(one.seconds / one.samples for one in own)
        slow = [one for one in own if one.seconds / one.samples >= max(_SLOW * half, half + _NOTICEABLE)]
        if len(own) > 2 and slow:
            worst = slow[0].seconds / slow[0].samples
            more = f" (and {len(slow) - 1} more)" if len(slow) > 1 else ""
            said.append(
                f"Shard {slow[0].path} of {source}{more} takes {_ms(worst)} to read a sample, half of the {len(own)} shards at "
                f"most {_ms(half)}: look at its disk or server."
            )
    return said


def _of_gain(found: Bench) -> list[str]:
    """Return how fast it is beside webdataset, as it would be trained with."""
    ours = ours_in(found, "workers") or ours_in(found, "batches")
    if ours is None or ours.ratio is None:
        return []
    where = f"through {counted(found.num_workers, 'worker')}" if ours.group == "workers" else "in one process"
    return [f"Beside plain webdataset with the same stages: {ours.ratio:.2g} times as many samples a second {where}."]


def ours_in(found: Bench, group: Group) -> Speed | None:
    """Return the speed of ours in a group, of the Loader as it is by default; None if it did not run."""
    ours = [one for one in found.speeds if one.group == group and not one.is_plain]
    return ours[-1] if ours else None


def counted(number: int, what: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "worker"), counted(2000, "round")
    ('1 worker', '2,000 rounds')
    """
    return f"{number:,} {what}" + "s" * (number != 1)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _percent(share: float) -> str:
    return f"{share:.0%}"
