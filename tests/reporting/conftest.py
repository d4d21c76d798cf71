"""The browser that pages of reports are looked at with."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A Chromium of the system. In CI it must be there; on a desk the tests are skipped without."""
    path = next(
        (actual for name in ("chromium", "chromium-browser", "google-chrome") if (actual := shutil.which(name))), None
    )
    if path is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "no Chromium: install it, say by `apt-get install chromium`"
        )
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        opened = playwright.chromium.launch(executable_path=path, args=arguments)
        yield opened
        opened.close()
