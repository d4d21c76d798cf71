"""The core of the integration tests, to be run with each webdataset that is supported: `core` must return the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import webdataset as wds

import equitar
from helpers.shards import Drops, flat, rare_first, write_source


def core(folder: Path) -> dict[str, Any]:
    """Return what comes out of both modes, of composed batches, and of stages by hand."""
    sources = [
        write_source(folder, name, sizes, label=rare_first) for name, sizes in {"a": [30, 20], "b": [25]}.items()
    ]
    shards = wds.SimpleShardList(sorted(str(path) for path in folder.glob("*/*.tar")))
    stages = [wds.decode(), wds.map(dict), wds.rename(label="cls"), Drops(3)]
    debiased = equitar.debiased(sources, batch_size=5, stages=stages)
    mixed = equitar.mixed(sources, batch_size=5, repeat=0.4)
    return {
        "debiased": [flat(equitar.Loader(debiased, num_workers=workers)) for workers in (0, 2)],
        "tuples": [list(row) for row in debiased.to_tuple("__key__", "label")],
        "mixed": [flat(equitar.Loader(mixed, num_workers=workers)) for workers in (0, 2)],
        "slices": [
            sample["__key__"]
            for sample in wds.DataPipeline(equitar.stages.slices(mixed), equitar.stages.read(), wds.decode())
        ],
        "repeats": flat(
            wds.DataPipeline(
                shards,
                wds.split_by_worker,
                wds.tarfile_to_samples(),
                equitar.stages.repeats(sources, repeat=0.4),
                equitar.stages.shuffled(20),
                equitar.stages.batched_by_source(5, sources=sources),
            )
        ),
        "refused": [_refused(debiased, name) for name in ("shuffle", "batched", "with_epoch", "repeat", "slice")],
    }


def _refused(batches: Any, name: str) -> str:
    try:
        getattr(batches, name)(3)
    except AttributeError as error:
        return str(error)
    return f".{name}() was not refused"


if __name__ == "__main__":
    print(json.dumps([wds.__version__, core(Path(sys.argv[1]))]))
