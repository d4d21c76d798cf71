"""Where do the microseconds of a sample go, in ours and in webdataset?

Both read the same shards in one process, three members a sample, from the page cache, and make shuffled batches of 64 dicts of
lists. Ours is timed part by part, with a clock around each. webdataset's parts are the differences between pipelines that do
one thing more each: walk the headers, read the data, make samples, shuffle and batch. All numbers are microseconds of processor
time a sample, the least of several rounds: other work on the machine disturbs that least.

    python benchmarks/bench_costs.py [--out FOLDER] [--samples N] [--rounds N] [--tiny]
"""

from __future__ import annotations

import functools
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import webdataset as wds

import equitar
from equitar.loading import emitter
from equitar.reading import block
from measure import FIELDS, Book, Corpus, corpus, print_table, setting

SIZES = ("4 KB", "60 KB")

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


def of_ours(shards: Corpus) -> tuple[int, Costs]:
    """Return the samples of an epoch of debiased batches, and the seconds of its parts."""
    batches = equitar.debiased(shards.sources, batch_size=shards.batch_size, rank=0, world_size=1)
    batches.plan(0)
    clock: Costs = {}
    with (
        timed(clock, "plan", emitter.Emitter, "_planned"),
        timed(clock, "look up", block.SampleBlock, "__init__"),
        timed(clock, "columns", block.SampleBlock, "columns"),
        timed(clock, "read", block.UniformSamples, "_read"),
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


def of_webdataset(shards: Corpus) -> Costs:
    """Return the seconds of the parts of webdataset."""

    def members(*, with_data: bool) -> None:
        for url in shards.urls:
            with tarfile.open(url, "r|*") as archive:  # as webdataset opens it
                for member in archive:
                    file = archive.extractfile(member) if with_data else None
                    if file is not None:
                        file.read()
                    archive.members = []  # type: ignore[attr-defined]  # as webdataset does: else all stay in memory

    def pipeline(*stages: Callable[..., Any]) -> None:
        for _ in wds.DataPipeline(wds.SimpleShardList(shards.urls), wds.tarfile_to_samples(), *stages):
            pass

    to_tuple = wds.to_tuple("__key__", *FIELDS)
    steps = {
        "tarfile: headers (and stepping over data)": seconds(lambda: members(with_data=False)),
        "tarfile: data": seconds(lambda: members(with_data=True)),
        "make samples": seconds(pipeline),
        "shuffle(1000), batched(64)": seconds(
            lambda: pipeline(wds.shuffle(1000), to_tuple, wds.batched(shards.batch_size))
        ),
    }
    before = [0.0, *steps.values()]
    return {name: cost - less for (name, cost), less in zip(steps.items(), before, strict=False)}


def measured(shards: Corpus, rounds: int) -> dict[str, Costs]:
    """Return the microseconds a sample of each part of each, of the round that took least."""
    best: dict[str, Costs] = {}
    for _ in range(rounds):
        count, ours = of_ours(shards)
        for name, seconds_of in (("equitar", ours), ("webdataset", of_webdataset(shards))):
            costs = {part: spent / count * 1e6 for part, spent in seconds_of.items()}
            if name not in best or sum(costs.values()) < sum(best[name].values()):
                best[name] = costs
    return best


def main() -> None:
    """Measure as the command line says, print a table for each size, and write `bench_costs.csv`."""
    chosen, book = setting("Measure where the time of a sample goes.", samples=16_000, rounds=3), Book()
    for size in SIZES:
        with corpus(size, chosen) as shards:
            costs_of = measured(shards, chosen.rounds)
        for reader, costs in costs_of.items():
            whole = sum(costs.values())
            rows = [[part, f"{spent:.2f}", f"{spent / whole:.0%}"] for part, spent in costs.items()]
            title = f"{size} samples, {reader}: {whole:.1f} microseconds of processor time a sample"
            print_table(title, ["", "microseconds", "share"], rows)
            for part, spent in costs.items():
                book.note(size, part, f"{reader}: microseconds a sample", spent)
    book.write(chosen.out / "bench_costs.csv")


if __name__ == "__main__":
    main()
