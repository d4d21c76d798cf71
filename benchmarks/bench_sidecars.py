"""Memory and time of planning from sidecars: 2,000 shards of 20,000 samples each, with a summary and without one.

Each case runs in a process of its own. "start" is its memory after the imports, "peak" the most it had until the plan was made.
The sidecar of one shard is copied for all others: sidecars contain no location, and planning opens no shard.

    python benchmarks/bench_sidecars.py [--out FOLDER] [--tiny]
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import time
from pathlib import Path

import equitar
from measure import Book, cases_apart, in_own_process, parser_of, peak, print_figures

SHARDS, ROWS = 2000, 20_000
TINY_SHARDS, TINY_ROWS = 50, 100
WITHOUT, WITH = "without summary", "with summary"


def write_sidecars(folder: Path, num_shards: int, num_rows: int) -> None:
    """Index one shard, and copy its sidecar for all of them."""
    first = folder / f"x-{0:06}.tar"
    with first.open("wb") as file:
        for row in range(num_rows):
            for field, content in (("cls", str(row % 1000).encode()), ("jpg", b"image")):
                info = tarfile.TarInfo(f"{row:012}.{field}")
                info.size = len(content)
                file.write(info.tobuf() + content.ljust(512, b"\0"))
        file.write(bytes(1024))
    equitar.index(equitar.Source("s", str(first), root=str(folder)), labels="cls", jobs=1, progress=False)
    for summary in folder.glob("*.summary.*"):
        summary.unlink()
    sidecar = folder / f"x-{0:06}.presence.npz"
    for shard in range(1, num_shards):
        shutil.copyfile(sidecar, folder / f"x-{shard:06}.presence.npz")


def measure(folder: str, num_shards: int) -> dict[str, float]:
    """Plan an epoch of all shards, and return time and memory."""
    start = peak()
    source = equitar.Source("s", f"{folder}/x-{{000000..{num_shards - 1:06}}}.tar", root=folder)
    begin = time.perf_counter()
    batches = equitar.debiased([source], batch_size=256, rank=0, world_size=1)
    num_steps = len(batches)
    return {
        "start MB": start,
        "peak MB": peak(),
        "planning s": time.perf_counter() - begin,
        "steps": num_steps,
    }


def main() -> None:
    """Measure both cases, print a table, and write `bench_sidecars.csv`."""
    chosen = cases_apart(parser_of("Measure planning from sidecars."), measure)
    num_shards, num_rows = (TINY_SHARDS, TINY_ROWS) if chosen.tiny else (SHARDS, ROWS)
    book, figures = Book(), {}
    with tempfile.TemporaryDirectory() as folder:
        write_sidecars(Path(folder), num_shards, num_rows)
        for case in (WITHOUT, WITH):
            if case == WITH:
                source = equitar.Source("s", f"{folder}/x-{{000000..{num_shards - 1:06}}}.tar", root=folder)
                equitar.summarize(source, jobs=1, progress=False)
            figures[case] = in_own_process(__file__, folder, num_shards)
            book.note_all(f"{num_shards} sidecars of {num_rows} rows", case, figures[case])
    print_figures("Planning from sidecars", figures)
    book.write(chosen.out / "bench_sidecars.csv")


if __name__ == "__main__":
    main()
