"""Where are copies of shards kept? In a folder that all processes of a node share, bounded by size.

A copy is named by a hash of its whole URL (no two shards meet because their files have one name) and of its version, with the
name of the file behind it for people. One process downloads while the others wait for its lock; the kernel frees a lock when
its process dies. A copy gets its name when it is whole. Those used longest ago go first; a process that still reads one keeps
it, as files stay readable without a name.
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

_LOCKS = 256  # files, however many shards; two shards that share one wait for each other, which costs time only
_PARTIAL = ".partial"
_DEAD = 3600.0  # seconds after which a partial copy that does not grow has no process any more
_ASK_AGAIN = 0.02  # seconds


def cache_name(url: str, version: str) -> str:
    """Return the name of the copy of a version of a shard.

    >>> cache_name("http://h/A/000.tar?sig=1", "10") == cache_name("http://h/A/000.tar?sig=2", "10")
    True
    >>> cache_name("http://h/A/000.tar", "10") == cache_name("http://h/B/000.tar", "10")
    False
    """
    whole = url if url.startswith("pipe:") else url.rpartition("::")[0] + shown(place_of(url))
    digest = hashlib.blake2b(f"{whole}\n{version}".encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()
    return f"{digest}-{place_of(url).rpartition('/')[2]}"


def cached(cache: Cache, url: str, version: str, fill: Fill, *, size: int, stopped: threading.Event) -> LocalRanges:
    """Return the copy of a shard, downloaded if it is not there.

    Args:
        cache: Where copies are.
        url: The shard.
        version: What tells this version of it from others.
        fill: Writes the bytes of the copy into a file, and checks that they are all.
        size: About how long the copy will be, in bytes.
        stopped: Set when nobody wants it any more.
    """
    folder = Path(cache.directory)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / cache_name(url, version)
    found = _opened(path, url)
    if found is not None:
        return found
    with _locked(folder / f"lock-{int(path.name[:8], 16) % _LOCKS:03d}", stopped):
        found = _opened(path, url)  # another process may have been at it
        if found is not None:
            return found
        _make_room(folder, cache.max_bytes - size, stopped)
        partial = path.with_name(path.name + _PARTIAL)  # ours alone: we hold the lock
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
        found = LocalRanges.opened(str(path), shown(url))
    except FileNotFoundError:
        return None
    with suppress(FileNotFoundError):  # removed just now, and as good as before
        os.utime(path)  # it was used now
    return found


@contextmanager
def _locked(path: Path, stopped: threading.Event) -> Iterator[None]:
    """Hold the lock of a file."""
    with path.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if stopped.wait(_ASK_AGAIN):
                    raise StorageError(f"reading was ended while {path} was waited for") from None
        yield


def _make_room(folder: Path, room: int, stopped: threading.Event, *, but: str = "") -> None:
    """Remove the copies that were used longest ago, until the others take no more than `room` bytes."""
    with _locked(folder / "lock-room", stopped):
        there: list[tuple[float, int, Path]] = []
        for path in folder.iterdir():
            try:
                told = path.stat()
            except FileNotFoundError:
                continue
            if path.name.endswith(_PARTIAL) and time.time() - told.st_mtime > _DEAD:
                path.unlink(missing_ok=True)
            elif not path.name.startswith("lock-"):
                there.append((told.st_mtime, told.st_size, path))
        total = sum(size for _, size, _ in there)
        for _, size, path in sorted(there):
            if total <= room:
                return
            if path.name != but and not path.name.endswith(_PARTIAL):
                path.unlink(missing_ok=True)
                total -= size
