"""Listing: patterns give the shards that a user means, each with one path wherever it lies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest

from equitar.errors import SourceError
from equitar.sources import Retries, Source
from equitar.storage.files import exists, read_bytes, write_bytes_atomically
from equitar.storage.listing import ShardList, expand, sidecar_path, sidecar_url
from equitar.storage.streams import open_stream
from equitar.urls import join


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with shards ``a/x-0.tar``, ``a/x-1.tar`` and ``b/x-0.tar``."""
    for name in ("a/x-1.tar", "a/x-0.tar", "b/x-0.tar", "a/notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def memory() -> Iterator[Any]:
    files = fsspec.filesystem("memory")
    files.pipe({"/bucket/a/x-0.tar": b"0", "/bucket/a/x-1.tar": b"1", "/bucket/b/x-0.tar": b"2"})
    yield files
    files.rm("/bucket", recursive=True)


def _shards(urls: str | Sequence[str], root: str | None = None) -> ShardList:
    return expand(Source("s", urls, root=root))


@pytest.mark.parametrize(
    ("urls", "paths"),
    [
        ("a/x-{0..1}.tar", ["x-0.tar", "x-1.tar"]),
        ("a/x-{1,0}.tar", ["x-0.tar", "x-1.tar"]),
        ("a/*.tar", ["x-0.tar", "x-1.tar"]),
        ("a/x-[1].tar", ["x-1.tar"]),
        ("{a,b}/x-?.tar", ["a/x-0.tar", "a/x-1.tar", "b/x-0.tar"]),
        ("**/*.tar", ["a/x-0.tar", "a/x-1.tar", "b/x-0.tar"]),
        (["b/x-0.tar", "a/x-1.tar"], ["a/x-1.tar", "b/x-0.tar"]),
        (["a/x-1.tar", "./b/../a/x-0.tar"], ["x-0.tar", "x-1.tar"]),
        ("a/x-0.tar", ["x-0.tar"]),
        ("file:a/x-*.tar", ["x-0.tar", "x-1.tar"]),
        ("elsewhere/y-{00..02}.tar", ["y-00.tar", "y-01.tar", "y-02.tar"]),
    ],
)
def test_patterns_give_sorted_paths_below_the_deepest_common_folder(
    folder: Path, urls: str | list[str], paths: list[str]
) -> None:
    shards = _shards(urls)
    assert list(shards.paths) == paths
    assert Path(shards.root).is_absolute()
    assert len(shards) == len(shards.urls) == len(paths)


def test_urls_stay_as_the_user_wrote_them(folder: Path) -> None:
    assert _shards(["./a/x-1.tar", "a/x-0.tar"]).urls == ("a/x-0.tar", "./a/x-1.tar")
    assert _shards(f"file://{folder}/a/x-?.tar").urls == tuple(f"file://{folder}/a/x-{number}.tar" for number in (0, 1))
    assert _shards(f"file://{folder}/a/x-?.tar").root == str(folder / "a")


def test_a_list_in_a_file_has_one_pattern_a_line(folder: Path) -> None:
    Path("list").write_text("a/x-{0..1}.tar\n\n  b/*.tar\n", encoding="utf-8")
    assert _shards("@list").paths == ("a/x-0.tar", "a/x-1.tar", "b/x-0.tar")


def test_a_glob_that_meets_what_index_wrote_leaves_it_out(folder: Path) -> None:
    before = _shards("a/x*").paths
    for name in ("x-0.presence.npz", "x.0123.summary.npz", "x.summary.json"):
        Path("a", name).touch()
    assert _shards("a/x*").paths == before


def test_a_name_that_looks_like_a_glob_but_exists_is_meant(folder: Path) -> None:
    Path("a/z[1].tar").touch()
    assert _shards("a/z[1].tar").paths == ("z[1].tar",)


def test_a_given_root_keeps_paths_when_a_source_grows(folder: Path) -> None:
    assert _shards("a/*.tar", root=".").paths == ("a/x-0.tar", "a/x-1.tar")
    assert _shards("a/*.tar", root=str(folder) + "/").paths == ("a/x-0.tar", "a/x-1.tar")
    assert _shards("/d/x.tar", root="/").paths == ("d/x.tar",)


@pytest.mark.parametrize(
    ("urls", "root", "message"),
    [
        ("c/*.tar", None, "source 's' has the pattern 'c/\\*.tar', which matches no file"),
        (["a/x-0.tar", "c/{1,2}?.tar"], None, r"pattern 'c/1\?.tar', which matches no file"),
        ("a/y-*.tar", None, "matches no file; folder 'a' holds . others, such as 'x-.\\.tar'"),
        ("a", None, "source 's' names the folder 'a' but must name shards, as in 'a/\\*.tar'"),
        ("@no.txt", None, "source 's' lists '@no.txt', but the file was not found"),
        ("@empty", None, "lists '@empty', which is empty"),
        ("a/x-{0..1.tar", None, "pattern 'a/x-{0..1.tar', whose braces are wrong"),
        (["a/x-0.tar", "a/*.tar"], None, "lists 'x-0.tar' twice, as a/x-0.tar and a/x-0.tar"),
        (["a/x-0.tar", "./b/../a/x-0.tar"], None, "lists 'x-0.tar' twice, as ./b/../a/x-0.tar and a/x-0.tar"),
        ("a/*.tar", "b", "has the shard .*/a/x-0.tar but its `root` is .*/b;"),
        (["s3://one/x.tar", "s3://two/x.tar"], None, "has shards at s3://one and at s3://two but the shards of a source need a common root"),
        (["/d/x.tar", "s3://two/x.tar"], None, "the shards of a source need a common root"),
        ("pipe:cat", None, "does not name a .tar"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_an_error_with_the_pattern(
    folder: Path, urls: str | list[str], root: str | None, message: str
) -> None:
    Path("empty").touch()
    with pytest.raises(SourceError, match=rf"{message}"):
        _shards(urls, root)


@pytest.mark.parametrize(
    ("urls", "root", "paths"),
    [
        ("s3://bucket/a/x-{0..1}.tar", "s3://bucket/a", ["x-0.tar", "x-1.tar"]),
        (["s3://bucket/x.tar", "s3://bucket/b/y.tar"], "s3://bucket", ["b/y.tar", "x.tar"]),
        ("https://host/a/x.tar?signature=a/b", "https://host/a", ["x.tar"]),
        ("simplecache::s3://bucket/a/x.tar", "s3://bucket/a", ["x.tar"]),
        ("pipe:aws s3 cp s3://bucket/a/x-{0..1}.tar - | cat", "s3://bucket/a", ["x-0.tar", "x-1.tar"]),
        ("pipe:curl -s 'https://host/a/x.tar' || true", "https://host/a", ["x.tar"]),
    ],
)
def test_remote_shards_are_named_without_being_asked_for(urls: str | list[str], root: str, paths: list[str]) -> None:
    shards = _shards(urls)
    assert shards.root == root
    assert list(shards.paths) == paths


def test_a_copy_of_a_source_has_the_same_paths(folder: Path, memory: Any) -> None:
    local = _shards("*/*.tar")
    remote = _shards("memory://bucket/*/*.tar")
    assert local.paths == remote.paths == ("a/x-0.tar", "a/x-1.tar", "b/x-0.tar")
    assert remote.root == "memory:///bucket"
    assert [read_bytes(url, None) for url in remote.urls] == [b"0", b"1", b"2"]


def test_a_remote_glob_sees_shards_that_were_added(memory: Any) -> None:
    assert len(_shards("memory://bucket/a/*.tar")) == 2
    memory.pipe_file("/bucket/a/x-2.tar", b"3")
    assert len(_shards("memory://bucket/a/*.tar")) == 3


def test_sidecars_lie_beside_shards_or_mirrored_below_a_folder() -> None:
    shards = _shards(["/d/a/x.tar", "/d/b/y.tar.gz"])
    assert [sidecar_url(shards, path) for path in shards.paths] == [
        "/d/a/x.presence.npz",
        "/d/b/y.tar.gz.presence.npz",
    ]
    elsewhere = expand(Source("s", ["/d/a/x.tar", "/d/b/y.tar.gz"], sidecars="s3://side/"))
    assert [sidecar_url(elsewhere, path) for path in elsewhere.paths] == [
        "s3://side/a/x.presence.npz",
        "s3://side/b/y.tar.gz.presence.npz",
    ]
    assert sidecar_path("x.tar.tar") == "x.tar.presence.npz"
    assert join("/", "x") == "/x"


@pytest.mark.parametrize("begin", ["", "file:", "file://", "memory://bucket"])
def test_files_are_written_read_and_measured_alike_everywhere(begin: str, tmp_path: Path, memory: Any) -> None:
    url = f"{begin}{tmp_path}/new/folder/x.npz"
    assert not exists(url, None)
    with pytest.raises(FileNotFoundError):
        read_bytes(url, None)
    write_bytes_atomically(url, b"old", None)
    write_bytes_atomically(url, b"newer", None)
    assert exists(url, None)
    assert read_bytes(url, None) == b"newer"
    with open_stream(url, None, Retries()) as (file, size):
        assert size == 5
        file.seek(3)
        assert file.read() == b"er"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = str(tmp_path / "x.npz")
    write_bytes_atomically(url, b"old", None)

    def full(_path: Path, _target: Path) -> None:
        raise OSError("disk is full")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="disk is full"):
        write_bytes_atomically(url, b"new", None)
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]
    assert read_bytes(url, None) == b"old"


def test_a_store_that_shows_half_files_gets_them_by_renaming(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    pipe_file = type(memory).pipe_file
    monkeypatch.setattr(type(memory), "protocol", ("memory", "sftp"))

    def recording(self: Any, path: str, raw: bytes) -> None:
        written.append(path)
        pipe_file(self, path, raw)

    monkeypatch.setattr(type(memory), "pipe_file", recording)
    write_bytes_atomically("memory://bucket/c/x.npz", b"new", None)
    assert written[0].startswith("/bucket/c/x.npz.")
    assert memory.ls("/bucket/c", detail=False) == ["/bucket/c/x.npz"]


def test_the_output_of_a_command_has_no_positions() -> None:
    with pytest.raises(SourceError, match=r"pipe:cat x\.tar is the output of a command"):
        write_bytes_atomically("pipe:cat x.tar", b"", None)


def test_local_files_do_not_load_fsspec(folder: Path) -> None:
    program = """
import sys
from equitar.storage.streams import open_stream
from equitar.sources import Retries, Source
from equitar.storage.files import exists, read_bytes, write_bytes_atomically
from equitar.storage.listing import expand
for url in expand(Source("s", ["a/*.tar", "b/x-{0..0}.tar"])).urls:
    read_bytes(url, None), exists(url, None)
    with open_stream(url, None, Retries()) as (file, size):
        file.read()
    write_bytes_atomically(url, b"", None)
print(*({"fsspec", "torch", "webdataset"} & set(sys.modules)))
"""
    path = str(Path(__file__).parents[2] / "src")
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {path!r})\n{program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == []


def test_lists_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    for name, text in (("list.txt", "a.tar\nb.tar\n"), ("sizes.json", '{"a.tar": 1, "b.tar": 2}')):
        (tmp_path / name).write_text(
            text.replace("a.tar", f"{tmp_path}/a.tar").replace("b.tar", f"{tmp_path}/b.tar"), "utf-8-sig"
        )
        assert expand(Source("s", f"@{tmp_path}/{name}")).paths == ("a.tar", "b.tar")
