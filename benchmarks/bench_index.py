"""How fast are shards indexed, and read without an index, beside webdataset reading them once?

Samples a second by the clock, and per second of processor time, which other work on the machine disturbs less. Shards are
written by webdataset's TarWriter with its defaults (a PAX header before each member), three members a sample, and are in the
page cache. Nothing is decoded.

    wds                webdataset.tarfile_to_samples
    index              equitar.index with labels="cls", one process: sidecars and summary are written
    index, no labels   the same without labels
    tar_samples        equitar.stages.tar_samples: all samples are read, by a walk of the headers
    check              equitar.check: the sidecars are compared with the shards

    python benchmarks/bench_index.py [--out FOLDER] [--samples N] [--rounds N] [--tiny]
"""

from __future__ import annotations

from collections.abc import Callable

import webdataset as wds

import equitar
from measure import SIZES, SPEED, Book, Corpus, alternate, corpus, setting


def contenders(shards: Corpus) -> dict[str, Callable[[], int]]:
    """Return what is measured: each goes through every sample once and returns how many there are."""
    source = equitar.Source("bench", str(shards.folder / "*.tar"))

    def indexed(labels: str | None) -> int:
        # Written over, they would also measure how a file system replaces a file.
        for path in shards.folder.glob("*.npz"):
            path.unlink()
        report = equitar.index(source, labels=labels, jobs=1, progress=False)
        return report.sources[0].samples

    def checked() -> int:
        problems = equitar.check(source, jobs=1, progress=False)
        assert not problems, problems
        return shards.num_samples

    return {
        "wds": lambda: sum(1 for _ in wds.DataPipeline(wds.SimpleShardList(shards.urls), wds.tarfile_to_samples())),
        "index": lambda: indexed("cls"),
        "tar_samples": lambda: sum(1 for _ in equitar.stages.tar_samples()(shards.urls)),
        "check": checked,
        "index, no labels": lambda: indexed(None),
    }


def main() -> None:
    """Measure as the command line says, print a table for each size, and write `bench_index.csv`."""
    chosen, book = setting("Measure indexing beside webdataset.", samples=16_000), Book()
    for case in SIZES:
        with corpus(case, chosen) as shards:
            for name, took in alternate(contenders(shards), chosen.rounds).items():
                assert all(run.samples == shards.num_samples for run in took), f"{name} did not find all samples"
                book.note(case, name, SPEED, *(run.samples / run.seconds for run in took))
                book.note(case, name, "samples/CPU s", *(run.samples / run.busy for run in took))
        book.show(case, SPEED, "wds", title=f"{case} samples, one process")
        book.show(case, "samples/CPU s", "wds", title=f"{case} samples, by processor time")
    book.write(chosen.out / "bench_index.csv")


if __name__ == "__main__":
    main()
