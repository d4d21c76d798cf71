"""What does planning need of all shards of a source, without opening thousands of sidecars? Its summary.

A summary is immutable: its name holds the digest of what it holds. A small pointer file beside it names the newest. A source
that grows gets a new summary and a new pointer; a run that began with the old one finds it again by its digest. Both lie in
the folder of the sidecars if the source has one, else in the root of the source.

The pointer ``NAME.summary.json`` is a JSON object: ``format``, "equitar summary pointer"; ``version``, 1; ``summary``, the
name of the file. `equitar.summary_format` says what is in a summary.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from equitar.errors import SidecarError, SourceError
from equitar.npz import ContainerError, pack, unpack_json
from equitar.redact import shown
from equitar.shard_lists import folder_of, resolved
from equitar.sidecar import Sidecar, index_command, read_sidecar
from equitar.sources import Source
from equitar.storage import (
    ShardList,
    exists,
    expand,
    join,
    local_path,
    place_of,
    read_bytes,
    sidecar_url,
    write_bytes_atomically,
)
from equitar.summary_format import Summary, arrays_of, from_bytes, restricted, summary_of

__all__ = [
    "Summary",
    "from_bytes",
    "load_summary",
    "newest_summary",
    "restricted",
    "shards_of",
    "standing",
    "summary_of",
    "write_summary",
]

_POINTER = {"format": "equitar summary pointer", "version": 1}
_THREADS = 16  # sidecars are read from disks and object stores, where waiting is most of the time


def write_summary(source: Source, shards: ShardList, summary: Summary) -> str:
    """Write a summary, then the pointer to it, and return the URL of the summary."""
    options = source.storage_options
    url = join(shards.sidecars, _file_name(shards, summary.digest))
    if not exists(url, options):
        write_bytes_atomically(url, pack(arrays_of(summary)), options)
    pointer = json.dumps({**_POINTER, "summary": url.rpartition("/")[2]})
    write_bytes_atomically(join(shards.sidecars, _pointer_name(shards)), pointer.encode("ascii"), options)
    return url


def shards_of(source: Source) -> tuple[ShardList, Summary | None]:
    """Return the shards of a source, and the summary that its `urls` are, if they are one.

    A summary says no location: its paths are relative to the `root` of the source, or else to the folder that it lies in.

    Raises:
        SourceError: If the shards cannot be listed, or sidecars are to be elsewhere than their summary.
        SidecarError: If the summary is missing, damaged, or of another version.
    """
    url = source.summary
    if url is None:
        return expand(source), None
    folder, _, name = place_of(url).rpartition("/")
    if source.sidecars is not None and place_of(source.sidecars) != (folder or "/"):
        raise SourceError(
            f"source {source.name!r} has `sidecars` {shown(source.sidecars)} but its summary {shown(url)}, and sidecars lie where their "
            "summary does; leave `sidecars` out"
        )
    if name.endswith(".json"):
        found = _pointed_at(url, source)
        if found is None:
            raise SidecarError(
                f"{shown(url)} is missing but source {source.name!r} is to be this summary; {_mend(source)}"
            )
        summary = _read(join(folder, found), source)
        stem = name.removesuffix(".summary.json")
    else:
        summary = _read(url, source)
        stem = name.removesuffix(".summary.npz").rpartition(".")[0]
    paths = sorted((*summary.paths, *summary.skipped))  # what was skipped may be there by now, and be indexed
    below = folder_of(url if (local := local_path(url)) is None else local) if source.root is None else source.root
    return ShardList(
        root=place_of(below),
        paths=tuple(paths),
        urls=tuple(resolved(path, below) for path in paths),
        sidecars=folder or "/",
        stem=stem,
    ), summary


def load_summary(
    source: Source, *, known: tuple[ShardList, Summary | None] | None = None, digest: str | None = None
) -> Summary:
    """Return the summary of a source, restricted to its shards; without a summary it is made from the sidecars, in memory.

    Args:
        source: The source.
        known: What `shards_of` says of it, where that is at hand.
        digest: Which summary to load (default: the one that the source names, else the newest, that of the pointer). Shards that
            joined later are left out.

    Raises:
        SidecarError: If a shard is not covered, or what is there is damaged.
    """
    (shards, named), mend = known or shards_of(source), index_command(source)
    if digest is not None:
        summary: Summary | None = _of_digest(source, shards, named, digest)
    else:
        summary = named or newest_summary(source, shards)
    if summary is None:
        return summary_of(shards.paths, _read_sidecars(source, shards, mend))
    paths = shards.paths
    if digest is not None:
        covered = {*summary.paths, *summary.skipped}
        paths = tuple(path for path in paths if path in covered)
    return restricted(summary, paths, where=f"the summary of source {source.name!r}", mend=mend)


def newest_summary(source: Source, shards: ShardList) -> Summary | None:
    """Return the newest summary of a source with all shards that are in it, None if there is none yet.

    Raises:
        SidecarError: If it is damaged, or the pointer points at nothing.
    """
    name = _pointed_at(join(shards.sidecars, _pointer_name(shards)), source)
    return None if name is None else _read(join(shards.sidecars, name), source)


def _of_digest(source: Source, shards: ShardList, named: Summary | None, digest: str) -> Summary:
    """Return the summary of a digest, which the source may name."""
    if named is not None and named.file_digest == digest:
        return named
    return _read(join(shards.sidecars, _file_name(shards, digest)), source)


def _read(url: str, source: Source) -> Summary:
    try:
        summary = from_bytes(read_bytes(url, source.storage_options), where=shown(url), mend=_mend(source))
    except FileNotFoundError as error:
        raise SidecarError(
            f"{shown(url)} is missing but source {source.name!r} needs this summary; {_mend(source)}"
        ) from error
    name = place_of(url).rpartition("/")[2]
    if str(summary.file_digest)[:16] != name.removesuffix(".summary.npz").rpartition(".")[2]:
        raise SidecarError(
            f"{shown(url)} holds the summary {summary.file_digest} but its name says another; {_mend(source)}"
        )
    return summary


def standing(sources: Iterable[Source], digests: Mapping[str, str]) -> dict[str, str]:
    """Return those of the named summaries that can still be used: they are there, and their shards are as they were.

    Args:
        sources: The sources.
        digests: Digest of a summary by the name of its source.
    """
    found = {}
    for source in sources:
        if source.name not in digests:
            continue
        try:
            shards, named = shards_of(source)
            newest = named or newest_summary(source, shards)
            then = _of_digest(source, shards, named, digests[source.name])
        except SidecarError:
            continue
        now = dict(zip(newest.paths, newest.digests, strict=True)) if newest else {}
        if all(now.get(path) == digest for path, digest in zip(then.paths, then.digests, strict=True)):
            found[source.name] = then.digest
    return found


def _pointed_at(url: str, source: Source) -> str | None:
    """Return the file name in a pointer, None if it is not there."""
    try:
        raw = read_bytes(url, source.storage_options)
    except FileNotFoundError:
        return None
    try:
        name = unpack_json(np.frombuffer(raw, np.uint8), _POINTER, ["summary"])["summary"]
    except ContainerError as error:
        raise SidecarError(f"{shown(url)} is damaged: {error}; {_mend(source)}") from error
    if not isinstance(name, str) or "/" in name or not name.endswith(".summary.npz") or name.count(".") < 3:
        raise SidecarError(f"{shown(url)} points at {name!r}, which is no name of a summary; {_mend(source)}")
    return name


def _read_sidecars(source: Source, shards: ShardList, mend: str) -> Iterable[Sidecar]:
    urls = [sidecar_url(shards, path) for path in shards.paths]
    with ThreadPoolExecutor(_THREADS) as pool:
        yield from pool.map(partial(read_sidecar, mend=mend, storage_options=source.storage_options), urls)


def _pointer_name(shards: ShardList) -> str:
    return f"{shards.stem}.summary.json"


def _file_name(shards: ShardList, digest: str) -> str:
    return f"{shards.stem}.{digest[:16]}.summary.npz"


def _mend(source: Source) -> str:
    """Say what to do about a summary that cannot be read: what names no shards but by it cannot be indexed by it."""
    if source.summary is None:
        return index_command(source)
    return f"mend the path, or index the shards themselves: `equitar index {source.name}=SHARDS`, a pattern or a list of them"
