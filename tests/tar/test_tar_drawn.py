"""The walk gives the samples that webdataset 1.0.2 gives: over drawn tars of all formats."""

from __future__ import annotations

import gzip
import io
import tarfile
from typing import Any

import webdataset as wds
from hypothesis import given, settings
from hypothesis import strategies as st

from equitar.errors import ShardError
from equitar.tar.grouping import split_name
from equitar.tar.table import member_table
from equitar.tar.walk import walk

Samples = list[tuple[str, dict[str, bytes]]]

WORDS = st.text("aZ09_- é猫\udcf6\n", min_size=1, max_size=6)
LONG = st.integers(0, 3).map(lambda times: "long folder name/" * 40 * times)
KEYS = st.builds(lambda root, folder, long, base: root + folder + long[:300] + base, st.sampled_from(["", "", "./", "/", "../"]), st.sampled_from(["", "d/", "v1.0/", "a b/c/"]), LONG, WORDS)  # fmt: skip
FIELDS = st.sampled_from(["jpg", "JPG", "cls", "json", "seg.png", "0.5.txt", ""])
CONTENTS = st.binary(max_size=1200)
ROWS = st.lists(st.tuples(KEYS, st.dictionaries(FIELDS, CONTENTS, min_size=1, max_size=4)), max_size=6)
STRANGERS = st.sampled_from(["README", "v1.0/LICENSE", "__meta__/a.json", "__x__", ""])
FORMATS = st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
TIMES = st.sampled_from([0, 1700000000, 1700000000.25, 1.5])


@st.composite
def tars(draw: st.DrawFn) -> bytes:
    """A tar as Python's tarfile writes it, with folders and files between that belong to no sample."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=draw(FORMATS), errors="surrogateescape") as tar:
        for key, fields in draw(ROWS):
            for field, content in fields.items():
                if stranger := draw(STRANGERS):
                    _add(tar, stranger, b"text", draw(TIMES), tarfile.REGTYPE)
                if draw(st.booleans()):
                    _add(
                        tar,
                        "folder",
                        b"",
                        0,
                        draw(st.sampled_from([tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE])),
                    )
                _add(
                    tar,
                    f"{key}.{field}",
                    content,
                    draw(TIMES),
                    draw(st.sampled_from([tarfile.REGTYPE, tarfile.AREGTYPE])),
                )
    return file.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, time: float, kind: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.type = len(content), time, kind
    try:
        tar.addfile(member, io.BytesIO(content))
    except ValueError:
        assert tar.format == tarfile.USTAR_FORMAT  # which has no room for the longest names


def _by_webdataset(raw: bytes) -> Samples | None:
    """Return what webdataset makes of a tar; None where it finds a field twice."""
    files = wds.tariterators.tar_file_expander([{"url": "x.tar", "stream": io.BytesIO(raw)}])
    try:
        samples: list[dict[str, Any]] = list(wds.tariterators.group_by_keys(files))
    except ValueError as error:
        _raise_unless(error, "duplicate file name")
        return None
    return [(sample.pop("__key__"), {name: sample[name] for name in sample if name != "__url__"}) for sample in samples]


def _raise_unless(error: ValueError, *reasons: str) -> None:
    """Let no other error count as the expected one."""
    if not any(reason in str(error) for reason in reasons):
        raise error


def _by_offsets(raw: bytes) -> Samples | None:
    """Return what our table says of a tar; None where we refuse how its members are grouped."""
    try:
        table = member_table(walk(io.BytesIO(raw), size=len(raw), where="x.tar"), "x.tar")
    except ShardError as error:
        _raise_unless(error, "twice", "again at byte", "name the same file")
        return None
    spans = zip(table.field.tolist(), table.offset.tolist(), table.size.tolist(), strict=True)
    data = [(table.fields[field], raw[offset : offset + size]) for field, offset, size in spans]
    rows = zip(table.keys, table.indptr, table.indptr[1:], strict=False)
    return [(key, dict(data[begin:end])) for key, begin, end in rows]


def _is_misgrouped(samples: Samples) -> bool:
    """Whether webdataset made two samples of one without a word."""
    keys = [key for key, _ in samples]
    return len({key.removeprefix("./") for key in keys}) < len(keys)


def _check(raw: bytes) -> None:
    theirs = _by_webdataset(raw)
    ours = _by_offsets(raw)
    assert ours == (None if theirs is None or _is_misgrouped(theirs) else theirs)


@given(tars())
@settings(max_examples=100)
def test_samples_are_those_of_webdataset(raw: bytes) -> None:
    _check(raw)


@given(
    st.dictionaries(
        WORDS, st.dictionaries(st.sampled_from(["jpg", "cls.txt", "bin"]), CONTENTS, min_size=1), max_size=6
    )
)
@settings(max_examples=50)
def test_samples_written_by_webdataset_come_back(rows: dict[str, dict[str, bytes]]) -> None:
    file = io.BytesIO()
    with wds.TarWriter(file, encoder=False) as writer:
        for key, fields in rows.items():
            writer.write({"__key__": key, **fields})
    raw = file.getvalue()
    _check(raw)
    assert _by_offsets(raw) == [(key, dict(sorted(fields.items()))) for key, fields in rows.items()]


@given(tars(), st.booleans())
@settings(max_examples=50)
def test_the_walk_gives_the_bytes_that_lie_at_its_offsets(raw: bytes, compressed: bool) -> None:
    file = io.BytesIO(gzip.compress(raw, 1) if compressed else raw)
    for member in walk(file, size=None, where="x.tar", want=lambda _: True):
        assert member.data == raw[member.offset : member.offset + member.size]


@given(tars(), st.data())
@settings(max_examples=100)
def test_a_damaged_tar_gives_a_shard_error_or_members_within_the_file(raw: bytes, data: st.DataObject) -> None:
    damaged = bytearray(raw)
    for position in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=4)):
        damaged[position] ^= data.draw(st.integers(1, 255))
    damaged = damaged[: data.draw(st.integers(0, len(raw)))]
    try:
        table = member_table(walk(io.BytesIO(damaged), size=len(damaged), where="x.tar"), "x.tar")
    except ShardError as error:
        _raise_unless(error, "x.tar ")
    else:
        assert (table.offset + table.size <= len(damaged)).all()


@given(st.text("a._-/\n _ZÉ\udcf6", max_size=14))
@settings(max_examples=500)
def test_names_split_as_in_webdataset_but_for_hidden_files(name: str) -> None:
    key, field = wds.tariterators.base_plus_ext(name)
    is_meta = name.startswith("__") and split_name(name) is None
    is_hidden = name.rpartition("/")[2].startswith(".")
    if not is_meta:
        assert split_name(name) == (None if key is None or is_hidden else (key, field.lower()))
