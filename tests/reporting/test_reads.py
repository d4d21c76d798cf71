"""Statistics and reports read each sidecar once: twice where only its rows say what the classes count."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equitar.indexing.index import index
from equitar.loading.batches import execution_of
from equitar.loading.builders import debiased, mixed
from equitar.planning.repeat_factors import RepeatFactor
from equitar.reporting.preview import RowMemory, plan
from equitar.reporting.report import report_of
from equitar.reporting.stats import stats
from equitar.sidecars.catalog import Repeat, supplies_of
from equitar.sidecars.sidecar import Sidecar
from equitar.sources import Source
from equitar.storage.files import read_bytes
from helpers.odd_tars import END, member

SHARDS = [[[0], [0, 1], [0], []], [[0, 2], [0], [0, 1]], [[0], [0, 3], [0]]]
FUNCTIONS: dict[str, Callable[[list[Source], Repeat], Any]] = {
    "stats": lambda sources, repeat: stats(sources, repeat=repeat),
    "stats of batches": lambda sources, repeat: stats(
        debiased(sources, batch_size=2, repeat=repeat, rank=0, world_size=1)
    ),
    "report": lambda sources, repeat: report_of(sources, repeat=repeat),
    "report of batches": lambda sources, repeat: report_of(
        debiased(sources, batch_size=2, repeat=repeat, rank=0, world_size=1), num_workers=1
    ),
    "report of batches, with another repeat": lambda sources, repeat: report_of(
        mixed(sources, batch_size=2, repeat=0.01, rank=0, world_size=1), repeat=repeat
    ),
}
REPEATS: dict[str, Repeat] = {
    "none": None,
    "threshold": 0.4,
    "median": RepeatFactor("median"),
    "instances": RepeatFactor(0.4, heuristic="irfs"),
    "drop": RepeatFactor(0.4, empty="drop"),
    "function": lambda sidecar: [2.0] * sidecar.num_rows,
}


def even(sidecar: Sidecar) -> list[float]:
    return [float(row % 2 == 0) for row in range(sidecar.num_rows)]


@pytest.fixture
def sources(tmp_path: Path) -> list[Source]:
    result = []
    for name in ("left", "right"):
        for shard, rows in enumerate(SHARDS):
            members = (member(f"{row}.json", json.dumps({"n": each}).encode()) for row, each in enumerate(rows))
            (tmp_path / f"{name}-{shard}.tar").write_bytes(b"".join(members) + END)
        result.append(Source(name, f"{tmp_path}/{name}-*.tar"))
    index(result, labels="json:n", classes=["a", "b", "c", "d"], jobs=1, progress=False)
    return result


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each sidecar is read."""
    counts: Counter[str] = Counter()

    def counted(url: str, *args: Any) -> bytes:
        counts[url] += 1
        return read_bytes(url, *args)

    monkeypatch.setattr("equitar.sidecars.sidecar.read_bytes", counted)
    return counts


@pytest.mark.parametrize("repeat", REPEATS)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("has_summary", [True, False])
@pytest.mark.parametrize("keeps", [False, True])
def test_each_sidecar_is_read_once_and_twice_with_keep(
    sources: list[Source],
    reads: Counter[str],
    tmp_path: Path,
    *,
    repeat: str,
    function: str,
    has_summary: bool,
    keeps: bool,
) -> None:
    if not has_summary:
        for path in tmp_path.glob("*.summary.*"):
            path.unlink()
    if keeps:
        sources = [replace(source, keep=even) for source in sources]
    reads.clear()
    FUNCTIONS[function](sources, REPEATS[repeat])
    needs_rows_to_count = keeps or repeat in ("instances", "drop")
    most = 1 + needs_rows_to_count + (not has_summary)  # without a summary, one is made of all sidecars first
    assert max(reads.values(), default=0) <= most


@pytest.mark.parametrize("bound", [0, 400, 1 << 20])
def test_rows_are_remembered_within_a_bound_and_a_report_says_the_same(
    sources: list[Source], monkeypatch: pytest.MonkeyPatch, bound: int
) -> None:
    batches = debiased(
        [replace(source, keep=even) for source in sources], batch_size=1, repeat=0.4, rank=0, world_size=1
    )
    expected = plan(batches, num_workers=2)
    monkeypatch.setattr("equitar.reporting.preview._ROW_BYTES", bound)
    catalog = execution_of(batches).request.resolved.catalog
    memory = RowMemory(catalog, None)
    supplies = memory.remembered(supplies_of(catalog, 0.4, [memory]))
    assert memory.num_bytes <= bound
    for supply, sidecars in zip(supplies, catalog.sidecars, strict=True):
        for shard in range(len(SHARDS)):
            source = catalog.sidecars.index(sidecars)
            assert memory.sizes(source, shard).tolist() == sidecars(shard).sizes.tolist()
            assert int(supply.factors(shard).sum()) == supply.sums[shard]
    outcome = report_of(batches, num_workers=2).plan
    assert outcome is not None
    assert (outcome.consumers, outcome.digest) == (expected.consumers, expected.digest)
