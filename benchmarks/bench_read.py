"""How many samples a second does one process read from tars, ours beside webdataset's and beside bare preads?

All contenders read the same shards in one run, in turn, several times; the table gives the median and the best of each, and the
ratio of medians to webdataset. Shards are written by webdataset's TarWriter with its defaults, three members a sample, and are in
the page cache. Nothing is decoded.

    wds                webdataset.tarfile_to_samples
    raw                one os.pread for each sample, its bytes thrown away: what no reader can beat
    equitar            our reader by the member table, in the order of the tar
    equitar views      the same with copy=False
    equitar random     the same in fully random order
    debiased, mixed    end to end: plan, shuffle, batches of 64, two sources, no workers
    wds batched        webdataset's shuffle(1000) and batched(64): the plain pipeline beside those two

    python benchmarks/bench_read.py [--out FOLDER] [--samples N] [--rounds N]
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import webdataset as wds

import equitar
from equitar.catalog import Catalog, catalog_of
from equitar.reader import Reader, open_shards
from tars import write_tars

SIZES = {"4 KB": 4096, "60 KB": 61440}


def raw(catalog: Catalog) -> int:
    """Read the bytes of each sample by one pread."""
    count = 0
    for sidecars in catalog.sidecars:
        for shard, url in enumerate(sidecars.shards.urls):
            sidecar = sidecars(shard)
            first, last = sidecar.indptr[:-1], sidecar.indptr[1:] - 1
            starts = sidecar.offset[first]
            lengths = sidecar.offset[last] + sidecar.size[last] - starts
            file = os.open(url, os.O_RDONLY)
            for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
                os.pread(file, length, start)
                count += 1
            os.close(file)
    return count


def ours(catalog: Catalog, *, copy: bool, in_order: bool) -> int:
    """Read all samples with our reader."""
    count = 0
    for sidecars, summary in zip(catalog.sidecars, catalog.summaries, strict=True):
        reader = Reader(sidecars, open_shards(), fields=None, copy=copy)
        shard = np.repeat(np.arange(len(summary.paths)), summary.num_samples)
        row = np.concatenate([np.arange(rows) for rows in summary.num_samples])
        order = np.arange(len(row)) if in_order else np.random.default_rng(0).permutation(len(row))
        for one, other in zip(shard[order].tolist(), row[order].tolist(), strict=True):
            reader.read(one, other)
            count += 1
        reader.close()
    return count


def samples_in(batches: Iterable[dict[str, list[str]]]) -> int:
    """Count the samples of batches."""
    return sum(len(batch["__key__"]) for batch in batches)


def contenders(folder: Path) -> dict[str, Callable[[], int]]:
    """Return what is measured: each reads every sample of the folder once and returns how many."""
    sources = [equitar.Source(name, str(folder / f"{name}-*.tar")) for name in ("one", "two")]
    catalog = catalog_of(sources)
    urls = [url for sidecars in catalog.sidecars for url in sidecars.shards.urls]
    debiased = equitar.debiased(sources, batch_size=64, rank=0, world_size=1)
    mixed = equitar.mixed(sources, batch_size=64, rank=0, world_size=1)

    def plain(*stages: Callable[..., object]) -> wds.DataPipeline:
        return wds.DataPipeline(wds.SimpleShardList(urls), wds.tarfile_to_samples(), *stages)

    return {
        "wds": lambda: sum(1 for _ in plain()),
        "raw": lambda: raw(catalog),
        "equitar": lambda: ours(catalog, copy=True, in_order=True),
        "equitar views": lambda: ours(catalog, copy=False, in_order=True),
        "equitar random": lambda: ours(catalog, copy=True, in_order=False),
        "debiased": lambda: samples_in(debiased),
        "mixed": lambda: samples_in(mixed),
        "wds batched": lambda: sum(
            len(keys)
            for keys, *_ in plain(wds.shuffle(1000), wds.to_tuple("__key__", "jpg", "cls", "txt"), wds.batched(64))
        ),
    }


def measure(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Return the samples per second of each contender in each round."""
    runs = contenders(folder)
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    for one_round in range(rounds + 1):  # the first warms the page cache and is not counted
        for name, run in runs.items():
            begin = time.perf_counter()
            count = run()
            seconds = time.perf_counter() - begin
            if one_round:
                speeds[name].append(count / seconds)
    return speeds


def table(speeds: dict[str, list[float]]) -> list[list[str]]:
    """Return the rows of the table."""
    median = {name: statistics.median(found) for name, found in speeds.items()}
    header = ["reader", "median /s", "best /s", "x wds", "% of raw"]
    rows = [
        [
            name,
            f"{median[name]:,.0f}",
            f"{max(found):,.0f}",
            f"{median[name] / median['wds']:.1f}",
            f"{100 * median[name] / median['raw']:.0f}",
        ]
        for name, found in speeds.items()
    ]
    return [header, *rows]


def main() -> None:
    """Measure as the command line says, print a table for each size, and write `bench_read.csv`."""
    parser = argparse.ArgumentParser(description="Measure samples per second beside webdataset.")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out"), help="where the CSV goes")
    parser.add_argument("--samples", type=int, default=4000, help="samples of each size")
    parser.add_argument("--rounds", type=int, default=5, help="counted runs of each reader")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    with (chosen.out / "bench_read.csv").open("w", newline="") as file, tempfile.TemporaryDirectory() as scratch:
        writer = csv.writer(file)
        writer.writerow(["size", "reader", "round", "samples_per_second"])
        for size, sample_bytes in SIZES.items():
            folder = Path(scratch) / size.replace(" ", "")
            for seed, name in enumerate(("one", "two")):
                write_tars(
                    folder,
                    name=name,
                    num_shards=2,
                    samples_per_shard=max(1, chosen.samples // 4),
                    sample_bytes=sample_bytes,
                    seed=seed,
                )
            sources = [equitar.Source(name, str(folder / f"{name}-*.tar")) for name in ("one", "two")]
            equitar.index(sources, labels="cls", jobs=1, progress=False)
            speeds = measure(folder, chosen.rounds)
            writer.writerows(
                [size, name, number, f"{one:.1f}"] for name, found in speeds.items() for number, one in enumerate(found)
            )
            print(f"\n{size} samples, one process")
            for row in table(speeds):
                print(f"{row[0]:16}" + "".join(f"{cell:>14}" for cell in row[1:]))


if __name__ == "__main__":
    main()
