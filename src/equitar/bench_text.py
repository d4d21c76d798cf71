"""How does a benchmark look on a terminal, and in JSON?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from equitar.bench_result import KINDS, Bench, Group, PartTime, ShardTime, SourceTime, Speed
from equitar.bench_words import conclusions, counted
from equitar.cli_words import table

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
    with_first = not found.is_far and any(
        one.first is not None and one.median > _MUCH * one.first for one in found.speeds
    )
    header = ["", "samples/s", "best", "MB/s", *(["first time"] if with_first else []), "x webdataset"]
    rows = [header]
    group = None
    for one in found.speeds:
        if one.group != group:
            group = one.group
            rows.append([_title(group, found), *[""] * (len(header) - 1)])
        rows.append(_speed(one, with_first=with_first))
    notes = [table(rows)]
    if with_first:
        notes.append("first time: with the shards out of the page cache; all else is from memory")
    if found.is_far:
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
    labels = ((part.kind, _label(part)) for one in found.sources for part in reversed(one.parts))
    # From the last on: a source's own stages come before those that all share.
    parts = list(dict.fromkeys(labels))[::-1]
    parts.sort(key=lambda part: KINDS.index(part[0]))
    with_first = any(_is_slower_first(part) for one in found.sources for part in one.parts)
    rows = [
        ["ms a sample", "samples", "MB", *(["read first"] if with_first else []), *(label for _, label in parts), "all"]
    ]
    if found.num_workers:
        rows[0].append("wait")
    rows += [_source(one, parts, with_first=with_first) for one in found.sources]
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
    first = [_ms(of["read", "read"].first)] if with_first else []
    cells = [_ms(of[part].seconds) if part in of else "-" for part in parts]
    waited = [] if one.waited is None else [_ms(one.waited)]
    return [one.name, f"{one.samples:,}", f"{one.bytes / 1e6:,.1f}", *first, *cells, _ms(one.seconds), *waited]


def _shards(shards: Sequence[ShardTime]) -> str:
    rows = [["slowest shards, first time", "samples", "MB/s", "ms a sample"]]
    rows += [
        [
            f"{one.source}: {one.path}",
            f"{one.samples:,}",
            f"{one.bytes / 1e6 / max(one.seconds, 1e-9):,.1f}",
            _ms(one.seconds / one.samples),
        ]
        for one in shards[:_LISTED]
    ]
    more = f"and {len(shards) - _LISTED:,} more" if len(shards) > _LISTED else ""
    return "\n".join([table(rows), *([more] if more else [])])


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}" if seconds < 0.01 else f"{seconds * 1e3:.1f}"
