"""Members that are not plain files: hard links are resolved, others are counted; one archive in a shard; names that look alike."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

import equitar
from equitar.errors import ShardError
from equitar.loading.builders import exact
from equitar.sidecars.sidecar import read_sidecar
from equitar.stages import tar_samples
from equitar.tar.bulk import ordinary_members
from equitar.tar.table import MemberTable, read_table
from equitar.tar.walk import walk
from helpers.odd_tars import BLOCK, END, GNU, folder, gnu_long_name, member, padded, pax

Samples = dict[str, dict[str, bytes]]
ONE, TWO = member("a.jpg", b"img") + member("a.cls", b"3"), member("b.jpg", b"new") + member("b.cls", b"4")
LONG = "long/" * 30 + "a.jpg"


def link(name: str, target: str | bytes, kind: bytes = b"1") -> bytes:
    return member(name, kind=kind, link=target.encode() if isinstance(target, str) else target)


def long_link(target: str) -> bytes:
    body = target.encode() + b"\0"
    return member("././@LongLink", body, kind=b"K", magic=GNU)


def by_stream(path: Path) -> Samples:
    samples = list(tar_samples()([str(path)]))
    return {sample.pop("__key__"): {name: sample[name] for name in sample if name != "__url__"} for sample in samples}


def by_index(path: Path) -> Samples:
    """Index a shard, read it along a plan, and compare that with the bytes that the index saw."""
    source = equitar.Source("s", str(path))
    equitar.index(source, jobs=1, progress=False, force=True)
    samples: Samples = {}
    for (sample,) in exact([source], batch_size=1, collate_fn=list, rank=0, world_size=1):
        samples[sample["__key__"]] = {name: raw for name, raw in sample.items() if not name.startswith("__")}
    return samples


def table_of(path: Path) -> MemberTable:
    with path.open("rb", buffering=0) as file:
        return read_table(file, size=path.stat().st_size, where=path.name, fields=None)


def write(folder: Path, raw: bytes, name: str = "x.tar") -> Path:
    path = folder / name
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize(
    "raw",
    [
        ONE + link("b.jpg", "a.jpg") + member("b.cls", b"4") + END,
        ONE + link("b.jpg", "./a.jpg") + member("b.cls", b"4") + END,
        ONE + link("x.README", "a.cls")[:0] + pax({"linkpath": "a.jpg"}) + link("b.jpg", "cut") + member("b.cls", b"4") + END,
        ONE + long_link("a.jpg") + link("b.jpg", "cut") + member("b.cls", b"4") + END,
    ],
    ids=["plain", "dot slash", "PAX", "GNU"],
)  # fmt: skip
@pytest.mark.parametrize("compress", [False, True])
def test_a_hard_link_has_the_bytes_of_its_target(tmp_path: Path, raw: bytes, compress: bool) -> None:
    path = write(tmp_path, gzip.compress(raw) if compress else raw)
    expected = {"a": {"jpg": b"img", "cls": b"3"}, "b": {"jpg": b"img", "cls": b"4"}}
    assert by_stream(path) == expected
    table = table_of(path)
    assert table.contents == list(expected.values())
    assert (table.offset[2], table.size[2]) == (table.offset[0], table.size[0])
    assert table.special_members == 0
    if not compress:
        assert by_index(path) == expected


def test_links_to_links_and_to_long_names_are_followed(tmp_path: Path) -> None:
    raw = (
        gnu_long_name(LONG)
        + member("cut", b"img")
        + long_link(LONG)
        + link("b.jpg", "x")
        + link("c.jpg", "b.jpg")
        + END
    )
    assert [sample["jpg"] for sample in by_index(write(tmp_path, raw)).values()] == 3 * [b"img"]


@pytest.mark.parametrize("compress", [False, True])
def test_links_that_tarfile_writes_are_resolved_as_it_resolves_them(tmp_path: Path, compress: bool) -> None:
    (tmp_path / "a.jpg").write_bytes(os.urandom(70_000))
    (tmp_path / "a.txt").write_bytes(b"one")
    for key in "bcd":
        os.link(tmp_path / "a.jpg", tmp_path / f"{key}.jpg")
        (tmp_path / f"{key}.txt").write_bytes(key.encode() * 600)
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w:gz" if compress else "w") as tar:
        for file in sorted(tmp_path.glob("*.[jt][px][gt]")):
            tar.add(file, file.name)
    with tarfile.open(path) as tar:
        content = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
        assert sum(member.islnk() for member in tar) == 3
    expected = {key: {"jpg": content[f"{key}.jpg"], "txt": content[f"{key}.txt"]} for key in "abcd"}
    assert by_stream(path) == expected
    assert by_index(path) == expected


def test_labels_are_read_through_links_and_a_check_finds_the_shard_unchanged(tmp_path: Path) -> None:
    path = write(tmp_path, ONE + member("b.jpg", b"new") + link("b.cls", "a.cls"))  # without an end mark
    source = equitar.Source("s", str(path))
    equitar.index(source, labels="cls", jobs=1, progress=False)
    sidecar = read_sidecar(str(tmp_path / "x.presence.npz"), fix="x")
    assert sidecar.presence is not None
    assert sidecar.presence.ids.tolist() == [3, 3]
    equitar.check(source, jobs=1, progress=False)


OTHERS = (
    link("b.jpg", "a.jpg", b"2") + link("c.jpg", "later.jpg") + member("d.jpg", kind=b"3") + member("e.jpg", kind=b"6")
)


def test_other_links_and_devices_are_counted_and_named(tmp_path: Path) -> None:
    path = write(tmp_path, folder("d/") + ONE + OTHERS + link("later2.jpg", "d/", b"2") + TWO + END)
    table = table_of(path)
    assert (table.keys, table.special_members) == (["a", "b"], 5)
    assert table.notes == (
        "2 symbolic links ignored, such as 'b.jpg'",
        "1 hard links without a file of that name before them ignored, such as 'c.jpg'",
        "1 devices ignored, such as 'd.jpg'",
        "1 named pipes ignored, such as 'e.jpg'",
    )
    report = equitar.index(equitar.Source("s", str(path)), jobs=1, progress=False)
    assert report.sources[0].special_members == 5
    assert any("2 symbolic links ignored, such as 'b.jpg'" in note for note in report.sources[0].notes)
    assert list(by_stream(path)) == ["a", "b"]


@pytest.mark.parametrize("padding", [0, 18 * BLOCK, 3000 * BLOCK])
@pytest.mark.parametrize("compress", [False, True])
def test_a_second_archive_after_the_end_mark_is_an_error(tmp_path: Path, padding: int, compress: bool) -> None:
    raw = [ONE + END + bytes(padding), TWO + END]
    path = write(tmp_path, b"".join(map(gzip.compress, raw)) if compress else b"".join(raw))
    match = r"x\.tar is damaged at byte \d+.*: another tar begins with member b'b\.jpg' after the end of the first; .*--concatenate"
    with pytest.raises(ShardError, match=match):
        table_of(path)
    samples = []
    with pytest.raises(ShardError, match=match):
        samples += list(map(dict, tar_samples()([str(path)])))
    with pytest.raises(ShardError, match="another tar begins"):
        by_index(path)


@pytest.mark.parametrize("tail", [bytes(9000), b"junk" * 300, bytes(BLOCK) + b"junk" * 300])
def test_padding_and_junk_after_the_end_are_no_second_archive(tmp_path: Path, tail: bytes) -> None:
    path = write(tmp_path, ONE + END + tail)
    assert table_of(path).keys == list(by_stream(path)) == list(by_index(path)) == ["a"]


def test_padding_to_a_record_is_still_read_in_bulk() -> None:
    raw = (ONE + END).ljust(20 * BLOCK, b"\0")
    assert ordinary_members(lambda length, offset: raw[offset : offset + length], len(raw)) is not None


def test_a_field_without_a_name_is_noted(tmp_path: Path) -> None:
    path = write(tmp_path, ONE + member("b.", b"1") + member("c.", b"1") + END)
    assert "2 members end in a dot, so that their field has no name, such as 'b.'" in table_of(path).notes
    assert by_stream(path)["b"] == by_index(path)["b"] == {"": b"1"}


def test_keys_that_are_one_after_normalisation_are_noted(tmp_path: Path) -> None:
    composed, decomposed = "\u00e9", "e\u0301"
    path = write(tmp_path, member(f"{composed}.jpg", b"1") + member(f"{decomposed}.jpg", b"2") + ONE + END)
    assert f"1 keys equal another one after Unicode normalization (NFC), such as {decomposed!r}" in table_of(path).notes
    assert len(by_stream(path)) == len(by_index(path)) == 3


HIDDEN = ["__meta__.json", "d/__meta__.json", "._a.jpg", ".DS_Store", "d/.hidden.txt", "__meta__/a.json"]


@pytest.mark.parametrize("name", HIDDEN)
def test_a_hidden_member_does_not_split_a_sample(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, member("a.jpg", b"img") + member(name, b"{}") + member("a.cls", b"3") + TWO + END)
    expected = {"a": {"jpg": b"img", "cls": b"3"}, "b": {"jpg": b"new", "cls": b"4"}}
    assert by_stream(path) == by_index(path) == expected


def test_a_tar_of_hidden_members_alone_has_no_samples(tmp_path: Path) -> None:
    raw = b"".join(member(name, b"1") for name in HIDDEN) + END
    table = table_of(write(tmp_path, raw))
    assert (table.keys, by_stream(tmp_path / "x.tar")) == ([], {})


EMPTY_PATH = pax({"path": ""}, kind=b"g")
WITHOUT_SAMPLES = {
    "a global header and an empty path": EMPTY_PATH + member("h.jpg", b"1") + END,
    "a global header and an empty path, without an end": EMPTY_PATH + member("h.jpg", b"1"),
    "a gzip of nothing": gzip.compress(b""),
    "a gzip of a gzip": gzip.compress(gzip.compress(b"")),
    "a gzip of a block": gzip.compress(bytes(BLOCK)),
    "a zero block": bytes(BLOCK),
    "a global header": pax({"comment": "c"}, kind=b"g"),
    "a folder": folder("d/"),
    "a symbolic link": link("a.jpg", "b", b"2"),
    "no name": member("", b"1") + END,
    "less than a block": bytes(100),
    "nothing": b"",
}


@pytest.mark.parametrize("regroup", [False, True])
@pytest.mark.parametrize("form", WITHOUT_SAMPLES)
def test_index_and_stream_agree_on_a_shard_without_samples(tmp_path: Path, form: str, regroup: bool) -> None:
    def seen(read: Callable[[], int]) -> int | str:
        try:
            return read()
        except ShardError as error:
            return str(error).removeprefix("1 error in 1 shard: ")

    path = write(tmp_path, WITHOUT_SAMPLES[form])
    source = equitar.Source("s", str(path))
    streamed = seen(lambda: len(by_stream(path)))
    indexed = seen(lambda: equitar.index(source, regroup=regroup, jobs=1, progress=False).sources[0].samples)
    assert indexed == streamed
    assert streamed == 0 or form in ("nothing", "less than a block", "a gzip of a gzip")
    assert streamed != 0 or equitar.check(source, jobs=1, progress=False) == []


def test_the_walk_of_a_file_that_cannot_seek_refuses_links_it_cannot_follow() -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    raw = ONE + link("b.jpg", "a.jpg") + END
    assert [member.name for member in walk(Pipe(raw), size=None, where="x")] == ["a.jpg", "a.cls", "b.jpg"]
    with pytest.raises(ShardError, match="hard link"):
        list(walk(Pipe(raw), size=None, where="x", want=lambda _: True))


def test_long_text_in_links_is_padded() -> None:
    assert len(long_link(LONG)) == BLOCK + len(padded(LONG.encode()))
