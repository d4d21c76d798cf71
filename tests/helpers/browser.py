"""A Chromium of the system, and the built site that it looks at; as a script, screenshots of pages at two widths.

    PYTHONPATH=tests python tests/helpers/browser.py FOLDER [PAGE ...]

writes ``PAGE-1280.png`` and ``PAGE-390.png`` of pages of the documentation (``index``, ``choosing`` and ``tutorial`` unless named).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[2]
WIDTHS = (1280, 390)  # a desk, and a phone
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium_path() -> str | None:
    """Return where a Chromium is, if there is one."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@contextmanager
def chromium(path: str) -> Iterator[Browser]:
    """Start a browser, and end it."""
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Print nothing."""


@contextmanager
def served_site(folder: Path) -> Iterator[str]:
    """Build the documentation into a folder, serve it on the loopback, and give its address."""
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def main() -> None:
    out, names = Path(sys.argv[1]), sys.argv[2:] or ["index", "choosing", "tutorial"]
    out.mkdir(parents=True, exist_ok=True)
    path = chromium_path()
    if path is None:
        raise SystemExit(f"no browser: one of {', '.join(_NAMES)} must be installed, say by `apt-get install chromium`")
    with tempfile.TemporaryDirectory() as site, served_site(Path(site)) as address, chromium(path) as browser:
        page = browser.new_page()
        for name in names:
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                page.goto(f"{address}/{name}.html")
                page.screenshot(path=out / f"{name}-{width}.png", full_page=True)


if __name__ == "__main__":
    main()
