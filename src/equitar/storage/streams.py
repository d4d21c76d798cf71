"""How are shards read that have no positions? The output of a command is taken whole, and what is compressed is inflated.

Both go into a file first, one without a name, so that nothing is left of it whatever happens to the process. From then on
samples are sliced by the offsets of the sidecar, which count in the decompressed stream. A command is always waited for, and
its exit status counts; one that we stop ourselves, early, is stopped with all it started, and its failure is not told.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
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
from equitar.urls import local_path, shown, without_secrets

GZIP_MAGIC = b"\x1f\x8b"


_CHUNK = 1 << 16


class StreamError(ValueError):
    """Compressed bytes are cut or damaged."""


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


Fill: TypeAlias = Callable[[BinaryIO], None]
_COPY_BYTES = 1 << 20
_TOLD = 500  # bytes of what a command said last that an error repeats


@contextmanager
def _running(command: str) -> Iterator[tuple[subprocess.Popen[bytes], BinaryIO]]:
    """Run a command of the shell, with a file that takes what it says; at the end there is neither."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(  # noqa: S602  (a pipe: URL is a command of the user's)
            command, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, start_new_session=True
        )
        try:
            yield process, said
        finally:
            if process.returncode is None:
                # All that the shell started: closing the pipe alone would let them write into it, and say that it broke.
                os.killpg(process.pid, signal.SIGKILL)
            if process.stdout is not None:
                process.stdout.close()
            process.wait()


def run_pipe(url: str, file: BinaryIO) -> None:
    """Write the output of a ``pipe:`` URL into a file.

    Raises:
        StorageError: If the command fails.
    """
    command = url[len("pipe:") :]
    with _running(command) as (process, said):
        assert process.stdout is not None
        shutil.copyfileobj(process.stdout, file, _COPY_BYTES)
        status = process.wait()
        if status:
            end = said.seek(0, os.SEEK_END)
            said.seek(max(0, end - _TOLD))
            words = without_secrets(said.read().decode("utf-8", "replace").strip(), None)
            raise StorageError(
                f"{shown(url)} ended with exit status {status} after {file.tell()} bytes"
                + (f"; it said {words!r}" * bool(words))
            )


def inflate(compressed: BinaryIO, file: BinaryIO, where: str) -> None:
    """Write the decompressed bytes of a gzip file, or the bytes of any other, into a file.

    Raises:
        ShardMismatchError: If it is cut or damaged; what came before is written.
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
    """Return a file without a name that holds what `fill` writes."""
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
        retries: How patiently its store is asked.
        expected: Where it will probably be read, see `PrefetchedFile`; of no use for a local file.

    Raises:
        FileNotFoundError: If it is not there.
        StorageError: If its store or its command fails.
    """
    local = local_path(url)
    if local is not None:
        with Path(local).open("rb", buffering=0) as file:  # a walk has a window of its own
            yield cast("BinaryIO", file), os.fstat(file.fileno()).st_size
    elif url.startswith("pipe:"):
        with filled(partial(run_pipe, url)) as spooled:
            yield spooled, os.fstat(spooled.fileno()).st_size
    else:
        ranges = open_remote(url, options, retries)
        with closing(ranges), closing(_file_of(ranges, expected)) as remote:
            yield cast("BinaryIO", remote), ranges.size()


def _file_of(ranges: Ranges, expected: Int64 | None) -> RangesFile:
    return RangesFile(ranges) if expected is None else PrefetchedFile(ranges, expected)


def open_remote(url: str, options: StorageOptions, retries: Retries) -> RemoteRanges:
    """Return a remote shard that has no sidecar yet; its size is what its store says first."""

    def changed(size: int) -> ShardMismatchError:
        return ShardMismatchError(f"{shown(url)} was changed while it was read, and has {size} bytes now; try again")

    return RemoteRanges(url, options=options, retries=retries, size=None, wrong_size=changed)
