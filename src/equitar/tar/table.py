"""Which samples does a tar hold, and where are the bytes of their fields? Its member table, from its headers alone."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import BinaryIO

import numpy as np

from equitar.arrays import Int64
from equitar.errors import ShardError
from equitar.tar.bulk import FIRST, BulkMembers, Pread, ordinary_members
from equitar.tar.grouping import SampleGrouper, regrouped, wants_fields
from equitar.tar.walk import Member, TarWalk, walk


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTable:
    """The samples of one shard: keys, and where the bytes of each field are.

    Attributes:
        keys: Key of each row, (rows,).
        indptr: First member of each row, and their number at last, (rows + 1,).
        fields: The distinct field names, in order of their first use.
        field: Which of `fields` each member is, (members,).
        offset: Where the data of each member begin, (members,), bytes.
        size: Length of the data of each member, (members,), bytes.
        sliceable: Whether the offsets are positions in the file; in a compressed shard they are not.
        contents: The bytes the walk was asked for, by field, for each row.
        notes: What is odd but no error, each with its number, to be shown to the user.
    """

    keys: Sequence[str]
    indptr: Int64
    fields: Sequence[str]
    field: Int64
    offset: Int64
    size: Int64
    sliceable: bool
    contents: Sequence[dict[str, bytes]] = ()
    notes: tuple[str, ...] = ()


def read_table(
    file: BinaryIO, *, size: int, where: str, fields: Collection[str] | None, regroup: bool = False
) -> MemberTable:
    """Return the samples of a shard, with the bytes of some fields; an ordinary local file is read in bulk.

    Args:
        file: The shard, opened in binary at its first byte.
        size: Its length in bytes.
        where: What the shard is called in errors.
        fields: Fields whose bytes are wanted; None is for all.
        regroup: Whether members of one sample may lie apart.

    Raises:
        ShardError: If it is no tar, damaged or cut, or its members do not form samples; see `member_table`.
    """
    if isinstance(file, io.FileIO):
        table = read_in_bulk(partial(os.pread, file.fileno()), size, where, fields, regroup=regroup)
        if table is not None:
            return table
    want = (lambda _: True) if fields is None else wants_fields(fields) if fields else None
    return member_table(walk(file, size=size, where=where, want=want), where, regroup=regroup)


def read_in_bulk(
    pread: Pread, size: int, where: str, fields: Collection[str] | None, *, regroup: bool = False
) -> MemberTable | None:
    """Return the samples of an ordinary shard, None for any other; see `read_table`."""
    found = ordinary_members(pread, size, with_first=fields != ())
    if found is None:
        return None
    table = member_table(found, where, regroup=regroup)
    is_in_order = np.array_equal(table.offset, found.offset)  # else there are members of no sample, or regrouped ones
    return _with_contents(table, found.first if is_in_order else [], pread, fields)


def _with_contents(
    table: MemberTable, first: Sequence[bytes], pread: Pread, fields: Collection[str] | None
) -> MemberTable | None:
    """Return a table with the bytes of some fields, read where they lie; None if the file has become shorter since.

    Args:
        table: The table.
        first: The first bytes of each member, or nothing.
        pread: Reads the file.
        fields: The fields; None is for all.
    """
    contents: list[dict[str, bytes]] = [{} for _ in table.keys]
    wanted = np.array([fields is None or name in fields for name in table.fields], bool)
    chosen = np.flatnonzero(wanted[table.field]) if len(table.field) else table.field
    row = np.searchsorted(table.indptr, chosen, side="right") - 1
    columns = (chosen, row, table.field[chosen], table.offset[chosen], table.size[chosen])
    for member, at, field, offset, size in zip(*(column.tolist() for column in columns), strict=True):
        found = first[member][:size] if first and size <= FIRST else pread(size, offset)
        contents[at][table.fields[field]] = found
        if len(found) < size:
            return None
    return replace(table, contents=contents)


def member_table(members: Iterable[Member] | BulkMembers, where: str, *, regroup: bool = False) -> MemberTable:
    """Return the samples that members form: neighbours with equal keys are one sample.

    Args:
        members: The members of one tar in its order: a `TarWalk`, or what `ordinary_members` found.
        where: What the shard is called in errors.
        regroup: Whether members of one sample may lie apart; they are joined where its first one is.

    Raises:
        ShardError: If a field comes twice in a sample, a key comes back after another, ``./a`` and ``a`` are both keys, a
            field has a name that webdataset keeps for itself, or the tar was cut within its last sample.
    """
    rows = SampleGrouper(where)
    if not isinstance(members, BulkMembers):
        rows.add_all(regrouped(members) if regroup else members)
    elif not rows.add_alike(members):
        each = map(Member, members.names, members.offset.tolist(), members.size.tolist())
        rows.add_all(regrouped(each) if regroup else each)
    rows.check_names()
    has_end_mark = members.has_end_mark if isinstance(members, TarWalk) else True
    if not has_end_mark and regroup:
        raise ShardError(f"{where} ends without an end mark, so members of any sample may have been cut; copy it again")
    if not has_end_mark:
        rows.check_last()
    return MemberTable(
        keys=list(rows.row_of),
        indptr=np.array([*rows.starts, len(rows.field)], np.int64),
        fields=list(rows.fields),
        field=np.array(rows.field, np.int64),
        offset=np.array(rows.offset, np.int64),
        size=np.array(rows.size, np.int64),
        sliceable=members.sliceable if isinstance(members, TarWalk) else True,
        contents=rows.contents,
        notes=(*rows.notes(), *([] if has_end_mark else ["no end mark: the tar may have been cut"])),
    )
