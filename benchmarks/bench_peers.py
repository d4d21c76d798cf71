"""How do peers read the same samples, each in its own best format? Needs what `make bench-peers` installs.

Three comparisons on the same samples, all in one run and in turns: iterating in one process over dicts of bytes; shuffled batches
of 64 dicts of lists through two persistent workers; and what it costs to get there: seconds to convert or index the shards, and
the bytes it takes on disk beside the tars, as a share of these. `peers.py` says how each is used.

    python benchmarks/bench_peers.py [--out FOLDER] [--samples N] [--rounds N] [--tiny]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from measure import (
    SIZES,
    SPEED,
    Book,
    Corpus,
    Setting,
    alternate,
    corpus,
    number,
    print_table,
    samples_in,
    setting,
)
from peers import PEERS, Here

WIDS = Path(sys.prefix) / "wids"  # webdataset lost it after 0.2: of the old wheel only this is used


def count(samples: Callable[[], Iterable[Any]]) -> int:
    """Count samples."""
    return sum(1 for _ in samples())


def bytes_on_disk(folder: Path) -> int:
    """Return what files take that are in this folder only."""
    files = [path.lstat() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return sum(file.st_size for file in files if file.st_nlink == 1)


def prepare(book: Book, shards: Corpus, scratch: Path) -> None:
    """Convert or index for every peer, and note what it takes."""
    shard_bytes = sum(os.stat(url).st_size for url in shards.urls)  # noqa: PTH116
    for name, peer in PEERS.items():
        folder = scratch / name
        folder.mkdir()
        begin = time.perf_counter()
        if peer.converts is not None:
            peer.converts(Here(shards, folder))
        book.note(shards.case, name, "convert s", time.perf_counter() - begin if peer.converts else 0.0)
        book.note(shards.case, name, "extra %", 100 * bytes_on_disk(folder) / shard_bytes)


def compare(book: Book, shards: Corpus, scratch: Path, chosen: Setting) -> None:
    """Measure reading and loading."""
    one_process = {name: partial(count, peer.samples(Here(shards, scratch / name))) for name, peer in PEERS.items()}
    for name, took in alternate(one_process, chosen.rounds).items():
        missing = [run.samples for run in took if run.samples != shards.num_samples]
        assert not missing, f"{name} gave {missing[0]} samples of {shards.num_samples}"
        book.note(shards.case, name, SPEED, *(run.samples / run.seconds for run in took))
        book.note(shards.case, name, "samples/CPU s", *(run.samples / run.busy for run in took))
    loaders = {name: peer.batches(Here(shards, scratch / name)) for name, peer in PEERS.items() if peer.batches}
    for name, took in alternate(
        {name: partial(samples_in, loader) for name, loader in loaders.items()}, chosen.rounds
    ).items():
        book.note(shards.case, name, "loaded/s", *(run.samples / run.seconds for run in took))


def main() -> None:
    """Measure as the command line says, print tables, and write `bench_peers.csv`."""
    sys.path.append(str(WIDS))  # last: its old webdataset stays hidden
    chosen, book = setting("Measure peers on the same samples.", samples=4000, rounds=3), Book()
    for case in SIZES:
        with corpus(case, chosen) as shards, tempfile.TemporaryDirectory() as scratch:
            prepare(book, shards, Path(scratch))
            compare(book, shards, Path(scratch), chosen)
            batches = f"2 workers, batches of {shards.batch_size}"
        book.show(case, SPEED, "wds", title=f"{case} samples, one process")
        book.show(case, "samples/CPU s", "wds", title=f"{case} samples, one process, by processor time of this process")
        book.show(case, "loaded/s", "wds", title=f"{case} samples, {batches}")
        costs = zip(book.of(case, "convert s").items(), book.of(case, "extra %").values(), strict=True)
        rows = [[name, number(seconds[0]), number(extra[0])] for (name, seconds), extra in costs]
        print_table(f"{case} samples, to get there", ["", "convert s", "extra % on disk"], rows)
        book.write(chosen.out / "bench_peers.csv")


if __name__ == "__main__":
    main()
