"""How does the work of `index` look on a terminal, and in JSON: what it did, and what it would do?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from equitar.cli_words import table
from equitar.estimates import dry_run
from equitar.executors import num_cores
from equitar.holes import listed_some
from equitar.indexing import IndexReport
from equitar.sources import Source


def report_shown(report: IndexReport, *, as_json: bool) -> str:
    """Return what indexing did, as tables or as JSON."""
    if as_json:
        return json.dumps({"sources": [asdict(one) for one in report.sources]}, indent=2)
    rows = [("source", "written", "up to date", "samples", "MB")]
    rows += [
        (one.name, f"{one.written:,}", f"{one.skipped:,}", f"{one.samples:,}", f"{one.bytes / 1e6:,.1f}")
        for one in report.sources
    ]
    lines = [table(rows)]
    for one in report.sources:
        told = {"changed": one.changed, "gone": one.gone, "missing, left out": one.missing}
        if len(one.added) < one.written + one.skipped:  # else it is all new
            told = {"added": one.added, **told}
        lines += [f"{one.name}: {len(paths):,} {what}: {listed_some(paths)}" for what, paths in told.items() if paths]
        if one.holes:
            lines.append(f"{one.name}: its numbers jump over {len(one.holes):,}: {listed_some(one.holes)}")
        if one.swept:
            lines.append(f"{one.name}: {len(one.swept):,} left by killed writes, removed: {listed_some(one.swept)}")
        lines += [f"{one.name}: {note}" for note in one.notes]
    return "\n".join(lines)


def estimates_shown(
    sources: Sequence[Source], labels: str | None, jobs: int | None, *, force: bool, as_json: bool
) -> str:
    """Return what indexing would cost, as tables or as JSON."""
    found = dry_run(sources, labels=labels, jobs=jobs or num_cores(), force=force)
    if as_json:
        return json.dumps({"sources": [asdict(one) for one in found]}, indent=2)
    rows = [("source", "shards", "to read", "walked", "samples", "MB")]
    rows += [
        (
            one.name,
            f"{one.shards:,}",
            f"{one.to_read:,}",
            f"{one.walked:,}",
            f"{one.samples:,}",
            f"{one.bytes / 1e6:,.1f}",
        )
        for one in found
    ]
    ways = [("way of reading", "requests", "MB read", f"time, {found[0].jobs} processes")]
    ways += [
        (f"{one.name}: {way.how}", f"{way.requests:,}", f"{way.bytes / 1e6:,.1f}", _time(way.seconds))
        for one in found
        for way in one.ways
    ]
    told = "nothing was written; samples, MB and times are reckoned from the shards walked"
    return "\n\n".join([table(rows), table(ways) if len(ways) > 1 else "nothing is to be read", told])


def _time(seconds: float) -> str:
    """Return a time as one would say it.

    >>> _time(0.05), _time(75), _time(7380)
    ('0.1 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
