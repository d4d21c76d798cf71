"""What mkdocs does besides its plugins: command help, copy buttons that copy commands only, no content from other servers."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

import click
from click.testing import CliRunner
from mkdocs.exceptions import PluginError

from equitar.cli.app import main

_WIDTH = 88  # columns of the help on the page
_PROMPTS = {
    "console": ("$ ", ""),
    "pycon": (">>> ", "... "),
}  # of a command's first line, and of those after it
_SESSION = re.compile(
    r'<div class="language-(?P<language>console|pycon) highlight">(?=(?:<span class="filename">.*?</span>)?<pre>'
    r"(?:<span></span>)?<code>(?P<body>.*?)</code></pre>)",
    re.DOTALL,
)
_MESSAGE = re.compile(
    r'(<div class="language-(?:text|console) highlight)(?="(?:(?!</div>).)*Error: )',
    re.DOTALL,
)
_TAG = re.compile(r"<[^>]*>")
_COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)
_FROM_ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe|link|source)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^>]*>"""
)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put the help of every command where a page says ``{{ commands }}``; leave out comments: code that tests run."""
    shown = _COMMENT.sub("", markdown)
    return (
        shown.replace("{{ commands }}", "\n\n".join(_sections()))
        if "{{ commands }}" in shown
        else shown
    )


def on_page_content(content: str, **_: object) -> str:
    """Give every block with prompts the text that its copy button copies, the commands alone; let messages of errors wrap."""
    with_copies = _SESSION.sub(
        lambda block: (
            f'<div class="language-{block["language"]} highlight" '
            f'data-copy="{html.escape(_commands(html.unescape(_TAG.sub("", block["body"])), block["language"]))}">'
        ),
        content,
    )
    return _MESSAGE.sub(r"\1 message", with_copies)


def on_post_page(output: str, **_: object) -> str:
    """Raise where a browser would ask another server for a part of the page."""
    if found := _FROM_ELSEWHERE.search(output):
        raise PluginError(
            f"a page must load nothing from elsewhere; got {found[0]}"
        )
    return output


def _commands(session: str, language: str) -> str:
    """Return the lines of a session that somebody typed, without their prompts."""
    first, next_ = _PROMPTS[language]
    typed: list[str] = []
    goes_on = False
    for line in session.splitlines():
        if line.startswith(first) or (goes_on and line.startswith(next_)):
            typed.append(
                line.removeprefix(first if line.startswith(first) else next_)
            )
            goes_on = language == "pycon" or line.endswith("\\")
        else:
            goes_on = False
    return "\n".join(typed)


def _sections() -> Iterator[str]:
    """Yield a section for the program and for each of its commands."""
    for words in (
        [],
        *([name] for name in main.list_commands(click.Context(main))),
    ):
        ran = CliRunner().invoke(
            main, [*words, "--help"], prog_name="equitar", terminal_width=_WIDTH
        )
        title = " ".join(["equitar", *words])
        yield f"## {title}\n\n```console\n$ {title} --help\n{ran.output}```"
