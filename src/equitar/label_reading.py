"""How are the labels of a shard read whose members are known? Where its sidecar says, without a walk through its headers."""

from __future__ import annotations

from collections.abc import Collection
from typing import BinaryIO

import numpy as np

from equitar.errors import ShardError
from equitar.grouping import what_differs
from equitar.headers import BLOCK
from equitar.sidecar import Sidecar
from equitar.tar import MemberTable


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
    for row, field, offset, size in zip(*(column.tolist() for column in columns), strict=True):
        file.seek(offset - BLOCK)
        found = file.read(BLOCK + size)
        while len(found) < BLOCK + size and (
            more := file.read(BLOCK + size - len(found))
        ):  # at most 2 GiB come at once
            found += more
        if len(found) < BLOCK + size:
            end = offset - BLOCK + len(found)
            raise ShardError(f"the shard ends at byte {end} but its sidecar has data up to {offset + size}")
        name = sidecar.fields[field]
        if what_differs(found[:BLOCK], key=keys[row], field=name, size=size):
            return None
        contents[row][name] = found[BLOCK:]
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
