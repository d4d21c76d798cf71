"""From real shards to batches in this process: what each builder gives, and what it refuses."""

from __future__ import annotations

import pickle
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset as wds

import equitar
from equitar.errors import StageError
from equitar.loading.batches import Batches
from equitar.sources import Source
from helpers.shards import (
    Counts,
    as_rank,
    flat,
    global_batches,
    indexed,
    key_of,
    keys_of,
    keys_of_batches,
    most_often,
    over_ranks,
    rare_first,
    source_of,
    sources_of,
    write_source,
    write_sources,
)

RANKS = (1, 2, 3, 4)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    """Two sources of very different size: 100 samples in 3 shards, 40 in one."""
    return write_sources(tmp_path_factory.mktemp("sources"), {"a": [30, 50, 20], "b": [40]})


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """Fewer shards than ranks, of different sizes."""
    return write_source(tmp_path_factory.mktemp("uneven"), "u", [3, 5, 7])


@pytest.fixture(scope="module")
def rare(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """40 samples, of which the first is alone in its class: with a threshold of 0.4 it is repeated 4 times."""
    return write_source(tmp_path_factory.mktemp("rare"), "r", [25, 15], label=rare_first)


# ---- debiased -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", RANKS)
def test_every_rank_draws_the_same_source_at_each_step(world_size: int, sources: list[Source]) -> None:
    ranks = over_ranks(equitar.debiased(sources, batch_size=4), world_size)
    assert [sources_of(rank) for rank in ranks] == [sources_of(ranks[0])] * world_size


@pytest.mark.parametrize("world_size", RANKS)
def test_every_batch_holds_one_source_and_is_full(world_size: int, sources: list[Source]) -> None:
    batches = [batch for rank in over_ranks(equitar.debiased(sources, batch_size=4), world_size) for batch in rank]
    assert {(batch["__source__"], source_of(key)) for batch in batches for key in batch["__key__"]} == {
        ("a", "a"),
        ("b", "b"),
    }
    assert {len(batch["__key__"]) for batch in batches} == {4}


@pytest.mark.parametrize("world_size", RANKS)
@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_an_epoch_gives_every_sample_once_apart_from_one_global_batch(
    world_size: int, lanes: int, sources: list[Source]
) -> None:
    ranks = over_ranks(equitar.debiased(sources, batch_size=4, plan_workers=lanes), world_size)
    seen = Counter(key for step in global_batches(ranks) for key in step)
    assert most_often(seen.elements()) == 1
    for name, size in (("a", 100), ("b", 40)):
        missing = size - sum(source_of(key) == name for key in seen)
        assert missing == size % (4 * world_size)


@pytest.mark.parametrize("world_size", RANKS)
def test_ranks_do_the_same_steps_though_there_are_fewer_shards(world_size: int, uneven: Source) -> None:
    ranks = over_ranks(equitar.debiased([uneven], batch_size=2), world_size)
    assert {len(rank) for rank in ranks} == {15 // (2 * world_size)}


def test_the_quota_of_a_source_is_its_whole_batches(sources: list[Source]) -> None:
    assert Counter(sources_of(equitar.debiased(sources, batch_size=8))) == {"a": 12, "b": 5}


def test_the_schedule_is_shuffled(sources: list[Source]) -> None:
    drawn = sources_of(equitar.debiased(sources, batch_size=8))
    assert drawn != sorted(drawn)


def test_sources_are_told_before_a_tar_is_opened(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=8)
    before_reading = [batches.sources(epoch) for epoch in range(3)]
    assert before_reading == [sources_of(batches) for _ in range(3)]


def test_ranks_draw_each_their_own_source_on_request(sources: list[Source]) -> None:
    ranks = over_ranks(equitar.debiased(sources, batch_size=4, same_source_across="rank"), 2)
    assert sources_of(ranks[0]) != sources_of(ranks[1])
    assert Counter(sources_of(ranks[0])) == Counter(sources_of(ranks[1]))


def test_ranks_that_draw_their_own_sources_share_no_sample(sources: list[Source]) -> None:
    ranks = over_ranks(equitar.debiased(sources, batch_size=4, same_source_across="rank"), 2)
    assert most_often(key for rank in ranks for key in flat(rank)) == 1


def test_other_ranks_call_a_batch_of_two_sources_by_neither(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=4, same_source_across="rank")
    loader = equitar.Loader(as_rank(batches, 0, 2))
    next(iter(loader))
    alone = equitar.Loader(as_rank(batches, 0, 1, batch_size=8))
    alone.load_state_dict(loader.state_dict())
    given = [(batch["__source__"], {source_of(key) for key in batch["__key__"]}) for batch in alone]
    assert all(name in names if isinstance(name, str) else set(name) == names for name, names in given)


def test_weights_share_the_steps(tmp_path: Path) -> None:
    small, large = write_source(tmp_path, "small", [10]), write_source(tmp_path, "large", [100])
    batches = equitar.debiased([small, large], batch_size=5, weights={"small": 10, "large": 1}, steps=22)
    assert Counter(sources_of(batches)) == {"small": 20, "large": 2}


def test_passes_of_a_small_source_are_told_before_it_is_read(tmp_path: Path) -> None:
    small, large = write_source(tmp_path, "small", [10]), write_source(tmp_path, "large", [100])
    plan = equitar.debiased([small, large], batch_size=5, weights={"small": 1, "large": 1}, steps=40).plan()
    assert {account.name: account.passes for account in plan.account} == {"small": 10.0, "large": 1.0}


def test_a_source_that_is_too_short_is_left_out_on_request(tmp_path: Path, sources: list[Source]) -> None:
    tiny = write_source(tmp_path, "tiny", [7])
    batches = equitar.debiased([*sources, tiny], batch_size=8, small_sources="leave_out")
    assert Counter(sources_of(batches)) == {"a": 12, "b": 5}


def test_a_source_that_is_left_out_is_named_once(
    tmp_path: Path, sources: list[Source], caplog: pytest.LogCaptureFixture
) -> None:
    tiny = write_source(tmp_path, "tiny", [7])
    list(equitar.Loader(equitar.debiased([*sources, tiny], batch_size=8, small_sources="leave_out")))
    assert (
        caplog.messages.count("source 'tiny' is left out: it has 7 samples but one global batch needs 8")
        == len([message for message in caplog.messages if "left out" in message])
        == 1
    )


def test_what_a_source_needs_for_held_batches_is_told(
    tmp_path: Path, sources: list[Source], caplog: pytest.LogCaptureFixture
) -> None:
    tiny = write_source(tmp_path, "tiny", [15])
    equitar.debiased([*sources, tiny], batch_size=8, accumulation_steps=2, small_sources="leave_out").plan()
    messages = [
        message for message in caplog.messages if "left out" in message
    ]  # the rank is told, too, where it was not yet
    assert messages == ["source 'tiny' is left out: it has 15 samples but one global batch needs 16"]


def test_the_first_batch_takes_no_more_samples_than_it_holds(sources: list[Source]) -> None:
    counts = Counts()
    next(iter(equitar.debiased(sources, batch_size=8, shuffle=1000, stages=[counts])))
    assert len(counts.keys) == 8


def test_stages_of_a_source_come_before_those_of_all(sources: list[Source]) -> None:
    def naming(text: str) -> Callable[[Iterable[Any]], Iterable[Any]]:
        return lambda samples: ({**sample, "way": [*sample.get("way", []), text]} for sample in samples)

    own = [replace(source, stages=[naming(source.name)]) for source in sources]
    batches = equitar.debiased(own, batch_size=8, stages=[naming("all")])
    assert all(way == [batch["__source__"], "all"] for batch in batches for way in batch["way"])


def test_stages_of_webdataset_work(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=8, stages=[wds.decode(), wds.to_tuple("txt", "cls")])
    texts, labels = next(iter(batches))
    assert (len(texts), {type(text) for text in texts}, {type(label) for label in labels}) == (8, {str}, {int})


# ---- repeats ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("builder", [equitar.debiased, equitar.mixed])
def test_copies_never_meet_in_a_global_batch(builder: Callable[..., Batches], world_size: int, rare: Source) -> None:
    ranks = over_ranks(builder([rare], batch_size=4, repeat=0.4), world_size)
    assert all(len(set(step)) == len(step) for step in global_batches(ranks))


def test_a_rare_sample_is_repeated_by_its_factor(rare: Source) -> None:
    assert Counter(flat(equitar.mixed([rare], batch_size=1, repeat=0.4)))[key_of("r", 0)] == 4


def test_copies_of_a_sample_are_numbered(rare: Source) -> None:
    batches = list(equitar.mixed([rare], batch_size=1, repeat=0.4))
    numbers = [batch["__copy__"][0] for batch in batches if batch["__key__"] == [key_of("r", 0)]]
    assert sorted(numbers) == [0, 1, 2, 3]


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_together_give_the_copies_that_one_rank_gives(world_size: int, rare: Source) -> None:
    alone = Counter(sample["__key__"] for sample in equitar.mixed([rare], repeat=0.4))
    ranks = over_ranks(equitar.mixed([rare], repeat=0.4), world_size)
    lost = alone - Counter(sample["__key__"] for rank in ranks for sample in rank)
    assert lost.total() < world_size


def test_repeats_are_rounded_another_way_in_another_epoch(rare: Source) -> None:
    batches = equitar.mixed([rare], repeat=0.3)  # a factor of 3.46
    rounded = [Counter(sample["__key__"] for sample in batches)[key_of("r", 0)] for _ in range(20)]
    assert set(rounded) == {3, 4}


def test_a_function_gives_the_factors(rare: Source) -> None:
    batches = equitar.mixed([rare], repeat=lambda sidecar: np.full(sidecar.num_rows, 2.0))
    assert Counter(sample["__key__"] for sample in batches) == dict.fromkeys(keys_of("r", 40), 2)


# ---- mixed --------------------------------------------------------------------------------------------------------------


def test_batches_of_mixed_hold_each_source_by_its_share(sources: list[Source]) -> None:
    counts = [
        Counter(map(source_of, keys))["a"]
        for keys in keys_of_batches(equitar.mixed(sources, batch_size=14, shuffle=14))
    ]
    assert counts == [10] * 10


def test_mixed_without_batches_gives_every_sample_once(sources: list[Source]) -> None:
    samples = list(equitar.mixed(sources))
    assert sorted(sample["__key__"] for sample in samples) == sorted(keys_of("a", 100) + keys_of("b", 40))


def test_samples_of_mixed_tell_their_source(sources: list[Source]) -> None:
    assert all(sample["__source__"] == source_of(sample["__key__"]) for sample in equitar.mixed(sources))


# ---- exact --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", RANKS)
@pytest.mark.parametrize("pad", [False, True])
def test_validation_gives_every_sample_once_over_all_ranks(world_size: int, pad: bool, sources: list[Source]) -> None:
    ranks = over_ranks(equitar.exact(sources, batch_size=9, pad=pad), world_size)
    pairs = [pair for rank in ranks for batch in rank for pair in zip(batch["__key__"], batch["__pad__"], strict=True)]
    assert sorted(key for key, is_pad in pairs if not is_pad) == sorted(keys_of("a", 100) + keys_of("b", 40))


@pytest.mark.parametrize("world_size", RANKS)
@pytest.mark.parametrize("batch_size", [1, 9, 200])
def test_validation_does_the_same_steps_on_all_ranks(world_size: int, batch_size: int, sources: list[Source]) -> None:
    batches = equitar.exact(sources, batch_size=batch_size)
    ranks = over_ranks(batches, world_size)
    assert {len(rank) for rank in ranks} == {-(-140 // (batch_size * world_size))}


def test_validation_pads_a_rank_that_would_have_nothing(uneven: Source) -> None:
    ranks = over_ranks(equitar.exact([uneven], batch_size=4), 4)  # 15 samples for 16 places
    assert [len(batch["__key__"]) for rank in ranks for batch in rank] == [3, 4, 4, 4]


def test_validation_marks_what_only_fills_a_place(uneven: Source) -> None:
    ranks = over_ranks(equitar.exact([uneven], batch_size=7), 2)  # 14 and 1
    assert [sum(batch["__pad__"]) for rank in ranks for batch in rank] == [0, 1, 0, 0]


def test_validation_pads_full_batches_on_request(uneven: Source) -> None:
    ranks = over_ranks(equitar.exact([uneven], batch_size=4, pad=True), 3)
    assert {len(batch["__key__"]) for rank in ranks for batch in rank} == {4}


def test_validation_comes_in_order(sources: list[Source]) -> None:
    assert flat(equitar.exact(sources, batch_size=9)) == keys_of("a", 100) + keys_of("b", 40)


# ---- length, epochs, randomness -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 3, 8, 40])
@pytest.mark.parametrize("builder", [equitar.debiased, equitar.mixed, equitar.exact])
def test_len_is_what_comes(builder: Callable[..., Batches], batch_size: int, sources: list[Source]) -> None:
    batches = builder(sources, batch_size=batch_size)
    assert len(batches) == len(list(batches))


def test_the_epoch_advances_by_itself_without_workers(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=8)
    passes = [flat(batches) for _ in range(3)]
    expected = []
    for epoch in range(3):
        batches.set_epoch(epoch)
        expected.append(flat(batches))
    assert passes == expected


def test_the_epoch_advances_when_just_as_many_batches_are_taken_as_there_are(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=8)
    first = [batch["__key__"] for _, batch in zip(range(len(batches)), batches, strict=True)]
    assert keys_of_batches(batches) != first


def test_epochs_differ(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=8)
    assert len({tuple(flat(batches)) for _ in range(4)}) == 4


def test_a_pass_that_is_broken_off_begins_again(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=8)
    first = next(iter(batches))["__key__"]
    assert next(iter(batches))["__key__"] == first


def test_set_epoch_counts_from_the_next_iterator(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=8)
    expected = flat(batches)
    batches.set_epoch(0)
    under_way = iter(batches)
    batches.set_epoch(7)
    assert flat(under_way) == expected


def test_set_epoch_in_a_pass_is_not_overridden_by_its_end(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=8)
    batches.set_epoch(7)
    seventh = flat(batches)
    batches.set_epoch(0)
    under_way = iter(batches)
    next(under_way)
    batches.set_epoch(7)
    list(under_way)
    assert flat(batches) == seventh


def test_a_negative_epoch_is_named(sources: list[Source]) -> None:
    with pytest.raises(ValueError, match="`epoch` must be >= 0; got -1"):
        equitar.debiased(sources, batch_size=8).set_epoch(-1)


def test_seeds_give_different_orders(sources: list[Source]) -> None:
    assert flat(equitar.debiased(sources, batch_size=8)) != flat(equitar.debiased(sources, batch_size=8, seed=1))


def test_the_order_of_sources_changes_nothing(sources: list[Source]) -> None:
    assert flat(equitar.debiased(sources[::-1], batch_size=8)) == flat(equitar.debiased(sources, batch_size=8))


def test_the_order_of_urls_changes_nothing(sources: list[Source]) -> None:
    paths = sorted(str(path) for path in Path(str(sources[0].root)).glob("*.tar"))
    listed = replace(sources[0], urls=paths[::-1])
    assert flat(equitar.debiased([listed], batch_size=8)) == flat(equitar.debiased(sources[:1], batch_size=8))


def test_a_copy_of_a_source_elsewhere_gives_the_same(sources: list[Source], tmp_path: Path) -> None:
    shutil.copytree(str(sources[0].root), tmp_path / "scratch")
    moved = Source("a", str(tmp_path / "scratch" / "*.tar"))
    assert flat(equitar.debiased([moved], batch_size=8)) == flat(equitar.debiased(sources[:1], batch_size=8))


def test_no_global_generator_is_read_or_touched(sources: list[Source]) -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002  (it is the global one that is meant)
    torch.manual_seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index] # noqa: NPY002
    first = flat(equitar.debiased(sources, batch_size=8))
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index] # noqa: NPY002
    random.seed(2)
    assert (before, flat(equitar.debiased(sources, batch_size=8))) == (after, first)


# ---- what a batch is made of --------------------------------------------------------------------------------------------


def test_a_batch_tells_its_step(sources: list[Source]) -> None:
    assert [batch["__step__"] for batch in equitar.debiased(sources, batch_size=8)] == list(range(17))


def test_collate_takes_the_list_of_samples(sources: list[Source]) -> None:
    batch = next(iter(equitar.debiased(sources, batch_size=8, collate_fn=list)))
    assert [type(sample) for sample in batch] == [dict] * 8


def test_fields_are_chosen(sources: list[Source]) -> None:
    batch = next(iter(equitar.debiased(sources, batch_size=8, fields=["TXT"])))
    assert {field for field in batch if not field.startswith("__")} == {"txt"}


def test_fields_may_be_views(sources: list[Source]) -> None:
    batch = next(iter(equitar.debiased(sources, batch_size=8, copy=False)))
    assert [bytes(text).decode() for text in batch["txt"]] == [f"text of {key}" for key in batch["__key__"]]


def test_samples_of_different_fields_name_one_and_the_ways_out(sources: list[Source]) -> None:
    def odd(samples: Iterable[Any]) -> Iterable[Any]:
        return ({**sample, "more": 1} if sample["__key__"] == "a-0005" else sample for sample in samples)

    with pytest.raises(
        StageError, match=r"must have the same fields but of .*'more'; choose `fields`, or give `collate_fn`"
    ):
        list(equitar.debiased(sources, batch_size=8, stages=[odd]))


# ---- pickles ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps_before", [0, 1, 17])
def test_batches_pickle_before_in_and_after_a_pass(steps_before: int, sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=8)
    for _ in zip(range(steps_before), batches, strict=False):
        pass
    again = pickle.loads(pickle.dumps(batches))
    assert flat(again) == flat(batches)


# ---- fluent methods -----------------------------------------------------------------------------------------------------

UNDOING = {
    "shuffle": "`shuffle=`",
    "select": "`stages=`",
    "slice": "`steps=`",
    "batched": "`batch_size=`",
    "unbatched": "`equitar.mixed` without `batch_size`",
    "listed": "`batch_size=`",
    "unlisted": "`equitar.mixed` without `batch_size`",
    "repeat": "`repeat=`",
    "with_epoch": "`steps=`",
    "with_length": "`steps=`",
    "rsample": "`keep=`",
    "decode": "`stages=",
}


@pytest.mark.parametrize("name", UNDOING)
def test_a_method_that_would_undo_a_promise_names_the_argument(name: str, sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=8)
    with pytest.raises(AttributeError, match=rf"\.{name}\(\) would undo what the plan promises; use .*{UNDOING[name]}"):
        getattr(batches, name)(3)


@pytest.mark.parametrize("stage", [wds.shuffle(4), wds.batched(2, collation_fn=list), wds.select(lambda _: False)])
def test_a_composed_stage_that_would_undo_a_promise_is_an_error(stage: Any, sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=8).compose(stage)
    with pytest.raises(StageError, match="a composed stage must give one batch for each"):
        list(batches)


def test_map_takes_batches(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=8)
    assert list(batches.map(lambda batch: len(batch["__key__"]))) == [8] * 17


def test_map_dict_takes_fields(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=8)
    assert [batch["__key__"] for batch in batches.map_dict(__key__=len)] == [8] * 17


def test_to_tuple_and_map_tuple_give_tuples(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=8)
    assert list(batches.to_tuple("__step__", "__key__").map_tuple(str, len)) == [(str(step), 8) for step in range(17)]


def test_rename_gives_another_name(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=8)
    assert [batch["text"] for batch in batches.rename(text="txt")] == [
        [f"text of {key}".encode() for key in keys] for keys in keys_of_batches(equitar.debiased(sources, batch_size=8))
    ]


def test_rename_keys_takes_patterns(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=8)
    assert all(len(batch["text"]) == 8 for batch in batches.rename_keys(("text", "*xt")))


def test_extract_keys_gives_tuples(sources: list[Source]) -> None:
    assert [len(batch) for batch in equitar.debiased(sources, batch_size=8).extract_keys("*xt", "*cls")] == [2] * 17


def test_composed_batches_keep_their_length(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=8).to_tuple("txt")
    assert len(batches) == len(list(batches)) == 17


def test_composing_leaves_the_batches_as_they_were(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=8)
    batches.to_tuple("txt")
    assert isinstance(next(iter(batches)), dict)


# ---- stages that are none -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stage",
    [wds.shuffle(4), wds.batched(2), wds.slice(3), equitar.stages.shuffled(4), equitar.stages.batched_by_source(2)],
)
@pytest.mark.parametrize("per_source", [False, True])
def test_a_stage_that_holds_samples_back_is_named(stage: Any, per_source: bool, sources: list[Source]) -> None:
    own = [replace(sources[0], stages=[stage])] if per_source else sources
    with pytest.raises(StageError, match=r"stage '.*' works on many samples at once.*arguments of the builder"):
        equitar.debiased(own, batch_size=8, stages=() if per_source else [stage])


def test_a_stage_that_reads_ahead_in_disguise_is_named(sources: list[Source]) -> None:
    def disguised(samples: Iterable[Any]) -> Iterable[Any]:
        yield from wds.shuffle(5)(samples)

    with pytest.raises(StageError, match=r"stage 'disguised' of source '.' reads ahead: it gave key"):
        list(equitar.debiased(sources, batch_size=8, stages=[disguised]))


def test_a_stage_that_is_not_lazy_is_named(sources: list[Source]) -> None:
    def eager(samples: Iterable[Any]) -> Iterable[Any]:
        return list(samples)

    with pytest.raises(
        StageError, match=r"stages eager of source '.' ended before its input did; a stage must be lazy"
    ):
        list(equitar.debiased(sources, batch_size=8, stages=[eager]))


@pytest.mark.parametrize("function", [lambda sample: sample["cls"], lambda sample: sample.get("cls"), len])
def test_the_function_of_one_sample_as_a_stage_is_told_about_map(function: Any, sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=4, stages=[function])
    with pytest.raises(
        StageError, match=r"must take an iterator of samples .*of one sample goes into `wds\.map\(\.\.\.\)`"
    ):
        next(iter(batches))


def test_a_stage_that_gives_two_for_one_is_named(sources: list[Source]) -> None:
    def doubles(samples: Iterable[Any]) -> Iterable[Any]:
        return (twin for sample in samples for twin in (sample, sample))

    with pytest.raises(StageError, match=r"stage 'doubles' of source '.' gave two samples for one"):
        list(equitar.debiased(sources, batch_size=8, stages=[doubles]))


def test_what_is_no_stage_is_shown(sources: list[Source]) -> None:
    with pytest.raises(StageError, match="a stage must be a callable over an iterator of samples; got 3"):
        equitar.debiased(sources, batch_size=8, stages=[3])  # type: ignore[list-item]


def test_an_error_of_a_stage_comes_as_it_is(sources: list[Source]) -> None:
    def fails(samples: Iterable[Any]) -> Iterable[Any]:
        return (sample["nothing"] for sample in samples)

    with pytest.raises(KeyError, match="nothing"):
        list(equitar.debiased(sources, batch_size=8, stages=[fails]))


def test_a_source_that_grew_is_read_after_it_is_indexed_again(tmp_path: Path) -> None:
    source = write_source(tmp_path, "a", [8])
    shutil.copy(tmp_path / "a" / "000.tar", tmp_path / "a" / "001.tar")
    indexed(source)
    assert most_often(flat(equitar.debiased([source], batch_size=8))) <= 2
    assert len(equitar.debiased([source], batch_size=8)) == 2
