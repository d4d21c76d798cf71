"""What does a shell get that completes a command line?"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from equitar.cli.app import main


def completed(words: str, folder: Path) -> list[str]:
    """Ask as bash asks: with the words in the environment."""
    line = {"_EQUITAR_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    script = "from equitar.cli import main; main(prog_name='equitar', complete_var='_EQUITAR_COMPLETE')"
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **line},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return [one.partition(",")[2] for one in ran.stdout.splitlines() if one]


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
def test_what_is_printed_for_bash_is_bash() -> None:
    printed = CliRunner().invoke(main, ["completion", "bash"])
    assert printed.exit_code == 0
    subprocess.run(["bash", "-n"], input=printed.output, text=True, check=True)


def test_another_shell_is_a_wrong_command_line() -> None:
    assert CliRunner().invoke(main, ["completion", "dos"]).exit_code == 2
