"""Is all that is public on the site, and does the site need nothing but itself?"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

import equitar
from equitar import sidecar, summary_format

DOCS = Path(__file__).parents[2] / "docs"


def test_every_public_name_is_in_the_api_reference_once() -> None:
    shown = [
        name
        for page in sorted((DOCS / "api").glob("*.md"))
        for name in re.findall(r"^::: equitar\.([A-Za-z_]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    missing = set(equitar.__all__) - set(shown)
    assert not missing, f"add `::: equitar.{min(missing)}` to a page in docs/api"
    assert set(shown) <= {*equitar.__all__, "errors"}
    assert len(shown) == len(set(shown))


@pytest.mark.parametrize("asset", sorted((DOCS / "assets").glob("*.*")), ids=lambda path: path.name)
def test_assets_load_nothing_from_elsewhere(asset: Path) -> None:
    loaded = re.findall(r"""(?:src|href|url\(|@import)\s*[=(]?\s*["']?(https?:)""", asset.read_text(encoding="utf-8"))
    assert not loaded


@pytest.mark.parametrize("module", [sidecar, summary_format])
def test_the_page_on_the_format_has_every_array_of_the_specification(module: ModuleType) -> None:
    page = (DOCS / "sidecar-format.md").read_text(encoding="utf-8")
    arrays = re.findall(
        r"^(\w+) +(?:any|rows|members|labels|shards|16 x shards|skipped) ", str(module.__doc__), re.MULTILINE
    )
    assert len(arrays) >= 9
    assert not [name for name in arrays if f"| `{name}` |" not in page]
    keys = re.findall(r"``(\w+)``[,;] (?:\"|1|the|false|how|lists|32)", str(module.__doc__))
    assert not [key for key in keys if f"`{key}`" not in page]
