"""How is one sample read? By the member table: one positioned read for all members of a row, and no header is parsed.

A sample is what webdataset would have made of the same tar: a dict of ``__key__``, ``__url__`` and the bytes of each field.
The size of a shard is compared with its sidecar when it is opened, and a read that ends early is an error: a shard that has
become another is never sliced wrongly.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

import numpy as np

from equitar.ahead import Wanted
from equitar.catalog import Sidecars
from equitar.errors import ShardMismatchError, SourceError
from equitar.headers import BLOCK, HeaderError, parse_header
from equitar.mix64 import Int64
from equitar.opening import LazyRanges, open_ranges
from equitar.redact import shown
from equitar.sidecar import Sidecar
from equitar.sources import Sample
from equitar.storage import local_path
from equitar.tar import split_name

_LONGEST_NAME = 100  # bytes that a header has for a name
_OPEN_SHARDS = 32  # a window touches a few shards of its source
_GAP = 1 << 16  # bytes between two members up to which one read for both is cheaper than two


class _Shard:
    """An open shard, with its member table as lists: indexing a list is several times quicker than an array."""

    def __init__(
        self, url: str, sidecar: Sidecar, fields: Collection[str] | None, sidecars: Sidecars, *, as_it_is: bool
    ) -> None:
        self.url, self.keys = url, sidecar.keys
        wanted = np.array([fields is None or name in fields for name in sidecar.fields], bool)
        if fields and not wanted.any() and sidecar.fields:
            raise SourceError(
                f"`fields` must name a field of each shard; got {sorted(fields)} but {shown(url)} has {', '.join(sidecar.fields)}"
            )
        chosen = np.flatnonzero(wanted[sidecar.field]) if len(sidecar.field) else np.zeros(0, np.int64)
        row = np.searchsorted(sidecar.indptr, chosen, side="right") - 1
        self.first_member: list[int] = np.searchsorted(row, np.arange(sidecar.num_rows + 1)).tolist()
        self.names = [sidecar.fields[one] for one in sidecar.field[chosen].tolist()]
        self.starts: list[int] = sidecar.offset[chosen].tolist()
        self.sizes: list[int] = sidecar.size[chosen].tolist()
        self.whole = _one_read_each(sidecar.offset[chosen], sidecar.size[chosen], row)
        self.file = open_ranges(url, sidecar, sidecars.source, as_it_is=as_it_is)
        self.read = self.file.read

    def check_header(self, row: int, member: int) -> None:
        """Raise ShardMismatchError if the header before a member is not that of the member."""
        begin = self.starts[member]
        try:
            raw_name, size, _ = parse_header(self.read(begin - BLOCK, BLOCK))
        except HeaderError as error:
            raise ShardMismatchError(f"{shown(self.url)} is damaged at byte {begin - BLOCK}: {error}") from error
        name = f"{self.keys[row]}.{self.names[member]}"
        # Longer names, and those of other letters, are in a header before, and cut or changed in this one.
        is_plain = name.isascii() and len(name) <= _LONGEST_NAME
        found = raw_name.decode("utf-8", "surrogateescape")
        if size != self.sizes[member] or (is_plain and split_name(found) != (self.keys[row], self.names[member])):
            raise ShardMismatchError(
                f"{shown(self.url)} has member {found!r} of {size} bytes at byte {begin} but its sidecar has {name!r} of "
                f"{self.sizes[member]}"
            )


def _one_read_each(offset: Int64, size: Int64, row: Int64) -> bool:
    """Return whether the members of every row lie close together and in order."""
    gaps = offset[1:] - (offset + size)[:-1]
    within = row[1:] == row[:-1]
    return bool(((gaps >= 0) & (gaps <= _GAP))[within].all())


class Reader:
    """Reads samples of one source by shard and row."""

    def __init__(self, sidecars: Sidecars, *, fields: Collection[str] | None, copy: bool) -> None:
        """Prepare; shards are opened when one of their samples is asked for.

        Args:
            sidecars: The sidecars of the source.
            fields: Fields to read; None reads all.
            copy: Whether fields are `bytes`; otherwise they are read-only views of one buffer for each sample.
        """
        self._sidecars, self._copy = sidecars, copy
        self._fields = None if fields is None else frozenset(field.lower() for field in fields)
        self._open: OrderedDict[int, _Shard] = OrderedDict()
        self._as_it_is: set[int] = set()

    def read(self, shard: int, row: int) -> Sample:
        """Return one sample.

        Raises:
            StaleSidecarError: If the shard has another size than when it was indexed.
            ShardMismatchError: If it ends early.
        """
        one = self._open.get(shard) or self._opened(shard)
        sample: Sample = {"__key__": one.keys[row], "__url__": one.url}
        first, last = one.first_member[row], one.first_member[row + 1]
        if not one.whole:
            for member in range(first, last):
                sample[one.names[member]] = one.read(one.starts[member], one.sizes[member])
        elif first < last:
            begin = one.starts[first]
            raw = one.read(begin, one.starts[last - 1] + one.sizes[last - 1] - begin)
            span = raw if self._copy else memoryview(raw)
            for member in range(first, last):
                at = one.starts[member] - begin
                sample[one.names[member]] = span[at : at + one.sizes[member]]
        return sample

    def read_checked(self, shard: int, row: int) -> Sample:
        """Return one sample of a shard that is not what its sidecar says, if at least the sample is.

        Raises:
            ShardMismatchError: If the headers of its members are not there.
        """
        one = self._open.get(shard) or self._opened(shard)
        for member in range(one.first_member[row], one.first_member[row + 1]):
            one.check_header(row, member)
        return self.read(shard, row)

    def reopen(self, shard: int) -> None:
        """Open a shard although it is not what its sidecar says, from now on."""
        self._as_it_is.add(shard)
        if shard in self._open:
            self._open.pop(shard).file.close()

    @property
    def is_far(self) -> bool:
        """Whether its shards are worth reading ahead of."""
        urls = self._sidecars.shards.urls  # which are all in one place, as they have one root
        return bool(urls) and local_path(urls[0]) is None

    def wanted(self, shard: int, row: int) -> list[Wanted]:
        """Return the ranges that a sample will be read by; none if its shard is here."""
        one = self._open.get(shard) or self._opened(shard)
        file = one.file
        if not isinstance(file, LazyRanges):
            return []
        first, last = one.first_member[row], one.first_member[row + 1]
        if not one.whole:
            return [(file.announced, one.starts[member], one.sizes[member]) for member in range(first, last)]
        begin = one.starts[first] if first < last else 0
        return [(file.announced, begin, one.starts[last - 1] + one.sizes[last - 1] - begin)] if first < last else []

    def key_of(self, shard: int, row: int) -> str:
        """Return the key of a sample, from the sidecar."""
        return self._sidecars(shard).keys[row]

    def _opened(self, shard: int) -> _Shard:
        shards = self._sidecars.shards
        one = _Shard(
            shards.urls[shard],
            self._sidecars(shard),
            self._fields,
            self._sidecars,
            as_it_is=shard in self._as_it_is,
        )
        self._open[shard] = one
        if len(self._open) > _OPEN_SHARDS:
            self._close_one(but=shard)
        return one

    def _close_one(self, *, but: int) -> None:
        """Close the shard that was opened first, of those that nothing is fetched of."""
        for shard, one in self._open.items():
            is_awaited = isinstance(one.file, LazyRanges) and bool(one.file.announced.spans)
            if shard != but and not is_awaited:
                del self._open[shard]
                one.file.close()
                return

    def close(self) -> None:
        """Close all shards."""
        while self._open:
            self._open.popitem()[1].file.close()
