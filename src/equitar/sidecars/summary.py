"""Summaries: what planning needs of all shards of a source, in one file. Their format, version 1.

A summary is immutable: its name contains the digest of its content. A small pointer file beside it names the newest. A source
that grows gets a new summary and a new pointer; a run that began with the old one finds it by its digest. Both are in the
folder of the sidecars if the source has one, otherwise in the root of the source. A summary can stand for its source: its
paths are relative to the ``root`` of the source, by default the folder of the summary; sidecars are always below that folder.

The pointer ``NAME.summary.json`` is a JSON object: ``format``, "equitar summary pointer"; ``version``, 1; ``summary``, the
name of the file.

**Format.** ``NAME.DIGEST16.summary.npz``, where NAME is the source's name with all but letters, digits and ``_.-~`` as ``%XX``,
and DIGEST16 the first 16 digits of the digest below. Arrays are written as in a sidecar (`equitar.sidecars.sidecar`):

| array | length | holds |
|---|---|---|
| ``meta`` | any | bytes of a JSON object: ``format``, "equitar summary"; ``version``, 1; ``class_ids`` and ``class_names``, lists of equal length, or both null |
| ``paths`` | any | bytes of the paths of all shards below the root, sorted, one after another |
| ``path_lengths`` | shards | bytes of each path |
| ``num_samples`` | shards | number of rows |
| ``shard_sizes`` | shards | length of each tar in bytes |
| ``digests`` | 16 x shards | digest of each sidecar |
| ``shard_labels`` | shards | number of different labels in each shard (this and the next two only if all have labels) |
| ``label_ids`` | labels | ids of the labels, strictly increasing within a shard |
| ``label_counts`` | labels | number of samples of the shard that have the label, >= 1 |
| ``skipped`` | any | bytes of the paths of listed shards that did not exist and were left out on purpose, sorted, one after another (this and the next only if there are any) |
| ``skip_lengths`` | skipped | bytes of each of these paths |

The digest is BLAKE2b with 16 bytes over all arrays in this order, each as little-endian i8, preceded by its length as an i8.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from equitar.arrays import Int64
from equitar.errors import SidecarError, SourceError
from equitar.presence import Presence
from equitar.sidecars.container import (
    Arrays,
    ContainerError,
    check_names,
    pack,
    pack_json,
    pack_texts,
    read_class_names,
    read_presence,
    unpack,
    unpack_json,
    unpack_texts,
    wide,
)
from equitar.sidecars.sidecar import ClassNames, Sidecar, read_sidecar
from equitar.sources import Source
from equitar.storage.files import exists, read_bytes, read_many, write_bytes_atomically
from equitar.storage.foreign_lists import folder_of, resolved
from equitar.storage.listing import ShardList, expand, sidecar_url
from equitar.urls import join, local_path, place_of, shown

_KIND = {"format": "equitar summary", "version": 1}
_ALWAYS = ("meta", "paths", "path_lengths", "num_samples", "shard_sizes", "digests")
_META = ("class_ids", "class_names")
_LABELS = ("shard_labels", "label_ids", "label_counts")
_SKIPPED = ("skipped", "skip_lengths")
_DENSEST = 1032 / 512  # samples per byte: each has a header of 512 bytes, and deflate packs 1,032 into one


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Summary:
    """What planning needs of the shards of a source.

    Attributes:
        paths: Path of each shard below the root, sorted.
        num_samples: Rows of each shard, (shards,).
        shard_sizes: Length of each shard in bytes, (shards,).
        digests: Digest of each shard's sidecar.
        label_counts: One row per shard: which labels occur in it, and how many of its samples have each; None if the source
            was indexed without labels.
        class_names: Ids of classes and their names, in the same order; None if labels are only ids.
        skipped: Paths of listed shards that did not exist and were left out on purpose, sorted.
        file_digest: Digest of the file that it (or a superset of it) was read from; None if it was not read from a file.
    """

    paths: tuple[str, ...]
    num_samples: Int64
    shard_sizes: Int64
    digests: tuple[str, ...]
    label_counts: Presence | None
    class_names: ClassNames | None
    skipped: tuple[str, ...] = ()
    file_digest: str | None = None

    @property
    def digest(self) -> str:
        """Identifies this summary, 32 hex digits."""
        return _digest(arrays_of(self))

    def is_of(self, sidecar: Sidecar, shard: int) -> bool:
        """Return whether a sidecar is that of a shard; not only by its digest, which a file merely claims."""
        if sidecar.digest != self.digests[shard] or sidecar.num_rows != self.num_samples[shard]:
            return False
        if self.label_counts is None or sidecar.presence is None:
            return True
        ids = self.label_counts.ids[slice(*self.label_counts.indptr[shard : shard + 2])]
        return _ends(ids) == _ends(sidecar.presence.ids)


def _ends(ids: Int64) -> tuple[int, int] | None:
    return (int(ids.min()), int(ids.max())) if len(ids) else None


def summary_of(paths: Sequence[str], sidecars: Iterable[Sidecar]) -> Summary:
    """Return the summary of shards from their sidecars, in the order of `paths`.

    Raises:
        SidecarError: See `join_summaries`.
    """
    shards = [shard_summary(path, sidecar) for path, sidecar in zip(paths, sidecars, strict=True)]
    return join_summaries(sorted(shards, key=lambda shard: shard.paths))


def join_summaries(shards: Sequence[Summary], *, skipped: Sequence[str] = ()) -> Summary:
    """Return the summary of all shards from summaries of single shards, sorted by path.

    Raises:
        SidecarError: If only some shards have labels, or their class names differ.
    """
    unlabelled = [shard.paths[0] for shard in shards if shard.label_counts is None]
    if 0 < len(unlabelled) < len(shards):
        problem = (
            f"{len(unlabelled)} of {len(shards)} shards have no labels, such as {unlabelled[0]!r}, but others have"
        )
        raise SidecarError(f"{problem}; run `equitar index` for all with the same `--labels`")
    other = next((shard.paths[0] for shard in shards if shard.class_names != shards[0].class_names), None)
    if other is not None:
        problem = f"{other!r} has other class names than {shards[0].paths[0]!r}, but a class needs one id"
        raise SidecarError(f"{problem}; run `equitar index` for all with the same `--classes`")
    labels = [shard.label_counts for shard in shards if shard.label_counts is not None]
    none = np.zeros(0, np.int64)
    return Summary(
        paths=tuple(shard.paths[0] for shard in shards),
        num_samples=np.concatenate([none, *(shard.num_samples for shard in shards)]),
        shard_sizes=np.concatenate([none, *(shard.shard_sizes for shard in shards)]),
        digests=tuple(shard.digests[0] for shard in shards),
        label_counts=Presence.joined(labels) if labels else None,
        class_names=shards[0].class_names if shards else None,
        skipped=tuple(sorted(skipped)),
    )


def shard_summary(path: str, sidecar: Sidecar) -> Summary:
    """Return the summary of a single shard: small, so that sidecars need not be held together."""
    labels = None
    if sidecar.presence is not None:  # a label is once in a row, so counting entries counts samples
        ids, counts = np.unique(sidecar.presence.ids, return_counts=True)
        labels = Presence(indptr=np.array([0, len(ids)]), ids=ids, counts=counts.astype(np.int64))
    return Summary(
        paths=(path,),
        num_samples=np.array([sidecar.num_rows]),
        shard_sizes=np.array([sidecar.shard_size]),
        digests=(sidecar.digest,),
        label_counts=labels,
        class_names=sidecar.class_names,
    )


def restricted(summary: Summary, paths: Sequence[str], *, where: str, fix: str) -> Summary:
    """Return the summary of some of its shards, in the order of `paths`, without those that it skipped on purpose.

    Raises:
        SidecarError: If it does not have one of them.
    """
    if tuple(paths) == summary.paths:
        return summary
    row_of = {path: row for row, path in enumerate(summary.paths)}
    skipped = set(summary.skipped)
    kept = [path for path in paths if path not in skipped]
    missing = [path for path in kept if path not in row_of]
    if missing:
        raise SidecarError(
            f"{where} does not cover {len(missing)} of {len(paths)} shards, such as {missing[0]!r}; {fix}"
        )
    rows = np.array([row_of[path] for path in kept], np.int64)
    return Summary(
        paths=tuple(kept),
        num_samples=summary.num_samples[rows],
        shard_sizes=summary.shard_sizes[rows],
        digests=tuple(summary.digests[row] for row in rows),
        label_counts=None if summary.label_counts is None else summary.label_counts.picked(rows),
        class_names=summary.class_names,
        skipped=tuple(path for path in paths if path in skipped),
        file_digest=summary.file_digest,
    )


def arrays_of(summary: Summary) -> Arrays:
    """Return the arrays of the file of a summary, in their order."""
    paths, path_lengths = pack_texts(summary.paths)
    named = zip(_META, summary.class_names or (None, None), strict=True)
    arrays: Arrays = {
        "meta": pack_json({**_KIND, **dict(named)}),
        "paths": paths,
        "path_lengths": path_lengths,
        "num_samples": summary.num_samples,
        "shard_sizes": summary.shard_sizes,
        "digests": np.frombuffer(bytes.fromhex("".join(summary.digests)), np.uint8),
    }
    if summary.label_counts is not None:
        arrays["shard_labels"] = np.diff(summary.label_counts.indptr)
        arrays["label_ids"] = summary.label_counts.ids
        arrays["label_counts"] = summary.label_counts.counts
    if summary.skipped:
        arrays["skipped"], arrays["skip_lengths"] = pack_texts(summary.skipped)
    return arrays


def _digest(arrays: Arrays) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in (arrays[name] for name in (*_ALWAYS, *_LABELS, *_SKIPPED) if name in arrays):
        digest.update(len(array).to_bytes(8, "little") + array.astype("<i8").tobytes())
    return digest.hexdigest()


def from_bytes(raw: bytes, *, where: str, fix: str) -> Summary:
    """Return the summary in a file.

    Raises:
        SidecarError: If the bytes are not a summary, of another version, or damaged in any way.
    """
    try:
        arrays = unpack(raw)
        check_names(arrays, _ALWAYS, _LABELS, _SKIPPED)
        meta = unpack_json(arrays["meta"], _KIND, _META)
        paths = tuple(unpack_texts(arrays["paths"], arrays["path_lengths"]))
        hexes = arrays["digests"].astype(np.uint8).tobytes().hex()
        labels = None
        if "shard_labels" in arrays:
            labels = read_presence(arrays["shard_labels"], arrays["label_ids"], arrays["label_counts"])
        summary = Summary(
            paths=paths,
            num_samples=wide(arrays["num_samples"]),
            shard_sizes=wide(arrays["shard_sizes"]),
            digests=tuple(hexes[start : start + 32] for start in range(0, len(hexes), 32)),
            label_counts=labels,
            class_names=read_class_names(meta),
            skipped=tuple(unpack_texts(arrays["skipped"], arrays["skip_lengths"])) if "skipped" in arrays else (),
            file_digest=_digest(arrays),
        )
    except ValueError as error:
        raise SidecarError(f"{where} is damaged: {error}; {fix}") from error
    lengths = {len(summary.num_samples), len(summary.shard_sizes), len(summary.digests)}
    if lengths != {len(paths)} or (labels is not None and labels.num_rows != len(paths)):
        raise SidecarError(f"{where} is damaged: its columns have other lengths than its {len(paths)} paths; {fix}")
    if ((summary.num_samples < 0) | (summary.num_samples / _DENSEST > summary.shard_sizes)).any():
        raise SidecarError(f"{where} is damaged: a shard has more samples than fit into its bytes; {fix}")
    return summary


_POINTER = {"format": "equitar summary pointer", "version": 1}
ListedSummary: TypeAlias = tuple[ShardList, Summary]  # the shards of a source, and its summary


def write_summary(source: Source, shards: ShardList, summary: Summary) -> str:
    """Write a summary, then the pointer to it; files that are already right are not touched. Return the URL of the summary."""
    options = source.storage_options
    url = join(shards.sidecars, _file_name(shards, summary.digest))
    if not exists(url, options, source.retries):
        write_bytes_atomically(url, pack(arrays_of(summary)), options)
    name, pointer_url = url.rpartition("/")[2], join(shards.sidecars, _pointer_name(shards))
    if not _points_at(name, pointer_url, source):
        write_bytes_atomically(pointer_url, json.dumps({**_POINTER, "summary": name}).encode("ascii"), options)
    return url


def _points_at(name: str, pointer_url: str, source: Source) -> bool:
    try:
        return _pointed_at(pointer_url, source) == name
    except SidecarError:  # damaged: it is written again
        return False


def shards_of(source: Source) -> tuple[ShardList, Summary | None]:
    """Return the shards of a source, and its summary if `urls` is one.

    A summary contains no location: its paths are relative to the `root` of the source, or otherwise to the folder it is in.

    Raises:
        SourceError: If the shards cannot be listed, or `sidecars` is not the folder of the summary.
        SidecarError: If the summary is missing, damaged, or of another version.
    """
    url = source.summary
    if url is None:
        return expand(source), None
    folder, _, name = place_of(url).rpartition("/")
    if source.sidecars is not None and place_of(source.sidecars) != (folder or "/"):
        raise SourceError(
            f"source {source.name!r} has `sidecars` {shown(source.sidecars)} but its summary is {shown(url)}, and sidecars are in the "
            "folder of their summary; omit `sidecars`"
        )
    if name.endswith(".json"):
        target = _pointed_at(url, source)
        if target is None:
            raise SidecarError(f"{shown(url)}, the summary of source {source.name!r}, is missing; {_fix(source)}")
        summary = _read(join(folder, target), source)
        stem = name.removesuffix(".summary.json")
    else:
        summary = _read(url, source)
        stem = name.removesuffix(".summary.npz").rpartition(".")[0]
    paths = sorted((*summary.paths, *summary.skipped))  # a skipped shard may exist by now, and be indexed
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
    """Return the summary of a source, restricted to its shards; if there is none, it is made from the sidecars, in memory.

    Args:
        source: The source.
        known: The result of `shards_of`, where that is at hand.
        digest: Which summary to load (default: the one that the source names, otherwise the newest). Shards that joined later
            are left out.

    Raises:
        SidecarError: If a shard is not covered, or what is there is damaged.
    """
    (shards, named), fix = known or shards_of(source), source.index_command()
    if digest is not None:
        summary: Summary | None = _of_digest(source, shards, named, digest)
    else:
        summary = named or newest_summary(source, shards)
    if summary is None:
        return _from_sidecars(source, shards, fix)
    paths = shards.paths
    if digest is not None:
        covered = {*summary.paths, *summary.skipped}
        paths = tuple(path for path in paths if path in covered)
    return restricted(summary, paths, where=f"the summary of source {source.name!r}", fix=fix)


def newest_summary(source: Source, shards: ShardList) -> Summary | None:
    """Return the newest summary of a source with all its shards, None if there is none yet.

    Raises:
        SidecarError: If it is damaged, or the pointer points at nothing.
    """
    name = _pointed_at(join(shards.sidecars, _pointer_name(shards)), source)
    return None if name is None else _read(join(shards.sidecars, name), source)


def _of_digest(source: Source, shards: ShardList, loaded: Summary | None, digest: str) -> Summary:
    """Return the summary with a digest, which may be loaded already."""
    if loaded is not None and loaded.file_digest == digest:
        return loaded
    return _read(join(shards.sidecars, _file_name(shards, digest)), source)


def _read(url: str, source: Source) -> Summary:
    try:
        summary = from_bytes(
            read_bytes(url, source.storage_options, source.retries), where=shown(url), fix=_fix(source)
        )
    except FileNotFoundError as error:
        raise SidecarError(f"{shown(url)}, a summary of {source.name!r}, is missing; {_fix(source)}") from error
    name = place_of(url).rpartition("/")[2]
    if str(summary.file_digest)[:16] != name.removesuffix(".summary.npz").rpartition(".")[2]:
        raise SidecarError(
            f"{shown(url)} holds the summary {summary.file_digest}, which its name contradicts; {_fix(source)}"
        )
    return summary


def usable_summaries(sources: Iterable[Source], digests: Mapping[str, str]) -> dict[str, ListedSummary]:
    """Return the named summaries that can still be used: they exist, and their shards are unchanged. Each is read once.

    Args:
        sources: The sources.
        digests: Digest of a summary by the name of its source.
    """
    usable = {}
    for source in sources:
        if source.name not in digests:
            continue
        try:
            shards, named = shards_of(source)
            newest = named or newest_summary(source, shards)
            then = _of_digest(source, shards, newest, digests[source.name])
        except SidecarError:
            continue
        now = dict(zip(newest.paths, newest.digests, strict=True)) if newest else {}
        if all(now.get(path) == digest for path, digest in zip(then.paths, then.digests, strict=True)):
            usable[source.name] = shards, then
    return usable


def _pointed_at(url: str, source: Source) -> str | None:
    """Return the file name in a pointer, None if it is not there."""
    try:
        raw = read_bytes(url, source.storage_options, source.retries)
    except FileNotFoundError:
        return None
    try:
        name = unpack_json(np.frombuffer(raw, np.uint8), _POINTER, ["summary"])["summary"]
    except ContainerError as error:
        raise SidecarError(f"{shown(url)} is damaged: {error}; {_fix(source)}") from error
    if not isinstance(name, str) or "/" in name or not name.endswith(".summary.npz") or name.count(".") < 3:
        raise SidecarError(f"{shown(url)} points at {name!r}, which is not the name of a summary; {_fix(source)}")
    return name


def _from_sidecars(source: Source, shards: ShardList, fix: str) -> Summary:
    def read(path: str) -> Summary:  # the sidecar itself is forgotten at once
        url = sidecar_url(shards, path)
        return shard_summary(
            path, read_sidecar(url, fix=fix, storage_options=source.storage_options, retries=source.retries)
        )

    return join_summaries(list(read_many(read, shards.paths)))


def _pointer_name(shards: ShardList) -> str:
    return f"{shards.stem}.summary.json"


def _file_name(shards: ShardList, digest: str) -> str:
    return f"{shards.stem}.{digest[:16]}.summary.npz"


def _fix(source: Source) -> str:
    """Return what to do about a summary that cannot be read; a source named only by it cannot be indexed by it."""
    if source.summary is None:
        return source.index_command()
    return f"check the path, or index the shards themselves: `equitar index {source.name}=SHARDS`, a pattern or a list"
