"""Counts and offsets that other tools wrote themselves: they agree with the sidecars, and what does not is named."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import webdataset as wds
from click.testing import CliRunner

import equitar
from equitar.cli.app import main
from equitar.errors import SourceError
from equitar.sources import Source
from equitar.storage.listing import expand

DATA = Path(__file__).resolve().parents[1] / "data" / "importers"
COUNTS = {"x-000.tar": 4, "x-001.tar": 2, "x-002.tar": 3}

# What each tool writes, as a pattern in the folder of the shards.
LISTS = ("wids.json", "sizes.json", "manifest.jsonl", ".nv-meta/.info.json", ".nv-meta/.info.yaml")
OFFSETS = ("*[0-9].idx", "*.tar.idx", ".nv-meta/index.sqlite", ".nv-meta")


class Folder(NamedTuple):
    """A folder of shards with the files of all tools beside them."""

    path: Path
    source: Source

    def check(self, *patterns: str) -> list[str]:
        against = [f"{self.path}/{pattern}" for pattern in patterns]
        return equitar.check(self.source, jobs=1, progress=False, against=against)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    path = tmp_path / "data"
    path.mkdir()
    for tool in ("", "wids", "energon", "dali"):
        shutil.copytree(DATA / tool, path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("README.md", *_TOOLS))
    (path / "sizes.json").write_text(json.dumps(COUNTS), "utf-8")  # as the README of open_clip has it
    lines = [{"shard": name.removesuffix(".tar"), "num_sequences": count} for name, count in COUNTS.items()]
    (path / "manifest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    info = "".join(f"  {name}: {count}\n" for name, count in COUNTS.items())
    (path / ".nv-meta/.info.yaml").write_text(f"shard_counts:\n{info}", "utf-8")  # as before version 7
    source = Source("x", f"{path}/x-*.tar")
    equitar.index(source, labels="cls", jobs=1, progress=False)
    return Folder(path, source)


_TOOLS = ("wids", "energon", "energon5", "energon6", "dali", "img2dataset", "pax")


def rewrite(path: Path, sizes: list[int], *, key: str = "0000{:02d}") -> None:
    """Write a shard anew with samples whose members `bin` have these sizes."""
    with wds.TarWriter(str(path), mtime=0) as writer:
        for number, size in enumerate(sizes):
            writer.write({"__key__": key.format(number + 4), "bin": b"x" * size, "cls": 0, "txt": "caption 0"})


@pytest.mark.parametrize("pattern", [*LISTS, *OFFSETS])
def test_what_a_tool_says_of_its_own_shards_agrees(folder: Folder, pattern: str) -> None:
    assert folder.check(pattern) == []


@pytest.mark.parametrize("version", ["energon5", "energon6"])
def test_older_versions_of_energon_are_read_as_far_as_they_go(folder: Folder, version: str) -> None:
    shutil.rmtree(folder.path / ".nv-meta")
    shutil.copytree(DATA / version / ".nv-meta", folder.path / ".nv-meta")
    assert folder.check(".nv-meta") == []
    assert expand(Source("x", f"@{folder.path}/.nv-meta/.info.yaml")) == expand(folder.source)
    assert len(expand(Source("x", f"@{folder.path}/.nv-meta/split.yaml:train"))) == 2
    rewrite(folder.path / "x-001.tar", [2600, 2100])
    equitar.index(folder.source, labels="cls", jobs=1, progress=False)
    problems = folder.check(".nv-meta")
    assert len(problems) == (1 if version == "energon6" else 0)  # which tells where samples begin
    assert all(
        "x-001.tar has sample '000005' in bytes 5632 to 6144 but beginning at 5120" in problem for problem in problems
    )


@pytest.mark.parametrize("pattern", ["y.idx", "y.tar.idx", ".nv-meta"])
def test_extended_headers_and_long_names_agree_too(tmp_path: Path, pattern: str) -> None:
    shutil.copytree(DATA / "pax", tmp_path, dirs_exist_ok=True)
    source = Source("y", f"{tmp_path}/y.tar")
    equitar.index(source, jobs=1, progress=False)
    assert equitar.check(source, jobs=1, progress=False, against=[f"{tmp_path}/{pattern}"]) == []


@pytest.mark.parametrize("pattern", [*LISTS, *OFFSETS])
def test_a_shard_with_another_number_of_samples_is_named(folder: Folder, pattern: str) -> None:
    rewrite(folder.path / "x-001.tar", [2100, 2600, 1])
    equitar.index(folder.source, labels="cls", jobs=1, progress=False)
    problems = folder.check(pattern)
    assert len(problems) == (3 if pattern == ".nv-meta" else 1)  # which holds three files here
    for problem in problems:
        assert "x-001.tar has 3 samples but 2 by" in problem


@pytest.mark.parametrize("pattern", [*LISTS, *OFFSETS])
def test_shards_that_one_side_does_not_know_are_named(folder: Folder, pattern: str) -> None:
    two = Source("x", f"{folder.path}/x-00[01].tar")
    equitar.index(two, labels="cls", jobs=1, progress=False)
    problems = Folder(folder.path, two).check(pattern)
    assert {problem.partition(" but ")[2] for problem in problems} == {"in no source"}
    assert all("x-002.tar is in" in problem for problem in problems)
    shutil.copy(folder.path / "x-002.tar", folder.path / "x-003.tar")
    equitar.index(folder.source, labels="cls", jobs=1, progress=False)
    (problem,) = folder.check(pattern)
    assert "x-003.tar is not in" in problem


@pytest.mark.parametrize("pattern", OFFSETS)
def test_samples_that_lie_elsewhere_are_named_although_their_number_is_right(folder: Folder, pattern: str) -> None:
    rewrite(folder.path / "x-001.tar", [2600, 2100])
    equitar.index(folder.source, labels="cls", jobs=1, progress=False)
    assert folder.check("sizes.json") == []
    (problem,) = folder.check(pattern)
    assert "x-001.tar has " in problem
    assert "byte" in problem


def test_a_shard_of_other_keys_is_named(folder: Folder) -> None:
    rewrite(folder.path / "x-001.tar", [2100, 2600], key="0001{:02d}")
    equitar.index(folder.source, labels="cls", jobs=1, progress=False)
    for pattern in ("*[0-9].idx", ".nv-meta/index.sqlite"):
        (problem,) = folder.check(pattern)
        assert "x-001.tar has key '000104' in row 0 but '000004' by" in problem


def edit_text(old: str, new: str) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        text = path.read_text("utf-8")
        assert text.count(old) == 1
        path.write_text(text.replace(old, new), "utf-8")

    return edit


def edit_index(statement: str) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        connection = sqlite3.connect(path)
        assert connection.execute(statement).rowcount == 1
        connection.commit()
        connection.close()

    return edit


def edit_starts(path: Path) -> None:
    starts = np.fromfile(path, "<u8")
    starts[1] += 1
    starts.tofile(path)


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        (
            "x-000.idx",
            edit_text("cls 5120 1 ", "cls 5632 1 "),
            "'cls' of sample '000001' at byte 5120, 1 bytes long, but",
        ),
        ("x-000.idx", edit_text("cls 5120 1 ", "cls 5120 2 "), "at byte 5120, 2 long by"),
        ("x-000.idx", edit_text("bin 3584 600 000001.bin ", ""), "12 members but 11 by"),
        ("x-001.tar.idx", edit_starts, "sample '000005' in bytes 5120 to 5632 but beginning at 5121 by"),
        (
            ".nv-meta/index.sqlite",
            edit_index("UPDATE samples SET byte_offset = 512 WHERE sample_key = '000004'"),
            "sample '000004' in bytes 0 to 512 but beginning at 512",
        ),
        (
            ".nv-meta/index.sqlite",
            edit_index(
                "UPDATE sample_parts SET part_name = 'jpg' WHERE content_byte_offset = 3584 AND tar_file_id = 0"
            ),
            "'bin' of sample '000001' at byte 3584, 600 bytes long, but 'jpg' of sample number 1",
        ),
        ("wids.json", edit_text('"filesize": 30720', '"filesize": 30208'), "x-002.tar has 30720 bytes but 30208 by"),
    ],
)
def test_a_wrong_offset_is_told_with_what_is_right(
    folder: Folder, name: str, edit: Callable[[Path], None], message: str
) -> None:
    edit(folder.path / name)
    (problem,) = folder.check(f"{name.replace('x-000', '*[0-9]').replace('x-001', '*')}")
    assert message in problem


@pytest.mark.parametrize("value", ["NULL", "'x'", "x'7a'", "3584.5"])
@pytest.mark.parametrize("column", ["content_byte_offset", "content_byte_size", "part_name"])
def test_what_is_no_whole_number_in_an_index_of_energon_is_never_taken_for_one(
    folder: Folder, column: str, value: str
) -> None:
    where = "content_byte_offset = 3584 AND tar_file_id = 0"
    edit_index(f"UPDATE sample_parts SET {column} = {value} WHERE {where}")(folder.path / ".nv-meta/index.sqlite")
    if column == "part_name":
        (problem,) = folder.check(".nv-meta/index.sqlite")
        assert "'bin' of sample '000001' at byte 3584, 600 bytes long, but" in problem
    else:
        with pytest.raises(SourceError, match=r"is malformed .*; run `energon prepare` again"):
            folder.check(".nv-meta/index.sqlite")


def test_a_shard_that_is_twice_on_a_list_is_named(folder: Folder) -> None:
    lines = (folder.path / "manifest.jsonl").read_text("utf-8")
    (folder.path / "manifest.jsonl").write_text(lines + lines.splitlines()[1], "utf-8")
    (problem,) = folder.check("manifest.jsonl")
    assert "x-001.tar is twice in" in problem


def test_shards_of_one_name_are_known_by_their_places_only(folder: Folder) -> None:
    for name in ("a", "b"):
        (folder.path / name).mkdir()
        shutil.copy(folder.path / "x-000.tar", folder.path / name)
        (folder.path / name / "sizes.json").write_text('{"x-000.tar": 4}', "utf-8")
    both = Source("x", f"{folder.path}/[ab]/x-000.tar")
    equitar.index(both, labels="cls", jobs=1, progress=False)
    assert Folder(folder.path, both).check("[ab]/sizes.json") == []
    problems = Folder(folder.path, both).check("a/sizes.json", "sizes.json")
    assert "b/x-000.tar is not in" in problems[0]
    assert sum("x-000.tar is in" in problem and "but in no source" in problem for problem in problems[1:]) == 1


def test_shards_that_were_moved_are_known_by_their_names(folder: Folder) -> None:
    index = json.loads((folder.path / "wids.json").read_text("utf-8"))
    for base in ("/before", "https://host/data", "elsewhere"):
        (folder.path / "wids.json").write_text(json.dumps({**index, "base": base}), "utf-8")
        assert folder.check("wids.json") == []


@pytest.mark.parametrize("name", LISTS)
def test_a_source_is_taken_from_the_list_of_another_tool(
    folder: Folder, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = expand(folder.source)
    assert expand(Source("x", f"@{folder.path}/{name}")) == wanted
    monkeypatch.chdir(folder.path)
    assert expand(Source("x", f"@{name}")).paths == wanted.paths


def test_the_parts_of_a_split_are_sources(folder: Folder) -> None:
    split = f"{folder.path}/.nv-meta/split.yaml"
    assert expand(Source("train", f"@{split}:train")).paths == ("x-000.tar", "x-001.tar")
    assert expand(Source("val", f"@{split}:val")).paths == ("x-002.tar",)
    edit_text("exclude: []", "exclude: [x-000.tar]")(Path(split))
    assert expand(Source("train", f"@{split}:train")).paths == ("x-001.tar",)
    edit_text("exclude: [x-000.tar]", "exclude: [x-000.tar/000001]")(Path(split))
    with pytest.raises(SourceError, match=r"excludes single samples, such as 'x-000\.tar/000001'"):
        expand(Source("train", f"@{split}:train"))


def test_a_list_of_patterns_may_still_begin_with_a_brace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.txt").write_text("{a,b}/x.tar\n", "utf-8")
    assert expand(Source("x", "@list.txt")).paths == ("a/x.tar", "b/x.tar")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("split.yaml", "split_parts: {train: [x.tar]}\n", "must be given with a part, as in @split.yaml:train"),
        ("split.yaml:test", "split_parts: {train: [x.tar]}\n", "must have the part 'test'; it has train"),
        ("wids.json:train", '{"shardlist": []}', "must be given with no part; got 'train'"),
        ("wids.json", '{"wids_version": 1, "shardlist": [{"url": "x.tar"}]}', r"got KeyError\('nsamples'\)"),
        ("wids.json", '{"wids_version": 1, "datasets": [{"source_url": "y.json"}]}', "refers to the list 'y.json'"),
        ("wids.json", '{"shardlist": []', "is not valid JSON"),
        ("sizes.json", '{"x.tar": -1}', "whole numbers .* got -1"),
        ("manifest.jsonl", '{"shard": "x", "num_sequences": 1}\n{"shard": "y"}\n', "line 2 of .* must be"),
        ("info.yaml", "shard_counts: [", "is not valid YAML"),
        ("split.yaml:train", "split_parts: {train: ['x{0..1.tar']}\n", r"must list shards .* UnbalancedBracesError"),
        pytest.param("wids.json", '{"a":' * 100_000, "is not valid JSON", id="deep"),
        pytest.param("info.yaml", "[" * 5_000, "is not valid YAML", id="deep YAML"),
        pytest.param("sizes.json", f'{{"x.tar": "{"9" * 5_000}"}}', "must list shards", id="digits"),
    ],
)
def test_a_list_that_is_wrong_is_told_with_its_place(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name.partition(":")[0]).write_text(text, "utf-8")
    with pytest.raises(SourceError, match=message):
        expand(Source("x", f"@{tmp_path}/{name}"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.idx", "v1.0 1\njpg 512 1\n", "must be of version v1.1 or v1.2; got 'v1.0'"),
        ("x.idx", "v1.1 2\njpg 512 1\n", "must have 2 samples by its first line; got 1 lines"),
        ("x.idx", "v1.1 1\njpg 512 x\n", "line 2 of .*x.idx must be 3 words for each member"),
        ("x.idx", "v1.2 1\njpg 512 1 a b.jpg\n", "line 2 of .*x.idx must be 4 words"),
        ("x.tar.idx", "1234567", "is malformed"),
        ("x.tar.idx", "", "it is empty"),
        ("x_stats.json", '{"count": 1}', "'successes'"),
        pytest.param("x_stats.json", "[" * 100_000, "is malformed", id="deep"),
        ("x.txt", "hello", "must be a list or an index of wids, .* it begins with b'hello'"),
        (".nv-meta/x", "", "must hold .info.json, .info.yaml or index.sqlite"),
    ],
)
def test_an_index_that_is_wrong_is_told_with_its_place(folder: Folder, name: str, text: str, message: str) -> None:
    shutil.rmtree(folder.path / ".nv-meta")
    (folder.path / name).parent.mkdir(exist_ok=True)
    (folder.path / name).write_text(text, "utf-8")
    with pytest.raises(SourceError, match=message):
        folder.check(name.removesuffix("/x"))


def test_the_older_index_of_dali_says_the_same_without_names(folder: Folder) -> None:
    for path in folder.path.glob("*[0-9].idx"):
        head, *lines = path.read_text("utf-8").splitlines()
        bare = [" ".join(word for position, word in enumerate(line.split()) if position % 4 < 3) for line in lines]
        path.write_text("\n".join([head.replace("v1.2", "v1.1"), *bare]) + "\n", "utf-8")
    assert folder.check("*[0-9].idx") == []


def test_the_older_manifest_of_open_lm_counts_chunks(folder: Folder) -> None:
    text = (folder.path / "manifest.jsonl").read_text("utf-8")
    (folder.path / "manifest.jsonl").write_text(text.replace("num_sequences", "num_chunks"), "utf-8")
    assert folder.check("manifest.jsonl") == []


def test_an_index_of_energon_without_its_list_is_an_error(folder: Folder) -> None:
    for name in (".info.json", ".info.yaml"):
        (folder.path / ".nv-meta" / name).unlink()
    with pytest.raises(SourceError, match=r"must be beside \.info\.json or \.info\.yaml"):
        folder.check(".nv-meta/index.sqlite")


@pytest.fixture
def downloads(tmp_path: Path) -> Folder:
    shutil.copytree(DATA / "img2dataset", tmp_path / "out")
    return Folder(tmp_path / "out", Source("laion", f"{tmp_path}/out/*.tar"))


def test_what_img2dataset_says_of_its_downloads_agrees(downloads: Folder) -> None:
    equitar.index(downloads.source, jobs=1, progress=False)
    assert downloads.check("*_stats.json", "*.parquet") == []
    edit_text('"successes": 3', '"successes": 4')(downloads.path / "00000_stats.json")
    (problem,) = downloads.check("*_stats.json", "*.parquet")
    assert "00000.tar has 3 samples but 4 by" in problem


def test_columns_that_img2dataset_passed_through_are_labels(downloads: Folder) -> None:
    pattern = f"{downloads.path}/*.parquet:class"
    (report,) = equitar.index(downloads.source, labels_from=pattern, jobs=1, progress=False).sources
    classes = equitar.stats([downloads.source]).classes
    assert classes is not None
    assert dict(zip(classes.names, classes.samples.tolist(), strict=True)) == {"cat": 2, "dog": 2, "emu": 1}
    assert any("1 keys of" in note and "are in no shard, such as '000002'" in note for note in report.notes)


def test_the_command_ends_in_one_where_a_tool_differs(folder: Folder) -> None:
    words = ["check", f"x={folder.path}/x-*.tar", "--quiet", "--jobs", "1"]
    agreed = CliRunner().invoke(
        main, [*words, "--against", f"{folder.path}/sizes.json", "--against", f"{folder.path}/.nv-meta"]
    )
    assert (agreed.exit_code, agreed.output.count("sizes.json")) == (0, 1), agreed.output
    edit_text('"x-001.tar": 2', '"x-001.tar": 5')(folder.path / "sizes.json")
    differs = CliRunner().invoke(main, [*words, "--against", f"{folder.path}/sizes.json"])
    assert differs.exit_code == 1
    assert "1 problem\n" in differs.output
    assert "x-001.tar has 2 samples but 5 by" in differs.output
