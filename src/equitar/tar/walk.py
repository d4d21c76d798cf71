"""Which files lie in a tar, and where? A walk of its headers.

What Python's `tarfile` reads rightly is read alike. Where it takes damage for the end of the tar and says nothing, there is
a `ShardError` that names the shard, the byte and what was found there. The end of a tar is two zero blocks; a file that
ends cleanly after a member is accepted, and marked.

How are the headers of a file read that is not worth reading whole? By bytes at rising positions.

A window is read where bytes are asked for, so that headers close to each other cost one read, and data nobody wants cost
none if the file can seek. Compressed bytes are inflated on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from equitar.errors import ShardError
from equitar.storage.streams import _CHUNK, GZIP_MAGIC, Gunzip, StreamError
from equitar.tar.headers import (
    EXTENDED,
    HEADER_BYTES,
    MAX_EXTENDED,
    MAX_SILENT,
    PAX,
    REGULAR,
    WITHOUT_DATA,
    ZEROS,
    HeaderError,
    PaxState,
    parse_header,
    says_something,
)

WINDOW = 1 << 13  # holds the headers around one large member, and what is small between them


class ReadWindow:
    """Bytes of a file by position; positions may not fall.

    Args:
        read: Gives up to as many bytes as it is asked for, and none only at the end.
        seek: Goes to a position; None where bytes can only be read through.
        first: What has been read of the file already.
    """

    def __init__(self, read: Callable[[int], bytes], seek: Callable[[int], object] | None, first: bytes) -> None:
        self._read = read
        self._seek = seek
        self._held = first
        self._start = 0
        self._window = WINDOW

    def take(self, at: int, length: int) -> bytes:
        """Return `length` bytes from position `at`; fewer only where the file ends."""
        begin = at - self._start
        found = self._held[begin : begin + length]
        return found if len(found) == length else self._fetch(at, length)

    def drain(self) -> None:
        """Read on to the end, for the sake of checks that come with it."""
        while self._read(_CHUNK):
            pass

    def _fetch(self, at: int, length: int) -> bytes:
        """Move the window to `at`, and make it long enough."""
        skipped = at - self._start - len(self._held)
        # Small gaps are cheaper to read than to step over, one system call each.
        self._window = min(2 * self._window, _CHUNK) if skipped < WINDOW else WINDOW
        parts = [self._held[at - self._start :]] if skipped < 0 else []
        if skipped > 0 and self._seek:
            self._seek(at)
        while skipped > 0 and not self._seek and (passed := len(self._read(min(skipped, _CHUNK)))):
            skipped -= passed
        # Never more than a chunk at once: a length that lies about the file must not reserve memory.
        missing = length - sum(map(len, parts))
        while missing > 0 and (part := self._read(min(max(missing, self._window), _CHUNK))):
            parts.append(part)
            missing -= len(part)
        self._held, self._start = b"".join(parts), at
        return self._held[:length]


_MEND = "copy or download the shard again"


class Member(NamedTuple):
    """A regular file of a tar.

    Attributes:
        name: Its name, after PAX and GNU records; bytes that are not UTF-8 as surrogate escapes.
        offset: Where its data begin, in bytes (in a compressed shard: in the decompressed stream).
        size: Length of its data in bytes.
        data: Its bytes if the walk was asked for them, else None.
    """

    name: str
    offset: int
    size: int
    data: bytes | None = None


def walk(file: BinaryIO, *, size: int | None, where: str, want: Callable[[str], bool] | None = None) -> TarWalk:
    """Return the members of a tar in order, from its headers; data are skipped unless wanted.

    Args:
        file: The shard, opened in binary at its first byte. One that cannot seek is read through.
        size: Its length in bytes; None asks the file.
        where: What the shard is called in errors.
        want: Says for a member's name whether its bytes are to be given too (default: for none).

    Raises:
        ShardError: If the file is empty, here; if it is no tar, damaged or cut, while walking.
    """
    return TarWalk(file, size=size, where=where, want=want)


class TarWalk(Iterator[Member]):
    """The members of one tar, in order; see `walk`.

    Attributes:
        sliceable: Whether data can be read from the file at a member's offset; False in a compressed shard.
        cut: Name of the member within whose data the tar ended too soon, None if it did not.
        has_end_mark: Whether the zero blocks that end a tar were there (else it ended cleanly after a member); None until
            the walk is over.
    """

    def __init__(self, file: BinaryIO, *, size: int | None, where: str, want: Callable[[str], bool] | None) -> None:
        first = file.read(WINDOW)
        if not first:
            raise ShardError(f"{where} is empty (0 bytes) but a shard must be a tar; {_MEND}")
        self.sliceable = first[:2] != GZIP_MAGIC
        self.cut: str | None = None
        self.has_end_mark: bool | None = None
        self._where = where
        self._want = want
        self._at = 0  # of the header at hand, for errors
        self._length: int | None = None  # of the tar in bytes, where known
        if not self.sliceable:
            self._bytes = ReadWindow(Gunzip(file, first).read, None, b"")
        elif file.seekable():
            self._length = file.seek(0, 2) if size is None else size
            file.seek(len(first))
            self._bytes = ReadWindow(file.read, file.seek, first)
        else:
            self._length = size
            self._bytes = ReadWindow(file.read, None, first)
        self._members = self._located()

    def __iter__(self) -> Iterator[Member]:  # noqa: PYI034  (the generator itself: a call less for each member)
        return self._members

    def __next__(self) -> Member:
        return next(self._members)

    def _located(self) -> Iterator[Member]:
        """The members; errors say where."""
        try:
            yield from self._walk()
        except (HeaderError, StreamError) as error:
            place = f"byte {self._at}" if self.sliceable else f"byte {self._at} of its decompressed stream"
            is_tar = self._at > 0 or isinstance(error, StreamError)
            what = f"is damaged at {place}" if is_tar else "is no tar"
            raise ShardError(f"{self._where} {what}: {error}; {_MEND}") from error

    def _walk(self) -> Iterator[Member]:
        take, want, length = self._bytes.take, self._want, self._length
        extended = PaxState()
        # PAX headers as some writers put one before each member, only for its time: few spellings, often the same.
        silent: tuple[bytes, ...] = ()
        at = 0
        while True:
            self._at = at
            block = take(at, 3 * HEADER_BYTES)
            is_waiting = block.startswith(silent) and not says_something(block[HEADER_BYTES : 2 * HEADER_BYTES])
            if is_waiting:
                self._at = at = at + 2 * HEADER_BYTES
                block = block[2 * HEADER_BYTES :]
            else:
                block = block[:HEADER_BYTES]
            if block == ZEROS or not block:
                break
            raw_name, size, kind = parse_header(block)
            begin = at + HEADER_BYTES
            if kind in EXTENDED:
                if kind == PAX and 0 < size <= HEADER_BYTES and len(silent) < MAX_SILENT:
                    silent += (block,)
                extended.add(kind, self._body(begin, size), after_time=is_waiting)
                at = begin + (size + 511 & -512)
                continue
            if extended.pending:
                raw_name, size = extended.applied(raw_name, size)
            at = begin if kind in WITHOUT_DATA else begin + (size + 511 & -512)
            if length is not None and at > length:
                raise self._cut(raw_name, begin, size)
            name = raw_name.decode("utf-8", "surrogateescape")
            data = take(begin, size) if want is not None and kind in REGULAR and want(name) else None
            if length is None and not take(at - 1, 1):
                raise self._cut(raw_name, begin, size)
            if kind in REGULAR:
                yield Member(name, begin, size, data)
        self._end(at, block, is_waiting=is_waiting or extended.unused)

    def _body(self, begin: int, size: int) -> bytes:
        """Return the body of an extended header."""
        if size > MAX_EXTENDED:
            raise HeaderError(f"an extended header declares {size} bytes but at most {MAX_EXTENDED} can be meant")
        padded = size + 511 & -512
        body = self._bytes.take(begin, padded)
        if len(body) < padded:
            raise HeaderError(f"an extended header declares {size} bytes but {len(body)} are left with their padding")
        if size % HEADER_BYTES and body[size] and body[size - 1]:
            raise HeaderError(
                f"an extended header declares {size} bytes but its text goes on with {body[size : size + 40]!r}"
            )
        return body[:size]

    def _cut(self, name: bytes, begin: int, size: int) -> HeaderError:
        """Return the error of a member that reaches beyond the end."""
        self.cut = name.decode("utf-8", "surrogateescape")
        left = "fewer" if self._length is None else str(max(0, self._length - begin))
        return HeaderError(
            f"member {name!r} declares {size} bytes from byte {begin} but {left} are left with the padding"
        )

    def _end(self, at: int, block: bytes, *, is_waiting: bool) -> None:
        """Check how the tar ends, at a block that is zero or missing."""
        self._at = at
        if is_waiting:
            raise HeaderError("the tar ends after an extended header whose member is missing")
        if not block and self._length is not None and at < self._length:
            raise HeaderError(f"the file ends here but its size was said to be {self._length}")
        after = self._bytes.take(at + HEADER_BYTES, HEADER_BYTES) if block else b""
        if after and after != ZEROS:
            found = after[:40].rstrip(b"\0")
            raise HeaderError(
                f"two zero blocks end a tar but {len(after)} bytes that begin with {found!r} follow the first"
            )
        self.has_end_mark = bool(after)
        if not self.sliceable:
            self._bytes.drain()  # the checksum of the compressed bytes comes last
