"""Do tars and indexed datasets get the same factors, by whatever heuristic? The labels of the ones are read as the others'."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import webdataset as wds

import equitar
from equitar.planning.repeat_factors import RepeatFactor
from equitar.samplers.dataset_plan import factors_by_labels
from equitar.samplers.label_files import labels_from_sidecars
from equitar.sidecars.catalog import catalog_of, supplies_of

HOWS = (
    RepeatFactor(0.3),
    RepeatFactor("median", power=0.7),
    RepeatFactor(0.3, heuristic="irfs", cap=2.5),
    RepeatFactor(0.3, heuristic="irfs", empty="drop"),
    RepeatFactor(heuristic=lambda frequency: 0.5 / frequency, scope="source"),
    RepeatFactor(0.3, min_count=4, ignore=[2]),
    RepeatFactor(0.3, empty="drop", rounding="ceil"),
)


def write_boxes(folder: Path, name: str, seed: int) -> equitar.Source:
    """Write and index three shards of samples with some boxes each, which may be none."""
    rng = np.random.default_rng(seed)
    for shard in range(3):
        with wds.TarWriter(str(folder / f"{name}-{shard}.tar"), mtime=0) as writer:
            for row in range(12):
                boxes = (6 * rng.random(rng.integers(0, 5)) ** 2).astype(int).tolist()
                writer.write({"__key__": f"{shard}{row:03d}", "json": {"boxes": boxes}})
    source = equitar.Source(name, str(folder / f"{name}-*.tar"))
    equitar.index(source, labels="json:boxes", jobs=1, progress=False)
    return source


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[equitar.Source]:
    folder = tmp_path_factory.mktemp("boxes")
    return [write_boxes(folder, name, seed) for seed, name in enumerate(("coco", "lvis"))]


@pytest.mark.parametrize("how", HOWS, ids=range(len(HOWS)))
def test_tars_and_indexed_datasets_get_the_same_factors(sources: list[equitar.Source], how: RepeatFactor) -> None:
    supplies = supplies_of(catalog_of(sources), how)
    indexed = factors_by_labels({source.name: labels_from_sidecars(source) for source in sources}, how)
    for supply in supplies:
        rows = np.concatenate([supply.factors(shard) for shard in range(3)])
        assert rows.tolist() == indexed[supply.name].tolist()
        assert supply.total == rows.sum()


def test_samples_without_labels_are_dropped_from_a_stream(sources: list[equitar.Source]) -> None:
    labels = labels_from_sidecars(sources[0])
    lengths = np.concatenate([np.diff(part.indptr) for part in labels.parts()])
    filled = {f"{row // 12}{row % 12:03d}" for row in np.flatnonzero(lengths).tolist()}
    samples = equitar.mixed(sources[:1], repeat=RepeatFactor(0.0, empty="drop"), rank=0, world_size=1)
    assert Counter(sample["__key__"] for sample in samples) == dict.fromkeys(filled, 1)
    assert 0 < len(filled) < 36


def test_a_selection_and_a_heuristic_count_the_same_rows(sources: list[equitar.Source]) -> None:
    half = equitar.Source("coco", sources[0].urls, keep=equitar.split(0, 2))
    (supply,) = supplies_of(catalog_of([half]), RepeatFactor(0.3, heuristic="irfs", empty="drop"))
    rows = np.concatenate([supply.factors(shard) for shard in range(3)])
    assert 0 < np.count_nonzero(rows) < 30
    assert supply.total == rows.sum()
