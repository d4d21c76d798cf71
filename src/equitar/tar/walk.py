"""Walk of a tar: its members and where their data begin, from one header to the next.

What Python's `tarfile` reads correctly is read alike. Where it silently takes damage for the end of the tar, there is a
`ShardError` that names the shard, the byte and what was there. A tar ends with two zero blocks; a file that ends cleanly after a
member is accepted, and marked. Bytes after the end are ignored, as by tar, unless another tar begins there.

A hard link is a member with the data of its target, a file of that name before it. Members that are neither files nor folders,
such as symbolic links and devices, are counted by `TarWalk.special`.

Bytes are read through a buffer at rising positions: headers close to each other cost one read, and unwanted data none if the
file can seek. Compressed files are decompressed on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from equitar.errors import ShardError
from equitar.storage.streams import CHUNK, GZIP_MAGIC, Gunzip, StreamError
from equitar.tar.headers import (
    EXTENDED,
    HARD_LINK,
    HEADER_BYTES,
    MAX_EXTENDED,
    MAX_SILENT,
    PAX,
    REGULAR,
    WITHOUT_DATA,
    ZEROS,
    HeaderError,
    PaxState,
    affects_data,
    link_target,
    parse_header,
)

WINDOW = 1 << 13  # holds the headers around one large member, and what is small between them


class ReadWindow:
    """Bytes of a file by position; positions must not decrease.

    Args:
        read: Returns up to the given number of bytes, and none only at the end.
        seek: Sets the position; None for a file that cannot seek.
        first: The bytes already read.
    """

    def __init__(self, read: Callable[[int], bytes], seek: Callable[[int], object] | None, first: bytes) -> None:
        self._read = read
        self._seek = seek
        self._buffer = first
        self._start = 0
        self._window = WINDOW

    def take(self, position: int, length: int) -> bytes:
        """Return `length` bytes from a position; fewer only at the end of the file."""
        begin = position - self._start
        data = self._buffer[begin : begin + length]
        return data if len(data) == length else self._fetch(position, length)

    def drain(self) -> None:
        """Read to the end, for the checksums there."""
        while self._read(CHUNK):
            pass

    def _fetch(self, position: int, length: int) -> bytes:
        """Move the buffer to a position, and make it long enough."""
        skipped = position - self._start - len(self._buffer)
        # Small gaps are cheaper to read than to skip by a system call each.
        self._window = min(2 * self._window, CHUNK) if skipped < WINDOW else WINDOW
        parts = [self._buffer[position - self._start :]] if skipped < 0 else []
        if skipped > 0 and self._seek:
            self._seek(position)
        while skipped > 0 and not self._seek and (passed := len(self._read(min(skipped, CHUNK)))):
            skipped -= passed
        # Never more than a chunk at once: a wrong length must not allocate memory.
        missing = length - sum(map(len, parts))
        while missing > 0 and (part := self._read(min(max(missing, self._window), CHUNK))):
            parts.append(part)
            missing -= len(part)
        self._buffer, self._start = b"".join(parts), position
        return self._buffer[:length]


_FIX = "copy or download the shard again"
_SPECIAL = {  # kinds of members that are ignored
    HARD_LINK: "hard links without a file of that name before them",
    b"2": "symbolic links",
    b"3": "devices",
    b"4": "devices",
    b"6": "named pipes",
}
_NOT_COUNTED = frozenset({b"5", b"V"})  # folders, and the label of a volume


class Member(NamedTuple):
    """A regular file of a tar.

    Attributes:
        name: Its name, after PAX and GNU records; bytes that are not UTF-8 are surrogate escapes.
        offset: Begin of its data in bytes (in a compressed shard: in the decompressed stream).
        size: Length of its data in bytes.
        data: Its data if they were requested, otherwise None.
    """

    name: str
    offset: int
    size: int
    data: bytes | None = None


def walk(file: BinaryIO, *, size: int | None, where: str, want: Callable[[str], bool] | None = None) -> TarWalk:
    """Return the members of a tar in order, from its headers; data are skipped unless requested.

    Args:
        file: The shard, opened in binary at its first byte; it need not be able to seek.
        size: Its length in bytes; None asks the file.
        where: Name of the shard in errors.
        want: Returns for the name of a member whether its data are requested (default: none).

    Raises:
        ShardError: If the file is empty, here; if it is not a tar, damaged or truncated, while walking.
    """
    return TarWalk(file, size=size, where=where, want=want)


class TarWalk(Iterator[Member]):
    """The members of one tar, in order; see `walk`."""

    def __init__(self, file: BinaryIO, *, size: int | None, where: str, want: Callable[[str], bool] | None) -> None:
        first = file.read(WINDOW)
        if not first:
            raise ShardError(f"{where} is empty (0 bytes) but a shard must be a tar; {_FIX}")
        self.sliceable = first[:2] != GZIP_MAGIC  # whether offsets are positions in the file
        self.truncated: str | None = None  # name of the member within whose data the tar ended
        self.special: dict[str, list[str]] = {}  # names of members that are neither files nor folders, by kind
        self.has_end_mark: bool | None = None  # False if it ended cleanly after a member; None until the walk is over
        self._where = where
        self._want = want
        self._file = file
        self._position = 0  # of the header at hand, for errors
        self._length: int | None = None  # of the tar in bytes, if known
        if not self.sliceable:
            self._bytes = ReadWindow(Gunzip(file, first).read, None, b"")
        elif file.seekable():
            self._length = file.seek(0, 2) if size is None else size
            file.seek(len(first))
            self._bytes = ReadWindow(file.read, file.seek, first)
        else:
            self._length = size
            self._bytes = ReadWindow(file.read, None, first)
        self._files: dict[bytes, tuple[int, int]] = {}  # position and size of the data of each, for hard links
        self._members = self._located()

    def __iter__(self) -> Iterator[Member]:  # noqa: PYI034  (the generator itself, which saves a call for each member)
        return self._members

    def __next__(self) -> Member:
        return next(self._members)

    def _located(self) -> Iterator[Member]:
        """The members; errors name shard and position."""
        try:
            yield from self._walk()
        except (HeaderError, StreamError) as error:
            place = f"byte {self._position}" + ("" if self.sliceable else " of its decompressed stream")
            is_tar = self._position > 0 or isinstance(error, StreamError)
            what = f"is damaged at {place}" if is_tar else "is not a tar"
            raise ShardError(f"{self._where} {what}: {error}; {_FIX}") from error

    def _walk(self) -> Iterator[Member]:
        take, want, length, files = self._bytes.take, self._want, self._length, self._files
        extended = PaxState()
        # PAX headers that only hold a time, which some writers put before each member: few different ones.
        silent: tuple[bytes, ...] = ()
        position = 0
        while True:
            self._position = position
            block = take(position, 3 * HEADER_BYTES)
            is_waiting = block.startswith(silent) and not affects_data(block[HEADER_BYTES : 2 * HEADER_BYTES])
            if is_waiting:
                self._position = position = position + 2 * HEADER_BYTES
                block = block[2 * HEADER_BYTES :]
            else:
                block = block[:HEADER_BYTES]
            if block == ZEROS or not block:
                break
            raw_name, size, kind = parse_header(block)
            target = b""
            begin = position + HEADER_BYTES
            if kind in EXTENDED:
                if kind == PAX and 0 < size <= HEADER_BYTES and len(silent) < MAX_SILENT:
                    silent += (block,)
                extended.add(kind, self._body(begin, size), after_time=is_waiting)
                position = begin + (size + 511 & -512)
                continue
            if extended.pending:
                raw_name, size, target = extended.applied(raw_name, size)
            position = begin if kind in WITHOUT_DATA else begin + (size + 511 & -512)
            if length is not None and position > length:
                raise self._truncated(raw_name, begin, size)
            name = raw_name.decode("utf-8", "surrogateescape")
            data = take(begin, size) if want is not None and kind in REGULAR and want(name) else None
            if length is None and not take(position - 1, 1):
                raise self._truncated(raw_name, begin, size)
            if kind in REGULAR:
                files[raw_name] = begin, size
                yield Member(name, begin, size, data)
            else:
                yield from self._special(kind, raw_name, name, target or link_target(block))
        self._end(position, block, is_waiting=is_waiting or extended.unused)

    def _special(self, kind: bytes, raw_name: bytes, name: str, target: bytes) -> tuple[Member, ...]:
        """Return a hard link as a member, and count what is neither a file nor a folder."""
        bare = target.removeprefix(b"./")
        files = self._files
        place = files.get(target) or files.get(bare) or files.get(b"./" + bare) if kind == HARD_LINK else None
        if place is not None:
            files[raw_name] = place
            want = self._want
            return (Member(name, *place, self._read_again(*place) if want is not None and want(name) else None),)
        if kind not in _NOT_COUNTED:
            self.special.setdefault(_SPECIAL.get(kind, "members of unknown kinds"), []).append(name)
        return ()

    def _read_again(self, offset: int, size: int) -> bytes:
        """Return data that were passed already."""
        if not self._file.seekable():
            raise HeaderError("a hard link cannot be followed back in a file that cannot seek")
        position = self._file.tell()
        self._file.seek(offset if self.sliceable else 0)
        read = self._file.read if self.sliceable else Gunzip(self._file, b"").read
        data = ReadWindow(read, None, b"").take(0 if self.sliceable else offset, size)
        self._file.seek(position)
        return data

    def _body(self, begin: int, size: int) -> bytes:
        """Return the body of an extended header."""
        if size > MAX_EXTENDED:
            raise HeaderError(f"an extended header declares {size} bytes but must not have more than {MAX_EXTENDED}")
        padded = size + 511 & -512
        body = self._bytes.take(begin, padded)
        if len(body) < padded:
            raise HeaderError(f"an extended header declares {size} bytes but {len(body)} are left with their padding")
        if size % HEADER_BYTES and body[size] and body[size - 1]:
            raise HeaderError(
                f"an extended header declares {size} bytes but its text continues with {body[size : size + 40]!r}"
            )
        return body[:size]

    def _truncated(self, name: bytes, begin: int, size: int) -> HeaderError:
        """Return the error of a member that extends beyond the end."""
        self.truncated = name.decode("utf-8", "surrogateescape")
        left = "fewer" if self._length is None else str(max(0, self._length - begin))
        return HeaderError(
            f"member {name!r} declares {size} bytes from byte {begin} but {left} are left with the padding"
        )

    def _end(self, position: int, block: bytes, *, is_waiting: bool) -> None:
        """Check the end of the tar, at a block that is zero or missing."""
        self._position = position
        if is_waiting:
            raise HeaderError("the tar ends after an extended header whose member is missing")
        if not block and self._length is not None and position < self._length:
            raise HeaderError(f"the file ends here but should have {self._length} bytes")
        after = self._bytes.take(position + HEADER_BYTES, HEADER_BYTES) if block else b""
        if after and after != ZEROS:
            beginning = after[:40].rstrip(b"\0")
            raise HeaderError(
                f"two zero blocks end a tar but {len(after)} bytes that begin with {beginning!r} follow the first"
            )
        self.has_end_mark = bool(after)
        if self.has_end_mark:
            self._check_tail(position + 2 * HEADER_BYTES)
        if not self.sliceable:
            self._bytes.drain()  # the checksum is at the end

    def _check_tail(self, position: int) -> None:
        """Raise a HeaderError if another tar follows the end mark; other bytes are ignored, as by tar."""
        while (blocks := self._bytes.take(position, CHUNK)) and not any(blocks):
            position += len(blocks)
        used = next((index for index, byte in enumerate(blocks) if byte), 0) // HEADER_BYTES * HEADER_BYTES
        try:
            name, _, kind = parse_header(blocks[used : used + HEADER_BYTES])
        except HeaderError:
            return
        self._position = position + used
        where = "an extended header" if kind in EXTENDED else f"member {name!r}"
        raise HeaderError(
            f"another tar begins with {where} after the end of the first; make one tar of both, as `tar --concatenate` does"
        )
