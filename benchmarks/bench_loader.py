"""How many samples a second come through two DataLoader workers, raw bytes in batches of 64, ours beside webdataset's?

All contenders read the same shards in one run, in turn; the table gives the median and the best, and the ratio to webdataset.
Nothing is decoded, so the way from the workers to the main process is what is measured.

    wds               webdataset's shuffle(1000) and batched(64), in a plain DataLoader
    equitar pipe      equitar.Loader(slots=0): every batch through the pipe, as torch sends it
    equitar           equitar.Loader: through reused slots of shared memory, copied out
    equitar views     the same with views=True

    python benchmarks/bench_loader.py [--out FOLDER] [--samples N] [--rounds N]
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import webdataset as wds
from torch.utils.data import DataLoader

import equitar
from tars import write_tars

SIZES = {"4 KB": 4096, "60 KB": 61440}
BATCH_SIZE = 64
NUM_WORKERS = 2
FIELDS = ("jpg", "cls", "txt")


def as_it_is(batch: Any) -> Any:
    """Return a batch: torch's own function would look at every element."""
    return batch


def dict_of_lists(samples: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Make a batch for webdataset as equitar does."""
    return {name: [sample[name] for sample in samples] for name in ("__key__", *FIELDS)}


def contenders(folder: Path) -> dict[str, Iterable[dict[str, Any]]]:
    """Return what is measured; going through each reads every sample about once."""
    sources = [equitar.Source(name, str(folder / f"{name}-*.tar")) for name in ("one", "two")]
    urls = sorted(str(path) for path in folder.glob("*.tar"))
    plain = wds.DataPipeline(
        wds.SimpleShardList(urls),
        wds.split_by_worker,
        wds.tarfile_to_samples(),
        wds.shuffle(1000),
        wds.batched(BATCH_SIZE, collation_fn=dict_of_lists),
    )
    batches = equitar.debiased(sources, batch_size=BATCH_SIZE, rank=0, world_size=1)
    return {
        "wds": DataLoader(
            plain, batch_size=None, collate_fn=as_it_is, num_workers=NUM_WORKERS, persistent_workers=True
        ),
        "equitar pipe": equitar.Loader(batches, slots=0, num_workers=NUM_WORKERS, persistent_workers=True),
        "equitar": equitar.Loader(batches, num_workers=NUM_WORKERS, persistent_workers=True),
        "equitar views": equitar.Loader(batches, views=True, num_workers=NUM_WORKERS, persistent_workers=True),
    }


def measure(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Return the samples per second of each contender in each round; the first round warms up and is not counted."""
    loaders = contenders(folder)
    speeds: dict[str, list[float]] = {name: [] for name in loaders}
    for one_round in range(rounds + 1):
        for name, loader in loaders.items():
            begin = time.perf_counter()
            count = sum(len(batch["__key__"]) for batch in loader)
            if one_round:
                speeds[name].append(count / (time.perf_counter() - begin))
    return speeds


def main() -> None:
    """Measure as the command line says, print a table for each size, and write `bench_loader.csv`."""
    parser = argparse.ArgumentParser(description="Measure samples per second through two workers, beside webdataset.")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out"), help="where the CSV goes")
    parser.add_argument("--samples", type=int, default=8000, help="samples of each size")
    parser.add_argument("--rounds", type=int, default=5, help="counted runs of each loader")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    with (chosen.out / "bench_loader.csv").open("w", newline="") as file, tempfile.TemporaryDirectory() as scratch:
        writer = csv.writer(file)
        writer.writerow(["size", "loader", "round", "samples_per_second"])
        for size, sample_bytes in SIZES.items():
            folder = Path(scratch) / size.replace(" ", "")
            each = max(BATCH_SIZE, chosen.samples // 4)
            for seed, name in enumerate(("one", "two")):
                write_tars(
                    folder, name=name, num_shards=2, samples_per_shard=each, sample_bytes=sample_bytes, seed=seed
                )
            sources = [equitar.Source(name, str(folder / f"{name}-*.tar")) for name in ("one", "two")]
            equitar.index(sources, labels="cls", jobs=1, progress=False)
            speeds = measure(folder, chosen.rounds)
            writer.writerows(
                [size, name, number, f"{one:.1f}"] for name, found in speeds.items() for number, one in enumerate(found)
            )
            base = statistics.median(speeds["wds"])
            print(f"\n{size} samples, {NUM_WORKERS} workers, batches of {BATCH_SIZE}")
            print(f"{'loader':16}{'median /s':>14}{'best /s':>14}{'x wds':>14}")
            for name, found in speeds.items():
                median = statistics.median(found)
                print(f"{name:16}{median:>14,.0f}{max(found):>14,.0f}{median / base:>14.1f}")


if __name__ == "__main__":
    main()
