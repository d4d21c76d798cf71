"""What mkdocs does beside its plugins: fill in the help of the commands, and refuse pages that load something from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
from click.testing import CliRunner
from mkdocs.exceptions import PluginError

from equitar.cli.app import main

_WIDTH = 88  # columns of the help on the page
_COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)
_FROM_ELSEWHERE = re.compile(r"""<(?:script|img|iframe|link|source)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^>]*>""")


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put the help of every command where a page says ``{{ commands }}``; leave out comments: code that tests run."""
    shown = _COMMENT.sub("", markdown)
    return shown.replace("{{ commands }}", "\n\n".join(_sections())) if "{{ commands }}" in shown else shown


def on_post_page(output: str, **_: object) -> str:
    """Raise where a browser would ask another server for a part of the page."""
    if found := _FROM_ELSEWHERE.search(output):
        raise PluginError(f"a page must load nothing from elsewhere; got {found[0]}")
    return output


def _sections() -> Iterator[str]:
    """Yield a section for the program and for each of its commands."""
    for words in ([], *([name] for name in main.list_commands(click.Context(main)))):
        ran = CliRunner().invoke(main, [*words, "--help"], prog_name="equitar", terminal_width=_WIDTH)
        title = " ".join(["equitar", *words])
        yield f"## {title}\n\n```console\n$ {title} --help\n{ran.output}```"
