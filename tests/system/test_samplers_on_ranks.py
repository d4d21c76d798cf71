"""Samplers on real ranks: two and three gloo processes that torchrun starts, with persistent workers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from helpers.torchrun import torchrun

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

Ranks: TypeAlias = list[list[list[int]]]  # for each rank, its batches
FIRST_OF_LVIS, ROWS = 150, 211


def run(world_size: int, path: Path) -> dict[str, Any]:
    ran = torchrun(Path(__file__).with_name("rank_samplers.py"), path, ranks=world_size)
    assert ran.returncode == 0, ran.stderr
    written: dict[str, Any] = json.loads(path.read_text())
    return written


@pytest.fixture(scope="module", params=[2, 3])
def epochs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    world_size: Any = request.param
    return run(world_size, tmp_path_factory.mktemp("ranks") / "batches.json")


def flat(ranks: Ranks) -> list[int]:
    return [row for batches in ranks for batch in batches for row in batch]


def global_batches(ranks: Ranks) -> list[list[list[int]]]:
    assert len({len(batches) for batches in ranks}) == 1, "all ranks do the same number of steps"
    return [list(step) for step in zip(*ranks, strict=True)]


@pytest.mark.parametrize("name", ["debiased", "both"])
def test_all_ranks_draw_the_same_dataset(epochs: dict[str, list[Ranks]], name: str) -> None:
    for ranks in epochs[name]:
        for step in global_batches(ranks):
            whole = [row for batch in step for row in batch]
            assert len({row >= FIRST_OF_LVIS for row in whole}) == 1
            assert len(set(whole)) == len(whole) == 4 * len(ranks)


def test_without_repeats_no_row_comes_twice(epochs: dict[str, list[Ranks]]) -> None:
    for ranks in epochs["debiased"]:
        rows, global_batch = flat(ranks), 4 * len(ranks)
        assert len(rows) == len(set(rows)) == (150 // global_batch + 61 // global_batch) * global_batch


def test_rare_rows_come_by_their_factor(epochs: dict[str, list[Ranks]]) -> None:
    factor = (0.3 / (5 / ROWS)) ** 0.5  # 3.56
    for ranks in epochs["repeats"]:
        counts = Counter(flat(ranks))
        for step in global_batches(ranks):
            whole = [row for batch in step for row in batch]
            assert len(set(whole)) == len(whole)
        left_over = 4 * len(ranks)
        assert all(counts[row] <= (4 if FIRST_OF_LVIS <= row < FIRST_OF_LVIS + 5 else 1) for row in range(ROWS))
        assert sum(counts.values()) == (ROWS - 5 + 5 * factor) // left_over * left_over


def test_wrapped_samplers_are_shared_out_exactly(epochs: dict[str, list[Ranks]]) -> None:
    for ranks in epochs["random"]:
        global_batches(ranks)
        padded = -ROWS % len(ranks)
        assert set(flat(ranks)) == set(range(ROWS))
        assert len(flat(ranks)) == ROWS + padded
    for ranks in epochs["weighted"]:
        drawn = flat(ranks)
        assert len(drawn) == 500 + -500 % len(ranks)
        assert sum(row >= ROWS // 2 for row in drawn) > 300  # three quarters of the weight


def test_epochs_differ(epochs: dict[str, list[Ranks]]) -> None:
    assert all(epochs[name][0] != epochs[name][1] for name in epochs if name != "refusals")


def test_ranks_that_differ_are_told_so_and_do_not_hang(epochs: dict[str, Any]) -> None:
    assert [refusal.split(";")[0] for refusal in epochs["refusals"]] == [
        f"all ranks must have the same {what}" for what in ("draw", "plan", "plan")
    ]
