"""Does the site work in a browser: on a phone and a desk, its copy buttons, and its search?"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from helpers.browser import WIDTHS, served_site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # it builds the site, and opens all of its pages


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """The address of the built site, and the names of its pages."""
    folder = tmp_path_factory.mktemp("site")
    with served_site(folder) as address:
        yield (
            address,
            sorted(str(path.relative_to(folder)) for path in folder.rglob("*.html") if path.name != "404.html"),
        )


@pytest.fixture(scope="module")
def context(browser: Browser) -> BrowserContext:
    return browser.new_context(permissions=["clipboard-read", "clipboard-write"])


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    opened = context.new_page()
    yield opened
    opened.close()


@pytest.mark.parametrize("width", WIDTHS)
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
