"""What does planning need of all shards of a source, without opening thousands of sidecars? Its summary.

A summary is immutable: its name holds the digest of what it holds. A small pointer file beside it names the newest. A source
that grows gets a new summary and a new pointer; a run that began with the old one finds it again by its digest. Both lie in
the folder of the sidecars if the source has one, else in the root of the source.

**Format, version 1.** ``NAME.DIGEST16.summary.npz``, where NAME is the source's name with all but letters, digits and ``_.-~``
as ``%XX``, and DIGEST16 the first 16 digits of the digest below. Arrays are written as in a sidecar (`equitar.sidecar`):

============== ============ ==========================================================================================
array          length       holds
============== ============ ==========================================================================================
meta           any          bytes of a JSON object: ``format``, "equitar summary"; ``version``, 1; ``class_ids`` and
                            ``class_names``, lists of equal length, or both null
paths          any          bytes of the paths of all shards below the root, sorted, one after another
path_lengths   shards       bytes of each path
num_samples    shards       number of rows
shard_sizes    shards       length of each tar in bytes
digests        16 x shards  digest of each sidecar
shard_labels   shards       number of different labels in each shard      (this and the next two only if all have labels)
label_ids      labels       ids of the labels, strictly increasing within a shard
label_counts   labels       number of samples of the shard that have the label, >= 1
============== ============ ==========================================================================================

The digest is BLAKE2b with 16 bytes over all arrays in this order, each as little-endian i8 after its length as one more i8.
The pointer ``NAME.summary.json`` is a JSON object: ``format``, "equitar summary pointer"; ``version``, 1; ``summary``, the
name of the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

import numpy as np

from equitar.errors import SidecarError
from equitar.mix64 import Int64
from equitar.npz import (
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
from equitar.presence import Presence
from equitar.redact import shown
from equitar.sidecar import ClassNames, Sidecar, index_command, read_sidecar
from equitar.sources import Source
from equitar.storage import ShardList, exists, expand, join, read_bytes, sidecar_url, write_bytes_atomically

_KIND = {"format": "equitar summary", "version": 1}
_ALWAYS = ("meta", "paths", "path_lengths", "num_samples", "shard_sizes", "digests")
_META = ("class_ids", "class_names")
_LABELS = ("shard_labels", "label_ids", "label_counts")
_POINTER = {"format": "equitar summary pointer", "version": 1}
_THREADS = 16  # sidecars are read from disks and object stores, where waiting is most of the time


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Summary:
    """What planning needs of the shards of a source.

    Attributes:
        paths: Path of each shard below the root, sorted.
        num_samples: Rows of each shard, (shards,).
        shard_sizes: Length of each shard in bytes, (shards,).
        digests: Digest of each shard's sidecar.
        label_counts: One row per shard: which labels occur in it, and how many of its samples have each; None if a source
            was indexed without labels.
        class_names: Ids of classes and their names, in the same order; None if labels are ids only.
    """

    paths: tuple[str, ...]
    num_samples: Int64
    shard_sizes: Int64
    digests: tuple[str, ...]
    label_counts: Presence | None
    class_names: ClassNames | None

    @property
    def digest(self) -> str:
        """What identifies this summary, 32 hex digits."""
        digest = hashlib.blake2b(digest_size=16)
        for array in _arrays(self).values():
            digest.update(np.array([len(array)], "<i8").tobytes() + array.astype("<i8").tobytes())
        return digest.hexdigest()


def summarize(paths: Sequence[str], sidecars: Iterable[Sidecar]) -> Summary:
    """Return the summary of shards from their sidecars, which come one by one in the order of `paths`.

    Raises:
        SidecarError: If some shards have labels and others none, or their class names differ.
    """
    shards = [_summary_of_one(path, sidecar) for path, sidecar in zip(paths, sidecars, strict=True)]
    shards.sort(key=lambda one: one.paths)
    labels = [one.label_counts for one in shards if one.label_counts is not None]
    if labels and len(labels) < len(shards):
        bare = next(one for one in shards if one.label_counts is None)
        raise SidecarError(
            f"{bare.paths[0]} has no labels but {len(labels)} other shards of its source have; run `equitar index` for all "
            "of them with the same labels"
        )
    for one in shards:
        if one.class_names != shards[0].class_names:
            raise SidecarError(
                f"{one.paths[0]} has other class names than {shards[0].paths[0]} but within a source a class has one id; run "
                "`equitar index` for all shards with the same labels"
            )
    none = np.zeros(0, np.int64)
    return Summary(
        paths=tuple(one.paths[0] for one in shards),
        num_samples=np.concatenate([none, *(one.num_samples for one in shards)]),
        shard_sizes=np.concatenate([none, *(one.shard_sizes for one in shards)]),
        digests=tuple(one.digests[0] for one in shards),
        label_counts=Presence.joined(labels) if labels else None,
        class_names=shards[0].class_names if shards else None,
    )


def _summary_of_one(path: str, sidecar: Sidecar) -> Summary:
    """Return what is kept of one sidecar, so that sidecars need not be held together."""
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


def write_summary(source: Source, summary: Summary) -> str:
    """Write a summary, then the pointer to it, and return the URL of the summary."""
    folder, options = _folder(source), source.storage_options
    url = join(folder, f"{_stem(source)}.{summary.digest[:16]}.summary.npz")
    if not exists(url, options):
        write_bytes_atomically(url, pack(_arrays(summary)), options)
    pointer = json.dumps({**_POINTER, "summary": url.rpartition("/")[2]})
    write_bytes_atomically(join(folder, f"{_stem(source)}.summary.json"), pointer.encode("ascii"), options)
    return url


def load_summary(source: Source, *, shards: ShardList | None = None, digest: str | None = None) -> Summary:
    """Return the summary of a source, restricted to its shards; without a summary it is made from the sidecars, in memory.

    Args:
        source: The source.
        shards: Its shards, where they are at hand.
        digest: Which summary to load (default: the newest, that of the pointer).

    Raises:
        SidecarError: If a shard is not covered, or what is there is damaged.
    """
    shards, mend = shards or expand(source), index_command(source)
    folder, options = _folder(source, shards), source.storage_options
    if digest is None:
        name = _pointed_at(source, folder, mend)
        if name is None:
            return summarize(shards.paths, _read_sidecars(source, shards, mend))
    else:
        name = f"{_stem(source)}.{digest[:16]}.summary.npz"
    url = join(folder, name)
    try:
        summary = from_bytes(read_bytes(url, options), where=shown(url), mend=mend)
    except FileNotFoundError as error:
        raise SidecarError(f"{shown(url)} is missing but source {source.name!r} needs this summary; {mend}") from error
    if summary.digest[:16] != name.split(".")[-3]:
        raise SidecarError(f"{shown(url)} holds the summary {summary.digest} but its name says another; {mend}")
    return restricted(summary, shards.paths, where=f"the summary of source {source.name!r}", mend=mend)


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


def restricted(summary: Summary, paths: Sequence[str], *, where: str, mend: str) -> Summary:
    """Return the summary of some of its shards, in the order of `paths`.

    Raises:
        SidecarError: If it does not have one of them.
    """
    if tuple(paths) == summary.paths:
        return summary
    row_of = {path: row for row, path in enumerate(summary.paths)}
    missing = [path for path in paths if path not in row_of]
    if missing:
        raise SidecarError(
            f"{where} does not cover {len(missing)} of {len(paths)} shards, such as {missing[0]!r}; {mend}"
        )
    rows = np.array([row_of[path] for path in paths], np.int64)
    return Summary(
        paths=tuple(paths),
        num_samples=summary.num_samples[rows],
        shard_sizes=summary.shard_sizes[rows],
        digests=tuple(summary.digests[row] for row in rows),
        label_counts=None if summary.label_counts is None else _picked(summary.label_counts, rows),
        class_names=summary.class_names,
    )


def _picked(presence: Presence, rows: Int64) -> Presence:
    """Return some rows of labels."""
    lengths = np.diff(presence.indptr)[rows]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    entries = np.arange(indptr[-1]) + np.repeat(presence.indptr[rows] - indptr[:-1], lengths)
    return Presence(indptr=indptr, ids=presence.ids[entries], counts=presence.counts[entries])


def _arrays(summary: Summary) -> Arrays:
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
    return arrays


def from_bytes(raw: bytes, *, where: str, mend: str) -> Summary:
    """Return the summary in a file.

    Raises:
        SidecarError: If the bytes are no summary, of another version, or damaged in any way.
    """
    try:
        arrays = unpack(raw)
        check_names(arrays, _ALWAYS, _LABELS)
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
            digests=tuple(hexes[at : at + 32] for at in range(0, len(hexes), 32)),
            label_counts=labels,
            class_names=read_class_names(meta),
        )
    except ValueError as error:
        raise SidecarError(f"{where} is damaged: {error}; {mend}") from error
    lengths = {len(summary.num_samples), len(summary.shard_sizes), len(summary.digests)}
    if lengths != {len(paths)} or (labels is not None and labels.num_rows != len(paths)):
        raise SidecarError(f"{where} is damaged: its columns have other lengths than its {len(paths)} paths; {mend}")
    return summary


def _folder(source: Source, shards: ShardList | None = None) -> str:
    return source.sidecars or (shards or expand(source)).root


def _stem(source: Source) -> str:
    return quote(source.name, safe="")
