"""Export of sidecars to Parquet, for DuckDB, pandas and polars: a row for each sample, in the order of the tars.

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

Shards are read a few at a time and written as row groups, so that memory does not grow with their number.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from equitar.arrays import Int64
from equitar.errors import StorageError
from equitar.planning.repeat_factors import ONE
from equitar.sidecars.catalog import Catalog, Repeat, catalog_of, row_factors
from equitar.sidecars.sidecar import Sidecar
from equitar.sources import Source, listed_sources
from equitar.urls import local_path

if TYPE_CHECKING:
    import pyarrow as pa

_GROUP = 122_880  # rows of a group: what DuckDB gives to one thread


def export(
    sources: Source | Iterable[Source],
    path: str,
    *,
    repeat: Repeat = None,
    labels_shared: bool = False,
    binary_keys: bool = False,
    progress: bool = True,
) -> int:
    """Write a Parquet file with a row for each sample, see the module, and return the number of samples.

    Args:
        sources: Indexed sources. Samples that `keep` leaves out are included; with `repeat`, their factor is 0.
        path: The file to write, on a local disk.
        repeat: As for `debiased`.
        labels_shared: As for `debiased`.
        binary_keys: Whether keys are binary, not text.
        progress: Whether a terminal shows a bar.

    Raises:
        RuntimeError: If pyarrow is not installed.
        SidecarError: If a sidecar or summary is missing or damaged, or repeats find no labels.
        StorageError: If the path is not on a local disk.
        ValueError: If a key is not UTF-8, and keys are to be text.
    """
    try:
        from pyarrow import parquet  # noqa: PLC0415  (an extra, and slow to import)
    except ImportError as error:
        raise RuntimeError(
            "export needs pyarrow, which is not installed; run `pip install 'equitar[parquet]'`"
        ) from error
    local = local_path(path)
    if local is None:
        raise StorageError(f"{path} must be a file on a local disk; write it there and copy it")
    catalog = catalog_of(listed_sources(sources), labels_shared=labels_shared)
    total = sum(int(summary.num_samples.sum()) for summary in catalog.summaries)
    schema = _schema(with_factor=repeat is not None, binary_keys=binary_keys)
    partial = Path(local).with_name(f"{Path(local).name}.{uuid.uuid4().hex}.partial")
    try:
        with (
            parquet.ParquetWriter(partial, schema, compression="zstd") as writer,
            tqdm(total=total, unit=" samples", unit_scale=True, disable=None if progress else True) as bar,
        ):
            for group in _groups(_tables(catalog, repeat, schema)):
                writer.write_table(group, row_group_size=_GROUP)
                bar.update(group.num_rows)
        partial.replace(local)
    finally:
        partial.unlink(missing_ok=True)
    return total


def _schema(*, with_factor: bool, binary_keys: bool) -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415

    columns = [
        ("source", pa.string()),
        ("shard", pa.string()),
        ("row", pa.int64()),
        ("key", pa.binary() if binary_keys else pa.string()),
        ("bytes", pa.int64()),
        ("sizes", pa.map_(pa.string(), pa.int64())),
        ("labels", pa.list_(pa.int64())),
        ("counts", pa.list_(pa.int64())),
        ("label_names", pa.list_(pa.string())),
    ]
    return pa.schema(columns + ([("repeat_factor", pa.float64())] if with_factor else []))


def _groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield tables joined to row groups."""
    import pyarrow as pa  # noqa: PLC0415

    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(table.num_rows for table in waiting) >= _GROUP:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _tables(catalog: Catalog, repeat: Repeat, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the table of each shard."""
    import pyarrow as pa  # noqa: PLC0415

    factors: Sequence[Callable[[int, Sidecar], Int64] | None] = [None] * len(catalog.sources)
    if repeat is not None:
        factors = row_factors(catalog, repeat)
    for source, sidecars, of_rows in zip(catalog.sources, catalog.sidecars, factors, strict=True):
        for shard, sidecar in enumerate(sidecars.all()):
            path = sidecars.shards.paths[shard]
            columns = _columns(sidecar, f"{path} of source {source.name!r}", schema.field("key").type)
            columns |= {"source": pa.repeat(source.name, sidecar.num_rows), "shard": pa.repeat(path, sidecar.num_rows)}
            if of_rows is not None:
                columns["repeat_factor"] = of_rows(shard, sidecar) / ONE
            yield pa.Table.from_pydict({name: columns[name] for name in schema.names}, schema)


def _columns(sidecar: Sidecar, where: str, key_type: pa.DataType) -> dict[str, Any]:
    """Return the columns of the rows of a sidecar, by name."""
    import pyarrow as pa  # noqa: PLC0415

    field_names = pa.array(sidecar.table.fields, pa.string()).take(pa.array(sidecar.table.field))
    columns = {
        "row": np.arange(sidecar.num_rows),
        "key": _keys(sidecar.keys, where, key_type),
        "bytes": sidecar.sizes,
        "sizes": pa.MapArray.from_arrays(
            pa.array(sidecar.table.indptr, pa.int32()), field_names, pa.array(sidecar.table.size)
        ),
        **dict.fromkeys(("labels", "counts", "label_names"), pa.nulls(sidecar.num_rows)),
    }
    presence = sidecar.presence
    if presence is not None:
        ends = pa.array(presence.indptr, pa.int32())
        columns["labels"] = pa.ListArray.from_arrays(ends, pa.array(presence.ids))
        columns["counts"] = pa.ListArray.from_arrays(ends, pa.array(presence.counts))
        if sidecar.class_names is not None:
            ids, names = sidecar.class_names
            order = np.argsort(np.array(ids, np.int64), kind="stable")
            places = order[np.searchsorted(np.array(ids, np.int64), presence.ids, sorter=order)]
            columns["label_names"] = pa.ListArray.from_arrays(ends, pa.array(names, pa.string()).take(pa.array(places)))
    return columns


def _keys(keys: Sequence[str], where: str, key_type: pa.DataType) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_binary(key_type):
        return pa.array([key.encode("utf-8", "surrogateescape") for key in keys], key_type)
    try:
        return pa.array(keys, key_type)
    except UnicodeEncodeError:
        key = next(key for key in keys if any("\ud800" <= letter <= "\udfff" for letter in key))
        fix = "pass `binary_keys=True` (`--binary-keys`)"
        raise ValueError(f"a key must be UTF-8 to be exported as text; got {key!r} in {where}; {fix}") from None
