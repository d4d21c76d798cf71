"""Processes that index: from any script, in read-only folders, and after Ctrl-C."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import equitar
from equitar.cli.app import main
from equitar.errors import ReadOnlyError
from equitar.indexing.executors import outcomes
from equitar.sources import Source
from helpers.labelled_shards import shard

SHARDS = 20
SCRIPT = """
import sys
import equitar
print("the script runs")
equitar.index(equitar.Source("s", sys.argv[1] + "/*.tar"), labels="cls", jobs=2, progress=False)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(SHARDS):
        shard(tmp_path / f"x-{number:02}.tar", [str(number)])
    return tmp_path


def environment() -> dict[str, str]:
    package = Path(equitar.__file__).parents[1]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(package), *sys.path])}


def index(folder: Path, **more: Any) -> Any:
    return equitar.index(Source("s", f"{folder}/*.tar", root=str(folder)), progress=False, **more)


# ---------------------------------------------------------------- any script


@pytest.mark.parametrize("way", ["script", "stdin", "command"])
def test_a_script_without_a_main_guard_may_index_in_processes(folder: Path, way: str) -> None:
    (folder / "plain.py").write_text(SCRIPT)
    words = {"script": [str(folder / "plain.py")], "stdin": ["-"], "command": ["-c", SCRIPT]}[way]
    ran = subprocess.run(
        [sys.executable, *words, str(folder)],
        input=SCRIPT if way == "stdin" else "",
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "the script runs\n", "")
    assert len(list(folder.glob("*.presence.npz"))) == SHARDS
    assert len(list(folder.glob("*.summary.npz"))) == 1


def test_a_function_of_the_script_itself_labels_the_shards(folder: Path) -> None:
    (folder / "plain.py").write_text(
        "def twice(sample):\n    return 2 * int(sample['cls'])\n" + SCRIPT.replace('"cls"', '"__main__:twice"')
    )
    ran = subprocess.run(
        [sys.executable, str(folder / "plain.py"), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def fails(number: int) -> int:
    if number == 3:
        raise KeyError("of a task")
    if number == 4:
        raise OddError("a", "b")
    return os.getpid()


class OddError(Exception):
    """An error that can be pickled, but not unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def test_errors_and_results_come_back_from_processes() -> None:
    outcome_of = dict(outcomes(fails, range(20), jobs=2, executor=None))
    errors = {number: error for number, error in outcome_of.items() if isinstance(error, BaseException)}
    assert {number: repr(error) for number, error in errors.items()} == {
        3: "KeyError('of a task')",
        4: "RuntimeError('OddError: ab')",
    }
    assert "raise KeyError" in str(errors[3].__cause__)
    processes = set(outcome_of.values()) - set(errors.values())
    assert os.getpid() not in processes
    assert 1 <= len(processes) <= 2


def children() -> set[str]:
    return set(Path("/proc/thread-self/children").read_text(encoding="ascii").split())


@pytest.mark.skipif(not Path("/proc/thread-self/children").exists(), reason="needs /proc")
def test_processes_end_at_once_when_nobody_wants_their_results() -> None:
    before = children()
    results = outcomes(time.sleep, [0.0, 60.0, 60.0], jobs=2, executor=None)
    next(results)
    begin = time.monotonic()
    results.close()
    assert time.monotonic() - begin < 10
    assert children() <= before


# ---------------------------------------------------------------- read-only data


@contextmanager
def read_only(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[None]:
    """Make writes into a folder fail as a read-only file system does; root can write past permissions."""

    def refusing(name: str) -> None:
        original = getattr(Path, name)

        def refused(path: Path, *words: Any, **named: Any) -> Any:
            if path.is_relative_to(folder) and not (name == "unlink" and not path.exists()):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            return original(path, *words, **named)

        patched.setattr(Path, name, refused)

    with monkeypatch.context() as patched:
        for name in ("write_bytes", "touch", "unlink", "replace"):
            refusing(name)
        yield


@pytest.mark.parametrize("copied", [False, True])
def test_index_of_read_only_data_that_is_up_to_date_does_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    index(folder, labels="cls", jobs=1)
    stale = folder / f"x-00.presence.npz.{'0' * 32}.partial"
    stale.write_bytes(b"")
    os.utime(stale, (0, 0))
    if copied:  # by `cp -r`: shards are newer than their sidecars
        later = time.time() + 5
        for path in folder.glob("*.tar"):
            os.utime(path, (later, later))
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    with read_only(monkeypatch, folder):
        result = CliRunner().invoke(main, ["index", f"s={folder}/*.tar", "--jobs", "1", "--quiet"])
    assert (result.exit_code, result.output.splitlines()[1].split()[:3]) == (0, ["s", "0", str(SHARDS)])
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_index_that_must_write_into_a_read_only_folder_names_the_option(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(folder, labels="cls", jobs=1)
    shard(folder / "x-07.tar", ["1", "2"])
    with (
        read_only(monkeypatch, folder),
        pytest.raises(ReadOnlyError, match=r"x-07\.presence\.npz.* cannot be written .*`--sidecars`"),
    ):
        index(folder, jobs=1)


# ---------------------------------------------------------------- Ctrl-C

SLOW = """
import os, pathlib, time

def labels(sample):
    here = pathlib.Path(__file__).parent
    (here / f"begun-{sample['cls'].decode()}").touch()
    if int(sample["cls"]) >= 4:
        time.sleep(60)
    return [int(sample["cls"])]
"""


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_is_one_line_and_keeps_what_is_done(folder: Path, jobs: str) -> None:
    (folder / "slow_labels.py").write_text(SLOW)
    words = ["index", f"s={folder}/*.tar", "--labels", "slow_labels:labels", "--jobs", jobs, "--quiet"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(
        [sys.executable, "-m", "equitar.cli", *words],
        cwd=folder,
        env=environment(),
        text=True,
        start_new_session=True,
        **pipes,
    ) as process:
        try:
            deadline = time.monotonic() + 60
            while not ((folder / "begun-4").exists() and len(list(folder.glob("*.presence.npz"))) == 4):
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes in the foreground
            output, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, output, errors) == (130, "", "Interrupted. Resumable: rerun to continue.\n")
    assert len(list(folder.glob("*.presence.npz"))) == 4
    assert not list(folder.glob("*.partial"))


@pytest.mark.parametrize("command", ["stats", "check", "plan"])
def test_ctrl_c_in_any_command_ends_with_130(folder: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(main.commands[command], "invoke", interrupted)
    result = CliRunner().invoke(main, [command, f"s={folder}/*.tar"])
    assert (result.exit_code, result.output) == (130, "Interrupted. Resumable: rerun to continue.\n")
