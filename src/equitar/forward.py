"""How are the headers of a file read that is not worth reading whole? By bytes at rising positions.

A window is read where bytes are asked for, so that headers close to each other cost one read, and data nobody wants cost
none if the file can seek. Compressed bytes are inflated on the way.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import BinaryIO

GZIP_MAGIC = b"\x1f\x8b"
WINDOW = 1 << 13  # holds the headers around one large member, and what is small between them
_CHUNK = 1 << 16


class StreamError(ValueError):
    """Compressed bytes are cut or damaged."""


class Forward:
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


class Gunzip:
    """The decompressed bytes of a gzip file; its own checksums are verified as its ends are reached.

    Args:
        file: The compressed file, after `first`.
        first: What has been read of it already.
    """

    def __init__(self, file: BinaryIO, first: bytes) -> None:
        self._file = file
        self._pending = first
        self._inflate = zlib.decompressobj(wbits=31)

    def read(self, length: int) -> bytes:
        """Return up to `length` bytes, none only at the end.

        Raises:
            StreamError: If the compressed bytes are cut or damaged.
        """
        while not self._inflate.eof or self._next_part():
            compressed = self._pending or self._file.read(_CHUNK)
            try:
                found = self._inflate.decompress(compressed, length)
            except zlib.error as error:
                raise StreamError(f"its compressed bytes are damaged ({error})") from error
            self._pending = self._inflate.unconsumed_tail
            if found:
                return found
            if not compressed and not self._inflate.eof:
                raise StreamError("its compressed bytes end too soon")
        return b""

    def _next_part(self) -> bool:
        """Whether another gzip follows, as `cat a.gz b.gz` makes it; anything else after the end is left alone."""
        rest = self._inflate.unused_data
        if len(rest) < len(GZIP_MAGIC):
            rest += self._file.read(_CHUNK)
        if rest[:2] != GZIP_MAGIC:
            return False
        self._pending = rest
        self._inflate = zlib.decompressobj(wbits=31)
        return True
