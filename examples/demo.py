"""See both kinds of epoch on real shards: `make demo`, or ``python examples/demo.py [FOLDER]``.

1. Write tar shards of three image sources (`demo_shards.py`).
2. Index them with the `equitar` command: a sidecar for each shard, read once.
3. Stream an epoch of debiased batches: each holds one source.
4. Stream an epoch of repeated samples: rare classes of the long-tailed digits appear more often.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import demo_shards
import equitar
from equitar.text import table

BATCH_SIZE = 32
THRESHOLD = 0.1  # classes that fewer than a tenth of the digits have are repeated
NUM_WORKERS = 2


def run_equitar(*words: str) -> None:
    """Run the command line, as a user would type it."""
    print("$ equitar " + shlex.join(words))
    subprocess.run([sys.executable, "-m", "equitar.cli", *words], check=True)  # noqa: S603  (our own command)


def stream_debiased(sources: Sequence[equitar.Source]) -> None:
    """Stream one epoch of batches of one source each, and print what was drawn."""
    batches = equitar.debiased(sources, batch_size=BATCH_SIZE, seed=0, shuffle=1000)
    loader = equitar.Loader(batches, num_workers=NUM_WORKERS)
    came: Counter[str] = Counter()
    seen: set[tuple[str, str]] = set()
    num_mixed, start = 0, time.perf_counter()
    for batch in loader:
        of_samples = {url.rpartition("/")[2].partition("-")[0] for url in batch["__url__"]}  # what the tars say
        num_mixed += of_samples != {batch["__source__"]}
        came[batch["__source__"]] += 1
        seen.update(zip(batch["__url__"], batch["__key__"], strict=True))
    seconds, num_batches = time.perf_counter() - start, came.total()
    rows = [("source", "samples", "batches", "share of batches", "left for other epochs")]
    rows += [
        (
            source.name,
            f"{source.rows:,}",
            f"{came[source.name]:,}",
            f"{came[source.name] / num_batches:.1%}",
            f"{source.remainder}",
        )
        for source in batches.plan().account
    ]
    print(table(rows))
    print(f"{num_batches} batches of {BATCH_SIZE}; {num_mixed} of them hold more than one source")
    print(f"{len(seen):,} different samples; no sample came twice: {len(seen) == num_batches * BATCH_SIZE}")
    print_speed(num_batches * BATCH_SIZE, seconds)
    print(f"the first steps: {' '.join(batches.sources(0)[:12])} ...")  # type: ignore[index]  # None if mixed


def stream_repeated(digits: equitar.Source) -> None:
    """Stream one epoch of single samples, rare ones repeated, and print the classes before and after."""
    before = equitar.stats([digits])
    after = equitar.stats([digits], repeat=THRESHOLD)
    assert before.classes is not None, "they were indexed with labels"
    assert after.classes is not None, "they were indexed with labels"
    assert after.classes.factors is not None, "they are repeated by a threshold"
    start = time.perf_counter()
    loader = equitar.Loader(equitar.mixed([digits], repeat=THRESHOLD, seed=0), num_workers=NUM_WORKERS)
    came = Counter(f"digits/{sample['cls'].decode()}" for sample in loader)
    seconds = time.perf_counter() - start
    rows = [("class", "samples", "repeat factor", "expected", "came", "", "samples | what repeating added")]
    columns = zip(
        before.classes.names, before.classes.samples, after.classes.factors, after.classes.copies, strict=True
    )
    for name, samples, factor, expected in sorted(columns):
        bar = "#" * samples + "+" * (came[name] - samples)
        shown = bar if len(bar) <= 48 else bar[:45] + "..."
        rows.append((name, str(samples), f"{factor:.2f}", f"{expected:.1f}", str(came[name]), "", shown.ljust(48)))
    print(table(rows))
    print(f"{before.samples} samples before, {came.total()} after ({after.copies:.1f} expected)")
    print_speed(came.total(), seconds)


def print_speed(num_samples: int, seconds: float) -> None:
    """Print samples per second, starting the workers included."""
    print(f"{num_samples / seconds:,.0f} samples/s, the start of {NUM_WORKERS} workers included")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write shards, index them, and stream both kinds of epoch.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("demo_out"))
    folder: Path = parser.parse_args().folder
    print("-- 1. shards: real images of several domains")
    urls = demo_shards.write_all(folder / "shards")
    words = [f"{name}={pattern}" for name, pattern in urls.items()]
    print("\n-- 2. index: headers and labels only, once")
    run_equitar("index", *words, "--labels", "cls", "--jobs", "1", "--quiet")
    print("\n-- 3. debiased: every batch holds one source, the same on all ranks")
    sources = [equitar.Source(name, pattern) for name, pattern in urls.items()]
    stream_debiased(sources)
    print(f"\n-- 4. repeated: classes rarer than {THRESHOLD:.0%} come more often, by LVIS's repeat factor")
    stream_repeated(sources[0])
    print("\n-- 5. the same numbers from the command line, with a plot")
    run_equitar("stats", *words, "--repeat", str(THRESHOLD), "--plot", str(folder / "stats.png"))


if __name__ == "__main__":  # workers may be spawned: they import this file
    main()
