"""Member table of a tar: its samples and the offsets of their fields, from its headers alone."""

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
    """The samples of one shard: keys, and the position of each field."""

    keys: Sequence[str]  # of each row, (rows,)
    indptr: Int64  # first member of each row, and the number of members last, (rows + 1,)
    fields: Sequence[str]  # distinct field names, in order of their first use
    field: Int64  # index into `fields` of each member, (members,)
    offset: Int64  # of the data of each member, (members,), bytes
    size: Int64  # of the data of each member, (members,), bytes
    sliceable: bool  # whether the offsets are positions in the file; False in a compressed shard
    contents: Sequence[dict[str, bytes]] = ()  # requested data by field, for each row
    notes: tuple[str, ...] = ()  # what is odd but not an error, with counts, to be shown to the user
    special_members: int = 0  # members that are neither files nor folders, such as links and devices; see the notes


def read_table(
    file: BinaryIO, *, size: int, where: str, fields: Collection[str] | None, regroup: bool = False
) -> MemberTable:
    """Return the samples of a shard, with the data of some fields; an ordinary local file is read in bulk.

    Args:
        file: The shard, opened in binary at its first byte.
        size: Its length in bytes.
        where: Name of the shard in errors.
        fields: Fields whose data are requested; None is for all.
        regroup: Whether members of one sample may lie apart.

    Raises:
        ShardError: If it is not a tar, damaged or truncated, or its members do not form samples; see `member_table`.
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
    members = ordinary_members(pread, size, with_first=fields != ())
    if members is None:
        return None
    table = member_table(members, where, regroup=regroup)
    is_same_order = np.array_equal(table.offset, members.offset)  # False if some are not in a sample, or were regrouped
    return _with_contents(table, members.first if is_same_order else [], pread, fields)


def _with_contents(
    table: MemberTable, first: Sequence[bytes], pread: Pread, fields: Collection[str] | None
) -> MemberTable | None:
    """Return a table with the data of some fields; None if the file has become shorter meanwhile.

    Args:
        table: The table.
        first: The first bytes of each member, or empty.
        pread: Reads the file.
        fields: The fields; None is for all.
    """
    contents: list[dict[str, bytes]] = [{} for _ in table.keys]
    wanted = np.array([fields is None or name in fields for name in table.fields], bool)
    chosen = np.flatnonzero(wanted[table.field]) if len(table.field) else table.field
    rows = np.searchsorted(table.indptr, chosen, side="right") - 1
    columns = (chosen, rows, table.field[chosen], table.offset[chosen], table.size[chosen])
    for member, row, field, offset, size in zip(*(column.tolist() for column in columns), strict=True):
        data = first[member][:size] if first and size <= FIRST else pread(size, offset)
        contents[row][table.fields[field]] = data
        if len(data) < size:
            return None
    return replace(table, contents=contents)


def member_table(members: Iterable[Member] | BulkMembers, where: str, *, regroup: bool = False) -> MemberTable:
    """Return the samples that members form: adjacent members with equal keys are one sample.

    Args:
        members: The members of one tar in order: a `TarWalk`, or from `ordinary_members`.
        where: Name of the shard in errors.
        regroup: Whether members of one sample may lie apart; they are joined at the place of the first one.

    Raises:
        ShardError: If a field occurs twice in a sample, a key again after another one, ``./a`` and ``a`` are both keys, a
            field has a name that webdataset reserves, or the tar was truncated within its last sample.
    """
    rows = SampleGrouper(where)
    is_scattered = False
    if not isinstance(members, BulkMembers):
        is_scattered = _add(members, rows, regroup=regroup)
    elif not rows.add_uniform(members):
        _add(map(Member, members.names, members.offset.tolist(), members.size.tolist()), rows, regroup=regroup)
    rows.check_names()
    has_end_mark = members.has_end_mark if isinstance(members, TarWalk) else True
    special = members.special if isinstance(members, TarWalk) else {}
    if not has_end_mark and is_scattered:
        raise ShardError(f"{where} ends without an end mark, so members of any sample may be missing; copy it again")
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
        notes=(
            *rows.notes(),
            *(f"{len(names)} {kind} ignored, such as {names[0]!r}" for kind, names in special.items()),
            *([] if has_end_mark else ["no end mark: the tar may have been truncated"]),
        ),
        special_members=sum(map(len, special.values())),
    )


def _add(members: Iterable[Member], rows: SampleGrouper, *, regroup: bool) -> bool:
    """Add members to rows, and return whether they had to be reordered."""
    if not regroup:
        rows.add_all(members)
        return False
    listed = list(members)
    ordered = regrouped(listed)
    rows.add_all(ordered)
    return ordered != listed
