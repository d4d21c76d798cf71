"""States on real tars: they survive being saved, are refused with the difference in words, and lead on from the end of an epoch."""

from __future__ import annotations

import io
import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import equitar
from equitar.errors import PlanError
from equitar.loading.batches import Batches
from equitar.loading.state import State, summaries_in
from equitar.sources import Source
from helpers.shards import (
    Drops,
    as_rank,
    flat,
    global_batches,
    indexed,
    keys_of_batches,
    write_source,
    write_sources,
    write_tars,
)

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

SIZES = {"a": [30, 50, 20], "b": [40]}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    return write_sources(tmp_path_factory.mktemp("sources"), SIZES)


def through_json(state: State) -> Any:
    return json.loads(json.dumps(state))


def through_torch(state: State) -> Any:
    file = io.BytesIO()
    torch.save({"loader": state}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)["loader"]


def stopped(batches: Batches, steps: int, num_workers: int = 0) -> State:
    """Return the state of a run after so many steps."""
    loader = equitar.Loader(batches, num_workers=num_workers)
    left = steps
    while left > 0:
        left -= sum(1 for _ in islice(loader, left))
    return loader.state_dict()


def resumed(batches: Batches, state: Any, num_workers: int = 0, *, restart: bool = False) -> equitar.Loader:
    loader = equitar.Loader(batches, num_workers=num_workers)
    loader.load_state_dict(through_json(state), restart=restart)
    return loader


def debiased(sources: list[Source], **arguments: Any) -> Batches:
    return equitar.debiased(sources, **{"batch_size": 8, **arguments})


# ---- states are saved ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("saved", [through_json, through_torch])
@pytest.mark.parametrize("steps", [0, 1, 9, 16, 17, 20])
@pytest.mark.parametrize("builder", [equitar.debiased, equitar.mixed, equitar.exact])
def test_a_state_survives_being_saved(
    builder: Callable[..., Batches], steps: int, saved: Callable[[State], Any], sources: list[Source]
) -> None:
    batches = builder(sources, batch_size=8)
    state = stopped(batches, steps)
    loader, direct = equitar.Loader(batches), equitar.Loader(batches)
    loader.load_state_dict(saved(state))
    direct.load_state_dict(state)
    assert through_json(loader.state_dict()) == through_json(state)
    assert list(loader) == list(direct)


def test_a_state_that_was_loaded_can_be_saved_before_a_batch_is_asked_for(sources: list[Source]) -> None:
    state = stopped(debiased(sources), 5)
    assert through_json(resumed(debiased(sources), state, 2).state_dict()) == through_json(state)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resumed_loop_trains_exactly_the_steps_that_are_left(num_workers: int, sources: list[Source]) -> None:
    batches, epochs = debiased(sources, steps=3), 2
    for steps in range(3 * epochs + 1):
        loader = resumed(batches, stopped(batches, steps), num_workers)
        assert (loader.epoch, loader.step) == divmod(steps, 3)
        trained = [batch["__step__"] for _ in range(loader.epoch, epochs) for batch in loader]
        assert trained == [step % 3 for step in range(steps, 3 * epochs)]
        assert (loader.epoch, loader.step) == (epochs, 0)


def test_a_loader_counts_epochs_and_steps_as_its_batches_are_used(sources: list[Source]) -> None:
    loader = equitar.Loader(debiased(sources, steps=3))
    counted = [(loader.epoch, loader.step) for _ in range(2) for _ in loader]
    assert counted == [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)]
    loader.set_epoch(7)
    assert (loader.epoch, loader.step) == (7, 0)


def test_a_state_has_the_same_leaves_whatever_the_sources_are(sources: list[Source]) -> None:
    states = [stopped(debiased(some), 3) for some in (sources, sources[:1])]
    assert states[0].keys() == states[1].keys()
    assert {type(value) for state in states for value in state.values()} == {int, str}


def test_a_state_does_not_grow_with_steps_or_epochs(sources: list[Source]) -> None:
    batches = debiased(sources, steps=7)
    sizes = [len(json.dumps(stopped(batches, steps))) for steps in (0, 3, 7, 40)]
    assert max(sizes) < 1000
    assert max(sizes) - min(sizes) < 100


def test_a_state_of_another_version_is_refused(sources: list[Source]) -> None:
    state = {**stopped(debiased(sources), 3), "version": 99}
    with pytest.raises(PlanError, match="the state must have version 2; got 99"):
        resumed(debiased(sources), state)


# ---- within an epoch: refused with the difference in words --------------------------------------------------------------

OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "seed": ({"seed": 5}, "seed was 0 and is 5"),
    "weights": ({"weights": {"a": 1, "b": 1}}, "recipe was .*weights=None.* and is .*weights={'a': 1, 'b': 1}"),
    "steps": ({"steps": 20}, "recipe was .*steps=None.* and is .*steps=20"),
    "batch size": ({"batch_size": 4}, "global batch was 8 and is 4"),
    "shuffle": ({"shuffle": 16}, "shuffle was [0-9]+ and is 16"),
    "threshold": ({"repeat": 0.5}, "repeat was None and is RepeatFactor"),
    "accumulation_steps": (
        {"accumulation_steps": 2},
        "recipe was .*accumulation_steps=1.* and is .*accumulation_steps=2",
    ),
}


@pytest.mark.parametrize("which", OTHER)
def test_a_state_of_another_run_is_refused_in_words(which: str, sources: list[Source]) -> None:
    arguments, words = OTHER[which]
    with pytest.raises(PlanError, match=words) as caught:
        resumed(debiased(sources, **arguments), stopped(debiased(sources), 3))
    assert "a run resumes within an epoch only with the plan it had" in str(caught.value)
    assert "`restart=True`" in str(caught.value)


def test_a_state_of_other_sources_is_refused_in_words(sources: list[Source], tmp_path: Path) -> None:
    (a, b), c = sources, write_source(tmp_path, "c", [40])
    with pytest.raises(PlanError, match=r"source 'c' was not there and is 1 shards, 40 samples"):
        resumed(debiased([a, b, c]), stopped(debiased([a, b]), 3))
    with pytest.raises(PlanError, match=r"source 'b' was 1 shards, 40 samples \([0-9a-f]+\) and is not there"):
        resumed(debiased([a]), stopped(debiased([a, b]), 3))


def test_a_state_of_a_changed_shard_is_refused_in_words(tmp_path: Path) -> None:
    source = write_source(tmp_path, "a", [20, 30])
    state = stopped(debiased([source]), 2)
    write_tars(tmp_path, "a", [20, 40])
    indexed(source)
    words = r"source 'a' was 2 shards, 50 samples \([0-9a-f]+\) and is 2 shards, 60 samples"
    with pytest.raises(PlanError, match=words):
        resumed(debiased([source]), state)


# ---- sources that grow --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_indexed", [True, False], ids=["indexed", "not indexed yet"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_within_an_epoch_a_run_goes_on_with_the_summary_that_its_state_names(
    num_workers: int, tmp_path: Path, *, is_indexed: bool
) -> None:
    source = write_source(tmp_path, "a", [20, 30])
    state = stopped(debiased([source], repeat=0.5), 2)
    (whole, again) = (resumed(debiased([source], repeat=0.5), state, num_workers) for _ in range(2))
    rest = [keys_of_batches(whole), keys_of_batches(whole)]  # of this epoch, and the next
    list(islice(again, 1))
    state = again.state_dict()
    write_tars(tmp_path, "a", [20, 30, 40])
    if is_indexed:
        indexed(source)
    loader = resumed(debiased([source], repeat=0.5), state, num_workers)
    assert [keys_of_batches(loader), keys_of_batches(loader)] == [rest[0][1:], rest[1]]
    assert summaries_in(loader.state_dict()) == summaries_in(state)


def test_at_the_end_of_an_epoch_shards_that_joined_are_taken_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_source(tmp_path, "a", [20, 30])
    within, state = stopped(debiased([source]), 2), stopped(debiased([source]), 6)
    write_tars(tmp_path, "a", [20, 30, 40])
    indexed(source)
    loader = resumed(debiased([source]), within)
    assert len(loader) == 6
    loader.load_state_dict(state)
    assert len(loader) == 11
    assert len(set(flat(loader))) == 88
    assert "source 'a' was 2 shards, 50 samples" in caplog.text


def test_a_pipeline_in_a_plain_dataloader_goes_on_with_its_summary_too(tmp_path: Path) -> None:
    source = write_source(tmp_path, "a", [20, 30])
    state = stopped(debiased([source]), 2)
    rest = keys_of_batches(resumed(debiased([source]), state))
    write_tars(tmp_path, "a", [20, 30, 40])
    indexed(source)
    batches = debiased([source])
    batches.load_state_dict(state)
    assert [batch["__key__"] for batch in batches] == rest


def test_every_difference_is_told(sources: list[Source]) -> None:
    with pytest.raises(PlanError, match=r"global batch was 8 and is 4; seed was 0 and is 3; shuffle was"):
        resumed(debiased(sources, batch_size=4, seed=3, shuffle=1), stopped(debiased(sources), 3))


def test_a_loader_that_refused_a_state_is_as_it_was(sources: list[Source]) -> None:
    changed = resumed(debiased(sources, steps=5), stopped(debiased(sources, steps=7), 7))
    list(islice(changed, 2))  # its state has a walk of its own
    loader = equitar.Loader(debiased(sources))
    list(islice(loader, 3))
    before = loader.state_dict()
    with pytest.raises(PlanError, match="a run resumes within an epoch only"):
        loader.load_state_dict(changed.state_dict())
    assert loader.state_dict() == before
    assert list(loader) == list(equitar.Loader(debiased(sources)))


def test_a_source_that_lies_elsewhere_is_accepted(sources: list[Source], tmp_path: Path) -> None:
    copies = []
    for source in sources:
        shutil.copytree(str(source.root), tmp_path / source.name)
        copies.append(Source(source.name, str(tmp_path / source.name / "*.tar"), root=str(tmp_path / source.name)))
    loader = resumed(debiased(copies), stopped(debiased(sources), 5))
    assert keys_of_batches(loader) == keys_of_batches(resumed(debiased(sources), stopped(debiased(sources), 5)))


# ---- at the end of an epoch, or with restart: accepted and told ---------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("which", OTHER)
def test_at_the_end_of_an_epoch_a_run_may_change_and_tells_it(
    which: str, num_workers: int, sources: list[Source], caplog: pytest.LogCaptureFixture
) -> None:
    arguments, _ = OTHER[which]
    loader = resumed(debiased(sources, **arguments), stopped(debiased(sources), 17, num_workers), num_workers)
    differences = [record.getMessage() for record in caplog.records if "difference" in record.getMessage()]
    assert differences
    assert all(message.startswith("epoch 1 continues from a state with a difference: ") for message in differences)
    assert len(list(loader)) == len(loader)
    assert loader.last is not None
    assert loader.last.epoch == 1


def test_within_an_epoch_a_run_may_change_if_it_gives_up_the_rest(
    sources: list[Source], caplog: pytest.LogCaptureFixture
) -> None:
    loader = resumed(debiased(sources, batch_size=4), stopped(debiased(sources), 5), restart=True)
    assert loader.state_dict()["epoch"] == 1
    assert "epoch 1 continues from a state with a difference: global batch was 8 and is 4" in caplog.text
    assert len(list(loader)) == 35


def test_nothing_is_told_where_nothing_changed(sources: list[Source], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        resumed(debiased(sources), stopped(debiased(sources), 17))
        resumed(debiased(sources), stopped(debiased(sources), 3))
    assert not caplog.records


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [3, 8, 12])
def test_with_another_batch_size_what_came_of_a_pass_does_not_come_again(
    batch_size: int, num_workers: int, sources: list[Source]
) -> None:
    a = sources[0]
    first = equitar.Loader(debiased([a], steps=5), num_workers=num_workers)
    earlier = flat(first)
    left = (100 - 40) // batch_size - 1  # steps that surely lie in the same pass
    goes_on = debiased([a], steps=left, batch_size=batch_size)
    later = flat(resumed(goes_on, first.state_dict(), num_workers))
    assert len(later) == left * batch_size
    assert len({*earlier, *later}) == len(earlier) + len(later)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_source_that_joins_begins_at_its_start_and_others_go_on(
    num_workers: int, sources: list[Source], tmp_path: Path
) -> None:
    (a, _), c = sources, write_source(tmp_path, "c", [60])
    first = equitar.Loader(debiased([a], steps=5), num_workers=num_workers)
    earlier = flat(first)
    loader = resumed(debiased([a, c], steps=10, weights={"a": 1, "c": 1}), first.state_dict(), num_workers)
    later = flat(loader)
    of_c = [key for key in later if key.startswith("c")]
    assert len(of_c) == len(set(of_c)) == 40
    assert len({*earlier, *later}) == len(earlier) + len(later)
    assert {place[0]: place[1:3] for place in json.loads(loader.state_dict()["details"])["positions"]} == {
        "a": [0, 80],
        "c": [0, 40],
    }


def test_a_run_that_changed_is_resumed_within_its_epoch(sources: list[Source]) -> None:
    changed = debiased(sources, batch_size=4, steps=12)
    state = stopped(debiased(sources, steps=7), 7)
    whole = keys_of_batches(resumed(changed, state))
    loader = resumed(changed, state, 2)
    list(islice(loader, 5))
    first_lanes = keys_of_batches(resumed(changed, state, 2))
    assert keys_of_batches(resumed(changed, loader.state_dict(), 3)) == first_lanes[5:]
    assert len(whole) == 12


def test_a_run_that_changed_goes_on_over_epochs_as_if_it_were_never_stopped(sources: list[Source]) -> None:
    changed = debiased(sources, batch_size=4, steps=6)
    state = stopped(debiased(sources, steps=7), 7)
    loader = resumed(changed, state)
    whole = [keys_of_batches(loader) for _ in range(4)]
    again, parts = state, []
    for _ in range(4):
        loader = resumed(changed, again)
        parts.append(keys_of_batches(loader))
        again = loader.state_dict()
    assert parts == whole


# ---- elastic ------------------------------------------------------------------------------------------------------------

WORLDS = [(1, 0), (2, 3), (3, 0), (4, 1), (6, 2), (12, 0)]  # ranks and workers; a global batch of 12


def elastic(sources: list[Source], rank: int, world_size: int, **arguments: Any) -> Batches:
    return as_rank(debiased(sources, batch_size=12 // world_size, **arguments), rank, world_size)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"stages": [Drops(3)]}, {"accumulation_steps": 2}, {"repeat": 0.5}, {"steps": 9}],
    ids=["plain", "drops", "hold", "repeat", "steps"],
)
def test_several_resumes_in_one_epoch_with_other_ranks_and_workers_give_the_same_global_batches(
    arguments: dict[str, Any], sources: list[Source]
) -> None:
    whole = keys_of_batches(equitar.Loader(elastic(sources, 0, 1, **arguments), num_workers=2))
    state = equitar.Loader(elastic(sources, 0, 1, **arguments), num_workers=2).state_dict()
    given: list[list[str]] = []
    for stop, (world_size, num_workers) in zip((1, 2, 4, 5, 6, len(whole)), WORLDS, strict=True):
        loaders = [
            resumed(elastic(sources, rank, world_size, **arguments), state, num_workers if rank == 0 else 0)
            for rank in range(world_size)
        ]
        given += global_batches([list(islice(loader, stop - len(given))) for loader in loaders])
        states = [loader.state_dict() for loader in loaders]
        # The next epoch has the lanes of whoever is there.
        assert stop == len(whole) or states == [states[0]] * world_size
        state = states[0]
    assert [Counter(step) for step in given] == [Counter(step) for step in whole]


def test_ranks_that_do_not_share_the_global_batch_are_refused(sources: list[Source]) -> None:
    state = stopped(elastic(sources, 0, 2), 3)
    with pytest.raises(PlanError, match="had 2 ranks, which cannot share the 15 samples of 3 ranks x 5"):
        resumed(as_rank(debiased(sources, batch_size=5), 0, 3), state)


@pytest.mark.parametrize("world_size", [2, 3])
def test_data_parallel_groups_are_given_by_rank_and_world_size(world_size: int, sources: list[Source]) -> None:
    """Two tensor-parallel processes of a group name the same rank: they see the same, and other groups the rest."""
    groups = [
        [keys_of_batches(equitar.Loader(debiased(sources, rank=group, world_size=world_size))) for _ in range(2)]
        for group in range(world_size)
    ]
    assert all(first == second for first, second in groups)
    every = [key for group in groups for batch in group[0] for key in batch]
    assert len(set(every)) == len(every)


def test_a_rank_without_a_world_size_is_named(sources: list[Source]) -> None:
    with pytest.raises(PlanError, match="`rank` and `world_size` go together; got 1 and None"):
        len(debiased(sources, rank=1))


# ---- order --------------------------------------------------------------------------------------------------------------


def test_a_loader_refuses_batches_out_of_order(sources: list[Source]) -> None:
    with pytest.raises(ValueError, match="`in_order` must be True"):
        equitar.Loader(debiased(sources), num_workers=2, in_order=False)
