"""What becomes of damaged shards? An error, or lost samples: whole ones, substituted and listed, and nothing else changes."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import webdataset as wds

import equitar
from equitar.errors import PlanError, ShardMismatchError, SourceError, StaleSidecarError, StorageError
from equitar.sources import Retries, Source
from helpers.shards import Drops, flat, indexed, keys_of, over_ranks, source_of, write_tars

QUICK = Retries(patience=0.01, first_wait=0.001)
SIZES = (20, 20, 20)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return indexed(Source("s", write_tars(tmp_path, "s", SIZES)))


def shard(source: Source, number: int) -> Path:
    return Path(source.urls[number])


def cut(path: Path, share: float) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * share)])


def loader_of(source: Source, handler: Any, **more: Any) -> equitar.Loader:
    return equitar.Loader(
        equitar.debiased([source], batch_size=4, shuffle=16, handler=handler, rank=0, world_size=1, **more)
    )


def lost_keys(loader: equitar.Loader) -> set[str]:
    return {sample.key for sample in loader.counters()["lost_samples"]}


def test_damage_is_an_error_with_shard_and_mend_by_default(source: Source) -> None:
    cut(shard(source, 1), 0.5)
    with pytest.raises(
        StaleSidecarError, match=r"001\.tar has \d+ bytes but its sidecar was made of \d+; run `equitar index"
    ):
        list(loader_of(source, None))


def test_an_error_page_in_place_of_a_shard_is_shown(source: Source) -> None:
    shard(source, 1).write_bytes(b"<html>404</html>")
    with pytest.raises(StaleSidecarError, match=r"has 16 bytes and begins with b'<html>404</html>'"):
        list(loader_of(source, None))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_of_a_cut_shard_the_whole_samples_before_the_cut_come_and_the_others_are_lost(
    source: Source, num_workers: int
) -> None:
    cut(shard(source, 1), 0.5)
    batches = equitar.debiased([source], batch_size=4, shuffle=16, handler="skip_sample", rank=0, world_size=1)
    loader = equitar.Loader(batches, num_workers=num_workers)
    keys = flat(loader)
    lost = lost_keys(loader)
    assert len(keys) == 60
    assert lost == set(keys_of("s", 60)) - set(keys)
    whole = sorted(set(keys_of("s", 60)[20:40]) & set(keys))
    assert whole == keys_of("s", 60)[20 : 20 + len(whole)]
    assert 5 <= len(whole) <= 12
    assert loader.counters()["lost"] == {"s": len(lost)}
    assert {sample.path for sample in loader.counters()["lost_samples"]} == {"001.tar"}


def test_what_is_not_lost_stays_at_its_place(source: Source) -> None:
    whole = flat(loader_of(source, None))
    cut(shard(source, 1), 0.5)
    loader = loader_of(source, "skip_sample")
    keys = flat(loader)
    lost = lost_keys(loader)
    assert [key for key, planned in zip(keys, whole, strict=True) if planned not in lost] == [
        key for key in whole if key not in lost
    ]
    assert not lost & set(keys)


def test_ranks_stay_equal_when_one_of_them_loses_samples(source: Source) -> None:
    cut(shard(source, 0), 0.3)
    batches = equitar.debiased([source], batch_size=4, shuffle=16, handler="skip_sample", rank=0, world_size=2)
    ranks = over_ranks(batches, 2)
    assert [len(rank) for rank in ranks] == [7, 7]
    for step in zip(*ranks, strict=True):
        assert Counter(key for batch in step for key in batch["__key__"]).most_common(1)[0][1] == 1


def test_skipping_shards_loses_all_of_a_damaged_one_and_nothing_else(source: Source) -> None:
    cut(shard(source, 1), 0.9)
    loader = loader_of(source, "skip_shard")
    keys = flat(loader)
    assert len(keys) == 60
    assert lost_keys(loader) == set(keys_of("s", 60)[20:40])
    assert set(keys) == set(keys_of("s", 60)) - lost_keys(loader)


def test_a_missing_shard_is_lost(source: Source) -> None:
    shard(source, 2).unlink()
    with pytest.raises(SourceError, match=r"002\.tar of source 's' is missing"):
        list(loader_of(source, None))
    loader = loader_of(source, "skip_sample")
    list(loader)
    assert lost_keys(loader) == set(keys_of("s", 60)[40:])


def test_a_shard_replaced_by_another_gives_none_of_its_samples(source: Source, tmp_path: Path) -> None:
    write_tars(tmp_path, "t", [31])
    shard(source, 1).write_bytes((tmp_path / "t" / "000.tar").read_bytes())
    loader = loader_of(source, "skip_sample")
    assert {source_of(key) for key in flat(loader)} == {"s"}
    assert lost_keys(loader) == set(keys_of("s", 60)[20:40])


def test_a_handler_of_webdataset_is_asked_once_for_each_shard(source: Source) -> None:
    cut(shard(source, 1), 0.5)
    cut(shard(source, 2), 0.5)
    asked: list[Exception] = []

    def handler(error: Exception) -> bool:
        asked.append(error)
        return True

    loader = loader_of(source, handler)
    assert len(flat(loader)) == 60
    assert len(asked) == 2
    loader = loader_of(source, wds.ignore_and_continue)
    assert len(flat(loader)) == 60
    with pytest.raises(StaleSidecarError):
        list(loader_of(source, wds.reraise_exception))
    with pytest.raises(StaleSidecarError):  # a plan has no early end
        list(loader_of(source, wds.ignore_and_stop))


def test_lost_and_dropped_are_told_apart_and_make_a_keep_file(source: Source, tmp_path: Path) -> None:
    cut(shard(source, 1), 0.5)
    loader = loader_of(source, "skip_sample", stages=[Drops(20)])
    keys = flat(loader)
    report = loader.counters()
    dropped = {sample.key for sample in report["dropped_samples"]}
    assert dropped
    assert all(Drops(20).drops(key) for key in dropped)
    assert not dropped & lost_keys(loader)
    count = equitar.write_exclusions(report, "s", str(tmp_path / "bad.txt"))
    assert count == len(dropped | lost_keys(loader))
    assert f"001.tar\t{min(lost_keys(loader))}" in (tmp_path / "bad.txt").read_text().splitlines()
    kept = Source("s", source.urls, keep=f"!{tmp_path / 'bad.txt'}")
    again = loader_of(kept, "skip_sample")
    assert set(flat(again)) <= set(keys)
    assert not again.counters()["lost_samples"]


def test_validation_leaves_the_places_of_lost_samples_empty(source: Source) -> None:
    cut(shard(source, 1), 0.5)
    loader = equitar.Loader(equitar.exact([source], batch_size=8, handler="skip_sample", rank=0, world_size=1))
    keys = [key for batch in loader if batch for key in batch["__key__"]]
    assert len(keys) == 60 - len(lost_keys(loader))
    assert keys == sorted(keys)


def test_where_all_is_lost_there_is_an_error(source: Source) -> None:
    for number in range(3):
        shard(source, number).unlink()
    with pytest.raises(
        equitar.errors.StageError, match=r"one could not be read of source 's' .* no other sample .* of 00\d\.tar"
    ):
        list(loader_of(source, "skip_shard"))


def test_a_wrong_policy_is_named(source: Source) -> None:
    with pytest.raises(PlanError, match=r"`handler` must be None, 'skip_sample', 'skip_shard' .*got 'skip'"):
        equitar.debiased([source], batch_size=1, handler="skip")  # type: ignore[arg-type]


def gzipped(folder: Path, name: str, sizes: tuple[int, ...]) -> Source:
    for path in write_tars(folder, name, sizes):
        Path(path).write_bytes(gzip.compress(Path(path).read_bytes()))
    return indexed(Source(name, [str(folder / name / f"{number:03d}.tar") for number in range(len(sizes))]))


def test_shards_that_are_gzip_by_their_bytes_are_read(tmp_path: Path) -> None:
    source = gzipped(tmp_path, "g", SIZES)
    assert sorted(flat(loader_of(source, None))) == keys_of("g", 60)


def test_of_a_cut_gzip_the_samples_that_can_be_inflated_come(tmp_path: Path) -> None:
    source = gzipped(tmp_path, "g", (40, 40))
    cut(shard(source, 0), 0.6)
    with pytest.raises(StaleSidecarError):
        list(loader_of(source, None))
    loader = loader_of(source, "skip_sample")
    keys = flat(loader)
    came = set(keys) & set(keys_of("g", 80)[:40])
    assert 5 < len(came) < 40
    assert lost_keys(loader) == set(keys_of("g", 80)) - set(keys)


def test_a_gzip_of_equal_size_and_other_bytes_is_an_error(tmp_path: Path) -> None:
    source = gzipped(tmp_path, "g", SIZES)
    raw = bytearray(shard(source, 0).read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    shard(source, 0).write_bytes(raw)
    with pytest.raises(ShardMismatchError, match=r"000\.tar is damaged after \d+ decompressed bytes"):
        list(loader_of(source, None))


def piped(folder: Path, command: str, sizes: tuple[int, ...] = SIZES) -> Source:
    urls = [f"pipe:{command.format(path)}" for path in write_tars(folder, "p", sizes)]
    return indexed(Source("p", urls, retries=QUICK))


def children() -> Iterator[str]:
    import os

    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                stat = (path / "stat").read_text()
            except OSError:
                continue
            if stat.rpartition(")")[2].split()[1] == str(os.getpid()):
                yield path.name


def test_pipes_are_indexed_and_read(tmp_path: Path) -> None:
    assert sorted(flat(loader_of(piped(tmp_path, "cat {}"), None))) == keys_of("p", 60)


def test_pipes_of_compressed_shards_are_read(tmp_path: Path) -> None:
    assert sorted(flat(loader_of(piped(tmp_path, "gzip -c {} | cat"), None))) == keys_of("p", 60)


def test_200_early_stops_leave_no_child_no_file_and_no_word(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = piped(tmp_path, "cat {}", (3, 3))
    files, processes = len(list(Path("/proc/self/fd").iterdir())), set(children())
    for _ in range(200):
        reading: Any = iter(equitar.mixed([source], batch_size=1, shuffle=1, rank=0, world_size=1))
        next(reading)
        reading.close()
    assert len(list(Path("/proc/self/fd").iterdir())) <= files  # what other tests left may be closed meanwhile
    assert set(children()) <= processes
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("end", ["; exit 7", "|| true; true"])
def test_a_command_that_fails_is_never_a_normal_end(tmp_path: Path, end: str) -> None:
    source = piped(tmp_path, "cat {}")
    path = Path(str(source.urls[0]).removeprefix("pipe:cat "))
    half = path.with_name("half")
    half.write_bytes(path.read_bytes())
    for length in random.Random(0).sample(range(1024, 40_000, 512), 40):
        bad = Source(
            "p", [f"pipe:head -c {length} {path} {end}", *source.urls[1:]], root=str(path.parent), retries=QUICK
        )
        with pytest.raises((StorageError, StaleSidecarError), match=r"exit status 7|bytes but its sidecar"):
            list(loader_of(bad, None))


def test_what_a_failing_command_said_is_told(tmp_path: Path) -> None:
    source = piped(tmp_path, "cat {}", (3,))
    path = str(source.urls[0]).removeprefix("pipe:cat ")
    bad = Source(
        "p", [f"pipe:echo 'no such bucket' >&2; cat {path}; exit 3"], root=str(Path(path).parent), retries=QUICK
    )
    with pytest.raises(
        StorageError, match=r"ended with exit status 3 after \d+ bytes and the message 'no such bucket'"
    ):
        list(equitar.mixed([bad], batch_size=1, rank=0, world_size=1))


def test_two_damaged_shards_do_not_mix_their_samples(tmp_path: Path) -> None:
    """A19: a sample is of one shard, whatever happened to the one before."""
    folder = tmp_path / "k"
    folder.mkdir()
    for number in range(2):
        with wds.TarWriter(str(folder / f"{number}.tar"), mtime=0) as writer:
            for row in range(10):
                writer.write({"__key__": f"same{row}", "txt": f"{number}", "cls": number})
    source = indexed(Source("k", str(folder / "*.tar")))
    cut(folder / "0.tar", 0.52)
    loader = equitar.Loader(equitar.mixed([source], batch_size=1, handler="skip_sample", rank=0, world_size=1))
    for batch in loader:
        assert batch["txt"][0].decode() == batch["cls"][0].decode() == Path(batch["__url__"][0]).stem
