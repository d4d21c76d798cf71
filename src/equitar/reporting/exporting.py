"""Export of sidecars for DuckDB, pandas and polars: a Parquet or CSV file with a row for each sample; see `export_rows`.

Shards are read a few at a time. In Parquet they are joined to row groups, so that memory does not grow with their number.
"""

from __future__ import annotations

import csv
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from equitar.errors import StorageError
from equitar.reporting.export_rows import COLUMNS, FACTOR, ExportRows, export_rows
from equitar.sidecars.catalog import Repeat, catalog_of
from equitar.sidecars.sidecar import Sidecar
from equitar.sources import Source, listed_sources
from equitar.text import did_you_mean
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
    """Write a Parquet or CSV file with a row for each sample, and return the number of samples.

    | column | type | holds |
    |---|---|---|
    | ``source`` | string | name of the source |
    | ``shard`` | string | path of the shard below the root of its source |
    | ``row`` | int64 | place of the sample in its shard, from 0 |
    | ``key`` | string | its key; binary with ``binary_keys``, as names in a tar may be any bytes |
    | ``bytes`` | int64 | length of its data, all fields together |
    | ``sizes`` | map | length of the data of each field, by field |
    | ``labels`` | list of int64 | ids of its labels, increasing; null if the source was indexed without labels |
    | ``counts`` | list of int64 | how often each of them occurs in the sample |
    | ``label_names`` | list of string | name of each of them; null if the source has ids only |
    | ``repeat_factor`` | double | only with ``repeat``: how often it is emitted in a pass, on average |

    In CSV, maps and lists are JSON, and null is an empty cell.

    Args:
        sources: Indexed sources. Samples that `keep` leaves out are included; with `repeat`, their factor is 0.
        path: The file to write, on a local disk; its ending, ``.parquet`` or ``.csv``, is its format.
        repeat: As for `debiased`.
        labels_shared: As for `debiased`.
        binary_keys: Whether keys may be any bytes: a binary column in Parquet, as they are in CSV.
        progress: Whether a terminal shows a bar.

    Raises:
        RuntimeError: If pyarrow, which Parquet needs, is not installed.
        SidecarError: If a sidecar or summary is missing or damaged, or repeats find no labels.
        StorageError: If the path is not on a local disk.
        ValueError: If the ending is unknown; if a key is not UTF-8, and keys are to be text.
    """
    local = local_path(path)
    if local is None:
        raise StorageError(f"{path} must be a file on a local disk; write it there and copy it")
    writers = {".csv": _write_csv, ".parquet": _write_parquet}
    ending = Path(local).suffix.lower()
    if ending not in writers:
        raise ValueError(
            f"the file to export to must end in {' or '.join(writers)}; got {path!r}{did_you_mean(ending, writers)}"
        )
    catalog = catalog_of(listed_sources(sources), labels_shared=labels_shared)
    total = sum(int(summary.num_samples.sum()) for summary in catalog.summaries)
    partial = Path(local).with_name(f"{Path(local).name}.{uuid.uuid4().hex}.partial")
    try:
        with tqdm(total=total, unit=" samples", unit_scale=True, disable=None if progress else True) as bar:
            shards = _counted(export_rows(catalog, repeat), bar)
            writers[ending](partial, shards, with_factor=repeat is not None, binary_keys=binary_keys)
        partial.replace(local)
    finally:
        partial.unlink(missing_ok=True)
    return total


def _counted(shards: Iterable[ExportRows], bar: tqdm[Any]) -> Iterator[ExportRows]:
    for rows in shards:
        yield rows
        bar.update(rows.sidecar.num_rows)


def _write_csv(path: Path, shards: Iterable[ExportRows], *, with_factor: bool, binary_keys: bool) -> None:
    # Keys of any bytes are read as surrogates, which become these bytes again.
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*COLUMNS, *([FACTOR] if with_factor else [])])
        for rows in shards:
            writer.writerows(_cells(rows, rows.sidecar.keys if binary_keys else rows.text_keys()))


def _cells(rows: ExportRows, keys: Iterable[str]) -> Iterator[list[Any]]:
    """Yield the cells of each row."""
    table, presence = rows.sidecar.table, rows.sidecar.presence
    names = dict(zip(*rows.sidecar.class_names, strict=True)) if rows.sidecar.class_names else None
    for row, key in enumerate(keys):
        members = slice(table.indptr[row], table.indptr[row + 1])
        fields = (table.fields[field] for field in table.field[members].tolist())
        sizes = dict(zip(fields, table.size[members].tolist(), strict=True))
        cells = [rows.source, rows.shard, row, key, int(rows.sidecar.sizes[row]), _json(sizes)]
        if presence is None:
            cells += [None, None, None]
        else:
            entries = slice(presence.indptr[row], presence.indptr[row + 1])
            labels = presence.ids[entries].tolist()
            cells += [_json(labels), _json(presence.counts[entries].tolist())]
            cells += [None if names is None else _json([names[label] for label in labels])]
        yield cells if rows.factors is None else [*cells, float(rows.factors[row])]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _write_parquet(path: Path, shards: Iterable[ExportRows], *, with_factor: bool, binary_keys: bool) -> None:
    """Write the rows of shards.

    Raises:
        RuntimeError: If pyarrow is not installed.
        ValueError: If a key is not UTF-8, and keys are to be text.
    """
    try:
        from pyarrow import parquet  # noqa: PLC0415  (an extra, and slow to import)
    except ImportError as error:
        raise RuntimeError(
            "Parquet needs pyarrow, which is not installed; run `pip install 'equitar[parquet]'`, or export to .csv"
        ) from error
    schema = _schema(with_factor=with_factor, binary_keys=binary_keys)
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for group in _groups(_table(rows, schema) for rows in shards):
            writer.write_table(group, row_group_size=_GROUP)


def _schema(*, with_factor: bool, binary_keys: bool) -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415

    types = (
        pa.string(),
        pa.string(),
        pa.int64(),
        pa.binary() if binary_keys else pa.string(),
        pa.int64(),
        pa.map_(pa.string(), pa.int64()),
        pa.list_(pa.int64()),
        pa.list_(pa.int64()),
        pa.list_(pa.string()),
    )
    return pa.schema([*zip(COLUMNS, types, strict=True), *([(FACTOR, pa.float64())] if with_factor else [])])


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


def _table(rows: ExportRows, schema: pa.Schema) -> pa.Table:
    """Return the table of a shard."""
    import pyarrow as pa  # noqa: PLC0415

    num_rows = rows.sidecar.num_rows
    keys: Sequence[str] | Sequence[bytes] = (
        [key.encode("utf-8", "surrogateescape") for key in rows.sidecar.keys]
        if pa.types.is_binary(schema.field("key").type)
        else rows.text_keys()
    )
    columns = {
        "source": pa.repeat(rows.source, num_rows),
        "shard": pa.repeat(rows.shard, num_rows),
        "key": pa.array(keys, schema.field("key").type),
        **_columns(rows.sidecar),
        FACTOR: rows.factors,
    }
    return pa.Table.from_pydict({name: columns[name] for name in schema.names}, schema)


def _columns(sidecar: Sidecar) -> dict[str, Any]:
    """Return what a sidecar has of each row but its key, by column."""
    import pyarrow as pa  # noqa: PLC0415

    field_names = pa.array(sidecar.table.fields, pa.string()).take(pa.array(sidecar.table.field))
    columns = {
        "row": np.arange(sidecar.num_rows),
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
