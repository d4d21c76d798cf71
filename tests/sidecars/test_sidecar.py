"""Does a sidecar come back as it was, and is a damaged one always told as such?"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import json
import random
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equitar.errors import SidecarError
from equitar.presence import Presence
from equitar.sidecars.container import Arrays, pack, unpack
from equitar.sidecars.sidecar import (
    ClassNames,
    Sidecar,
    digest_of,
    from_bytes,
    read_sidecar,
    sidecar_of,
    to_bytes,
    write_sidecar,
)
from equitar.sources import Source
from equitar.tar.table import MemberTable, member_table
from equitar.tar.walk import walk
from helpers import odd_tars

GOLDEN = """
UEsDBBQAAAAIAAAAIQCCFDf59gAAAGwBAAAIAAAAbWV0YS5ucHmdkEtOxDAMhoctp6i8KUhB6mPaoTkAOxAbFghQlSZOySiTlridBcOcggvjIE6AF5b8
2f79+H54un98vtgcN6fcIOmYyyz/WstcZLmd4hJV6KdoMPE75QmZ07uakeOrqm7FtcjO2b/t8gTaK6LeGQL5Uu5EV4ib8k384aAOmBKg1QICxvi6FoVt
kzcWmYQpIHC5cSPSAhJulems7bbGDHqr27rTpm22Q1fzsk25q7jHOvS/42A/j5BGUZLgcw8qSeDH6hYVM3IGtYpc4dWAvqcZNaf3NAWZegTwJ6LpyX0i
yKasCibeaVSDZ7DEFQUcMZKbAsjy/ANQSwMEFAAAAAgAAAAhAJ0IKndGAAAAggAAAAgAAABrZXlzLm5weZvsF+obEMnIUMZQrZ6SWpxcpG6loF5Taqiu
o6Cell9UUpSYF59flJIKEndLzClOBYoXZyQWpAL5GkY6mjoKtQoUAK7EJABQSwMEFAAAAAgAAAAhANhTbMZGAAAAggAAAA8AAABrZXlfbGVuZ3Rocy5u
cHmb7BfqGxDJyFDGUK2eklqcXKRupaBeU2qorqOgnpZfVFKUmBefX5SSChJ3S8wpTgWKF2ckFqQC+RpGOpo6CrUKFAAuRkYAUEsDBBQAAAAIAAAAIQCh
UUh0RgAAAIIAAAAPAAAAcm93X21lbWJlcnMubnB5m+wX6hsQychQxlCtnpJanFykbqWgXlNqqK6joJ6WX1RSlJgXn1+UkgoSd0vMKU4FihdnJBakAvka
RjqaOgq1ChQALiYmAFBLAwQUAAAACAAAACEAigDmhEgAAACEAAAAEAAAAG1lbWJlcl9maWVsZC5ucHmb7BfqGxDJyFDGUK2eklqcXKRupaBeU2qorqOg
npZfVFKUmBefX5SSChJ3S8wpTgWKF2ckFqQC+RomOpo6CrUKFAAuBkYGRgBQSwMEFAAAAAgAAAAhAJP8m8RIAAAAiAAAAA4AAABtZW1iZXJfZ2FwLm5w
eZvsF+obEMnIUMZQrZ6SWpxcpG6loG5TaqSuo6Cell9UUpSYF59flJIKEndLzClOBYoXZyQWpAL5GiY6mjoKtQoUAC4GJggEAFBLAwQUAAAACAAAACEA
/QRPzkgAAACEAAAADwAAAG1lbWJlcl9zaXplLm5weZvsF+obEMnIUMZQrZ6SWpxcpG6loF5Taqiuo6Cell9UUpSYF59flJIKEndLzClOBYoXZyQWpAL5
GiY6mjoKtQoUAC5WRlZGAFBLAwQUAAAACAAAACEAGwBB7UYAAACCAAAADgAAAHJvd19sYWJlbHMubnB5m+wX6hsQychQxlCtnpJanFykbqWgXlNqqK6j
oJ6WX1RSlJgXn1+UkgoSd0vMKU4FihdnJBakAvkaRjqaOgq1ChQALiZGAFBLAwQUAAAACAAAACEA1VtYtEcAAACDAAAADQAAAGxhYmVsX2lkcy5ucHmb
7BfqGxDJyFDGUK2eklqcXKRupaBek2morqOgnpZfVFKUmBefX5SSChJ3S8wpTgWKF2ckFqQC+RrGOpo6CrUKFAAuwaj/AFBLAwQUAAAACAAAACEAnG/r
dkcAAACDAAAAEAAAAGxhYmVsX2NvdW50cy5ucHmb7BfqGxDJyFDGUK2eklqcXKRupaBeU2qorqOgnpZfVFKUmBefX5SSChJ3S8wpTgWKF2ckFqQC+RrG
Opo6CrUKFAAuJkZGAFBLAQIUAxQAAAAIAAAAIQCCFDf59gAAAGwBAAAIAAAAAAAAAAAAAACkAQAAAABtZXRhLm5weVBLAQIUAxQAAAAIAAAAIQCdCCp3
RgAAAIIAAAAIAAAAAAAAAAAAAACkARwBAABrZXlzLm5weVBLAQIUAxQAAAAIAAAAIQDYU2zGRgAAAIIAAAAPAAAAAAAAAAAAAACkAYgBAABrZXlfbGVu
Z3Rocy5ucHlQSwECFAMUAAAACAAAACEAoVFIdEYAAACCAAAADwAAAAAAAAAAAAAApAH7AQAAcm93X21lbWJlcnMubnB5UEsBAhQDFAAAAAgAAAAhAIoA
5oRIAAAAhAAAABAAAAAAAAAAAAAAAKQBbgIAAG1lbWJlcl9maWVsZC5ucHlQSwECFAMUAAAACAAAACEAk/ybxEgAAACIAAAADgAAAAAAAAAAAAAApAHk
AgAAbWVtYmVyX2dhcC5ucHlQSwECFAMUAAAACAAAACEA/QRPzkgAAACEAAAADwAAAAAAAAAAAAAApAFYAwAAbWVtYmVyX3NpemUubnB5UEsBAhQDFAAA
AAgAAAAhABsAQe1GAAAAggAAAA4AAAAAAAAAAAAAAKQBzQMAAHJvd19sYWJlbHMubnB5UEsBAhQDFAAAAAgAAAAhANVbWLRHAAAAgwAAAA0AAAAAAAAA
AAAAAKQBPwQAAGxhYmVsX2lkcy5ucHlQSwECFAMUAAAACAAAACEAnG/rdkcAAACDAAAAEAAAAAAAAAAAAAAApAGxBAAAbGFiZWxfY291bnRzLm5weVBL
BQYAAAAACgAKAFICAAAmBQAAAAA=
"""
GOLDEN_CONTENT = "f6532ecaa4d071494de106e5dfec7baeb7b5600b9f06e56a4f346d957c06c2c5"
GOLDEN_DIGEST = "8ad9ff94ddbc4c639cd654b932365172"


def _sidecar(
    raw: bytes, presence: Presence | None = None, class_names: ClassNames | None = None, label_spec: str = ""
) -> Sidecar:
    table = member_table(walk(io.BytesIO(raw), size=len(raw), where="x.tar"), "x.tar")
    return sidecar_of(table, shard_size=len(raw), presence=presence, class_names=class_names, label_spec=label_spec)


def _golden() -> Sidecar:
    presence = Presence.of([[17, 90, 17], [-1]])
    return _sidecar(
        odd_tars.two_samples() + odd_tars.END, presence, ((17, 90, -1), ("cat", "größe", "none")), "json:cls"
    )


def _same(sidecar: Sidecar, other: Sidecar) -> bool:
    return to_bytes(sidecar) == to_bytes(other) and list(sidecar.keys) == list(other.keys)


def _arrays(raw: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


# ---------------------------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("case", [case for case in odd_tars.CASES.values() if isinstance(case.right, dict)], ids=lambda case: case.name)  # fmt: skip
def test_every_readable_odd_tar_has_a_sidecar_that_comes_back(case: odd_tars.Case) -> None:
    for raw in case.make().values():
        sidecar = _sidecar(raw)
        again = from_bytes(to_bytes(sidecar), where="x")
        assert list(again.keys) == list(sidecar.keys) == list(case.right)
        for column in ("indptr", "field", "offset", "size"):
            assert getattr(again.table, column).tolist() == getattr(sidecar.table, column).tolist()
            assert getattr(again.table, column).dtype == np.int64
        assert list(again.table.fields) == list(sidecar.table.fields)
        assert again.table.sliceable == sidecar.table.sliceable
        assert again.shard_size == len(raw)
        assert again.digest == sidecar.digest == digest_of(again.table, again.presence)


KEYS = st.lists(st.text("ab\n\0é猫\udc80\udcff/.", min_size=1, max_size=9), unique=True, max_size=8)
LABELS = st.lists(st.integers(-3, 1 << 40), max_size=4)


@given(st.data(), KEYS)
def test_any_keys_fields_sizes_and_labels_come_back(data: st.DataObject, keys: list[str]) -> None:
    lengths = [data.draw(st.integers(1, 3)) for _ in keys]
    indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    size = np.array([data.draw(st.integers(0, 1 << 33)) for _ in range(indptr[-1])], np.int64)
    gap = np.array([data.draw(st.sampled_from([512, 1536, 1 << 20])) for _ in size], np.int64)
    offset = np.cumsum(gap + (size + 511 & -512)) - (size + 511 & -512)
    sidecar = Sidecar(
        table=MemberTable(
            keys=keys,
            indptr=indptr,
            fields=("jpg", "cls\udcf6"),
            field=np.array([data.draw(st.integers(0, 1)) for _ in size], np.int64),
            offset=offset,
            size=size,
            sliceable=data.draw(st.booleans()),
        ),
        presence=data.draw(st.none() | st.just(Presence.of([data.draw(LABELS) for _ in keys]))),
        class_names=data.draw(st.none() | st.just(((3, -1), ("c\nat", "")))),
        label_spec=data.draw(st.sampled_from(["", "json:a[].b", "größe"])),
        shard_size=1 << 50,
        digest="0" * 32,
    )
    again = from_bytes(to_bytes(sidecar), where="x")
    assert _same(again, sidecar)
    assert again.table.offset.tolist() == offset.tolist()
    assert again.class_names == sidecar.class_names
    if sidecar.presence is not None:
        assert again.presence is not None
        assert again.presence.ids.tolist() == sidecar.presence.ids.tolist()
        assert again.presence.counts.tolist() == sidecar.presence.counts.tolist()


def test_a_golden_file_is_read_for_ever() -> None:
    assert _same(from_bytes(base64.b64decode(GOLDEN), where="golden"), _golden())
    assert _golden().digest == GOLDEN_DIGEST


def test_what_is_written_is_what_was_written_before() -> None:
    content = hashlib.sha256()  # of what is compressed: compressors differ between builds of zlib
    for name, array in _arrays(to_bytes(_golden())).items():
        content.update(name.encode() + array)
    assert content.hexdigest() == GOLDEN_CONTENT


def test_equal_sidecars_have_equal_bytes_and_numpy_opens_them() -> None:
    raw = to_bytes(_golden())
    assert to_bytes(from_bytes(raw, where="x")) == raw
    with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
        assert arrays["row_members"].tolist() == [2, 2]
        assert arrays["member_gap"].tolist() == [512] * 4
        assert arrays["label_ids"].dtype == np.int8
        assert json.loads(arrays["meta"].tobytes())["format"] == "equitar sidecar"


def test_files_written_by_numpy_are_read() -> None:
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **unpack(to_bytes(_golden())))
    assert _same(from_bytes(file.getvalue(), where="x"), _golden())


def test_a_sidecar_is_far_below_one_percent_of_its_shard() -> None:
    rng = np.random.default_rng(0)
    raw = b"".join(
        odd_tars.member(f"{row:08d}.jpg", rng.bytes(int(rng.integers(3000, 5000))))
        + odd_tars.member(f"{row:08d}.cls", b"7")
        for row in range(300)
    )
    presence = Presence.of(rng.integers(0, 1000, (300, 3)).tolist())
    assert len(to_bytes(_sidecar(raw + odd_tars.END, presence))) < 0.005 * len(raw)


def test_columns_for_a_selection() -> None:
    sidecar = _golden()
    assert sidecar.num_rows == 2
    assert sidecar.sizes.tolist() == [6, 6]
    assert _sidecar(bytes(1024)).sizes.tolist() == []


def test_the_digest_tells_tables_and_labels_apart() -> None:
    sidecar, golden = _golden(), _golden().table
    changes: list[dict[str, Any]] = [
        {"keys": ["a", "c"]},
        {"keys": ["", "ab"]},
        {"indptr": np.array([0, 1, 4])},
        {"fields": ("cls", "jpg")},
        {"offset": golden.offset + 512},
        {"size": golden.size + 1},
        {"sliceable": False},
    ]
    tables = [golden, *(dataclasses.replace(golden, **change) for change in changes)]
    digests = {digest_of(table, sidecar.presence) for table in tables}
    digests |= {
        digest_of(golden, labels) for labels in (None, Presence.of([[17, 90], [-1]]), Presence.of([[17], [-1]]))
    }
    assert len(digests) == 11


def test_other_labels_need_no_walk() -> None:
    relabelled = sidecar_of(
        _golden().table, shard_size=_golden().shard_size, presence=None, class_names=None, label_spec=""
    )
    assert _same(relabelled, _sidecar(odd_tars.two_samples() + odd_tars.END))


# --------------------------------------------------------------------------------------------------------------- damage


def _u1(*numbers: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.array(numbers, np.uint8)


def _meta(**changes: object) -> Any:
    meta = json.loads(unpack(to_bytes(_golden()))["meta"].tobytes()) | changes
    return np.frombuffer(json.dumps(meta).encode(), np.uint8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"meta": _u1(*b"{")}, "`meta` is not JSON"),
        ({"meta": _u1(*b"[" * 100_000)}, "`meta` is not JSON"),
        ({"meta": _u1(*b"[]")}, "its format is \\[\\] but must be"),
        ({"meta": _meta(version=2)}, "'version': 2}? but must be .*'version': 1"),
        ({"meta": _meta(format="equitar summary")}, "'equitar summary'"),
        ({"meta": _meta(shard_size="big")}, "`shard_size` must be an integer"),
        ({"meta": _meta(shard_size=True)}, "`shard_size` must be an integer"),
        ({"meta": _meta(shard_size=-1)}, "members must end within"),
        ({"meta": _meta(shard_size=100)}, "members must end within the 100 bytes"),
        ({"meta": _meta(digest="xyz")}, "32 hex digits"),
        ({"meta": _meta(sliceable=1)}, "`sliceable` must be a bool"),
        ({"meta": _meta(label_spec=None)}, "`label_spec` a text"),
        ({"meta": _meta(fields="jpg")}, "a list of texts is expected but there is 'jpg'"),
        ({"meta": _meta(fields=["jpg", "jpg"])}, "has a duplicate"),
        ({"meta": _meta(fields=["jpg", ["cls"]])}, "a list of texts is"),
        ({"meta": _meta(fields=["jpg"])}, r"`field` must be in \[0, 1\)"),
        ({"meta": _meta(class_ids=[1])}, "3 class names have the ids"),
        ({"meta": _meta(class_ids=[1, 2, "3"])}, "3 class names have the ids"),
        ({"meta": _meta(class_ids=[1, 1, 2])}, "3 class names have the ids"),
        ({"meta": _meta(class_ids=None)}, "3 class names have the ids"),
        ({"keys": _u1(97)}, "its texts have 1 bytes"),
        ({"key_lengths": _u1(1, 2)}, "its texts have 2 bytes"),
        ({"key_lengths": _u1(2)}, "`indptr` must run from 0 to 4 over 1 rows"),
        ({"key_lengths": np.array([3, -1])}, "length of a row is negative"),
        ({"row_members": _u1(1, 2)}, "`indptr` must run from 0 to 4"),
        ({"row_members": _u1(4, 0)}, "each row must have a member"),
        ({"row_members": np.array([1 << 60, 1 << 60], np.uint64)}, "length of a row is negative or absurd"),
        ({"member_field": _u1(0, 1, 0, 2)}, r"`field` must be in \[0, 2\)"),
        ({"member_field": _u1(0, 1, 0)}, "`indptr` must run from 0 to 3"),
        ({"member_gap": _u1(1, 1, 1)}, "its 3 gaps and 4 sizes"),
        ({"member_gap": np.array([1 << 62] * 4)}, "gaps and 4 sizes of members are impossible"),
        ({"member_size": np.array([1 << 63] * 4, np.uint64)}, "more than 63 bits"),
        ({"member_size": np.array([1 << 40] * 4)}, "members must end within"),
        ({"row_labels": _u1(2, 2)}, "`indptr` must run from 0"),
        ({"row_labels": _u1(3), "label_ids": _u1(1, 2, 3)}, "there must be labels for 2 rows"),
        ({"label_ids": _u1(90, 17, 3)}, "label ids must rise within a row"),
        ({"label_ids": _u1(17, 17, 3)}, "label ids must rise within a row"),
        ({"label_counts": _u1(1, 0, 1)}, "counts be at least 1"),
        ({"label_counts": _u1(1, 1)}, "`counts` must have one entry"),
        *(({name: None}, "it holds .* but must hold meta, keys") for name in unpack(to_bytes(_golden()))),
        ({"more": _u1(1)}, "it holds .*, more but must hold"),
        ({"meta": np.frombuffer(b'{"format":"equitar sidecar","version":1}', np.uint8)}, "`meta` has no 'shard_size'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_a_sidecar_error(changes: dict[str, Any], message: str) -> None:
    arrays: Arrays = {
        name: array for name, array in (unpack(to_bytes(_golden())) | changes).items() if array is not None
    }
    with pytest.raises(SidecarError, match=rf"^x.npz is damaged: .*{message}.*; run `equitar index`$"):
        from_bytes(pack(arrays), where="x.npz")


def test_a_damaged_file_is_a_sidecar_error_or_unharmed() -> None:
    raw = to_bytes(_golden())
    rng = random.Random(0)
    for _ in range(1200):
        damaged = bytearray(raw)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(raw))] = rng.randrange(256)
        try:
            again = from_bytes(bytes(damaged), where="x")
        except SidecarError:
            continue
        assert _same(again, _golden())  # dates, flags and the like are of no matter


def test_a_cut_file_is_a_sidecar_error() -> None:
    raw = to_bytes(_golden())
    for length in range(0, len(raw), 7):
        for damaged in (raw[:length], raw[length + 1 :]):
            with pytest.raises(SidecarError, match="x is damaged"):
                from_bytes(damaged, where="x")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
@pytest.mark.parametrize(
    "plain",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x01\x00v\x00{'descr': '<u8', 'fortran_order': False, 'shape': (99999999999999999,), }\n",
        b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n12345678",
        b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }\n12345678",
        b"\x93NUMPY\x01\x00v\x00{'descr': '<u8', 'fortran_order': False, 'shape': (1, 1), }\n12345678",
    ],
)
def test_entries_that_are_no_arrays_of_integers_are_refused(plain: bytes, method: int) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("meta.npy", plain)
    with pytest.raises(SidecarError, match=r"x is damaged: its entry 'meta.npy'"):
        from_bytes(file.getvalue(), where="x")


def test_a_bomb_reserves_no_memory() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("meta.npy", bytes(100_000_000))
    tracemalloc.start()
    with pytest.raises(SidecarError, match="x is damaged"):
        from_bytes(file.getvalue(), where="x")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


# ----------------------------------------------------------------------------------------------------------------- files


def test_files_appear_whole_and_leave_nothing_beside_them(tmp_path: Path) -> None:
    url = str(tmp_path / "mirror/a/x.presence.npz")
    write_sidecar(url, _golden())
    write_sidecar(url, _golden())
    assert _same(read_sidecar(url, fix="run it"), _golden())
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["x.presence.npz"]


def test_a_missing_sidecar_is_an_error_with_the_command_that_makes_it(tmp_path: Path) -> None:
    source = Source("cc3m", "/data/{0..9}.tar", sidecars="/side cars")
    url = str(tmp_path / "x.presence.npz")
    mend = r"run `equitar index 'cc3m=/data/\{0\.\.9\}\.tar' --sidecars '/side cars'`"
    with pytest.raises(SidecarError, match=rf"x\.presence\.npz is missing but every shard needs a sidecar; {mend}$"):
        read_sidecar(url, fix=source.index_command())
    Path(url).write_bytes(b"<html>")
    with pytest.raises(
        SidecarError, match=rf"is damaged: its 6 bytes begin with b'<html>', so it is not an .npz file; {mend}$"
    ):
        read_sidecar(url, fix=source.index_command())


def test_the_command_of_a_long_list_stays_short() -> None:
    source = Source("s", [f"{number}.tar" for number in range(9)])
    assert source.index_command(label_spec="json:a[]") == (
        "run `equitar index s=0.tar s=1.tar s=2.tar --labels 'json:a[]'` (and 6 more patterns)"
    )
