"""Real ranks and workers: stopped and resumed with others, killed in the middle, and 20 epochs that meet at every step."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from helpers.elastic_figures import (
    SIZES,
    STOPS,
    World,
    begin,
    compare,
    job,
    launch,
    ranks_of,
    resume,
    samples_at,
)
from helpers.shards import Drops, rare_first, write_source

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(280)]

# More ranks and fewer, with and without workers; elastic_figures.py takes all 144 pairs.
WORLDS: list[World] = [(1, 3), (2, 1), (3, 0), (3, 2)]
PAIRS: list[tuple[World, World]] = [
    (before, after)
    for row, before in enumerate(WORLDS)
    for column, after in enumerate(WORLDS)
    if (row + column) % 3 == 1
]
EPOCHS = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elastic")
    for name, sizes in SIZES.items():
        write_source(folder / "sources", name, sizes, label=rare_first)
    return folder


@pytest.fixture(scope="module")
def begun(folder: Path) -> Path:
    """Let worlds train and stop, one be killed, and all go on: each torchrun takes seconds, so each does as much as it can."""
    epochs = job("epochs", 2, epochs=EPOCHS, persistent=True)
    begin(folder, WORLDS, {3: [epochs]})
    assert launch(folder, 3, [job("killed", 2, steps=STOPS[1], kill=True)]) != 0
    resume(folder, PAIRS, {2: [job("after", 1, resume="killed")]})
    return folder


def test_resumed_with_other_ranks_and_workers_exactly_what_remained_comes(begun: Path) -> None:
    figures = compare(begun, PAIRS)
    print(figures)
    assert figures.mismatches == []
    assert figures.steps > 2 * len(PAIRS)
    assert figures.byte_for_byte


def test_samples_that_stages_drop_come_in_no_world(begun: Path) -> None:
    for world in WORLDS:
        keys = [key for batches in ranks_of(begun, world, "whole") for batch in batches for key in batch["__key__"]]
        assert not any(Drops(3).drops(key) for key in keys)


def test_a_world_that_was_killed_goes_on_from_its_last_state_with_fewer_ranks(begun: Path) -> None:
    stop = STOPS[1]
    assert not (begun / "killed.2").exists()  # it was killed before it wrote down what it had
    whole, after = (
        ranks_of(begun, (3, 2), "whole"),
        [pickle.loads((begun / f"after.{rank}").read_bytes()) for rank in (0, 1)],
    )
    expected = [samples_at(whole, step) for step in range(stop, len(whole[0]))]
    assert [samples_at(after, step) for step in range(len(after[0]))] == expected


def test_twenty_epochs_meet_at_every_step(begun: Path) -> None:
    ranks: list[list[dict[str, Any]]] = [pickle.loads((begun / f"epochs.{rank}").read_bytes()) for rank in range(3)]
    num_steps = len(ranks[0]) // EPOCHS
    assert [[batch["__step__"] for batch in batches] for batches in ranks] == [[*range(num_steps)] * EPOCHS] * 3
    for batches in zip(*ranks, strict=True):
        assert len({batch["__source__"] for batch in batches}) == 1
        keys = [key for batch in batches for key in batch["__key__"]]
        assert len(set(keys)) == len(keys) == 12
