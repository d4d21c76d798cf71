"""Ranks that are processes: they meet in a collective at every step, on sources as uneven as they come.

One run of torchrun for each number of ranks does everything; the tests look at what its ranks wrote down.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helpers.shards import Drops, keys_of, rare_first, source_of, write_source
from helpers.torchrun import torchrun

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(240)]

# Few shards, and one that has most of the samples: webdataset gives whole shards to ranks.
SIZES = {"a": [2, 70, 3], "b": [20]}
MODES = [f"{mode}, {workers} workers" for mode in ("debiased", "mixed", "exact") for workers in (0, 2)]


class RankStep(NamedTuple):
    """What one rank told at a step."""

    source: str | None
    step: int
    keys: list[str]
    pads: list[bool]


class Run(NamedTuple):
    """What came of a run: what each rank wrote down."""

    world_size: int
    ranks: list[dict[str, Any]]

    def meetings(self, mode: str, rank: int = 0) -> list[list[RankStep]]:
        return [[RankStep(*rank_step) for rank_step in step] for step in self.ranks[rank][mode][:-1]]


def launched(folder: Path, world_size: int) -> Run:
    for name, sizes in SIZES.items():
        write_source(folder / "sources", name, sizes, label=rare_first)
    run = torchrun(Path(__file__).with_name("ranks.py"), folder / "sources", folder, ranks=world_size)
    assert run.returncode == 0, run.stderr[-4000:]
    return Run(world_size, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world_size)])


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return launched(tmp_path_factory.mktemp("ranks"), request.param)


def test_the_splitting_of_webdataset_hangs_or_raises_on_these_shards(run: Run) -> None:
    outcomes = [rank["webdataset"] for rank in run.ranks]
    assert any(outcome["error"] for outcome in outcomes), outcomes


@pytest.mark.parametrize("mode", MODES)
def test_all_ranks_were_at_every_meeting(mode: str, run: Run) -> None:
    assert all(rank[mode] == run.ranks[0][mode] for rank in run.ranks)


@pytest.mark.parametrize("mode", MODES)
def test_all_ranks_are_at_the_same_step(mode: str, run: Run) -> None:
    assert all(len({rank_step.step for rank_step in meeting}) == 1 for meeting in run.meetings(mode))


@pytest.mark.parametrize("mode", MODES)
def test_all_ranks_end_at_the_same_step(mode: str, run: Run) -> None:
    assert run.ranks[0][mode][-1] == ["end"] * run.world_size


@pytest.mark.parametrize("workers", [0, 2])
def test_all_ranks_draw_the_same_source(workers: int, run: Run) -> None:
    meetings = run.meetings(f"debiased, {workers} workers")
    assert [{rank_step.source for rank_step in meeting} for meeting in meetings] == [
        {meeting[0].source} for meeting in meetings
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_global_batch_holds_one_source(workers: int, run: Run) -> None:
    meetings = run.meetings(f"debiased, {workers} workers")
    sources_of_samples = [{source_of(key) for rank_step in meeting for key in rank_step.keys} for meeting in meetings]
    assert sources_of_samples == [{meeting[0].source} for meeting in meetings]


@pytest.mark.parametrize("mode", MODES)
def test_no_key_comes_twice_in_a_global_batch(mode: str, run: Run) -> None:
    steps = [
        [key for rank_step in meeting for key, is_pad in zip(rank_step.keys, rank_step.pads, strict=True) if not is_pad]
        for meeting in run.meetings(mode)
    ]
    assert all(len(set(step)) == len(step) for step in steps)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_full(workers: int, run: Run) -> None:
    meetings = run.meetings(f"debiased, {workers} workers")
    assert {len(rank_step.keys) for meeting in meetings for rank_step in meeting} == {3}


@pytest.mark.parametrize("workers", [0, 2])
def test_the_sources_of_steps_do_not_depend_on_workers(workers: int, run: Run) -> None:
    drawn = [
        [meeting[0].source for meeting in run.meetings(f"debiased, {num_workers} workers")]
        for num_workers in (0, workers)
    ]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_loses_at_most_a_global_batch_of_each_source(workers: int, run: Run) -> None:
    meetings = run.meetings(f"debiased, {workers} workers")
    for epoch in (meetings[: len(meetings) // 2], meetings[len(meetings) // 2 :]):
        places = Counter(source_of(key) for meeting in epoch for rank_step in meeting for key in rank_step.keys)
        assert places == {
            name: sum(sizes) // (3 * run.world_size) * 3 * run.world_size for name, sizes in SIZES.items()
        }


@pytest.mark.parametrize("workers", [0, 2])
def test_dropped_samples_do_not_come(workers: int, run: Run) -> None:
    keys = [
        key
        for meeting in run.meetings(f"debiased, {workers} workers")
        for rank_step in meeting
        for key in rank_step.keys
    ]
    assert not any(Drops(3).drops(key) for key in keys)


@pytest.mark.parametrize("workers", [0, 2])
def test_validation_gives_every_sample_once_over_all_ranks(workers: int, run: Run) -> None:
    meetings = run.meetings(f"exact, {workers} workers")
    first_pass = meetings[: len(meetings) // 2]
    pairs = [
        pair
        for meeting in first_pass
        for rank_step in meeting
        for pair in zip(rank_step.keys, rank_step.pads, strict=True)
    ]
    every = [key for name, sizes in SIZES.items() for key in keys_of(name, sum(sizes))]
    assert sorted(key for key, is_pad in pairs if not is_pad) == every


def test_ranks_with_another_seed_are_refused_before_the_first_step(run: Run) -> None:
    expected = r"all ranks must have the same plan; global rank \d has seed \d, plan \w+ where global rank \d has seed \d, plan"
    assert all(re.match(expected, rank["another seed"]) for rank in run.ranks)


def test_ranks_in_another_epoch_are_refused_before_the_first_step(run: Run) -> None:
    expected = (
        r"all ranks must have the same plan; global rank \d has epoch \d where global rank \d has epoch \d: compare"
    )
    assert all(re.match(expected, rank["another epoch"]) for rank in run.ranks)
