"""Label files outside the shards: tables of keys and labels, and vocabularies of classes.

    .tsv, .csv        key, then labels separated by spaces; a first line that begins with `key` is a header
    .jsonl            {"key": ..., "labels": [...]} per line, or `__key__` as in samples, or `file_name` as in Hugging Face's metadata
    .parquet          columns of the same names
    .json             annotations of COCO and LVIS; category ids and names are kept

Labels in ``.jsonl`` and ``.parquet`` are lists, or one per row; if they are not under `labels`, ``FILE:COLUMN`` says where: COLUMN
is a JMESPath into the row. A glob or a brace pattern names many files of one kind, as img2dataset writes them. Text may be
compressed with gzip. A table is joined to the samples of a shard by the rule that matches most of them: by key; by the part
after the last slash; by image id, with or without leading zeros.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from equitar.arrays import Int64
from equitar.errors import LabelError
from equitar.labels.extractors import Labels, parse_label
from equitar.labels.formats import Annotations, LabelFile, image_rows, json_lines, label_file, parquet_rows, text_rows
from equitar.presence import Presence
from equitar.sources import Source, StorageOptions
from equitar.storage.files import read_bytes
from equitar.storage.listing import expand

RULES = ("key", "base name", "image id")
_AMBIGUOUS = -2


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The known classes: distinct ids, each with a distinct name.

    >>> Vocabulary(ids=(3, 7), names=("cat", "dog")).encode(["dog", "dog"], where="key 'a' of x.tar")
    [7, 7]
    """

    ids: tuple[int, ...]
    names: tuple[str, ...]
    _id_of: Mapping[str, int] = field(init=False, repr=False, compare=False)
    _known: frozenset[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for what, values, kind in (("id", self.ids, int), ("name", self.names, str)):
            for value in values:  # before they are counted, which fails for a list
                if not isinstance(value, kind):
                    fix = "`classes` are names in the order of their ids, or a Vocabulary"
                    raise LabelError(f"a class {what} must be {kind.__name__}; got {value!r}; {fix}")
                if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
                    raise LabelError(f"a class id must fit into 64 bits; got {value}; use another id")
            for value, times in Counter[Any](values).items():
                if times > 1 or value == "":
                    fix = "give each class its own name"
                    raise LabelError(f"class {what} {value!r} occurs {times} times in the vocabulary; {fix}")
        object.__setattr__(self, "_id_of", dict(zip(self.names, self.ids, strict=True)))
        object.__setattr__(self, "_known", frozenset(self.ids))

    @property
    def digest(self) -> str:
        """Sixteen hex digits that change with any id or name."""
        return _digest(repr((self.ids, self.names)).encode("utf-8", "surrogateescape"))

    def encode(self, labels: Labels, *, where: str) -> list[int]:
        """Return labels as ids, in order; one outside the vocabulary is a LabelError that names `where`."""
        encoded = []
        for label in labels:
            class_id = self._id_of.get(label) if isinstance(label, str) else label
            if class_id not in self._known:
                fix = "add it to the vocabulary (`classes`) or fix the label"
                raise LabelError(f"label {label!r} is not one of {len(self.ids)} classes for {where}; {fix}")
            encoded.append(class_id)
        return encoded


def read_classes(path: str, *, storage_options: StorageOptions = None) -> Vocabulary:
    """Return the vocabulary of a file: one name per line, whose id is the line number from 0, or ``id<TAB>name``."""
    lines = _text(_raw(path, storage_options)).rstrip("\n").split("\n")
    cells = [line.rstrip("\r").split("\t") for line in lines]
    widths = {len(cell) for cell in cells}
    if widths == {1}:
        return Vocabulary(ids=tuple(range(len(cells))), names=tuple(name for (name,) in cells))
    for number, cell in enumerate(cells, start=1):
        if len(cell) != 2 or not isinstance(parse_label(cell[0], where=f"line {number} of {path}"), int):
            raise LabelError(
                f"line {number} of {path} must be `id<TAB>name` like other lines; got {cell!r}; fix the file"
            )
    return Vocabulary(ids=tuple(int(class_id) for class_id, _ in cells), names=tuple(name for _, name in cells))


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTable:
    """Labels by key, read from a file.

    Attributes:
        path: The file.
        digest: Hex digest of what the file says.
        presence: Labels, a row for each row of the file.
        vocabulary: Classes of the ids, if the file or the caller names them.
        keys: What each row is called in errors and reports.
        rows: For each of `RULES`, the row of a name; -2 for a name that several rows share.
    """

    path: str
    digest: str
    presence: Presence
    vocabulary: Vocabulary | None
    keys: tuple[str, ...]
    rows: tuple[Mapping[str, int], ...]

    def match(self, keys: Sequence[str], *, where: str) -> tuple[Int64, str]:
        """Return the row of each key, -1 for none, and the rule that matched them.

        One rule is used for a whole shard, so that no sample gets the labels of an image whose id happens to equal its key.
        """
        best = np.full(len(keys), -1, np.int64)
        best_rule = RULES[0]
        for rule, rows, names in zip(RULES, self.rows, _names_of(keys), strict=True):
            matches = np.array([rows.get(name, -1) for name in names], np.int64)
            if np.count_nonzero(matches != -1) > np.count_nonzero(best != -1):
                best, best_rule = matches, rule
        if _AMBIGUOUS in best:  # the smallest of all values
            key = keys[int(np.argmin(best))]
            raise LabelError(
                f"key {key!r} of {where} has several rows in {self.path} by its {best_rule} but must have one; use the keys of "
                "the samples in the file"
            )
        return best, best_rule


def read_labels(
    path: str,
    *,
    classes: Vocabulary | None = None,
    crowd: bool = True,
    storage_options: StorageOptions = None,
) -> LabelTable:
    """Return the table of labels in a file.

    Args:
        path: ``FILE`` or ``FILE:COLUMN``, see the module; local or whatever fsspec opens.
        classes: Vocabulary of the labels (default: the categories or names in the file).
        crowd: Whether crowd annotations of COCO count as labels.
        storage_options: Options for fsspec.

    Raises:
        LabelError: If a file is malformed.
        SourceError: If a pattern matches no file.
    """
    file = label_file(path)
    urls = expand(Source("labels", file.urls, storage_options=storage_options)).urls
    if file.ending == "json" and len(urls) > 1:
        raise LabelError(f"annotations must be one file; got {len(urls)} for {path}; pass one of them")
    digest = hashlib.blake2b(digest_size=8)
    annotations = Annotations([], [], [], None)
    for url in urls:
        raw = _raw(url, storage_options)
        digest.update(raw)
        if file.ending == "json":
            annotations = image_rows(raw, url, crowd=crowd)
        else:
            pairs = list(_rows_of(file, raw, url))
            annotations.keys.extend(key for key, _ in pairs)
            annotations.labels.extend(labels for _, labels in pairs)
    given = None if annotations.categories is None else Vocabulary(*annotations.categories)
    ids, vocabulary = encoded(annotations.keys, annotations.labels, given=given, wanted=classes, where=path)
    digest.update(repr((crowd, classes, *([file.column] if file.column else []))).encode("utf-8", "surrogateescape"))
    return LabelTable(
        path=path,
        digest=digest.hexdigest(),
        presence=Presence.of(ids),
        vocabulary=vocabulary,
        keys=tuple(annotations.keys),
        rows=_rows(annotations.keys, annotations.image_ids, path),
    )


def _rows_of(file: LabelFile, raw: bytes, url: str) -> Iterable[tuple[str, Labels]]:
    if file.ending == "parquet":
        return parquet_rows(raw, url, column=file.column)
    text = _text(raw)
    return json_lines(text, url, column=file.column) if file.ending == "jsonl" else text_rows(text, url)


def encoded(
    keys: Sequence[str], labels: Sequence[Labels], *, given: Vocabulary | None, wanted: Vocabulary | None, where: str
) -> tuple[list[list[int]], Vocabulary | None]:
    """Return the ids of labels row by row, and their vocabulary.

    That is the `wanted` one, otherwise the one `given` with the labels, otherwise the sorted names in them; None for ids.
    """
    named: Sequence[Labels] = labels
    if given is not None and wanted is not None:  # two vocabularies are matched by name
        name_of = dict(zip(given.ids, given.names, strict=True))
        ids = (given.encode(row, where=f"key {key!r} of {where}") for key, row in zip(keys, labels, strict=True))
        named = [[name_of[label] for label in row] for row in ids]
    first = {type(row[0]): (row[0], key) for key, row in zip(reversed(keys), reversed(named), strict=True) if row}
    if len(first) > 1:
        kinds = " and ".join(f"{label!r} for key {key!r}" for label, key in first.values())
        raise LabelError(f"labels must be all ids or all names; got {kinds} in {where}; use one kind")
    vocabulary = wanted or given
    if vocabulary is None and str in first:
        names = sorted({str(label) for row in named for label in row})
        vocabulary = Vocabulary(ids=tuple(range(len(names))), names=tuple(names))
    if vocabulary is None:
        return cast("list[list[int]]", named), None
    pairs = zip(keys, named, strict=True)
    return [vocabulary.encode(row, where=f"key {key!r} of {where}") for key, row in pairs], vocabulary


def _names_of(keys: Iterable[str]) -> tuple[list[str], list[str], list[str]]:
    """Return the names of keys under each of `RULES`."""
    plain = [key.removeprefix("./") for key in keys]
    bases = [key.rpartition("/")[2] for key in plain]
    return plain, bases, [base.lstrip("0") or base[-1:] for base in bases]


def _rows(keys: Sequence[str], image_ids: Sequence[str], path: str) -> tuple[Mapping[str, int], ...]:
    plain, bases, _ = _names_of(keys)
    for key, times in Counter(image_ids or plain).items():
        if times > 1:
            what = "image id" if image_ids else "key"
            raise LabelError(f"{what} {key!r} occurs {times} times in {path} but must occur once; fix the file")
    rows = _row_of(plain)
    return rows, rows if bases == plain else _row_of(bases), _row_of(_names_of(image_ids)[2])


def _row_of(names: Iterable[str]) -> dict[str, int]:
    rows: dict[str, int] = {}
    for row, name in enumerate(names):
        rows[name] = _AMBIGUOUS if name in rows else row
    return rows


def _raw(path: str, options: StorageOptions) -> bytes:
    try:
        raw = read_bytes(path, options)
    except FileNotFoundError as error:
        raise LabelError(
            f"the file {path} was not found but labels or classes are read from it; check the path"
        ) from error
    if not raw.startswith(b"\x1f\x8b"):
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise LabelError(f"{path} is damaged ({error}); copy or download it again") from error


def _text(raw: bytes) -> str:
    return raw.decode("utf-8-sig", "surrogateescape")  # keys may be any bytes, as in tars


def _digest(raw: bytes) -> str:
    return hashlib.blake2b(raw, digest_size=8).hexdigest()
