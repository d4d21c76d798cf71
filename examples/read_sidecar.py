"""Read a sidecar with numpy alone, as its format says: a model for readers in other languages.

Run it: `python examples/read_sidecar.py x-000.presence.npz`
"""

from __future__ import annotations

import hashlib
import json
import sys
from itertools import pairwise
from typing import Any

import numpy as np


def read_sidecar(path: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what a sidecar says of its shard, and each sample: key, members as (field, offset, size), and labels."""
    arrays = dict(np.load(path, allow_pickle=False))
    meta = json.loads(arrays.pop("meta").tobytes())
    assert (meta["format"], meta["version"]) == ("equitar sidecar", 1)
    wide = {name: array.astype(np.int64) for name, array in arrays.items()}
    text = arrays["keys"].tobytes()
    keys = [text[begin:end] for begin, end in pairwise(pointers(wide["key_lengths"]))]
    padded = -(-wide["member_size"] // 512) * 512
    offset = np.cumsum(wide["member_gap"] + padded) - padded
    fields = [meta["fields"][number] for number in wide["member_field"]]
    members = list(zip(fields, offset.tolist(), wide["member_size"].tolist(), strict=True))
    rows = pointers(wide["row_members"])
    samples: list[dict[str, Any]] = [
        {"key": key, "members": members[begin:end]} for key, (begin, end) in zip(keys, pairwise(rows), strict=True)
    ]
    names = [name.encode() for name in meta["fields"]]
    hashed = [[*text], wide["key_lengths"], rows, [*b"".join(names)], [len(name) for name in names]]
    hashed += [wide["member_field"], offset, wide["member_size"], [meta["sliceable"]]]
    if "row_labels" in wide:
        labels = pointers(wide["row_labels"])
        counts = list(zip(wide["label_ids"].tolist(), wide["label_counts"].tolist(), strict=True))
        for sample, (begin, end) in zip(samples, pairwise(labels), strict=True):
            sample["labels"] = dict(counts[begin:end])
        hashed += [labels, wide["label_ids"], wide["label_counts"]]
    assert digest_of(hashed) == meta["digest"]
    return meta, samples


def pointers(lengths: Any) -> list[int]:
    """Return where each part begins, and where the last ends."""
    return [0, *np.cumsum(lengths).tolist()]


def digest_of(arrays: list[Any]) -> str:
    """Return the hash of arrays, each as little-endian i8 after its length."""
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(np.array([len(array), *array], "<i8").tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    of_shard, of_samples = read_sidecar(sys.argv[1])
    print(of_shard)
    for each in of_samples:
        print(each)
