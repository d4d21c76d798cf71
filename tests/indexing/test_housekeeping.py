"""What killed writes left is removed when it is surely nobody's any more, and nothing else is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import equitar
from equitar.cli.app import main
from equitar.indexing.housekeeping import sweep
from equitar.sources import Source
from equitar.storage.listing import expand
from helpers.shards import write_source

DAY = 86_400
HEX = "0123456789abcdef" * 2


def left(path: Path, age: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"half")
    os.utime(path, (time.time() - age,) * 2)
    return path


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return write_source(tmp_path, "a", [3, 4])


OURS = (
    f"000.presence.npz.{HEX}.partial",
    f"a.summary.json.{HEX}.partial",
    f"a.{HEX[:16]}.summary.npz.{HEX}.partial",
    f".equitar-{HEX}.recipe.{HEX}.partial",
)
OTHERS = (
    f"002.presence.npz.{HEX}.partial",  # of a shard that the source does not have
    f"b.summary.json.{HEX}.partial",
    f"000.tar.{HEX}.partial",
    "000.presence.npz.partial",
    f"000.presence.npz.{HEX[:8]}.partial",
    f"below/a.summary.json.{HEX}.partial",
    f"000.presence.npz.{HEX}",
)


def test_only_old_files_of_the_source_are_removed_and_told(source: Source, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    old = [left(folder / name, DAY + 60) for name in OURS]
    kept = [left(folder / name, DAY + 60) for name in OTHERS]
    kept += [left(folder / name.replace(HEX + ".partial", "f" * 32 + ".partial"), DAY - 60) for name in OURS]
    words = [f"a={folder}/*.tar", "--labels", "cls", "--quiet", "--jobs", "1"]
    result = CliRunner().invoke(main, ["index", *words])
    assert f"a: 4 left by killed writes, removed: '.equitar-{HEX}.recipe.{HEX}.partial'" in result.output
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in kept)
    left(old[0], DAY + 60)
    again = json.loads(CliRunner().invoke(main, ["index", *words, "--json"]).output)
    assert again["sources"][0]["swept"] == [OURS[0]]
    assert "killed" not in CliRunner().invoke(main, ["index", *words]).output


def test_mirrored_folders_and_parts_are_swept_too(source: Source, tmp_path: Path) -> None:
    side = Source("a", f"{tmp_path}/a/*.tar", root=str(tmp_path), sidecars=str(tmp_path / "side"))
    partial = left(tmp_path / "side" / "a" / OURS[0], 2 * DAY)
    (report,) = equitar.index(side, part=(1, 2), jobs=1, progress=False).sources
    assert report.swept == (f"a/{OURS[0]}",)
    assert not partial.exists()


def test_many_may_sweep_at_once_and_each_file_is_told_once(source: Source, tmp_path: Path) -> None:
    names = {f"00{number % 2}.presence.npz.{number:032x}.partial" for number in range(200)}
    for name in names:
        left(tmp_path / "a" / name, 2 * DAY)
    with ThreadPoolExecutor(8) as pool:
        swept = list(pool.map(lambda _: sweep(expand(source)), range(8)))
    assert sorted(name for names_swept in swept for name in names_swept) == sorted(names)


def test_a_store_and_a_folder_that_is_not_there_have_nothing(tmp_path: Path) -> None:
    assert sweep(expand(Source("a", "memory://bucket/x.tar"))) == []
    assert sweep(expand(Source("a", str(tmp_path / "none/x.tar")))) == []


def test_what_a_killed_write_leaves_is_what_is_swept(source: Source, tmp_path: Path) -> None:
    code = """if 1:
        import os, signal, sys
        from pathlib import Path
        from equitar.storage.files import write_bytes_atomically
        Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        write_bytes_atomically(sys.argv[1], b"half", None)
    """
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a" / "000.presence.npz")], check=False)
    assert killed.returncode == -signal.SIGKILL
    (partial,) = (tmp_path / "a").glob("*.partial")
    assert sweep(expand(source)) == []
    os.utime(partial, (0, 0))
    assert sweep(expand(replace(source, name="other name"))) == [partial.name]
