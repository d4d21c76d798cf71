"""The exported Parquet or CSV file, read back with DuckDB and with pandas, says what the sidecars say."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from pyarrow import parquet

import equitar
from equitar.cli.app import main
from equitar.errors import SidecarError, StorageError
from equitar.sidecars.sidecar import read_sidecar
from equitar.sources import Source
from helpers.odd_tars import END, member
from helpers.shards import write_source


def asked(query: str) -> list[Any]:
    """Return the rows that DuckDB answers with."""
    with duckdb.connect() as connection:
        return connection.execute(query).fetchall()


def names_source(folder: Path) -> Source:
    """Write a source with names for labels, of which one sample has none."""
    (folder / "n").mkdir()
    members = [member(f"{row}.json", text) for row, text in enumerate([b'["dog", "cat", "dog"]', b"[]", b'["emu"]'])]
    (folder / "n/0.tar").write_bytes(b"".join(members) + END)
    source = Source("n", f"{folder}/n/0.tar")
    equitar.index(source, labels="json", jobs=1, progress=False)
    return source


@pytest.fixture
def sources(tmp_path: Path) -> list[Source]:
    bare = write_source(tmp_path, "bare", [2])
    equitar.index(bare, labels=False, jobs=1, progress=False)
    return [write_source(tmp_path, "a", [5, 1, 4]), names_source(tmp_path), bare]


def printed(sources: list[Source]) -> Iterator[tuple[Any, ...]]:
    """Yield what the sidecars say of each sample, in the order of the file."""
    for source in sorted(sources, key=lambda source: source.name):
        folder = Path(str(source.urls)).parent
        for tar in sorted(folder.glob("*.tar")):
            sidecar = read_sidecar(str(tar.with_suffix(".presence.npz")), fix="")
            names = dict(zip(*sidecar.class_names, strict=True)) if sidecar.class_names else None
            for row, key in enumerate(sidecar.keys):
                span = slice(sidecar.table.indptr[row], sidecar.table.indptr[row + 1])
                fields = [sidecar.table.fields[field] for field in sidecar.table.field[span]]
                sizes = sidecar.table.size[span].tolist()
                labels = counts = label_names = None
                if sidecar.presence is not None:
                    entries = slice(sidecar.presence.indptr[row], sidecar.presence.indptr[row + 1])
                    labels = sidecar.presence.ids[entries].tolist()
                    counts = sidecar.presence.counts[entries].tolist()
                    label_names = None if names is None else [names[label] for label in labels]
                sized = dict(zip(fields, sizes, strict=True))
                yield source.name, tar.name, row, key, sum(sizes), sized, labels, counts, label_names


def plain(value: Any) -> Any:
    """Return what pandas gives for lists and maps as these; what is missing as None."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list):  # pairs of a map
        return dict(value)
    return None if value is None or value is pd.NA else value


def test_duckdb_and_pandas_read_what_the_sidecars_say(sources: list[Source], tmp_path: Path) -> None:
    path = str(tmp_path / "presence.parquet")
    assert equitar.export(sources, path, progress=False) == 15
    wanted = list(printed(sources))
    assert len(wanted) == 15
    assert asked(f"FROM '{path}'") == wanted
    frame = pd.read_parquet(path)
    assert [tuple(map(plain, row)) for row in frame.itertuples(index=False, name=None)] == wanted
    assert frame.dtypes["bytes"] == np.int64
    assert {path.name for path in tmp_path.iterdir()} == {"a", "n", "bare", "presence.parquet"}


def test_repeat_factors_are_those_of_the_plan(sources: list[Source], tmp_path: Path) -> None:
    path = str(tmp_path / "presence.parquet")
    labelled = [source for source in sources if source.name != "bare"]
    factor = equitar.RepeatFactor(0.5, cap=1.2)
    equitar.export(labelled, path, repeat=factor, progress=False)
    result = asked(f"SELECT source, sum(repeat_factor), max(repeat_factor) FROM '{path}' GROUP BY 1 ORDER BY 1")
    planned = equitar.stats(labelled, repeat=factor).sources
    assert {name: total for name, total, _ in result} == pytest.approx(
        {supply.name: supply.copies for supply in planned}
    )
    assert max(row[2] for row in result) == pytest.approx(1.2, abs=1e-5)


def test_what_is_not_kept_has_factor_zero_with_repeats(sources: list[Source], tmp_path: Path) -> None:
    path = str(tmp_path / "presence.parquet")
    (tmp_path / "bad.txt").write_text("a-0003\n", "utf-8")
    kept = Source("a", sources[0].urls, root=sources[0].root, keep=f"!{tmp_path}/bad.txt")
    equitar.export(kept, path, repeat=0.0, progress=False)
    assert asked(f"SELECT key FROM '{path}' WHERE repeat_factor = 0") == [("a-0003",)]
    with pytest.raises(SidecarError, match="was indexed without"):
        equitar.export(sources[2], path, repeat=0.1, progress=False)


def test_keys_that_are_no_text_are_an_error_or_bytes(tmp_path: Path) -> None:
    name = b"gr\xf6\xdfe"
    shard = tmp_path / "x.tar"
    shard.write_bytes(member("plain.txt") + member(name + b".txt") + END)
    source = Source("x", str(shard))
    equitar.index(source, jobs=1, progress=False)
    path = tmp_path / "presence.parquet"
    with pytest.raises(ValueError, match=r"got 'gr\\udcf6\\udcdfe' in x.tar of source 'x'; pass `binary_keys=True`"):
        equitar.export(source, str(path), progress=False)
    assert sorted(path.name for path in tmp_path.glob("*parq*")) == []  # nor half a file
    equitar.export(source, str(path), binary_keys=True, progress=False)
    assert asked(f"SELECT key FROM '{path}'") == [(b"plain",), (name,)]
    assert pd.read_parquet(path)["key"].tolist() == [b"plain", name]


def test_shards_are_gathered_into_groups_of_rows(
    sources: list[Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equitar.reporting.exporting._GROUP", 4)
    equitar.export(sources, str(tmp_path / "p.parquet"), progress=False)
    groups = parquet.ParquetFile(tmp_path / "p.parquet").metadata
    sizes = [groups.row_group(index).num_rows for index in range(groups.num_row_groups)]
    assert max(sizes) <= 4
    assert sum(sizes) == 15
    assert asked(f"FROM '{tmp_path}/p.parquet'") == list(printed(sources))


def test_the_command_writes_the_file_and_says_how_many(sources: list[Source], tmp_path: Path) -> None:
    words = [f"{source.name}={source.urls}" for source in sources[:2]]
    ran = CliRunner().invoke(main, ["export", *words, "-o", f"{tmp_path}/p.parquet", "--repeat", "0.5", "--quiet"])
    assert (ran.exit_code, ran.output) == (0, f"{tmp_path}/p.parquet: 13 samples\n")
    assert "repeat_factor" in parquet.read_schema(tmp_path / "p.parquet").names


@pytest.mark.parametrize("name", ["p.csv", "P.CSV"])
def test_csv_says_what_the_sidecars_say_with_lists_as_json(sources: list[Source], tmp_path: Path, name: str) -> None:
    assert equitar.export(sources, str(tmp_path / name), progress=False) == 15
    with (tmp_path / name).open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["source", "shard", "row", "key", "bytes", "sizes", "labels", "counts", "label_names"]
    values = [
        (*row[:2], int(row[2]), row[3], int(row[4]), *(json.loads(cell) if cell else None for cell in row[5:]))
        for row in rows
    ]
    assert values == list(printed(sources))
    frame = pd.read_csv(tmp_path / name)
    assert frame["row"].tolist() == [row[2] for row in printed(sources)]


def test_csv_has_the_repeat_factors_of_parquet(sources: list[Source], tmp_path: Path) -> None:
    for name in ("p.csv", "p.parquet"):
        equitar.export(sources[:2], str(tmp_path / name), repeat=0.5, progress=False)
    assert pd.read_csv(tmp_path / "p.csv")["repeat_factor"].tolist() == [
        factor for (factor,) in asked(f"SELECT repeat_factor FROM '{tmp_path}/p.parquet'")
    ]


def test_keys_in_csv_are_the_bytes_of_the_tar_on_request(tmp_path: Path) -> None:
    shard = tmp_path / "x.tar"
    shard.write_bytes(member(b"gr\xf6\xdfe.txt") + END)
    source, path = Source("x", str(shard)), tmp_path / "p.csv"
    equitar.index(source, jobs=1, progress=False)
    with pytest.raises(ValueError, match="pass `binary_keys=True`"):
        equitar.export(source, str(path), progress=False)
    assert not list(tmp_path.glob("*csv*"))
    equitar.export(source, str(path), binary_keys=True, progress=False)
    assert b",gr\xf6\xdfe," in path.read_bytes()


def test_csv_needs_no_pyarrow(sources: list[Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    equitar.export(sources, str(tmp_path / "p.csv"), progress=False)
    with pytest.raises(RuntimeError, match=r"run `pip install 'equitar\[parquet\]'`, or export to .csv"):
        equitar.export(sources, str(tmp_path / "p.parquet"), progress=False)


@pytest.mark.parametrize("name", ["p.txt", "p", "p.csv.gz"])
def test_an_unknown_ending_is_an_error_with_those_known(sources: list[Source], tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=rf"must end in .csv or .parquet; got '.*{name}'"):
        equitar.export(sources, str(tmp_path / name), progress=False)


def test_a_far_file_is_refused(sources: list[Source]) -> None:
    with pytest.raises(StorageError, match="must be a file on a local disk"):
        equitar.export(sources, "s3://bucket/p.parquet", progress=False)
