"""Runs the blocks of a page of the documentation, and compares what they print with what the page says.

* A block of ``python`` runs in a namespace that the page shares; with a title it is written to a file of that name instead.
  So does a comment that begins with ``computed by``, which readers do not see.
* A comment ``<!-- run:NAME -->`` runs the block below ``## NAME`` in the page of that name in ``tests/docs/hidden``; if it is
  ``<!-- run:NAME with FILE -->``, only where that file lies beside the repository (`data_real`), as ``path``.
* A block of ``text`` right after it is what it prints, and the last line of a trace if it raises.
* A block of ``console`` has commands after ``$``, each followed by what it prints.
* ``...`` in an output stands for anything, and after a comment ``<!-- numbers vary -->`` any number for another one.
* A comment ``<!-- not run -->`` before a block leaves it alone, as does any other language.

To put what comes now into pages:  PYTHONPATH=src:tests python tests/helpers/page_runner.py docs/tutorial.md ...
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

import equitar
from equitar.cli.app import main
from helpers.real_data import FOLDER

_BLOCK = re.compile(
    r'^(?:```(?P<language>python|text|console)(?: title="(?P<title>[^"]+)")?\n(?P<body>.*?)^```'
    r"|<!-- computed by\n(?P<hidden>.*?)^-->|<!-- run:(?P<name>\S+)(?: with (?P<file>\S+))? -->)$",
    re.MULTILINE | re.DOTALL,
)
_COMMAND = re.compile(r"^\$ (?P<command>(?:.*\\\n)*.*)\n(?P<output>(?:(?!\$ ).*\n)*)", re.MULTILINE)
_HIDDEN = re.compile(r"^## (\S+)\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NOT_RUN = "<!-- not run -->\n"
_NUMBERS_VARY = "<!-- numbers vary -->\n"


class Output(NamedTuple):
    """What a page says is printed, and what is: at which line, and from where to where in its text."""

    line: int
    span: tuple[int, int]
    expected: str
    actual: str
    numbers_vary: bool

    @property
    def fits(self) -> bool:
        """Whether the page is right."""
        pattern = ".*?".join(re.escape(part) for part in self.expected.strip().split("..."))
        if self.numbers_vary:
            pattern = re.sub(r"\d+", r"\\d+", pattern)
        return re.fullmatch(pattern, self.actual.strip(), re.DOTALL) is not None


def run_page(page: Path) -> Iterator[Output]:
    """Run the blocks of a page in the current folder, and yield what they print."""
    text = page.read_text(encoding="utf-8")
    hidden_page = Path(__file__).parents[1] / "docs" / "hidden" / page.name
    hidden = dict(_HIDDEN.findall(hidden_page.read_text(encoding="utf-8"))) if hidden_page.exists() else {}
    namespace: dict[str, Any] = {"__name__": page.stem, "repository": Path(__file__).parents[2]}
    printed, last_end = "", -1  # of the block before, and where it ended
    for block in _BLOCK.finditer(text):
        before, line = text[: block.start()], text.count("\n", 0, block.start()) + 1
        numbers_vary = before.endswith(_NUMBERS_VARY)
        if before.endswith(_NOT_RUN):
            continue
        if block["language"] == "text":
            if last_end >= 0 and not text[last_end : block.start()].removesuffix(_NUMBERS_VARY).strip():
                yield Output(line, block.span("body"), block["body"], printed, numbers_vary)
        elif block["language"] == "console":
            for command in _COMMAND.finditer(text, *block.span("body")):
                yield Output(
                    line, command.span("output"), command["output"], run_command(command["command"]), numbers_vary
                )
        elif block["title"]:
            Path(block["title"]).write_text(block["body"], encoding="utf-8")
        elif block["file"] and not (FOLDER / block["file"]).exists():
            last_end = -1  # what comes after it is not looked at
        else:
            namespace["path"] = FOLDER / (block["file"] or "")
            code = block["body"] or block["hidden"] or hidden[block["name"]]
            after = text[block.end() :].lstrip() if block["body"] else ""  # what readers do not see must not fail
            printed = _executed(code, f"{page.name}:{line}", namespace, after)
            last_end = block.end()


def _executed(code: str, where: str, namespace: dict[str, Any], after: str) -> str:
    """Return what code prints, with the last line of a trace where the page goes on with an output."""
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(code, where, "exec"), namespace)
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        if not after.startswith("```text"):
            raise
        out.write("".join(traceback.format_exception_only(error)))
    return out.getvalue()


def run_command(command: str) -> str:
    """Return what a command prints; where it can be, it runs in this process, where all is imported already."""
    words = shlex.split(command.replace("\\\n", " "))
    if words[0] == "equitar":
        # Starting processes takes longer than shards of this size.
        words += ["--jobs", "1"] if words[1] in ("index", "check") and "--jobs" not in words else []
        ran = CliRunner().invoke(main, words[1:])
        if ran.exception is not None and not isinstance(ran.exception, SystemExit):
            raise ran.exception
        return ran.output
    if words[0] == "python":
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            runpy.run_path(words[1], run_name="__main__")
        return out.getvalue()
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    env = {**os.environ, "PATH": os.pathsep.join(folders), "PYTHONPATH": str(Path(equitar.__file__).parents[1])}
    done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def rewrite(page: Path) -> None:
    """Put what the blocks of a page print now into the page, where that does not fit."""
    text, position, parts = page.read_text(encoding="utf-8"), 0, []
    for output in run_page(page):
        start, end = output.span
        parts += [text[position:start], output.expected if output.fits else output.actual.rstrip() + "\n"]
        position = end
    page.write_text("".join([*parts, text[position:]]), encoding="utf-8")


if __name__ == "__main__":
    for path in [Path(name).resolve() for name in sys.argv[1:]]:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            sys.path.insert(0, folder)
            rewrite(path)
            os.chdir("/")
