"""What do the offsets of another tool save when a shard is indexed?

A shard is served over the loopback by a server that waits before each answer, as a store over a network does, and indexed three
ways: from the disk, by a walk over HTTP, and by a walk whose headers are fetched where DALI's index says they are. All three give
the same sidecar. One process, one shard: several processes overlap the waiting of several shards, with offsets or without.

    python benchmarks/bench_offsets.py [--out FOLDER] [--megabytes N] [--waits SECONDS ...] [--tiny]
"""

from __future__ import annotations

import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import webdataset as wds

import equitar
from equitar.sidecars.sidecar import read_sidecar
from measure import Book, parser_of, print_figures

SIZES = {"4 KB": 4_096, "60 KB": 61_440, "300 KB": 300_000, "1 MB": 1_000_000, "5 MB": 5_000_000}


class Server(ThreadingHTTPServer):
    """Serves one file, in ranges, after a wait."""

    request_queue_size = 64
    daemon_threads = True

    def __init__(self, path: Path, wait: float) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.path, self.wait, self.requests, self.sent = path, wait, 0, 0
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""

    def do_HEAD(self) -> None:
        """Tell the size."""
        self._answer(200, {"Content-Length": str(self.server.path.stat().st_size)}, b"")

    def do_GET(self) -> None:
        """Send a range."""
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        assert asked is not None
        start, size = int(asked[1]), self.server.path.stat().st_size
        with self.server.path.open("rb") as file:
            file.seek(start)
            body = file.read(int(asked[2]) + 1 - start)
        headers = {"Content-Length": str(len(body)), "Content-Range": f"bytes {start}-{start + len(body) - 1}/{size}"}
        with self.server.lock:
            self.server.requests += 1
            self.server.sent += len(body)
        self._answer(206, headers, body)

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        time.sleep(self.server.wait)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(path: Path, wait: float) -> Iterator[Server]:
    """Serve a file."""
    server = Server(path, wait)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def write_shard(folder: Path, size: int, megabytes: float) -> Path:
    """Write a shard, and beside it its index in DALI's format."""
    path = folder / "shard.tar"
    with wds.TarWriter(str(path), mtime=0) as writer:
        for number in range(max(2, round(megabytes * 1e6 / size))):
            writer.write({"__key__": f"{number:08d}", "cls": number % 10, "jpg": bytes(size)})
    source = equitar.Source("bench", str(path), sidecars=str(folder / "disk"))
    equitar.index(source, labels="cls", jobs=1, progress=False)
    sidecar = read_sidecar(str(folder / "disk/shard.presence.npz"), fix="")
    words = [
        f"{sidecar.table.fields[field]} {offset} {length}"
        for field, offset, length in zip(sidecar.table.field, sidecar.table.offset, sidecar.table.size, strict=True)
    ]
    rows = [
        " ".join(words[begin:end]) for begin, end in zip(sidecar.table.indptr, sidecar.table.indptr[1:], strict=False)
    ]
    path.with_suffix(".idx").write_text("\n".join([f"v1.1 {len(rows)}", *rows]) + "\n", "utf-8")
    return path


def indexed(url: str, folder: Path, offsets_from: str | None) -> tuple[float, str]:
    """Index a shard, and return the seconds it took and the digest of its sidecar."""
    sidecars = tempfile.mkdtemp(dir=folder)
    begin = time.perf_counter()
    source = equitar.Source("bench", url, sidecars=sidecars)
    equitar.index(source, labels="cls", jobs=1, progress=False, offsets_from=offsets_from)
    return time.perf_counter() - begin, read_sidecar(f"{sidecars}/shard.presence.npz", fix="").digest


def measured(folder: Path, size: int, megabytes: float, waits: list[float]) -> dict[str, dict[str, float]]:
    """Return the figures of each way to index a shard with members of one size."""
    path = write_shard(folder, size, megabytes)
    index = str(path.with_suffix(".idx"))
    ways = {"": None, " + offsets": index}
    disk = {f"disk{name}": indexed(str(path), folder, offsets_from) for name, offsets_from in ways.items()}
    figures_of = {name: {"seconds": seconds} for name, (seconds, _) in disk.items()}
    for wait in waits:
        for name, offsets_from in ways.items():
            with serving(path, wait) as server:
                url = f"http://127.0.0.1:{server.server_port}/shard.tar"
                seconds, digest = indexed(url, folder, offsets_from)
            assert digest == disk["disk"][1]
            figures = {"seconds": seconds, "requests": server.requests, "MB": server.sent / 1e6}
            figures_of[f"http{name}, {wait:g} s a request"] = figures
    return figures_of


def main() -> None:
    """Measure as the command line says, print a table for each size, and write `bench_offsets.csv`."""
    parser = parser_of("Measure indexing over a network, with the offsets of another tool and without.")
    parser.add_argument("--megabytes", type=float, default=150.0, help="size of a shard")
    parser.add_argument("--waits", type=float, nargs="+", default=[0.0, 0.02], help="seconds before each answer")
    chosen, book = parser.parse_args(), Book()
    if chosen.tiny:
        chosen.megabytes, chosen.waits = 0.5, [0.0]
    for case, size in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            figures_of = measured(Path(folder), size, chosen.megabytes, chosen.waits)
        print_figures(f"Members of {case}", figures_of)
        for way, figures in figures_of.items():
            book.note_all(case, way, figures)
    book.write(chosen.out / "bench_offsets.csv")


if __name__ == "__main__":
    main()
