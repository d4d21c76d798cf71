"""Does the code of the pages run? The blocks of a page are one script, top to bottom, on small shards."""

from __future__ import annotations

from pathlib import Path

import pytest

import equitar
from helpers.pages import python_blocks, write_digits
from helpers.shards import let_webdataset_close


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages") / "shards"
    write_digits(folder)
    for name in ("digits", "negatives"):
        equitar.index(equitar.Source(name, f"{folder}/{name}-*.tar"), labels="cls", jobs=1, progress=False)
    return folder


def run_page(page: str, names: dict[str, object]) -> None:
    blocks = python_blocks(page)
    assert len(blocks) >= 3
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{page}, block {number}", "exec"), names)


def test_transforms(folder: Path) -> None:
    sources = [equitar.Source(name, f"{folder}/{name}-*.tar") for name in ("digits", "negatives")]
    run_page("transforms.md", {"__name__": "transforms", "sources": sources})


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_migration(folder: Path) -> None:
    urls, size = f"{folder}/digits-{{000000..000001}}.tar", 446
    equitar.index(equitar.Source("cc3m", urls), jobs=1, progress=False)
    run_page("recipes/migration.md", {"__name__": "migration", "urls": urls, "number_of_samples": size})
    let_webdataset_close()
