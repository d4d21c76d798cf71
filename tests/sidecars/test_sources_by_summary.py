"""A source that is given by its summary has the shards that were indexed, wherever they lie now."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

import equitar
from equitar.cli.app import main
from equitar.errors import ShardError, SidecarError, SourceError
from equitar.loading.state import summaries_in
from equitar.sidecars.container import pack, unpack
from equitar.sources import Source
from helpers.shards import flat, indexed, keys_of, keys_of_batches, write_source, write_tars


def by_summary(source: Source, folder: Path, *, digest: str = "", **more: Any) -> Source:
    name = f"a.{digest[:16]}.summary.npz" if digest else "a.summary.json"
    return replace(source, urls=str(folder / name), **{"root": None, **more})


def digest_of(source: Source) -> str:
    return summaries_in(equitar.debiased([source], batch_size=8).state_dict())["a"]


def digest_of_newest(folder: Path) -> str:
    pointer = json.loads((folder / "a" / "a.summary.json").read_text())
    return str(pointer["summary"]).split(".")[1]


def meta_of(**changed: Any) -> Any:
    meta = {"format": "equitar summary", "version": 1, "class_ids": None, "class_names": None, **changed}
    return np.frombuffer(json.dumps(meta).encode(), np.uint8)


def plan_of(source: Source) -> str:
    return equitar.debiased([source], batch_size=8, repeat=0.5).plan().digest


def keys_read(source: Source) -> list[str]:
    return sorted(flat(equitar.exact([source], batch_size=8, rank=0, world_size=1)))


def command(*words: str) -> Result:
    return CliRunner().invoke(main, [*words])


def urls_read(source: Source) -> set[str]:
    batches = equitar.exact([source], batch_size=8, rank=0, world_size=1)
    return {url for batch in batches for url in batch["__url__"]}


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return write_source(tmp_path, "a", [20, 30])


def test_the_shards_are_those_that_were_indexed_and_the_plan_is_the_same(source: Source, tmp_path: Path) -> None:
    shutil.copy(tmp_path / "a" / "000.tar", tmp_path / "a" / "never-indexed.tar")
    with pytest.raises(SidecarError, match="does not cover 1 of 3"):
        plan_of(source)
    (tmp_path / "a" / "never-indexed.tar").rename(tmp_path / "a" / "never-indexed.bak")
    wanted = plan_of(source)
    (tmp_path / "a" / "never-indexed.bak").rename(tmp_path / "a" / "never-indexed.tar")
    for summarized in (
        by_summary(source, tmp_path / "a"),
        by_summary(source, tmp_path / "a", digest=digest_of_newest(tmp_path)),
    ):
        assert plan_of(summarized) == wanted
        assert keys_read(summarized) == keys_of("a", 50)


def test_a_summary_alone_lists_nothing(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a folder was listed")

    monkeypatch.setattr("equitar.storage.listing.glob.glob", refuse)
    assert keys_read(by_summary(source, tmp_path / "a")) == keys_of("a", 50)


def test_it_is_found_from_the_folder_that_one_is_in(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path / "a")
    here = replace(source, urls="a.summary.json", root=None)
    assert plan_of(here) == plan_of(source)
    assert urls_read(here) == {"000.tar", "001.tar"}


def test_shards_lie_below_the_root_and_sidecars_beside_the_summary(tmp_path: Path) -> None:
    shards, side = tmp_path / "a", tmp_path / "side"
    write_tars(tmp_path, "a", [20, 30])
    source = indexed(Source("a", f"{shards}/*.tar", root=str(shards), sidecars=str(side)))
    shards.rename(tmp_path / "moved")
    moved = by_summary(source, side, root=str(tmp_path / "moved"), sidecars=None)
    assert keys_read(moved) == keys_of("a", 50)
    assert urls_read(moved) == {f"{tmp_path}/moved/{number:03d}.tar" for number in range(2)}
    assert plan_of(moved) == plan_of(replace(source, urls=f"{tmp_path}/moved/*.tar", root=f"{tmp_path}/moved"))
    assert equitar.check(moved, jobs=1, progress=False) == []


@pytest.fixture
def memory() -> Iterator[Any]:
    files = fsspec.filesystem("memory")
    yield files
    for folder in ("/far", "/near"):
        if files.exists(folder):
            files.rm(folder, recursive=True)


def test_a_remote_summary_serves_remote_shards(source: Source, tmp_path: Path, memory: Any) -> None:
    memory.put(str(tmp_path / "a"), "/far", recursive=True)
    far = replace(source, urls="memory://far/a.summary.json", root=None)
    assert plan_of(far) == plan_of(source)
    assert keys_read(far) == keys_of("a", 50)
    near = by_summary(source, tmp_path / "a", root="memory://far")
    assert urls_read(near) == {"memory://far/000.tar", "memory://far/001.tar"}


def test_another_name_keeps_the_files_of_the_summary(source: Source, tmp_path: Path) -> None:
    renamed = replace(by_summary(source, tmp_path / "a"), name="train")
    assert keys_read(renamed) == keys_of("a", 50)
    equitar.index(renamed, labels="cls", jobs=1, progress=False, force=True)
    assert not list(tmp_path.rglob("train*"))
    assert keys_read(renamed) == keys_of("a", 50)


def test_the_pointer_follows_a_source_that_grows_and_a_digest_does_not(source: Source, tmp_path: Path) -> None:
    pinned = by_summary(source, tmp_path / "a", digest=digest_of(source))
    write_tars(tmp_path, "a", [20, 30, 40])
    indexed(source)
    assert len(keys_read(by_summary(source, tmp_path / "a"))) == 90
    assert len(keys_read(pinned)) == 50


def test_a_run_within_its_epoch_resumes_with_the_summary_of_its_state(source: Source, tmp_path: Path) -> None:
    pinned, pointed = by_summary(source, tmp_path / "a", digest=digest_of(source)), by_summary(source, tmp_path / "a")
    loader = equitar.Loader(equitar.debiased([pointed], batch_size=8))
    list(islice(loader, 2))
    state = loader.state_dict()
    rest = keys_of_batches(equitar.Loader(equitar.debiased([pointed], batch_size=8)))[2:]
    write_tars(tmp_path, "a", [20, 30, 40])
    indexed(source)
    newest = by_summary(source, tmp_path / "a", digest=digest_of_newest(tmp_path))
    assert newest != pinned
    for chosen in (pointed, pinned, newest, source):
        again = equitar.Loader(equitar.debiased([chosen], batch_size=8))
        again.load_state_dict(state)
        assert keys_of_batches(again) == rest
        assert len(again) == 6
    assert len(equitar.debiased([pointed], batch_size=8)) == 11


def test_index_and_check_take_it(source: Source, tmp_path: Path) -> None:
    word = f"a={tmp_path}/a/a.summary.json"
    done = command("index", word, "--labels", "cls", "--quiet", "--jobs", "1")
    assert done.output.splitlines()[1].split()[:4] == ["a", "0", "2", "50"]
    assert command("check", word, "--quiet", "--jobs", "1").output == "OK: 2 sidecars match their shards\n"
    assert "a" in command("plan", word, "--batch-size", "8").output
    (tmp_path / "a" / "001.tar").unlink()
    gone = command("index", word, "--labels", "cls", "--quiet", "--jobs", "1")
    below = f"they are expected below {tmp_path}/a; pass their folder as `--root`, or restore them"
    assert (gone.exit_code, below in gone.output) == (1, True)
    skipped = command("index", word, "--labels", "cls", "--quiet", "--jobs", "1", "--missing-shards", "skip")
    assert "1 missing, left out: '001.tar'" in skipped.output
    write_tars(tmp_path, "a", [20, 30])
    assert "1 added: '001.tar'" in command("index", word, "--labels", "cls", "--quiet", "--jobs", "1").output


def test_a_wrong_root_is_told_when_a_shard_is_opened(source: Source, tmp_path: Path) -> None:
    wrong = by_summary(source, tmp_path / "a", root=str(tmp_path / "nowhere"))
    assert plan_of(wrong) == plan_of(source)  # planning needs no shards here
    with pytest.raises(
        SourceError, match=r"nowhere/00.\.tar of source 'a' is missing .*set `root` \(`--root`\) to the folder"
    ):
        keys_read(wrong)
    with pytest.raises(ShardError, match=r"expected below .*nowhere; pass their folder as `--root`"):
        equitar.index(wrong, labels="cls", jobs=1, progress=False, force=True)


def test_sidecars_elsewhere_than_their_summary_are_refused(source: Source, tmp_path: Path) -> None:
    for same in (f"{tmp_path}/a", f"{tmp_path}/a/", f"file:{tmp_path}/a"):
        assert plan_of(by_summary(source, tmp_path / "a", sidecars=same)) == plan_of(source)
    with pytest.raises(SourceError, match=r"sidecars are in the folder of their summary; omit `sidecars`"):
        plan_of(by_summary(source, tmp_path / "a", sidecars=str(tmp_path)))


def test_a_summary_stands_alone() -> None:
    for others in (["x.tar"], ["b.summary.json"]):
        with pytest.raises(
            SourceError, match=r"^a summary covers all shards of its source; got a.summary.json together with 1 more"
        ):
            Source("a", ["a.summary.json", *others])
    assert Source("a", ["a.summary.json"]).summary == "a.summary.json"
    assert Source("a", "https://host/a.0123456789abcdef.summary.npz?sig=1").summary is not None
    assert Source("a", "a.summary.tar").summary is None
    result = command("plan", "a=a.summary.json", "a=b.summary.json", "--batch-size", "8")
    assert (result.exit_code, "pass it alone" in result.output) == (1, True)


def test_a_summary_that_cannot_be_read_says_how_to_make_it(source: Source, tmp_path: Path) -> None:
    folder, digest = tmp_path / "a", digest_of(source)
    fix = "check the path, or index the shards themselves: `equitar index a=SHARDS`"
    with pytest.raises(SidecarError, match=rf"b\.summary\.json, the summary of source 'a', is missing; {fix}"):
        plan_of(replace(source, urls=f"{folder}/b.summary.json"))
    with pytest.raises(SidecarError, match=rf"a\.0+\.summary\.npz, a summary of 'a', is missing; {fix}"):
        plan_of(by_summary(source, folder, digest="0" * 16))
    file = folder / f"a.{digest[:16]}.summary.npz"
    arrays = unpack(file.read_bytes())
    for broken, message in [
        (b"", "is damaged"),
        (
            pack({**arrays, "meta": meta_of(format="equitar sidecar")}),
            "its format is .*'equitar sidecar'.* but must be",
        ),
        (pack({**arrays, "meta": meta_of(version=2)}), "'version': 2.* but must be"),
        (pack({name: array for name, array in arrays.items() if name != "paths"}), "is damaged.*paths"),
        (pack({**arrays, "num_samples": arrays["num_samples"] + 1}), "which its name contradicts"),
    ]:
        file.write_bytes(broken)
        for summarized in (by_summary(source, folder), by_summary(source, folder, digest=digest)):
            with pytest.raises(SidecarError, match=rf"{message}.*{fix}"):
                plan_of(summarized)
    (folder / "a.summary.json").write_text('{"format": "another"}')
    with pytest.raises(SidecarError, match=rf"a\.summary\.json is damaged: its format is .*'another'.*{fix}"):
        plan_of(by_summary(source, folder))
