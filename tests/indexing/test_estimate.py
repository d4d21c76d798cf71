"""What would indexing cost, and is nothing written meanwhile?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner

import equitar
from equitar.cli.app import main
from equitar.errors import MissingShardError
from equitar.sources import Source
from helpers.fault_server import serving, site_of
from helpers.labelled_shards import shard

SHARDS = 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(SHARDS):
        shard(tmp_path / "tars" / f"x-{number}.tar", ["1", "2", "3"] * 100)
    return tmp_path / "tars"


def ticks() -> Iterator[float]:
    return map(float, count())


def test_a_local_source_is_estimated_from_a_few_shards(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    source = Source("s", f"{folder}/*.tar")
    (estimate,) = equitar.dry_run(source, labels="cls", jobs=2, clock=ticks().__next__)
    assert (estimate.shards, estimate.to_read, estimate.walked, estimate.samples) == (SHARDS, SHARDS, 3, 300 * SHARDS)
    assert estimate.bytes == sum(path.stat().st_size for path in folder.glob("*.tar"))
    (way,) = estimate.ways
    assert way.seconds == SHARDS / 2  # a tick of the clock for each, by two processes
    assert 0 < way.bytes <= 2 * estimate.bytes
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_shards_that_have_sidecars_are_not_estimated(folder: Path) -> None:
    source = Source("s", f"{folder}/*.tar")
    equitar.index(source, jobs=1, progress=False, part=(0, 2))
    (estimate,) = equitar.dry_run(source)
    assert (estimate.shards, estimate.to_read) == (SHARDS, SHARDS // 2)
    assert equitar.dry_run(source, force=True)[0].to_read == SHARDS
    equitar.index(source, jobs=1, progress=False)
    (done,) = equitar.dry_run(source)
    assert (done.to_read, done.walked, done.ways) == (0, 0, ())


def test_a_remote_source_is_estimated_for_both_ways_as_the_server_counts_them(folder: Path) -> None:
    with serving(site_of(folder)) as site:
        source = Source("s", f"{site.url}/x-{{0..7}}.tar", sidecars=str(folder.parent / "side"))
        (estimate,) = equitar.dry_run(source, walked=SHARDS)
        walk, whole = estimate.ways
        assert (walk.how, whole.how) == ("headers, by ranges", "whole shards")
        tars = [path for path in site.sent if path.endswith(".tar")]
        assert walk.bytes + whole.bytes == sum(site.sent[path] for path in tars)
        assert whole.bytes == estimate.bytes
        asked = sum(site.requests[path] for path in tars)
    assert walk.requests + whole.requests == asked + 2 * SHARDS  # with a question for the size of each, for each way
    assert not (folder.parent / "side").exists()


def test_a_missing_shard_is_told(folder: Path) -> None:
    (folder / "x-7.tar").unlink()
    with pytest.raises(MissingShardError, match=r"x-7\.tar is missing"):
        equitar.dry_run(Source("s", f"{folder}/x-{{0..7}}.tar"))


def test_the_command_line_shows_it_as_tables_and_as_json(folder: Path) -> None:
    words = ["index", f"s={folder}/*.tar", "--labels", "cls", "--dry-run", "--jobs", "4"]
    shown = CliRunner().invoke(main, words).output.splitlines()
    assert shown[0].split() == ["source", "shards", "to", "read", "walked", "samples", "MB"]
    assert shown[1].split()[:5] == ["s", "8", "8", "3", "2,400"]
    assert shown[3].endswith("time, 4 processes")
    assert shown[4].startswith("s: headers, from a local disk")
    (estimate,) = json.loads(CliRunner().invoke(main, [*words, "--json"]).output)["sources"]
    assert (estimate["to_read"], estimate["jobs"], len(estimate["ways"])) == (8, 4, 1)
    assert not list(folder.glob("*.npz"))
