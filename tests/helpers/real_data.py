"""Labels of real images, where the folder `shared/data` lies beside the repository; without it, tests of them are skipped."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from equitar.arrays import Int64
from equitar.presence import Presence

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data"


def path_of(name: str) -> Path:
    """Return the path of a data file, or skip the test."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{name} is not beside this repository")
    return path


@cache
def label_sets(name: str) -> list[list[int]]:
    """Return the label ids of each image of a ``key<TAB>ids`` file."""
    with gzip.open(path_of(f"{name}.tsv.gz"), "rt", encoding="utf-8") as lines:
        return [[int(label) for label in line.rstrip("\n").partition("\t")[2].split()] for line in lines]


@cache
def presence(name: str) -> Presence:
    """Return the sparse rows of a data set."""
    return Presence.of(label_sets(name))


def lvis_image_counts() -> Int64:
    """Return the number of LVIS v1 train images of each category, (1203,)."""
    return np.loadtxt(path_of("lvis_v1_image_counts.tsv"), np.int64)[:, 1]
