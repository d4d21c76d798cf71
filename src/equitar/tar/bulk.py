"""What lies in an ordinary shard? All its headers are looked at together, by numpy, and not one after another.

Nearly all shards are ordinary: files (and folders) with names of up to 100 bytes, before each of them a PAX header that holds
but its time or before none, and two zero blocks at the end. Anything else is no error here, damage included: the answer is
None, and `equitar.walking` goes through the tar and says what there is, or what is wrong. A test proves both equal.
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
    ZEROS,
    HeaderError,
    parse_header,
    pax_records,
    says_something,
)

_NEAR = 1 << 13  # bytes that are cheaper to read than to step over
_FAR = 1 << 16
FIRST = 32  # bytes of data taken with a header if asked for; labels are shorter
_BATCH = 1 << 13  # headers held at once: 8 MB with what lies before them
_FILE, _FOLDER = ord("0"), ord("5")
_OCTAL = 8 ** np.arange(6)[::-1]  # (6,), what the digits of a checksum stand for
_TIME = 128  # bytes of a PAX body that holds a time, and then some
Pread = Callable[[int, int], bytes]


class BulkMembers(NamedTuple):
    """The regular files of an ordinary shard, as in `equitar.tar.walk.Member`.

    Attributes:
        names: Their names.
        offset: Where the data of each begin, (members,), bytes.
        size: Length of the data of each, (members,), bytes.
        first: The first bytes of the data of each, if they were asked for: a label read with the header costs nothing.
    """

    names: list[str]
    offset: Int64
    size: Int64
    first: list[bytes]


def ordinary_members(pread: Pread, length: int, *, with_first: bool = False) -> BulkMembers | None:
    """Return the members of a shard if it is an ordinary one, else None.

    Args:
        pread: Gives up to so many bytes from a position; fewer only at the end.
        length: Length of the shard in bytes.
        with_first: Whether to give the first `FIRST` bytes of the data of each.
    """
    names: list[str] = []
    first: list[bytes] = []
    offsets, sizes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    headers = BulkHeaders(pread, FIRST if with_first else 0)
    while headers.found(_BATCH):
        found = checked(headers)
        if found is None:
            return None
        names += found.names
        first += found.first
        offsets.append(found.offset)
        sizes.append(found.size)
    if not headers.end_well(length):
        return None
    return BulkMembers(names, np.concatenate(offsets), np.concatenate(sizes), first)


def checked(headers: BulkHeaders) -> BulkMembers | None:
    """Return the members that headers stand for, None if any of them is damaged or out of the ordinary."""
    blocks = headers.blocks
    raw = b"".join(blocks)
    after = headers.after
    first = len(blocks[0]) - HEADER_BYTES - after  # of a header in its blocks
    lines = np.frombuffer(raw, np.uint8).reshape(len(blocks), -1)  # (headers, 512 or 1024, and what is after)
    if first and (lines[:, _TIME:HEADER_BYTES].any() or says_something(b"".join(_texts(lines, _TIME)))):
        return None
    block = lines[:, first : first + HEADER_BYTES]  # (headers, 512)
    digit = block[:, 148:154] - np.uint8(ord("0"))  # (headers, 6); above 7 where there is none
    counted = block.sum(1, np.uint32) - block[:, 148:156].sum(1, np.uint32) + 8 * ord(" ")
    is_whole = digit.max() < 8 and (counted == digit @ _OCTAL).all()
    has_more = block[:, 345].any() or (block[:, 135] > 0x20).any()  # a prefix, or one more digit of the size
    size = np.array(headers.sizes, np.int64)
    is_file = block[:, 156] == _FILE
    is_folder = (block[:, 156] == _FOLDER) & (size == 0)
    if not is_whole or has_more or not (is_file | is_folder).all():
        return None
    names = b"\0".join(_texts(block, 100)).decode("utf-8", "surrogateescape").split("\0")
    if len(names) != len(blocks):  # a zero within a name, where it ends
        return None
    room = size + 511 & -512
    steps = np.cumsum(
        room + (3 * HEADER_BYTES if first else HEADER_BYTES)
    )  # from the first header to the end of each member
    offset = headers.at - steps[-1] + steps - room
    data = [one[-after:] for one in blocks] if after else []
    if is_file.all():
        return BulkMembers(names, offset, size, data)
    kept = is_file.tolist()
    return BulkMembers(list(compress(names, kept)), offset[is_file], size[is_file], list(compress(data, kept)))


def _texts(lines: NDArray[np.uint8], width: int) -> list[bytes]:
    """Return the first bytes of each line, without the zeros after them."""
    texts: list[bytes] = np.ascontiguousarray(lines[:, :width]).view(f"S{width}")[:, 0].tolist()
    return texts


class BulkHeaders:
    """The headers of a tar in order, found by the sizes they declare; what else they say is not looked at.

    Attributes:
        at: Where the next header would be.
        blocks: The headers found last, each with the body of the PAX header before it if there are such.
        sizes: Length of the data of each.
        after: How many bytes behind each header are with it.
    """

    def __init__(self, pread: Pread, after: int = 0) -> None:
        self.after = after
        self.at = 0
        self.blocks: list[bytes] = []
        self.sizes: list[int] = []
        self._pread = pread
        first = pread(HEADER_BYTES, 0)
        # What each header comes after; later also other spellings.
        self._pax: tuple[bytes, ...] = (first if self._is_time(first, 0) else b"",)

    def found(self, limit: int) -> bool:
        """Find more headers, so many at most; False if there is none."""
        self.blocks, self.sizes = [], []
        while True:
            self._follow(limit)
            if len(self.blocks) == limit or not self._pax[0] or len(self._pax) == MAX_SILENT:
                break
            block = self._pread(HEADER_BYTES, self.at)
            if block in self._pax or not self._is_time(block, self.at):
                break
            self._pax += (block,)
        return bool(self.blocks)

    def end_well(self, length: int) -> bool:
        """Return whether a tar of this length ends where no header was found, and is not compressed."""
        end = self._pread(2 * HEADER_BYTES, self.at) if self.at + 2 * HEADER_BYTES <= length else b""
        return end == 2 * ZEROS and self._pread(len(GZIP_MAGIC), 0) != GZIP_MAGIC

    def _follow(self, limit: int) -> None:
        """Go from header to header, as long as there is one."""
        blocks, sizes, pax, at = self.blocks, self.sizes, self._pax, self.at
        skip = len(pax[0])
        unit = 3 * HEADER_BYTES if skip else HEADER_BYTES
        end = unit + self.after
        number = slice(skip + 124, skip + 135)  # of a block, where the size is
        window, start, last, reach = b"", at, -1, _NEAR  # `last` is where a header may begin in the window
        for _ in range(limit - len(blocks)):
            begin = at - start
            if begin > last:
                reach = min(2 * reach, _FAR) if begin - len(window) < _NEAR else _NEAR
                window, start, begin = self._pread(reach, at), at, 0
                last = len(window) - end
                if last < 0:
                    break
            if not window.startswith(pax, begin):
                break
            block = window[begin + skip : begin + end]
            try:
                size = int(block[number], 8)
            except ValueError:  # zeros, if not damage
                break
            if size < 0:
                break
            at += unit + (size + 511 & -512)
            blocks.append(block)
            sizes.append(size)
        self.at = at

    def _is_time(self, block: bytes, at: int) -> bool:
        """Return whether a block at a position is the header of a short PAX body for the next member alone, and intact."""
        try:
            _, size, kind = parse_header(block)
            if kind != PAX or not 0 < size <= HEADER_BYTES:
                return False
            pax_records(self._pread(size, at + HEADER_BYTES))
        except HeaderError:
            return False
        return True
