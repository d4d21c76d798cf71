"""What follows from a benchmark, in words? A few rules over its numbers.

How does a benchmark look on a terminal, and in JSON?
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from equitar.benchmarking.result import KINDS, Bench, Group, PartTime, ShardTime, SourceTime, Speed
from equitar.text import counted, table

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
    said = [_of_parts(found.sources, is_remote=found.is_remote)]
    if found.busy is not None and found.receiving is not None:
        said.append(_of_workers(found, found.busy, found.receiving))
    said += _of_disk(found) + _of_sources(found.sources) + _of_shards(found.shards) + _of_gain(found)
    return said


def overall(sources: Sequence[SourceTime]) -> dict[str, float]:
    """Return the seconds that a sample costs in each part, over all sources, the largest first."""
    total, seconds = sum(source.samples for source in sources), defaultdict[str, float](float)
    for source in sources:
        for part in source.parts:
            seconds[name_of_part(part)] += part.seconds * source.samples / total
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def _of_parts(sources: Sequence[SourceTime], *, is_remote: bool) -> str:
    seconds = overall(sources)
    total = sum(seconds.values())
    (first, most), *others = seconds.items()
    said = (
        f"In one process {first} takes {_percent(most / total)} of the time of a sample ({_ms(most)} of {_ms(total)})"
    )
    reading = seconds.get("reading", 0.0) + seconds.get("opening shards", 0.0)
    if first != "reading" and reading / total <= _LITTLE:
        return f"{said}; reading does not matter ({_percent(reading / total)})."
    if is_remote and first == "reading":
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
    if found.is_remote or cold < _SLOW * warm or cold - warm < max(_LITTLE * total, _NOTICEABLE):
        return []
    times = f"{cold / warm:.1f} times as long as from memory"
    return [
        f"From disk, the first time, reading takes {_ms(cold)} a sample, {times}; the other numbers are from memory."
    ]


def _reading(sources: Sequence[SourceTime], *, is_first: bool) -> float:
    total = sum(source.samples for source in sources)
    return sum(
        (part.first if is_first else part.seconds) * source.samples / total
        for source in sources
        for part in source.parts
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
    for source in sorted({shard.source for shard in shards}):
        own = [shard for shard in shards if shard.source == source]
        half = statistics.median(shard.seconds / shard.samples for shard in own)
        slow = [shard for shard in own if shard.seconds / shard.samples >= max(_SLOW * half, half + _NOTICEABLE)]
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
    ours = [speed for speed in found.speeds if speed.group == group and not speed.is_plain]
    return ours[-1] if ours else None


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _percent(share: float) -> str:
    return f"{share:.0%}"


_LISTED = 5  # shards
_MUCH = 1.5  # a first round that is so many times slower is shown


def bench_json(found: Bench) -> dict[str, Any]:
    """Return a benchmark as what JSON can hold, with the median of each speed and what follows from it."""
    told = asdict(found)
    for one, speed in zip(told["speeds"], found.speeds, strict=True):
        one["median"] = speed.median
    return {**told, "conclusions": conclusions(found)}


def bench_text(found: Bench) -> str:
    """Return a benchmark as tables, and in words."""
    rounds = len(found.speeds[0].rounds) if found.speeds else 0
    head = (
        f"{found.samples:,} samples each, {rounds} rounds in turn"
        if rounds > 1
        else f"{found.samples:,} samples each, once"
    )
    return "\n\n".join([head, _speeds(found), _sources(found), _shards(found.shards), "\n".join(conclusions(found))])


def _title(group: Group, found: Bench) -> str:
    unit = "single samples" if found.batch_size == 1 else f"batches of {found.batch_size}"
    titles = {
        "read": "reading, one process",
        "batches": f"{unit}, one process",
        "workers": f"{unit}, {counted(found.num_workers, 'worker')}",
    }
    return titles[group]


def _speeds(found: Bench) -> str:
    with_first = not found.is_remote and any(
        speed.first is not None and speed.median > _MUCH * speed.first for speed in found.speeds
    )
    header = ["", "samples/s", "best", "MB/s", *(["first time"] if with_first else []), "x webdataset"]
    rows = [header]
    group = None
    for speed in found.speeds:
        if speed.group != group:
            group = speed.group
            rows.append([_title(group, found), *[""] * (len(header) - 1)])
        rows.append(_speed(speed, with_first=with_first))
    notes = [table(rows)]
    if with_first:
        notes.append("first time: with the shards out of the page cache; all else is from memory")
    if found.is_remote:
        notes.append("shards are remote: reading one by one waits for each answer; batches are read ahead of")
    if found.refused is not None:
        notes.append(f"webdataset cannot read these shards: {found.refused}")
    return "\n".join(notes)


def _speed(one: Speed, *, with_first: bool) -> list[str]:
    first = ["-" if one.first is None else f"{one.first:,.0f}"] if with_first else []
    ratio = "-" if one.ratio is None else f"{one.ratio:.2f}"
    speed = f"{one.median * one.bytes / 1e6:,.1f}"
    return [f"  {one.name}", f"{one.median:,.0f}", f"{max(one.rounds):,.0f}", speed, *first, ratio]


def _label(part: PartTime) -> str:
    return part.name or part.kind


def _sources(found: Bench) -> str:
    labels = ((part.kind, _label(part)) for source in found.sources for part in reversed(source.parts))
    # From the last on: a source's own stages come before those that all share.
    parts = list(dict.fromkeys(labels))[::-1]
    parts.sort(key=lambda part: KINDS.index(part[0]))
    with_first = any(_is_slower_first(part) for source in found.sources for part in source.parts)
    rows = [
        ["ms a sample", "samples", "MB", *(["read first"] if with_first else []), *(label for _, label in parts), "all"]
    ]
    if found.num_workers:
        rows[0].append("wait")
    rows += [_source(source, parts, with_first=with_first) for source in found.sources]
    notes = [table(rows)]
    if found.in_blocks:
        notes.append("timed one by one; with no stages, batches are read in blocks, which is faster")
    if found.num_workers:
        notes.append(f"wait: of the main process, with {counted(found.num_workers, 'worker')}")
    if found.missed:
        notes.append(f"not in these samples: {', '.join(found.missed)}; ask for more `--samples` and `--seconds`")
    return "\n".join(notes)


def _is_slower_first(part: PartTime) -> bool:
    return part.kind == "read" and part.first > _MUCH * part.seconds


def _source(one: SourceTime, parts: Sequence[tuple[str, str]], *, with_first: bool) -> list[str]:
    of = {(part.kind, _label(part)): part for part in one.parts}
    first = [_ms_cell(of["read", "read"].first)] if with_first else []
    cells = [_ms_cell(of[part].seconds) if part in of else "-" for part in parts]
    waited = [] if one.waited is None else [_ms_cell(one.waited)]
    return [one.name, f"{one.samples:,}", f"{one.bytes / 1e6:,.1f}", *first, *cells, _ms_cell(one.seconds), *waited]


def _shards(shards: Sequence[ShardTime]) -> str:
    rows = [["slowest shards, first time", "samples", "MB/s", "ms a sample"]]
    rows += [
        [
            f"{one.source}: {one.path}",
            f"{one.samples:,}",
            f"{one.bytes / 1e6 / max(one.seconds, 1e-9):,.1f}",
            _ms_cell(one.seconds / one.samples),
        ]
        for one in shards[:_LISTED]
    ]
    more = f"and {len(shards) - _LISTED:,} more" if len(shards) > _LISTED else ""
    return "\n".join([table(rows), *([more] if more else [])])


def _ms_cell(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}" if seconds < 0.01 else f"{seconds * 1e3:.1f}"
