"""The index files of other tools: reading them, comparing them with sidecars, and fetching headers by them.

    lists             of wids, open_clip, open_lm and Energon, see `equitar.storage.foreign_lists`
    DALI              x.idx of `wds2idx`, v1.1 and v1.2: field, offset and size of every member, a line for each sample
    Megatron Energon  .nv-meta/index.sqlite: the same (a remote one is copied to a temporary file); x.tar.idx: where each sample
                      begins; the folder .nv-meta stands for its files
    img2dataset       00000_stats.json, and 00000.parquet with `status`: how many downloads of a shard succeeded

A file is recognized by its content. A glob or a brace pattern is for many files, as most of these are for one shard each.

Counts, sizes, and offsets of samples and members are compared shard by shard. A sidecar that `check` has compared with its
shard knows where each header with a valid checksum is. So an index that agrees with it points at headers, has the right keys
and fields, and covers the tar.
"""

from __future__ import annotations

import io
import json
import operator
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import numpy as np
from tqdm import tqdm

from equitar.arrays import Int64
from equitar.errors import SourceError, StorageError
from equitar.indexing.shard_task import Shard
from equitar.sidecars.sidecar import Sidecar, read_sidecar
from equitar.sidecars.summary import Summary
from equitar.sources import Retries, Source, StorageOptions
from equitar.storage.files import exists, read_bytes
from equitar.storage.foreign_lists import read_entries
from equitar.storage.listing import expand
from equitar.storage.remote import RemoteRanges
from equitar.tar.headers import HEADER_BYTES
from equitar.urls import join, local_path, place_of, shown

_SQLITE = b"SQLite format 3\0"
_INFOS = (".info.json", ".info.yaml")
_STATS = "_stats.json"


class Members(NamedTuple):
    """Members by the index of another tool."""

    row: Int64  # which sample each belongs to, (members,), non-decreasing
    field: list[str]
    offset: Int64  # of its data, (members,), bytes
    size: Int64  # of its data, (members,), bytes


class ForeignShard(NamedTuple):
    """One shard by the index of another tool; None where that has no such entry."""

    file: str  # the index
    shard: str  # where it is, see `place_of`
    samples: int | None
    size: int | None = None  # bytes
    starts: Int64 | None = None  # where each sample begins, (samples,), bytes
    members: Members | None = None
    keys: list[str] | None = None  # of the samples


def read_foreign_index(pattern: str, options: StorageOptions) -> Iterator[ForeignShard]:
    """Yield the shards in index files, one after another.

    Args:
        pattern: A file of a kind that the module lists, a folder `.nv-meta`, or a glob or brace pattern for many files.
        options: For fsspec, where these are remote.

    Raises:
        SourceError: If a pattern matches no file, or a file is not one of these or malformed.
    """
    urls: Sequence[str] = [pattern]
    if not _is_folder(pattern):
        root = "/" if local_path(pattern) is not None else None
        urls = expand(Source("another index", pattern, root=root, storage_options=options)).urls
    for url in urls:
        for file in _files_in(url, options) if _is_folder(url) else [url]:
            yield from _shards_in(file, options)


def _is_folder(url: str) -> bool:
    local = local_path(url)
    return place_of(url).endswith("/.nv-meta") if local is None else Path(local).is_dir()


def _files_in(folder: str, options: StorageOptions) -> list[str]:
    names = (*_INFOS, "index.sqlite")
    files = [url for name in names if exists(url := join(folder, name), options)]
    if not files:
        raise SourceError(
            f"{shown(folder)} must hold .info.json, .info.yaml or index.sqlite, as .nv-meta does; it has none"
        )
    return files


def _shards_in(url: str, options: StorageOptions) -> Iterator[ForeignShard]:
    local = local_path(url)
    if local is not None and _is_sqlite(local):  # it may be large, and is not read whole
        yield from _energon_index(Path(local), url, options)
        return
    if local is None and place_of(url).endswith(".sqlite"):
        ranges = RemoteRanges(url, options=options, retries=Retries(), size=None, wrong_size=partial(_changed, url))
        with closing(ranges), tempfile.NamedTemporaryFile(suffix=".sqlite") as copy:
            ranges.copy_to(cast("BinaryIO", copy))
            copy.flush()
            yield from _energon_index(Path(copy.name), url, options)
        return
    raw = read_bytes(url, options)
    entries = read_entries(raw, url)
    if entries is not None:
        for entry in entries:
            yield ForeignShard(shown(url), place_of(entry.url), entry.samples, entry.size)
        return
    readers: tuple[tuple[bool, Callable[[bytes, str], ForeignShard]], ...] = (
        (raw.startswith(b"v1."), _dali),
        (url.endswith(".tar.idx"), _energon_offsets),
        (url.endswith(_STATS), _img2dataset_stats),
        (raw.startswith(b"PAR1"), _img2dataset_rows),
    )
    reader = next((reader for is_such, reader in readers if is_such), None)
    if reader is None:
        wanted = "a list or an index of wids, open_clip, open_lm, Energon, DALI or img2dataset"
        raise SourceError(f"{shown(url)} must be {wanted}; it begins with {raw[:40]!r}")
    try:
        yield reader(raw, url)
    except (KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{shown(url)} is malformed ({error}); create it again with its tool") from error


def _dali(raw: bytes, url: str) -> ForeignShard:
    """Read ``version samples``, then a line for each sample: field, offset, size (and from v1.2 on name) of each member."""
    head, *lines = raw.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n")
    version, _, number = head.partition(" ")
    width = {"v1.1": 3, "v1.2": 4}.get(version)
    if width is None:
        raise SourceError(
            f"{shown(url)} must be of version v1.1 or v1.2; got {version!r}; create it again with wds2idx"
        )
    if int(number) != len(lines):
        raise SourceError(f"{shown(url)} must have {number} samples by its first line; got {len(lines)} lines")
    row: list[int] = []
    words: list[str] = []
    for number_of_line, line in enumerate(lines, start=2):
        cells = line.split(" ")
        if len(cells) % width or not all(map(str.isdecimal, cells[1::width] + cells[2::width])):
            wanted = f"{width} words for each member, a field, an offset and a size first"
            raise SourceError(f"line {number_of_line} of {shown(url)} must be {wanted}; got {line[:80]!r}")
        row += [number_of_line - 2] * (len(cells) // width)
        words += cells
    field, offset, size = words[::width], np.array(words[1::width], np.int64), np.array(words[2::width], np.int64)
    members = Members(np.array(row, np.int64), field, offset, size)
    keys = None
    if width == 4:  # a name, which ends in the field
        name_of = dict(zip(reversed(row), zip(reversed(words[3::width]), reversed(field), strict=True), strict=True))
        keys = [name.removesuffix(f".{end}") for _, (name, end) in sorted(name_of.items())]
    return ForeignShard(shown(url), place_of(f"{url.removesuffix('.idx')}.tar"), len(lines), members=members, keys=keys)


def _energon_offsets(raw: bytes, url: str) -> ForeignShard:
    """Read 64-bit numbers: where each sample begins, and where the last one ends."""
    starts = np.frombuffer(raw, "<u8").astype(np.int64)
    if not len(starts):
        raise SourceError(f"{shown(url)} must contain the start of each sample and the end; it is empty")
    return ForeignShard(shown(url), place_of(url.removesuffix(".idx")), len(starts) - 1, starts=starts[:-1])


def _is_sqlite(path: str) -> bool:
    with Path(path).open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def _changed(url: str, _: int) -> StorageError:
    return StorageError(f"{shown(url)} changed while it was read; run this again")


def _energon_index(path: Path, url: str, options: StorageOptions) -> Iterator[ForeignShard]:
    """Read an index at a local path, perhaps a copy of what is at the URL."""
    folder = place_of(url).rpartition("/")[0]
    info = next((file for name in _INFOS if exists(file := f"{folder}/{name}", options)), None)
    entries = None if info is None else read_entries(read_bytes(info, options), info)
    if entries is None:
        raise SourceError(f"{shown(url)} must be beside .info.json or .info.yaml, which names its shards; restore that")
    samples = "SELECT byte_offset, sample_key FROM samples WHERE tar_file_id = ? ORDER BY sample_index"
    parts = (
        "SELECT sample_index, part_name, content_byte_offset, content_byte_size FROM sample_parts WHERE tar_file_id = ? "
        "ORDER BY sample_index, content_byte_offset"
    )
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as index:
            # Version 6.0 of Energon did not write members yet.
            has_parts = index.execute("SELECT 1 FROM sqlite_master WHERE name = 'sample_parts'").fetchone() is not None
            for number, entry in enumerate(entries):
                sample_rows = index.execute(samples, (number,)).fetchall()
                starts = np.array([operator.index(start) for start, _ in sample_rows], np.int64)  # 512.7 is not 512
                rows = index.execute(parts, (number,)).fetchall() if has_parts else []
                row, offset, size = (np.array([operator.index(part[i]) for part in rows], np.int64) for i in (0, 2, 3))
                members = Members(row, [str(part[1]) for part in rows], offset, size) if has_parts else None
                keys = [key for _, key in sample_rows]
                yield ForeignShard(
                    shown(url), place_of(entry.url), len(keys), starts=starts, members=members, keys=keys
                )
    except (sqlite3.Error, TypeError) as error:  # a number may be NULL, text or a fraction
        raise SourceError(f"{shown(url)} is malformed ({error}); run `energon prepare` again") from error


def _img2dataset_stats(raw: bytes, url: str) -> ForeignShard:
    return ForeignShard(shown(url), place_of(f"{url.removesuffix(_STATS)}.tar"), int(json.loads(raw)["successes"]))


def _img2dataset_rows(raw: bytes, url: str) -> ForeignShard:
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415  (an extra, and slow to import)
    except ImportError as error:
        raise SourceError(f"{shown(url)} needs pyarrow; run `pip install 'equitar[parquet]'`") from error
    try:
        status = parquet.read_table(io.BytesIO(raw), columns=["status"])["status"].to_pylist()
    except (ArrowException, KeyError) as error:
        raise SourceError(f"{shown(url)} must have a column `status`, as img2dataset writes it ({error})") from error
    return ForeignShard(shown(url), place_of(f"{url.removesuffix('.parquet')}.tar"), status.count("success"))


_HEADERS = 3 * HEADER_BYTES  # a header and, before it, the extended header that most writers put there


class Known(NamedTuple):
    """A shard and the summary of its sidecar; None if the sidecar is wrong."""

    shard: Shard
    row: Summary | None


def differences(pattern: str, known: Sequence[Known], *, options: StorageOptions, progress: bool) -> list[str]:
    """Return the differences from the index of another tool, a sentence each, with shards that only one side knows.

    Args:
        pattern: Files of the other tool.
        known: The shards of all sources.
        options: For fsspec, where these files are remote.
        progress: Whether a terminal shows a bar.

    Raises:
        SourceError: If a file of the other tool is malformed.
    """
    matcher = ShardMatcher([shard.url for shard, _ in known])
    problems: list[str] = []
    seen: set[tuple[str, int]] = set()
    files: dict[str, int] = {}
    shards = read_foreign_index(pattern, options)
    for theirs in tqdm(shards, desc=pattern, unit=" shards", disable=None if progress else True):
        files[theirs.file] = files.get(theirs.file, 0) + 1
        number = matcher.find(theirs.shard)
        if number is None:
            problems.append(f"{shown(theirs.shard)} is in {theirs.file} but in no source")
        elif (theirs.file, number) in seen:
            problems.append(f"{known[number].shard.where} is twice in {theirs.file}")
        else:
            seen.add((theirs.file, number))
            problems += _compared(theirs, known[number])
    covered = {number for _, number in seen}
    where = next(iter(files)) if len(files) == 1 else pattern
    problems += [f"{shard.where} is not in {where}" for number, (shard, _) in enumerate(known) if number not in covered]
    return problems


def expecting(pattern: str, shards: Sequence[Shard], *, options: StorageOptions) -> list[Shard]:
    """Return shards with the ranges of their headers by the index of another tool; local shards are left as they are.

    Args:
        pattern: Files of the other tool.
        shards: The shards of one source.
        options: For fsspec, where these files are remote.

    Raises:
        SourceError: If a file of the other tool is malformed.
    """
    matcher, result = ShardMatcher([shard.url for shard in shards]), list(shards)
    for theirs in read_foreign_index(pattern, options):
        number = matcher.find(theirs.shard)
        if number is not None and local_path(result[number].url) is None:
            result[number] = replace(result[number], expected=_header_ranges(theirs))
    return result


def _header_ranges(theirs: ForeignShard) -> Int64 | None:
    """Return start and end of what a walk will read by this index, (ranges, 2), bytes."""
    if theirs.members is not None:
        begin = theirs.members.offset
        # A label after its header is fetched with both headers around it, like everything between near ranges.
        return np.stack([np.maximum(begin - _HEADERS, 0), begin + _HEADERS], axis=1)
    return None if theirs.starts is None else np.stack([theirs.starts, theirs.starts + 2 * _HEADERS], axis=1)


class ShardMatcher:
    """Finds a shard by its place, or by its base name where only one shard has it, as data may have been moved since."""

    def __init__(self, urls: Sequence[str]) -> None:
        """Index these shards."""
        self._by_place = {place_of(url): number for number, url in enumerate(urls)}
        self._by_name: dict[str, int | None] = {}
        for place, number in self._by_place.items():
            name = _base(place)
            self._by_name[name] = None if name in self._by_name else number

    def find(self, place: str) -> int | None:
        """Return the number of the shard at a place, None if there is none."""
        number = self._by_place.get(place)
        return self._by_name.get(_base(place)) if number is None else number


def _base(place: str) -> str:
    return place.rpartition("/")[2]


def _compared(theirs: ForeignShard, known: Known) -> Iterator[str]:
    """Yield the first difference between the other index and a sidecar."""
    row = known.row
    if row is None:  # a problem that is reported already
        return
    pairs = [("samples", theirs.samples, int(row.num_samples[0])), ("bytes", theirs.size, int(row.shard_sizes[0]))]
    for what, their_number, our_number in pairs:
        if their_number is not None and their_number != our_number:
            yield f"{known.shard.where} has {our_number} {what} but {their_number} by {theirs.file}"
            return
    if theirs.starts is None and theirs.members is None and theirs.keys is None:
        return
    shard = known.shard
    sidecar = read_sidecar(shard.sidecar, fix=shard.fix, storage_options=shard.options, retries=shard.retries)
    difference = _other_key(theirs, sidecar) or _misplaced_sample(theirs, sidecar) or _misplaced_member(theirs, sidecar)
    if difference:
        yield f"{shard.where} has {difference} by {theirs.file}"


def _other_key(theirs: ForeignShard, sidecar: Sidecar) -> str:
    """Return which sample has another key in the other index; empty if none has."""
    pairs = zip(sidecar.keys, theirs.keys or sidecar.keys, strict=True)
    return next(
        (f"key {key!r} in row {row} but {other!r}" for row, (key, other) in enumerate(pairs) if key != other), ""
    )


def _misplaced_sample(theirs: ForeignShard, sidecar: Sidecar) -> str:
    """Return which sample begins elsewhere by the other index; empty if none does."""
    if theirs.starts is None:
        return ""
    table = sidecar.table
    first = table.offset[table.indptr[:-1]]  # of the data of each sample
    ends = table.offset + (table.size + 511 & -HEADER_BYTES)
    before = np.concatenate([[0], ends[table.indptr[1:-1] - 1]]) if len(first) else first
    # Headers lie between the data before and the first data of the sample; there may be several of one member.
    starts = theirs.starts
    wrong = (starts < before) | (starts > first - HEADER_BYTES) | (starts % HEADER_BYTES != 0)
    for row in np.flatnonzero(wrong)[:1].tolist():
        return f"sample {sidecar.keys[row]!r} in bytes {before[row]} to {first[row]} but beginning at {starts[row]}"
    return ""


def _misplaced_member(theirs: ForeignShard, sidecar: Sidecar) -> str:
    """Return which member lies elsewhere by the other index; empty if none does."""
    if theirs.members is None:
        return ""
    row, fields, offset, size = theirs.members
    table = sidecar.table
    rows = np.repeat(np.arange(sidecar.num_rows), np.diff(table.indptr))
    numbers = {name: number for number, name in enumerate(table.fields)}
    field = np.array([numbers.get(name.lower(), -1) for name in fields], np.int64)
    order = np.argsort(offset, kind="stable")
    other = np.stack([row, field, offset, size])[:, order]
    own = np.stack([rows, table.field, table.offset, table.size])[:, np.argsort(table.offset, kind="stable")]
    if other.shape != own.shape:
        return f"{own.shape[1]} members but {other.shape[1]}"
    for member in np.flatnonzero((other != own).any(0))[:1].tolist():
        sample, number, begin, length = own[:, member].tolist()
        described = f"{table.fields[number]!r} of sample {sidecar.keys[sample]!r} at byte {begin}, {length} bytes long,"
        other_row, _, other_begin, other_length = other[:, member].tolist()
        name = fields[int(order[member])]
        return f"{described} but {name!r} of sample number {other_row} at byte {other_begin}, {other_length} long"
    return ""
