"""Offsets of other tools make walks of remote tars parallel and small; the result is the same whether they are right or wrong."""

from __future__ import annotations

import shutil
import tempfile
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import webdataset as wds
from hypothesis import given
from hypothesis import strategies as st

import equitar
from equitar.errors import SourceError
from equitar.indexing.foreign_index import expecting
from equitar.indexing.shard_task import Shard
from equitar.sidecars.sidecar import read_sidecar
from equitar.sources import Retries, Source
from equitar.storage.listing import expand
from equitar.storage.ranges import PrefetchedFile, spans
from helpers.fault_server import Chooser, Site, serving, site_of

DATA = Path(__file__).resolve().parents[1] / "data" / "importers"
LARGE = 300_000
QUICK = Retries(patience=0.5, first_wait=0.002, longest_wait=0.01, stall=0.5, recheck=0.0)


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """Write a shard of large members, and the index that DALI's tool would write of it."""
    folder = tmp_path / "tars"
    folder.mkdir()
    shutil.copy(DATA / "x-000.tar", folder)
    shutil.copy(DATA / "dali/x-000.idx", folder)
    with wds.TarWriter(str(folder / "y.tar"), mtime=0) as writer:
        for number in range(8):
            writer.write({"__key__": f"{number}", "cls": number, "jpg": bytes(LARGE + number)})
    lines, begin = ["v1.1 8"], 0
    for number in range(8):
        lines.append(f"cls {begin + 512} 1 jpg {begin + 1536} {LARGE + number}")
        begin += 1536 + (LARGE + number + 511 & -512)
    (folder / "y.idx").write_text("\n".join(lines) + "\n", "utf-8")
    return folder


def digests(site: Site, folder: Path, name: str, *, offsets_from: str | None) -> dict[str, str]:
    """Index what a site serves, and return the digests of the sidecars."""
    urls = [f"{site.url}{path}" for path in site.files if path.endswith(".tar")]
    source = Source("x", urls, sidecars=str(folder / name), retries=QUICK)
    equitar.index(source, labels="cls", offsets_from=offsets_from, jobs=1, progress=False)
    return {path.name: read_sidecar(str(path), fix="").digest for path in (folder / name).glob("*.presence.npz")}


def test_far_shards_are_indexed_alike_with_fewer_bytes(tars: Path, tmp_path: Path) -> None:
    with serving(site_of(tars)) as site:
        plain = digests(site, tmp_path, "plain", offsets_from=None)
        sent = site.sent["/y.tar"]
        site.sent.clear()
        assert digests(site, tmp_path, "told", offsets_from=f"{tars}/*.idx") == plain
        assert len(plain) == 2
        assert site.sent["/y.tar"] < sent / 8


def test_long_labels_come_with_the_headers_around_them(tmp_path: Path) -> None:
    (tmp_path / "tars").mkdir()
    with wds.TarWriter(str(tmp_path / "tars/z.tar"), mtime=0) as writer:
        for number in range(8):
            writer.write({"__key__": f"{number}", "jpg": bytes(LARGE), "json": f"[{number}]".ljust(20_000)})
    jpg, json = LARGE + 511 & -512, 20_000 + 511 & -512
    lines = [
        f"jpg {begin + 512} {LARGE} json {begin + jpg + 1024} 20000"
        for begin in range(0, 8 * (jpg + json + 1024), jpg + json + 1024)
    ]
    (tmp_path / "z.idx").write_text("\n".join(["v1.1 8", *lines]) + "\n", "utf-8")
    with serving(site_of(tmp_path / "tars")) as site:
        source = Source("z", f"{site.url}/z.tar", sidecars=str(tmp_path / "side"), retries=QUICK)
        equitar.index(source, labels="json", offsets_from=str(tmp_path / "z.idx"), jobs=1, progress=False)
        assert site.requests["/z.tar"] <= 8 + 3  # the very first bytes, the last label, and the end of the tar
    assert equitar.stats([source]).samples == 8


@pytest.mark.parametrize("lie", [0, 1, 700_000, 10**9])
def test_wrong_offsets_change_nothing(tars: Path, tmp_path: Path, lie: int) -> None:
    lines = (tars / "y.idx").read_text("utf-8").splitlines()
    words = [line.split() for line in lines[1:]]
    moved = [
        " ".join(str(int(word) * (lie > 0) + lie) if position % 3 == 1 else word for position, word in enumerate(line))
        for line in words
    ]
    (tars / "y.idx").write_text("\n".join([lines[0], *moved]) + "\n", "utf-8")
    with serving(site_of(tars)) as site:
        plain = digests(site, tmp_path, "plain", offsets_from=None)
        assert digests(site, tmp_path, "told", offsets_from=f"{tars}/*.idx") == plain


@pytest.mark.parametrize("fault", ["status 503", "reset", "short with length"])
def test_failing_answers_are_asked_for_again(tars: Path, tmp_path: Path, fault: str) -> None:
    chooser: Chooser = lambda _, number: fault if number % 3 == 1 else None  # noqa: E731
    site = site_of(tars)
    with serving(site):
        plain = digests(site, tmp_path, "plain", offsets_from=None)
        site.chooser = chooser
        assert digests(site, tmp_path, "told", offsets_from=f"{tars}/*.idx") == plain
        assert site.injected[fault] > 1


def test_lists_and_indexes_may_be_far_too(tars: Path, tmp_path: Path) -> None:
    shutil.copytree(DATA / "dali", tars, dirs_exist_ok=True)
    shutil.copy(DATA / "wids/wids.json", tars)
    for tar in DATA.glob("x-*.tar"):
        shutil.copy(tar, tars)
    with serving(site_of(tars)) as site:
        source = Source("x", f"@{site.url}/wids.json", sidecars=str(tmp_path / "side"), retries=QUICK)
        assert expand(source).urls[1] == f"{site.url}/x-001.tar"
        indexes = f"{site.url}/x-{{000..002}}.idx"
        equitar.index(source, labels="cls", offsets_from=indexes, jobs=1, progress=False)
        assert equitar.check(source, jobs=1, progress=False, against=[indexes, f"{site.url}/wids.json"]) == []


def test_an_index_of_energon_may_be_far_too(tars: Path, tmp_path: Path) -> None:
    for tar in DATA.glob("x-*.tar"):
        shutil.copy(tar, tars)
    with serving(site_of(tars)) as site:
        source = Source("x", f"{site.url}/x-{{000..002}}.tar", sidecars=str(tmp_path / "side"), retries=QUICK)
        equitar.index(source, labels="cls", jobs=1, progress=False)
        meta = f"{site.url}/.nv-meta"
        with pytest.raises(SourceError, match=r"/\.nv-meta must hold \.info\.json, \.info\.yaml or index\.sqlite"):
            equitar.check(source, jobs=1, progress=False, against=meta)
        site.files["/.nv-meta/index.sqlite"] = (DATA / "energon/.nv-meta/index.sqlite").read_bytes()
        with pytest.raises(SourceError, match=r"index\.sqlite must be beside \.info\.json or \.info\.yaml"):
            equitar.check(source, jobs=1, progress=False, against=f"{meta}/index.sqlite")
        site.files["/.nv-meta/.info.json"] = (DATA / "energon/.nv-meta/.info.json").read_bytes()
        faults = ["reset", "reset", "reset"]
        site.chooser = lambda path, _: faults.pop() if path.endswith(".sqlite") and faults else None
        for against in (f"{meta}/index.sqlite", meta):
            assert equitar.check(source, jobs=1, progress=False, against=against) == []
        two = Source("x", f"{site.url}/x-00{{0..1}}.tar", sidecars=source.sidecars, retries=QUICK)
        problems = equitar.check(two, jobs=1, progress=False, against=f"{meta}/index.sqlite")
        assert problems == [f"{site.url}/x-002.tar is in {meta}/index.sqlite but in no source"]
        assert not faults
        assert not list(Path(tempfile.gettempdir()).glob("*.sqlite"))


@given(st.lists(st.tuples(st.integers(0, 1 << 23), st.integers(1, 1 << 23)), max_size=20))
def test_ranges_hold_all_places_in_order_and_apart(drawn: list[tuple[int, int]]) -> None:
    places = np.array([(begin, begin + length) for begin, length in drawn], np.int64).reshape(-1, 2)
    ranges = list(spans(places))
    assert all(start < stop for start, stop in ranges)
    assert all(before[1] <= after[0] for before, after in pairwise(ranges))
    for begin, end in places.tolist():  # no byte of it is missing
        covered = sum(max(0, min(end, stop) - max(begin, start)) for start, stop in ranges)
        assert covered == end - begin
    assert all(stop - start <= 1 << 22 for start, stop in ranges)


class Waiting:
    """Ranges that answer only when several are asked for at once."""

    descriptor = -1

    def __init__(self, raw: bytes, parties: int) -> None:
        self.raw, self.barrier = raw, threading.Barrier(parties)

    def read(self, start: int, length: int) -> bytes:
        self.barrier.wait(10)
        return self.raw[start : start + length]

    def size(self) -> int:
        return len(self.raw)

    def close(self) -> None: ...


def test_expected_places_are_fetched_side_by_side() -> None:
    raw = bytes(range(256)) * 4096 * 4
    places = np.array([[begin, begin + 10] for begin in range(0, len(raw), 1 << 20)])
    with PrefetchedFile(Waiting(raw, len(places)), places) as file:
        for begin, end in places.tolist():
            file.seek(begin)
            assert file.read(end - begin) == raw[begin:end]


@pytest.mark.parametrize("pattern", ["dali/*.idx", "energon/.nv-meta", "energon/*.tar.idx", "wids/wids.json"])
def test_only_an_index_with_offsets_says_where_headers_are_and_only_of_far_shards(pattern: str) -> None:
    def shard(url: str) -> Shard:
        return Shard(source="s", path="x-001.tar", url=url, sidecar="", options=None, fix="", retries=Retries())

    far, near = expecting(
        f"{DATA}/{pattern}", [shard("s3://bucket/a/x-001.tar"), shard(f"{DATA}/x-009.tar")], options=None
    )
    assert near.expected is None
    assert (far.expected is None) == pattern.startswith("wids")
    if far.expected is not None:
        first_headers = (0, 5120)  # of the two samples of the shard
        assert all(
            ((far.expected[:, 0] <= header) & (header + 1024 <= far.expected[:, 1])).any() for header in first_headers
        )
