"""What does planning need of all shards of a source, without opening thousands of sidecars? Its summary, and its bytes.

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
skipped        any          bytes of the paths of shards that were named, were not there, and were left out on purpose, sorted,
                            one after another                                   (this and the next only if there are any)
skip_lengths   skipped      bytes of each of these paths
============== ============ ==========================================================================================

The digest is BLAKE2b with 16 bytes over all arrays in this order, each as little-endian i8 after its length as one more i8.

What does planning need of all shards of a source, without opening thousands of sidecars? Its summary.

A summary is immutable: its name holds the digest of what it holds. A small pointer file beside it names the newest. A source
that grows gets a new summary and a new pointer; a run that began with the old one finds it again by its digest. Both lie in
the folder of the sidecars if the source has one, else in the root of the source.

The pointer ``NAME.summary.json`` is a JSON object: ``format``, "equitar summary pointer"; ``version``, 1; ``summary``, the
name of the file. `equitar.summary_format` says what is in a summary.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

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
from equitar.sources import Source, index_command
from equitar.storage.files import exists, read_bytes, write_bytes_atomically
from equitar.storage.foreign_lists import folder_of, resolved
from equitar.storage.listing import ShardList, expand, sidecar_url
from equitar.urls import join, local_path, place_of, shown

_KIND = {"format": "equitar summary", "version": 1}
_ALWAYS = ("meta", "paths", "path_lengths", "num_samples", "shard_sizes", "digests")
_META = ("class_ids", "class_names")
_LABELS = ("shard_labels", "label_ids", "label_counts")
_SKIPPED = ("skipped", "skip_lengths")
_DENSEST = 1032 / 512  # samples in a byte


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
        skipped: Paths of shards that were named and not there, and were left out on purpose, sorted.
        file_digest: Digest of the file that it was read from, of which it may be a part; None if it was not.
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
        """What identifies this summary, 32 hex digits."""
        return _digest(arrays_of(self))

    def is_of(self, sidecar: Sidecar, shard: int) -> bool:
        """Return whether a sidecar is the one of a shard; not only by its digest, which a file may just claim."""
        if sidecar.digest != self.digests[shard] or sidecar.num_rows != self.num_samples[shard]:
            return False
        if self.label_counts is None or sidecar.presence is None:
            return True
        ids, found = self.label_counts.ids[slice(*self.label_counts.indptr[shard : shard + 2])], sidecar.presence.ids
        return _ends(ids) == _ends(found)


def _ends(ids: Int64) -> tuple[int, int] | None:
    return (int(ids.min()), int(ids.max())) if len(ids) else None


def summary_of(paths: Sequence[str], sidecars: Iterable[Sidecar]) -> Summary:
    """Return the summary of shards from their sidecars, which come one by one in the order of `paths`.

    Raises:
        SidecarError: If some shards have labels and others none, or their class names differ.
    """
    shards = [_summary_of_one(path, sidecar) for path, sidecar in zip(paths, sidecars, strict=True)]
    return joined(sorted(shards, key=lambda one: one.paths))


def joined(shards: Sequence[Summary], *, skipped: Sequence[str] = ()) -> Summary:
    """Return the summary of all shards from those of one each, which are sorted by path.

    Raises:
        SidecarError: As `summary_of`.
    """
    bare = [one.paths[0] for one in shards if one.label_counts is None]
    if 0 < len(bare) < len(shards):
        seen = f"{len(bare)} of {len(shards)} shards have no labels, such as {bare[0]!r}, but others have"
        raise SidecarError(f"{seen}; run `equitar index` for all with the same `--labels`")
    other = next((one.paths[0] for one in shards if one.class_names != shards[0].class_names), None)
    if other is not None:
        seen = f"{other!r} has other class names than {shards[0].paths[0]!r}"
        raise SidecarError(f"{seen} but a class needs one id; run `equitar index` for all with the same `--classes`")
    labels = [one.label_counts for one in shards if one.label_counts is not None]
    none = np.zeros(0, np.int64)
    return Summary(
        paths=tuple(one.paths[0] for one in shards),
        num_samples=np.concatenate([none, *(one.num_samples for one in shards)]),
        shard_sizes=np.concatenate([none, *(one.shard_sizes for one in shards)]),
        digests=tuple(one.digests[0] for one in shards),
        label_counts=Presence.joined(labels) if labels else None,
        class_names=shards[0].class_names if shards else None,
        skipped=tuple(sorted(skipped)),
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


def restricted(summary: Summary, paths: Sequence[str], *, where: str, mend: str) -> Summary:
    """Return the summary of some of its shards, in the order of `paths`; those that it skipped on purpose are left out.

    Raises:
        SidecarError: If it does not have one of them.
    """
    if tuple(paths) == summary.paths:
        return summary
    row_of = {path: row for row, path in enumerate(summary.paths)}
    skipped = set(summary.skipped)
    found = [path for path in paths if path not in skipped]
    missing = [path for path in found if path not in row_of]
    if missing:
        raise SidecarError(
            f"{where} does not cover {len(missing)} of {len(paths)} shards, such as {missing[0]!r}; {mend}"
        )
    rows = np.array([row_of[path] for path in found], np.int64)
    return Summary(
        paths=tuple(found),
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


def from_bytes(raw: bytes, *, where: str, mend: str) -> Summary:
    """Return the summary in a file.

    Raises:
        SidecarError: If the bytes are no summary, of another version, or damaged in any way.
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
            digests=tuple(hexes[at : at + 32] for at in range(0, len(hexes), 32)),
            label_counts=labels,
            class_names=read_class_names(meta),
            skipped=tuple(unpack_texts(arrays["skipped"], arrays["skip_lengths"])) if "skipped" in arrays else (),
            file_digest=_digest(arrays),
        )
    except ValueError as error:
        raise SidecarError(f"{where} is damaged: {error}; {mend}") from error
    lengths = {len(summary.num_samples), len(summary.shard_sizes), len(summary.digests)}
    if lengths != {len(paths)} or (labels is not None and labels.num_rows != len(paths)):
        raise SidecarError(f"{where} is damaged: its columns have other lengths than its {len(paths)} paths; {mend}")
    # A sample has a header of 512 bytes at least, which may be packed to one by 1,032.
    if ((summary.num_samples < 0) | (summary.num_samples / _DENSEST > summary.shard_sizes)).any():
        raise SidecarError(f"{where} is damaged: a shard has more samples than can be in its bytes; {mend}")
    return summary


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
