"""Where do shards lie?

Local paths, ``file:`` and whatever fsspec opens are served; local files never load fsspec. A shard is identified by its path
below the root of its source, so that the order of a list, the mount point and the scheme change nothing.
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
from equitar.sources import Source, StorageOptions
from equitar.storage.files import read_bytes
from equitar.storage.foreign_lists import read_entries
from equitar.storage.remote import patiently
from equitar.urls import join, local_path, place_of, shown

_MAGIC = re.compile(r"[*?[]")
_OURS = (".presence.npz", ".summary.npz", ".summary.json")  # what `index` writes beside shards
_PART = re.compile(r"(?P<file>.+\.(?:yaml|yml|json)):(?P<part>[^/:]+)", re.DOTALL)


class _Urls(Sequence[str]):
    """URLs that are a folder and a path below it: 100,000 of them are put together as they are asked for."""

    __slots__ = ("_folder", "_paths")

    def __init__(self, folder: str, paths: Sequence[str]) -> None:
        self._folder, self._paths = folder, paths

    @classmethod
    def of(cls, paths: Sequence[str], urls: Sequence[str]) -> Sequence[str]:
        """Return the same URLs, as paths of one folder if they are that."""
        folder = urls[0].removesuffix(paths[0]) if urls else ""
        is_folder = all(url == folder + path for path, url in zip(paths, urls, strict=True))
        return cls(folder, paths) if is_folder else tuple(urls)

    def __len__(self) -> int:
        return len(self._paths)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        if isinstance(at, slice):
            return tuple(self._folder + path for path in self._paths[at])
        return self._folder + self._paths[at]

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, _Urls | tuple | list) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardList:
    """The shards of a source, sorted by path.

    Attributes:
        root: What the paths are relative to: a folder, or the URL of one.
        paths: Path of each shard below `root`; it identifies the shard.
        urls: What opens each shard, as the user wrote it.
        sidecars: Folder of the sidecars, which mirrors the paths, and of the summaries: a folder, or the URL of one.
        stem: What names of the summaries begin with.
    """

    root: str = field(repr=False)  # like the URLs, it may hold what must not be shown
    paths: tuple[str, ...]
    urls: Sequence[str] = field(repr=False)
    sidecars: str = field(repr=False)
    stem: str = field(compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "urls", _Urls.of(self.paths, tuple(self.urls)))

    def __len__(self) -> int:
        return len(self.paths)

    def only(self, paths: Sequence[str]) -> ShardList:
        """Return the shards that have these paths, all of which are listed; the texts are shared, not held twice."""
        url_of = dict(zip(self.paths, self.urls, strict=True))
        return replace(self, paths=tuple(paths), urls=tuple(url_of[path] for path in paths))


def expand(source: Source) -> ShardList:
    """Return the shards that the patterns of a source stand for.

    Braces are expanded, then globs. What has no glob is taken as it is, there or not: sidecars may be here and shards elsewhere.

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
            f"source {source.name!r} has the shard {shown(outside[0])} but its `root` is {shown(root)}; mend one of them"
        )
    shards = sorted((place[len(below) :], url) for place, url in zip(places, urls, strict=True))
    for (path, first), (other, second) in itertools.pairwise(shards):
        if path == other:
            raise SourceError(
                f"source {source.name!r} lists {path!r} twice, as {shown(first)} and {shown(second)}, but a shard identifies its samples; "
                "list it once (more passes are a matter of `weights`)"
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
                f"source {source.name!r} lists {shown(pattern)!r}, which is empty; write one URL a line into it"
            )
        yield from listed
        return
    try:
        unbraced = list(braceexpand.braceexpand(pattern)) if "{" in pattern else [pattern]
    except ValueError as error:
        raise SourceError(
            f"source {source.name!r} has the pattern {shown(pattern)!r}, whose braces are wrong: {error}"
        ) from error
    for one in unbraced:
        # What ends as shards do is taken at its word: to ask for each of 100,000 whether it is a folder would take long.
        if not one.endswith((".tar", ".gz", ".tgz")) and (local := local_path(one)) and Path(local).is_dir():
            inside = shown(one.rstrip("/")) + "/*.tar"
            raise SourceError(
                f"source {source.name!r} names the folder {shown(one)!r} but must name shards, as in {inside!r}"
            )
        found = _glob(one, source.storage_options)
        if not found:
            seen = f"source {source.name!r} has the pattern {shown(one)!r}, which matches no file"
            raise SourceError(f"{seen}; {_what_is_there(one)}")
        yield from found


def _what_is_there(pattern: str) -> str:
    """Return what lies where a pattern matches nothing: the path is wrong, or the names are."""
    local = local_path(pattern)
    if local is None:
        return "mend it"
    folder = Path(local).parent
    while _MAGIC.search(str(folder)):
        folder = folder.parent
    if not folder.is_dir():
        return f"there is no folder {str(folder)!r}; mend the path"
    names = sorted(one.name for one in folder.iterdir() if not one.name.endswith(_OURS))
    like = difflib.get_close_matches(Path(local).name, names, n=1, cutoff=0)
    return f"folder {str(folder)!r} holds " + (
        f"{len(names)} others, such as {like[0]!r}; mend it" if like else "nothing"
    )


def _listed(path: str, source: Source) -> Iterator[str]:
    """Yield the URLs in a file: of another tool, see `equitar.shard_lists`, or one pattern a line."""
    part = _PART.fullmatch(path)
    file = part["file"] if part else path
    try:
        raw = read_bytes(file, source.storage_options)
    except FileNotFoundError as error:
        raise SourceError(
            f"source {source.name!r} lists '@{shown(file)}', which is not there; mend the path"
        ) from error
    entries = read_entries(raw, file, part=part["part"] if part else None)
    if entries is not None:
        yield from (entry.url for entry in entries)
        return
    for line in raw.decode().splitlines():
        if line.strip():
            yield from _matches(line.strip(), source)


def _glob(pattern: str, options: StorageOptions) -> list[str]:
    """Return what a pattern without braces matches; itself if it is no glob."""
    local = local_path(pattern)
    if local is not None:
        if not _MAGIC.search(local) or Path(local).exists():
            return [pattern]
        begin = pattern[: len(pattern) - len(local)]  # what a `file:` URL has before its path
        # `Path.glob` wants a folder apart from the pattern, and gives other spellings back.
        return [begin + one for one in sorted(glob.glob(local, recursive=True)) if not one.endswith(_OURS)]  # noqa: PTH207
    web = pattern.startswith(("http:", "https:"))  # where ? begins a query
    if pattern.startswith("pipe:") or not ("*" in pattern if web else _MAGIC.search(pattern)):
        return [pattern]
    chain, _, inner = pattern.rpartition("::")

    def found(files: Any, path: str) -> list[str]:
        files.invalidate_cache()  # a source may have grown since it was listed
        return [files.unstrip_protocol(one) for one in sorted(files.glob(path)) if not one.endswith(_OURS)]

    return [(f"{chain}::" if chain else "") + one for one in patiently(inner, options, "its list", found)]


def _common_root(places: list[str], source: Source) -> str:
    """Return the deepest folder that holds all shards."""
    folders = [place.split("/")[:-1] for place in places]
    first, last = min(folders), max(folders)
    depth = next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), None)
    common = first[: min(len(first), len(last)) if depth is None else depth]
    if "://" in "".join(places) and len(common) < 3:  # scheme, nothing, and bucket or host
        raise SourceError(
            f"source {source.name!r} has shards at {shown('/'.join(first))} and at {shown('/'.join(last))} but one source needs one root; "
            "make two sources of it"
        )
    return "/".join(common) or "/"


def sidecar_path(path: str) -> str:
    """Return where the sidecar of a shard lies, relative to the same root.

    >>> sidecar_path("a/x-000.tar"), sidecar_path("a/y.tar.gz")
    ('a/x-000.presence.npz', 'a/y.tar.gz.presence.npz')
    """
    return f"{path.removesuffix('.tar')}.presence.npz"


def sidecar_url(shards: ShardList, path: str) -> str:
    """Return the URL of the sidecar of a shard: at the same path below the folder of the sidecars."""
    return join(shards.sidecars, sidecar_path(path))
