"""Does what the pages of the documentation show still come? Their blocks run, in order, in a folder of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.page_runner import run_page

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    "choosing.md",
    "evidence.md",
    "faq.md",
    "how-it-works.md",
    "importers.md",
    "many-machines.md",
    "read-only.md",
    "recipes/checkpoints.md",
    "recipes/iterations.md",
    "report.md",
]


@pytest.mark.parametrize("name", [*PAGES, pytest.param("tutorial.md", marks=pytest.mark.distributed)])
def test_blocks_of_a_page_print_what_it_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    outputs = list(run_page(DOCS / name))
    assert outputs, "a page without outputs shows nothing"
    for output in outputs:
        assert output.fits, f"{name}, line {output.line}, says\n{output.expected}\nbut this came\n{output.actual}"
