"""URLs: local paths, places and joins, and what of them may be shown.

Messages, reports and reprs end up in logs, and a URL may contain a password or a signed query.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from typing import Any

from equitar.errors import SourceError

_USER = re.compile(r"(?<=://)[^/@\s'\"]*@")
_QUERY = re.compile(r"(https?://[^\s?'\"]*)\?[^\s'\"]*")
_SHORTEST = 4  # characters of an option's value that is removed from texts: "us" would match everywhere


def shown(url: str) -> str:
    """Return a URL without possible secrets: user and password, the query of a web address, options of a command.

    >>> shown("https://me:pass@host/a/x.tar?X-Signature=abc"), shown("s3://bucket/a/x.tar")
    ('https://host/a/x.tar', 's3://bucket/a/x.tar')
    >>> shown("pipe:curl -s -H 'Authorization: Bearer abc' https://host/x.tar?sig=1")
    'pipe:curl -s -H … https://host/x.tar'
    """
    if url.startswith("pipe:"):
        return "pipe:" + _shown_command(url[len("pipe:") :])
    return _QUERY.sub(r"\1", _USER.sub("", url))


def _shown_command(command: str) -> str:
    """Return a command with its words and files, but without values of options, quoted text and assignments."""
    try:
        words = shlex.split(command, posix=False)
    except ValueError:
        return "…"
    result, before = [], ""
    for word in words:
        is_address = "://" in word
        if word.startswith("-") or is_address:
            name = word.partition("=")[0]
            result.append(shown(word.strip("'\"")) if is_address else name if name.startswith("--") else word[:2])
        elif before.startswith("-") or word[0] in "'\"" or "=" in word or ":" in word:
            result.append("…")
        else:
            result.append(word)
        before = word
    return " ".join(result)


def without_secrets(text: str, options: Mapping[str, Any] | None) -> str:
    """Return the text of an error without secrets in its URLs, and without values of storage options.

    >>> without_secrets("no access with key 'abcdef' to https://u:p@host/x?sig=1", {"key": "abcdef"})
    "no access with key '…' to https://host/x"
    """
    for value in sorted(_texts(options or {}), key=len, reverse=True):
        text = text.replace(value, "…")
    return _QUERY.sub(r"\1", _USER.sub("", text))


def _texts(value: Any) -> list[str]:
    """Return all texts in nested options that are long enough to be distinctive."""
    if isinstance(value, str):
        return [value] if len(value) >= _SHORTEST else []
    inner = list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else []
    return [text for item in inner for text in _texts(item)]


def local_path(url: str) -> str | None:
    """Return the path of a local file, None for any other URL.

    >>> local_path("a/x.tar"), local_path("file:///a/x.tar"), local_path("s3://a/x.tar")
    ('a/x.tar', '/a/x.tar', None)
    """
    if url.startswith("file:") and "::" not in url:
        path = url[len("file:") :]
        return "/" + path[2:].partition("/")[2] if path.startswith("//") else path
    return None if "://" in url or "::" in url or url.startswith("pipe:") else url


def place_of(url: str) -> str:
    """Return the location of a shard in canonical form: an absolute path, or a URL without chain and query.

    Raises:
        SourceError: If it is a ``pipe:`` whose command names no tar.

    >>> place_of("file:///d/../a/x.tar"), place_of("pipe:curl -s https://host/a/x.tar | cat")
    ('/a/x.tar', 'https://host/a/x.tar')
    """
    if url.startswith("pipe:"):  # the last tar that the command names
        named = re.findall(r"[^\s'\"|;&<>]+\.tar(?:\.gz)?(?=[\s'\"|;&<>?]|$)", url[len("pipe:") :])
        if not named:
            raise SourceError(
                f"{shown(url)!r} does not name a .tar, but a shard is identified by its path; use another URL"
            )
        return place_of(named[-1])
    local = local_path(url)
    if local is not None:
        # Not `resolve`, which follows links: a shard keeps the path its user gave.
        return os.path.abspath(local)  # noqa: PTH100
    inner = url.rpartition("::")[2]
    return (inner.partition("?")[0] if inner.startswith(("http:", "https:")) else inner).rstrip("/")


def join(root: str, path: str) -> str:
    """Return a path below a root, whether that is a folder or a URL."""
    return f"{root.rstrip('/')}/{path}"
