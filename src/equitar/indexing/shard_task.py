"""What is done for one shard when it is indexed or checked? It runs in any process, and knows of no other shard.

How are the labels of a shard read whose members are known? Where its sidecar says, without a walk through its headers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

import numpy as np

from equitar.arrays import Int64
from equitar.errors import LabelError, MissingShardError, ShardError, SidecarError, StaleSidecarError
from equitar.indexing.label_job import LabelJob, Spooled, spooled
from equitar.labels.extractors import Extractor, Labels, Missing, TextLabels, labels_from_spec, no_label
from equitar.labels.tables import LabelTable, Vocabulary, encoded
from equitar.presence import Presence
from equitar.sidecars.sidecar import ClassNames, Sidecar, digest_of, read_sidecar, sidecar_of, write_sidecar
from equitar.sidecars.summary import Summary, summary_of
from equitar.sources import Retries
from equitar.storage.files import exists, is_newer, touch
from equitar.storage.streams import open_stream
from equitar.tar.grouping import what_differs
from equitar.tar.headers import HEADER_BYTES
from equitar.tar.table import MemberTable, read_table
from equitar.urls import shown


def read_contents(sidecar: Sidecar, file: BinaryIO, fields: Collection[str] | None) -> MemberTable | None:
    """Return the member table of a shard with the bytes of some fields, of which nothing else but their headers is read.

    Args:
        sidecar: The sidecar of the shard, which can be sliced.
        file: The shard; it can seek.
        fields: The fields; None is for all.

    Returns:
        The table; None if a header is not that of its member: the shard was written anew, and is to be walked.

    Raises:
        ShardError: If the shard ends before.
    """
    keys = list(sidecar.keys)
    contents: list[dict[str, bytes]] = [{} for _ in keys]
    wanted = np.array([fields is None or name in fields for name in sidecar.fields], bool)
    members = np.flatnonzero(wanted[sidecar.field]) if len(sidecar.field) else np.zeros(0, np.int64)
    rows = np.searchsorted(sidecar.indptr, members, side="right") - 1
    columns = (rows, sidecar.field[members], sidecar.offset[members], sidecar.size[members])
    for row, name_index, offset, size in zip(*(column.tolist() for column in columns), strict=True):
        file.seek(offset - HEADER_BYTES)
        found = file.read(HEADER_BYTES + size)
        while len(found) < HEADER_BYTES + size and (
            more := file.read(HEADER_BYTES + size - len(found))
        ):  # at most 2 GiB come at once
            found += more
        if len(found) < HEADER_BYTES + size:
            end = offset - HEADER_BYTES + len(found)
            raise ShardError(f"the shard ends at byte {end} but its sidecar has data up to {offset + size}")
        name = sidecar.fields[name_index]
        if what_differs(found[:HEADER_BYTES], key=keys[row], field=name, size=size):
            return None
        contents[row][name] = found[HEADER_BYTES:]
    return MemberTable(
        keys=keys,
        indptr=sidecar.indptr,
        fields=list(sidecar.fields),
        field=sidecar.field,
        offset=sidecar.offset,
        size=sidecar.size,
        sliceable=True,
        contents=contents,
        notes=(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Where a shard and its sidecar are.

    Attributes:
        source: Name of its source.
        path: Below the root of its source.
        url: What opens it.
        sidecar: URL of its sidecar.
        options: For fsspec.
        mend: The command that indexes its source, for errors.
        retries: How patiently its store is asked.
        expected: Where its headers are by the index of another tool, see `PrefetchedFile`.
    """

    source: str
    path: str
    url: str = field(repr=False)
    sidecar: str
    options: Mapping[str, Any] | None = field(repr=False)
    mend: str
    retries: Retries
    expected: Int64 | None = field(default=None, repr=False, compare=False)

    @property
    def where(self) -> str:
        """What the shard is called in errors."""
        return shown(self.url)

    def __str__(self) -> str:
        return self.where


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardResult:
    """What is left to know of a shard that is done.

    Attributes:
        row: The summary of this shard alone.
        written: Whether its sidecar was made now.
        label_spec: How its labels were made, as its sidecar says.
        notes: What is odd in it.
        matched: Row of the table of labels for each sample, -1 for none; None if there is no table.
        rule: By which rule they were found.
    """

    row: Summary
    written: bool
    label_spec: str
    notes: tuple[str, ...] = ()
    matched: Int64 | None = None
    rule: str = ""


def index_shard(shard: Shard, *, recipe: Spooled) -> ShardResult:
    """Make the sidecar of a shard, unless one is there that fits.

    Raises:
        MissingShardError: If the shard is not there.
    """
    how = spooled(recipe)
    try:
        with open_stream(shard.url, shard.options, shard.retries, shard.expected) as (file, shard_size):
            return _indexed(shard, file, shard_size, how)
    except FileNotFoundError as error:
        raise MissingShardError(f"{shard.where} is missing") from error


def sidecar_row(shard: Shard) -> ShardResult:
    """Return what the sidecar of a shard says; the shard itself is not opened.

    Raises:
        MissingShardError: If neither of them is there.
        SidecarError: If the sidecar is missing or damaged.
    """
    try:
        return _unchanged(shard, read_sidecar(shard.sidecar, mend=shard.mend, storage_options=shard.options))
    except SidecarError as error:
        is_there = not isinstance(error.__cause__, FileNotFoundError) or shard.url.startswith("pipe:")
        if is_there or exists(shard.url, shard.options):
            raise
        raise MissingShardError(f"{shard.where} is missing") from error


def _unchanged(shard: Shard, sidecar: Sidecar) -> ShardResult:
    return ShardResult(row=summary_of([shard.path], [sidecar]), written=False, label_spec=sidecar.label_spec)


def _indexed(shard: Shard, file: BinaryIO, shard_size: int, recipe: LabelJob) -> ShardResult:
    there = None if recipe.force else _fitting(shard, shard_size)
    # A sidecar asked for without labels may have some: they cost somebody work, and a mend in an error names none.
    if there is not None and recipe.spec in ("", there.label_spec):
        matched, rule = _matched(recipe.table, there.keys, shard)
        return replace(_unchanged(shard, there), matched=matched, rule=rule)
    table = None
    if there is not None and recipe.extract is not None and there.sliceable:  # only the labels are others
        table = read_contents(there, file, recipe.extract.fields)
    if table is None and (there is None or recipe.table is None):  # labels from elsewhere need no second walk
        table = _walked(shard, file, shard_size, recipe.extract, regroup=recipe.regroup)
    keys = table.keys if table else there.keys if there else []
    matched, rule = _matched(recipe.table, keys, shard)
    presence, class_names = None, None
    if recipe.table is not None and matched is not None:
        presence, class_names = _joined(recipe.table, matched, keys, recipe.missing, shard)
    elif recipe.extract is not None and table is not None:
        if recipe.missing == "error":
            _check_fields(table, recipe.extract, shard.where)
        presence, class_names = _extracted(table, recipe.extract, recipe.vocabulary, shard.where)
    base = table or there
    assert base is not None
    sidecar = sidecar_of(
        base, shard_size=shard_size, presence=presence, class_names=class_names, label_spec=recipe.spec
    )
    write_sidecar(shard.sidecar, sidecar, storage_options=shard.options)
    notes = table.notes if table else ()
    row = summary_of([shard.path], [sidecar])
    return ShardResult(row=row, written=True, label_spec=recipe.spec, notes=notes, matched=matched, rule=rule)


def rename_classes(shard: Shard, *, class_names: ClassNames) -> ShardResult:
    """Give a sidecar other ids for its class names, so that all of a source have the same."""
    sidecar = read_sidecar(shard.sidecar, mend=shard.mend, storage_options=shard.options)
    if sidecar.class_names != class_names:
        presence = sidecar.presence
        if presence is not None and sidecar.class_names is not None:
            id_of = dict(zip(class_names[1], class_names[0], strict=True))
            name_of = dict(zip(*sidecar.class_names, strict=True))
            ids = np.array([id_of[name_of[one]] for one in presence.ids.tolist()], np.int64)
            rows = np.repeat(np.arange(presence.num_rows), np.diff(presence.indptr))
            order = np.lexsort((ids, rows))  # ids rise within a row, under whatever numbers
            presence = Presence(indptr=presence.indptr, ids=ids[order], counts=presence.counts[order])
        digest = digest_of(sidecar, presence)
        sidecar = replace(sidecar, presence=presence, class_names=class_names, digest=digest)
        write_sidecar(shard.sidecar, sidecar, storage_options=shard.options)
    return _unchanged(shard, sidecar)


def check_shard(shard: Shard) -> ShardResult:
    """Compare a shard with its sidecar: its size, its headers, and the bytes of labels that are in it.

    Raises:
        SidecarError: If they do not agree.
    """
    sidecar = read_sidecar(shard.sidecar, mend=shard.mend, storage_options=shard.options)
    _compare(shard, sidecar)
    return _unchanged(shard, sidecar)


def _compare(shard: Shard, sidecar: Sidecar) -> None:
    """Raise StaleSidecarError if a sidecar is not of what its shard holds now."""
    extract = _extractor_of(sidecar)
    with open_stream(shard.url, shard.options, shard.retries) as (file, shard_size):
        if shard_size != sidecar.shard_size:
            seen = f"{shard.where} has {shard_size} bytes but its sidecar is of {sidecar.shard_size}"
            raise StaleSidecarError(f"{seen}; {_mend(shard, sidecar)}")
        is_regrouped = bool((np.diff(sidecar.offset) < 0).any())
        table = _walked(shard, file, shard_size, extract, regroup=is_regrouped)
    presence = sidecar.presence
    if extract is not None:
        vocabulary = Vocabulary(*sidecar.class_names) if sidecar.class_names else None
        presence, _ = _extracted(table, extract, vocabulary, shard.where)
    if digest_of(table, presence) != sidecar.digest:
        same = digest_of(table, sidecar.presence) == sidecar.digest
        what = "labels" if same else "members"
        raise StaleSidecarError(
            f"{shard.where} has other {what} than its sidecar says; {_mend(shard, sidecar)} and --force"
        )


def _fitting(shard: Shard, shard_size: int) -> Sidecar | None:
    """Return the sidecar that is there, if it is of this shard: of its size, and of its members where it is the older file."""
    try:
        sidecar = read_sidecar(shard.sidecar, mend=shard.mend, storage_options=shard.options)
    except SidecarError:  # missing, of another version, damaged: each is mended by making it
        return None
    if sidecar.shard_size != shard_size:
        return None
    if is_newer(shard.url, shard.sidecar):  # tars are padded, so a rewritten one may have the size it had
        try:
            _compare(shard, sidecar)
        except StaleSidecarError:
            return None
        touch(shard.sidecar)  # it need not be looked at again
    return sidecar


def _walked(shard: Shard, file: BinaryIO, shard_size: int, extract: Extractor | None, *, regroup: bool) -> MemberTable:
    fields = () if extract is None else extract.fields
    return read_table(file, size=shard_size, where=shard.where, fields=fields, regroup=regroup)


def _mend(shard: Shard, sidecar: Sidecar) -> str:
    spec, *more = sidecar.label_spec.split("\n")
    option = "--labels-from" if _is_outside(more) else "--labels"
    return f"{shard.mend} with {option} {spec!r}" if spec else shard.mend


def _is_outside(more: Sequence[str]) -> bool:
    return any(line.startswith("from=") for line in more)


def _check_fields(table: MemberTable, extract: Extractor, where: str) -> None:
    """Raise LabelError if no sample has a field that labels are read from: its name is wrong, more likely than the samples."""
    if extract.fields and table.fields and not set(extract.fields) & set(table.fields):
        wanted, there = (", ".join(map(repr, sorted(names))) for names in (extract.fields, table.fields))
        mend = 'name one of these, or pass `missing="empty"` (`--missing empty`) if there are no labels'
        raise LabelError(f"labels are read from field {wanted} but samples of {where} have {there}; {mend}")


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
    """Return the label of each row if all are integers in a text field, read at once; None is for the extractor."""
    if not isinstance(extract, TextLabels):
        return None
    texts = [content.get(extract.field, b"") for content in contents]
    if b"_" in b"".join(texts):  # which `int` takes within a number
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
    table: LabelTable, rows: Int64, keys: Sequence[str], missing: Missing, shard: Shard
) -> tuple[Presence, ClassNames | None]:
    """Return the rows of a table that belong to the keys of a shard."""
    for row in np.flatnonzero(rows < 0)[:1]:
        like = f" whose keys are like {table.keys[0]!r}" if table.keys else ""
        absent = f"not in {table.path},{like}; so are {np.count_nonzero(rows < 0)} of {len(rows)}"
        no_label(missing, absent, f"key {keys[row]!r} of {shard.where}")
    return table.presence.picked(rows), (table.vocabulary.ids, table.vocabulary.names) if table.vocabulary else None


def _extractor_of(sidecar: Sidecar) -> Extractor | None:
    """Return what made the labels of a sidecar, if they are in the shard."""
    spec, *more = sidecar.label_spec.split("\n")
    if not spec or _is_outside(more):
        return None
    return labels_from_spec(spec, missing="empty" if "missing=empty" in more else "error")
