"""How fast do images and tensors come through two workers, stacked into batches of 64?

jpeg       JPEG files of 256 x 256 pixels, decoded by Pillow, cropped to 224 x 224: uint8 tensors, 9.6 MB a batch
floats     random float tensors of 3 x 224 x 224, made in no time: 38.5 MB a batch, so that only the transfer is left

wds               webdataset's shuffle and batched (which stacks), in a plain DataLoader with batch_size=None
wds default       the same, batched and stacked by the DataLoader itself: torch's default collate
equitar pipe      equitar.Loader(slots=0)
equitar           equitar.Loader: through reused slots of shared memory, copied out
equitar views     the same with views=True

python benchmarks/bench_tensors.py [--out FOLDER] [--samples N] [--rounds N] [--tiny]
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset as wds
from PIL import Image
from torch.utils.data import DataLoader

import equitar
from measure import SPEED, Book, alternate, as_it_is, setting

SIDE = 224
NUM_WORKERS = 2
SHARDS = 4
Sample = dict[str, Any]


def write_images(folder: Path, samples: int) -> None:
    """Write shards of smooth random images, as large in JPEG as photographs are, and index them."""
    random = np.random.default_rng(0)
    for shard in range(SHARDS):
        with wds.TarWriter(str(folder / f"images-{shard:06}.tar")) as writer:
            for row in range(samples // SHARDS):
                coarse = Image.fromarray(random.integers(0, 256, (32, 32, 3), np.uint8))
                encoded = io.BytesIO()
                coarse.resize((256, 256)).save(encoded, "JPEG", quality=90)
                writer.write({"__key__": f"{shard}-{row}", "jpg": encoded.getvalue(), "cls": str(row % 10).encode()})
    equitar.index(equitar.Source("images", str(folder / "*.tar")), labels="cls", jobs=1, progress=False)


def decoded(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Decode images: a stage."""
    for sample in samples:
        with Image.open(io.BytesIO(sample["jpg"])) as image:
            pixels = np.asarray(image.crop((16, 16, 16 + SIDE, 16 + SIDE)))
        yield {"__key__": sample["__key__"], "image": torch.from_numpy(pixels.copy()), "cls": int(sample["cls"])}


def floats(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Give a float tensor for each sample, without looking at it: a stage."""
    stock = torch.rand(8, 3, SIDE, SIDE)
    for number, sample in enumerate(samples):
        yield {"__key__": sample["__key__"], "image": stock[number % 8], "cls": int(sample["cls"])}


def stacked(samples: list[Sample]) -> dict[str, Any]:
    """Make a batch: images as one tensor."""
    return {
        "__key__": [sample["__key__"] for sample in samples],
        "image": torch.stack([sample["image"] for sample in samples]),
        "cls": torch.tensor([sample["cls"] for sample in samples]),
    }


def contenders(folder: Path, stage: Callable[[Iterable[Sample]], Iterator[Sample]], batch_size: int) -> dict[str, Any]:
    """Return the loaders that are compared."""
    urls = sorted(str(path) for path in folder.glob("*.tar"))
    read = [wds.SimpleShardList(urls), wds.split_by_worker, wds.tarfile_to_samples(), wds.shuffle(1000), stage]
    batches = equitar.debiased(
        [equitar.Source("images", urls)],
        batch_size=batch_size,
        shuffle=1000,
        stages=[stage],
        collate_fn=stacked,
        rank=0,
        world_size=1,
    )
    return {
        "wds": DataLoader(
            wds.DataPipeline(*read, wds.batched(batch_size, collation_fn=stacked)),
            batch_size=None,
            collate_fn=as_it_is,
            num_workers=NUM_WORKERS,
            persistent_workers=True,
        ),
        "wds default": DataLoader(
            wds.DataPipeline(*read), batch_size=batch_size, num_workers=NUM_WORKERS, persistent_workers=True
        ),
        "equitar pipe": equitar.Loader(batches, slots=0, num_workers=NUM_WORKERS, persistent_workers=True),
        "equitar": equitar.Loader(batches, num_workers=NUM_WORKERS, persistent_workers=True),
        "equitar views": equitar.Loader(batches, views=True, num_workers=NUM_WORKERS, persistent_workers=True),
    }


def images_in(batches: Iterable[dict[str, Any]]) -> int:
    """Count the images of batches, and look at each batch once, as a step would."""
    count = 0
    for batch in batches:
        assert batch["image"][-1, -1, -1, -1] >= 0
        count += len(batch["image"])
    return count


def main() -> None:
    """Measure as the command line says, print tables, and write `bench_tensors.csv`."""
    chosen, book = setting("Measure images and tensors through two workers.", samples=2000), Book()
    samples = 64 if chosen.is_tiny else chosen.samples
    batch_size = min(64, samples // 8)
    with tempfile.TemporaryDirectory() as scratch:
        write_images(Path(scratch), samples)
        for case, stage in (("jpeg", decoded), ("floats", floats)):
            runs = {
                name: partial(images_in, loader)
                for name, loader in contenders(Path(scratch), stage, batch_size).items()
            }
            for name, took in alternate(runs, chosen.rounds).items():
                book.note(case, name, SPEED, *(run.samples / run.seconds for run in took))
            book.show(case, SPEED, "wds", title=f"{case}, {NUM_WORKERS} workers, batches of {batch_size}")
    book.write(chosen.out / "bench_tensors.csv")


if __name__ == "__main__":
    main()
