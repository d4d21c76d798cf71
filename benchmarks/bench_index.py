"""How fast are shards indexed, and read without an index, beside webdataset reading them once?

All contenders go through the same shards in one run, in turn, several times; the table gives the median and the best of each by
the clock, and the ratio to webdataset twice: of the medians by the clock, and of the medians of processor time, which other work
on the machine disturbs less. Shards are written by webdataset's TarWriter with its defaults (a PAX header before each member), three members a sample, and
are in the page cache. Nothing is decoded.

    wds                webdataset.tarfile_to_samples
    index              equitar.index with labels="cls", one process: sidecars and summary are written
    index, no labels   the same without labels
    tar_samples        equitar.tar_samples: all samples are read, by a walk of the headers
    check              equitar.check: the sidecars are compared with the shards

    python benchmarks/bench_index.py [--out FOLDER] [--samples N] [--rounds N]
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import webdataset as wds

import equitar
from tars import write_tars

SIZES = {"4 KB": 4096, "60 KB": 61440}
NUM_SHARDS = 4


def contenders(folder: Path, num_samples: int) -> dict[str, Callable[[], int]]:
    """Return what is measured: each goes through every sample of the folder once and returns how many there are."""
    source = equitar.Source("bench", str(folder / "bench-*.tar"))
    urls = [str(path) for path in sorted(folder.glob("*.tar"))]

    def indexed(labels: str | None) -> int:
        # Written over, they would also measure how a file system replaces a file.
        for path in folder.glob("bench*.npz"):
            path.unlink()
        report = equitar.index(source, labels=labels, jobs=1, progress=False)
        return report.sources[0].samples

    def checked() -> int:
        problems = equitar.check(source, jobs=1, progress=False)
        assert not problems, problems
        return num_samples

    return {
        "wds": lambda: sum(1 for _ in wds.DataPipeline(wds.SimpleShardList(urls), wds.tarfile_to_samples())),
        "index": lambda: indexed("cls"),
        "tar_samples": lambda: sum(1 for _ in equitar.tar_samples()(urls)),
        "check": checked,
        "index, no labels": lambda: indexed(None),
    }


def measure(folder: Path, num_samples: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return for each contender and round the samples per second, and per second of processor time."""
    runs = contenders(folder, num_samples)
    speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for one_round in range(rounds + 1):  # the first warms the page cache and is not counted
        for name, run in runs.items():
            begin, begin_busy = time.perf_counter(), time.process_time()
            count = run()
            seconds, busy = time.perf_counter() - begin, time.process_time() - begin_busy
            assert count == num_samples, f"{name} found {count} samples of {num_samples}"
            if one_round:
                speeds[name].append((count / seconds, count / busy))
    return speeds


def table(speeds: dict[str, list[tuple[float, float]]]) -> list[list[str]]:
    """Return the rows of the table."""
    medians = {name: [statistics.median(one) for one in zip(*found, strict=True)] for name, found in speeds.items()}
    rows = [
        [
            name,
            f"{medians[name][0]:,.0f}",
            f"{max(clock for clock, _ in found):,.0f}",
            *(f"{ours / theirs:.1f}" for ours, theirs in zip(medians[name], medians["wds"], strict=True)),
        ]
        for name, found in speeds.items()
    ]
    return [["", "median /s", "best /s", "x wds", "x wds, CPU"], *rows]


def main() -> None:
    """Measure as the command line says, print a table for each size, and write `bench_index.csv`."""
    parser = argparse.ArgumentParser(description="Measure indexing beside webdataset.")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out"), help="where the CSV goes")
    parser.add_argument("--samples", type=int, default=4000, help="samples of each size")
    parser.add_argument("--rounds", type=int, default=5, help="counted runs of each contender")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    with (chosen.out / "bench_index.csv").open("w", newline="") as file, tempfile.TemporaryDirectory() as scratch:
        writer = csv.writer(file)
        writer.writerow(["size", "contender", "round", "samples_per_second", "samples_per_cpu_second"])
        for size, sample_bytes in SIZES.items():
            folder = Path(scratch) / size.replace(" ", "")
            per_shard = max(1, chosen.samples // NUM_SHARDS)
            write_tars(
                folder,
                name="bench",
                num_shards=NUM_SHARDS,
                samples_per_shard=per_shard,
                sample_bytes=sample_bytes,
                seed=0,
            )
            speeds = measure(folder, per_shard * NUM_SHARDS, chosen.rounds)
            writer.writerows(
                [size, name, number, f"{clock:.1f}", f"{busy:.1f}"]
                for name, found in speeds.items()
                for number, (clock, busy) in enumerate(found)
            )
            print(f"\n{size} samples, one process")
            for row in table(speeds):
                print(f"{row[0]:18}" + "".join(f"{cell:>14}" for cell in row[1:]))


if __name__ == "__main__":
    main()
