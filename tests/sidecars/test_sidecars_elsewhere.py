"""Stores that take no files, labels made anew, several sets of labels: sidecars that lie elsewhere."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import equitar
from equitar.cli.app import main
from equitar.errors import ReadOnlyError
from equitar.indexing import shard_task
from equitar.sidecars.sidecar import read_sidecar
from equitar.sidecars.summary import load_summary
from equitar.sources import Source
from equitar.storage.streams import open_stream
from helpers.fault_server import serving, site_of
from helpers.labelled_shards import rows, shard, sidecar_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(4):
        shard(tmp_path / "tars" / f"x-{number}.tar", [str(number), "7"])
    return tmp_path / "tars"


# ---- read-only stores -----------------------------------------------------------------------------------------------------


def test_a_read_only_store_is_told_once_with_the_option_that_helps(folder: Path) -> None:
    with serving(site_of(folder)) as site:
        words = ["index", f"s={site.url}/x-{{0..3}}.tar", "--jobs", "1"]
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 1
        (line,) = result.output.splitlines()
        assert "x-0.presence.npz cannot be written" in line
        assert "--sidecars" in line
        assert not site.requests["/x-3.tar"]  # what would be for nothing is not read
        assert CliRunner().invoke(main, [*words, "--sidecars", f"{folder}/../side"]).exit_code == 0
        source = Source("s", f"{site.url}/x-{{0..3}}.tar", sidecars=str(folder.parent / "side"))
        batches = equitar.debiased([source], batch_size=4, rank=0, world_size=1)
        assert sum(len(batch["__key__"]) for batch in batches) == 8


def test_a_read_only_folder_is_told_likewise(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, raw: bytes) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(
        Path, "write_bytes", lambda path, raw: refuse(path, raw) if "presence" in path.name else _write(path, raw)
    )
    with pytest.raises(ReadOnlyError, match=r"x-0\.presence\.npz cannot be written .*--sidecars"):
        equitar.index(Source("s", f"{folder}/*.tar"), jobs=1, progress=False)


def _write(path: Path, raw: bytes) -> int:
    with path.open("wb") as file:
        return file.write(raw)


# ---- labels made anew -----------------------------------------------------------------------------------------------------


class Counted(io.RawIOBase):
    """A shard that notes which bytes of it are read."""

    def __init__(self, file: Any, spans: list[tuple[int, int]]) -> None:
        super().__init__()
        self._file, self._spans = file, spans

    def seek(self, offset: int, whence: int = 0) -> int:
        position: int = self._file.seek(offset, whence)
        return position

    def read(self, size: int = -1, /) -> bytes:
        start = self._file.tell()
        raw: bytes = self._file.read(size)
        self._spans.append((start, start + len(raw)))
        return raw


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return what is read of shards, from now on."""
    noted: list[tuple[int, int]] = []

    @contextmanager
    def counting(*words: Any) -> Iterator[tuple[Any, int]]:
        with open_stream(*words) as (file, size):
            yield Counted(file, noted), size

    monkeypatch.setattr(shard_task, "open_stream", counting)
    return noted


def test_of_tars_whose_members_are_known_only_label_members_and_their_headers_are_read(
    folder: Path, spans: list[tuple[int, int]]
) -> None:
    source = Source("s", f"{folder}/*.tar")
    equitar.index(source, jobs=1, progress=False)
    spans.clear()
    report = equitar.index(source, labels="cls", jobs=1, progress=False).sources[0]
    assert report.written == 4
    assert rows(sidecar_of(folder / "x-2.tar")) == [[2], [7]]
    wanted = []
    for path in sorted(folder.glob("*.tar")):
        sidecar = sidecar_of(path)
        of_labels = sidecar.table.field == sidecar.table.fields.index("cls")
        wanted += [
            (int(offset) - 512, int(offset + size))
            for offset, size in zip(sidecar.table.offset[of_labels], sidecar.table.size[of_labels], strict=True)
        ]
    assert spans == wanted
    assert equitar.check(source, jobs=1, progress=False) == []


def test_labels_of_a_known_tar_are_what_a_walk_finds(folder: Path, tmp_path: Path) -> None:
    again, fresh = (Source("s", f"{folder}/*.tar", sidecars=str(tmp_path / name)) for name in ("again", "fresh"))
    equitar.index(again, jobs=1, progress=False)
    for source in (again, fresh):
        equitar.index(source, labels="cls", jobs=1, progress=False)
    for path in (tmp_path / "fresh").iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()


def test_a_tar_that_was_written_anew_in_the_same_size_is_walked(folder: Path) -> None:
    source = Source("s", f"{folder}/x-0.tar")
    equitar.index(source, jobs=1, progress=False)
    before = (folder / "x-0.tar").read_bytes()
    (folder / "x-0.tar").write_bytes(renamed(before))
    os.utime(folder / "x-0.tar", (0, 0))  # as a store that tells no time, or a copy that keeps an old one
    equitar.index(source, labels="cls", jobs=1, progress=False)
    sidecar = sidecar_of(folder / "x-0.tar")
    assert list(sidecar.keys) == ["y-0-0", "y-0-1"]
    assert rows(sidecar) == [[0], [7]]
    assert equitar.check(source, jobs=1, progress=False) == []


def renamed(tar: bytes) -> bytes:
    """Return a tar with other keys and the same length."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(tar)) as before, tarfile.open(fileobj=packed, mode="w") as after:
        for member in before:
            content = before.extractfile(member)
            member.name = member.name.replace("x-", "y-")
            after.addfile(member, content)
    return packed.getvalue()[: len(tar)]  # zeros follow, up to a whole record


def test_labels_from_a_file_read_nothing_of_the_tars(
    folder: Path, spans: list[tuple[int, int]], tmp_path: Path
) -> None:
    source = Source("s", f"{folder}/*.tar")
    equitar.index(source, jobs=1, progress=False)
    spans.clear()
    (tmp_path / "labels.tsv").write_text("".join(f"x-{number}-{row}\t5\n" for number in range(4) for row in range(2)))
    equitar.index(source, labels_from=str(tmp_path / "labels.tsv"), jobs=1, progress=False)
    assert spans == []


# ---- several sets of labels -----------------------------------------------------------------------------------------------


def test_a_folder_of_sidecars_is_a_set_of_labels(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.tsv").write_text("".join(f"x-{number}-{row}\t5\n" for number in range(4) for row in range(2)))
    urls = f"{folder}/*.tar"
    classes, others = (Source("s", urls, sidecars=str(tmp_path / name)) for name in ("classes", "others"))
    equitar.index(classes, labels="cls", jobs=1, progress=False)
    equitar.index(others, labels_from=str(tmp_path / "labels.tsv"), jobs=1, progress=False)
    ids = []
    for source in (classes, others):
        counts = load_summary(source).label_counts
        assert counts is not None
        ids.append(sorted(set(counts.ids.tolist())))
    assert ids == [[0, 1, 2, 3, 7], [5]]
    assert rows(read_sidecar(str(tmp_path / "others" / "x-1.presence.npz"), fix="")) == [[5], [5]]
