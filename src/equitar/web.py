"""How is a range read from a web server? With all that HTTP says about it checked.

fsspec's own reading of a range drops the headers of the answer, in which a server says that it sends another range, another
file than before, or a page that tells of an error; and it drops the bytes that came when a connection breaks.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, NamedTuple

from equitar.patience import DENIED, DENIED_MEND, MISSING, AnswerError

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
