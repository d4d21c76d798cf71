"""Is all that is public on the site, and does the site need nothing but itself?"""

from __future__ import annotations

import re
import runpy
from html import unescape
from pathlib import Path

import pytest
from markdown import Markdown  # type: ignore[import-untyped]  # it has no types

import equitar
from equitar.cli.app import main

DOCS = Path(__file__).parents[2] / "docs"


def test_every_public_name_is_in_the_api_reference_once() -> None:
    shown = [
        name
        for page in sorted((DOCS / "api").glob("*.md"))
        for name in re.findall(
            r"^::: equitar\.((?:(?:stages|samplers|errors)\.)?[A-Za-z_]+)$",
            page.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    ]
    modules = {"errors", "samplers", "stages"}
    public = {*equitar.__all__} - modules
    public |= {f"{module}.{name}" for module in ("samplers", "stages") for name in getattr(equitar, module).__all__}
    public |= {
        f"errors.{name}"
        for name, value in vars(equitar.errors).items()
        if isinstance(value, type) and issubclass(value, equitar.EquitarError) and value is not equitar.EquitarError
    }
    missing = public - set(shown)
    assert not missing, f"add `::: equitar.{min(missing)}` to a page in docs/api"
    assert set(shown) <= public | modules
    assert len(shown) == len(set(shown))


@pytest.mark.parametrize("asset", sorted((DOCS / "assets").glob("*.*")), ids=lambda path: path.name)
def test_assets_load_nothing_from_elsewhere(asset: Path) -> None:
    loaded = re.findall(r"""(?:src|href|url\(|@import)\s*[=(]?\s*["']?(https?:)""", asset.read_text(encoding="utf-8"))
    assert not loaded


@pytest.mark.parametrize(
    "tag",
    ['<script src="https://x.org/a.js">', "<link rel=stylesheet href=//x.org/a.css>", "<img src='http://x.org/a.png'>"],
)
def test_a_page_that_loads_something_from_elsewhere_is_refused(tag: str) -> None:
    hooks = runpy.run_path(str(DOCS / "hooks.py"))
    with pytest.raises(hooks["PluginError"], match=re.escape(tag)):
        hooks["on_post_page"](f"<p>{tag}</p>")
    fine = '<a href="https://x.org">x</a><script src="assets/a.js"></script>'
    assert hooks["on_post_page"](fine) == fine


def test_the_page_on_the_command_line_has_the_help_of_every_command() -> None:
    hooks = runpy.run_path(str(DOCS / "hooks.py"))
    page = hooks["on_page_markdown"]((DOCS / "cli.md").read_text(encoding="utf-8"))
    assert not [
        name
        for name in main.commands
        if f"## equitar {name}\n\n```console\n$ equitar {name} --help\nUsage: equitar {name} " not in page
    ]
    assert hooks["on_page_markdown"]("a\n<!-- computed by\ncode\n-->\nb") == "a\nb"


@pytest.mark.parametrize("page", [*sorted(DOCS.rglob("*.md")), DOCS.parent / "README.md"], ids=lambda path: path.name)
def test_code_and_commands_fit_80_columns(page: Path) -> None:
    shown = re.sub(r"^<!--.*?-->$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    typed = []
    for language, body in re.findall(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", shown, re.MULTILINE | re.DOTALL):
        if language == "console":
            typed += re.findall(r"^\$ (?:.*\\\n)*.*$", body, re.MULTILINE)
        elif language != "text":
            typed.append(body)
    assert not [line for block in typed for line in block.splitlines() if len(line) > 80]


def test_the_copy_button_of_a_console_block_takes_the_commands_without_prompts_and_output() -> None:
    markdown = 'text\n\n```console\n$ equitar plan "a=<x>" \\\n    --steps 2\nepoch 0\n$ ls\n    a\n```\n\n```pycon\n>>> for a in b:\n...     c\n1\n```\n'
    extensions = ["pymdownx.highlight", "pymdownx.superfences"]
    content = Markdown(extensions=extensions, extension_configs={extensions[0]: {"pygments_lang_class": True}})
    page = runpy.run_path(str(DOCS / "hooks.py"))["on_page_content"](content.convert(markdown))
    copied = [unescape(attribute) for attribute in re.findall(r'data-copy="(.*?)"', page, re.DOTALL)]
    assert copied == ['equitar plan "a=<x>" \\\n    --steps 2\nls', "for a in b:\n    c"]


def test_messages_of_errors_wrap_and_other_output_does_not() -> None:
    shown = runpy.run_path(str(DOCS / "hooks.py"))["on_page_content"]
    block = '<div class="language-{} highlight"><pre><span></span><code>{}\n</code></pre></div>'
    table, message = block.format("text", "a  b"), block.format("text", "equitar.errors.PlanError: too small")
    assert shown(table + message) == table + message.replace(' highlight"', ' highlight message"')
