"""Bulk reading of ordinary shards: all headers are checked together by numpy, instead of one after another.

Nearly all shards are ordinary: files (and folders) with names of up to 100 bytes, each preceded by a PAX header that only holds
its time, or none of them, and two zero blocks at the end. For anything else, damage included, the result is None, and
`equitar.tar.walk` reads the tar or reports what is wrong. A test proves that both give the same.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from equitar.arrays import Int64
from equitar.storage.streams import GZIP_MAGIC
from equitar.tar.headers import (
    HEADER_BYTES,
    MAX_SILENT,
    PAX,
    HeaderError,
    affects_data,
    parse_header,
    pax_records,
)

_NEAR = 1 << 13  # bytes that are cheaper to read than to skip
_FAR = 1 << 16
FIRST = 32  # bytes of data read with a header on request; labels are shorter
_BATCH = 1 << 13  # headers held at once: 8 MB with what lies before them
_FILE, _FOLDER = ord("0"), ord("5")
_OCTAL = 8 ** np.arange(6)[::-1]  # (6,), values of the digits of a checksum
_TIME = 128  # bytes, more than a PAX body that only holds a time
Pread = Callable[[int, int], bytes]


class BulkMembers(NamedTuple):
    """The regular files of an ordinary shard, as in `equitar.tar.walk.Member`."""

    names: list[str]
    offset: Int64  # of the data of each, (members,), bytes
    size: Int64  # of the data of each, (members,), bytes
    first: list[bytes]  # first bytes of the data of each, on request: a label read with its header costs nothing


def ordinary_members(pread: Pread, length: int, *, with_first: bool = False) -> BulkMembers | None:
    """Return the members of a shard if it is ordinary, otherwise None.

    Args:
        pread: Returns up to `length` bytes from a position; fewer only at the end.
        length: Length of the shard in bytes.
        with_first: Whether to return the first `FIRST` bytes of the data of each.
    """
    names: list[str] = []
    first: list[bytes] = []
    offsets, sizes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    headers = BulkHeaders(pread, FIRST if with_first else 0)
    while headers.advance(_BATCH):
        members = checked(headers)
        if members is None:
            return None
        names += members.names
        first += members.first
        offsets.append(members.offset)
        sizes.append(members.size)
    if not headers.ends_with_mark(length):
        return None
    return BulkMembers(names, np.concatenate(offsets), np.concatenate(sizes), first)


def checked(headers: BulkHeaders) -> BulkMembers | None:
    """Return the members of the headers at hand, None if any of them is damaged or not ordinary."""
    blocks = headers.blocks
    raw = b"".join(blocks)
    after = headers.after
    first = len(blocks[0]) - HEADER_BYTES - after  # of the header, in each line
    lines = np.frombuffer(raw, np.uint8).reshape(len(blocks), -1)  # (headers, 512 or 1024 + after)
    if first and (lines[:, _TIME:HEADER_BYTES].any() or affects_data(b"".join(_texts(lines, _TIME)))):
        return None
    block = lines[:, first : first + HEADER_BYTES]  # (headers, 512)
    digit = block[:, 148:154] - np.uint8(ord("0"))  # (headers, 6); above 7 where it is not a digit
    checksum = block.sum(1, np.uint32) - block[:, 148:156].sum(1, np.uint32) + 8 * ord(" ")
    is_whole = digit.max() < 8 and (checksum == digit @ _OCTAL).all()
    has_more = block[:, 345].any() or (block[:, 135] > 0x20).any()  # a prefix, or a twelfth digit of the size
    size = np.array(headers.sizes, np.int64)
    is_file = block[:, 156] == _FILE
    is_folder = (block[:, 156] == _FOLDER) & (size == 0)
    if not is_whole or has_more or not (is_file | is_folder).all():
        return None
    names = b"\0".join(_texts(block, 100)).decode("utf-8", "surrogateescape").split("\0")
    if len(names) != len(blocks):  # text after the zero that ends a name
        return None
    room = size + 511 & -512
    steps = np.cumsum(
        room + (3 * HEADER_BYTES if first else HEADER_BYTES)
    )  # from the first header to the end of each member
    offset = headers.position - steps[-1] + steps - room
    data = [line[-after:] for line in blocks] if after else []
    if is_file.all():
        return BulkMembers(names, offset, size, data)
    selected = is_file.tolist()
    return BulkMembers(list(compress(names, selected)), offset[is_file], size[is_file], list(compress(data, selected)))


def _texts(lines: NDArray[np.uint8], width: int) -> list[bytes]:
    """Return the first bytes of each line, without trailing zeros."""
    texts: list[bytes] = np.ascontiguousarray(lines[:, :width]).view(f"S{width}")[:, 0].tolist()
    return texts


class BulkHeaders:
    """The headers of a tar in order, located by the sizes they declare; nothing else in them is checked."""

    def __init__(self, pread: Pread, after: int = 0) -> None:
        self.after = after  # bytes after each header that are read with it
        self.position = 0  # of the next header
        self.blocks: list[bytes] = []  # headers at hand, each after the body of its PAX header, if it has one
        self.sizes: list[int] = []  # length of the data of each
        self._pread = pread
        first = pread(HEADER_BYTES, 0)
        # The PAX header before each header; later also other spellings of it.
        self._pax: tuple[bytes, ...] = (first if self._is_time(first, 0) else b"",)

    def advance(self, limit: int) -> bool:
        """Go to the next headers, at most `limit` of them; False if there is none."""
        self.blocks, self.sizes = [], []
        while True:
            self._follow(limit)
            if len(self.blocks) == limit or not self._pax[0] or len(self._pax) == MAX_SILENT:
                break
            block = self._pread(HEADER_BYTES, self.position)
            if block in self._pax or not self._is_time(block, self.position):
                break
            self._pax += (block,)
        return bool(self.blocks)

    def ends_with_mark(self, length: int) -> bool:
        """Return whether a tar of this length that is not compressed ends here, with nothing but zeros after its members."""
        end = position = self.position
        while position < length and (tail := self._pread(_FAR, position)) and not any(tail):
            position += len(tail)
        return end + 2 * HEADER_BYTES <= length == position and self._pread(len(GZIP_MAGIC), 0) != GZIP_MAGIC

    def _follow(self, limit: int) -> None:
        """Collect headers of the same form."""
        blocks, sizes, pax, position = self.blocks, self.sizes, self._pax, self.position
        skip = len(pax[0])
        unit = 3 * HEADER_BYTES if skip else HEADER_BYTES
        end = unit + self.after
        size_field = slice(skip + 124, skip + 135)  # in a block
        window, start, last, reach = b"", position, -1, _NEAR  # `last`: the last begin of a header in the window
        for _ in range(limit - len(blocks)):
            begin = position - start
            if begin > last:
                reach = min(2 * reach, _FAR) if begin - len(window) < _NEAR else _NEAR
                window, start, begin = self._pread(reach, position), position, 0
                last = len(window) - end
                if last < 0:
                    break
            if not window.startswith(pax, begin):
                break
            block = window[begin + skip : begin + end]
            try:
                size = int(block[size_field], 8)
            except ValueError:  # zeros, or damage
                break
            if size < 0:
                break
            position += unit + (size + 511 & -512)
            blocks.append(block)
            sizes.append(size)
        self.position = position

    def _is_time(self, block: bytes, position: int) -> bool:
        """Return whether a block is the intact header of a short PAX body for the next member alone."""
        try:
            _, size, kind = parse_header(block)
            if kind != PAX or not 0 < size <= HEADER_BYTES:
                return False
            pax_records(self._pread(size, position + HEADER_BYTES))
        except HeaderError:
            return False
        return True
