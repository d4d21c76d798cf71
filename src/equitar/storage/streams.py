"""Streams: the output of `pipe:` commands, and gzip, which cannot be read by position.

Both are written into an unnamed temporary file first, which vanishes with the process. Samples are then sliced by the offsets of
the sidecar, which refer to the decompressed stream. A command is always waited for, and its exit status is checked; if reading is
stopped early, the command and everything it started is killed, and its status is ignored. A command that fails is run again.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeAlias, cast

from equitar.arrays import Int64
from equitar.errors import ShardMismatchError, StorageError
from equitar.sources import Retries, StorageOptions
from equitar.storage.ranges import PrefetchedFile, Ranges, RangesFile
from equitar.storage.remote import RemoteRanges
from equitar.storage.retry import Retry
from equitar.urls import local_path, shown, without_secrets

GZIP_MAGIC = b"\x1f\x8b"
CHUNK = 1 << 16  # bytes that are read at once


class StreamError(ValueError):
    """Compressed bytes are truncated or damaged."""


class Gunzip:
    """The decompressed bytes of a gzip file; its checksums are verified at its end.

    Args:
        file: The compressed file, after `first`.
        first: The bytes already read.
    """

    def __init__(self, file: BinaryIO, first: bytes) -> None:
        self._file = file
        self._pending = first
        self._inflate = zlib.decompressobj(wbits=31)

    def read(self, length: int) -> bytes:
        """Return up to `length` bytes; none only at the end.

        Raises:
            StreamError: If the compressed bytes are truncated or damaged.
        """
        while not self._inflate.eof or self._next_part():
            compressed = self._pending or self._file.read(CHUNK)
            try:
                data = self._inflate.decompress(compressed, length)
            except zlib.error as error:
                raise StreamError(f"its compressed bytes are damaged ({error})") from error
            self._pending = self._inflate.unconsumed_tail
            if data:
                return data
            if not compressed and not self._inflate.eof:
                raise StreamError("its compressed bytes are truncated")
        return b""

    def _next_part(self) -> bool:
        """Whether another gzip stream follows, as `cat a.gz b.gz` makes it; anything else after the end is ignored."""
        rest = self._inflate.unused_data
        if len(rest) < len(GZIP_MAGIC):
            rest += self._file.read(CHUNK)
        if rest[:2] != GZIP_MAGIC:
            return False
        self._pending = rest
        self._inflate = zlib.decompressobj(wbits=31)
        return True


Fill: TypeAlias = Callable[[BinaryIO], None]
_COPY_BYTES = 1 << 20
_HOPELESS = (126, 127)  # status of a shell that cannot run, or does not find, a command
_SHOWN_STDERR = 500  # bytes at the end of the output of a failed command that its error shows


@contextmanager
def _running(command: str) -> Iterator[tuple[subprocess.Popen[bytes], BinaryIO]]:
    """Run a shell command; yield it with a file that receives its stderr. It is killed if it still runs at the end."""
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(  # noqa: S602  (a pipe: URL is a command of the user's)
            command, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
        )
        try:
            yield process, stderr
        finally:
            if process.returncode is None:
                # The whole process group: after closing the pipe alone, its processes would report a broken pipe.
                os.killpg(process.pid, signal.SIGKILL)
            if process.stdout is not None:
                process.stdout.close()
            process.wait()


class CommandError(Exception):
    """A command ended with an exit status other than 0."""

    def __init__(self, problem: str, status: int) -> None:
        """Keep the status."""
        super().__init__(problem)
        self.status = status


def run_pipe(url: str, file: BinaryIO, retry: Retry | None) -> None:
    """Write the output of a ``pipe:`` URL into an empty file, from the start again if the command fails.

    Args:
        url: The command.
        file: Takes its output; after an error, that of the last try.
        retry: Whether to run it again; None runs it once.

    Raises:
        StorageError: If the command fails.
    """
    while True:
        try:
            return _run(url[len("pipe:") :], file)
        except CommandError as error:  # noqa: PERF203  (each try may fail)
            if retry is None or error.status in _HOPELESS:
                raise StorageError(f"{shown(url)} failed: {error}") from None
            retry.failed("its output", error)
            file.seek(0)
            file.truncate()


def _run(command: str, file: BinaryIO) -> None:
    with _running(command) as (process, stderr):
        assert process.stdout is not None
        shutil.copyfileobj(process.stdout, file, _COPY_BYTES)
        status = process.wait()
        if status:
            end = stderr.seek(0, os.SEEK_END)
            stderr.seek(max(0, end - _SHOWN_STDERR))
            message = without_secrets(stderr.read().decode("utf-8", "replace").strip(), None)
            shown_message = f" and the message {message!r}" if message else ""
            raise CommandError(f"it ended with exit status {status} after {file.tell()} bytes{shown_message}", status)


def inflate(compressed: BinaryIO, file: BinaryIO, where: str) -> None:
    """Write the decompressed bytes of a gzip file, or the bytes of any other file, into another one.

    Raises:
        ShardMismatchError: If it is truncated or damaged; the bytes before are written.
    """
    first = compressed.read(_COPY_BYTES)
    if first[:2] != GZIP_MAGIC:
        file.write(first)
        shutil.copyfileobj(compressed, file, _COPY_BYTES)
        return
    stream = Gunzip(compressed, first)
    try:
        while part := stream.read(_COPY_BYTES):
            file.write(part)
    except StreamError as error:
        raise ShardMismatchError(f"{where} is damaged after {file.tell()} decompressed bytes: {error}") from error


def filled(fill: Fill) -> BinaryIO:
    """Return an unnamed temporary file that holds what `fill` writes."""
    file = tempfile.TemporaryFile()  # noqa: SIM115  (the caller closes it)
    try:
        fill(file)
        file.flush()
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file


@contextmanager
def open_stream(
    url: str, options: StorageOptions, retries: Retries, expected: Int64 | None = None
) -> Iterator[tuple[BinaryIO, int]]:
    """Open a shard as a file at its first byte, with its length in bytes.

    Args:
        url: The shard.
        options: For fsspec.
        retries: How failures of its store are retried.
        expected: Which ranges will probably be read, see `PrefetchedFile`; ignored for a local file.

    Raises:
        FileNotFoundError: If it does not exist.
        StorageError: If its store or its command fails.
    """
    local = local_path(url)
    if local is not None:
        with Path(local).open("rb", buffering=0) as file:  # unbuffered: a walk buffers by itself
            yield cast("BinaryIO", file), os.fstat(file.fileno()).st_size
    elif url.startswith("pipe:"):
        retry = Retry(shown(url), retries, options, threading.Event())
        with filled(partial(run_pipe, url, retry=retry)) as spooled:
            yield spooled, os.fstat(spooled.fileno()).st_size
    else:
        ranges = open_remote(url, options, retries)
        with closing(ranges), closing(_file_of(ranges, expected)) as remote:
            yield cast("BinaryIO", remote), ranges.size()


def _file_of(ranges: Ranges, expected: Int64 | None) -> RangesFile:
    return RangesFile(ranges) if expected is None else PrefetchedFile(ranges, expected)


def open_remote(url: str, options: StorageOptions, retries: Retries) -> RemoteRanges:
    """Return a remote shard that has no sidecar yet; its size is the one its store reports first."""

    def changed(size: int) -> ShardMismatchError:
        return ShardMismatchError(f"{shown(url)} was changed while it was read, and now has {size} bytes; try again")

    return RemoteRanges(url, options=options, retries=retries, size=None, wrong_size=changed)
