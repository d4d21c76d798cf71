"""Which samples does a tar hold, and where are the bytes of their fields? The one name rule, and grouping by it.

The rule is that of webdataset 1.0.2, and the index and all readers have it from here. What webdataset reads rightly gives
the same samples. Where it silently makes wrong ones (a sample in two pieces, a sample cut short) there is a `ShardError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import numpy as np

from equitar.errors import ShardError
from equitar.mix64 import Int64
from equitar.walking import Member, Walk, walk

__all__ = ["Member", "MemberTable", "Walk", "member_table", "split_name", "walk", "wants_fields"]

_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")  # as in webdataset, for names that need its every quirk
_NO_KEY = "\ud800"  # begins no name: decoding never gives it
_META = re.compile(r"__[^/]*__($|/)")
_RESERVED = ("__key__", "__url__", "__bad__", "__local_path__")  # what webdataset itself keeps in a sample
_MEND = "write the shard anew, with the files of a sample side by side and named once"


def split_name(name: str) -> tuple[str, str] | None:
    """Return key and field of a member, None if it is not part of a sample.

    The first dot after the last slash ends the key; the field is what follows, in lower case. No part of a sample are
    names without such a dot, webdataset's meta names, and names that start with a dot, as those that macOS puts beside files.

    >>> split_name("v1.0/a.seg.PNG"), split_name("d/._a.jpg"), split_name("LICENSE"), split_name("__meta__/a.json")
    (('v1.0/a', 'seg.png'), None, None, None)
    """
    slash = name.rfind("/") + 1
    dot = name.find(".", slash)
    if dot <= slash or (name.startswith("__") and _META.match(name)):
        return None
    if "\n" in name:  # which ends what `.` matches in the pattern of webdataset
        match = _NAME.match(name)
        return (match[1], match[2].lower()) if match else None
    return name[:dot], name[dot + 1 :].lower()


def wants_fields(fields: Collection[str]) -> Callable[[str], bool]:
    """Return the `want` of a walk that is to give the bytes of some fields only."""
    wanted = frozenset(fields)
    endings = tuple(f".{one}" for one in wanted)

    def wants(name: str) -> bool:
        parts = split_name(name) if name.lower().endswith(endings) else None
        return parts is not None and parts[1] in wanted

    return wants


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTable:
    """The samples of one shard: keys, and where the bytes of each field are.

    Attributes:
        keys: Key of each row, (rows,).
        indptr: First member of each row, and their number at last, (rows + 1,).
        fields: The distinct field names, in order of their first use.
        field: Which of `fields` each member is, (members,).
        offset: Where the data of each member begin, (members,), bytes.
        size: Length of the data of each member, (members,), bytes.
        sliceable: Whether the offsets are positions in the file; in a compressed shard they are not.
        contents: The bytes the walk was asked for, by field, for each row.
        notes: What is odd but no error, each with its number, to be shown to the user.
    """

    keys: list[str]
    indptr: Int64
    fields: list[str]
    field: Int64
    offset: Int64
    size: Int64
    sliceable: bool
    contents: list[dict[str, bytes]]
    notes: tuple[str, ...]


def member_table(members: Iterable[Member], where: str) -> MemberTable:
    """Return the samples that members form: neighbours with equal keys are one sample.

    Args:
        members: The members of one tar in its order, mostly a `Walk`.
        where: What the shard is called in errors.

    Raises:
        ShardError: If a field comes twice in a sample, a key comes back after another, ``./a`` and ``a`` are both keys, a
            field has a name that webdataset keeps for itself, or the tar was cut within its last sample.
    """
    rows = _Rows(where)
    rows.add_all(members)
    rows.check_names()
    has_end_mark = members.has_end_mark if isinstance(members, Walk) else True
    if not has_end_mark:
        rows.check_last()
    return MemberTable(
        keys=list(rows.row_of),
        indptr=np.array([*rows.starts, len(rows.field)], np.int64),
        fields=list(rows.fields),
        field=np.array(rows.field, np.int64),
        offset=np.array(rows.offset, np.int64),
        size=np.array(rows.size, np.int64),
        sliceable=members.sliceable if isinstance(members, Walk) else True,
        contents=rows.contents,
        notes=(*_notes_on_names(rows), *([] if has_end_mark else ["no end mark: the tar may have been cut"])),
    )


class _Rows:
    """Samples as they are found, in plain lists."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.row_of: dict[str, int] = {}
        self.starts: list[int] = []
        self.fields: dict[str, int] = {}
        self.field: list[int] = []
        self.offset: list[int] = []
        self.size: list[int] = []
        self.contents: list[dict[str, bytes]] = []
        self.passed: list[str] = []  # names that belong to no sample

    def add_all(self, members: Iterable[Member]) -> None:
        """Group members; what differs from the member before is looked at, for most have its key."""
        fields, numbers, offsets, sizes = self.fields, self.field, self.offset, self.size
        key, dotted, here = None, _NO_KEY, set[int]()
        for member in members:
            name, offset, size, data = member
            if name.startswith(dotted) and "/" not in (rest := name[len(dotted) :]):
                field = rest.lower()
            else:
                parts = split_name(name)
                if parts is None:
                    self.passed.append(name)
                    continue
                if parts[0] != key:
                    key, here = parts[0], set()
                    dotted = f"{key}." if not key.startswith("__") else _NO_KEY  # a meta name may begin with such a key
                    self._begin(key, member)
                field = parts[1]
            number = fields.setdefault(field, len(fields))
            if number in here:
                raise self._twice(field, member)
            here.add(number)
            numbers.append(number)
            offsets.append(offset)
            sizes.append(size)
            if data is not None:
                self.contents[-1][field] = data

    def _begin(self, key: str, member: Member) -> None:
        """Begin a row."""
        if key in self.row_of:
            before = self.offset[self.starts[self.row_of[key]]]
            raise ShardError(
                f"{self.where} has key {key!r} again at byte {member.offset} ({member.name!r}), after it began at byte "
                f"{before} and key {next(reversed(self.row_of))!r} came between; {_MEND}"
            )
        self.row_of[key] = len(self.starts)
        self.starts.append(len(self.field))
        self.contents.append({})

    def _twice(self, field: str, member: Member) -> ShardError:
        start = self.starts[-1]
        before = self.offset[start + self.field[start:].index(self.fields[field])]
        return ShardError(
            f"{self.where} has field {field!r} of key {next(reversed(self.row_of))!r} twice, at bytes {before} and "
            f"{member.offset} ({member.name!r}); {_MEND}"
        )

    def check_names(self) -> None:
        """Refuse keys that differ by ``./`` only, and fields that webdataset would overwrite."""
        for key in self.row_of:
            if key.startswith("./") and key[2:] in self.row_of:
                rows = self.row_of[key], self.row_of[key[2:]]
                first, second = sorted(self.offset[self.starts[row]] for row in rows)
                raise ShardError(
                    f"{self.where} has keys {key!r} and {key[2:]!r}, at bytes {first} and {second}, which mean one file; "
                    f"{_MEND}"
                )
        for field in _RESERVED:
            if field in self.fields:
                member = self.field.index(self.fields[field])
                raise ShardError(
                    f"{self.where} has a field {field!r} at byte {self.offset[member]} but webdataset keeps that name "
                    "for itself; rename the member"
                )

    def check_last(self) -> None:
        """Refuse a last sample without a field that all others have, in a tar that ends without a mark: it was cut."""
        others = np.bincount(self.field[: self.starts[-1]], minlength=len(self.fields)) if self.starts else np.zeros(0)
        common = set(np.flatnonzero(others == len(self.starts) - 1).tolist()) if len(self.starts) > 1 else set()
        lost = [field for field, number in self.fields.items() if number in common - set(self.field[self.starts[-1] :])]
        if lost:
            raise ShardError(
                f"{self.where} ends without an end mark, and its last sample {next(reversed(self.row_of))!r} has no {', '.join(lost)} but all "
                "others do, so it was cut there; copy or download the shard again"
            )


def _notes_on_names(rows: _Rows) -> list[str]:
    """Say what is legal and yet mostly a mistake."""
    notes = []
    passed = rows.passed
    hidden = [name for name in passed if name.rpartition("/")[2].startswith(".")]
    if hidden:
        notes.append(f"{len(hidden)} hidden files passed over, such as {hidden[0]!r}")
    if len(passed) > len(hidden):
        other = next(name for name in passed if not name.rpartition("/")[2].startswith("."))
        notes.append(f"{len(passed) - len(hidden)} members that belong to no sample passed over, such as {other!r}")
    numeric = [field for field in rows.fields if field[:1].isdigit()]
    if numeric:
        notes.append(f"{len(numeric)} fields that start with a digit, such as {numeric[0]!r}: the first dot ends a key")
    most = max(np.diff([*rows.starts, len(rows.field)]).tolist(), default=0)
    if len(rows.fields) > max(4, 2 * most):
        notes.append(f"{len(rows.fields)} different fields, although no sample has more than {most}")
    if not rows.starts:
        notes.append("no samples")
    return notes
