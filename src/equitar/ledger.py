"""What is known of a source while its shards are indexed? Failures, odd things, and the rows of its summary."""

from __future__ import annotations

import re
from bisect import insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

import numpy as np

from equitar.errors import LabelError, SidecarError
from equitar.mix64 import Int64
from equitar.outside import LabelTable
from equitar.presence import Presence
from equitar.shard_index import Outcome, Shard
from equitar.sidecar import ClassNames
from equitar.sources import Source
from equitar.summary import Summary, write_summary


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """What indexing did for one source.

    Attributes:
        name: The source.
        written: Shards whose sidecars were made.
        skipped: Shards whose sidecars were up to date.
        samples: Samples in all its shards.
        bytes: Length of all its shards.
        notes: What is no error and yet worth a look, counted.
    """

    name: str
    written: int
    skipped: int
    samples: int
    bytes: int
    notes: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Ledger:
    """What is known of a source so far."""

    source: Source
    shards: list[Shard]
    rows: dict[str, Summary] = field(default_factory=dict)
    class_names: dict[ClassNames | None, ClassNames | None] = field(default_factory=dict)  # one object for equal ones
    named_before: set[ClassNames | None] = field(default_factory=set)
    failures: list[tuple[str, BaseException]] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    odd: dict[str, tuple[str, str, int]] = field(default_factory=dict)  # kind of note: first shard, its note, shards
    matched: list[Int64] = field(default_factory=list)
    rules: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def fail(self, where: str, error: BaseException) -> None:
        """Keep an error, in the order of where they were, not of when."""
        insort(self.failures, (where, error), key=itemgetter(0))

    def take(self, shard: Shard, outcome: Outcome) -> None:
        """Keep what a shard gave."""
        names = self.class_names.setdefault(outcome.row.class_names, outcome.row.class_names)
        self.rows[shard.path] = replace(outcome.row, class_names=names)
        if outcome.written:
            self.written.add(shard.path)
        else:
            self.named_before.add(names)
        for note in outcome.notes:
            kind = re.sub(r"[0-9]+|'.*'", "", note)
            where, first, times = self.odd.get(kind, (shard.path, note, 0))
            self.odd[kind] = (*min((where, first), (shard.path, note)), times + 1)
        if outcome.matched is not None:
            self.matched.append(outcome.matched)
            self.rules[outcome.rule] += int(np.count_nonzero(outcome.matched >= 0))

    def close(self, table: LabelTable | None) -> None:
        """Write the summary, and finish the notes; what is wrong with the source as a whole is a failure of it."""
        self.notes += [f"{note} ({times} shards, the first {where})" for where, note, times in self.odd.values()]
        if table is not None:
            self.notes += _notes_on_join(table, np.concatenate(self.matched), self.rules)
        try:
            write_summary(self.source, _joined([self.rows[shard.path] for shard in self.shards]))
        except (SidecarError, OSError) as error:
            self.fail(f"source {self.source.name!r}", error)

    def report(self) -> SourceReport:
        """Return what a user is told."""
        return SourceReport(
            name=self.source.name,
            written=len(self.written),
            skipped=len(self.shards) - len(self.written),
            samples=sum(int(row.num_samples[0]) for row in self.rows.values()),
            bytes=sum(int(row.shard_sizes[0]) for row in self.rows.values()),
            notes=tuple(self.notes),
        )

    def common_names(self) -> ClassNames | None:
        """Return class names that serve all shards, None if labels are ids.

        Those that all older sidecars agree on keep their ids; other names follow, sorted.
        """
        rows = [self.rows[shard.path] for shard in self.shards]
        named = {row.class_names: row.paths[0] for row in reversed(rows) if row.class_names is not None}
        if not named:
            return None
        for row in rows:
            if row.class_names is None and row.label_counts is not None and len(row.label_counts.ids):
                first, where = next((names[1][0], path) for names, path in reversed(named.items()))
                seen = f"{int(row.label_counts.ids[0])} in {row.paths[0]!r} and {first!r} in {where!r}"
                raise LabelError(
                    f"labels must be all ids or all names; got {seen} of {self.source.name!r}; use one kind"
                )
        before = [names for names in self.named_before if names is not None]
        ids, names = before[0] if len(before) == 1 else ((), ())
        new = sorted({name for known in named for name in known[1]} - set(names))
        start = max(ids, default=-1) + 1
        return (*ids, *range(start, start + len(new))), (*names, *new)


def _joined(rows: Sequence[Summary]) -> Summary:
    """Return the summary of all shards from those of one each."""
    bare = [row.paths[0] for row in rows if row.label_counts is None]
    if 0 < len(bare) < len(rows):
        seen = f"{len(bare)} of {len(rows)} shards have no labels, such as {bare[0]!r}, but others have"
        raise SidecarError(f"{seen}; run `equitar index` for all with the same `--labels`")
    other = next((row.paths[0] for row in rows if row.class_names != rows[0].class_names), None)
    if other is not None:
        seen = f"{other!r} has other class names than {rows[0].paths[0]!r}"
        raise SidecarError(f"{seen} but a class needs one id; run `equitar index` for all with the same `--classes`")
    labels = [row.label_counts for row in rows if row.label_counts is not None]
    return Summary(
        paths=tuple(row.paths[0] for row in rows),
        num_samples=np.concatenate([row.num_samples for row in rows]),
        shard_sizes=np.concatenate([row.shard_sizes for row in rows]),
        digests=tuple(row.digests[0] for row in rows),
        label_counts=Presence.joined(labels) if labels else None,
        class_names=rows[0].class_names,
    )


def _notes_on_join(table: LabelTable, matched: Int64, rules: Counter[str]) -> list[str]:
    """Say how samples and the rows of a table met."""
    notes = [f"{count} samples joined to {table.path} by {rule}" for rule, count in rules.items() if count]
    unlabelled = np.count_nonzero(matched < 0)
    if unlabelled:
        notes.append(f"{unlabelled} samples are not in {table.path}, and have no labels")
    unused = np.setdiff1d(np.arange(len(table.keys)), matched)
    if len(unused):
        notes.append(f"{len(unused)} keys of {table.path} are in no shard, such as {table.keys[unused[0]]!r}")
    return notes
