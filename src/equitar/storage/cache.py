"""Cache of downloaded shards: a folder shared by all processes of a node, bounded by size.

A copy is named by a hash of the whole URL and the version of its shard (so that `A/000.tar` and `B/000.tar` differ), followed by
the file name for people. One process downloads while the others wait for its lock, which the kernel frees when the process dies.
A copy gets its name once it is complete. The least recently used go first; a process that still reads one keeps it, because an
open file stays readable after it was removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from equitar.errors import StorageError
from equitar.sources import Cache
from equitar.storage.ranges import LocalRanges
from equitar.storage.streams import Fill
from equitar.urls import place_of, shown

_LOCKS = 256  # lock files; two shards that share one wait for each other, which only costs time
_PARTIAL = ".partial"
_ABANDONED = 3600.0  # seconds without growth after which a partial copy is taken to be abandoned
_POLL = 0.02  # seconds between attempts to lock


def cache_name(url: str, version: str) -> str:
    """Return the name of the copy of a version of a shard.

    >>> cache_name("http://h/A/000.tar?sig=1", "10") == cache_name("http://h/A/000.tar?sig=2", "10")
    True
    >>> cache_name("http://h/A/000.tar", "10") == cache_name("http://h/B/000.tar", "10")
    False
    """
    identity = url if url.startswith("pipe:") else url.rpartition("::")[0] + shown(place_of(url))
    digest = hashlib.blake2b(f"{identity}\n{version}".encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()
    return f"{digest}-{place_of(url).rpartition('/')[2]}"


def cached(cache: Cache, url: str, version: str, fill: Fill, *, size: int, stopped: threading.Event) -> LocalRanges:
    """Return the copy of a shard, downloading it if needed.

    Args:
        cache: Where copies are kept.
        url: The shard.
        version: Distinguishes this version of it from others.
        fill: Writes the bytes of the copy into a file, and checks that it is complete.
        size: Estimated length of the copy in bytes.
        stopped: Set when the copy is no longer wanted.
    """
    folder = Path(cache.directory)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / cache_name(url, version)
    existing = _opened(path, url)
    if existing is not None:
        return existing
    with _locked(folder / f"lock-{int(path.name[:8], 16) % _LOCKS:03d}", stopped):
        existing = _opened(path, url)  # another process may have made it meanwhile
        if existing is not None:
            return existing
        _make_room(folder, cache.max_bytes - size, stopped)
        partial = path.with_name(path.name + _PARTIAL)  # no other process writes it: we hold the lock
        try:
            with partial.open("w+b") as file:
                fill(file)
                file.flush()
                partial.replace(path)
                copy = LocalRanges.of(file, shown(url))
        finally:
            partial.unlink(missing_ok=True)
        _make_room(folder, cache.max_bytes, stopped, but=path.name)
        return copy


def _opened(path: Path, url: str) -> LocalRanges | None:
    try:
        copy = LocalRanges.opened(str(path), shown(url))
    except FileNotFoundError:
        return None
    with suppress(FileNotFoundError):  # removed just now, and still readable
        os.utime(path)  # mark it as recently used
    return copy


@contextmanager
def _locked(path: Path, stopped: threading.Event) -> Iterator[None]:
    """Hold the lock of a file."""
    with path.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if stopped.wait(_POLL):
                    raise StorageError(f"reading was stopped while waiting for the lock {path}") from None
        yield


def _make_room(folder: Path, room: int, stopped: threading.Event, *, but: str = "") -> None:
    """Remove the least recently used copies until the others take at most `room` bytes."""
    with _locked(folder / "lock-room", stopped):
        copies: list[tuple[float, int, Path]] = []
        for path in folder.iterdir():
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            if path.name.endswith(_PARTIAL) and time.time() - status.st_mtime > _ABANDONED:
                path.unlink(missing_ok=True)
            elif not path.name.startswith("lock-"):
                copies.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in copies)
        for _, size, path in sorted(copies):
            if total <= room:
                return
            if path.name != but and not path.name.endswith(_PARTIAL):
                path.unlink(missing_ok=True)
                total -= size
