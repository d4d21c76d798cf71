"""Selections: the `keep` of a source as a number for each row.

The number multiplies the repeat factor of the row: 0 leaves it out of frequencies, counts and lines; below 1 it is kept with
that share over the epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from equitar.arrays import Float64
from equitar.errors import SourceError
from equitar.sidecars.sidecar import Sidecar
from equitar.sources import Source, Split, StorageOptions
from equitar.storage.files import read_bytes, write_bytes_atomically
from equitar.urls import shown


class Unread(NamedTuple):
    """A sample that was planned but not emitted.

    Attributes:
        source: Its source.
        path: Path of its shard below the root of the source.
        key: Its key.
    """

    source: str
    path: str
    key: str


def write_exclusions(
    report: Mapping[str, Any], source: str, url: str, *, storage_options: Mapping[str, Any] | None = None
) -> int:
    """Write the samples of a source that were lost or dropped as a file for ``keep="!FILE"``, and return their number.

    Args:
        report: From `Loader.counters`.
        source: Name of the source.
        url: Where to write it: a path, or what fsspec writes to.
        storage_options: Options for fsspec.
    """
    unread: Iterable[Unread] = [*report["lost_samples"], *report["dropped_samples"]]
    lines = sorted({f"{sample.path}\t{sample.key}" for sample in unread if sample.source == source})
    raw = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
    write_bytes_atomically(url, raw, storage_options)
    return len(lines)


Selection: TypeAlias = Callable[[str, Sidecar], Float64]


@dataclass(frozen=True)
class _KeysOf:
    """Keeps the rows whose key is in a file, or all others.

    A line is a key, or the path of a shard, a tab and a key. Each process reads the file itself: a million keys should not
    be sent to every worker.
    """

    url: str
    excluded: bool
    storage_options: StorageOptions
    _lines: set[str] = field(default_factory=set, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lines": set()}

    def __call__(self, path: str, sidecar: Sidecar) -> Float64:
        if not self._lines:
            try:
                raw = read_bytes(self.url, self.storage_options)
            except FileNotFoundError as error:
                raise SourceError(f"`keep` file not found: {shown(self.url)}; check the path") from error
            self._lines.update(line for line in _lines_of(raw) if line)
        listed = [key in self._lines or f"{path}\t{key}" in self._lines for key in sidecar.keys]
        kept: Float64 = (np.array(listed, bool) != self.excluded).astype(np.float64)
        return kept


def _lines_of(raw: bytes) -> list[str]:
    return [line.removesuffix("\r") for line in raw.decode("utf-8", "surrogateescape").split("\n")]


@dataclass(frozen=True)
class _Share:
    share: float

    def __call__(self, path: str, sidecar: Sidecar) -> Float64:
        return np.full(sidecar.num_rows, self.share)


@dataclass(frozen=True)
class _SplitOf:
    split: Split

    def __call__(self, path: str, sidecar: Sidecar) -> Float64:
        return np.fromiter(self.split(sidecar.keys), np.float64, sidecar.num_rows)


@dataclass(frozen=True)
class _Chosen:
    source: str
    function: Callable[[Sidecar], Any]

    def __call__(self, path: str, sidecar: Sidecar) -> Float64:
        return checked_numbers(self.function(sidecar), sidecar, f"`keep` of source {self.source!r}", path)


def checked_numbers(values: Any, sidecar: Sidecar, what: str, path: str) -> Float64:
    """Return what a user's function returned for the rows of a shard, (rows,), as numbers >= 0.

    Raises:
        SourceError: If it returned anything else.
    """
    numbers = np.asarray(values, np.float64)
    if numbers.shape != (sidecar.num_rows,) or not ((numbers >= 0) & (numbers < np.inf)).all():
        actual = (
            f"shape {numbers.shape}" if numbers.shape != (sidecar.num_rows,) else f"numbers down to {numbers.min()}"
        )
        raise SourceError(
            f"{what} must give a finite number >= 0 for each of {sidecar.num_rows} rows of {path}; got {actual}"
        )
    return numbers


def selection_of(source: Source) -> Selection | None:
    """Return the selection of a source: a function of the path of a shard and its sidecar; None keeps all rows once."""
    keep = source.keep
    if keep is None or keep == 1:
        return None
    if isinstance(keep, str):
        return _KeysOf(keep.removeprefix("!"), keep.startswith("!"), source.storage_options)
    if isinstance(keep, Split):
        return _SplitOf(keep)
    if isinstance(keep, float | int):
        return _Share(float(keep))
    return _Chosen(source.name, keep)
