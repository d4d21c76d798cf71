"""How does a file say which labels a key has? One reader for each format that `equitar.outside` lists."""

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

KEYS = ("key", "__key__", "file_name")  # what the key is called, the first of them that a row has
LABELS = "labels"
_ENDING = re.compile(r"\.(tsv|csv|jsonl|json|parquet)(?:\.gz)?", re.IGNORECASE)
_COLUMN = re.compile(rf"(?P<urls>.*?{_ENDING.pattern}):(?P<column>.+)", re.IGNORECASE | re.DOTALL)
_BATCH = 1 << 16  # rows that are Python objects at once


class LabelFile(NamedTuple):
    """What ``FILE:COLUMN`` says.

    Attributes:
        urls: The file, or a pattern for many.
        ending: Which format it has.
        column: JMESPath of the labels in a row, None for the usual place.
    """

    urls: str
    ending: str
    column: str | None


def label_file(path: str) -> LabelFile:
    """Return what ``FILE`` or ``FILE:COLUMN`` says.

    >>> label_file("s3://bucket/{000..331}.parquet:objects.category")
    LabelFile(urls='s3://bucket/{000..331}.parquet', ending='parquet', column='objects.category')

    Raises:
        LabelError: If it ends in no known way, or a column is given where there are none.
    """
    ending = re.search(rf"{_ENDING.pattern}\Z", path, re.IGNORECASE)
    if ending:
        return LabelFile(path, ending[1].lower(), None)
    named = _COLUMN.fullmatch(path)
    if named is None:
        seen = f"ends in {path.removesuffix('.gz').rsplit('.', 1)[-1].lower()!r}"
        wanted = "in .tsv, .csv, .jsonl, .json or .parquet"
        raise LabelError(f"{path} {seen} but labels must be {wanted}; convert it to one of these")
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
            raise LabelError(f"{where} must be a key and labels separated by blanks; got {cell!r}; mend the file")
        where = f"key {cell[0]!r} in {where}"
        yield cell[0], as_labels([parse_label(word, where=where) for word in cell[1].split()], where=where)


def _cells(text: str, path: str) -> Iterator[list[str]]:
    if not path.removesuffix(".gz").lower().endswith(".csv"):
        # Lines end in newlines only: `splitlines` would also cut a key at, say, U+2028.
        yield from (line.removesuffix("\r").split("\t") for line in text.removesuffix("\n").split("\n"))
        return
    try:
        yield from csv.reader(io.StringIO(text, newline=""), strict=True)
    except csv.Error as error:
        raise LabelError(f"{path} is no CSV ({error}); mend the file") from error


def json_lines(text: str, path: str, *, column: str | None) -> Iterator[tuple[str, Labels]]:
    """Yield keys and labels of JSON lines."""
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        where = f"line {number} of {path}"
        parsed = parse_json(line.encode("utf-8", "surrogateescape"), where=where)
        row = parsed if isinstance(parsed, dict) else {}
        yield from _row(row, where, shown=line[:80], column=column)


def parquet_rows(raw: bytes, path: str, *, column: str | None) -> Iterator[tuple[str, Labels]]:
    """Yield keys and labels of a Parquet file; of its columns only these are read."""
    try:
        from pyarrow import ArrowException, BufferReader, parquet  # noqa: PLC0415  (an extra, and slow to import)
    except ImportError as error:
        raise LabelError(f"{path} needs pyarrow; install `equitar[parquet]`") from error
    try:
        file = parquet.ParquetFile(BufferReader(raw))
        names = file.schema_arrow.names
        top = column if column is None or column in names else re.split(r"[.\[|]", column)[0].strip('"')
        wanted = [next((one for one in KEYS if one in names), ""), LABELS if top is None else top]
        if not set(wanted) <= set(names):
            asked = "`labels`, or FILE:COLUMN" if column is None else f"`{column}`"
            raise LabelError(f"{path} must have a column `key` and {asked}; got {', '.join(names)}; name one of these")
        number = 0
        is_name = column is None or column in names
        quoted = f'"{column}"' if column in names else column  # a name may hold what means something in a path
        for batch in file.iter_batches(batch_size=_BATCH, columns=wanted):
            keys, labels = (batch.column(name) for name in wanted)
            if is_name and wanted[0] != "file_name" and _are_ids(keys, labels):
                yield from zip(keys.to_pylist(), labels.to_pylist(), strict=True)
                number += batch.num_rows
                continue
            for row in batch.to_pylist():
                number += 1
                yield from _row(row, f"row {number} of {path}", shown=str(row)[:80], column=quoted)
    except (ArrowException, OSError) as error:
        raise LabelError(f"{path} is damaged or no Parquet ({error}); get it again") from error


def _are_ids(keys: Any, labels: Any) -> bool:
    """Whether there is a key and a list of ids in each row, so that no row need be looked at by itself."""
    from pyarrow import types  # noqa: PLC0415  (as above)

    are_texts = types.is_string(keys.type) or types.is_large_string(keys.type)
    are_lists = types.is_list(labels.type) or types.is_large_list(labels.type)
    if not are_texts or not are_lists or not types.is_signed_integer(labels.type.value_type):
        return False
    return not (keys.null_count or labels.null_count or labels.flatten().null_count)


def _row(row: Mapping[str, Any], where: str, *, shown: str, column: str | None) -> Iterable[tuple[str, Labels]]:
    """Return key and labels of one row; nothing where the labels are null, which is as if the row was not there."""
    name = next((one for one in KEYS if one in row), "")
    key = row.get(name)
    try:
        found = row.get(LABELS) if column is None else search(column)(row)
    except JMESPathError as error:  # a function of the path got another type than it takes
        raise LabelError(f"the column {column!r} failed with {str(error)!r} in {where}; change it") from error
    if not isinstance(key, str) or (found is None and column is None and LABELS not in row):
        raise LabelError(f'{where} must be {{"key": "...", "labels": [...]}}; got {shown!r}; mend the file')
    if found is None:
        return []
    labels = as_labels(found if isinstance(found, list) else [found], where=f"key {key!r} in {where}")
    return [(key_of_file(key) if name == "file_name" else key, labels)]


class Annotations(NamedTuple):
    """Labels by image.

    Attributes:
        keys: Key of each image.
        image_ids: Id of each image; empty if images have none.
        labels: Labels of each image.
        categories: Ids of all classes, and their names; None if the file does not say.
    """

    keys: list[str]
    image_ids: list[str]
    labels: list[Labels]
    categories: tuple[tuple[int, ...], tuple[str, ...]] | None


# What is read of the file. Boxes and polygons are nearly all of it, and objects of Python are many times as large as their text.
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
    """Return what annotations hold, only that which is read if msgspec is installed."""
    if importlib.util.find_spec("msgspec"):
        msgspec: Any = importlib.import_module("msgspec")
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):  # what is wrong is told below as without it
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
        categories = [(one["id"], str(one["name"])) for one in parsed["categories"]]
        image_ids = [image["id"] for image in parsed["images"]]
        row_of = {image_id: row for row, image_id in enumerate(image_ids)}
        keys = [_key_of(image) for image in parsed["images"]]
        found: list[list[int]] = [[] for _ in keys]
        for one in parsed["annotations"]:
            if crowd or not one.get("iscrowd"):
                found[row_of[one["image_id"]]].append(one["category_id"])
    except (AttributeError, KeyError, TypeError) as error:
        wanted = "`images`, `annotations` and `categories` that name each other, as COCO's"
        raise LabelError(f"{path} must hold {wanted}; got {error!r}; mend the file") from error
    labels = [as_labels(ids, where=f"image {key!r} of {path}") for key, ids in zip(keys, found, strict=True)]
    vocabulary = tuple(one for one, _ in categories), tuple(name for _, name in categories)
    return Annotations(keys, [str(image_id) for image_id in image_ids], labels, vocabulary)


def _key_of(image: Mapping[str, Any]) -> str:
    return key_of_file(image["file_name"] if image.get("file_name") else "/".join(image["coco_url"].split("/")[-2:]))


def key_of_file(name: str) -> str:
    """Return the key that a file has in a tar that keeps its name: up to the first dot after the last slash.

    >>> key_of_file("train/v1.0/a.seg.png")
    'train/v1.0/a'
    """
    folder, slash, base = name.rpartition("/")
    return folder + slash + base.partition(".")[0]
