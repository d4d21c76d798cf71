"""`SourceJob`: what is known of a source while its shards are indexed; `SourceReport`: what was done."""

from __future__ import annotations

import re
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter

import numpy as np

from equitar.arrays import Int64
from equitar.errors import LabelError, MissingShardError, SidecarError, SourceError, StorageError
from equitar.indexing.housekeeping import holes, sweep
from equitar.indexing.label_job import Known
from equitar.indexing.shard_task import Shard, ShardResult
from equitar.label_spec import LabelSpec
from equitar.labels.tables import LabelTable
from equitar.sidecars.sidecar import ClassNames, read_sidecar
from equitar.sidecars.summary import Summary, join_summaries, newest_summary, shards_of, write_summary
from equitar.sources import Source, StorageOptions, listed_sources
from equitar.storage.listing import ShardList, sidecar_url
from equitar.text import listed
from equitar.urls import local_path, shown

_SIDECARS_TRIED = 16  # of the previous summary, for how its labels were made


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """What indexing did for one source.

    Attributes:
        name: The source.
        written: Shards whose sidecars were made.
        skipped: Shards whose sidecars were up to date.
        samples: Samples in all its shards.
        bytes: Length of all its shards.
        notes: Oddities that are not errors, counted.
        special_members: Links, devices and the like in the shards indexed now, which are ignored.
        summary: Digest of its new summary; None if none was written.
        added: Paths of shards that the previous summary did not have, sorted; all of them if there was none.
        changed: Paths of shards whose members or labels were different in the previous summary.
        gone: Paths of shards that only the previous summary had.
        missing: Paths of listed shards that do not exist, left out on purpose.
        holes: Paths that are not listed, although the numbers around them are.
        swept: Partial files that were removed: killed writes left them in the folder of the sidecars more than a day ago.
    """

    name: str
    written: int
    skipped: int
    samples: int
    bytes: int
    notes: tuple[str, ...]
    special_members: int
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
    rows: dict[str, Summary] = field(default_factory=dict)  # by path, of one shard each
    class_names: dict[ClassNames | None, ClassNames | None] = field(default_factory=dict)  # one object for equal ones
    label_specs: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, BaseException]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    oddities: dict[str, tuple[str, str, int]] = field(
        default_factory=dict
    )  # kind of note: first shard, its note, shards
    matched: list[Int64] = field(default_factory=list)
    rules: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    special_members: int = 0
    before: Summary | None = None
    summary: Summary | None = None

    def fail(self, where: str, error: BaseException) -> None:
        """Add an error; errors are sorted by shard, not by time."""
        insort(self.failures, (where, error), key=itemgetter(0))

    def take(self, shard: Shard, result: ShardResult) -> None:
        """Add the result of a shard."""
        names = self.class_names.setdefault(result.row.class_names, result.row.class_names)
        self.rows[shard.path] = replace(result.row, class_names=names)
        self.label_specs[result.label_spec] += 1
        if result.written:
            self.written.add(shard.path)
        self.special_members += result.special_members
        for note in result.notes:
            kind = re.sub(r"[0-9]+|'.*'", "", note)
            where, first, times = self.oddities.get(kind, (shard.path, note, 0))
            self.oddities[kind] = (*min((where, first), (shard.path, note)), times + 1)
        if result.matched is not None:
            self.matched.append(result.matched)
            self.rules[result.rule] += int(np.count_nonzero(result.matched >= 0))

    def leave_out_missing(self) -> None:
        """Continue without the missing shards; if all are missing, that is a failure."""
        self.missing.sort()
        missing = set(self.missing)
        self.shards = [shard for shard in self.shards if shard.path not in missing]
        if missing and not self.shards:
            self.refuse_missing()

    def refuse_missing(self) -> None:
        """Make one failure of all missing shards."""
        if self.missing:
            self.missing.sort()
            problem = (
                f"{len(self.missing)} of {len(self.listed)} shards are missing: {listed(self.missing, 10, quote=True)}"
            )
            fix = "restore them, or continue without them by `--missing-shards skip`"
            if self.source.summary is not None:
                fix = f"they are expected below {shown(self.listed.root)}; pass their folder as `--root`, or {fix}"
            self.fail(f"source {self.source.name!r}", MissingShardError(f"{problem}; {fix}"))

    def note(self, table: LabelTable | None, *, is_part: bool) -> None:
        """Finish the notes, once all shards are done."""
        self.notes += [f"{note} ({times} shards, the first {where})" for where, note, times in self.oddities.values()]
        if table is not None and self.matched:
            self.notes += _notes_on_join(table, np.concatenate(self.matched), self.rules, is_part=is_part)
        if self.rows and any(self.label_specs) and not self.has_labels:
            self.notes.append("no sample has a label; is the place of the labels right?")

    def close(self) -> None:
        """Write the summary; problems of the source as a whole become a failure."""
        try:
            self.summary = join_summaries([self.rows[shard.path] for shard in self.shards], skipped=self.missing)
            write_summary(self.source, self.listed, self.summary)
        except (SidecarError, OSError) as error:
            self.fail(f"source {self.source.name!r}", error)

    def report(self) -> SourceReport:
        """Remove the leftovers of killed writes, and return the report."""
        before = dict(zip(self.before.paths, self.before.digests, strict=True)) if self.before else {}
        now = {path: row.digests[0] for path, row in self.rows.items()}
        return SourceReport(
            name=self.source.name,
            written=len(self.written),
            skipped=len(self.shards) - len(self.written),
            samples=sum(int(row.num_samples[0]) for row in self.rows.values()),
            bytes=sum(int(row.shard_sizes[0]) for row in self.rows.values()),
            notes=tuple(self.notes),
            special_members=self.special_members,
            summary=None if self.summary is None else self.summary.digest,
            added=tuple(sorted(now.keys() - before.keys())),
            changed=tuple(sorted(path for path in now.keys() & before.keys() if now[path] != before[path])),
            gone=tuple(sorted(before.keys() - set(self.listed.paths) | (before.keys() & set(self.missing)))),
            missing=tuple(self.missing),
            holes=tuple(holes(self.listed.paths)),
            swept=tuple(sweep(self.listed)),
        )

    @property
    def fix(self) -> str:
        """The command that indexes missing shards, with the labels that the others have."""
        label_spec = max(self.label_specs, key=self.label_specs.__getitem__, default="")
        return self.source.index_command(label_spec=label_spec)

    @property
    def has_labels(self) -> bool:
        """Whether a shard with labels is done."""
        return any(row.label_counts is not None and len(row.label_counts.ids) for row in self.rows.values())

    def known_labels(self) -> Known | None:
        """Return how labels were made before, by the sidecar of a shard in the previous summary; None without labels.

        Sidecars that now get a folder of their own may have been beside the shards before.
        """
        summary, listed = self.before, self.listed
        if summary is None and self.source.sidecars is not None:
            listed = replace(listed, sidecars=listed.root)
            with suppress(StorageError):
                summary = _previous_summary(self.source, listed)
        if summary is None or summary.label_counts is None:
            return None
        for path in summary.paths[:_SIDECARS_TRIED]:
            with suppress(SidecarError):  # missing or damaged: others say the same
                url = sidecar_url(listed, path)
                sidecar = read_sidecar(
                    url, fix="", storage_options=self.source.storage_options, retries=self.source.retries
                )
                if sidecar.label_spec:
                    return LabelSpec.parse(sidecar.label_spec), sidecar.class_names
        return None

    @property
    def has_open_names(self) -> bool:
        """Whether class names come from the shards alone, each read without knowing the names of others."""
        specs = map(LabelSpec.parse, self.label_specs)
        return not any(spec.classes_digest or spec.table_digest for spec in specs)

    def common_names(self) -> ClassNames | None:
        """Return class names for all shards, None if labels are ids.

        Names of the previous summary keep their ids, if one of its sidecars is left; other names follow, sorted. It makes no
        difference in which order shards were read, or whether a run was stopped in between.
        """
        rows = [self.rows[shard.path] for shard in self.shards]
        named = {row.class_names: row.paths[0] for row in reversed(rows) if row.class_names is not None}
        if not named:
            return None
        for row in rows:
            if row.class_names is None and row.label_counts is not None and len(row.label_counts.ids):
                first, where = next((names[1][0], path) for names, path in reversed(named.items()))
                pair = f"{int(row.label_counts.ids[0])} in {row.paths[0]!r} and {first!r} in {where!r}"
                raise LabelError(
                    f"labels must be all ids or all names; got {pair} of {self.source.name!r}; use one kind"
                )
        before = self.before.class_names if self.before else None
        is_left = any(row.class_names == before for row in rows if row.paths[0] not in self.written)
        ids, names = before if before and is_left else ((), ())
        new = sorted({name for known in named for name in known[1]} - set(names))
        start = max(ids, default=-1) + 1
        return (*ids, *range(start, start + len(new))), (*names, *new)


def check_policy(missing_shards: str) -> None:
    """Raise ValueError, before anything is read, if this is not a policy for missing shards."""
    if missing_shards not in ("error", "skip"):
        raise ValueError(f"`missing_shards` must be 'error' or 'skip'; got {missing_shards!r}")


def jobs_of_sources(sources: Source | Iterable[Source]) -> list[SourceJob]:
    """Return a job for each source, with its shards.

    Raises:
        SourceError: If two shards would have the same sidecar, or two sources the same name.
    """
    jobs = []
    owner: dict[str, str] = {}
    for source in listed_sources(sources):
        (listed, _), fix = shards_of(source), source.index_command()
        shards = [
            Shard(
                source=source.name,
                path=path,
                url=url,
                sidecar=sidecar_url(listed, path),
                options=source.storage_options,
                fix=fix,
                retries=source.retries,
            )
            for path, url in zip(listed.paths, listed.urls, strict=True)
        ]
        for shard in shards:
            first = owner.setdefault(shard.sidecar, shard.url)
            if first != shard.url:
                raise SourceError(
                    f"{shown(first)} and {shard.where} would share the sidecar {shown(shard.sidecar)}; give each source a folder of "
                    "its own as `sidecars`"
                )
        jobs.append(SourceJob(source=source, listed=listed, shards=shards, before=_previous_summary(source, listed)))
    return jobs


def _previous_summary(source: Source, listed: ShardList) -> Summary | None:
    """Return the newest summary, with all its shards; None if there is none that can be read."""
    try:
        return newest_summary(source, listed)
    except SidecarError:  # missing, of another version, damaged: a new one fixes it
        return None


def shared_options(jobs: Sequence[SourceJob], files: Sequence[str]) -> StorageOptions:
    """Return the storage options for files that are given for all sources.

    Raises:
        SourceError: If one of them is remote, and sources have different options.
    """
    options = [job.source.storage_options for job in jobs]
    remote = next((file for file in files if local_path(file) is None), None)
    if remote is not None and any(other != options[0] for other in options):
        names = ", ".join(job.source.name for job in jobs)
        raise SourceError(
            f"{shown(remote)} is read with the `storage_options` of the sources, which must be the same for {names}; index them one "
            "by one"
        )
    return options[0] if options else None


def keep_part(jobs: Sequence[SourceJob], part: int, parts: int) -> None:
    """Leave each job the shards of one part: every `parts`-th of all, sorted by name and path."""
    if not 0 <= part < parts:
        raise ValueError(f"`part` must be (i, n) with 0 <= i < n; got ({part}, {parts})")
    mine = set(sorted((shard.source, shard.path) for job in jobs for shard in job.shards)[part::parts])
    for job in jobs:
        job.shards = [shard for shard in job.shards if (shard.source, shard.path) in mine]


def _notes_on_join(table: LabelTable, matched: Int64, rules: Counter[str], *, is_part: bool) -> list[str]:
    """Return how samples and the rows of a table were matched."""
    notes = [f"{count} samples joined to {table.path} by {rule}" for rule, count in rules.items() if count]
    unlabelled = np.count_nonzero(matched < 0)
    if unlabelled:
        notes.append(f"{unlabelled} samples are not in {table.path} and have no labels")
    unused = np.setdiff1d(np.arange(len(table.keys)), matched)
    if len(unused) and not is_part:
        notes.append(f"{len(unused)} keys of {table.path} are in no shard, such as {table.keys[unused[0]]!r}")
    return notes
