"""Rows of an export: what is known of each sample, shard by shard in the order of the tars.

============== ============= =========================================================================================
column         type          holds
============== ============= =========================================================================================
source         string        name of the source
shard          string        path of the shard below the root of its source
row            int64         place of the sample in its shard, from 0
key            string        its key; binary on request, as names in a tar may be any bytes
bytes          int64         length of its data, all fields together
sizes          map           length of the data of each field, by field
labels         list<int64>   ids of its labels, increasing; null if the source was indexed without labels
counts         list<int64>   how often each of them occurs in the sample
label_names    list<string>  name of each of them; null if the source has ids only
repeat_factor  double        how often it is emitted in a pass, on average; only with `repeat`
============== ============= =========================================================================================

In CSV, maps and lists are JSON, and null is an empty cell.
"""

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
