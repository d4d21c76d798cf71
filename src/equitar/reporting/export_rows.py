"""Rows of an export: what is known of each sample, shard by shard in the order of the tars; `export` names the columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from equitar.arrays import Float64, Int64
from equitar.planning.repeat_factors import ONE
from equitar.sidecars.catalog import Catalog, Repeat, row_factors
from equitar.sidecars.sidecar import Sidecar

COLUMNS = ("source", "shard", "row", "key", "bytes", "sizes", "labels", "counts", "label_names")
FACTOR = "repeat_factor"


class ExportRows(NamedTuple):
    """The rows of one shard."""

    source: str
    shard: str
    sidecar: Sidecar
    factors: Float64 | None  # (rows,), in copies

    def text_keys(self) -> Sequence[str]:
        """Return the keys.

        Raises:
            ValueError: If one of them is not UTF-8.
        """
        keys = self.sidecar.keys
        try:
            "".join(keys).encode("utf-8")
        except UnicodeEncodeError:
            key = next(key for key in keys if any("\ud800" <= letter <= "\udfff" for letter in key))
            where = f"{self.shard} of source {self.source!r}"
            fix = "pass `binary_keys=True` (`--binary-keys`)"
            raise ValueError(f"a key must be UTF-8 to be exported as text; got {key!r} in {where}; {fix}") from None
        return keys


def export_rows(catalog: Catalog, repeat: Repeat) -> Iterator[ExportRows]:
    """Yield the rows of each shard; with `repeat`, all sidecars may be read before the first."""
    factors: Sequence[Callable[[int, Sidecar], Int64] | None] = [None] * len(catalog.sources)
    if repeat is not None:
        factors = row_factors(catalog, repeat)
    for source, sidecars, of_rows in zip(catalog.sources, catalog.sidecars, factors, strict=True):
        for shard, sidecar in enumerate(sidecars.all()):
            by_row = None if of_rows is None else of_rows(shard, sidecar) / ONE
            yield ExportRows(source.name, sidecars.shards.paths[shard], sidecar, by_row)
