"""Are sources the same from S3, from memory and from ``file:``? Against a real server of S3's protocol on the loopback."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import fsspec
import pytest
from click.testing import CliRunner
from moto.server import ThreadedMotoServer

import equitar
from equitar.cli.app import main
from equitar.errors import ShardMismatchError, SidecarError, SourceError, StaleSidecarError, StorageError
from equitar.loading.batches import execution_of
from equitar.sources import Cache, Retries, Source
from helpers.shards import flat, indexed, keys_of, write_tars

QUICK = Retries(patience=0.5, first_wait=0.01, longest_wait=0.02, stall=5.0, recheck=0.0)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def tars(tmp_path: Path) -> list[Path]:
    return [Path(path) for path in write_tars(tmp_path, "s", [12, 12, 12])]


@pytest.fixture
def s3(endpoint: str, tars: list[Path]) -> Iterator[Source]:
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="a-key",
        aws_secret_access_key="a-secret",
    )
    client.create_bucket(Bucket="bucket")
    for path in tars:
        client.put_object(Bucket="bucket", Key=f"deep/{path.name}", Body=path.read_bytes())
    options = {
        "key": "a-key",
        "secret": "a-secret",
        "client_kwargs": {"endpoint_url": endpoint, "region_name": "us-east-1"},
    }
    yield Source("s", "s3://bucket/deep/{000..002}.tar", storage_options=options)
    for entry in client.list_objects_v2(Bucket="bucket").get("Contents", []):
        client.delete_object(Bucket="bucket", Key=entry["Key"])
    client.delete_bucket(Bucket="bucket")


@pytest.fixture
def memory(tars: list[Path]) -> Iterator[Any]:
    files = fsspec.filesystem("memory")
    for path in tars:
        files.pipe_file(f"/bucket/{path.name}", path.read_bytes())
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def batches_of(source: Source, **more: Any) -> Any:
    return equitar.debiased([source], batch_size=4, shuffle=12, **{"rank": 0, "world_size": 1, **more})


def contents(batches: Any) -> list[Any]:
    return [(batch["__key__"], batch["txt"], batch["cls"]) for batch in batches]


@pytest.fixture
def expected(tars: list[Path]) -> list[Any]:
    return contents(batches_of(indexed(Source("s", [str(path) for path in tars]))))


def test_shards_sidecars_and_summaries_are_in_s3(s3: Source, expected: list[Any]) -> None:
    indexed(s3)
    assert contents(batches_of(s3)) == expected
    assert equitar.check(s3, jobs=1, progress=False) == []
    globbed = Source("s", "s3://bucket/deep/*.tar", storage_options=s3.storage_options, retries=QUICK)
    assert contents(batches_of(globbed)) == expected


def test_workers_read_from_s3(s3: Source) -> None:
    indexed(s3)
    loader = equitar.Loader(batches_of(s3), num_workers=2)
    assert sorted(flat(loader)) == keys_of("s", 36)


def test_a_shard_replaced_in_s3_is_found(s3: Source, tars: list[Path]) -> None:
    s3 = indexed(replace(s3, retries=QUICK))
    files = fsspec.filesystem("s3", **dict(s3.storage_options or {}))
    reading = iter(batches_of(s3, read_ahead=0))
    next(reading)
    for path in tars:
        files.pipe_file(f"bucket/deep/{path.name}", path.read_bytes()[::-1])
    with pytest.raises(ShardMismatchError, match=r"\d\.tar was changed while it was read"):
        list(reading)
    files.pipe_file("bucket/deep/001.tar", b"short")
    with pytest.raises(
        StaleSidecarError, match=r"001\.tar has 5 bytes but its sidecar was made of \d+; run `equitar index"
    ):
        list(batches_of(s3))
    files.rm_file("bucket/deep/001.tar")
    with pytest.raises(SourceError, match=r"001\.tar of source 's' is missing"):
        list(batches_of(s3))


def test_keys_of_s3_are_not_shown(s3: Source) -> None:
    batches = batches_of(indexed(s3))
    shown = repr(s3) + repr(execution_of(batches).request) + repr(equitar.Loader(batches).state_dict())
    assert "a-secret" not in shown
    assert "a-key" not in shown


def test_lists_indexes_labels_and_classes_are_read_with_the_options_of_the_source(s3: Source, tars: list[Path]) -> None:
    files = fsspec.filesystem("s3", **dict(s3.storage_options or {}))
    files.pipe_file("bucket/deep/sizes.json", b'{"000.tar": 12, "001.tar": 12, "002.tar": 13}')
    files.pipe_file("bucket/labels.tsv", "".join(f"{key}\tcat\n" for key in keys_of("s", 36)).encode())
    files.pipe_file("bucket/classes.txt", b"dog\ncat\n")
    sizes = "s3://bucket/deep/sizes.json"
    (report,) = equitar.index(
        s3,
        labels_from="s3://bucket/labels.tsv",
        classes="s3://bucket/classes.txt",
        offsets_from=sizes,
        jobs=1,
        progress=False,
    ).sources
    assert report.notes == ("36 samples joined to s3://bucket/labels.tsv by key",)
    assert equitar.check(s3, jobs=1, progress=False, against=sizes) == [
        f"s3://bucket/deep/002.tar has 12 samples but 13 by {sizes}"
    ]
    other = indexed(Source("here", str(tars[0])))
    with pytest.raises(
        SourceError, match=r"sizes\.json is read with the `storage_options` .* the same for s, here; index"
    ):
        equitar.check([s3, other], jobs=1, progress=False, against=sizes)


def test_the_command_line_takes_options_from_the_configuration_of_fsspec(
    s3: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = fsspec.filesystem("s3", **dict(s3.storage_options or {}))
    files.pipe_file("bucket/deep/sizes.json", b'{"000.tar": 12, "001.tar": 12, "002.tar": 12}')
    monkeypatch.setitem(fsspec.config.conf, "s3", dict(s3.storage_options or {}))
    words = ["s=s3://bucket/deep/*.tar", "--quiet", "--jobs", "1"]
    assert CliRunner().invoke(main, ["index", *words, "--labels", "cls"]).exit_code == 0
    checked = CliRunner().invoke(main, ["check", *words, "--against", "s3://bucket/deep/sizes.json"])
    assert checked.output == "OK: 3 sidecars match their shards, and s3://bucket/deep/sizes.json\n"
    planned = CliRunner().invoke(main, ["plan", "s=s3://bucket/deep/s.summary.json", "--batch-size", "4"])
    assert planned.exit_code == 0


@pytest.mark.parametrize("read_ahead", [0, 1 << 20])
def test_memory_is_a_store_like_any(memory: Any, expected: list[Any], read_ahead: int) -> None:
    source = indexed(Source("s", "memory://bucket/*.tar", retries=QUICK))
    assert memory.exists("/bucket/000.presence.npz")
    assert contents(batches_of(source, read_ahead=read_ahead)) == expected


def test_file_urls_are_local_files(tars: list[Path], expected: list[Any]) -> None:
    assert contents(batches_of(indexed(Source("s", [f"file://{path}" for path in tars])))) == expected


def test_a_change_in_memory_is_found(memory: Any) -> None:
    source = indexed(Source("s", "memory://bucket/*.tar", retries=QUICK))
    reading = iter(batches_of(source, read_ahead=0))
    next(reading)
    for name in ("000", "001", "002"):
        memory.pipe_file(f"/bucket/{name}.tar", memory.cat_file(f"/bucket/{name}.tar")[::-1])
    with pytest.raises(ShardMismatchError, match="was changed while it was read"):
        list(reading)


def test_a_missing_sidecar_in_a_store_names_the_command(memory: Any) -> None:
    with pytest.raises(
        SidecarError, match=r"000\.presence\.npz is missing .* run `equitar index 's=memory://bucket/\*\.tar'`"
    ):
        list(batches_of(Source("s", "memory://bucket/*.tar")))


def test_shards_of_one_base_name_do_not_meet_in_a_folder_of_sidecars_or_in_a_cache(memory: Any, tmp_path: Path) -> None:
    for folder in ("A", "B"):
        (path,) = write_tars(tmp_path, folder, [6])
        memory.pipe_file(f"/two/{folder}/000.tar", Path(path).read_bytes())
    sources = [
        Source(
            name,
            f"memory://two/{name}/000.tar",
            root="memory://two",
            sidecars=str(tmp_path / "mirror"),
            cache=str(tmp_path / "c"),
        )
        for name in ("A", "B")
    ]
    equitar.index(sources, labels="cls", jobs=1, progress=False)
    assert (tmp_path / "mirror" / "B" / "000.presence.npz").exists()
    keys = flat(equitar.debiased(sources, batch_size=1, rank=0, world_size=1))
    assert sorted(keys) == sorted([*keys_of("A", 6), *keys_of("B", 6)])
    assert len([path for path in (tmp_path / "c").iterdir() if path.name.endswith("-000.tar")]) == 2


def test_gzip_in_a_store_is_inflated(memory: Any, expected: list[Any]) -> None:
    for name in ("000", "001", "002"):
        memory.pipe_file(f"/bucket/{name}.tar", gzip.compress(memory.cat_file(f"/bucket/{name}.tar")))
    source = indexed(Source("s", "memory://bucket/*.tar", retries=QUICK))
    assert contents(batches_of(source)) == expected


def test_a_cache_is_bounded_and_goes_on(memory: Any, tmp_path: Path, expected: list[Any]) -> None:
    size = len(memory.cat_file("/bucket/000.tar"))
    folder = tmp_path / "cache"
    source = indexed(Source("s", "memory://bucket/*.tar", retries=QUICK, cache=Cache(str(folder), 2 * size)))
    assert contents(batches_of(source)) == expected
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 2 * size
    assert not list(folder.glob("*.partial"))


def test_a_shard_larger_than_the_cache_is_read_by_range(memory: Any, tmp_path: Path, expected: list[Any]) -> None:
    source = indexed(Source("s", "memory://bucket/*.tar", retries=QUICK, cache=Cache(str(tmp_path / "cache"), 100)))
    assert contents(batches_of(source)) == expected
    assert not list((tmp_path / "cache").glob("*.tar"))


def test_a_cache_serves_a_new_version_after_indexing_again(memory: Any, tmp_path: Path) -> None:
    source = indexed(Source("s", "memory://bucket/000.tar", retries=QUICK, cache=str(tmp_path / "cache")))
    first = contents(batches_of(source))
    raw = memory.cat_file("/bucket/000.tar")
    memory.pipe_file("/bucket/000.tar", raw.replace(b"text of", b"TEXT OF"))  # of equal size
    again = contents(batches_of(source))
    assert [key for key, _, _ in again] == [key for key, _, _ in first]
    assert all(text.startswith(b"TEXT OF") for _, texts, _ in again for text in texts)


def test_pipes_are_kept_in_a_cache(tars: list[Path], tmp_path: Path, expected: list[Any]) -> None:
    ran = tmp_path / "ran"
    urls = [f"pipe:echo x >> {ran}; cat {path}" for path in tars]
    source = indexed(Source("s", urls, cache=str(tmp_path / "cache")))
    for _ in range(2):
        assert contents(batches_of(source)) == expected
    assert len(ran.read_text().split()) == 6  # once for the index, once for the cache


def test_a_store_that_is_away_is_an_error(s3: Source, tmp_path: Path) -> None:
    indexed(s3)
    options = {
        **(s3.storage_options or {}),
        "client_kwargs": {"endpoint_url": "http://127.0.0.1:9", "region_name": "us-east-1"},
    }
    away = Source("s", s3.urls, storage_options=options, retries=Retries(patience=0.5, stall=0.5))
    from equitar.reading.reader import Reader, open_shards
    from equitar.sidecars.catalog import catalog_of

    catalog = catalog_of([s3])
    sidecars = catalog.sidecars[0]
    sidecars(0)
    sidecars.source = away
    with pytest.raises(StorageError, match=r"s3://bucket/deep/000\.tar did not give bytes") as raised:
        Reader(sidecars, open_shards(), fields=None, copy=True).read(0, 0)
    assert "a-secret" not in str(raised.value)
