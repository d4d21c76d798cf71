"""Whole files, local or in a store: read, written atomically, removed. Local ones never load fsspec."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from errno import EROFS
from pathlib import Path
from typing import Any, TypeVar, cast

from equitar.errors import ReadOnlyError, StorageError
from equitar.sources import Retries, StorageOptions
from equitar.storage.remote import filesystem, is_web, patiently
from equitar.storage.retry import store_failures
from equitar.urls import local_path, shown, without_secrets

_THREADS = 16  # small files on disks and in stores: waiting is most of the time
_AHEAD = 2 * _THREADS  # results that nobody has taken yet are held in memory
Item = TypeVar("Item")
Result = TypeVar("Result")
_RENAMING = frozenset({"sftp", "ssh", "ftp", "hdfs", "webhdfs", "smb"})  # a half-written file would be seen there


_RETRIES = Retries()


def read_bytes(url: str, storage_options: StorageOptions, retries: Retries = _RETRIES) -> bytes:
    """Return the contents of a file; FileNotFoundError if it does not exist."""
    local = local_path(url)
    if local is not None:
        return Path(local).read_bytes()
    return cast(
        "bytes", patiently(url, storage_options, retries, "its contents", lambda files, path: files.cat_file(path))
    )


def write_bytes_atomically(url: str, raw: bytes, storage_options: StorageOptions) -> None:
    """Write a file so that readers see either the old one or the new one; folders are created as needed.

    An object store shows an object once it is complete. Elsewhere the file is written under another name and renamed.
    """
    local = local_path(url)
    try:
        if local is not None:
            _write_local(Path(local), raw)
        else:
            _write_remote(*filesystem(url, storage_options), raw)
    except store_failures() as error:
        # FileNotFoundError here means a folder that cannot be created, as in /proc.
        is_read_only = isinstance(error, PermissionError | FileNotFoundError) or getattr(error, "errno", None) == EROFS
        if local is not None and not is_read_only:
            raise
        cause = without_secrets(f"{type(error).__name__}: {error}", storage_options)
        problem = f"{shown(url)} cannot be written ({cause})"
        if is_read_only:
            raise ReadOnlyError(f"{problem}; pass a writable folder as `--sidecars` (`Source(sidecars=...)`)") from None
        raise StorageError(f"{problem}; fix its store, or pass another folder as `--sidecars`") from None


def _write_remote(files: Any, path: str, raw: bytes) -> None:
    if is_web(files):
        raise OSError(EROFS, "web servers are read-only")
    files.makedirs(path.rpartition("/")[0], exist_ok=True)
    protocols = {files.protocol} if isinstance(files.protocol, str) else set(files.protocol)
    if protocols & _RENAMING:
        partial = f"{path}.{uuid.uuid4().hex}.partial"
        files.pipe_file(partial, raw)
        files.mv(partial, path)
    else:
        files.pipe_file(path, raw)


def _write_local(path: Path, raw: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(
        f"{path.name}.{uuid.uuid4().hex}.partial"
    )  # in the same folder, so that renaming does not copy
    try:
        partial.write_bytes(raw)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def exists(url: str, storage_options: StorageOptions, retries: Retries = _RETRIES) -> bool:
    """Return whether a file exists."""
    local = local_path(url)
    if local is not None:
        return Path(local).exists()
    try:  # not `exists`, which takes a web server that does not answer for a missing file
        patiently(url, storage_options, retries, "an answer", lambda files, path: files.info(path))
    except FileNotFoundError:
        return False
    return True


def remove(url: str, storage_options: StorageOptions) -> None:
    """Remove a file if it exists."""
    local = local_path(url)
    if local is not None:
        Path(local).unlink(missing_ok=True)
        return
    files, path = filesystem(url, storage_options)
    with suppress(FileNotFoundError):
        files.rm_file(path)


def is_newer(url: str, other: str) -> bool:
    """Return whether a local file was modified after another; False for files that are not local."""
    first, second = local_path(url), local_path(other)
    if first is None or second is None:
        return False
    return Path(first).stat().st_mtime_ns > Path(second).stat().st_mtime_ns


def touch(url: str) -> None:
    """Set the modification time of a local file to now."""
    local = local_path(url)
    if local is not None:
        Path(local).touch()


def read_many(read: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield what `read` returns for each item, in order; threads read a bounded number of items ahead of the caller."""
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(read, item))
                if len(waiting) >= _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
