"""What opens a shard? A file here, a store there, a command; and a copy where it cannot be sliced, or is to be kept.

A shard is opened for its sidecar: its size is compared, and what is inflated or comes from a command must reach the end of the
last member. For an index, which has no sidecar yet, it is opened as a stream.
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
from equitar.storage.streams import filled, inflate, run_pipe
from equitar.urls import local_path, shown

_BEGINNING = 60  # bytes that an error shows of a file that is no tar


class ShardFile(Ranges, Protocol):
    """A shard of which ranges are read."""

    @property
    def announced(self) -> PrefetchQueue | None:
        """Ranges that are fetched ahead; None for a local file, where none are."""


def open_ranges(url: str, sidecar: Sidecar, source: Source, *, as_it_is: bool = False) -> ShardFile:
    """Return a shard of which ranges can be read, at the offsets of its sidecar.

    A file that is here and can be sliced is opened and compared now; anything else when it is first read, or prepared.

    Args:
        url: The shard.
        sidecar: Its sidecar.
        source: Its source.
        as_it_is: Whether to open it although it is not what its sidecar says; the caller looks before it takes anything.

    Raises:
        SourceError: If it is missing.
        StaleSidecarError: If it has another size than its sidecar says.
    """
    opening = _Opening(url, sidecar, source, as_it_is=as_it_is)
    if local_path(url) is not None and sidecar.table.sliceable:
        return opening.local()
    return LazyRanges(opening)


class LazyRanges:
    """A shard that is opened when it is first read, in whichever thread.

    Attributes:
        is_near: Whether ranges of it need no requests once it is prepared, as there is a copy here.
        announced: What was announced of it.
    """

    descriptor = -1  # see `Ranges`

    def __init__(self, opening: _Opening) -> None:
        """Keep how it is opened."""
        self._opening = opening
        self._lock = threading.Lock()
        self._ranges: Ranges | None = None
        self.is_local = opening.is_copied
        self.announced = PrefetchQueue(self)

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
        found = self.announced.take(start, length) if self.announced.spans else None
        return self.fetch(start, length) if found is None else found

    def fetch(self, start: int, length: int) -> bytes:
        """Return bytes of the shard that were not announced."""
        try:
            return (self._ranges or self.prepare()).read(start, length)
        except FileNotFoundError:
            raise self._opening.missing() from None

    def size(self) -> int:
        """Return the length in bytes of what is sliced."""
        return self.prepare().size()

    def close(self) -> None:
        """Close what is open, and end what is under way."""
        self.announced.clear()
        self._opening.close()
        with self._lock:
            if self._ranges is not None:
                self._ranges.close()


class _Opening:
    """How one shard is opened."""

    def __init__(self, url: str, sidecar: Sidecar, source: Source, *, as_it_is: bool) -> None:
        self._url, self._sidecar, self._source, self._as_it_is = url, sidecar, source, as_it_is
        self._stopped = threading.Event()
        self._cache = Cache(source.cache) if isinstance(source.cache, str) else source.cache
        self._remote: RemoteRanges | None = None
        self.is_copied = url.startswith("pipe:") or not sidecar.table.sliceable or self._cache is not None
        if local_path(url) is None and not url.startswith("pipe:"):
            self._remote = RemoteRanges(
                url,
                options=source.storage_options,
                retries=source.retries,
                size=None if as_it_is else sidecar.shard_size,
                wrong_size=self._stale,
            )

    def local(self) -> LocalRanges:
        """Return the file itself, which is here."""
        found = self._located()
        try:
            self._check_size(found.size(), found)
        except StaleSidecarError:
            found.close()
            raise
        return found

    def ranges(self) -> Ranges:
        """Return the shard, or a copy of what is in it."""
        if self._remote is not None and not self.is_copied:
            return self._remote
        version, size = self._version()
        if self._cache is None or self._as_it_is or size > self._cache.max_bytes:
            if self._remote is not None and self._sidecar.table.sliceable:
                return self._remote
            return LocalRanges.of(filled(self._fill), shown(self._url))
        return cached(self._cache, self._url, version, self._fill, size=size, stopped=self._stopped)

    def close(self) -> None:
        """End what is under way."""
        self._stopped.set()
        if self._remote is not None:
            self._remote.close()

    def _located(self) -> LocalRanges:
        try:
            return LocalRanges.opened(cast("str", local_path(self._url)), self._url)
        except FileNotFoundError as error:
            raise self.missing() from error

    def _version(self) -> tuple[str, int]:
        """Return what tells this version of the shard from others, and about how long a copy will be."""
        tag = ""
        if self._remote is not None:
            tag = self._remote.tag()
        elif not self._url.startswith("pipe:"):
            tag = str(Path(cast("str", local_path(self._url))).stat().st_mtime_ns)
        kind = "sliced" if self._sidecar.table.sliceable else "inflated"
        return f"{kind} {self._sidecar.shard_size} {tag}", max(self._sidecar.shard_size, self._end())

    def _fill(self, file: BinaryIO) -> None:
        """Write what is to be sliced into a file, and check that it is whole."""
        if self._as_it_is:
            with suppress(ShardMismatchError, StorageError):  # whoever reads it looks at what it got
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
                run_pipe(self._url, file)
                self._check_size(file.tell(), None)
            return
        with self._compressed() as compressed:
            inflate(compressed, file, shown(self._url))

    @contextmanager
    def _compressed(self) -> Iterator[BinaryIO]:
        """Open the shard for inflating it."""
        if self._url.startswith("pipe:"):
            with filled(partial(run_pipe, self._url)) as file:
                self._check_size(os.fstat(file.fileno()).st_size, None)
                yield file
        else:
            ranges = self.local() if self._remote is None else self._remote
            yield cast("BinaryIO", RangesFile(ranges))
            if self._remote is None:
                ranges.close()

    def _end(self) -> int:
        """Return where the last member ends in what is sliced."""
        return int((self._sidecar.table.offset + self._sidecar.table.size).max(initial=0))

    def _check_size(self, size: int, found: LocalRanges | None) -> None:
        if size != self._sidecar.shard_size and not self._as_it_is:
            raise self._stale(size, found.read(0, min(size, _BEGINNING)) if found else b"")

    def _stale(self, size: int, beginning: bytes = b"") -> StaleSidecarError:
        mend = self._source.index_command(label_spec=self._sidecar.label_spec)
        page = f" and begins with {beginning!r}" if beginning.lstrip()[:1] == b"<" else ""
        return StaleSidecarError(
            f"{shown(self._url)} has {size} bytes{page} but its sidecar was made of {self._sidecar.shard_size}; {mend}"
        )

    def missing(self) -> SourceError:
        """Return the error of a shard that is not there."""
        mend = self._source.index_command(label_spec=self._sidecar.label_spec)
        how = f"take it out of `urls` and {mend}"
        if self._source.summary is not None:
            how = "name the folder that the paths of its summary are relative to by `root` (`--root`)"
        return SourceError(
            f"{shown(self._url)} of source {self._source.name!r} is missing but its sidecar is there; restore the shard, or {how}"
        )
