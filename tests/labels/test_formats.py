"""Labels in JSON lines and Parquet of other tools: columns, nested values, many files, and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from equitar.errors import LabelError, SourceError
from equitar.labels.formats import label_file
from equitar.labels.tables import read_labels


def write_parquet(path: Path, **columns: Any) -> str:
    parquet.write_table(pa.table(columns), path, row_group_size=2)
    return str(path)


def write_lines(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


def labels_of(path: str) -> dict[str, list[int]]:
    table = read_labels(path)
    return {key: table.presence.labels(row).tolist() for row, key in enumerate(table.keys)}


def names_of(path: str) -> dict[str, list[str]]:
    vocabulary = read_labels(path).vocabulary
    assert vocabulary is not None
    return {key: [vocabulary.names[class_id] for class_id in ids] for key, ids in labels_of(path).items()}


@pytest.mark.parametrize("name", ["key", "__key__"])
def test_parquet_columns_key_and_labels_are_taken_as_they_are(tmp_path: Path, name: str) -> None:
    path = write_parquet(tmp_path / "l.parquet", **{name: ["a", "b", "c"], "labels": [[3, 7, 7], [], [1]]})
    assert labels_of(path) == {"a": [3, 7], "b": [], "c": [1]}
    assert read_labels(path).presence.counts.tolist() == [1, 2, 1]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("label", [4, 5]),
        ("class.id", [4, 5]),  # a column whose name looks like a path
        ("label", pa.array([4, 5], pa.int8())),
        ("label", [[4], [5]]),
    ],
)
def test_a_column_holds_one_label_or_a_list(tmp_path: Path, column: str, values: Any) -> None:
    path = write_parquet(tmp_path / "l.parquet", **{"key": ["a", "b"], column: values, "jpg": [b"x", b"y"]})
    assert labels_of(f"{path}:{column}") == {"a": [4], "b": [5]}


def test_a_nested_column_is_found_by_its_path_in_both_formats(tmp_path: Path) -> None:
    objects = [{"bbox": [[1.0, 2.0]], "categories": [0, 1, 1]}, {"bbox": [], "categories": []}]
    rows = [{"file_name": f"train/000{n}.png", "objects": of_row} for n, of_row in enumerate(objects)]
    lines = write_lines(tmp_path / "metadata.jsonl", *rows)
    table = write_parquet(
        tmp_path / "metadata.parquet", file_name=[row["file_name"] for row in rows], objects=pa.array(objects)
    )
    for path in (lines, table):
        assert labels_of(f"{path}:objects.categories") == {"train/0000": [0, 1], "train/0001": []}
        rows_of, rule = read_labels(f"{path}:objects.categories").match(["0001", "0000"], where="x.tar")
        assert (rows_of.tolist(), rule) == ([1, 0], "base name")


def test_names_may_hold_blanks_and_become_ids_in_sorted_order(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "l.parquet", key=["a", "b"], label=["teddy bear", "dog"])
    assert names_of(f"{path}:label") == {"a": ["teddy bear"], "b": ["dog"]}
    lines = write_lines(tmp_path / "l.jsonl", {"file_name": "a.jpg", "label": "teddy bear"})
    assert names_of(f"{lines}:label") == {"a": ["teddy bear"]}


def test_a_pattern_joins_many_files_whose_names_share_their_ids(tmp_path: Path) -> None:
    write_parquet(tmp_path / "00000.parquet", key=["000000000"], url=["u"], label=["dog"])
    write_parquet(tmp_path / "00001.parquet", key=["000010000", "000010001"], url=["u", "u"], label=["cat", "dog"])
    by_glob, by_braces = (
        read_labels(f"{tmp_path}/*.parquet:label"),
        read_labels(f"{tmp_path}/0000{{0,1}}.parquet:label"),
    )
    assert by_glob.keys == by_braces.keys == ("000000000", "000010000", "000010001")
    assert by_glob.presence.ids.tolist() == [1, 0, 1]
    assert by_glob.digest == by_braces.digest != read_labels(f"{tmp_path}/00001.parquet:label").digest
    with pytest.raises(SourceError, match="matches no file"):
        read_labels(f"{tmp_path}/*.jsonl")


def test_a_row_whose_label_is_null_is_as_if_it_was_not_there(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "l.parquet", key=["a", "b"], label=pa.array([None, 3], pa.int64()))
    lines = write_lines(tmp_path / "l.jsonl", {"key": "a", "label": None}, {"key": "b", "label": 3}, {"key": "c"})
    assert labels_of(f"{path}:label") == labels_of(f"{lines}:label") == {"b": [3]}


def test_the_digest_changes_with_the_column(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "l.parquet", key=["a"], fine=[1], coarse=[1])
    assert read_labels(f"{path}:fine").digest != read_labels(f"{path}:coarse").digest


@pytest.mark.parametrize(
    ("columns", "column", "message"),
    [
        ({"key": ["a"], "label": [1]}, "", "must have a column `key` and `labels`, or FILE:COLUMN; got key, label"),
        ({"name": ["a"], "label": [1]}, ":label", "must have a column `key` and `label`; got name, label"),
        ({"key": ["a"], "label": [1]}, ":class", "must have a column `key` and `class`"),
        ({"key": [1], "label": [1]}, ":label", r"row 1 of .*l\.parquet must be .*; got"),
        ({"key": ["a", "b", "c"], "label": [1.0, 2.0, 3.0]}, ":label", r"got 1\.0 \(float\) for key 'a' in row 1"),
        ({"key": ["a", "b", "a"], "label": [1, 2, 3]}, ":label", "key 'a' occurs 2 times"),
    ],
)
def test_what_is_wrong_in_a_parquet_file_is_told_with_its_place(
    tmp_path: Path, columns: dict[str, Any], column: str, message: str
) -> None:
    with pytest.raises(LabelError, match=message):
        read_labels(write_parquet(tmp_path / "l.parquet", **columns) + column)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("l.tsv:label", "a column must be of a .jsonl or .parquet file"),
        ("l.jsonl:[", "a column must be a JMESPath"),
        ("l.xml:label", "labels must be in .tsv"),
    ],
)
def test_a_column_that_cannot_be_is_an_error_before_the_file_is_read(path: str, message: str) -> None:
    with pytest.raises(LabelError, match=message):
        label_file(path)


def test_a_colon_in_a_file_name_is_no_column(tmp_path: Path) -> None:
    path = tmp_path / "v1:0"
    path.mkdir()
    assert labels_of(write_lines(path / "l.jsonl", {"key": "a", "labels": [1]})) == {"a": [1]}


@pytest.mark.parametrize("text", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
@pytest.mark.parametrize("kind", [pa.list_(pa.int16()), pa.large_list(pa.int64()), pa.list_(pa.uint64())])
def test_all_types_of_text_and_of_lists_of_ids_give_the_same(tmp_path: Path, text: Any, kind: Any) -> None:
    key, labels = pa.array(["a", "b", "c"]).cast(text), pa.array([[3, 7, 7], [], [1]], kind)
    path = write_parquet(tmp_path / "l.parquet", key=key, labels=labels)
    assert labels_of(path) == labels_of(f"{path}:labels") == {"a": [3, 7], "b": [], "c": [1]}


def test_a_null_among_ids_is_an_error_that_names_the_key(tmp_path: Path) -> None:
    labels = pa.array([[3], [7, None]], pa.list_(pa.int64()))
    path = write_parquet(tmp_path / "l.parquet", key=["a", "b"], labels=labels)
    with pytest.raises(LabelError, match=r"got None \(NoneType\) for key 'b' in row 2"):
        read_labels(path)
