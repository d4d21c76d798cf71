"""Is a source over HTTP what it is on a disk, whatever the server does, and how much of it is fetched?"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import equitar
from equitar.errors import ReadOnlyError, StaleSidecarError, StorageError
from equitar.loading.batches import execution_of
from equitar.sources import Retries, Source
from helpers.fault_server import FAULTS, Site, serving, site_of
from helpers.shards import flat, indexed, keys_of, over_ranks, write_tars

QUICK = Retries(patience=0.5, first_wait=0.002, longest_wait=0.01, stall=0.15, recheck=0.0)
SIZES = (30, 30, 30)


@pytest.fixture
def local(tmp_path: Path) -> Source:
    return indexed(Source("s", write_tars(tmp_path, "s", SIZES)))


@pytest.fixture
def site(local: Source, tmp_path: Path) -> Iterator[Site]:
    with serving(site_of(tmp_path)) as server:
        server.stall = 0.4
        yield server


def source_at(site: Site, **more: Any) -> Source:
    return Source("s", f"{site.url}/s/{{000..002}}.tar", retries=QUICK, **more)


def batches_of(source: Source, **more: Any) -> Any:
    return equitar.debiased([source], batch_size=4, shuffle=20, **{"rank": 0, "world_size": 1, **more})


def contents(batches: Any) -> list[Any]:
    return [(batch["__key__"], batch["txt"], batch["cls"]) for batch in batches]


@pytest.mark.parametrize("read_ahead", [0, 1, 4000, 1 << 20])
def test_batches_are_those_of_the_local_files(local: Source, site: Site, read_ahead: int) -> None:
    assert contents(batches_of(source_at(site), read_ahead=read_ahead)) == contents(batches_of(local))


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_lost_or_doubled_by_faults(local: Source, site: Site, fault: str) -> None:
    site.chooser = lambda path, number: fault if number % 3 == 1 else None
    assert contents(batches_of(source_at(site), read_ahead=20_000)) == contents(batches_of(local))
    assert site.injected[fault] > 2


def test_workers_read_over_http(local: Source, site: Site) -> None:
    loader = equitar.Loader(batches_of(source_at(site)), num_workers=2)
    assert sorted(flat(loader)) == sorted(
        set(keys_of("s", 90)) & set(flat(equitar.Loader(batches_of(local), num_workers=2)))
    )


def test_ranks_fetch_each_shard_about_once_in_all(local: Source, site: Site) -> None:
    batches = equitar.debiased([source_at(site)], batch_size=1, shuffle=30, rank=0, world_size=8)
    ranks = over_ranks(batches, 8)
    assert Counter(key for rank in ranks for key in flat(rank)).most_common(1)[0][1] == 1
    tars = {path: raw for path, raw in site.files.items() if path.endswith(".tar")}
    sent = sum(site.sent[path] for path in tars)
    assert sent < 1.05 * sum(map(len, tars.values()))


def test_only_the_fields_asked_for_are_fetched(tmp_path: Path) -> None:
    import webdataset as wds

    (tmp_path / "f").mkdir()
    with wds.TarWriter(str(tmp_path / "f" / "000.tar"), mtime=0) as writer:
        for row in range(10):
            writer.write({"__key__": f"{row}", "jpg": bytes(200_000), "cls": row})
    indexed(Source("f", str(tmp_path / "f" / "000.tar")))
    with serving(site_of(tmp_path)) as site:
        batches = batches_of(Source("f", f"{site.url}/f/000.tar", retries=QUICK), fields=["cls"])
        assert all(
            set(batch) == {"__key__", "__url__", "__source__", "__copy__", "__step__", "cls"} for batch in batches
        )
        assert site.sent["/f/000.tar"] <= 10


def test_early_stops_leave_no_thread_and_no_open_file(site: Site) -> None:
    with contextlib.closing(iter(batches_of(source_at(site)))) as reading:  # what fsspec itself keeps open
        next(reading)
    files = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        with contextlib.closing(iter(batches_of(source_at(site)))) as reading:
            next(reading)
        assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("equitar")]
    assert len(list(Path("/proc/self/fd").iterdir())) <= files + 4  # connections that the HTTP client keeps


def test_a_stalled_server_does_not_keep_an_early_stop_waiting(site: Site) -> None:
    import time

    site.stall = 5.0
    site.chooser = lambda path, number: "stall" if number > 2 else None
    reading = iter(batches_of(replace(source_at(site), retries=Retries(stall=30.0)), read_ahead=2000))
    next(reading)
    begin = time.monotonic()
    reading.close()
    assert time.monotonic() - begin < 2


def test_the_budget_bounds_what_is_held(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from equitar.reading.prefetch import PrefetchBudget

    held: list[int] = []

    class Watched(PrefetchBudget):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "held":
                held.append(value)
            super().__setattr__(name, value)

    monkeypatch.setattr("equitar.loading.request.PrefetchBudget", Watched)
    list(batches_of(source_at(site), read_ahead=12_000))
    assert 6_000 < max(held) <= 12_000
    assert held[-1] == 0


def test_a_changed_shard_says_which_and_how_to_mend_it(site: Site) -> None:
    site.files["/s/001.tar"] += b"\0" * 512
    with pytest.raises(
        StaleSidecarError,
        match=r"/s/001\.tar has \d+ bytes but its sidecar was made of \d+; run `equitar index",
    ):
        list(batches_of(source_at(site)))


def test_a_server_that_fails_for_good_loses_samples_under_a_policy(site: Site) -> None:
    site.chooser = lambda path, number: "status 503" if path == "/s/001.tar" else None
    retries = Retries(patience=0.5, first_wait=0.001, longest_wait=0.001, stall=0.2)
    source = replace(source_at(site), retries=retries)
    with pytest.raises(StorageError, match=r"/s/001\.tar did not give bytes \d+-\d+ in \d+ tries .* status 503"):
        list(batches_of(source))
    loader = equitar.Loader(batches_of(source, handler="skip_sample"))
    keys = flat(loader)
    lost = {sample.key for sample in loader.counters()["lost_samples"]}
    assert len(keys) == 88
    assert lost <= set(keys_of("s", 90)[30:60])
    assert not lost & set(keys)


def test_a_cache_downloads_each_shard_once_for_all_processes(local: Source, site: Site, tmp_path: Path) -> None:
    source = source_at(site, cache=str(tmp_path / "cache"))
    loader = equitar.Loader(batches_of(source), num_workers=2)
    first = contents(loader)
    sent = {path: site.sent[path] for path in site.files if path.endswith(".tar")}
    assert sent == {path: len(site.files[path]) for path in sent}
    assert sorted(map(str, first)) == sorted(map(str, contents(equitar.Loader(batches_of(local), num_workers=2))))
    list(batches_of(source))
    assert {path: site.sent[path] for path in sent} == sent


def test_index_and_check_of_remote_shards(site: Site, tmp_path: Path) -> None:
    site.chooser = lambda path, number: FAULTS[number % len(FAULTS)] if number % 2 else None
    source = source_at(site, sidecars=str(tmp_path / "mine"))
    equitar.index(source, labels="cls", jobs=1, progress=False)
    assert sorted(path.name for path in (tmp_path / "mine").glob("*.npz"))[:3] == [
        f"{shard:03d}.presence.npz" for shard in range(3)
    ]
    assert equitar.check(source, jobs=1, progress=False) == []
    site.files["/s/002.tar"] = site.files["/s/000.tar"]
    (problem,) = equitar.check(source, jobs=1, progress=False)
    assert "/s/002.tar has other members" in problem
    assert "equitar index" in problem


def test_sidecars_cannot_be_written_to_a_web_server(site: Site) -> None:
    with pytest.raises(ReadOnlyError, match=r"cannot be written .*web servers are read-only.*--sidecars"):
        equitar.index(source_at(site), labels="cls", jobs=1, progress=False, force=True)


def test_nothing_secret_is_in_errors_reprs_or_states(site: Site, tmp_path: Path) -> None:
    urls = [f"http://me:hush@{site.url[7:]}/s/{number:03d}.tar?sig=secret" for number in range(3)]
    source = Source(
        "s", urls, sidecars=str(tmp_path / "s"), storage_options={"headers": {"X-Token": "token-value"}}, retries=QUICK
    )
    batches = batches_of(source)
    loader = equitar.Loader(batches)
    next(iter(loader))
    texts = [repr(source), repr(loader.state_dict()), repr(execution_of(batches).request), repr(loader.counters())]
    site.chooser = lambda path, number: "status 503"
    with pytest.raises(StorageError) as raised:
        list(batches_of(source))
    site.files["/s/001.tar"] += b"1"
    site.chooser = lambda path, number: None
    with pytest.raises(StaleSidecarError) as stale:
        list(batches_of(source))
    for text in (*texts, str(raised.value), str(stale.value)):
        assert not {"hush", "secret", "token-value"} & set(
            text.replace("=", " ").replace(":", " ").replace("@", " ").replace("'", " ").split()
        )
