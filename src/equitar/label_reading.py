"""How are the labels of a shard read whose members are known? Where its sidecar says, without a walk through its headers."""

from __future__ import annotations

from collections.abc import Collection
from typing import BinaryIO

import numpy as np

from equitar.errors import ShardError
from equitar.sidecar import Sidecar
from equitar.tar import MemberTable


def read_contents(sidecar: Sidecar, file: BinaryIO, fields: Collection[str] | None) -> MemberTable:
    """Return the member table of a shard with the bytes of some fields, of which nothing else is read.

    Args:
        sidecar: The sidecar of the shard, which can be sliced.
        file: The shard; it can seek.
        fields: The fields; None is for all.

    Raises:
        ShardError: If the shard ends before.
    """
    contents: list[dict[str, bytes]] = [{} for _ in sidecar.keys]
    wanted = np.array([fields is None or name in fields for name in sidecar.fields], bool)
    members = np.flatnonzero(wanted[sidecar.field]) if len(sidecar.field) else np.zeros(0, np.int64)
    rows = np.searchsorted(sidecar.indptr, members, side="right") - 1
    columns = (rows, sidecar.field[members], sidecar.offset[members], sidecar.size[members])
    for row, field, offset, size in zip(*(column.tolist() for column in columns), strict=True):
        file.seek(offset)
        found = file.read(size) if size else b""
        while len(found) < size and (more := file.read(size - len(found))):  # systems give at most 2 GiB at once
            found += more
        if len(found) < size:
            raise ShardError(
                f"the shard ends at byte {offset + len(found)} but its sidecar has data up to {offset + size}"
            )
        contents[row][sidecar.fields[field]] = found
    return MemberTable(
        keys=list(sidecar.keys),
        indptr=sidecar.indptr,
        fields=list(sidecar.fields),
        field=sidecar.field,
        offset=sidecar.offset,
        size=sidecar.size,
        sliceable=True,
        contents=contents,
        notes=(),
    )
