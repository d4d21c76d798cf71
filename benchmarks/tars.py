"""Write the shards the benchmarks read: seeded, and exactly as webdataset's own TarWriter writes them by default.

The defaults matter. TarWriter stamps each member with the present time, a float, which a header of the tar format that Python
writes by default cannot hold: so every member gets a PAX extended header of two blocks before its own. Shards "in the wild"
look like this, and a reader that is only fast on bare ustar headers would look better here than it is. The price: the file
differs from run to run in those times, while its members (names, sizes, bytes) depend on the arguments alone.

A sample has three members, as in image-text training: one large (``jpg``), a class id (``cls``) and a caption (``txt``).

    python benchmarks/tars.py FOLDER --sample-bytes 4096
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import webdataset

NUM_CLASSES = 1000


def write_tars(
    folder: Path, *, name: str, num_shards: int, samples_per_shard: int, sample_bytes: int, seed: int
) -> list[Path]:
    """Write ``<name>-000000.tar`` and so on into `folder`.

    Args:
        folder: Where to; made if it is not there.
        name: What the file names begin with; also part of the keys, so that two sources share none.
        num_shards: How many tars.
        samples_per_shard: Samples in each.
        sample_bytes: Mean size of the large member; sizes lie evenly within a quarter of it on either side.
        seed: What bytes, sizes, classes and captions follow from.

    Returns:
        The paths, in order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}-{shard:06d}.tar" for shard in range(num_shards)]
    for shard, path in enumerate(paths):
        # One generator a shard: a set-up with more shards begins with the very shards of one with fewer.
        random = np.random.default_rng([seed, shard])
        sizes = random.integers(sample_bytes * 3 // 4, sample_bytes * 5 // 4, samples_per_shard, endpoint=True)
        classes = random.integers(0, NUM_CLASSES, samples_per_shard)
        with webdataset.TarWriter(str(path)) as writer:
            for row, (size, label) in enumerate(zip(sizes, classes, strict=True)):
                writer.write(
                    {
                        "__key__": f"{name}-{shard:06d}-{row:06d}",
                        "jpg": random.bytes(int(size)),
                        "cls": str(label).encode(),
                        "txt": f"a photo of object {label}, number {row} of its shard".encode(),
                    }
                )
    return paths


def main() -> None:
    """Write shards as the command line says and print their paths."""
    parser = argparse.ArgumentParser(description="Write benchmark shards.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", default="bench")
    parser.add_argument("--num-shards", type=int, default=4)
    parser.add_argument("--samples-per-shard", type=int, default=1000)
    parser.add_argument("--sample-bytes", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    paths = write_tars(
        chosen.folder,
        name=chosen.name,
        num_shards=chosen.num_shards,
        samples_per_shard=chosen.samples_per_shard,
        sample_bytes=chosen.sample_bytes,
        seed=chosen.seed,
    )
    print("\n".join(map(str, paths)))


if __name__ == "__main__":
    main()
