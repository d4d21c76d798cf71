"""Samples without an index: those of webdataset, or an error where webdataset is silently wrong."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import webdataset as wds
from hypothesis import given, settings
from hypothesis import strategies as st

from equitar.errors import ShardError, SourceError
from equitar.tar.stream import tar_samples
from equitar.tar.table import member_table
from equitar.tar.walk import walk
from helpers import odd_tars
from helpers.drawn_tars import nearly_ordinary
from helpers.odd_tars import END, folder, member, pax, two_samples
from helpers.shards import let_webdataset_close

pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed file:ResourceWarning"
)  # webdataset leaves closing to the collector

Sample = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    yield
    let_webdataset_close()


def given_before_error(path: Path) -> tuple[list[Sample], str]:
    """Return the samples of a shard, and the error after them."""
    samples: list[Sample] = []
    try:
        samples.extend(tar_samples()([str(path)]))
    except ShardError as error:
        return samples, str(error)
    return samples, ""


def _by_table(path: Path) -> list[Sample] | None:
    """Return what an index says of a shard, None if it refuses it."""
    with path.open("rb") as file:
        try:
            table = member_table(walk(file, size=path.stat().st_size, where=str(path), want=lambda _: True), str(path))
        except ShardError:
            return None
    return [
        {"__key__": key, "__url__": str(path), **content}
        for key, content in zip(table.keys, table.contents, strict=True)
    ]


@pytest.mark.parametrize("name", [name for case in odd_tars.CASES.values() for name in case.make()])
def test_odd_tars_give_the_samples_of_an_index_or_an_error(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(next(made[name] for case in odd_tars.CASES.values() if name in (made := case.make())))
    samples, error = given_before_error(path)
    expected = _by_table(path)
    assert samples == expected if expected is not None else error.startswith(str(path)), error


@given(nearly_ordinary())
@settings(max_examples=200)
def test_drawn_tars_give_the_samples_of_an_index_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "drawn.tar"
    path.write_bytes(raw)
    samples, error = given_before_error(path)
    expected = _by_table(path)
    assert (samples == expected and not error) if expected is not None else bool(error), error


@given(st.lists(st.integers(0, 70_000), min_size=1, max_size=8), st.integers(0, 2))
@settings(max_examples=30)
def test_samples_of_all_sizes_are_those_of_webdataset(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], times: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "sizes.tar"
    with wds.TarWriter(str(path), encoder=False, mtime=[None, 7, 1.5][times]) as writer:
        for row, size in enumerate(sizes * 40):
            writer.write({"__key__": f"k{row}", "jpg": bytes([row % 251]) * size, "txt": b"t" * (row % 3)})
    theirs = list(wds.DataPipeline(wds.SimpleShardList([str(path)]), wds.tarfile_to_samples()))
    ours = list(wds.DataPipeline(wds.SimpleShardList([str(path)]), tar_samples()))
    assert ours == [{name: value for name, value in sample.items() if name != "__local_path__"} for sample in theirs]


def test_a_sample_is_given_before_the_whole_shard_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(b"".join(member(f"{row:05}.jpg", b"1") for row in range(5000)) + b"<html>" * 200)
    stream = tar_samples()([str(path)])
    assert next(stream)["__key__"] == "00000"
    samples, error = given_before_error(path)
    assert [sample["__key__"] for sample in samples] == [
        f"{row:05}" for row in range(4999)
    ]  # the last may lack members
    assert f"damaged at byte {5000 * 1024}: b'<html>" in error


@pytest.mark.parametrize(
    ("odd", "error"),
    [
        (member("00000.cls", b"0"), "key '00000' again"),
        (member("x.jpg", b"1") + member("x.JPG", b"2"), "field 'jpg' of key 'x' twice"),
        (member("./00003.jpg", b"1"), "keys './00003' and '00003'"),
        (member("x.__url__", b"1"), "a field '__url__'"),
        (member("x.jpg", b"1")[:-100], "damaged at byte"),
    ],
)
def test_what_is_wrong_far_behind_is_found_and_nothing_is_given_twice(odd: bytes, error: str, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(b"".join(member(f"{row:05}.jpg", b"1") for row in range(3000)) + odd + END)
    samples, message = given_before_error(path)
    keys = [sample["__key__"] for sample in samples]
    assert keys == [f"{row:05}" for row in range(len(keys))]
    assert len(keys) >= 2999
    assert error in message


def test_what_is_out_of_the_ordinary_far_behind_is_read_on(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    ordinary = b"".join(member(f"{row:05}.jpg", b"1") + member(f"{row:05}.cls", b"2") for row in range(700))
    path.write_bytes(folder("d/") + ordinary + pax({"path": "new.jpg"}) + member("old.jpg", b"3") + END)
    samples, error = given_before_error(path)
    assert not error
    assert [sample["__key__"] for sample in samples] == [*(f"{row:05}" for row in range(700)), "new"]


def test_shards_do_not_touch_each_other(tmp_path: Path) -> None:
    paths = odd_tars.build(tmp_path, "key_across_shards")
    stream = tar_samples()({"url": str(path)} for path in paths.values())
    assert [(sample["__key__"], sample["jpg"]) for sample in stream] == [("a", b"0a"), ("z", b"0z"), ("z", b"1z")]


def test_a_compressed_shard_is_read_through(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(gzip.compress(two_samples() + END))
    assert [sample["__key__"] for sample in tar_samples()([str(tmp_path / "x.tar")])] == ["a", "b"]


def test_the_stage_pickles_and_is_used_again(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(two_samples() + END)
    stage = pickle.loads(pickle.dumps(tar_samples()))
    for _ in range(2):
        assert [sample["__key__"] for sample in stage([str(tmp_path / "x.tar")])] == ["a", "b"]


def test_shards_elsewhere_are_refused_with_what_to_do() -> None:
    with pytest.raises(SourceError, match=r"got 's3://bucket/x.tar'; index its source, or read it by `wds\."):
        next(tar_samples()(["s3://bucket/x.tar"]))
