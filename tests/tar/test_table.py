"""Walk and member table: good tars are read, bad ones are errors with shard and byte."""

from __future__ import annotations

import gzip
import io
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import webdataset as wds

from equitar.errors import ShardError
from equitar.tar.grouping import split_name, wants_fields
from equitar.tar.table import MemberTable, member_table
from equitar.tar.walk import walk
from helpers import odd_tars
from helpers.odd_tars import BLOCK, END, GNU, USTAR, base256, gnu_long_name, header, member, padded, pax, two_samples

Samples = dict[str, dict[str, bytes]]


def _everything(_name: str) -> bool:
    return True


def _table(raw: bytes, want: Callable[[str], bool] | None = _everything, *, seekable: bool = True) -> MemberTable:
    file = io.BytesIO(raw) if seekable else OnlyForward(raw)
    return member_table(walk(file, size=len(raw) if seekable else None, where="x.tar", want=want), "x.tar")


def _samples(table: MemberTable) -> Samples:
    return dict(zip(table.keys, table.contents, strict=True))


def _sliced(raw: bytes, table: MemberTable) -> Samples:
    """Read each member at its offset, as a reader by member table does."""
    samples: Samples = {}
    for row, key in enumerate(table.keys):
        members = range(table.indptr[row], table.indptr[row + 1])
        samples[key] = {
            table.fields[table.field[entry]]: raw[table.offset[entry] : table.offset[entry] + table.size[entry]]
            for entry in members
        }
    return samples


class OnlyForward(io.BytesIO):
    """A file that cannot seek, such as a response over the network."""

    def seekable(self) -> bool:
        return False

    def seek(self, *_: object) -> int:
        raise io.UnsupportedOperation("seek")


FILES = [(case, name) for case in odd_tars.CASES.values() for name in case.make()]
READ = {  # what we do where the list leaves a choice, or shows a file of which only a sidecar can say more
    "key_across_shards-0.tar": {"a": {"jpg": b"0a"}, "z": {"jpg": b"0z", "cls": b"0"}},
    "key_across_shards-1.tar": {"z": {"jpg": b"1z", "cls": b"1"}},
    "cut_then_same_key-1.tar": {"z": {"cls": b"1", "jpg": b"1z"}},
    "trunc_boundary.tar": odd_tars.TWO,
    "gz_as_tar.tar": odd_tars.TWO,
}
REFUSED = {
    "huge_declared.tar": r"damaged at byte 4096: member b'c.npy' declares 9663676416 bytes .* but 512 are left",
    "dot_slash_mixed.tar": r"keys './a' and 'a', at bytes 512 and 1536, which name the same file",
    "case_clash.tar": r"field 'jpg' of key 'a' twice, at bytes 512 and 1536 \('a.jpg'\)",
    "dup_member.tar": r"field 'jpg' of key 'a' twice, at bytes 512 and 2560 \('a.jpg'\)",
    "not_adjacent.tar": r"key 'a' again at byte 2560 \('a.cls'\), after byte 512 and with key 'b' between",
    "cut_then_same_key-0.tar": r"damaged at byte 2048: member b'z.cls' declares 5000 bytes from byte 2560 but 512 are left",
    "zero_length.tar": r"is empty \(0 bytes\) but a shard must be a tar; copy or download",
    "trunc_in_sample.tar": r"without an end mark, and its last sample 'b' has no cls but all others do",
    "trunc_data.tar": r"damaged at byte 2048: member b'b.jpg' declares 2000 bytes from byte 2560 but 1024 are left",
    "trunc_header.tar": r"damaged at byte 4096: only 300 of the 512 bytes of a header are left, b'c.jpg'",
    "trunc_padding.tar": r"damaged at byte 3072: member b'b.cls' declares 1 bytes from byte 3584 but 412 are left",
    "bad_checksum.tar": r"damaged at byte 2048: the header b'c.jpg' has checksum 10457 but its bytes give 10460",
    "html_page.tar": r"is not a tar: b'<html><head><title>503 Service Unavailab' is not a header",
    "html_middle.tar": r"damaged at byte 2048: b'<html>504 Gateway Time-out</html>",
    "gz_truncated.tar.gz": r"damaged at byte \d+ of its decompressed stream: its compressed bytes are truncated",
}


@pytest.mark.parametrize("seekable", [True, False])
@pytest.mark.parametrize(("case", "name"), FILES, ids=[name for _, name in FILES])
def test_each_odd_tar_gives_its_samples_or_an_error_with_place(case: odd_tars.Case, name: str, seekable: bool) -> None:
    raw = case.make()[name]
    if name in REFUSED:
        place = REFUSED[name] if seekable else REFUSED[name].replace("512 are", r"\w+ are").partition(" but ")[0]
        with pytest.raises(ShardError, match=rf"^x.tar .*{place}"):
            _table(raw, seekable=seekable)
        return
    table = _table(raw, seekable=seekable)
    right = READ.get(name, case.right)
    assert _samples(table) == right
    assert table.keys == list(right)
    if table.sliceable:
        assert _sliced(raw, table) == right


def test_every_error_of_the_list_is_expected_by_name() -> None:
    errors = {name for case, name in FILES if isinstance(case.right, str) and case.right.startswith("error")}
    assert errors - set(REFUSED) == {"cut_then_same_key-1.tar"}  # intact: its neighbour is cut


def test_a_declared_size_beyond_the_file_reserves_no_memory() -> None:
    raw = odd_tars.CASES["huge_declared"].make()["huge_declared.tar"]
    tracemalloc.start()
    for file in (raw, gzip.compress(raw)):
        with pytest.raises(ShardError, match="declares 9663676416 bytes"):
            _table(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000


def test_compressed_shards_are_not_sliceable_whatever_their_name() -> None:
    plain = two_samples() + END
    assert _table(plain).sliceable
    for packed in (gzip.compress(plain), gzip.compress(plain[:3000]) + gzip.compress(plain[3000:])):
        table = _table(packed)
        assert not table.sliceable
        assert _samples(table) == odd_tars.TWO


def test_a_compressed_shard_is_read_to_its_checksum() -> None:
    whole = gzip.compress(two_samples() + END + bytes(10_000))
    packed = bytearray(whole)
    packed[-6] ^= 1
    with pytest.raises(ShardError, match=r"compressed bytes are damaged .*incorrect data check"):
        _table(bytes(packed))
    with pytest.raises(ShardError, match="compressed bytes are truncated"):
        _table(whole[:-4])


def test_large_data_in_a_compressed_shard_arrive_whole() -> None:
    data = np.random.default_rng(0).bytes(300_000)
    raw = member("a.bin", data) + member("a.txt", b"t" * 200_000) + END
    for file in (gzip.compress(raw), gzip.compress(raw) + b"junk after it", raw):
        assert _samples(_table(file)) == {"a": {"bin": data, "txt": b"t" * 200_000}}


# ------------------------------------------------------------------------------------------------------------- headers


@pytest.mark.parametrize(
    ("raw", "samples"),
    [
        (gnu_long_name("n" * 120 + ".jpg") + member("n" * 100, b"1", magic=GNU), {"n" * 120: {"jpg": b"1"}}),
        (header(b"././@LongLink", 5, kind=b"K", magic=GNU) + padded(b"link\0") + member("a.jpg", b"1"), {"a": {"jpg": b"1"}}),
        (pax({"path": "new.jpg"}) + member("old.jpg", b"1"), {"new": {"jpg": b"1"}}),
        (pax({"path": "new.jpg"}, kind=b"X") + member("old.jpg", b"1"), {"new": {"jpg": b"1"}}),
        (pax({"linkpath": "elsewhere"}) + member("a.jpg", b"1"), {"a": {"jpg": b"1"}}),
        (pax({"path": "a.jpg"}) + member("x", b"1") + member("b.jpg", b"2"), {"a": {"jpg": b"1"}, "b": {"jpg": b"2"}}),
        (pax({"comment": "size=9"}) + member("a.jpg", b"1"), {"a": {"jpg": b"1"}}),
        (member("a.jpg", b"1") + header(b"a.lnk", 7, kind=b"1", link=b"a.jpg") + member("a.cls", b"2"), {"a": {"jpg": b"1", "lnk": b"1", "cls": b"2"}}),
        (member("a.jpg", b"1", size_field=b"000000000001"), {"a": {"jpg": b"1"}}),
        (member("a.jpg", b"1", size_field=b"          1 "), {"a": {"jpg": b"1"}}),
        (member("a.jpg", b"1", size_field=b"1\0\0\0\0\0\0\0\0\0\0\0"), {"a": {"jpg": b"1"}}),
        (member("a.vendor", b"12345", kind=b"D") + member("a.jpg", b"1"), {"a": {"jpg": b"1"}}),
        (member("a.jpg", b"1", magic=GNU, prefix=b"14751572634\0"), {"a": {"jpg": b"1"}}),
        (member("d/", b"", kind=b"\0", magic=odd_tars.V7) + member("a.jpg", b"1"), {"a": {"jpg": b"1"}}),
        (member(b"n" * 96 + b".jpg", b"1"), {"n" * 96: {"jpg": b"1"}}),
    ],
)  # fmt: skip
def test_headers_of_all_writers_are_read(raw: bytes, samples: Samples) -> None:
    table = _table(raw + END)
    assert _samples(table) == samples
    assert _sliced(raw, table) == samples


def _with_checksum(block: bytes, text: bytes) -> bytes:
    return block[:148] + text + block[156:]


def test_checksums_of_signed_bytes_and_in_other_spellings_are_accepted() -> None:
    block = header("größe.jpg".encode(), 0)
    total = sum(block[:148] + block[156:]) + 256
    signed = total - 256 * sum(byte > 127 for byte in block)
    for text in (b"%06o\0 " % signed, b"%07o\0" % total, b"%6o\0 " % total, b"%06o  " % total, b"%08o" % total):
        assert _table(_with_checksum(block, text) + END).keys == ["größe"]
    with pytest.raises(ShardError, match="has checksum"):
        _table(_with_checksum(block, b"%06o\0 " % (total + 1)) + END)


@pytest.mark.parametrize("position", [*range(0, 148, 7), *range(156, 512, 5)])
def test_a_changed_byte_of_a_header_is_found(position: int) -> None:
    raw = bytearray(two_samples() + END)
    raw[4 * BLOCK + position] ^= 0x11
    with pytest.raises(ShardError, match="damaged at byte 2048"):
        _table(bytes(raw))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (member("a.jpg", b"1") + bytes(BLOCK) + member("b.jpg", b"2") + END, r"byte 1024: two zero blocks end a tar but 512 bytes that begin with b'b.jpg'"),
        (member("a.jpg", b"1") + bytes(BLOCK) + bytes(100), r"byte 1024: two zero blocks end a tar but 100 bytes"),
        (member("a.jpg", b"1") + pax({"path": "b.jpg"}), r"byte 2048: the tar ends after an extended header"),
        (pax({"mtime": "1"}) + member("a.jpg", b"1") + pax({"mtime": "1"}) + END, r"ends after an extended header"),
        (member("a.jpg", b"1") + pax({"path": "b.jpg"})[:700], r"byte 1024: an extended header declares 14 bytes but"),
        (header(b"x", 1 << 30, kind=b"x"), r"extended header declares 1073741824 bytes but must not have more than 16777216"),
        (header(b"x", 20, kind=b"x") + padded(b"99 path=a.jpg\n"), r"PAX records hold b'99 path=a.jpg"),
        (header(b"x", 20, kind=b"x") + padded(b"no path=a.jpg\n"), r"PAX records hold b'no path"),
        (pax({"path": "a.jpg"}) + pax({"path": "b.jpg"}) + member("c.jpg", b"1"), r"byte 1024: two extended headers of one kind"),
        (pax({"mtime": "1.5"}) + member("a", b"") + pax({"mtime": "1.5"}) * 2 + member("b", b""), r"byte 2560: two extended headers"),
        (gnu_long_name("n" * 120) * 2 + member("b.jpg", b"1"), r"two extended headers of one kind follow each other"),
        (header(b"x", 5, kind=b"x") + padded(b"14 path=a.jpg\n") + member("b.jpg", b"1"), r"declares 5 bytes but its text continues with b'th=a.jpg"),
        (header(b"x", 12, kind=b"x") + padded(b"14 mtime=1.5") + member("b.jpg", b"1"), r"PAX records hold b'14 mtime=1.5'"),
        (header(b"x", 5, kind=b"L", magic=GNU) + padded(b"long/a.jpg\0") + member("b", b"1"), r"declares 5 bytes but its text continues with b'a.jpg"),
        (pax({"size": "-3"}) + member("a.jpg", b"1"), r"PAX size of b'a.jpg' is b'-3'"),
        (pax({"GNU.sparse.major": "1"}) + member("a.jpg", b"1"), r"b'a.jpg' is a sparse file"),
        (member("a.jpg", b"1", kind=b"S", magic=GNU), r"b'a.jpg' is a sparse file"),
        (header(b"a.jpg", size_field=b"\xff" * 12), r"negative size -1"),
        (header(b"a.jpg", size_field=b"-0000000001\0"), r"negative size -1"),
        (header(b"a.jpg", size_field=b"nonsense\0\0\0\0"), r"its size is b'nonsense"),
        (header(b"a.jpg", magic=GNU, size_field=base256(1 << 80, 12)), r"declares 1208925819614629174706176 bytes"),
        (b"<html>", r"is not a tar: only 6 of the 512 bytes of a header are left, b'<html>'"),
        (member("a.__key__", b"1") + END, r"field '__key__' at byte 512, a name that webdataset"),
    ],
)  # fmt: skip
def test_damage_is_an_error_with_shard_byte_and_what_was_found(raw: bytes, message: str) -> None:
    with pytest.raises(ShardError, match=rf"^x.tar .*{message}"):
        _table(raw)


@pytest.mark.parametrize("length", range(1, 4 * BLOCK, 97))
def test_a_tar_cut_anywhere_is_refused_or_known_to_lack_its_end(length: int) -> None:
    whole = two_samples()
    for raw in (whole[: 4 * BLOCK + length], gzip.compress(whole[: 4 * BLOCK + length])):
        walked = walk(io.BytesIO(raw), size=None, where="x.tar", want=None)
        if length % BLOCK == 0:
            assert len(list(walked)) == 4
            assert walked.has_end_mark is False
        else:
            with pytest.raises(ShardError, match=r"x.tar is damaged at byte"):
                list(walked)


def test_a_size_larger_than_the_file_is_no_clean_end() -> None:
    raw = two_samples()
    with pytest.raises(ShardError, match=f"the file ends here but should have {len(raw) + BLOCK}"):
        list(walk(io.BytesIO(raw), size=len(raw) + BLOCK, where="x.tar"))


def test_a_single_zero_block_at_the_end_is_a_clean_end_without_mark() -> None:
    walked = walk(io.BytesIO(two_samples() + bytes(BLOCK)), size=None, where="x.tar")
    assert walked.has_end_mark is None
    assert [member.name for member in walked] == ["a.jpg", "a.cls", "b.jpg", "b.cls"]
    assert walked.has_end_mark is False


def test_the_walk_reads_headers_and_skips_data(tmp_path: Path) -> None:
    class Counting(io.BytesIO):
        num_read = 0

        def read(self, size: int | None = -1, /) -> bytes:
            chunk = super().read(size)
            self.num_read += len(chunk)
            return chunk

    file = Counting(b"".join(member(f"{row}.jpg", bytes(1_000_000)) for row in range(20)) + END)
    assert len(list(walk(file, size=None, where="x.tar"))) == 20
    assert file.num_read < 300_000


# ---------------------------------------------------------------------------------------------------- names and grouping


@pytest.mark.parametrize(
    "name",
    ["a.jpg", "d/a.b.JPG", "v1.0/a", "v1.0/a.b/c.d.e", "./a.b", "/a.b", "a.", "a..b", "../b.c", "a\nb/c.d", "x.\n/c.jpg",
     "a.j\n", "__a__.jpg", "__a.b__", "__a__/b.c", "__a__b/c.d", "", "/", "a/", "no", "d.e/no", "\udcf6.\udcdf"],
)  # fmt: skip
def test_names_split_as_in_webdataset(name: str) -> None:
    is_meta = (name.startswith("__") and name.endswith("__")) or name.startswith(("__a__/", "__a__."))
    key, field = wds.tariterators.base_plus_ext(name)
    assert split_name(name) == (None if key is None or is_meta else (key, field.lower()))


@pytest.mark.parametrize("name", [".a.jpg", "d/.a.jpg", "d/._a.jpg", "._a.jpg", "d/..jpg"])
def test_hidden_files_are_no_members(name: str) -> None:
    assert split_name(name) is None


def test_a_meta_name_within_a_sample_is_passed_over_as_in_webdataset() -> None:
    table = _table(member("__a.jpg", b"1") + member("__a.b__", b"2") + member("__a.cls", b"3") + END)
    assert _samples(table) == {"__a": {"jpg": b"1", "cls": b"3"}}


def test_only_wanted_fields_are_read() -> None:
    raw = member("a.jpg", b"1") + member("a.CLS", b"2") + member("a.seg.cls", b"3") + END
    assert _samples(_table(raw, wants_fields(["cls"]))) == {"a": {"cls": b"2"}}
    assert _samples(_table(raw, None)) == {"a": {}}


@pytest.mark.parametrize(
    ("case", "notes"),
    [
        ("plain", []),
        ("apple_dir", ["2 hidden files ignored, such as 'd/._a.jpg'"]),
        ("dir_dot_noext", ["1 members that are not part of a sample ignored, such as 'v1.0/README'"]),
        ("dots_in_base", ["2 fields that start with a digit, such as '05.jpg': the first dot ends a key"]),
        ("empty_archive", ["no samples"]),
        ("trunc_boundary", ["no end mark: the tar may have been truncated"]),
    ],
)
def test_what_is_odd_but_legal_is_noted(case: str, notes: list[str]) -> None:
    assert list(_table(odd_tars.CASES[case].make()[f"{case}.tar"]).notes) == notes


def test_fields_that_differ_from_sample_to_sample_are_noted() -> None:
    raw = b"".join(member(f"track {row}.part{row}.mp3", b"1") for row in range(9)) + END
    assert _table(raw).notes == ("9 different fields, although no sample has more than 1",)


def test_a_table_of_no_samples_has_one_pointer() -> None:
    table = _table(bytes(1024))
    assert (table.keys, table.indptr.tolist(), len(table.offset)) == ([], [0], 0)


def test_ustar_magic_is_what_makes_a_prefix() -> None:
    assert _table(member("a.jpg", b"1", magic=USTAR, prefix=b"p") + END).keys == ["p/a"]
