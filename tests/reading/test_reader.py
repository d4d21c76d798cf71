"""One sample by the member table: what webdataset makes of the same tar, or an error; never the wrong bytes."""

from __future__ import annotations

import gzip
import os
import pickle
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import webdataset as wds

import equitar
from equitar.errors import ShardMismatchError, SourceError, StaleSidecarError
from equitar.loading.collate import columns
from equitar.reading.reader import Reader, open_shards
from equitar.sidecars.catalog import catalog_of
from equitar.sources import Source
from helpers.odd_tars import CASES, build
from helpers.shards import indexed, key_of, let_webdataset_close, write_source

pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed file:ResourceWarning"  # webdataset leaves closing to the collector
)

# Those that webdataset reads rightly, by the list that comes with them.
RIGHT = [
    "plain",
    "gnu_longname",
    "pax_longname",
    "pax_mtime_each",
    "pax_global",
    "pax_size",
    "ustar_prefix",
    "v7",
    "base256_size",
    "contiguous_type",
    "volume_label",
    "dir_dot",
    "dir_between",
    "multi_ext",
    "upper_ext",
    "empty_member",
    "utf8_raw",
    "odd_chars",
    "latin1_raw",
    "dot_slash",
]


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Any:
    yield
    let_webdataset_close()


def reader_of(source: Source, *, fields: list[str] | None = None, copy: bool = True) -> Reader:
    return Reader(catalog_of([source]).sidecars[0], open_shards(), fields=fields, copy=copy)


def all_of(reader: Reader, num_rows: int, shard: int = 0) -> list[dict[str, Any]]:
    return [reader.read(shard, row) for row in range(num_rows)]


def write_members(path: Path, members: list[tuple[str, bytes]]) -> Source:
    with tarfile.open(path, "w") as archive:
        for name, raw in members:
            member = tarfile.TarInfo(name)
            member.size = len(raw)
            archive.addfile(member, BytesIO(raw))
    return indexed(Source("s", str(path)), labels=None)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return write_source(tmp_path, "a", [5, 4])


def test_the_list_of_odd_tars_has_these() -> None:
    assert set(RIGHT) <= set(CASES)


@pytest.mark.filterwarnings("ignore::UserWarning")  # names of odd tars are pointed out when they are indexed
@pytest.mark.parametrize("case", RIGHT)
def test_samples_are_those_of_webdataset(case: str, tmp_path: Path) -> None:
    (path,) = build(tmp_path, case).values()
    source = indexed(Source("s", str(path)), labels=None)
    theirs = [
        {field: value for field, value in sample.items() if field != "__local_path__"}
        for sample in wds.DataPipeline(wds.SimpleShardList([str(path)]), wds.tarfile_to_samples())
    ]
    assert all_of(reader_of(source), len(theirs)) == theirs


def test_rows_are_read_in_any_order(source: Source) -> None:
    reader = reader_of(source)
    wanted = [(1, 3), (0, 4), (1, 0), (0, 0)]
    assert [reader.read(*place)["__key__"] for place in wanted] == [key_of("a", number) for number in (8, 4, 5, 0)]


def test_a_sample_is_a_dict_of_its_own(source: Source) -> None:
    reader = reader_of(source)
    reader.read(0, 0).clear()
    assert reader.read(0, 0)["__key__"] == "a-0000"


def test_fields_are_bytes(source: Source) -> None:
    assert type(reader_of(source).read(0, 0)["txt"]) is bytes


def test_views_are_read_only(source: Source) -> None:
    assert reader_of(source, copy=False).read(0, 0)["txt"].readonly


def test_views_hold_the_same_bytes(source: Source) -> None:
    assert bytes(reader_of(source, copy=False).read(0, 3)["txt"]) == reader_of(source).read(0, 3)["txt"]


@pytest.mark.parametrize("copy", [False, True])
def test_views_outlive_the_reader(copy: bool, source: Source) -> None:
    reader = reader_of(source, copy=copy)
    text = reader.read(0, 3)["txt"]
    reader.close()
    assert bytes(text) == b"text of a-0003"


def test_fields_are_chosen_whatever_their_case(source: Source) -> None:
    assert set(reader_of(source, fields=["TXT"]).read(0, 0)) == {"__key__", "__url__", "txt"}


def test_a_sample_without_a_chosen_field_is_read_without_it(tmp_path: Path) -> None:
    source = write_members(tmp_path / "s.tar", [("a.txt", b"1"), ("b.txt", b"2"), ("b.json", b"{}")])
    assert [set(sample) - {"__key__", "__url__"} for sample in all_of(reader_of(source, fields=["json"]), 2)] == [
        set(),
        {"json"},
    ]


def test_a_field_between_two_chosen_ones_does_not_come_along(tmp_path: Path) -> None:
    source = write_members(tmp_path / "s.tar", [("a.one", b"1"), ("a.big", b"x" * 200_000), ("a.two", b"2")])
    sample = reader_of(source, fields=["one", "two"]).read(0, 0)
    assert (sample["one"], sample["two"], "big" in sample) == (b"1", b"2", False)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted in /proc")
def test_few_shards_are_open_at_once_in_all_sources_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equitar.reading.reader.OPEN_SHARDS", 8)
    shelf = open_shards()
    sources = [write_source(tmp_path / name, name, [1] * 10) for name in "ab"]
    readers = [Reader(sidecars, shelf, fields=None, copy=True) for sidecars in catalog_of(sources).sidecars]
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for shard in range(10):
        for reader in readers:
            reader.read(shard, 0)
            reader.evict()
    assert len(os.listdir("/proc/self/fd")) - before == 8  # noqa: PTH208


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted in /proc")
@pytest.mark.parametrize("collate_fn", [columns, list])
@pytest.mark.parametrize("batch_size", [4, 64])
def test_shards_of_few_samples_do_not_use_files_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collate_fn: Callable[[Any], Any], batch_size: int
) -> None:
    monkeypatch.setattr("equitar.reading.reader.OPEN_SHARDS", 8)
    monkeypatch.setattr("equitar.loading.emitter.OPEN_SHARDS", 8)
    source = write_source(tmp_path, "a", [1] * 64)
    batches = equitar.debiased([source], batch_size=batch_size, collate_fn=collate_fn, rank=0, world_size=1)
    before, opened = len(os.listdir("/proc/self/fd")), 0  # noqa: PTH208
    for _ in batches:
        opened = max(opened, len(os.listdir("/proc/self/fd")) - before)  # noqa: PTH208
    assert 8 <= opened <= 2 * 8


def test_member_tables_of_open_shards_take_a_bounded_number_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_source(tmp_path, "a", [50] * 10)
    each = reader_of(source).open(0).num_bytes
    monkeypatch.setattr("equitar.reading.reader.OPEN_BYTES", 3 * each)
    reader = reader_of(source)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for shard in range(10):
        reader.read(shard, 0)
        reader.evict()
    assert len(os.listdir("/proc/self/fd")) - before == 3  # noqa: PTH208


def test_members_of_all_sizes_come_whole_alone_and_at_once(tmp_path: Path) -> None:
    members = [
        (f"{row:03}.{name}", bytes([row, position]) * size)
        for row in range(40)
        for position, (name, size) in enumerate(
            [("a", 3), ("big", 20_000 + row), ("b", 0), ("c", 7), ("large", 70_000)]
        )
    ]
    source = write_members(tmp_path / "s.tar", members)
    right = dict(members)
    alone = all_of(reader_of(source), 40)
    (batch,) = equitar.debiased([source], batch_size=40, rank=0, world_size=1)
    for name in ("a", "big", "b", "c", "large"):
        assert [sample[name] for sample in alone] == [right[f"{sample['__key__']}.{name}"] for sample in alone]
        assert batch[name] == [right[f"{key}.{name}"] for key in batch["__key__"]]


def test_closing_leaves_no_file_open(tmp_path: Path) -> None:
    reader = reader_of(write_source(tmp_path, "a", [1] * 5))
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for shard in range(5):
        reader.read(shard, 0)
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_closed_reader_reads_again(source: Source) -> None:
    reader = reader_of(source)
    reader.read(0, 0)
    reader.close()
    assert reader.read(0, 1)["__key__"] == "a-0001"


def test_an_open_reader_pickles(source: Source) -> None:
    reader = reader_of(source)
    first = reader.read(0, 0)
    assert pickle.loads(pickle.dumps(reader)).read(0, 0) == first


def test_a_shard_that_grew_is_stale(source: Source) -> None:
    path = Path(f"{source.root}/000.tar")
    path.write_bytes(path.read_bytes() + bytes(512))
    with pytest.raises(StaleSidecarError, match=r"a/000\.tar has \d+ bytes but .*run `equitar index"):
        reader_of(source).read(0, 0)


def test_a_shard_that_shrinks_while_it_is_open_is_an_error(source: Source) -> None:
    reader = reader_of(source)
    reader.read(0, 0)
    os.truncate(f"{source.root}/000.tar", 2048)
    with pytest.raises(ShardMismatchError, match=r"a/000\.tar ends at byte \d+ but its sidecar has data up to \d+"):
        reader.read(0, 4)


def test_a_stale_shard_stops_no_other(source: Source) -> None:
    os.truncate(f"{source.root}/000.tar", 2048)
    reader = reader_of(source)
    with pytest.raises(StaleSidecarError):
        reader.read(0, 0)
    assert reader.read(1, 0)["__key__"] == "a-0005"


def test_a_missing_shard_is_named(source: Source) -> None:
    reader = reader_of(source)
    Path(f"{source.root}/000.tar").unlink()
    with pytest.raises(SourceError, match=r"a/000\.tar .*source 'a'"):
        reader.read(0, 0)


def test_fields_that_no_sample_has_are_named(source: Source) -> None:
    with pytest.raises(
        SourceError, match=r"`fields` must name a field of each shard; got \['jpeg'\] but .* has cls, txt"
    ):
        reader_of(source, fields=["jpeg"]).read(0, 0)


def test_a_compressed_shard_gives_its_samples(source: Source) -> None:
    path = Path(f"{source.root}/000.tar")
    path.write_bytes(gzip.compress(path.read_bytes()))
    indexed(source)
    assert [reader_of(source).read(0, row)["txt"] for row in (3, 0)] == [b"text of a-0003", b"text of a-0000"]


def test_batches_read_at_once_are_those_read_one_by_one(tmp_path: Path) -> None:
    """Sources differ in fields and their order, a shard has rows of two kinds, and one is compressed."""
    first = write_members(
        tmp_path / "one.tar", [(f"{row:02}.{name}", b"1" * row) for row in range(30) for name in "ab"]
    )
    other = write_members(
        tmp_path / "two.tar", [(f"{row:02}.{name}", b"2" * row) for row in range(30) for name in "ba"]
    )
    odd = [(f"{row:02}.{name}", b"3" * row) for row in range(30) for name in ("ab" if row % 2 else "ba")]
    third = write_members(tmp_path / "three.tar", odd)
    packed = tmp_path / "four.tar.gz"
    packed.write_bytes(gzip.compress((tmp_path / "one.tar").read_bytes()))
    fourth = Source("four", str(packed))
    sources = [Source(str(number), source.urls) for number, source in enumerate((first, other, third, fourth))]
    equitar.index(sources, jobs=1, progress=False)
    for build_batches in (equitar.debiased, equitar.mixed):
        for copy in (True, False):
            at_once = build_batches(sources, batch_size=7, copy=copy, rank=0, world_size=1)
            alone = build_batches(sources, batch_size=7, copy=copy, collate_fn=columns_of, rank=0, world_size=1)
            assert list(map(plain, at_once)) == list(map(plain, alone))


def columns_of(samples: list[dict[str, Any]]) -> Any:
    return columns(samples)  # not the very function: then samples are read one by one


def plain(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: list(map(bytes, value)) if name in ("a", "b") else value for name, value in batch.items()}
