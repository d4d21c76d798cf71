"""Where do the microseconds of a sample go, in ours and in webdataset?

Both read the same shards in one process, three members a sample, from the page cache, and make shuffled batches of 64 dicts of
lists. Ours is timed part by part, with a clock around each. webdataset's parts are the differences between pipelines that do
one thing more each: walk the headers, read the data, make samples, shuffle and batch. All numbers are microseconds of processor
time a sample, the least of several rounds: other work on the machine disturbs that least.

    python benchmarks/bench_costs.py [--out FOLDER] [--samples N] [--rounds N]
"""

from __future__ import annotations

import argparse
import csv
import functools
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import webdataset as wds

import equitar
from equitar import block, emit
from tars import write_tars

SIZES = {"4 KB": 4096, "60 KB": 61440}
BATCH_SIZE = 64

Costs = dict[str, float]


@contextmanager
def timed(costs: Costs, name: str, owner: Any, attribute: str) -> Iterator[None]:
    """Add up the processor time that calls of a function take."""
    function = getattr(owner, attribute)

    @functools.wraps(function)
    def wrapper(*arguments: Any) -> Any:
        begin = time.process_time()
        result = function(*arguments)
        costs[name] = costs.get(name, 0.0) + time.process_time() - begin
        return result

    setattr(owner, attribute, wrapper)
    try:
        yield
    finally:
        setattr(owner, attribute, function)


def of_ours(folder: Path) -> tuple[int, Costs]:
    """Return the samples of an epoch of debiased batches, and the seconds of its parts."""
    sources = [equitar.Source(name, str(folder / f"{name}-*.tar")) for name in ("one", "two")]
    batches = equitar.debiased(sources, batch_size=BATCH_SIZE, rank=0, world_size=1)
    batches.plan(0)
    clock: Costs = {}
    with (
        timed(clock, "plan", emit.Emitter, "_planned"),
        timed(clock, "look up", block.Block, "__init__"),
        timed(clock, "columns", block.Block, "columns"),
        timed(clock, "read", block.Alike, "_read"),
    ):
        begin = time.process_time()
        count = sum(len(batch["__key__"]) for batch in batches)
        whole = time.process_time() - begin
    parts = {
        "plan: schedule, windows, dealing": clock["plan"],
        "look up members, open shards": clock["look up"],
        "pread": clock["read"],
        "slice, make lists": clock["columns"] - clock["read"],
    }
    return count, {**parts, "record, collate, the rest": whole - sum(parts.values())}


def seconds(run: Callable[[], Any]) -> float:
    """Return the processor time of a call."""
    begin = time.process_time()
    run()
    return time.process_time() - begin


def of_webdataset(folder: Path) -> Costs:
    """Return the seconds of the parts of webdataset."""
    urls = [str(path) for path in sorted(folder.glob("*.tar"))]

    def members(*, with_data: bool) -> None:
        for url in urls:
            with tarfile.open(url, "r|*") as archive:  # as webdataset opens it
                for member in archive:
                    file = archive.extractfile(member) if with_data else None
                    if file is not None:
                        file.read()
                    archive.members = []  # type: ignore[attr-defined]  # as webdataset does: else all stay in memory

    def pipeline(*stages: Callable[..., Any]) -> None:
        for _ in wds.DataPipeline(wds.SimpleShardList(urls), wds.tarfile_to_samples(), *stages):
            pass

    to_tuple = wds.to_tuple("__key__", "jpg", "cls", "txt")
    steps = {
        "tarfile: headers (and stepping over data)": seconds(lambda: members(with_data=False)),
        "tarfile: data": seconds(lambda: members(with_data=True)),
        "make samples": seconds(pipeline),
        "shuffle(1000), batched(64)": seconds(lambda: pipeline(wds.shuffle(1000), to_tuple, wds.batched(BATCH_SIZE))),
    }
    before = [0.0, *steps.values()]
    return {name: one - less for (name, one), less in zip(steps.items(), before, strict=False)}


def measure(folder: Path, rounds: int) -> dict[str, Costs]:
    """Return the microseconds a sample of each part of each, of the round that took least."""
    best: dict[str, Costs] = {}
    for _ in range(rounds):
        count, ours = of_ours(folder)
        for name, found in (("equitar", ours), ("webdataset", of_webdataset(folder))):
            one = {part: spent / count * 1e6 for part, spent in found.items()}
            if name not in best or sum(one.values()) < sum(best[name].values()):
                best[name] = one
    return best


def main() -> None:
    """Measure as the command line says, print a table for each size, and write `bench_costs.csv`."""
    parser = argparse.ArgumentParser(description="Measure where the time of a sample goes.")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out"), help="where the CSV goes")
    parser.add_argument("--samples", type=int, default=16000, help="samples of each size")
    parser.add_argument("--rounds", type=int, default=3, help="runs of which the least counts")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    with (chosen.out / "bench_costs.csv").open("w", newline="") as file, tempfile.TemporaryDirectory() as scratch:
        writer = csv.writer(file)
        writer.writerow(["size", "reader", "part", "microseconds_per_sample"])
        for size, sample_bytes in SIZES.items():
            folder = Path(scratch) / size.replace(" ", "")
            each = max(BATCH_SIZE, chosen.samples // 4)
            for seed, name in enumerate(("one", "two")):
                write_tars(
                    folder, name=name, num_shards=2, samples_per_shard=each, sample_bytes=sample_bytes, seed=seed
                )
            sources = [equitar.Source(name, str(folder / f"{name}-*.tar")) for name in ("one", "two")]
            equitar.index(sources, labels="cls", jobs=1, progress=False)
            for reader, costs in measure(folder, chosen.rounds).items():
                whole = sum(costs.values())
                print(f"\n{size} samples, {reader}: {whole:.1f} microseconds of processor time a sample")
                for part, spent in costs.items():
                    print(f"  {part:44}{spent:8.2f}{spent / whole:8.0%}")
                    writer.writerow([size, reader, part, f"{spent:.3f}"])


if __name__ == "__main__":
    main()
