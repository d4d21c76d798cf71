"""Web server on the loopback that serves ranges, and fails on request, with counts."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FAULTS = (
    "status 503",
    "status 429",
    "reset",
    "stall",
    "short with length",
    "short without length",
    "page",
    "page without length",
    "wrong range",
    "other part",
    "nothing",
)
PAGE = b"<!DOCTYPE html><html>Log in to go on</html>"
Chooser = Callable[[str, int], str | None]


@dataclass
class Site:
    """What is served, and how badly.

    Attributes:
        files: Bytes by path.
        chooser: Which fault a GET of a path gets, by the number of the request; None is an honest answer.
        stall: Seconds that a stalled answer waits.
        has_ranges: Whether ranges are served.
        retry_after: When a busy server wants to be asked again, as its header says it; empty for no header.
        url: Where it is served.
    """

    files: dict[str, bytes]
    chooser: Chooser = lambda path, number: None
    stall: float = 1.0
    has_ranges: bool = True
    retry_after: str = ""
    url: str = ""
    etags: dict[str, str] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    over: threading.Event = field(default_factory=threading.Event)

    def fault(self, path: str) -> str | None:
        with self.lock:
            number = self.requests[path]
            self.requests[path] += 1
            chosen = self.chooser(path, number)
            if chosen:
                self.injected[chosen] += 1
            return chosen


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_HEAD(self) -> None:
        path = self.path.partition("?")[0]
        raw = self.site.files.get(path)
        if raw is None:
            self._head(404, {"Content-Length": "0"})
        else:
            self._head(200, {"Content-Length": str(len(raw)), **self._etag(path)})

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        raw = self.site.files.get(path)
        if raw is None:
            self._head(404, {"Content-Length": "0"})
            return
        fault = self.site.fault(path) if path.endswith((".tar", ".gz", ".sqlite")) else None
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None or not self.site.has_ranges:
            self._answer(fault, 200, raw, {**self._etag(path)})
            return
        start = int(asked[1])
        stop = min(int(asked[2]) + 1 if asked[2] else len(raw), len(raw))
        if start >= len(raw):
            self._head(416, {"Content-Range": f"bytes */{len(raw)}", "Content-Length": "0"})
            return
        if fault == "wrong range":
            start, stop = 0, min(len(raw), stop - start)
        content_range = f"bytes {start}-{stop - 1}/{len(raw)}"
        body = raw[start:stop]
        if fault == "other part":  # honest about it: fewer bytes than asked for
            body = body[: max(1, len(body) // 3)]
            content_range = f"bytes {start}-{start + len(body) - 1}/{len(raw)}"
        self._answer(fault, 206, body, {"Content-Range": content_range, **self._etag(path)})

    def _answer(self, fault: str | None, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        half = body[: len(body) // 2]
        if fault in ("status 503", "status 429"):
            after = {"Retry-After": self.site.retry_after} if self.site.retry_after else {}
            self._head(int(fault[-3:]), {"Content-Length": "0", **after})
        elif fault in ("page", "page without length"):
            length = {"Content-Length": str(len(PAGE))} if fault == "page" else {}
            self._head(200, {"Content-Type": "text/html", **length})
            self._send(PAGE)
            self.close_connection = not length or self.close_connection
        elif fault == "nothing":
            self.close_connection = True
        elif fault in ("reset", "stall", "short with length", "short without length"):
            length = {} if fault == "short without length" else {"Content-Length": str(len(body))}
            self._head(status, {**headers, **length})
            self._send(half)
            self.site.over.wait(
                self.site.stall if fault == "stall" else 0.02
            )  # so that the half arrives before the end
            if fault == "reset":
                self.connection.setsockopt(1, 13, b"\x01\0\0\0\0\0\0\0")  # SO_LINGER 0: a close is a reset
            self.close_connection = True
            if fault == "reset":
                self.connection.close()
        else:
            self._head(status, {**headers, "Content-Length": str(len(body))})
            self._send(body)

    def _etag(self, path: str) -> dict[str, str]:
        etag = self.site.etags.get(path)
        return {"ETag": f'"{etag}"'} if etag else {}

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()

    def _send(self, body: bytes) -> None:
        with self.site.lock:  # before it is sent: who has it may look at once
            self.site.sent[self.path.partition("?")[0]] += len(body)
        self.wfile.write(body)
        self.wfile.flush()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that go away are what is tested


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    """Serve a site on a port of its own."""
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"site": site}))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield site
    finally:
        site.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def site_of(folder: Path) -> Site:
    """Return a site of all files below a folder."""
    return Site(
        files={
            f"/{path.relative_to(folder)}": path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
        }
    )
