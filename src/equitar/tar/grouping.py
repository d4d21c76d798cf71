"""Grouping of members into samples: the name rule that splits key and field, used by the index and all readers.

The rule is that of webdataset 1.0.2. What webdataset reads correctly gives the same samples. Where it silently makes wrong ones
(a sample in two pieces, a truncated one) there is a `ShardError`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable

import numpy as np

from equitar.errors import ShardError
from equitar.tar.bulk import BulkMembers
from equitar.tar.headers import HeaderError, parse_header
from equitar.tar.walk import Member

_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")  # as in webdataset, for names with newlines
_NO_KEY = "\ud800"  # begins no name: decoding never produces it
_META = re.compile(r"__[^/]*__($|/)")
_PLAIN_KEY = re.compile(r"\0(?!__)(?:[^\0\n]*/)?(?!__)[^./\0\n]+(?=\0|\Z)")  # after a zero, a key without special cases
RESERVED = ("__key__", "__url__", "__bad__", "__local_path__")  # fields that webdataset adds to a sample
_LONGEST_NAME = 100  # bytes that a header has for a name
_FIX = "write the shard again, with the files of a sample next to each other and named once"


def split_name(name: str) -> tuple[str, str] | None:
    """Return key and field of a member, None if it is not part of a sample.

    The first dot after the last slash ends the key; the rest in lower case is the field. Names without such a dot, meta names
    of webdataset (`__meta__/a.json`, and other than there also `__meta__.json`), and hidden files (`._a.jpg`, as macOS adds them)
    are not part of a sample.

    >>> split_name("v1.0/a.seg.PNG"), split_name("d/._a.jpg"), split_name("LICENSE"), split_name("__meta__/a.json")
    (('v1.0/a', 'seg.png'), None, None, None)
    """
    slash = name.rfind("/") + 1
    dot = name.find(".", slash)
    if dot <= slash or (name.startswith("__") and _META.match(name)):
        return None
    if name.startswith("__", slash) and name.endswith("__", slash + 2, dot):
        return None
    if "\n" in name:  # where `.` in the pattern of webdataset stops
        match = _NAME.match(name)
        return (match[1], match[2].lower()) if match else None
    return name[:dot], name[dot + 1 :].lower()


def wants_fields(fields: Collection[str]) -> Callable[[str], bool]:
    """Return the `want` of a walk that requests the data of some fields only."""
    wanted = frozenset(fields)
    endings = tuple(f".{field}" for field in wanted)

    def wants(name: str) -> bool:
        parts = split_name(name) if name.lower().endswith(endings) else None
        return parts is not None and parts[1] in wanted

    return wants


def regrouped(members: Iterable[Member]) -> list[Member]:
    """Return members reordered so that those of a sample are adjacent, the samples in the order of their first members."""
    rows: dict[str, list[Member]] = {}
    for member in members:
        key, _ = split_name(member.name) or ("", "")  # members without a sample may stay together, too
        rows.setdefault(key, []).append(member)
    return [member for row in rows.values() for member in row]


class SampleGrouper:
    """Collects samples from members, in plain lists."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.row_of: dict[str, int] = {}
        self.starts: list[int] = []
        self.fields: dict[str, int] = {}
        self.field: list[int] = []
        self.offset: list[int] = []
        self.size: list[int] = []
        self.contents: list[dict[str, bytes]] = []
        self.ignored: list[str] = []  # names that are not part of a sample
        self._last: tuple[str | None, str, set[int]] = None, _NO_KEY, set()  # key, prefix of its names, its fields

    def add_all(self, members: Iterable[Member]) -> None:
        """Group members; most have the key of the member before, which is checked first."""
        fields, numbers, offsets, sizes = self.fields, self.field, self.offset, self.size
        key, prefix, own = self._last
        for member in members:
            name, offset, size, data = member
            if name.startswith(prefix) and "/" not in (rest := name[len(prefix) :]):
                field = rest.lower()
            else:
                parts = split_name(name)
                if parts is None:
                    self.ignored.append(name)
                    continue
                if parts[0] != key:
                    key, own = parts[0], set()
                    prefix = f"{key}." if not key.startswith("__") else _NO_KEY  # a meta name may begin with such a key
                    self._begin(key, member)
                field = parts[1]
            number = fields.setdefault(field, len(fields))
            if number in own:
                raise self._twice(field, member)
            own.add(number)
            numbers.append(number)
            offsets.append(offset)
            sizes.append(size)
            if data is not None:
                self.contents[-1][field] = data
        self._last = key, prefix, own

    def add_uniform(self, members: BulkMembers) -> bool:
        """Group all members at once if every sample has the same fields in the same order; otherwise return False."""
        names = members.names
        key, _ = (split_name(names[0]) if names else None) or ("", "")
        width = next((index for index, name in enumerate(names) if not name.startswith(f"{key}.")), len(names))
        if not key or len(names) % width:
            return False
        split = [split_name(name) for name in names[:width]]
        fields = {parts[1]: number for number, parts in enumerate(split) if parts and parts[0] == key}
        ends = [name[len(key) :] for name in names[:width]]
        keys = [name[: -len(ends[0])] for name in names[::width]]
        row_of = dict(zip(keys, range(len(keys)), strict=True))
        is_uniform = all([key + end for key in keys] == names[index::width] for index, end in enumerate(ends))
        are_plain = len(_PLAIN_KEY.findall("\0" + "\0".join(keys))) == len(keys)
        if not is_uniform or not are_plain or len(fields) < width or len(row_of) < len(keys):
            return False
        self.row_of, self.fields = row_of, fields
        self.starts = list(range(0, len(names), width))
        self.field = list(range(width)) * len(keys)
        self.offset, self.size = members.offset.tolist(), members.size.tolist()
        self.contents = [{} for _ in keys]
        return True

    def _begin(self, key: str, member: Member) -> None:
        """Start a new row."""
        if key in self.row_of:
            before = self.offset[self.starts[self.row_of[key]]]
            raise ShardError(
                f"{self.where} has key {key!r} again at byte {member.offset} ({member.name!r}), after byte {before} and with key "
                f"{next(reversed(self.row_of))!r} between; {_FIX}, or index it with `--regroup`"
            )
        self.row_of[key] = len(self.starts)
        self.starts.append(len(self.field))
        self.contents.append({})

    def _twice(self, field: str, member: Member) -> ShardError:
        start = self.starts[-1]
        before = self.offset[start + self.field[start:].index(self.fields[field])]
        return ShardError(
            f"{self.where} has field {field!r} of key {next(reversed(self.row_of))!r} twice, at bytes {before} and "
            f"{member.offset} ({member.name!r}); {_FIX}"
        )

    def check_names(self) -> None:
        """Reject keys that only differ by ``./``, and fields that webdataset would overwrite."""
        for key in self.row_of:
            if key.startswith("./"):
                self.check_key(key)
        self.check_fields()

    def check_key(self, key: str) -> None:
        """Reject a key if it only differs from another one by ``./``."""
        bare = key.removeprefix("./")
        if bare in self.row_of and f"./{bare}" in self.row_of:
            rows = self.row_of[bare], self.row_of[f"./{bare}"]
            first, second = sorted(self.offset[self.starts[row]] for row in rows)
            raise ShardError(
                f"{self.where} has keys {f'./{bare}'!r} and {bare!r}, at bytes {first} and {second}, which name the same file; "
                f"{_FIX}"
            )

    def check_fields(self) -> None:
        """Reject fields that webdataset would overwrite."""
        for field in RESERVED:
            if field in self.fields:
                member = self.field.index(self.fields[field])
                raise ShardError(
                    f"{self.where} has a field {field!r} at byte {self.offset[member]}, a name that webdataset "
                    "reserves; rename the member"
                )

    def check_last(self) -> None:
        """Reject a last sample without a field that all others have, in a tar without end mark: it was truncated."""
        others = np.bincount(self.field[: self.starts[-1]], minlength=len(self.fields)) if self.starts else np.zeros(0)
        common = set(np.flatnonzero(others == len(self.starts) - 1).tolist()) if len(self.starts) > 1 else set()
        lost = [field for field, number in self.fields.items() if number in common - set(self.field[self.starts[-1] :])]
        if lost:
            raise ShardError(
                f"{self.where} ends without an end mark, and its last sample {next(reversed(self.row_of))!r} has no {', '.join(lost)} but all "
                "others do, so it was truncated; copy or download the shard again"
            )

    def notes(self) -> list[str]:
        """Describe what is legal but often a mistake."""
        notes: list[str] = []
        if "" in self.fields:
            nameless = np.flatnonzero(np.array(self.field) == self.fields[""])
            row = int(np.searchsorted(self.starts, nameless[0], side="right")) - 1
            example = f"{list(self.row_of)[row]}."
            notes.append(f"{len(nameless)} members end in a dot, so that their field has no name, such as {example!r}")
        notes += _notes_on_keys(self.row_of)
        ignored = self.ignored
        hidden = [name for name in ignored if name.rpartition("/")[2].startswith(".")]
        if hidden:
            notes.append(f"{len(hidden)} hidden files ignored, such as {hidden[0]!r}")
        if len(ignored) > len(hidden):
            other = next(name for name in ignored if not name.rpartition("/")[2].startswith("."))
            notes.append(
                f"{len(ignored) - len(hidden)} members that are not part of a sample ignored, such as {other!r}"
            )
        numeric = [field for field in self.fields if field[:1].isdigit()]
        if numeric:
            notes.append(
                f"{len(numeric)} fields that start with a digit, such as {numeric[0]!r}: the first dot ends a key"
            )
        most = max(np.diff([*self.starts, len(self.field)]).tolist(), default=0)
        if len(self.fields) > max(4, 2 * most):
            notes.append(f"{len(self.fields)} different fields, although no sample has more than {most}")
        if not self.starts:
            notes.append("no samples")
        return notes


def _notes_on_keys(keys: Collection[str]) -> list[str]:
    """Describe keys that look alike."""
    if "".join(keys).isascii():
        return []
    first: dict[str, str] = {}
    twins = [key for key in keys if first.setdefault(unicodedata.normalize("NFC", key), key) != key]
    if not twins:
        return []
    return [f"{len(twins)} keys equal another one after Unicode normalization (NFC), such as {twins[0]!r}"]


def what_differs(header: bytes, *, key: str, field: str, size: int) -> str | None:
    """Return how a header differs from that of a member; None if it does not.

    Args:
        header: The 512 bytes before the data of the member.
        key: Its key.
        field: Its field.
        size: Length of its data in bytes.
    """
    try:
        raw_name, actual_size, _ = parse_header(header)
    except HeaderError as error:
        return str(error)
    name, actual = f"{key}.{field}", raw_name.decode("utf-8", "surrogateescape")
    # Longer names, and those that are not ASCII, are in an extended header, and truncated or changed in this one.
    is_plain = name.isascii() and len(name) <= _LONGEST_NAME
    if actual_size == size and (not is_plain or split_name(actual) == (key, field)):
        return None
    return f"it has member {actual!r} of {actual_size} bytes but its sidecar has {name!r} of {size}"
