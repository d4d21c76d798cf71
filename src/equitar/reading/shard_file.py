"""Opening a shard: a local file, a store or a command, and a copy where it cannot be sliced or should be kept.

A shard is opened together with its sidecar: its size is compared, and what is inflated or written by a command must reach the end
of the last member. (Indexing, which has no sidecar yet, opens shards as streams: `equitar.storage.streams`.)
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from equitar.errors import ShardMismatchError, SourceError, StaleSidecarError, StorageError
from equitar.reading.prefetch import PrefetchQueue
from equitar.sidecars.sidecar import Sidecar
from equitar.sources import Cache, Source
from equitar.storage.cache import cached
from equitar.storage.ranges import LocalRanges, Ranges, RangesFile
from equitar.storage.remote import RemoteRanges
from equitar.storage.retry import Retry
from equitar.storage.streams import filled, inflate, run_pipe
from equitar.urls import local_path, shown

_BEGINNING = 60  # bytes that an error shows of a file that is not a tar


class ShardFile(Ranges, Protocol):
    """A shard of which ranges are read."""

    @property
    def prefetch(self) -> PrefetchQueue | None:
        """Ranges that are fetched ahead; None for a local file, where none are."""


def open_ranges(url: str, sidecar: Sidecar, source: Source, *, unchecked: bool = False) -> ShardFile:
    """Return a shard whose ranges can be read, at the offsets of its sidecar.

    A local file that can be sliced is opened and compared now; anything else when it is first read, or prepared.

    Args:
        url: The shard.
        sidecar: Its sidecar.
        source: Its source.
        unchecked: Whether to open it although it does not match its sidecar; the caller checks what it reads.

    Raises:
        SourceError: If it is missing.
        StaleSidecarError: If its size is not the one in its sidecar.
    """
    opening = _Opening(url, sidecar, source, unchecked=unchecked)
    if local_path(url) is not None and sidecar.table.sliceable:
        return opening.local()
    return LazyRanges(opening)


class LazyRanges:
    """A shard that is opened when it is first read, in any thread."""

    descriptor = -1  # see `Ranges`

    def __init__(self, opening: _Opening) -> None:
        self._opening = opening
        self._lock = threading.Lock()
        self._ranges: Ranges | None = None
        self.is_local = opening.is_copied  # once it is prepared, its ranges need no requests
        self.prefetch = PrefetchQueue(self)

    def prepare(self) -> Ranges:
        """Open the shard, if it is not open: download it, run its command."""
        with self._lock:
            if self._ranges is None:
                try:
                    self._ranges = self._opening.ranges()
                except FileNotFoundError:
                    raise self._opening.missing() from None
            return self._ranges

    def read(self, start: int, length: int) -> bytes:
        """Return bytes of the shard; see `Ranges`."""
        fetched = self.prefetch.take(start, length) if self.prefetch.spans else None
        return self.fetch(start, length) if fetched is None else fetched

    def fetch(self, start: int, length: int) -> bytes:
        """Return bytes of the shard, past the queue."""
        try:
            return (self._ranges or self.prepare()).read(start, length)
        except FileNotFoundError:
            raise self._opening.missing() from None

    def size(self) -> int:
        """Return the length in bytes of what is sliced."""
        return self.prepare().size()

    def close(self) -> None:
        """Close what is open, and cancel what is under way."""
        self.prefetch.clear()
        self._opening.close()
        with self._lock:
            if self._ranges is not None:
                self._ranges.close()


class _Opening:
    """How one shard is opened."""

    def __init__(self, url: str, sidecar: Sidecar, source: Source, *, unchecked: bool) -> None:
        self._url, self._sidecar, self._source, self._unchecked = url, sidecar, source, unchecked
        self._stopped = threading.Event()
        self._cache = Cache(source.cache) if isinstance(source.cache, str) else source.cache
        self._remote: RemoteRanges | None = None
        self.is_copied = url.startswith("pipe:") or not sidecar.table.sliceable or self._cache is not None
        if local_path(url) is None and not url.startswith("pipe:"):
            self._remote = RemoteRanges(
                url,
                options=source.storage_options,
                retries=source.retries,
                size=None if unchecked else sidecar.shard_size,
                wrong_size=self._stale,
            )

    def local(self) -> LocalRanges:
        """Return the local file itself."""
        try:
            file = LocalRanges.opened(cast("str", local_path(self._url)), self._url)
        except FileNotFoundError as error:
            raise self.missing() from error
        try:
            self._check_size(file.size(), file)
        except StaleSidecarError:
            file.close()
            raise
        return file

    def ranges(self) -> Ranges:
        """Return the shard, or a copy of its contents."""
        if self._remote is not None and not self.is_copied:
            return self._remote
        version, size = self._version()
        if self._cache is None or self._unchecked or size > self._cache.max_bytes:
            if self._remote is not None and self._sidecar.table.sliceable:
                return self._remote
            return LocalRanges.of(filled(self._fill), shown(self._url))
        return cached(self._cache, self._url, version, self._fill, size=size, stopped=self._stopped)

    def close(self) -> None:
        """Cancel what is under way."""
        self._stopped.set()
        if self._remote is not None:
            self._remote.close()

    def _version(self) -> tuple[str, int]:
        """Return what identifies this version of the shard, and the estimated size of a copy."""
        tag = ""
        if self._remote is not None:
            tag = self._remote.tag()
        elif not self._url.startswith("pipe:"):
            tag = str(Path(cast("str", local_path(self._url))).stat().st_mtime_ns)
        kind = "sliced" if self._sidecar.table.sliceable else "inflated"
        return f"{kind} {self._sidecar.shard_size} {tag}", max(self._sidecar.shard_size, self._end())

    def _fill(self, file: BinaryIO) -> None:
        """Write what will be sliced into a file, and check that it is complete."""
        if self._unchecked:
            with suppress(ShardMismatchError, StorageError):  # whoever reads it checks what it reads
                self._copy(file)
            return
        self._copy(file)
        if file.tell() < self._end():
            raise ShardMismatchError(
                f"{shown(self._url)} ended at byte {file.tell()} but its sidecar has data up to {self._end()}; restore the shard "
                "or run `equitar index` again"
            )

    def _copy(self, file: BinaryIO) -> None:
        if self._sidecar.table.sliceable:
            if self._remote is not None:
                self._remote.copy_to(file)
            else:
                run_pipe(self._url, file, self._retry())
                self._check_size(file.tell(), None)
            return
        with self._compressed() as compressed:
            inflate(compressed, file, shown(self._url))

    @contextmanager
    def _compressed(self) -> Iterator[BinaryIO]:
        """Open the shard to inflate it."""
        if self._url.startswith("pipe:"):
            with filled(partial(run_pipe, self._url, retry=self._retry())) as file:
                self._check_size(os.fstat(file.fileno()).st_size, None)
                yield file
        else:
            ranges = self.local() if self._remote is None else self._remote
            yield cast("BinaryIO", RangesFile(ranges))
            if self._remote is None:
                ranges.close()

    def _retry(self) -> Retry | None:
        if self._unchecked:  # it has failed before, as often as it may
            return None
        return Retry(shown(self._url), self._source.retries, self._source.storage_options, self._stopped)

    def _end(self) -> int:
        """Return where the last member ends in what will be sliced."""
        return int((self._sidecar.table.offset + self._sidecar.table.size).max(initial=0))

    def _check_size(self, size: int, file: LocalRanges | None) -> None:
        if size != self._sidecar.shard_size and not self._unchecked:
            raise self._stale(size, file.read(0, min(size, _BEGINNING)) if file else b"")

    def _stale(self, size: int, beginning: bytes = b"") -> StaleSidecarError:
        fix = self._source.index_command(label_spec=self._sidecar.label_spec)
        page = f" and begins with {beginning!r}" if beginning.lstrip()[:1] == b"<" else ""
        return StaleSidecarError(
            f"{shown(self._url)} has {size} bytes{page} but its sidecar was made of {self._sidecar.shard_size}; {fix}"
        )

    def missing(self) -> SourceError:
        """Return the error for a shard that is missing."""
        advice = f"remove it from `urls` and {self._source.index_command(label_spec=self._sidecar.label_spec)}"
        if self._source.summary is not None:
            advice = "set `root` (`--root`) to the folder that the paths of its summary are relative to"
        return SourceError(
            f"{shown(self._url)} of source {self._source.name!r} is missing but it has a sidecar; restore the shard, or {advice}"
        )
