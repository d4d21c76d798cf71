"""The task of indexing or checking one shard. It runs in any process, and knows of no other shard."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from errno import EROFS
from typing import Any, BinaryIO

import numpy as np

from equitar.arrays import Int64
from equitar.errors import LabelError, MissingShardError, ShardError, SidecarError, StaleSidecarError
from equitar.indexing.label_job import LabelJob, SpooledJob, read_spooled
from equitar.label_spec import LabelSpec
from equitar.labels.extractors import (
    Extractor,
    JsonLabels,
    Labels,
    TextLabels,
    labels_from_spec,
    no_label,
    parse_json,
    search,
)
from equitar.labels.tables import LabelTable, Vocabulary, encoded
from equitar.presence import Presence
from equitar.sidecars.sidecar import ClassNames, Sidecar, digest_of, read_sidecar, sidecar_of, write_sidecar
from equitar.sidecars.summary import Summary, shard_summary
from equitar.sources import Retries
from equitar.storage.files import exists, is_newer, touch
from equitar.storage.streams import open_stream
from equitar.tar.grouping import what_differs
from equitar.tar.headers import HEADER_BYTES
from equitar.tar.table import MemberTable, read_table
from equitar.text import did_you_mean
from equitar.urls import shown


class NoSuchLabelError(LabelError):
    """No sample of a shard has a label where labels are looked for: the place is wrong, more likely than the samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Where a shard and its sidecar are."""

    source: str  # name of its source
    path: str  # below the root of its source
    url: str = field(repr=False)
    sidecar: str  # URL of its sidecar
    options: Mapping[str, Any] | None = field(repr=False)  # for fsspec
    fix: str  # the command that indexes its source, for errors
    retries: Retries
    expected: Int64 | None = field(default=None, repr=False, compare=False)  # of its headers, see `PrefetchedFile`

    @property
    def where(self) -> str:
        """The name of the shard in errors."""
        return shown(self.url)

    def __str__(self) -> str:
        return self.where


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardResult:
    """What remains of a shard that is done."""

    row: Summary  # of this shard alone
    written: bool  # whether its sidecar was made now
    label_spec: str  # as its sidecar records it
    notes: tuple[str, ...] = ()  # oddities
    special_members: int = 0  # links, devices and the like in it, which are ignored
    matched: Int64 | None = None  # row of the table of labels for each sample, -1 for none; None without a table
    rule: str = ""  # by which they were matched


def index_shard(shard: Shard, *, job: SpooledJob) -> ShardResult:
    """Make the sidecar of a shard, unless it is up to date.

    Raises:
        MissingShardError: If the shard does not exist.
    """
    label_job = read_spooled(job)
    try:
        with open_stream(shard.url, shard.options, shard.retries, shard.expected) as (file, shard_size):
            return _indexed(shard, file, shard_size, label_job)
    except FileNotFoundError as error:
        raise MissingShardError(f"{shard.where} is missing") from error


def sidecar_row(shard: Shard) -> ShardResult:
    """Return what the sidecar of a shard contains; the shard itself is not opened.

    Raises:
        MissingShardError: If neither of them exists.
        SidecarError: If the sidecar is missing or damaged.
    """
    try:
        return _unchanged(shard, _read_sidecar(shard))
    except SidecarError as error:
        is_there = not isinstance(error.__cause__, FileNotFoundError) or shard.url.startswith("pipe:")
        if is_there or exists(shard.url, shard.options, shard.retries):
            raise
        raise MissingShardError(f"{shard.where} is missing") from error


def _read_sidecar(shard: Shard) -> Sidecar:
    return read_sidecar(shard.sidecar, fix=shard.fix, storage_options=shard.options, retries=shard.retries)


def _unchanged(shard: Shard, sidecar: Sidecar) -> ShardResult:
    return ShardResult(row=shard_summary(shard.path, sidecar), written=False, label_spec=sidecar.label_spec)


def _indexed(shard: Shard, file: BinaryIO, shard_size: int, job: LabelJob) -> ShardResult:
    old: Sidecar | None = None
    with suppress(SidecarError):  # missing, of another version, damaged: a new one fixes it
        old = _read_sidecar(shard)
    if job.keeps:  # labels cost work: without being asked, no run drops them
        spec, class_names = (
            (LabelSpec.parse(old.label_spec), old.class_names)
            if old and old.label_spec
            else (job.known.get(shard.source, (LabelSpec(), None)))
        )
        job = job.repeating(spec, class_names)
    fitting = old if old and not job.force and _fits(shard, shard_size, old) else None
    if fitting is not None and fitting.label_spec == str(job.spec):
        matched, rule = _matched(job.table, fitting.keys, shard)
        return replace(_unchanged(shard, fitting), matched=matched, rule=rule)
    table = None
    if fitting is not None and job.extract is not None and fitting.table.sliceable:  # only the labels are different
        table = read_contents(fitting.table, file, job.extract.fields)
    if table is None and fitting is not None and job.extract is None:  # labels from elsewhere need no second walk
        table = fitting.table
    if table is None:
        table = _walked(shard, file, shard_size, job.extract, regroup=job.regroup)
    matched, rule = _matched(job.table, table.keys, shard)
    presence, class_names = None, None
    if job.table is not None and matched is not None:
        presence, class_names = _joined(job.table, matched, table.keys, job.spec, shard)
    elif job.extract is not None:
        if job.spec.missing == "error":
            _check_label_place(table, job.extract, shard, file, shard_size)
        presence, class_names = _extracted(table, job.extract, job.vocabulary, shard.where)
    elif job.spec.labels:
        presence, class_names = _kept(table.keys, old, job.spec, shard)
    sidecar = sidecar_of(
        table, shard_size=shard_size, presence=presence, class_names=class_names, label_spec=str(job.spec)
    )
    write_sidecar(shard.sidecar, sidecar, storage_options=shard.options)
    row = shard_summary(shard.path, sidecar)
    return ShardResult(
        row=row,
        written=True,
        label_spec=str(job.spec),
        notes=table.notes,
        special_members=table.special_members,
        matched=matched,
        rule=rule,
    )


def rename_classes(shard: Shard, *, class_names: ClassNames) -> ShardResult:
    """Give a sidecar other ids for its class names, so that all of a source have the same."""
    sidecar = _read_sidecar(shard)
    if sidecar.class_names != class_names:
        presence = sidecar.presence
        if presence is not None and sidecar.class_names is not None:
            id_of = dict(zip(class_names[1], class_names[0], strict=True))
            name_of = dict(zip(*sidecar.class_names, strict=True))
            ids = np.array([id_of[name_of[class_id]] for class_id in presence.ids.tolist()], np.int64)
            rows = np.repeat(np.arange(presence.num_rows), np.diff(presence.indptr))
            order = np.lexsort((ids, rows))  # ids rise within a row, under whatever numbers
            presence = Presence(indptr=presence.indptr, ids=ids[order], counts=presence.counts[order])
        digest = digest_of(sidecar.table, presence)
        sidecar = replace(sidecar, presence=presence, class_names=class_names, digest=digest)
        write_sidecar(shard.sidecar, sidecar, storage_options=shard.options)
    return _unchanged(shard, sidecar)


def check_shard(shard: Shard) -> ShardResult:
    """Compare a shard with its sidecar: its size, its headers, and the bytes of labels that are in it.

    Raises:
        SidecarError: If they differ.
    """
    sidecar = _read_sidecar(shard)
    _compare(shard, sidecar)
    return _unchanged(shard, sidecar)


def _compare(shard: Shard, sidecar: Sidecar) -> None:
    """Raise StaleSidecarError if a sidecar does not describe its shard any more."""
    spec = LabelSpec.parse(sidecar.label_spec)
    extract = labels_from_spec(spec.labels, missing=spec.missing) if spec.labels and not spec.table_digest else None
    fix = f"{shard.fix} with --labels-from {spec.labels!r}" if spec.table_digest else shard.fix
    with open_stream(shard.url, shard.options, shard.retries) as (file, shard_size):
        if shard_size != sidecar.shard_size:
            raise StaleSidecarError(
                f"{shard.where} has {shard_size} bytes but its sidecar is for {sidecar.shard_size}; {fix}"
            )
        is_regrouped = bool((np.diff(sidecar.table.offset) < 0).any())
        table = _walked(shard, file, shard_size, extract, regroup=is_regrouped)
    presence = sidecar.presence
    if extract is not None:
        vocabulary = Vocabulary(*sidecar.class_names) if sidecar.class_names else None
        presence, _ = _extracted(table, extract, vocabulary, shard.where)
    if digest_of(table, presence) != sidecar.digest:
        is_same_table = digest_of(table, sidecar.presence) == sidecar.digest
        what = "labels" if is_same_table else "members"
        raise StaleSidecarError(f"{shard.where} has other {what} than its sidecar; {fix} with --force")


def _fits(shard: Shard, shard_size: int, sidecar: Sidecar) -> bool:
    """Return whether a sidecar describes its shard: by its size, and by its members where the sidecar is the older file."""
    if sidecar.shard_size != shard_size:
        return False
    if is_newer(shard.url, shard.sidecar):  # tars are padded, so a rewritten one may have the size it had
        try:
            _compare(shard, sidecar)
        except StaleSidecarError:
            return False
        try:
            touch(shard.sidecar)  # so that it is not compared again
        except OSError as error:  # read-only data, copied with new times: it is compared again next time
            if not isinstance(error, PermissionError) and error.errno != EROFS:
                raise
    return True


def _walked(shard: Shard, file: BinaryIO, shard_size: int, extract: Extractor | None, *, regroup: bool) -> MemberTable:
    fields = () if extract is None else extract.fields
    return read_table(file, size=shard_size, where=shard.where, fields=fields, regroup=regroup)


def read_contents(table: MemberTable, file: BinaryIO, fields: Collection[str] | None) -> MemberTable | None:
    """Return a member table with the bytes of some fields: only these and their headers are read.

    Args:
        table: The members of the shard, which can be sliced.
        file: The shard; it can seek.
        fields: The fields; None is for all.

    Returns:
        The table; None if a header is not that of its member: the shard was rewritten, and must be walked.

    Raises:
        ShardError: If the shard ends too early.
    """
    contents: list[dict[str, bytes]] = [{} for _ in table.keys]
    keys = list(table.keys)
    wanted = np.array([fields is None or name in fields for name in table.fields], bool)
    members = np.flatnonzero(wanted[table.field]) if len(table.field) else np.zeros(0, np.int64)
    rows = np.searchsorted(table.indptr, members, side="right") - 1
    columns = (rows, table.field[members], table.offset[members], table.size[members])
    for row, name_index, offset, size in zip(*(column.tolist() for column in columns), strict=True):
        file.seek(offset - HEADER_BYTES)
        raw = file.read(HEADER_BYTES + size)
        while len(raw) < HEADER_BYTES + size and (more := file.read(HEADER_BYTES + size - len(raw))):
            raw += more  # a read returns 2 GiB at most
        if len(raw) < HEADER_BYTES + size:
            end = offset - HEADER_BYTES + len(raw)
            raise ShardError(f"the shard ends at byte {end} but its sidecar has data up to {offset + size}")
        name = table.fields[name_index]
        if what_differs(raw[:HEADER_BYTES], key=keys[row], field=name, size=size):
            return None
        contents[row][name] = raw[HEADER_BYTES:]
    return replace(table, contents=contents)


def _check_label_place(table: MemberTable, extract: Extractor, shard: Shard, file: BinaryIO, shard_size: int) -> None:
    """Raise NoSuchLabelError if no sample has a label where `extract` looks for it."""
    if not extract.fields or not table.fields:
        return
    advice = 'or pass `missing="empty"` (`--missing empty`) if samples have no labels'
    if not set(extract.fields) & set(table.fields):
        wanted, keys = extract.fields[0], []
        if "json" in table.fields:
            file.seek(0)
            fields = read_table(file, size=shard_size, where=shard.where, fields=("json",), regroup=True)
            keys = _json_keys(fields, shard.where)
        there = ", ".join(map(repr, sorted(table.fields))) + (
            f" ('json' has {', '.join(map(repr, keys))})" if keys else ""
        )
        guess = _guess(wanted, sorted(table.fields), keys)
        raise NoSuchLabelError(
            f"labels are read from field {wanted!r}{guess} but samples of {shard.where} have {there}; name one of these, {advice}"
        )
    if isinstance(extract, JsonLabels) and _is_null_everywhere(table, extract, shard.where):
        keys = _json_keys(table, shard.where)
        first = re.match(r"\w*", extract.path)
        guess = _guess(first[0], [], keys) if first and first[0] not in keys else ""
        there = ", ".join(map(repr, keys)) or "no keys"
        raise NoSuchLabelError(
            f"labels are read from `json:{extract.path}`{guess}, which is null in all samples of {shard.where}; their JSON has "
            f"{there}; change the path, {advice}"
        )


def _is_null_everywhere(table: MemberTable, extract: JsonLabels, where: str) -> bool:
    path = search(extract.path)
    jsons = (content["json"] for content in table.contents if "json" in content)
    try:
        return all(path(parse_json(raw, where=where)) is None for raw in jsons)
    except ValueError:  # of broken JSON or a wrong type: reported with its key when labels are read
        return False


def _json_keys(table: MemberTable, where: str) -> list[str]:
    """Return the keys of the JSON of the first sample that has some."""
    for key, content in zip(table.keys, table.contents, strict=True):
        place = f"member 'json' of key {key!r} of {where}"
        parsed = parse_json(content["json"], where=place) if "json" in content else None
        if isinstance(parsed, dict) and parsed:
            return sorted(map(str, parsed))
    return []


def _guess(wanted: str, fields: Sequence[str], keys: Sequence[str]) -> str:
    """Return which spec may have been meant by a name, to follow it."""
    spelled = {key: f"json:{key}" for key in keys if key not in fields}
    return did_you_mean(wanted, [*fields, *keys], spelled=spelled)


def _kept(
    keys: Sequence[str], old: Sidecar | None, spec: LabelSpec, shard: Shard
) -> tuple[Presence | None, ClassNames | None]:
    """Return the labels that the old sidecar has for these keys: their table is not at hand.

    Raises:
        LabelError: If a key is new.
    """
    is_same = old is not None and old.label_spec == str(spec)
    row_of = {key: row for row, key in enumerate(old.keys)} if old is not None and is_same else {}
    new = [key for key in keys if key not in row_of]
    if new:
        raise LabelError(
            f"{len(new)} of {len(keys)} samples of {shard.where} are new, such as {new[0]!r}, and labels came from the file "
            f"{spec.labels!r}; pass it again by `--labels-from`, or drop all labels by `--no-labels`"
        )
    if old is None or old.presence is None:
        return None, None
    return old.presence.picked(np.array([row_of[key] for key in keys], np.int64)), old.class_names


def _extracted(
    table: MemberTable, extract: Extractor, vocabulary: Vocabulary | None, where: str
) -> tuple[Presence, ClassNames | None]:
    single = _single_ids(extract, table.contents, vocabulary)
    if single is not None:
        presence = Presence(indptr=np.arange(len(single) + 1), ids=single, counts=np.ones(len(single), np.int64))
        return presence, (vocabulary.ids, vocabulary.names) if vocabulary else None
    labels: list[Labels] = []
    for key, content in zip(table.keys, table.contents, strict=True):
        labels.append(extract({"__key__": key, **content}, where=f"key {key!r} of {where}"))
    ids, vocabulary = encoded(table.keys, labels, given=None, wanted=vocabulary, where=where)
    return Presence.of(ids), (vocabulary.ids, vocabulary.names) if vocabulary else None


def _single_ids(
    extract: Extractor, contents: Sequence[Mapping[str, bytes]], vocabulary: Vocabulary | None
) -> Int64 | None:
    """Return the label of each row if all are integers in a text field; None if the extractor is needed."""
    if not isinstance(extract, TextLabels):
        return None
    texts = [content.get(extract.field, b"") for content in contents]
    if b"_" in b"".join(texts):  # which `int` accepts within a number
        return None
    try:
        ids = np.array(list(map(int, texts)), np.int64)
    except (ValueError, OverflowError):
        return None
    is_known = vocabulary is None or np.isin(ids, vocabulary.ids).all()
    return ids if is_known else None


def _matched(table: LabelTable | None, keys: Sequence[str], shard: Shard) -> tuple[Int64 | None, str]:
    return (None, "") if table is None else table.match(keys, where=shard.where)


def _joined(
    table: LabelTable, rows: Int64, keys: Sequence[str], spec: LabelSpec, shard: Shard
) -> tuple[Presence, ClassNames | None]:
    """Return the rows of a table that belong to the keys of a shard."""
    for row in np.flatnonzero(rows < 0)[:1]:
        example = f" whose keys look like {table.keys[0]!r}" if table.keys else ""
        absent = f"not in {table.path},{example}; the same for {np.count_nonzero(rows < 0)} of {len(rows)}"
        no_label(spec.missing, absent, f"key {keys[row]!r} of {shard.where}")
    return table.presence.picked(rows), (table.vocabulary.ids, table.vocabulary.names) if table.vocabulary else None
