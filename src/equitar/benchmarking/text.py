"""Text and JSON of a benchmark: tables, and conclusions from a few rules over the numbers."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from equitar.benchmarking.result import KINDS, Bench, Group, PartTime, ShardTime, SourceTime, Speed
from equitar.text import counted, megabytes, table

_LITTLE = 0.05  # a share of the time that does not matter
_BUSY = 0.7  # from this share of the time on, in which the main process computes, more workers do not help
_FASTER = 1.1  # times as fast: less may be noise
_MUCH_TO_RECEIVE = 0.2  # of the time that making a sample takes
_SLOW = 3.0  # times as long as others
_NOTICEABLE = 0.0005  # seconds for a sample, below which a difference is noise or harmless
_NAMES = {
    "open": "opening shards",
    "read": "reading",
    "collate": "collating",
    "rest": "planning and emitting",
}


def name_of_part(part: PartTime) -> str:
    """Return the name of a part in a sentence."""
    return _NAMES.get(part.kind) or f"`{part.name}`"


def conclusions(bench: Bench) -> list[str]:
    """Return conclusions, a sentence or two each: what takes the time, whether workers help, what is gained, what is slow."""
    sentences = [_of_parts(bench.sources, is_remote=bench.is_remote)]
    if bench.busy is not None and bench.receiving is not None:
        sentences.append(_of_workers(bench, bench.busy, bench.receiving))
    sentences += _of_disk(bench) + _of_sources(bench.sources) + _of_shards(bench.shards) + _of_gain(bench)
    return sentences


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
    share = (
        f"In one process {first} takes {_percent(most / total)} of the time of a sample ({_ms(most)} of {_ms(total)})"
    )
    reading = seconds.get("reading", 0.0) + seconds.get("opening shards", 0.0)
    if first != "reading" and reading / total <= _LITTLE:
        return f"{share}; reading does not matter ({_percent(reading / total)})."
    if is_remote and first == "reading":
        return f"{share}, as each read waits for its answer there; batches are prefetched, so look at the first table."
    return f"{share}, {others[0][0]} {_percent(others[0][1] / total)}." if others else f"{share}."


def _of_workers(bench: Bench, busy: float, receiving: float) -> str:
    single, many = ours_in(bench, "batches"), ours_in(bench, "workers")
    workers = counted(bench.num_workers, "worker")
    if single is None or many is None:
        return f"With {workers} the main process waits {_percent(1 - busy)} of the time."
    if single.median > _FASTER * many.median:
        return _of_one_process(bench, single.median / many.median, receiving * single.median)
    if busy >= _BUSY:
        return (
            f"Transfer from workers is the limit: the main process spends {_percent(busy)} of the time receiving; more "
            "workers do not help."
        )
    limit = f"Workers set the limit: with {workers} the main process waits {_percent(1 - busy)} of the time"
    useful = math.ceil(1 / single.median / receiving)  # so many are as fast as the main process receives
    useful = round(useful, 1 - int(math.log10(useful)))  # an estimate: one digit is enough
    if useful <= bench.num_workers:
        return f"{limit}, and receives about as fast as they send; more hardly help."
    if bench.cores <= bench.num_workers:
        return f"{limit}; more help, up to about {useful}, on a machine with more cores than the {bench.cores} here."
    return f"{limit}; more help, up to about {min(useful, bench.cores)}."


def _of_one_process(bench: Bench, times: float, share: float) -> str:
    """Return why one process may be faster than workers; `share` is the time to receive a sample over that to make it."""
    faster = f"One process alone is {times:.1f} times as fast as {counted(bench.num_workers, 'worker')}"
    if share >= _MUCH_TO_RECEIVE:
        return f"{faster}: the cost is passing batches on; workers help only while the training loop itself computes."
    return f"{faster}, although a batch is quickly received: they do not get the cores they need (this machine has {bench.cores})."


def _of_disk(bench: Bench) -> list[str]:
    """Return whether the first round, with an empty page cache, is slow."""
    warm, cold = (_reading(bench.sources, is_first=is_first) for is_first in (False, True))
    total = sum(overall(bench.sources).values())
    if bench.is_remote or cold < _SLOW * warm or cold - warm < max(_LITTLE * total, _NOTICEABLE):
        return []
    times = f"{cold / warm:.1f} times as long as from memory"
    return [
        f"From disk, in the first round, reading takes {_ms(cold)} a sample, {times}; the other numbers are from memory."
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
    """Return which source costs much more than the others."""
    ordered = sorted(sources, key=lambda source: source.seconds)
    if len(ordered) < 2 or ordered[-1].seconds < _SLOW * ordered[-2].seconds:
        return []
    slow, next_one = ordered[-1], ordered[-2]
    times = f"{slow.seconds / next_one.seconds:.1f} times as long as one of {next_one.name}"
    return [f"A sample of {slow.name} takes {times} ({_ms(slow.seconds)})."]


def _of_shards(shards: Sequence[ShardTime]) -> list[str]:
    """Return which shards are much slower than most of their source."""
    sentences = []
    for source in sorted({shard.source for shard in shards}):
        own = [shard for shard in shards if shard.source == source]
        half = statistics.median(shard.seconds / shard.samples for shard in own)
        slow = [shard for shard in own if shard.seconds / shard.samples >= max(_SLOW * half, half + _NOTICEABLE)]
        if len(own) > 2 and slow:
            worst = slow[0].seconds / slow[0].samples
            more = f" (and {len(slow) - 1} more)" if len(slow) > 1 else ""
            sentences.append(
                f"Shard {slow[0].path} of {source}{more} takes {_ms(worst)} to read a sample, half of the {len(own)} shards at "
                f"most {_ms(half)}: look at its disk or server."
            )
    return sentences


def _of_gain(bench: Bench) -> list[str]:
    """Return how fast it is beside webdataset, in the way it would be used for training."""
    ours = ours_in(bench, "workers") or ours_in(bench, "batches")
    if ours is None or ours.ratio is None:
        return []
    where = f"through {counted(bench.num_workers, 'worker')}" if ours.group == "workers" else "in one process"
    return [f"Beside plain webdataset with the same stages: {ours.ratio:.2g} times as many samples a second {where}."]


def ours_in(bench: Bench, group: Group) -> Speed | None:
    """Return the speed of equitar in a group, with a default Loader; None if it did not run."""
    ours = [speed for speed in bench.speeds if speed.group == group and not speed.is_plain]
    return ours[-1] if ours else None


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _percent(share: float) -> str:
    return f"{share:.0%}"


_LISTED = 5  # shards
_MUCH = 1.5  # a first round that is so many times slower gets a column


def bench_json(bench: Bench) -> dict[str, Any]:
    """Return a benchmark as JSON types, with the median of each speed and the conclusions."""
    result = asdict(bench)
    for fields, speed in zip(result["speeds"], bench.speeds, strict=True):
        fields["median"] = speed.median
    return {**result, "conclusions": conclusions(bench)}


def bench_text(bench: Bench) -> str:
    """Return a benchmark as tables, with the conclusions."""
    rounds = len(bench.speeds[0].rounds) if bench.speeds else 0
    head = (
        f"{bench.samples:,} samples each, {rounds} rounds in turn"
        if rounds > 1
        else f"{bench.samples:,} samples each, once"
    )
    return "\n\n".join([head, _speeds(bench), _sources(bench), _shards(bench.shards), "\n".join(conclusions(bench))])


def _title(group: Group, bench: Bench) -> str:
    unit = "single samples" if bench.batch_size == 1 else f"batches of {bench.batch_size}"
    titles = {
        "read": "reading, one process",
        "batches": f"{unit}, one process",
        "workers": f"{unit}, {counted(bench.num_workers, 'worker')}",
    }
    return titles[group]


def _speeds(bench: Bench) -> str:
    with_first = not bench.is_remote and any(
        speed.first is not None and speed.median > _MUCH * speed.first for speed in bench.speeds
    )
    header = ["", "samples/s", "best", "MB/s", *(["first round"] if with_first else []), "x webdataset"]
    rows = [header]
    group = None
    for speed in bench.speeds:
        if speed.group != group:
            group = speed.group
            rows.append([_title(group, bench), *[""] * (len(header) - 1)])
        rows.append(_speed(speed, with_first=with_first))
    notes = [table(rows)]
    if with_first:
        notes.append("first round: with the shards out of the page cache; everything else is from memory")
    if bench.is_remote:
        notes.append("shards are remote: reading sample by sample waits for each answer; batches are prefetched")
    if bench.refused is not None:
        notes.append(f"webdataset cannot read these shards: {bench.refused}")
    return "\n".join(notes)


def _speed(speed: Speed, *, with_first: bool) -> list[str]:
    first = ["-" if speed.first is None else f"{speed.first:,.0f}"] if with_first else []
    rate = megabytes(speed.median * speed.bytes)
    ratio = "-" if speed.ratio is None else f"{speed.ratio:.2f}"
    return [f"  {speed.name}", f"{speed.median:,.0f}", f"{max(speed.rounds):,.0f}", rate, *first, ratio]


def _label(part: PartTime) -> str:
    return part.name or part.kind


def _sources(bench: Bench) -> str:
    labels = ((part.kind, _label(part)) for source in bench.sources for part in reversed(source.parts))
    # Backwards: a source's own stages are before those that all share.
    parts = list(dict.fromkeys(labels))[::-1]
    parts.sort(key=lambda part: KINDS.index(part[0]))
    with_first = any(_is_slower_first(part) for source in bench.sources for part in source.parts)
    rows = [
        ["ms a sample", "samples", "MB", *(["read first"] if with_first else []), *(label for _, label in parts), "all"]
    ]
    if bench.num_workers:
        rows[0].append("wait")
    rows += [_source(source, parts, with_first=with_first) for source in bench.sources]
    notes = [table(rows)]
    if bench.in_blocks:
        notes.append("timed sample by sample; without stages, batches are read in blocks, which is faster")
    if bench.num_workers:
        notes.append(f"wait: of the main process, with {counted(bench.num_workers, 'worker')}")
    if bench.missed:
        notes.append(f"not in these samples: {', '.join(bench.missed)}; use more `--samples` and `--seconds`")
    return "\n".join(notes)


def _is_slower_first(part: PartTime) -> bool:
    return part.kind == "read" and part.first > _MUCH * part.seconds


def _source(source: SourceTime, parts: Sequence[tuple[str, str]], *, with_first: bool) -> list[str]:
    part_of = {(part.kind, _label(part)): part for part in source.parts}
    first = [_ms_cell(part_of["read", "read"].first)] if with_first else []
    cells = [_ms_cell(part_of[part].seconds) if part in part_of else "-" for part in parts]
    waited = [] if source.waited is None else [_ms_cell(source.waited)]
    numbers = [f"{source.samples:,}", megabytes(source.bytes)]
    return [source.name, *numbers, *first, *cells, _ms_cell(source.seconds), *waited]


def _shards(shards: Sequence[ShardTime]) -> str:
    rows = [["slowest shards, first round", "samples", "MB/s", "ms a sample"]]
    rows += [
        [
            f"{shard.source}: {shard.path}",
            f"{shard.samples:,}",
            megabytes(shard.bytes / max(shard.seconds, 1e-9)),
            _ms_cell(shard.seconds / shard.samples),
        ]
        for shard in shards[:_LISTED]
    ]
    more = f"and {len(shards) - _LISTED:,} more" if len(shards) > _LISTED else ""
    return "\n".join([table(rows), *([more] if more else [])])


def _ms_cell(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}" if seconds < 0.01 else f"{seconds * 1e3:.1f}"
