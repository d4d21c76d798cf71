"""Do the sidecars agree with the index of another tool? Counts, sizes, and where samples and members lie, shard by shard.

A sidecar that `check` has compared with its shard knows where each header is whose checksum holds. So what agrees with it lies at
headers, has the right keys and fields, and covers the tar.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from equitar.foreign import Told, read_told
from equitar.mix64 import Int64
from equitar.patience import StorageOptions
from equitar.redact import shown
from equitar.shard_index import Shard
from equitar.sidecar import Sidecar, read_sidecar
from equitar.storage import local_path, place_of
from equitar.summary import Summary

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
    finder = Finder([one.shard.url for one in known])
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
    finder, result = Finder([shard.url for shard in shards]), list(shards)
    for told in read_told(pattern, options):
        at = finder.find(told.shard)
        if at is not None and local_path(result[at].url) is None:
            result[at] = replace(result[at], expected=_places(told))
    return result


def _places(told: Told) -> Int64 | None:
    """Return begin and end of what a walk reads by what is told, (places, 2), bytes."""
    if told.members is not None:
        begin = told.members.offset
        # A label after its header is fetched with both headers around it, as what lies between near places is.
        return np.stack([np.maximum(begin - _HEADERS, 0), begin + _HEADERS], axis=1)
    return None if told.starts is None else np.stack([told.starts, told.starts + 2 * _HEADERS], axis=1)


class Finder:
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


def _compared(told: Told, known: Known) -> Iterator[str]:
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


def _other_key(told: Told, sidecar: Sidecar) -> str:
    """Say which sample has another key than is told; nothing if none has."""
    pairs = zip(sidecar.keys, told.keys or sidecar.keys, strict=True)
    return next(
        (f"key {ours!r} in row {row} but {theirs!r}" for row, (ours, theirs) in enumerate(pairs) if ours != theirs), ""
    )


def _misplaced_sample(told: Told, sidecar: Sidecar) -> str:
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


def _misplaced_member(told: Told, sidecar: Sidecar) -> str:
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
