"""Does the code of the pages run? The blocks of a page are one script, top to bottom, on small shards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
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


def run_page(page: str, replaced: dict[str, str]) -> dict[str, object]:
    """Run the blocks of a page as a new file, with the shards of the test in place of a user's; return what it defines."""
    names: dict[str, object] = {"__name__": Path(page).stem}
    blocks = python_blocks(page)
    for number, block in enumerate(blocks, 1):
        code = block
        for shown, actual in replaced.items():
            code = code.replace(shown, actual)
        exec(compile(code, f"{page}, block {number}", "exec"), names)
    return names


def test_transforms(folder: Path) -> None:
    names = run_page("transforms.md", {"/data/": f"{folder}/", "cc3m": "digits", "sbu": "negatives"})
    assert {"mixup", "mosaic"} <= names.keys()
    whole = [batch["pixels"] for batch in equitar.Loader(names["crops"])]  # type: ignore[arg-type]
    loader, again = equitar.Loader(names["crops"]), equitar.Loader(names["crops"])  # type: ignore[arg-type]
    next(iter(loader))
    again.load_state_dict(loader.state_dict())
    assert np.array_equal(next(iter(again))["pixels"], whole[1])


def test_quick_start(folder: Path) -> None:
    shown = {"/data/cc3m-{000000..000331}": f"{folder}/digits-*", "/data/sbu-{00000..00086}": f"{folder}/negatives-*"}
    names = run_page(
        "index.md", {**shown, "num_workers=4": "num_workers=2"}
    )  # torch warns of more than there are cores
    assert names["batch"]["png"][0].size == (8, 8)  # type: ignore[index]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_migration(folder: Path) -> None:
    urls = f"{folder}/digits-{{000000..000001}}.tar"
    equitar.index(equitar.Source("cc3m", urls), jobs=1, progress=False)
    names = run_page("recipes/migration.md", {"/data/cc3m-{000000..000331}.tar": urls})
    assert len(names["keys"]) == 446  # type: ignore[arg-type]
    let_webdataset_close()
