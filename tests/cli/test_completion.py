"""A shell completes commands, options and the files in SOURCE, as `_EQUITAR_COMPLETE` asks for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


def ran(variables: Mapping[str, str], folder: Path) -> str:
    """Return what `equitar` prints with these variables."""
    script = "from equitar.cli.app import main; main(prog_name='equitar', complete_var='_EQUITAR_COMPLETE')"
    process = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return process.stdout


def completed(words: str, folder: Path) -> list[str]:
    """Ask as bash asks: with the words in the environment."""
    cursor = str(len(words.split(" ")) - 1)
    printed = ran({"_EQUITAR_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": cursor}, folder)
    return [line.partition(",")[2] for line in printed.splitlines() if line]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for name in ("a-0.tar", "a-1.tar", "b.tar.gz", "notes.txt", "list.txt"):
        (tmp_path / "data" / name).touch()
    return tmp_path


def test_commands_and_options_complete(folder: Path) -> None:
    assert completed("equitar i", folder) == ["index"]
    assert "--labels-from" in completed("equitar index --la", folder)


@pytest.mark.parametrize(
    ("begun", "right"),
    [
        ("cc3m=", ["cc3m=data/"]),
        ("cc3m=data/a", ["cc3m=data/a-0.tar", "cc3m=data/a-1.tar"]),
        ("cc3m=data/", ["cc3m=data/a-0.tar", "cc3m=data/a-1.tar", "cc3m=data/b.tar.gz"]),
        ("cc3m=@data/l", ["cc3m=@data/list.txt"]),
        ("cc3m=nowhere/", []),
        ("cc3m", []),
        ("cc3m = data/a-0", ["data/a-0.tar"]),  # as bash cuts it
    ],
)
def test_a_source_completes_to_the_shards_that_are_there(folder: Path, begun: str, right: list[str]) -> None:
    assert completed(f"equitar index {begun}", folder) == right


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
def test_the_script_for_bash_is_bash_and_there_is_no_command_for_it(folder: Path) -> None:
    subprocess.run(["bash", "-n"], input=ran({"_EQUITAR_COMPLETE": "bash_source"}, folder), text=True, check=True)
    assert completed("equitar comp", folder) == []
