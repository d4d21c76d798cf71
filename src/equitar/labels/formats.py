"""Formats of label files: one reader for each format that `equitar.labels.tables` lists."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypedDict

from jmespath.exceptions import JMESPathError

from equitar.errors import LabelError
from equitar.labels.extractors import Labels, as_labels, parse_json, parse_label, search

KEYS = ("key", "__key__", "file_name")  # names of the key; the first one in a row counts
LABELS = "labels"
_ENDING = re.compile(r"\.(tsv|csv|jsonl|json|parquet)(?:\.gz)?", re.IGNORECASE)
_COLUMN = re.compile(rf"(?P<urls>.*?{_ENDING.pattern}):(?P<column>.+)", re.IGNORECASE | re.DOTALL)
_BATCH = 1 << 16  # rows converted to Python objects at once


class LabelFile(NamedTuple):
    """A parsed ``FILE:COLUMN``."""

    urls: str  # the file, or a pattern for many
    ending: str  # its format
    column: str | None  # JMESPath of the labels in a row, None for `labels`


def label_file(path: str) -> LabelFile:
    """Parse ``FILE`` or ``FILE:COLUMN``.

    >>> label_file("s3://bucket/{000..331}.parquet:objects.category")
    LabelFile(urls='s3://bucket/{000..331}.parquet', ending='parquet', column='objects.category')

    Raises:
        LabelError: If the ending is unknown, or a column is given for a format without columns.
    """
    ending = re.search(rf"{_ENDING.pattern}\Z", path, re.IGNORECASE)
    if ending:
        return LabelFile(path, ending[1].lower(), None)
    named = _COLUMN.fullmatch(path)
    if named is None:
        unknown = path.removesuffix(".gz").rsplit(".", 1)[-1].lower()
        known = ".tsv, .csv, .jsonl, .json or .parquet"
        raise LabelError(f"{path} ends in {unknown!r} but labels must be in {known}; convert it to one of these")
    urls, kind, column = named["urls"], named[2].lower(), named["column"]
    if kind not in ("jsonl", "parquet"):
        raise LabelError(f"a column must be of a .jsonl or .parquet file; got {column!r} for {urls}; leave it out")
    try:
        search(column)
    except ValueError as error:
        raise LabelError(f"a column must be a JMESPath into the row; got {column!r} for {urls} ({error})") from error
    return LabelFile(urls, kind, column)


def text_rows(text: str, path: str) -> Iterator[tuple[str, Labels]]:
    """Yield keys and labels of tab or comma separated text."""
    for number, cell in enumerate(_cells(text, path), start=1):
        if number == 1 and cell[:1] == ["key"]:
            continue
        where = f"line {number} of {path}"
        if len(cell) != 2 or not cell[0]:
            raise LabelError(f"{where} must be a key and labels separated by spaces; got {cell!r}; fix the file")
        where = f"key {cell[0]!r} in {where}"
        yield cell[0], as_labels([parse_label(word, where=where) for word in cell[1].split()], where=where)


def _cells(text: str, path: str) -> Iterator[list[str]]:
    if not path.removesuffix(".gz").lower().endswith(".csv"):
        # `splitlines` would also split at other characters, such as U+2028 in a key.
        yield from (line.removesuffix("\r").split("\t") for line in text.removesuffix("\n").split("\n"))
        return
    try:
        yield from csv.reader(io.StringIO(text, newline=""), strict=True)
    except csv.Error as error:
        raise LabelError(f"{path} is not a CSV file ({error}); fix it") from error


def json_lines(text: str, path: str, *, column: str | None) -> Iterator[tuple[str, Labels]]:
    """Yield keys and labels of JSON lines."""
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        where = f"line {number} of {path}"
        parsed = parse_json(line.encode("utf-8", "surrogateescape"), where=where)
        row = parsed if isinstance(parsed, dict) else {}
        yield from _row(row, where, shown=line[:80], column=column)


def parquet_rows(raw: bytes, path: str, *, column: str | None) -> Iterator[tuple[str, Labels]]:
    """Yield keys and labels of a Parquet file; only their columns are read."""
    try:
        from pyarrow import ArrowException, BufferReader, parquet  # noqa: PLC0415  (an extra, and slow to import)
    except ImportError as error:
        raise LabelError(f"{path} needs pyarrow; install `equitar[parquet]`") from error
    try:
        file = parquet.ParquetFile(BufferReader(raw))
        names = file.schema_arrow.names
        top = column if column is None or column in names else re.split(r"[.\[|]", column)[0].strip('"')
        columns = [next((name for name in KEYS if name in names), ""), LABELS if top is None else top]
        if not set(columns) <= set(names):
            wanted = "`labels`, or FILE:COLUMN" if column is None else f"`{column}`"
            raise LabelError(f"{path} must have a column `key` and {wanted}; got {', '.join(names)}; name one of these")
        number = 0
        is_name = column is None or column in names
        quoted = f'"{column}"' if column in names else column  # a name may contain special characters of JMESPath
        for batch in file.iter_batches(batch_size=_BATCH, columns=columns):
            keys, labels = (batch.column(name) for name in columns)
            if is_name and columns[0] != "file_name" and _are_ids(keys, labels):
                yield from zip(keys.to_pylist(), labels.to_pylist(), strict=True)
                number += batch.num_rows
                continue
            for row in batch.to_pylist():
                number += 1
                yield from _row(row, f"row {number} of {path}", shown=str(row)[:80], column=quoted)
    except (ArrowException, OSError) as error:
        raise LabelError(f"{path} is damaged or not a Parquet file ({error}); copy or download it again") from error


def _are_ids(keys: Any, labels: Any) -> bool:
    """Whether each row has a key and a list of ids, so that rows need not be checked one by one."""
    from pyarrow import types  # noqa: PLC0415  (as above)

    are_texts = types.is_string(keys.type) or types.is_large_string(keys.type)
    are_lists = types.is_list(labels.type) or types.is_large_list(labels.type)
    if not are_texts or not are_lists or not types.is_signed_integer(labels.type.value_type):
        return False
    return not (keys.null_count or labels.null_count or labels.flatten().null_count)


def _row(row: Mapping[str, Any], where: str, *, shown: str, column: str | None) -> Iterable[tuple[str, Labels]]:
    """Return key and labels of one row; nothing where the labels are null, as if the row did not exist."""
    name = next((name for name in KEYS if name in row), "")
    key = row.get(name)
    try:
        value = row.get(LABELS) if column is None else search(column)(row)
    except JMESPathError as error:  # a function in the path got an argument of a wrong type
        raise LabelError(f"the column {column!r} failed with {str(error)!r} in {where}; change it") from error
    if not isinstance(key, str) or (value is None and column is None and LABELS not in row):
        raise LabelError(f'{where} must be {{"key": "...", "labels": [...]}}; got {shown!r}; fix the file')
    if value is None:
        return []
    labels = as_labels(value if isinstance(value, list) else [value], where=f"key {key!r} in {where}")
    return [(key_of_file(key) if name == "file_name" else key, labels)]


class Annotations(NamedTuple):
    """Labels by image."""

    keys: list[str]  # of each image
    image_ids: list[str]  # of each image; empty if images have none
    labels: list[Labels]  # of each image
    categories: tuple[tuple[int, ...], tuple[str, ...]] | None  # ids and names of all classes, if given


# The parts of the file that are read. Most of it is boxes and polygons, many times as large as Python objects as they are as text.
class _Image(TypedDict, total=False):
    id: Any
    file_name: Any
    coco_url: Any


class _Annotation(TypedDict, total=False):
    image_id: Any
    category_id: Any
    iscrowd: Any


class _Category(TypedDict, total=False):
    id: Any
    name: Any


class _File(TypedDict, total=False):
    images: list[_Image]
    annotations: list[_Annotation]
    categories: list[_Category]


def _parsed(raw: bytes, path: str) -> Any:
    """Return parsed annotations; with msgspec, only the parts that are needed."""
    if importlib.util.find_spec("msgspec"):
        msgspec: Any = importlib.import_module("msgspec")
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # reported below, as without msgspec
            return msgspec.json.decode(raw, type=_File)
    return parse_json(raw, where=path)


def image_rows(raw: bytes, path: str, *, crowd: bool) -> Annotations:
    """Return the annotations of COCO or LVIS.

    Args:
        raw: The file.
        path: What it is called in errors.
        crowd: Whether crowd annotations count.
    """
    parsed = _parsed(raw, path)
    try:
        categories = [(category["id"], str(category["name"])) for category in parsed["categories"]]
        image_ids = [image["id"] for image in parsed["images"]]
        row_of = {image_id: row for row, image_id in enumerate(image_ids)}
        keys = [_key_of(image) for image in parsed["images"]]
        ids_of_row: list[list[int]] = [[] for _ in keys]
        for annotation in parsed["annotations"]:
            if crowd or not annotation.get("iscrowd"):
                ids_of_row[row_of[annotation["image_id"]]].append(annotation["category_id"])
    except (AttributeError, KeyError, TypeError) as error:
        wanted = "`images`, `annotations` and `categories` that name each other, as COCO's"
        raise LabelError(f"{path} must hold {wanted}; got {error!r}; fix the file") from error
    labels = [as_labels(ids, where=f"image {key!r} of {path}") for key, ids in zip(keys, ids_of_row, strict=True)]
    vocabulary = tuple(class_id for class_id, _ in categories), tuple(name for _, name in categories)
    return Annotations(keys, [str(image_id) for image_id in image_ids], labels, vocabulary)


def _key_of(image: Mapping[str, Any]) -> str:
    return key_of_file(image["file_name"] if image.get("file_name") else "/".join(image["coco_url"].split("/")[-2:]))


def key_of_file(name: str) -> str:
    """Return the key of a file in a tar with the same names: up to the first dot after the last slash.

    >>> key_of_file("train/v1.0/a.seg.png")
    'train/v1.0/a'
    """
    folder, slash, base = name.rpartition("/")
    return folder + slash + base.partition(".")[0]
