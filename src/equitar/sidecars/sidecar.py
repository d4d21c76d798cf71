"""Sidecars: the keys, member table and labels of a shard, known without opening it. Their file format, version 1.

A sidecar lies beside its shard, or at the same path below another folder: ``a/x-000.tar`` has ``a/x-000.presence.npz``.
(A shard with another ending keeps it: ``y.tar.gz`` has ``y.tar.gz.presence.npz``.) It holds no location, so shards may be
indexed before they are moved, and it can be deleted without touching a tar.

**Format.** An ``.npz``, as `numpy.load` opens it with ``allow_pickle=False``: a zip of arrays in numpy's ``.npy`` format 1.0,
deflated, without comment, in the order below. All are one-dimensional and hold integers in the smallest little-endian dtype
that fits all of the array: u1, u2, u4 or u8 if none is negative, otherwise i1, i2, i4 or i8. Readers MUST accept any of these,
and MUST check all that this page states. Equal content gives equal bytes: entries have the fixed time 1980-01-01. Files are
written under a temporary name and renamed.

| array | length | holds |
|---|---|---|
| ``meta`` | any | bytes of a JSON object, see below |
| ``keys`` | any | bytes of the keys of all rows, one after another, in the order of the tar; UTF-8, or any other bytes that the tar has for names (newlines and invalid UTF-8 are allowed) |
| ``key_lengths`` | rows | bytes of each key |
| ``row_members`` | rows | number of members of each row, >= 1 |
| ``member_field`` | members | index of the field of each member in ``fields`` of ``meta`` |
| ``member_gap`` | members | where its data begin, in bytes from the end of the data of the previous member (for the first: from byte 0), that end rounded up to 512 |
| ``member_size`` | members | length of its data in bytes |
| ``row_labels`` | rows | number of labels of each row (this and the next two only if indexed with labels) |
| ``label_ids`` | labels | ids of the labels, strictly increasing within a row; may be negative |
| ``label_counts`` | labels | how often each label occurs in its row, >= 1 |

``meta`` is written in ASCII with sorted keys and without spaces, and has exactly these keys: ``format``, "equitar sidecar";
``version``, 1; ``shard_size``, the length of the shard in bytes; ``sliceable``, false if the shard is compressed, where offsets
count in the decompressed stream; ``fields``, the distinct field names in the order of their first use; ``label_spec``, how
labels were made, "" if there are none; ``class_ids`` and ``class_names``, lists of equal length, or both null if labels are ids only; ``digest``,
32 hex digits of the BLAKE2b hash with 16 bytes of these arrays, each as little-endian i8, preceded by its length as an i8:
bytes of the keys, lengths of the keys, row pointers (rows + 1), bytes of the fields, lengths of the fields, field, offset and
size of each member, [1 if sliceable else 0]; and, with labels: row pointers of the labels (rows + 1), ids, counts.

Some 13 bytes a sample: 0.2 % of a shard with samples of 4 KB, 0.02 % with 60 KB.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from equitar.arrays import Int64
from equitar.errors import SidecarError
from equitar.presence import Presence
from equitar.sidecars.container import (
    Arrays,
    ContainerError,
    Integers,
    check_names,
    distinct_texts,
    pack,
    pack_json,
    pack_texts,
    pointers,
    read_class_names,
    read_presence,
    unpack,
    unpack_json,
    unpack_texts,
    wide,
)
from equitar.sources import Retries, StorageOptions
from equitar.storage.files import read_bytes, write_bytes_atomically
from equitar.tar.table import MemberTable
from equitar.urls import shown

ClassNames: TypeAlias = tuple[tuple[int, ...], tuple[str, ...]]
_RETRIES = Retries()
_KIND = {"format": "equitar sidecar", "version": 1}
_ALWAYS = ("meta", "keys", "key_lengths", "row_members", "member_field", "member_gap", "member_size")
_META = ("shard_size", "sliceable", "fields", "label_spec", "class_ids", "class_names", "digest")
_LABELS = ("row_labels", "label_ids", "label_counts")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sidecar:
    """What is known of one shard.

    Attributes:
        table: Its rows, and where the bytes of their fields are.
        presence: Labels of each row; None if indexed without labels.
        class_names: Ids of classes and their names, in the same order; None if labels are only ids.
        label_spec: How labels were made, see `LabelSpec`; empty without labels.
        shard_size: Length of the shard in bytes.
        digest: `digest_of` of this member table and these labels.
    """

    table: MemberTable
    presence: Presence | None
    class_names: ClassNames | None
    label_spec: str
    shard_size: int
    digest: str

    def __post_init__(self) -> None:
        table, rows, members = self.table, len(self.table.keys), len(self.table.field)
        if len(table.indptr) != rows + 1 or table.indptr[0] != 0 or table.indptr[-1] != members:
            raise ValueError(f"`indptr` must run from 0 to {members} over {rows} rows; got {table.indptr!r}")
        if len(table.offset) != members or len(table.size) != members or (np.diff(table.indptr) < 1).any():
            raise ValueError(
                f"each row must have a member, and each of {members} members a field, an offset and a size"
            )
        if members and not 0 <= int(table.field.min()) <= int(table.field.max()) < len(table.fields):
            raise ValueError(f"`field` must be in [0, {len(table.fields)}); got up to {int(table.field.max())}")
        if members and min(int(table.offset.min()), int(table.size.min())) < 0:
            raise ValueError(f"members must begin at byte 0 or later; got {int(table.offset.min())}")
        if table.sliceable and members and int((table.offset + table.size).max()) > self.shard_size:
            raise ValueError(f"members must end within the {self.shard_size} bytes of the shard")
        if self.presence is not None and self.presence.num_rows != rows:
            raise ValueError(f"there must be labels for {rows} rows; got {self.presence.num_rows}")

    @property
    def keys(self) -> Sequence[str]:
        """Key of each row."""
        return self.table.keys

    @property
    def num_rows(self) -> int:
        """Number of samples."""
        return len(self.table.keys)

    @property
    def sizes(self) -> Int64:
        """Bytes of each row's data, (rows,)."""
        return np.diff(np.concatenate([[0], np.cumsum(self.table.size)])[self.table.indptr])


def sidecar_of(
    table: MemberTable,
    *,
    shard_size: int,
    presence: Presence | None,
    class_names: ClassNames | None,
    label_spec: str,
) -> Sidecar:
    """Return the sidecar of a member table with these labels."""
    return Sidecar(
        table=replace(table, contents=(), notes=()),
        presence=presence,
        class_names=class_names,
        label_spec=label_spec,
        shard_size=shard_size,
        digest=digest_of(table, presence),
    )


def digest_of(table: MemberTable, labels: Presence | None) -> str:
    """Return the digest of a member table with its labels, 32 hex digits; the module defines it."""
    digest = hashlib.blake2b(digest_size=16)
    parts: list[Integers] = [*pack_texts(table.keys), table.indptr, *pack_texts(table.fields)]
    parts += [table.field, table.offset, table.size, np.array([table.sliceable], np.int64)]
    if labels is not None:
        parts += [labels.indptr, labels.ids, labels.counts]
    for part in parts:
        digest.update(np.array([len(part)], "<i8").tobytes() + part.astype("<i8").tobytes())
    return digest.hexdigest()


def to_bytes(sidecar: Sidecar) -> bytes:
    """Return the file of a sidecar; equal sidecars give equal bytes."""
    table = sidecar.table
    keys, key_lengths = pack_texts(table.keys)
    ends = table.offset + (table.size + 511 & -512)
    meta = {
        **_KIND,
        "shard_size": sidecar.shard_size,
        "sliceable": table.sliceable,
        "fields": list(table.fields),
        "label_spec": sidecar.label_spec,
        **dict(zip(("class_ids", "class_names"), sidecar.class_names or (None, None), strict=True)),
        "digest": sidecar.digest,
    }
    arrays: Arrays = {
        "meta": pack_json(meta),
        "keys": keys,
        "key_lengths": key_lengths,
        "row_members": np.diff(table.indptr),
        "member_field": table.field,
        "member_gap": table.offset - np.concatenate([[0], ends])[:-1],
        "member_size": table.size,
    }
    if sidecar.presence is not None:
        arrays["row_labels"] = np.diff(sidecar.presence.indptr)
        arrays["label_ids"] = sidecar.presence.ids
        arrays["label_counts"] = sidecar.presence.counts
    return pack(arrays)


def from_bytes(raw: bytes, *, where: str, fix: str = "run `equitar index`") -> Sidecar:
    """Return the sidecar in a file.

    Args:
        raw: The whole file.
        where: What the file is called in errors.
        fix: What errors advise.

    Raises:
        SidecarError: If the bytes are not a sidecar, of another version, or damaged in any way.
    """
    try:
        return _from_arrays(unpack(raw))
    except ValueError as error:
        raise SidecarError(f"{where} is damaged: {error}; {fix}") from error


def _from_arrays(arrays: Arrays) -> Sidecar:
    check_names(arrays, _ALWAYS, _LABELS)
    meta = unpack_json(arrays["meta"], _KIND, _META)
    indptr = pointers(arrays["row_members"])
    size, gap = wide(arrays["member_size"]), wide(arrays["member_gap"])
    if len(size) != len(gap) or (len(size) and (int(size.max()) + int(gap.max()) + 512) * len(size) >= 1 << 63):
        raise ContainerError(f"its {len(gap)} gaps and {len(size)} sizes of members are impossible")
    padded = size + 511 & -512
    presence = None
    if "row_labels" in arrays:
        presence = read_presence(arrays["row_labels"], arrays["label_ids"], arrays["label_counts"])
    if not isinstance(meta["sliceable"], bool) or not isinstance(meta["label_spec"], str):
        raise ContainerError("`sliceable` must be a bool and `label_spec` a text")
    if type(meta["shard_size"]) is not int or not re.fullmatch("[0-9a-f]{32}", str(meta["digest"])):
        raise ContainerError("`shard_size` must be an integer and `digest` 32 hex digits")
    return Sidecar(
        table=MemberTable(
            keys=unpack_texts(arrays["keys"], arrays["key_lengths"]),
            indptr=indptr,
            fields=distinct_texts(meta["fields"]),
            field=wide(arrays["member_field"]),
            offset=np.cumsum(gap + padded) - padded,
            size=size,
            sliceable=meta["sliceable"],
        ),
        presence=presence,
        class_names=read_class_names(meta),
        label_spec=meta["label_spec"],
        shard_size=meta["shard_size"],
        digest=meta["digest"],
    )


def write_sidecar(url: str, sidecar: Sidecar, *, storage_options: StorageOptions = None) -> None:
    """Write a sidecar; no reader ever sees half of it."""
    write_bytes_atomically(url, to_bytes(sidecar), storage_options)


def read_sidecar(url: str, *, fix: str, storage_options: StorageOptions = None, retries: Retries = _RETRIES) -> Sidecar:
    """Return the sidecar at a path or URL.

    Args:
        url: The file.
        fix: The command that makes it, from `Source.index_command`.
        storage_options: Options for fsspec.
        retries: How failures of its store are retried.

    Raises:
        SidecarError: If it is missing or damaged.
    """
    try:
        raw = read_bytes(url, storage_options, retries)
    except FileNotFoundError as error:
        raise SidecarError(f"{shown(url)} is missing but every shard needs a sidecar; {fix}") from error
    return from_bytes(raw, where=shown(url), fix=fix)
