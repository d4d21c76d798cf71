"""How many samples a second does one process read from tars, ours beside webdataset's and beside bare preads?

Shards are written by webdataset's TarWriter with its defaults, three members a sample, up to 400 MB of each size, and are in the
page cache. Nothing is decoded. The second table is by processor time, which other work on the machine disturbs less.

    wds                webdataset.tarfile_to_samples
    raw                one os.pread for each sample, its bytes thrown away: what no reader can beat
    equitar            our reader by the member table, in the order of the tar
    equitar views      the same with copy=False
    equitar random     the same in fully random order
    debiased, mixed    end to end: plan, shuffle, batches of 64, two sources, no workers
    wds batched        webdataset's shuffle(1000) and batched(64): the plain pipeline beside those two

    python benchmarks/bench_read.py [--out FOLDER] [--samples N] [--rounds N] [--tiny]
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import webdataset as wds

import equitar
from equitar.reading.reader import Reader, open_shards
from equitar.sidecars.catalog import Catalog, catalog_of
from measure import FIELDS, SIZES, SPEED, Book, Corpus, alternate, corpus, samples_in, setting


def raw(catalog: Catalog) -> int:
    """Read the bytes of each sample by one pread."""
    count = 0
    for sidecars in catalog.sidecars:
        for shard, url in enumerate(sidecars.shards.urls):
            sidecar = sidecars(shard)
            first, last = sidecar.table.indptr[:-1], sidecar.table.indptr[1:] - 1
            starts = sidecar.table.offset[first]
            lengths = sidecar.table.offset[last] + sidecar.table.size[last] - starts
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
        for shard_number, row_number in zip(shard[order].tolist(), row[order].tolist(), strict=True):
            reader.read(shard_number, row_number)
            count += 1
        reader.close()
    return count


def contenders(shards: Corpus) -> dict[str, Callable[[], int]]:
    """Return what is measured: each reads every sample of the folder once and returns how many."""
    catalog = catalog_of(shards.sources)
    debiased = equitar.debiased(shards.sources, batch_size=shards.batch_size, rank=0, world_size=1)
    mixed = equitar.mixed(shards.sources, batch_size=shards.batch_size, rank=0, world_size=1)

    def plain(*stages: Callable[..., object]) -> wds.DataPipeline:
        return wds.DataPipeline(wds.SimpleShardList(shards.urls), wds.tarfile_to_samples(), *stages)

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
            for keys, *_ in plain(wds.shuffle(1000), wds.to_tuple("__key__", *FIELDS), wds.batched(shards.batch_size))
        ),
    }


def main() -> None:
    """Measure as the command line says, print a table for each size, and write `bench_read.csv`."""
    chosen, book = setting("Measure samples per second beside webdataset.", samples=40_000, rounds=3), Book()
    for case in SIZES:
        with corpus(case, chosen) as shards:
            for name, took in alternate(contenders(shards), chosen.rounds).items():
                book.note(case, name, SPEED, *(run.samples / run.seconds for run in took))
                book.note(case, name, "samples/CPU s", *(run.samples / run.busy for run in took))
        book.show(case, SPEED, "wds", "raw", "equitar", "equitar random", title=f"{case} samples, one process")
        book.show(case, "samples/CPU s", "wds", "raw", "equitar", title=f"{case} samples, by processor time")
    book.write(chosen.out / "bench_read.csv")


if __name__ == "__main__":
    main()
