"""What does the index of another tool say of shards: how many samples, and where in the tar they lie?

    the lists of `equitar.shard_lists`
    DALI              x.idx of `wds2idx`, v1.1 and v1.2: field, offset and size of every member, a line for each sample
    Megatron Energon  .nv-meta/index.sqlite: the same (a remote one is copied to a temporary file); x.tar.idx: where each sample begins; the folder .nv-meta stands for what is in it
    img2dataset       00000_stats.json, and 00000.parquet with `status`: how many downloads of a shard succeeded

A file is known by what is in it. A glob or a brace pattern is for many files, as most of these are of one shard each.

Do the sidecars agree with the index of another tool? Counts, sizes, and where samples and members lie, shard by shard.

A sidecar that `check` has compared with its shard knows where each header is whose checksum holds. So what agrees with it lies at
headers, has the right keys and fields, and covers the tar.
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
from equitar.urls import join, local_path, place_of, shown

_SQLITE = b"SQLite format 3\0"
_INFOS = (".info.json", ".info.yaml")
_STATS = "_stats.json"


class Members(NamedTuple):
    """Where members are said to lie.

    Attributes:
        row: Which sample each belongs to, (members,), not falling.
        field: Field of each, (members,).
        offset: Where its data begin, (members,), bytes.
        size: Length of its data, (members,), bytes.
    """

    row: Int64
    field: list[str]
    offset: Int64
    size: Int64


class ForeignShard(NamedTuple):
    """What a file says of one shard.

    Attributes:
        file: The file.
        shard: The place of the shard, see `place_of`.
        samples: How many samples it holds; None if that is not said.
        size: Its length in bytes; None if that is not said.
        starts: Where each sample begins, (samples,), bytes; None if that is not said.
        members: Its members; None if they are not told.
        keys: Key of each sample; None if they are not told.
    """

    file: str
    shard: str
    samples: int | None
    size: int | None = None
    starts: Int64 | None = None
    members: Members | None = None
    keys: list[str] | None = None


def read_told(pattern: str, options: StorageOptions) -> Iterator[ForeignShard]:
    """Yield what files say of shards, one shard after another.

    Args:
        pattern: A file as the module says, a folder `.nv-meta`, or a glob or brace pattern for many files.
        options: For fsspec, where these are remote.

    Raises:
        SourceError: If a pattern matches no file, or a file is none of these or not as it must be.
    """
    urls: Sequence[str] = [pattern]
    if not _is_folder(pattern):
        root = "/" if local_path(pattern) is not None else None
        urls = expand(Source("another index", pattern, root=root, storage_options=options)).urls
    for url in urls:
        for file in _of_folder(url, options) if _is_folder(url) else [url]:
            yield from _told(file, options)


def _is_folder(url: str) -> bool:
    local = local_path(url)
    return place_of(url).endswith("/.nv-meta") if local is None else Path(local).is_dir()


def _of_folder(folder: str, options: StorageOptions) -> list[str]:
    names = (*_INFOS, "index.sqlite")
    found = [one for name in names if exists(one := join(folder, name), options)]
    if not found:
        raise SourceError(
            f"{shown(folder)} must hold .info.json, .info.yaml or index.sqlite, as .nv-meta does; it has none"
        )
    return found


def _told(url: str, options: StorageOptions) -> Iterator[ForeignShard]:
    local = local_path(url)
    if local is not None and _is_sqlite(local):  # which may be large, and is not read whole
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
        raise SourceError(f"{shown(url)} is not as its tool writes it ({error}); make it anew") from error


def _dali(raw: bytes, url: str) -> ForeignShard:
    """Read ``version samples``, then a line for each sample: field, offset, size (and from v1.2 on name) of each member."""
    head, *lines = raw.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n")
    version, _, number = head.partition(" ")
    width = {"v1.1": 3, "v1.2": 4}.get(version)
    if width is None:
        raise SourceError(f"{shown(url)} must be of version v1.1 or v1.2; got {version!r}; make it anew by wds2idx")
    if int(number) != len(lines):
        raise SourceError(f"{shown(url)} must have {number} samples, as its first line says; got {len(lines)} lines")
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
    if width == 4:  # a name, of which the field is the end
        name_of = dict(zip(reversed(row), zip(reversed(words[3::width]), reversed(field), strict=True), strict=True))
        keys = [name.removesuffix(f".{end}") for _, (name, end) in sorted(name_of.items())]
    return ForeignShard(shown(url), place_of(f"{url.removesuffix('.idx')}.tar"), len(lines), members=members, keys=keys)


def _energon_offsets(raw: bytes, url: str) -> ForeignShard:
    """Read 64-bit numbers: where each sample begins, and where the last one ends."""
    starts = np.frombuffer(raw, "<u8").astype(np.int64)
    if not len(starts):
        raise SourceError(f"{shown(url)} must hold the beginning of each sample and the end; it is empty")
    return ForeignShard(shown(url), place_of(url.removesuffix(".idx")), len(starts) - 1, starts=starts[:-1])


def _is_sqlite(path: str) -> bool:
    with Path(path).open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def _changed(url: str, _: int) -> StorageError:
    return StorageError(f"{shown(url)} was changed while it was read; begin again")


def _energon_index(path: Path, url: str, options: StorageOptions) -> Iterator[ForeignShard]:
    """Read an index at a local path, which is that of a URL."""
    folder = place_of(url).rpartition("/")[0]
    info = next((one for name in _INFOS if exists(one := f"{folder}/{name}", options)), None)
    entries = None if info is None else read_entries(read_bytes(info, options), info)
    if entries is None:
        raise SourceError(
            f"{shown(url)} must lie beside .info.json or .info.yaml, which names its shards; restore that"
        )
    samples = "SELECT byte_offset, sample_key FROM samples WHERE tar_file_id = ? ORDER BY sample_index"
    parts = (
        "SELECT sample_index, part_name, content_byte_offset, content_byte_size FROM sample_parts WHERE tar_file_id = ? "
        "ORDER BY sample_index, content_byte_offset"
    )
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as index:
            # Version 6.0 of Energon wrote no members yet.
            has_parts = index.execute("SELECT 1 FROM sqlite_master WHERE name = 'sample_parts'").fetchone() is not None
            for number, entry in enumerate(entries):
                begun = index.execute(samples, (number,)).fetchall()
                starts = np.array([operator.index(one) for one, _ in begun], np.int64)  # 512.7 is no 512
                rows = index.execute(parts, (number,)).fetchall() if has_parts else []
                row, offset, size = (np.array([operator.index(one[at]) for one in rows], np.int64) for at in (0, 2, 3))
                members = Members(row, [str(one[1]) for one in rows], offset, size) if has_parts else None
                keys = [key for _, key in begun]
                yield ForeignShard(
                    shown(url), place_of(entry.url), len(keys), starts=starts, members=members, keys=keys
                )
    except (sqlite3.Error, TypeError) as error:  # a number may be NULL, text or a fraction
        raise SourceError(f"{shown(url)} is not as `energon prepare` writes it ({error}); run it again") from error


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


_BLOCK = 512
_HEADERS = 3 * _BLOCK  # a header and, before it, the extended header that most writers put there


class Known(NamedTuple):
    """A shard and what its sidecar says in short; None if the sidecar is not right."""

    shard: Shard
    row: Summary | None


def differences(pattern: str, known: Sequence[Known], *, options: StorageOptions, progress: bool) -> list[str]:
    """Return what another tool says differently of shards, a sentence each, and which shards either side does not know.

    Args:
        pattern: Files of the other tool, see `equitar.foreign`.
        known: The shards of all sources.
        options: For fsspec, where these files are remote.
        progress: Whether a terminal shows a bar.

    Raises:
        SourceError: If a file of the other tool is not as it must be.
    """
    finder = ShardMatcher([one.shard.url for one in known])
    problems: list[str] = []
    met: set[tuple[str, int]] = set()
    files: dict[str, int] = {}
    each = tqdm(read_told(pattern, options), desc=pattern, unit=" shards", disable=None if progress else True)
    for told in each:
        files[told.file] = files.get(told.file, 0) + 1
        found = finder.find(told.shard)
        if found is None:
            problems.append(f"{shown(told.shard)} is in {told.file} but in no source")
        elif (told.file, found) in met:
            problems.append(f"{known[found].shard.where} is twice in {told.file}")
        else:
            met.add((told.file, found))
            problems += _compared(told, known[found])
    everyone = {at for _, at in met}
    where = next(iter(files)) if len(files) == 1 else pattern
    problems += [f"{one.shard.where} is not in {where}" for at, one in enumerate(known) if at not in everyone]
    return problems


def expecting(pattern: str, shards: Sequence[Shard], *, options: StorageOptions) -> list[Shard]:
    """Return shards with the places of their headers, where the index of another tool gives such; local ones as they are.

    Args:
        pattern: Files of the other tool, see `equitar.foreign`.
        shards: The shards of one source.
        options: For fsspec, where these files are remote.

    Raises:
        SourceError: If a file of the other tool is not as it must be.
    """
    finder, result = ShardMatcher([shard.url for shard in shards]), list(shards)
    for told in read_told(pattern, options):
        at = finder.find(told.shard)
        if at is not None and local_path(result[at].url) is None:
            result[at] = replace(result[at], expected=_places(told))
    return result


def _places(told: ForeignShard) -> Int64 | None:
    """Return begin and end of what a walk reads by what is told, (places, 2), bytes."""
    if told.members is not None:
        begin = told.members.offset
        # A label after its header is fetched with both headers around it, as what lies between near places is.
        return np.stack([np.maximum(begin - _HEADERS, 0), begin + _HEADERS], axis=1)
    return None if told.starts is None else np.stack([told.starts, told.starts + 2 * _HEADERS], axis=1)


class ShardMatcher:
    """Finds a shard by its place, or by its base name where only one shard has it, as data may have been moved since."""

    def __init__(self, urls: Sequence[str]) -> None:
        """Know these shards."""
        self._by_place = {place_of(url): at for at, url in enumerate(urls)}
        self._by_name: dict[str, int | None] = {}
        for place, at in self._by_place.items():
            name = _base(place)
            self._by_name[name] = None if name in self._by_name else at

    def find(self, place: str) -> int | None:
        """Return which shard lies at a place, None if none does."""
        found = self._by_place.get(place)
        return self._by_name.get(_base(place)) if found is None else found


def _base(place: str) -> str:
    return place.rpartition("/")[2]


def _compared(told: ForeignShard, known: Known) -> Iterator[str]:
    """Yield how what is told of a shard differs from what is known of it: the first difference."""
    row = known.row
    if row is None:  # which is a problem told before
        return
    pairs = [("samples", told.samples, int(row.num_samples[0])), ("bytes", told.size, int(row.shard_sizes[0]))]
    for what, theirs, ours in pairs:
        if theirs is not None and theirs != ours:
            yield f"{known.shard.where} has {ours} {what} but {theirs} by {told.file}"
            return
    if told.starts is None and told.members is None and told.keys is None:
        return
    shard = known.shard
    sidecar = read_sidecar(shard.sidecar, mend=shard.mend, storage_options=shard.options)
    difference = _other_key(told, sidecar) or _misplaced_sample(told, sidecar) or _misplaced_member(told, sidecar)
    if difference:
        yield f"{shard.where} has {difference} by {told.file}"


def _other_key(told: ForeignShard, sidecar: Sidecar) -> str:
    """Say which sample has another key than is told; nothing if none has."""
    pairs = zip(sidecar.keys, told.keys or sidecar.keys, strict=True)
    return next(
        (f"key {ours!r} in row {row} but {theirs!r}" for row, (ours, theirs) in enumerate(pairs) if ours != theirs), ""
    )


def _misplaced_sample(told: ForeignShard, sidecar: Sidecar) -> str:
    """Say which sample begins elsewhere than is told; nothing if none does."""
    if told.starts is None:
        return ""
    first = sidecar.offset[sidecar.indptr[:-1]]  # of the data of each sample
    ends = sidecar.offset + (sidecar.size + 511 & -_BLOCK)
    before = np.concatenate([[0], ends[sidecar.indptr[1:-1] - 1]]) if len(first) else first
    # Headers lie between the data before and the first data of the sample; there may be several of one member.
    wrong = (told.starts < before) | (told.starts > first - _BLOCK) | (told.starts % _BLOCK != 0)
    for at in np.flatnonzero(wrong)[:1].tolist():
        return f"sample {sidecar.keys[at]!r} in bytes {before[at]} to {first[at]} but beginning at {told.starts[at]}"
    return ""


def _misplaced_member(told: ForeignShard, sidecar: Sidecar) -> str:
    """Say which member lies elsewhere than is told; nothing if none does."""
    if told.members is None:
        return ""
    row, fields, offset, size = told.members
    rows = np.repeat(np.arange(sidecar.num_rows), np.diff(sidecar.indptr))
    numbers = {field: number for number, field in enumerate(sidecar.fields)}
    field = np.array([numbers.get(one.lower(), -1) for one in fields], np.int64)
    theirs = np.stack([row, field, offset, size])[:, np.argsort(offset, kind="stable")]
    ours = np.stack([rows, sidecar.field, sidecar.offset, sidecar.size])[:, np.argsort(sidecar.offset, kind="stable")]
    if theirs.shape != ours.shape:
        return f"{ours.shape[1]} members but {theirs.shape[1]}"
    for at in np.flatnonzero((theirs != ours).any(0))[:1].tolist():
        _, number, begin, length = ours[:, at].tolist()
        said = fields[int(np.argsort(offset, kind="stable")[at])]
        mine = f"{sidecar.fields[number]!r} of sample {sidecar.keys[int(ours[0, at])]!r} at byte {begin}, {length} bytes long,"
        return f"{mine} but {said!r} of sample number {theirs[0, at]} at byte {theirs[2, at]}, {theirs[3, at]} long"
    return ""
