"""How many samples a second come through two DataLoader workers, raw bytes in batches of 64, ours beside webdataset's?

Nothing is decoded, so the way from the workers to the main process is what is measured. Workers are persistent, and their start
is not counted.

    wds               webdataset's shuffle(1000) and batched(64), in a plain DataLoader
    equitar pipe      equitar.Loader(slots=0): every batch through the pipe, as torch sends it
    equitar           equitar.Loader: through reused slots of shared memory, copied out
    equitar views     the same with views=True

    python benchmarks/bench_loader.py [--out FOLDER] [--samples N] [--rounds N] [--tiny]
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import webdataset as wds
from torch.utils.data import DataLoader

import equitar
from measure import SIZES, SPEED, Book, Corpus, alternate, as_it_is, corpus, dict_of_lists, samples_in, setting

NUM_WORKERS = 2


def contenders(shards: Corpus) -> dict[str, Iterable[dict[str, Any]]]:
    """Return what is measured; going through each reads every sample about once."""
    plain = wds.DataPipeline(
        wds.SimpleShardList(shards.urls),
        wds.split_by_worker,
        wds.tarfile_to_samples(),
        wds.shuffle(1000),
        wds.batched(shards.batch_size, collation_fn=dict_of_lists),
    )
    batches = equitar.debiased(shards.sources, batch_size=shards.batch_size, rank=0, world_size=1)
    return {
        "wds": DataLoader(
            plain, batch_size=None, collate_fn=as_it_is, num_workers=NUM_WORKERS, persistent_workers=True
        ),
        "equitar pipe": equitar.Loader(batches, slots=0, num_workers=NUM_WORKERS, persistent_workers=True),
        "equitar": equitar.Loader(batches, num_workers=NUM_WORKERS, persistent_workers=True),
        "equitar views": equitar.Loader(batches, views=True, num_workers=NUM_WORKERS, persistent_workers=True),
    }


def main() -> None:
    """Measure as the command line says, print a table for each size, and write `bench_loader.csv`."""
    chosen, book = setting("Measure samples per second through two workers, beside webdataset.", samples=8000), Book()
    for case in SIZES:
        with corpus(case, chosen) as shards:
            runs = {name: partial(samples_in, loader) for name, loader in contenders(shards).items()}
            for name, took in alternate(runs, chosen.rounds).items():
                book.note(case, name, SPEED, *(run.samples / run.seconds for run in took))
        title = f"{case} samples, {NUM_WORKERS} workers, batches of {shards.batch_size}"
        book.show(case, SPEED, "wds", title=title)
    book.write(chosen.out / "bench_loader.csv")


if __name__ == "__main__":
    main()
