"""Is all that is public on the site, and does the site need nothing but itself?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import equitar

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
