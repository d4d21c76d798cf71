"""Bulk reading gives what the walk gives: over drawn tars, ordinary ones and others that look like it."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from equitar.errors import ShardError
from equitar.indexing.shard_task import _single_ids
from equitar.labels.extractors import TextLabels
from equitar.labels.tables import Vocabulary, encoded
from equitar.tar.bulk import ordinary_members
from equitar.tar.grouping import wants_fields
from equitar.tar.table import MemberTable, member_table, read_table
from equitar.tar.walk import walk
from helpers import odd_tars
from helpers.drawn_tars import nearly_ordinary
from helpers.odd_tars import BLOCK, END, folder, member, padded, pax

Seen = tuple[object, ...] | str


@contextmanager
def local_file(raw: bytes) -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(raw)
        file.seek(0)
        yield file


def _seen(make: Callable[[], MemberTable]) -> Seen:
    """What a table holds, or what the error says."""
    try:
        table = make()
    except ShardError as error:
        return str(error)
    arrays = (table.indptr, table.field, table.offset, table.size)
    kinds = {array.dtype.str for array in arrays}
    return (
        *(table.keys, table.fields, table.contents, table.sliceable, table.notes, kinds),
        *(array.tolist() for array in arrays),
    )


def _check(raw: bytes, fields: tuple[str, ...] | None) -> None:
    want = (lambda _: True) if fields is None else wants_fields(fields)
    with local_file(raw) as file:
        in_bulk = _seen(lambda: read_table(file, size=len(raw), where="x.tar", fields=fields))
    walked = _seen(lambda: member_table(walk(io.BytesIO(raw), size=len(raw), where="x.tar", want=want), "x.tar"))
    assert in_bulk == walked, "bulk and walk differ"


def _is_ordinary(raw: bytes) -> bool:
    with local_file(raw) as file:
        return ordinary_members(lambda length, offset: os.pread(file.fileno(), length, offset), len(raw)) is not None


@given(nearly_ordinary(), st.sampled_from([(), ("cls",), ("jpg", "txt"), None]))
@settings(max_examples=400)
@example(b"".join(pax({"mtime": "1.5"}) + member(f"{key}.jpg", b"1") for key in "ab") + END, None)
@example(pax({"mtime": "1.5"}) + member("a.jpg/", b"1") + pax({"mtime": "1.5"}) + member("b.jpg/", b"1") + END, None)
@example(member("a.jpg", b"1") + member("b.jpg", b"2") + END, ("jpg",))
@example(member("a.jpg", b"1") + member("b.jpg", b"2")[:300], ())
@example(pax({"mtime": "1.5"})[:512] + padded(b"13 mtime=1") + member("a.jpg", b"1") + END, ())
def test_read_in_bulk_a_shard_gives_the_table_or_the_error_of_the_walk(raw: bytes, fields: tuple[str, ...] | None) -> None:  # fmt: skip
    _check(raw, fields)


@pytest.mark.parametrize("name", [name for case in odd_tars.CASES.values() for name in case.make()])
def test_odd_tars_give_the_same_in_bulk_and_walked(name: str) -> None:
    for fields in ((), ("cls",), None):
        _check(next(made[name] for case in odd_tars.CASES.values() if name in (made := case.make())), fields)


@pytest.mark.parametrize(
    ("raw", "is_ordinary"),
    [
        (odd_tars.two_samples() + END, True),
        (b"".join(pax({"mtime": str(time)}) + member(f"{time}.jpg", b"1") for time in (1.5, 1.25, 1.125)) + END, True),
        (folder("d/") + member("d/a.jpg", b"1") + END, True),
        (END, True),
        (bytes(BLOCK), False),
        (odd_tars.two_samples(), False),
        (pax({"mtime": "1.5"}) + member("a.jpg", b"1") + member("b.jpg", b"1") + END, False),
        (member("whole.tar", member("in.jpg", b"1") + END) + END, True),
    ],
)
def test_what_counts_as_ordinary(raw: bytes, is_ordinary: bool) -> None:
    assert _is_ordinary(raw) == is_ordinary


def test_more_headers_than_are_held_at_once_are_all_found() -> None:
    raw = b"".join(member(f"{number}.cls", b"%d" % number) for number in range((1 << 13) + 5)) + END
    assert _is_ordinary(raw)
    _check(raw, ("cls",))


def test_large_members_between_small_ones_are_stepped_over() -> None:
    raw = b"".join(member(f"{number}.jpg", bytes(30_000)) + member(f"{number}.cls", b"7") for number in range(50)) + END
    _check(raw, ("cls",))


TEXTS = st.one_of(
    st.integers(-(1 << 64), 1 << 64).map(str), st.text("0123456789+-_ \n\x0b\x1c.eañ٣x", max_size=4)
).map(str.encode)  # fmt: skip


@given(st.lists(TEXTS | st.just(b"7"), min_size=1, max_size=4), st.sampled_from([None, Vocabulary(ids=(3, 7), names=("c", "d"))]))  # fmt: skip
@settings(max_examples=300)
def test_labels_read_at_once_are_those_of_the_extractor(texts: list[bytes], vocabulary: Vocabulary | None) -> None:
    ids = _single_ids(TextLabels(field="cls"), [{"cls": text} for text in texts], vocabulary)
    if ids is not None:
        labels = [TextLabels(field="cls")({"cls": text}, where="x.tar") for text in texts]
        encoded_ids, _ = encoded(["key"] * len(texts), labels, given=None, wanted=vocabulary, where="x.tar")
        assert encoded_ids == [[class_id] for class_id in ids.tolist()]
