"""What is known of a source while its shards are indexed? Failures, odd things, and the rows of its summary."""

from __future__ import annotations

import re
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

import numpy as np

from equitar.arrays import Int64
from equitar.errors import LabelError, MissingShardError, SidecarError, SourceError
from equitar.indexing.housekeeping import holes, sweep
from equitar.indexing.shard_task import Shard, ShardResult
from equitar.labels.tables import LabelTable
from equitar.sidecars.sidecar import ClassNames
from equitar.sidecars.summary import Summary, joined, newest_summary, shards_of, write_summary
from equitar.sources import Source, StorageOptions, index_command, listed_sources
from equitar.storage.listing import ShardList, sidecar_url
from equitar.text import listed
from equitar.urls import local_path, shown


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
        summary: Digest of its new summary; None if none was written.
        added: Paths of shards that the summary before did not have, sorted; all of them if there was none.
        changed: Paths of shards whose members or labels were others in the summary before.
        gone: Paths of shards that only the summary before had.
        missing: Paths of shards that are named and not there, left out on purpose.
        holes: Paths that are not listed, though the numbers around them are.
        swept: Partial files that were removed: writes killed more than a day ago left them in the folder of the sidecars.
    """

    name: str
    written: int
    skipped: int
    samples: int
    bytes: int
    notes: tuple[str, ...]
    summary: str | None
    added: tuple[str, ...]
    changed: tuple[str, ...]
    gone: tuple[str, ...]
    missing: tuple[str, ...]
    holes: tuple[str, ...]
    swept: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class SourceJob:
    """What is known of a source so far."""

    source: Source
    listed: ShardList
    shards: list[Shard]
    rows: dict[str, Summary] = field(default_factory=dict)
    class_names: dict[ClassNames | None, ClassNames | None] = field(default_factory=dict)  # one object for equal ones
    label_specs: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, BaseException]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    odd: dict[str, tuple[str, str, int]] = field(default_factory=dict)  # kind of note: first shard, its note, shards
    matched: list[Int64] = field(default_factory=list)
    rules: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    before: Summary | None = None
    summary: Summary | None = None

    def fail(self, where: str, error: BaseException) -> None:
        """Keep an error, in the order of where they were, not of when."""
        insort(self.failures, (where, error), key=itemgetter(0))

    def take(self, shard: Shard, outcome: ShardResult) -> None:
        """Keep what a shard gave."""
        names = self.class_names.setdefault(outcome.row.class_names, outcome.row.class_names)
        self.rows[shard.path] = replace(outcome.row, class_names=names)
        self.label_specs[outcome.label_spec] += 1
        if outcome.written:
            self.written.add(shard.path)
        for note in outcome.notes:
            kind = re.sub(r"[0-9]+|'.*'", "", note)
            where, first, times = self.odd.get(kind, (shard.path, note, 0))
            self.odd[kind] = (*min((where, first), (shard.path, note)), times + 1)
        if outcome.matched is not None:
            self.matched.append(outcome.matched)
            self.rules[outcome.rule] += int(np.count_nonzero(outcome.matched >= 0))

    def leave_out_missing(self) -> None:
        """Go on without the shards that are not there; that none is there is a failure."""
        self.missing.sort()
        gone = set(self.missing)
        self.shards = [shard for shard in self.shards if shard.path not in gone]
        if gone and not self.shards:
            self.refuse_missing()

    def refuse_missing(self) -> None:
        """Make one failure of all shards that are not there."""
        if self.missing:
            self.missing.sort()
            seen = (
                f"{len(self.missing)} of {len(self.listed)} shards are missing: {listed(self.missing, 10, quote=True)}"
            )
            mend = "restore them, or go on without them by `--missing-shards skip`"
            if self.source.summary is not None:
                mend = f"they are looked for below {shown(self.listed.root)}; name their folder by `--root`, or {mend}"
            self.fail(f"source {self.source.name!r}", MissingShardError(f"{seen}; {mend}"))

    def note(self, table: LabelTable | None, *, is_part: bool) -> None:
        """Finish the notes, once all shards are done."""
        self.notes += [f"{note} ({times} shards, the first {where})" for where, note, times in self.odd.values()]
        if table is not None and self.matched:
            self.notes += _notes_on_join(table, np.concatenate(self.matched), self.rules, is_part=is_part)

    def close(self) -> None:
        """Write the summary; what is wrong with the source as a whole is a failure of it."""
        try:
            self.summary = joined([self.rows[shard.path] for shard in self.shards], skipped=self.missing)
            write_summary(self.source, self.listed, self.summary)
        except (SidecarError, OSError) as error:
            self.fail(f"source {self.source.name!r}", error)

    def report(self) -> SourceReport:
        """Sweep what killed writes left, and return what a user is told."""
        before = dict(zip(self.before.paths, self.before.digests, strict=True)) if self.before else {}
        now = {path: row.digests[0] for path, row in self.rows.items()}
        return SourceReport(
            name=self.source.name,
            written=len(self.written),
            skipped=len(self.shards) - len(self.written),
            samples=sum(int(row.num_samples[0]) for row in self.rows.values()),
            bytes=sum(int(row.shard_sizes[0]) for row in self.rows.values()),
            notes=tuple(self.notes),
            summary=None if self.summary is None else self.summary.digest,
            added=tuple(sorted(now.keys() - before.keys())),
            changed=tuple(sorted(path for path in now.keys() & before.keys() if now[path] != before[path])),
            gone=tuple(sorted(before.keys() - set(self.listed.paths) | (before.keys() & set(self.missing)))),
            missing=tuple(self.missing),
            holes=tuple(holes(self.listed.paths)),
            swept=tuple(sweep(self.listed)),
        )

    @property
    def mend(self) -> str:
        """The command that indexes what is missing, with the labels that the others have."""
        return index_command(
            self.source, label_spec=max(self.label_specs, key=self.label_specs.__getitem__, default="")
        )

    @property
    def has_open_names(self) -> bool:
        """Whether class names come from the shards alone, each read without knowing the names of others."""
        return not any("\nclasses=" in spec or "\nfrom=" in spec for spec in self.label_specs)

    def common_names(self) -> ClassNames | None:
        """Return class names that serve all shards, None if labels are ids.

        Those of the summary before keep their ids, if a sidecar of then is left; other names follow, sorted. That some were
        read before in this run, or in another that was stopped, makes no difference.
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
        before = self.before.class_names if self.before else None
        is_left = any(row.class_names == before for row in rows if row.paths[0] not in self.written)
        ids, names = before if before and is_left else ((), ())
        new = sorted({name for known in named for name in known[1]} - set(names))
        start = max(ids, default=-1) + 1
        return (*ids, *range(start, start + len(new))), (*names, *new)


def check_policy(missing_shards: str) -> None:
    """Raise ValueError, before anything is read, if this is no policy for shards that are not there."""
    if missing_shards not in ("error", "skip"):
        raise ValueError(f"`missing_shards` must be 'error' or 'skip'; got {missing_shards!r}")


def ledgers_of(sources: Source | Iterable[Source]) -> list[SourceJob]:
    """Return the sources with their shards.

    Raises:
        SourceError: If two shards would have one sidecar, or two sources one name.
    """
    ledgers = []
    owner: dict[str, str] = {}
    for source in listed_sources(sources):
        (listed, _), mend = shards_of(source), index_command(source)
        shards = [
            Shard(
                source=source.name,
                path=path,
                url=url,
                sidecar=sidecar_url(listed, path),
                options=source.storage_options,
                mend=mend,
                retries=source.retries,
            )
            for path, url in zip(listed.paths, listed.urls, strict=True)
        ]
        for shard in shards:
            first = owner.setdefault(shard.sidecar, shard.url)
            if first != shard.url:
                mend = "give each source a folder of its own as `sidecars`"
                raise SourceError(
                    f"{shown(first)} and {shard.where} would share the sidecar {shown(shard.sidecar)}; {mend}"
                )
        ledgers.append(SourceJob(source=source, listed=listed, shards=shards, before=_before(source, listed)))
    return ledgers


def _before(source: Source, listed: ShardList) -> Summary | None:
    """Return the newest summary there is, with all its shards; None if there is none that can be read."""
    try:
        return newest_summary(source, listed)
    except SidecarError:  # missing, of another version, damaged: each is mended by writing it
        return None


def shared_options(ledgers: Sequence[SourceJob], files: Sequence[str]) -> StorageOptions:
    """Return the storage options with which files are read that are given for all sources.

    Raises:
        SourceError: If one of these is remote, and sources have different options.
    """
    options = [ledger.source.storage_options for ledger in ledgers]
    remote = next((one for one in files if local_path(one) is None), None)
    if remote is not None and any(one != options[0] for one in options):
        names = ", ".join(ledger.source.name for ledger in ledgers)
        raise SourceError(
            f"{shown(remote)} is read with the `storage_options` of the sources, which must be the same for {names}; go through them one "
            "by one"
        )
    return options[0] if options else None


def keep_part(ledgers: Sequence[SourceJob], part: int, parts: int) -> None:
    """Leave each ledger the shards of one part: every `parts`-th of all, by name and path, whatever order they came in."""
    if not 0 <= part < parts:
        raise ValueError(f"`part` must be (i, n) with 0 <= i < n; got ({part}, {parts})")
    mine = set(sorted((shard.source, shard.path) for ledger in ledgers for shard in ledger.shards)[part::parts])
    for ledger in ledgers:
        ledger.shards = [shard for shard in ledger.shards if (shard.source, shard.path) in mine]


def _notes_on_join(table: LabelTable, matched: Int64, rules: Counter[str], *, is_part: bool) -> list[str]:
    """Say how samples and the rows of a table met."""
    notes = [f"{count} samples joined to {table.path} by {rule}" for rule, count in rules.items() if count]
    unlabelled = np.count_nonzero(matched < 0)
    if unlabelled:
        notes.append(f"{unlabelled} samples are not in {table.path}, and have no labels")
    unused = np.setdiff1d(np.arange(len(table.keys)), matched)
    if len(unused) and not is_part:
        notes.append(f"{len(unused)} keys of {table.path} are in no shard, such as {table.keys[unused[0]]!r}")
    return notes
