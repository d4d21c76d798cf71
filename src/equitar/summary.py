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
from dataclasses import replace
from functools import partial
from urllib.parse import quote

import numpy as np

from equitar.errors import SidecarError
from equitar.npz import ContainerError, pack, unpack_json
from equitar.redact import shown
from equitar.sidecar import Sidecar, index_command, read_sidecar
from equitar.sources import Source
from equitar.storage import ShardList, exists, expand, join, read_bytes, sidecar_url, write_bytes_atomically
from equitar.summary_format import Summary, arrays_of, from_bytes, restricted, summary_of

__all__ = [
    "Summary",
    "folder_of",
    "from_bytes",
    "load_summary",
    "newest_summary",
    "restricted",
    "standing",
    "summary_of",
    "write_summary",
]

_POINTER = {"format": "equitar summary pointer", "version": 1}
_THREADS = 16  # sidecars are read from disks and object stores, where waiting is most of the time


def write_summary(source: Source, shards: ShardList, summary: Summary) -> str:
    """Write a summary, then the pointer to it, and return the URL of the summary."""
    folder, options = folder_of(source, shards), source.storage_options
    url = join(folder, f"{_stem(source)}.{summary.digest[:16]}.summary.npz")
    if not exists(url, options):
        write_bytes_atomically(url, pack(arrays_of(summary)), options)
    pointer = json.dumps({**_POINTER, "summary": url.rpartition("/")[2]})
    write_bytes_atomically(join(folder, f"{_stem(source)}.summary.json"), pointer.encode("ascii"), options)
    return url


def load_summary(source: Source, *, shards: ShardList | None = None, digest: str | None = None) -> Summary:
    """Return the summary of a source, restricted to its shards; without a summary it is made from the sidecars, in memory.

    Args:
        source: The source.
        shards: Its shards, where they are at hand.
        digest: Which summary to load (default: the newest, that of the pointer). Shards that joined later are left out.

    Raises:
        SidecarError: If a shard is not covered, or what is there is damaged.
    """
    shards, mend = shards or expand(source), index_command(source)
    summary = newest_summary(source, shards) if digest is None else _named(source, shards, digest, mend)
    if summary is None:
        return summary_of(shards.paths, _read_sidecars(source, shards, mend))
    paths = shards.paths
    if digest is not None:
        known = {*summary.paths, *summary.skipped}
        paths = tuple(path for path in paths if path in known)
    return restricted(summary, paths, where=f"the summary of source {source.name!r}", mend=mend)


def newest_summary(source: Source, shards: ShardList) -> Summary | None:
    """Return the newest summary of a source with all shards that are in it, None if there is none yet.

    Raises:
        SidecarError: If it is damaged, or the pointer points at nothing.
    """
    mend = index_command(source)
    name = _pointed_at(source, folder_of(source, shards), mend)
    return None if name is None else _read(source, shards, name, mend)


def _named(source: Source, shards: ShardList, digest: str, mend: str) -> Summary:
    return _read(source, shards, f"{_stem(source)}.{digest[:16]}.summary.npz", mend)


def _read(source: Source, shards: ShardList, name: str, mend: str) -> Summary:
    url = join(folder_of(source, shards), name)
    try:
        summary = from_bytes(read_bytes(url, source.storage_options), where=shown(url), mend=mend)
    except FileNotFoundError as error:
        raise SidecarError(f"{shown(url)} is missing but source {source.name!r} needs this summary; {mend}") from error
    if summary.digest[:16] != name.split(".")[-3]:
        raise SidecarError(f"{shown(url)} holds the summary {summary.digest} but its name says another; {mend}")
    return replace(summary, file_digest=summary.digest)


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
        shards = expand(source)
        try:
            newest = newest_summary(source, shards)
            then = _named(source, shards, digests[source.name], index_command(source))
        except SidecarError:
            continue
        now = dict(zip(newest.paths, newest.digests, strict=True)) if newest else {}
        if all(now.get(path) == digest for path, digest in zip(then.paths, then.digests, strict=True)):
            found[source.name] = then.digest
    return found


def _pointed_at(source: Source, folder: str, mend: str) -> str | None:
    """Return the file name in the pointer of a source, None if there is no pointer."""
    url = join(folder, f"{_stem(source)}.summary.json")
    try:
        raw = read_bytes(url, source.storage_options)
    except FileNotFoundError:
        return None
    try:
        name = unpack_json(np.frombuffer(raw, np.uint8), _POINTER, ["summary"])["summary"]
    except ContainerError as error:
        raise SidecarError(f"{shown(url)} is damaged: {error}; {mend}") from error
    if not isinstance(name, str) or "/" in name or not name.endswith(".summary.npz") or name.count(".") < 3:
        raise SidecarError(f"{shown(url)} points at {name!r}, which is no name of a summary; {mend}")
    return name


def _read_sidecars(source: Source, shards: ShardList, mend: str) -> Iterable[Sidecar]:
    urls = [sidecar_url(shards, path, source.sidecars) for path in shards.paths]
    with ThreadPoolExecutor(_THREADS) as pool:
        yield from pool.map(partial(read_sidecar, mend=mend, storage_options=source.storage_options), urls)


def folder_of(source: Source, shards: ShardList) -> str:
    """Return the folder, or the URL of one, that sidecars and summaries of a source are written below."""
    return source.sidecars or shards.root


def _stem(source: Source) -> str:
    return quote(source.name, safe="")
