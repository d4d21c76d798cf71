"""Remote files: byte ranges through fsspec, retried when a store fails. The only module that opens files by fsspec.

Whatever a store does, a read returns the bytes of the file as it was when opened, or raises an error: the length of every
response is checked, and size and ETag (or modification time) are compared with the first ones.

Ranges of web servers are requested here instead of by fsspec, which ignores the headers of the response (another range, another
version, an error page), and drops the bytes received before a connection breaks.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, BinaryIO, NamedTuple, TypeVar

from equitar.errors import ShardMismatchError, SourceError, StorageError
from equitar.sources import Retries, StorageOptions
from equitar.storage.ranges import LocalRanges
from equitar.storage.retry import BUSY, DENIED, DENIED_FIX, MISSING, AnswerError, Retry, store_failures
from equitar.urls import shown

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_PAGE = 60  # bytes of an unexpected body that an error shows
_PARTIAL, _OK, _UNSATISFIABLE = 206, 200, 416


class Version(NamedTuple):
    """What changes when a file is replaced."""

    size: int | None  # bytes; None if the store did not say
    tag: str  # ETag or modification time; empty if the store did not say


class NoRangesError(Exception):
    """The server only sends whole files."""


async def web_range(
    files: Any, url: str, start: int, stop: int, *, size: int | None, stall: float, into: bytearray
) -> Version:
    """Read bytes [start, stop) of a file, and return its version according to the server.

    Args:
        files: fsspec's filesystem.
        url: The file.
        start: First byte.
        stop: One past the last byte.
        size: Length of the file, if known.
        stall: Seconds without a byte after which to give up.
        into: Receives the bytes, so that those before a failure are kept.

    Raises:
        NoRangesError: If the server sends the whole file.
        OSError: If it sends anything else, or fails.
    """
    options = dict(files.kwargs)
    options["headers"] = {
        **options.get("headers", {}),
        "Range": f"bytes={start}-{stop - 1}",
        "Accept-Encoding": "identity",
    }
    session = await files.set_session()
    response = await asyncio.wait_for(session.get(files.encode_url(url), **options), stall)
    async with response:
        version = await _checked(response, start, size=size, stall=stall)
        missing = stop - start
        while missing > 0 and (part := await asyncio.wait_for(response.content.readany(), stall)):
            into += part[:missing]
            missing -= len(part)
    return version


async def _checked(response: Any, start: int, *, size: int | None, stall: float) -> Version:
    """Return the version of the file that a response is from, if it holds the requested range."""
    status, headers = response.status, response.headers
    tag = headers.get("ETag", "").removeprefix("W/") or headers.get("Last-Modified", "")
    if status == _PARTIAL:
        content_range = _RANGE.fullmatch(headers.get("Content-Range", ""))
        if content_range is None or int(content_range[1]) != start:
            raise AnswerError(f"the server sent {headers.get('Content-Range')!r} for a range from byte {start}")
        return Version(None if content_range[3] == "*" else int(content_range[3]), tag)
    if status in MISSING:
        raise FileNotFoundError(f"status {status}")
    if status in DENIED:
        raise PermissionError(f"status {status}; {DENIED_FIX}")
    if status == _UNSATISFIABLE:
        total = headers.get("Content-Range", "").rpartition("/")[2]
        if total.isdigit():
            return Version(int(total), tag)
    kind = headers.get("Content-Type", "").partition(";")[0]
    if status == _OK and kind != "text/html" and size is not None and headers.get("Content-Length") == str(size):
        raise NoRangesError
    retry_after = headers.get("Retry-After") if status in BUSY else None
    page = await asyncio.wait_for(response.content.read(_PAGE), stall)
    raise AnswerError(f"status {status} with {kind or 'a body'} that begins {page!r}", retry_after)


async def web_whole(files: Any, url: str, *, size: int, stall: float, into: Any) -> None:
    """Write a whole file into another one, from a server that sends no ranges.

    Raises:
        OSError: If it is not complete.
    """
    options = dict(files.kwargs)
    options["headers"] = {**options.get("headers", {}), "Accept-Encoding": "identity"}
    session = await files.set_session()
    into.seek(0)
    into.truncate()
    written = 0
    response = await asyncio.wait_for(session.get(files.encode_url(url), **options), stall)
    async with response:
        if response.status != _OK:
            raise AnswerError(f"status {response.status} for a whole file", response.headers.get("Retry-After"))
        while part := await asyncio.wait_for(response.content.readany(), stall):
            written += into.write(part)
    if written != size:
        raise AnswerError(f"{written} of {size} bytes were received")


_PART = 8 << 20  # bytes of one request, which a failure may cost again
_TAGS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "modified", "created", "Last-Modified")
Answer = TypeVar("Answer")


def filesystem(url: str, options: StorageOptions) -> tuple[Any, str]:
    """Return fsspec's filesystem of a URL, and the path in it."""
    if url.startswith("pipe:"):
        raise SourceError(
            f"{shown(url)} is the output of a command, which cannot be written, listed or read by position"
        )
    from fsspec.core import url_to_fs  # noqa: PLC0415  (slow to import, and not needed for local files)

    try:
        files, path = url_to_fs(url, **(options or {}))
    except ImportError as error:
        raise SourceError(f"{shown(url)} needs a package that is not installed: {error}") from error
    return files, str(path)


def is_web(files: Any) -> bool:
    """Return whether a filesystem is HTTP."""
    return "http" in ((files.protocol,) if isinstance(files.protocol, str) else tuple(files.protocol))


def patiently(
    url: str, options: StorageOptions, retries: Retries, what: str, ask: Callable[[Any, str], Answer]
) -> Answer:
    """Return what a filesystem answers about a path, asked again where it fails.

    Args:
        url: The file.
        options: For fsspec.
        retries: How failures are retried.
        what: What is requested, for errors.
        ask: Takes the filesystem and the path in it.

    Raises:
        FileNotFoundError: If the file does not exist.
        StorageError: If the store fails.
    """
    retry = Retry(shown(url), retries, options, threading.Event())
    return retry.answer(what, lambda: ask(*filesystem(url, options)))


class RemoteRanges:
    """A file in a store; its size and version are those of the first response."""

    descriptor = -1  # see `Ranges`

    def __init__(
        self,
        url: str,
        *,
        options: StorageOptions,
        retries: Retries,
        size: int | None,
        wrong_size: Callable[[int], Exception],
    ) -> None:
        """Prepare, without a request.

        Args:
            url: The file.
            options: For fsspec.
            retries: How failures are retried.
            size: Length that the file must have; None accepts any.
            wrong_size: Returns the error to raise for another size.
        """
        self._url, self._options, self._retries, self._wrong_size = url, options, retries, wrong_size
        self._size, self._tag = size, ""
        self._where = shown(url)
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._copying = threading.Lock()
        self._copy: LocalRanges | None = None  # of the whole file, from a server without ranges
        self._pending: set[Future[Any]] = set()
        self._checked_at: float | None = None

    def read(self, start: int, length: int) -> bytes:
        """Return bytes of the file; any thread may call it."""
        if self._size is not None and start + length > self._size:
            raise ShardMismatchError(
                f"{self._where} has {self._size} bytes but its sidecar has data up to {start + length}; restore the shard or run "
                "`equitar index` again"
            )
        parts = []
        for begin in range(start, start + length, _PART):
            stop = min(begin + _PART, start + length)
            copy = self._copy
            try:
                parts.append(self._part(begin, stop) if copy is None else copy.read(begin, stop - begin))
            except NoRangesError:
                parts.append(self._copied().read(begin, stop - begin))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def size(self) -> int:
        """Return the length of the file in bytes, from its store."""
        self._info()
        if self._size is None:
            raise StorageError(f"{self._where} is served without its size; download it, or use another server")
        return self._size

    def tag(self) -> str:
        """Return ETag or modification time of the file; empty if its store does not say."""
        self._info()
        return self._tag

    def copy_to(self, file: BinaryIO) -> None:
        """Write the whole file into another one."""
        size = self.size()
        file.writelines(self.read(begin, min(_PART, size - begin)) for begin in range(0, size, _PART))

    def close(self) -> None:
        """End all requests, and remove a copy."""
        self._stopped.set()
        with self._lock:
            for future in list(self._pending):
                future.cancel()
        if self._copy is not None:
            self._copy.close()

    def _part(self, start: int, stop: int) -> bytes:
        """Return bytes [start, stop), however many requests it takes."""
        files, path = filesystem(self._url, self._options)
        retry = self._retry()
        data = bytearray()
        while len(data) < stop - start:
            self._continue(files, path, start, stop, data, retry)
        return bytes(data)

    def _retry(self) -> Retry:
        return Retry(self._where, self._retries, self._options, self._stopped)

    def _continue(self, files: Any, path: str, start: int, stop: int, data: bytearray, retry: Retry) -> None:
        """Request what is missing of [start, stop), once."""
        before = len(data)
        try:
            self._request(files, path, start + before, stop, data)
            if len(data) == before:
                raise AnswerError("a response without bytes")
        except store_failures() as error:
            retry.failed(f"bytes {start}-{stop - 1}", error, has_progress=len(data) > before)

    def _request(self, files: Any, path: str, start: int, stop: int, into: bytearray) -> None:
        """Make one request, and check the version of the file."""
        if is_web(files):
            before = len(into)
            request = web_range(files, path, start, stop, size=self._size, stall=self._retries.stall, into=into)
            version = self._result(files, request, timeout=max(self._retries.patience, self._retries.stall))
            if not self._is_same(version):
                del into[before:]
            self._check(version)
            return
        self._recheck(files, path)
        if files.async_impl:
            data = self._result(files, files._cat_file(path, start=start, end=stop), timeout=self._retries.stall)  # noqa: SLF001  (fsspec's public methods wait for it without a limit)
        else:
            data = files.cat_file(path, start=start, end=stop)
        if len(data) > stop - start:
            raise AnswerError(f"{len(data)} bytes were received for a range of {stop - start}")
        self._recheck(files, path)  # the bytes may be of a newer version
        into += data

    def _result(self, files: Any, request: Coroutine[Any, Any, Answer], *, timeout: float | None) -> Answer:
        """Run a request on the loop of its filesystem; `close` cancels it."""
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(request, timeout), files.loop)
        with self._lock:
            self._pending.add(future)
        if self._stopped.is_set():
            future.cancel()
        try:
            return future.result()
        finally:
            future.cancel()  # if waiting was interrupted
            with self._lock:
                self._pending.discard(future)

    def _info(self) -> None:
        if self._checked_at is not None and self._size is not None:
            return
        files, path = filesystem(self._url, self._options)
        self._retry().answer("its size", lambda: self._recheck(files, path, always=True))

    def _recheck(self, files: Any, path: str, *, always: bool = False) -> None:
        """Request size and tag, unless they were checked just now."""
        now = time.monotonic()
        if not always and self._checked_at is not None and now - self._checked_at < self._retries.recheck:
            return
        files.invalidate_cache(path)  # fsspec caches listings, which may be outdated
        if files.async_impl:
            info = self._result(files, files._info(path), timeout=self._retries.stall)  # noqa: SLF001  (as above)
        else:
            info = files.info(path)
        tag = next((str(info[name]) for name in _TAGS if info.get(name)), "").removeprefix("W/")
        self._check(Version(info.get("size"), tag))
        self._checked_at = now

    def _is_same(self, version: Version) -> bool:
        has_same_size = None in (version.size, self._size) or version.size == self._size
        return has_same_size and (not self._tag or not version.tag or version.tag == self._tag)

    def _check(self, version: Version) -> None:
        """Compare a version with the first one."""
        with self._lock:
            if version.size is not None and self._size not in (None, version.size):
                raise self._wrong_size(version.size)
            if self._tag and version.tag and version.tag != self._tag:
                raise ShardMismatchError(
                    f"{self._where} was changed while it was read (its ETag or time was {self._tag} and is now {version.tag}); "
                    "run `equitar index` again"
                )
            self._size = self._size if version.size is None else version.size
            self._tag = self._tag or version.tag
            self._checked_at = time.monotonic()

    def _copied(self) -> LocalRanges:
        """Return an unnamed copy of the whole file, made once."""
        with self._copying:
            if self._copy is not None:
                return self._copy
            files, path = filesystem(self._url, self._options)
            size, stall = self.size(), self._retries.stall
            with tempfile.TemporaryFile() as file:
                self._retry().answer(
                    "the whole file",
                    lambda: self._result(
                        files, web_whole(files, path, size=size, stall=stall, into=file), timeout=None
                    ),
                )
                self._copy = LocalRanges.of(file, self._where)
            return self._copy
