"""How are files read that are not here? In ranges through fsspec, asked for again where a store fails. The only module that knows it.

Whatever a store does, the bytes given are those of the file as it was when it was opened, all of them and each once, or there is
an error: the length of every answer is counted, and the size and the ETag (or time of change) that a store tells are compared.

How is a range read from a web server? With all that HTTP says about it checked.

fsspec's own reading of a range drops the headers of the answer, in which a server says that it sends another range, another
file than before, or a page that tells of an error; and it drops the bytes that came when a connection breaks.
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
from equitar.storage.retry import DENIED, DENIED_MEND, MISSING, AnswerError, Retry, store_failures
from equitar.urls import shown

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_PAGE = 60  # bytes of a page that an error shows
_PARTIAL, _OK, _UNSATISFIABLE = 206, 200, 416


class Version(NamedTuple):
    """What tells a file from the one that was there before.

    Attributes:
        size: Its length in bytes; None if the store did not say.
        tag: Its ETag or time of change; empty if the store did not say.
    """

    size: int | None
    tag: str


class NoRangesError(Exception):
    """The server sends whole files only."""


async def web_range(
    files: Any, url: str, start: int, stop: int, *, size: int | None, stall: float, into: bytearray
) -> Version:
    """Read bytes [start, stop) of a file and return which version of it the server says it is.

    Args:
        files: fsspec's filesystem.
        url: The file.
        start: First byte.
        stop: The one after the last byte.
        size: Length of the file, if known.
        stall: Seconds without a byte after which to give up.
        into: Takes the bytes as they come, so that those before a failure are not lost.

    Raises:
        NoRangesError: If the server sends the whole file.
        OSError: If it sends anything else.
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
    """Return the version that an answer is of, if it holds what was asked for."""
    status, headers = response.status, response.headers
    tag = headers.get("ETag", "").removeprefix("W/") or headers.get("Last-Modified", "")
    if status == _PARTIAL:
        found = _RANGE.fullmatch(headers.get("Content-Range", ""))
        if found is None or int(found[1]) != start:
            raise AnswerError(f"the server sends {headers.get('Content-Range')!r} for a range from byte {start}")
        return Version(None if found[3] == "*" else int(found[3]), tag)
    if status in MISSING:
        raise FileNotFoundError(f"status {status}")
    if status in DENIED:
        raise PermissionError(f"status {status}; {DENIED_MEND}")
    if status == _UNSATISFIABLE:
        total = headers.get("Content-Range", "").rpartition("/")[2]
        if total.isdigit():
            return Version(int(total), tag)
    kind = headers.get("Content-Type", "").partition(";")[0]
    if status == _OK and kind != "text/html" and size is not None and headers.get("Content-Length") == str(size):
        raise NoRangesError
    page = await asyncio.wait_for(response.content.read(_PAGE), stall)
    raise AnswerError(f"status {status} with {kind or 'a body'} that begins {page!r}")


async def web_whole(files: Any, url: str, *, size: int, stall: float, into: Any) -> None:
    """Write a whole file into another one, from a server that sends no ranges.

    Raises:
        OSError: If it does not come whole.
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
            raise AnswerError(f"status {response.status} for a whole file")
        while part := await asyncio.wait_for(response.content.readany(), stall):
            written += into.write(part)
    if written != size:
        raise AnswerError(f"{written} bytes came of {size}")


_PART = 8 << 20  # bytes of one request: what a failure may cost again
_TAGS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "modified", "created", "Last-Modified")
Answer = TypeVar("Answer")


def filesystem(url: str, options: StorageOptions) -> tuple[Any, str]:
    """Return fsspec's filesystem of a URL, and the path in it."""
    if url.startswith("pipe:"):
        raise SourceError(
            f"{shown(url)} is the output of a command, which cannot be written, listed or read by position"
        )
    from fsspec.core import url_to_fs  # noqa: PLC0415  (local files must not pay for it)

    try:
        files, path = url_to_fs(url, **(options or {}))
    except ImportError as error:
        raise SourceError(f"{shown(url)} needs a package that is not installed: {error}") from error
    return files, str(path)


def is_web(files: Any) -> bool:
    """Return whether a filesystem is that of web servers."""
    return "http" in ((files.protocol,) if isinstance(files.protocol, str) else tuple(files.protocol))


def patiently(url: str, options: StorageOptions, what: str, ask: Callable[[Any, str], Answer]) -> Answer:
    """Return what a filesystem answers about a path, asked for again where it fails.

    Args:
        url: The file.
        options: For fsspec.
        what: What is asked for, for errors.
        ask: Takes the filesystem and the path in it.

    Raises:
        FileNotFoundError: If the file is not there.
        StorageError: If the store does not answer.
    """
    patience = Retry(shown(url), Retries(), options, threading.Event())
    return patience.answer(what, lambda: ask(*filesystem(url, options)))


class RemoteRanges:
    """A file in a store; its size and version are those of the first answer."""

    def __init__(
        self,
        url: str,
        *,
        options: StorageOptions,
        retries: Retries,
        size: int | None,
        wrong_size: Callable[[int], Exception],
    ) -> None:
        """Prepare; nothing is asked for yet.

        Args:
            url: The file.
            options: For fsspec.
            retries: How patiently it is asked.
            size: How long the file must be; None takes what it says.
            wrong_size: Gives the error to raise for another size.
        """
        self._url, self._options, self._retries, self._wrong_size = url, options, retries, wrong_size
        self._size, self._tag = size, ""
        self._where = shown(url)
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._copying = threading.Lock()
        self._whole: LocalRanges | None = None  # a copy, from a server that sends no ranges
        self._under_way: set[Future[Any]] = set()
        self._checked_at: float | None = None

    def read(self, start: int, length: int) -> bytes:
        """Return bytes of the file; any number of threads may ask."""
        if self._size is not None and start + length > self._size:
            raise ShardMismatchError(
                f"{self._where} has {self._size} bytes but its sidecar has data up to {start + length}; restore the shard or run "
                "`equitar index` again"
            )
        parts = []
        for begin in range(start, start + length, _PART):
            stop = min(begin + _PART, start + length)
            whole = self._whole
            try:
                parts.append(self._part(begin, stop) if whole is None else whole.read(begin, stop - begin))
            except NoRangesError:
                parts.append(self._copied().read(begin, stop - begin))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def size(self) -> int:
        """Return the length of the file in bytes, from its store."""
        self._info()
        if self._size is None:
            raise StorageError(f"{self._where} is served without its size; download it, or serve it by another server")
        return self._size

    def tag(self) -> str:
        """Return what tells this version of the file from others; empty if its store does not say."""
        self._info()
        return self._tag

    def copy_to(self, file: BinaryIO) -> None:
        """Write the whole file into another one."""
        size = self.size()
        file.writelines(self.read(begin, min(_PART, size - begin)) for begin in range(0, size, _PART))

    def close(self) -> None:
        """End all requests, and let go of what is here."""
        self._stopped.set()
        with self._lock:
            for future in list(self._under_way):
                future.cancel()
        if self._whole is not None:
            self._whole.close()

    def _part(self, start: int, stop: int) -> bytes:
        """Return bytes [start, stop), however many requests it takes."""
        files, path = filesystem(self._url, self._options)
        patience = self._patience()
        got = bytearray()
        while len(got) < stop - start:
            self._go_on(files, path, start, stop, got, patience)
        return bytes(got)

    def _patience(self) -> Retry:
        return Retry(self._where, self._retries, self._options, self._stopped)

    def _go_on(self, files: Any, path: str, start: int, stop: int, got: bytearray, patience: Retry) -> None:
        """Make one request for what is missing of [start, stop)."""
        before = len(got)
        try:
            self._ask(files, path, start + before, stop, got)
            if len(got) == before:
                raise AnswerError("an answer without bytes")
        except store_failures() as error:
            patience.failed(f"bytes {start}-{stop - 1}", error, has_progress=len(got) > before)

    def _ask(self, files: Any, path: str, start: int, stop: int, into: bytearray) -> None:
        """Make one request, and check what it tells of the file."""
        if is_web(files):
            asked = web_range(files, path, start, stop, size=self._size, stall=self._retries.stall, into=into)
            before = len(into)
            version = self._done(files, asked, timeout=self._retries.limit)
            if not self._is_same(version):
                del into[before:]
            self._check(version)
            return
        self._recheck(files, path)
        if files.async_impl:
            found = self._done(files, files._cat_file(path, start=start, end=stop), timeout=self._retries.stall)  # noqa: SLF001  (what fsspec's own methods wait for, without end)
        else:
            found = files.cat_file(path, start=start, end=stop)
        if len(found) > stop - start:
            raise AnswerError(f"{len(found)} bytes came for a range of {stop - start}")
        self._recheck(files, path)  # or bytes of the next version might be taken for ours
        into += found

    def _done(self, files: Any, asked: Coroutine[Any, Any, Answer], *, timeout: float) -> Answer:
        """Return what comes of a request on the loop of its filesystem, unless we are closed meanwhile."""
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(asked, timeout), files.loop)
        with self._lock:
            self._under_way.add(future)
        if self._stopped.is_set():
            future.cancel()
        try:
            return future.result()
        finally:
            future.cancel()  # where the waiting itself was broken off
            with self._lock:
                self._under_way.discard(future)

    def _info(self) -> None:
        if self._checked_at is not None and self._size is not None:
            return
        files, path = filesystem(self._url, self._options)
        self._patience().answer("its size", lambda: self._recheck(files, path, always=True))

    def _recheck(self, files: Any, path: str, *, always: bool = False) -> None:
        """Ask for size and tag, if they were not asked for just now."""
        now = time.monotonic()
        if not always and self._checked_at is not None and now - self._checked_at < self._retries.recheck:
            return
        files.invalidate_cache(path)  # listings are remembered, and what is asked here is whether they hold
        if files.async_impl:
            told = self._done(files, files._info(path), timeout=self._retries.stall)  # noqa: SLF001  (as above)
        else:
            told = files.info(path)
        tag = next((str(told[name]) for name in _TAGS if told.get(name)), "").removeprefix("W/")
        self._check(Version(told.get("size"), tag))
        self._checked_at = now

    def _is_same(self, version: Version) -> bool:
        is_size = None in (version.size, self._size) or version.size == self._size
        return is_size and (not self._tag or not version.tag or version.tag == self._tag)

    def _check(self, version: Version) -> None:
        """Compare what a store tells with what it told before."""
        with self._lock:
            if version.size is not None and self._size not in (None, version.size):
                raise self._wrong_size(version.size)
            if self._tag and version.tag and version.tag != self._tag:
                raise ShardMismatchError(
                    f"{self._where} was changed while it was read (its ETag or time was {self._tag} and is {version.tag}); "
                    "run `equitar index` again"
                )
            self._size = self._size if version.size is None else version.size
            self._tag = self._tag or version.tag
            self._checked_at = time.monotonic()

    def _copied(self) -> LocalRanges:
        """Return a copy of the whole file, without a name, made once."""
        with self._copying:
            if self._whole is not None:
                return self._whole
            files, path = filesystem(self._url, self._options)
            size, stall = self.size(), self._retries.stall
            with tempfile.TemporaryFile() as file:
                self._patience().answer(
                    "the whole file",
                    lambda: self._done(
                        files, web_whole(files, path, size=size, stall=stall, into=file), timeout=self._retries.limit
                    ),
                )
                self._whole = LocalRanges.of(file, self._where)
            return self._whole
