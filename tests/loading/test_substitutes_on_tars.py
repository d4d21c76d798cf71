"""A stage drops samples: their places get substitutes, and no other place notices."""

from __future__ import annotations

from typing import Any

import pytest

import equitar
from equitar.errors import StageError
from equitar.loading.batches import Batches
from equitar.sources import Source
from helpers.shards import (
    Drops,
    as_rank,
    flat,
    global_batches,
    keys_of,
    over_ranks,
    source_of,
    sources_of,
    write_source,
)

# The number of workers is what is tested, not how fast they are.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

SIZES = {"a": [60, 90, 50], "b": [170]}
FEW = Drops(3)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    folder = tmp_path_factory.mktemp("sources")
    return [write_source(folder, name, sizes) for name, sizes in SIZES.items()]


@pytest.fixture(params=["debiased", "mixed"])
def build(request: pytest.FixtureRequest, sources: list[Source]) -> Any:
    def built(**arguments: Any) -> Batches:
        builder = equitar.debiased if request.param == "debiased" else equitar.mixed
        return builder(sources, batch_size=8, **arguments)

    return built


def places(batches: Batches, world_size: int = 1) -> list[list[str]]:
    return global_batches(over_ranks(batches, world_size))


def test_the_stage_of_these_tests_drops_some_and_not_all() -> None:
    dropped = [key for name, sizes in SIZES.items() for key in keys_of(name, sum(sizes)) if FEW.drops(key)]
    assert 3 <= len(dropped) <= 40


@pytest.mark.parametrize("world_size", [1, 2])
def test_places_of_samples_that_are_kept_do_not_shift(build: Any, world_size: int) -> None:
    planned, given = places(build(), world_size), places(build(stages=[FEW]), world_size)
    moved = [
        (want, got)
        for step, other in zip(planned, given, strict=True)
        for want, got in zip(step, other, strict=True)
        if want != got and not FEW.drops(want)
    ]
    assert moved == []


def test_places_of_dropped_samples_are_taken_by_others(build: Any) -> None:
    planned, given = places(build()), places(build(stages=[FEW]))
    taken = [
        got
        for step, other in zip(planned, given, strict=True)
        for want, got in zip(step, other, strict=True)
        if FEW.drops(want)
    ]
    assert taken
    assert not any(FEW.drops(key) for key in taken)


def test_substitutes_are_of_the_same_source(build: Any) -> None:
    planned, given = places(build()), places(build(stages=[FEW]))
    assert [[source_of(key) for key in step] for step in given] == [
        [source_of(key) for key in step] for step in planned
    ]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_no_sample_comes_twice_in_a_global_batch(build: Any, world_size: int) -> None:
    assert all(len(set(step)) == len(step) for step in places(build(stages=[Drops(10)]), world_size))


def test_sources_of_steps_do_not_change(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=8, stages=[FEW])
    assert sources_of(batches) == batches.sources(0)


def test_the_number_of_steps_does_not_change(build: Any) -> None:
    batches = build(stages=[FEW])
    assert len(list(batches)) == len(batches) == len(build())


@pytest.mark.parametrize("lanes", [1, 3])
def test_the_same_run_gives_the_same_substitutes(build: Any, lanes: int) -> None:
    assert places(build(stages=[FEW], plan_workers=lanes)) == places(build(stages=[FEW], plan_workers=lanes))


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_workers_give_the_same_substitutes(build: Any, num_workers: int) -> None:
    batches = build(stages=[FEW], plan_workers=2)
    assert flat(equitar.Loader(batches, num_workers=num_workers)) == flat(batches)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 4), (4, 2)])
def test_other_ranks_go_on_with_the_same_substitutes(build: Any, before: int, after: int) -> None:
    batches, done = build(stages=[FEW], plan_workers=2), 4
    loader = equitar.Loader(as_rank(batches, 0, before))
    for _ in zip(range(done), loader, strict=False):
        pass
    ranks = []
    for rank in range(after):
        resumed = equitar.Loader(as_rank(batches, rank, after, batch_size=8 * before // after))
        resumed.load_state_dict(loader.state_dict())
        ranks.append(list(resumed))
    assert global_batches(ranks) == places(batches, before)[done:]


def test_dropped_samples_are_reported(sources: list[Source]) -> None:
    loader = equitar.Loader(equitar.debiased(sources, batch_size=8, stages=[FEW]))
    given = flat(loader)
    dropped = [sample.key for sample in loader.counters()["dropped_samples"]]
    assert dropped
    assert all(FEW.drops(key) for key in dropped)
    assert not set(dropped) & set(given)


def test_dropped_samples_are_reported_with_their_shard(sources: list[Source]) -> None:
    loader = equitar.Loader(equitar.debiased(sources, batch_size=8, stages=[FEW]), num_workers=2)
    list(loader)
    assert all(sample.source == source_of(sample.key) for sample in loader.counters()["dropped_samples"])


def test_dropping_all_is_an_error_that_names_stage_and_source(build: Any) -> None:
    with pytest.raises(StageError, match=r"dropped \d+ samples (of|in a row).*"):
        list(build(stages=[Drops(100)]))


def test_dropping_all_names_the_limit(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=8, stages=[Drops(100)], max_substitutes=3)
    with pytest.raises(
        StageError, match=r"source '[ab]' \(Drops\) dropped 4 samples in a row, the last with key '.*` is 3"
    ):
        list(batches)


def test_an_error_of_stages_comes_from_a_worker_as_it_is(sources: list[Source]) -> None:
    loader = equitar.Loader(equitar.debiased(sources, batch_size=8, stages=[Drops(100)]), num_workers=1)
    with pytest.raises(StageError, match="dropped"):
        list(loader)


def test_no_substitutes_are_allowed_if_none_are_asked_for(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=8, stages=[FEW], max_substitutes=0)
    with pytest.raises(StageError, match="`max_substitutes` is 0"):
        list(batches)


def test_validation_leaves_dropped_samples_out(sources: list[Source]) -> None:
    batches = equitar.exact(sources, batch_size=8, stages=[FEW])
    kept = [key for name, sizes in SIZES.items() for key in keys_of(name, sum(sizes)) if not FEW.drops(key)]
    assert flat(batches) == kept


def test_validation_keeps_its_steps_when_samples_are_dropped(sources: list[Source]) -> None:
    batches = equitar.exact(sources, batch_size=8, stages=[FEW])
    assert len(list(batches)) == len(batches)
