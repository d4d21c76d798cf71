"""How long until the first batch, and what is read before it? Beside webdataset, and over a network that answers slowly.

Libraries are imported, and indexes are there. Local shards, 4 KB samples, batches of 64, a buffer of 1000; each time with a fresh
pipeline and loader, from `iter(loader)` to the first batch:

    wds 0, equitar 0       0 workers
    wds 2, equitar 2       2 workers, forked

Then a web server on the loopback that answers each request after 20 ms, with 3 sources of samples of 20 KB, and a buffer of 1000:

    samples read           before the first batch, of `debiased` and `mixed` (metric "samples")
    reading                an epoch as fast as it comes (metric "ms a step")
    work                   a step of 20 ms that reads nothing
    both                   an epoch with a step of 20 ms on each batch: about the larger of the two where reading goes on beside work,
                           their sum where it does not ("no read_ahead")

    python benchmarks/bench_first.py [--out FOLDER] [--samples N] [--rounds N] [--tiny]
"""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import webdataset as wds
from torch.utils.data import DataLoader

import equitar
from measure import (
    Book,
    Corpus,
    Setting,
    alternate,
    as_it_is,
    corpus,
    dict_of_lists,
    number,
    print_table,
    setting,
)
from tars import write_tars

LATENCY = STEP = 0.020  # seconds
BUFFER = 1000
REMOTE_BYTES = 20_000
STEPS = 40


def wds_loader(shards: Corpus, num_workers: int) -> Iterable[Any]:
    """Return a fresh loader of webdataset."""
    pipeline = wds.DataPipeline(
        wds.SimpleShardList(shards.urls),
        wds.split_by_worker,
        wds.tarfile_to_samples(),
        wds.shuffle(BUFFER),
        wds.batched(shards.batch_size, collation_fn=dict_of_lists),
    )
    return DataLoader(pipeline, batch_size=None, collate_fn=as_it_is, num_workers=num_workers)


def equitar_loader(shards: Corpus, num_workers: int) -> Iterable[Any]:
    """Return a fresh loader of ours."""
    batches = equitar.debiased(shards.sources, batch_size=shards.batch_size, shuffle=BUFFER, rank=0, world_size=1)
    return equitar.Loader(batches, num_workers=num_workers)


def local(book: Book, chosen: Setting) -> None:
    """Measure the time to the first batch of local shards."""
    with corpus("4 KB", chosen) as shards:
        makers = {"wds": wds_loader, "equitar": equitar_loader}
        # Without workers first: after a fork, a process copies each page that it writes to.
        for num_workers, one_round in itertools.product((0, 2), range(chosen.rounds + 1)):  # the first one warms up
            for name, make in makers.items():
                loader = make(shards, num_workers)
                begin = time.perf_counter()
                batches = iter(loader)
                next(batches)
                seconds = time.perf_counter() - begin
                del batches  # ends the workers
                if one_round:
                    book.note("first batch", f"{name} {num_workers}", "ms", 1000 * seconds)
    book.show("first batch", "ms", "wds 0", "wds 2", title=f"First batch of {shards.batch_size} local samples")


class _Slow(BaseHTTPRequestHandler):
    """Serves ranges of files, each after a while, and counts what it sends."""

    protocol_version = "HTTP/1.1"
    folder: Path
    sent = 0
    lock = threading.Lock()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""

    def do_HEAD(self) -> None:
        """Say how long a file is."""
        path = self.folder / self.path[1:]
        self._answer(
            200 if path.exists() else 404, b"", {"Content-Length": str(path.stat().st_size if path.exists() else 0)}
        )

    def do_GET(self) -> None:
        """Send a file, or the range that is asked for."""
        path = self.folder / self.path[1:]
        if not path.exists():
            self._answer(404, b"", {"Content-Length": "0"})
            return
        asked, size = self.headers.get("Range", "").removeprefix("bytes="), path.stat().st_size
        if path.suffix != ".tar" or not asked:
            self._answer(200, path.read_bytes(), {"Content-Length": str(size)})
            return
        first, _, last = asked.partition("-")
        with path.open("rb") as file:
            file.seek(int(first))
            part = file.read(int(last) + 1 - int(first) if last else -1)
        where = f"bytes {first}-{int(first) + len(part) - 1}/{size}"
        time.sleep(LATENCY)
        with self.lock:
            type(self).sent += len(part)
        self._answer(206, part, {"Content-Range": where, "Content-Length": str(len(part))})

    def _answer(self, status: int, raw: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Accept-Ranges": "bytes", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, type[_Slow]]]:
    """Serve a folder for a while: give its URL, and the handler, which counts bytes of shards."""
    handler = type("Handler", (_Slow,), {"folder": folder, "sent": 0})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", handler
    finally:
        server.shutdown()
        server.server_close()


def remote_sources(folder: Path, url: str, samples: int) -> list[equitar.Source]:
    """Write and index three sources, and return them as they are served."""
    names = ("one", "two", "three")
    for seed, name in enumerate(names):
        write_tars(folder, name=name, num_shards=1, samples_per_shard=samples, sample_bytes=REMOTE_BYTES, seed=seed)
    equitar.index([equitar.Source(name, str(folder / f"{name}-*.tar")) for name in names], jobs=1, progress=False)
    return [equitar.Source(name, f"{url}/{name}-{{000000..000000}}.tar") for name in names]


def going_through(batches: Iterable[Any], seconds: float, steps: int) -> int:
    """Take so many batches, and work on each."""
    count = 0
    for count, _ in enumerate(batches, 1):
        time.sleep(seconds)
        if count == steps:
            break
    return count


def remote(book: Book, chosen: Setting) -> None:
    """Measure what is read before the first batch, and whether reading goes on beside work."""
    samples, batch_size = (200, 8) if chosen.is_tiny else (1200, 16)
    steps = min(STEPS, 3 * samples // batch_size)
    with tempfile.TemporaryDirectory() as scratch, serving(Path(scratch)) as (url, handler):
        sources = remote_sources(Path(scratch), url, samples)
        common: dict[str, Any] = {"batch_size": batch_size, "shuffle": BUFFER, "rank": 0, "world_size": 1}
        builders: dict[str, Callable[..., equitar.Batches]] = {"debiased": equitar.debiased, "mixed": equitar.mixed}
        rows = []
        for name, build in builders.items():
            handler.sent = 0
            next(iter(build(sources, **common, read_ahead=0)))
            read = handler.sent / REMOTE_BYTES
            book.note("before the first batch", name, "samples", read)
            rows.append([name, number(read), str(batch_size + BUFFER)])
        print_table("Samples of remote shards read before the first batch", ["", "read", "allowed"], rows)
        batches = equitar.debiased(sources, **common, steps=steps)
        alone = equitar.debiased(sources, **common, steps=steps, read_ahead=0)
        runs: dict[str, Callable[[], int]] = {
            "reading": partial(going_through, batches, 0, steps),
            "work": partial(going_through, range(steps), STEP, steps),
            "both": partial(going_through, batches, STEP, steps),
            "reading, no read_ahead": partial(going_through, alone, 0, min(steps, 3)),
        }
        for name, took in alternate(runs, min(chosen.rounds, 3)).items():
            book.note("remote", name, "ms a step", *(1000 * run.seconds / run.samples for run in took))
        title = f"Three remote sources, {1000 * LATENCY:.0f} ms a request, batches of {batch_size}"
        book.show("remote", "ms a step", "work", title=title)


def main() -> None:
    """Measure as the command line says, print tables, and write `bench_first.csv`."""
    chosen, book = setting("Measure the time to the first batch.", samples=8000, rounds=7), Book()
    local(book, chosen)
    remote(book, chosen)
    book.write(chosen.out / "bench_first.csv")


if __name__ == "__main__":
    main()
