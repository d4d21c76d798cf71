"""Is what is read in bulk what the walk says? Over drawn tars, ordinary ones and such as look like it."""

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

import odd_tars
from equitar.errors import ShardError
from equitar.labels import TextLabels
from equitar.ordinary import ordinary_members
from equitar.outside import Vocabulary, encoded
from equitar.shard_index import _single_ids
from equitar.tar import MemberTable, member_table, read_table, walk, wants_fields
from odd_tars import BLOCK, END, GNU, USTAR, base256, folder, member, padded, pax

Seen = tuple[object, ...] | str

KEYS = st.sampled_from(["a", "b", "c", "./a", "d/a", "v1.0/a", "__a", "__a__", "x.y", "é", "c\nd", "", "d/", "z" * 90])
FIELDS = st.sampled_from([["jpg", "cls"], ["jpg"], ["JPG", "seg.png", "txt"], ["cls", "CLS"], ["0.5", "txt"], ["__key__"], [""]])  # fmt: skip
TIMES = st.sampled_from(["1700000000.5", "1700000000.25", "1.5"])
STRANGERS = st.sampled_from([
    b"", b"", b"", folder("d/"), folder("d.x/"), member("LICENSE", b"text"), member("d/._a.jpg", b"x"),
    member("link.jpg", b"", kind=b"1", link=b"a.jpg"), member("n.jpg", b"1", magic=GNU, prefix=b"14751572634\0"),
    member("n.jpg", b"1", prefix=b"p"), member("n.jpg", b"1", kind=b"\0"), member("n.jpg", b"1", kind=b"7"),
    member("n.jpg", b"1", size_field=b"          1 "), member("n.jpg", b"1", size_field=b"000000000001"),
    member("n.jpg", b"1", size_field=b"0_000000001\0"), member("n.jpg", b"", size_field=b"-0000000001\0"),
    member("n.jpg", b"1", size_field=base256(1, 12)), member("dir.jpg/", b""), member(b"n\0m.jpg", b"1"),
    pax({"path": "new.jpg"}), pax({"size": "1"}), pax({"mtime": "1"}), pax({"comment": "c" * 300}),
    pax({"comment": "c"}, kind=b"g"), bytes(BLOCK), END, odd_tars.gnu_long_name("n" * 120 + ".jpg"),
    member("whole.tar", member("in.jpg", b"1") + END),
])  # fmt: skip


@st.composite
def nearly_ordinary(draw: st.DrawFn) -> bytes:
    """A tar of alike samples, and mostly something in it that is out of the ordinary."""
    fields, has_times, magic = draw(FIELDS), draw(st.booleans()), draw(st.sampled_from([USTAR, GNU]))
    parts: list[bytes] = []
    for key in draw(st.lists(KEYS, max_size=5, unique=draw(st.booleans()))):
        for field in fields if draw(st.integers(0, 9)) else draw(FIELDS):
            parts.append(draw(STRANGERS) if draw(st.integers(0, 9)) == 0 else b"")
            parts.append(pax({"mtime": draw(TIMES)}) if has_times else b"")
            parts.append(member(f"{key}.{field}", draw(st.binary(max_size=40)) * draw(st.sampled_from([1, 40])), magic=magic))  # fmt: skip
    whole = bytearray(b"".join(parts) + draw(st.sampled_from([END, END, END, b"", bytes(BLOCK), END + b"junk"])))
    if whole and draw(st.integers(0, 3)) == 0:
        for at in draw(st.lists(st.integers(0, len(whole) - 1), max_size=2)):
            whole[at] ^= draw(st.integers(1, 255))
    if draw(st.integers(0, 5)) == 0:
        del whole[draw(st.integers(0, len(whole))) :]
    return bytes(whole)


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
        return ordinary_members(lambda length, at: os.pread(file.fileno(), length, at), len(raw)) is not None


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
        assert encoded_ids == [[one] for one in ids.tolist()]
