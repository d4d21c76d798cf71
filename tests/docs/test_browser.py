"""Does the site work in a browser: on a phone and a desk, its copy buttons, and its search?"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import BrowserContext, Page, sync_playwright

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # it builds the site, and opens all of its pages


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """The address of the built site, and the names of its pages."""
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    pages = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.html") if path.name != "404.html")
    yield f"http://127.0.0.1:{server.server_port}", pages
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def context() -> Iterator[BrowserContext]:
    """A Chromium of the system. In CI it must be there; on a desk the tests are skipped without."""
    paths = [path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))]
    if not paths:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no Chromium: `apt-get install chromium`")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=paths[0], args=arguments)
        yield browser.new_context(permissions=["clipboard-read", "clipboard-write"])
        browser.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    opened = context.new_page()
    yield opened
    opened.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_scrolls_sideways(page: Page, site: tuple[str, list[str]], width: int) -> None:
    address, names = site
    assert len(names) > 40
    page.set_viewport_size({"width": width, "height": 844})
    widths = {}
    for name in names:
        page.goto(f"{address}/{name}")
        widths[name] = page.evaluate("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)")
    assert {name: actual for name, actual in widths.items() if actual > width} == {}


def test_the_drawing_fits_a_phone(page: Page, site: tuple[str, list[str]]) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{site[0]}/how-it-works.html")
    boxes = page.evaluate(
        "[...document.querySelectorAll('svg.picture, svg.picture text')].map(part => part.getBoundingClientRect())"
        ".map(box => [box.left, box.right, box.height])"
    )
    assert len(boxes) > 20
    assert all(left >= 0 and right <= 390 and height >= 10 for left, right, height in boxes)


def test_copy_buttons_take_commands_alone(page: Page, site: tuple[str, list[str]]) -> None:
    page.goto(f"{site[0]}/read-only.html")
    page.locator(".language-console").first.hover()
    page.locator(".language-console button").first.click(force=True)
    page.wait_for_timeout(200)
    assert page.evaluate("navigator.clipboard.readText()").splitlines() == [
        "equitar index laion='data/laion-*.tar' --sidecars sidecars --quiet",
        "equitar stats laion='data/laion-*.tar' --sidecars sidecars",
    ]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("oversampling", "choosing.html"),
        ("interleave", "choosing.html"),
        ("mixture", "choosing.html"),
        ("drop_last", "loading.html"),
        ("persistent_workers", "loading.html"),
        ("read-only", "read-only.html"),
        ("mmengine", "iterations.html"),
        ("did not come", "faq.html"),
    ],
)
def test_search_finds(page: Page, site: tuple[str, list[str]], words: str, answer: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 844})
    page.goto(f"{site[0]}/index.html")
    page.click(".md-search__input")
    page.keyboard.type(words)
    page.wait_for_selector(".md-search-result__item > a")
    links = page.eval_on_selector_all(
        ".md-search-result__item > a", "links => links.slice(0, 5).map(link => link.href)"
    )
    assert any(answer in link for link in links), links
