"""Listing of shards: patterns, globs and `@FILE` of a source, expanded and sorted.

URLs are local paths, ``file:`` URLs and whatever fsspec opens; local files never load fsspec. A shard is identified by its path
below the root of its source, so the order of the list, the mount point and the scheme do not matter.
"""

from __future__ import annotations

import difflib
import glob
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload
from urllib.parse import quote

import braceexpand

from equitar.errors import SourceError
from equitar.sources import Source
from equitar.storage.files import read_bytes
from equitar.storage.foreign_lists import read_entries
from equitar.storage.remote import patiently
from equitar.urls import join, local_path, place_of, shown

_MAGIC = re.compile(r"[*?[]")
_OURS = (".presence.npz", ".summary.npz", ".summary.json")  # what `index` writes beside shards
_PART = re.compile(r"(?P<file>.+\.(?:yaml|yml|json)):(?P<part>[^/:]+)", re.DOTALL)


class _Urls(Sequence[str]):
    """URLs made of a folder and paths, joined when they are accessed, which saves memory for 100,000 of them."""

    __slots__ = ("_folder", "_paths")

    def __init__(self, folder: str, paths: Sequence[str]) -> None:
        self._folder, self._paths = folder, paths

    @classmethod
    def of(cls, paths: Sequence[str], urls: Sequence[str]) -> Sequence[str]:
        """Return the same URLs, stored as folder and paths where possible."""
        folder = urls[0].removesuffix(paths[0]) if urls else ""
        is_folder = all(url == folder + path for path, url in zip(paths, urls, strict=True))
        return cls(folder, paths) if is_folder else tuple(urls)

    def __len__(self) -> int:
        return len(self._paths)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return tuple(self._folder + path for path in self._paths[index])
        return self._folder + self._paths[index]

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, _Urls | tuple | list) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardList:
    """The shards of a source, sorted by path."""

    root: str = field(repr=False)  # folder or URL that the paths are relative to; may hold secrets, as URLs do
    paths: tuple[str, ...]  # path of each shard below `root`; it identifies the shard
    urls: Sequence[str] = field(repr=False)  # URL of each shard, as the user wrote it
    sidecars: str = field(repr=False)  # folder or URL of the sidecars, which mirrors the paths, and of the summaries
    stem: str = field(compare=False)  # what names of the summaries begin with

    def __post_init__(self) -> None:
        object.__setattr__(self, "urls", _Urls.of(self.paths, tuple(self.urls)))

    def __len__(self) -> int:
        return len(self.paths)

    def only(self, paths: Sequence[str]) -> ShardList:
        """Return the shards with these paths, all of which must be listed."""
        url_of = dict(zip(self.paths, self.urls, strict=True))
        return replace(self, paths=tuple(paths), urls=tuple(url_of[path] for path in paths))


def expand(source: Source) -> ShardList:
    """Return the shards that match the patterns of a source.

    Braces are expanded, then globs. A URL without a glob need not exist: sidecars may be here and shards elsewhere.

    Raises:
        SourceError: If a pattern matches nothing, a shard is listed twice, or the shards have no common root.
    """
    patterns = [source.urls] if isinstance(source.urls, str) else source.urls
    urls = [url for pattern in patterns for url in _matches(pattern, source)]
    places = [place_of(url) for url in urls]
    root = _common_root(places, source) if source.root is None else place_of(source.root)
    below = root if root.endswith("/") else f"{root}/"
    outside = [place for place in places if not place.startswith(below)]
    if outside:
        raise SourceError(
            f"source {source.name!r} has the shard {shown(outside[0])} but its `root` is {shown(root)}; fix one of them"
        )
    shards = sorted((place[len(below) :], url) for place, url in zip(places, urls, strict=True))
    for (path, first), (other, second) in itertools.pairwise(shards):
        if path == other:
            raise SourceError(
                f"source {source.name!r} lists {path!r} twice, as {shown(first)} and {shown(second)}, but a shard identifies its samples; "
                "list it once (use `weights` for more passes)"
            )
    return ShardList(
        root=root,
        paths=tuple(path for path, _ in shards),
        urls=tuple(url for _, url in shards),
        sidecars=source.sidecars or root,
        stem=quote(source.name, safe=""),
    )


def _matches(pattern: str, source: Source) -> Iterator[str]:
    """Yield the URLs of one pattern of a source."""
    if pattern.startswith("@"):
        listed = list(_listed(pattern[1:], source))
        if not listed:
            raise SourceError(
                f"source {source.name!r} lists {shown(pattern)!r}, which is empty; write one URL per line into it"
            )
        yield from listed
        return
    try:
        unbraced = list(braceexpand.braceexpand(pattern)) if "{" in pattern else [pattern]
    except ValueError as error:
        raise SourceError(
            f"source {source.name!r} has the pattern {shown(pattern)!r}, whose braces are wrong: {error}"
        ) from error
    for url in unbraced:
        # Not checked for names of shards: one call for each of 100,000 would take long.
        if not url.endswith((".tar", ".gz", ".tgz")) and (local := local_path(url)) and Path(local).is_dir():
            inside = shown(url.rstrip("/")) + "/*.tar"
            raise SourceError(
                f"source {source.name!r} names the folder {shown(url)!r} but must name shards, as in {inside!r}"
            )
        matches = _glob(url, source)
        if not matches:
            problem = f"source {source.name!r} has the pattern {shown(url)!r}, which matches no file"
            raise SourceError(f"{problem}; {_pattern_advice(url)}")
        yield from matches


def _pattern_advice(pattern: str) -> str:
    """Return what to fix in a pattern that matches nothing: its folder, or the names."""
    local = local_path(pattern)
    if local is None:
        return "fix the pattern"
    folder = Path(local).parent
    while _MAGIC.search(str(folder)):
        folder = folder.parent
    if not folder.is_dir():
        return f"folder {str(folder)!r} not found; check the path"
    names = sorted(path.name for path in folder.iterdir() if not path.name.endswith(_OURS))
    similar = difflib.get_close_matches(Path(local).name, names, n=1, cutoff=0)
    return f"folder {str(folder)!r} holds " + (
        f"{len(names)} others, such as {similar[0]!r}; fix the pattern" if similar else "nothing"
    )


def _listed(path: str, source: Source) -> Iterator[str]:
    """Yield the URLs in a list file: of another tool, see `foreign_lists`, or one pattern per line."""
    part = _PART.fullmatch(path)
    file = part["file"] if part else path
    try:
        raw = read_bytes(file, source.storage_options, source.retries)
    except FileNotFoundError as error:
        raise SourceError(
            f"source {source.name!r} lists '@{shown(file)}', but the file was not found; check the path"
        ) from error
    entries = read_entries(raw, file, part=part["part"] if part else None)
    if entries is not None:
        yield from (entry.url for entry in entries)
        return
    for line in raw.decode("utf-8-sig").splitlines():
        if line.strip():
            yield from _matches(line.strip(), source)


def _glob(pattern: str, source: Source) -> list[str]:
    """Return what a pattern without braces matches; the pattern itself if it is not a glob."""
    local = local_path(pattern)
    if local is not None:
        if not _MAGIC.search(local) or Path(local).exists():
            return [pattern]
        scheme = pattern[: len(pattern) - len(local)]  # of a `file:` URL
        # `Path.glob` takes the folder apart from the pattern, and spells the results differently.
        return [scheme + path for path in sorted(glob.glob(local, recursive=True)) if not path.endswith(_OURS)]  # noqa: PTH207
    is_web = pattern.startswith(("http:", "https:"))  # where ? begins a query
    if pattern.startswith("pipe:") or not ("*" in pattern if is_web else _MAGIC.search(pattern)):
        return [pattern]
    chain, _, inner = pattern.rpartition("::")

    def matches(files: Any, path: str) -> list[str]:
        files.invalidate_cache()  # a source may have grown since it was listed
        return [files.unstrip_protocol(name) for name in sorted(files.glob(path)) if not name.endswith(_OURS)]

    urls = patiently(inner, source.storage_options, source.retries, "a listing", matches)
    return [(f"{chain}::" if chain else "") + url for url in urls]


def _common_root(places: list[str], source: Source) -> str:
    """Return the deepest folder that holds all shards."""
    folders = [place.split("/")[:-1] for place in places]
    first, last = min(folders), max(folders)
    depth = next((level for level, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), None)
    common = first[: min(len(first), len(last)) if depth is None else depth]
    if "://" in "".join(places) and len(common) < 3:  # scheme, "", and bucket or host
        raise SourceError(
            f"source {source.name!r} has shards at {shown('/'.join(first))} and at {shown('/'.join(last))} but the shards of a source need a common root; "
            "make two sources of them"
        )
    return "/".join(common) or "/"


def sidecar_path(path: str) -> str:
    """Return the path of the sidecar of a shard, relative to the same root.

    >>> sidecar_path("a/x-000.tar"), sidecar_path("a/y.tar.gz")
    ('a/x-000.presence.npz', 'a/y.tar.gz.presence.npz')
    """
    return f"{path.removesuffix('.tar')}.presence.npz"


def sidecar_url(shards: ShardList, path: str) -> str:
    """Return the URL of the sidecar of a shard: at the same path below the folder of the sidecars."""
    return join(shards.sidecars, sidecar_path(path))
