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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, TypeAlias

from equitar.errors import ShardMismatchError, StorageError
from equitar.forward import GZIP_MAGIC, Gunzip, StreamError
from equitar.redact import shown, without_secrets

Fill: TypeAlias = Callable[[BinaryIO], None]

_CHUNK = 1 << 20
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
        shutil.copyfileobj(process.stdout, file, _CHUNK)
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
    first = compressed.read(_CHUNK)
    if first[:2] != GZIP_MAGIC:
        file.write(first)
        shutil.copyfileobj(compressed, file, _CHUNK)
        return
    stream = Gunzip(compressed, first)
    try:
        while part := stream.read(_CHUNK):
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
