"""Each stage alone in a pipeline composed by hand, over our reader and over webdataset's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import webdataset as wds
from torch.utils.data import DataLoader

import equitar
from equitar.errors import StageError
from equitar.sources import Sample, Source
from helpers.shards import (
    as_rank,
    flat,
    keys_of,
    keys_of_batches,
    let_webdataset_close,
    rare_first,
    source_of,
    write_source,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed file:ResourceWarning"
)  # webdataset leaves closing to the collector


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    yield
    let_webdataset_close()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    folder = tmp_path_factory.mktemp("sources")
    return [write_source(folder, name, sizes, label=rare_first) for name, sizes in (("a", [9, 7]), ("b", [20, 5]))]


def paths_of(*sources: Source) -> list[str]:
    return [str(path) for source in sources for path in sorted(Path(str(source.root)).glob("*.tar"))]


def by_webdataset(*sources: Source) -> list[Any]:
    """Return the first stages of a pipeline that webdataset reads."""
    return [wds.SimpleShardList(paths_of(*sources)), wds.split_by_worker, wds.tarfile_to_samples()]


def copies_of(samples: Iterable[Sample]) -> Counter[str]:
    return Counter(sample["__key__"] for sample in samples)


# ---- slices and read ----------------------------------------------------------------------------------------------------


def test_slices_and_read_give_the_samples_of_the_plan_in_its_order(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=4)
    by_hand = wds.DataPipeline(equitar.stages.slices(batches), equitar.stages.read())
    assert [sample["__key__"] for sample in by_hand] == flat(batches)


def test_read_gives_the_bytes_that_webdataset_reads(sources: list[Source]) -> None:
    by_hand = wds.DataPipeline(equitar.stages.slices(equitar.exact(sources, batch_size=4)), equitar.stages.read())
    ours = [{name: sample[name] for name in ("__key__", "__url__", "txt", "cls")} for sample in by_hand]
    theirs = wds.DataPipeline(*by_webdataset(*sources))
    assert ours == [{name: sample[name] for name in ("__key__", "__url__", "txt", "cls")} for sample in theirs]


def test_a_pipeline_by_hand_gives_the_batches_of_the_builder(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=4)
    by_hand = wds.DataPipeline(
        equitar.stages.slices(batches), equitar.stages.read(), equitar.stages.batched_by_source(4)
    )
    assert keys_of_batches(by_hand) == keys_of_batches(batches)


def test_stages_of_webdataset_go_between_ours(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=4)
    by_hand = wds.DataPipeline(
        equitar.stages.slices(batches), equitar.stages.read(), wds.decode(), equitar.stages.batched_by_source(4)
    )
    assert {type(label) for batch in by_hand for label in batch["cls"]} == {int}


def test_set_epoch_of_the_batches_counts_for_slices(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=4)
    by_hand = wds.DataPipeline(equitar.stages.slices(batches), equitar.stages.read())
    batches.set_epoch(3)
    third = [sample["__key__"] for sample in by_hand]
    batches.set_epoch(3)
    assert third == flat(batches)


def test_slices_give_each_rank_its_own_part(sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=4)
    keys = [sample.row for rank in range(2) for sample in equitar.stages.slices(as_rank(batches, rank, 2))()]
    assert len(keys) == 2 * len(flat(as_rank(batches, 0, 2)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_slices_are_dealt_to_the_workers_of_a_data_loader(num_workers: int, sources: list[Source]) -> None:
    batches = equitar.debiased(sources, batch_size=4, plan_workers=2)
    by_hand = wds.DataPipeline(
        equitar.stages.slices(batches), equitar.stages.read(), equitar.stages.batched_by_source(4)
    )
    loader = DataLoader(by_hand, batch_size=None, num_workers=num_workers)
    assert sorted(flat(loader)) == sorted(flat(batches))


def test_read_names_what_it_cannot_read() -> None:
    with pytest.raises(StageError, match="`read` takes what `slices` gives; got 'a path'"):
        list(equitar.stages.read()(["a path"]))  # type: ignore[list-item]


# ---- repeats ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [0, 1, 2, 7])
def test_repeats_give_the_copies_that_mixed_gives(epoch: int, sources: list[Source]) -> None:
    mixed = equitar.mixed(sources, repeat=0.5, seed=5)
    mixed.set_epoch(epoch)
    stage = equitar.stages.repeats(sources, repeat=0.5, seed=5)
    stage.set_epoch(epoch)
    ours, by_hand = copies_of(mixed), copies_of(wds.DataPipeline(*by_webdataset(*sources), stage))
    # `mixed` rounds the sum of the factors of a source down, a pass has that many copies or one more.
    assert not ours - by_hand
    assert all(count <= 1 for count in Counter(source_of(key) for key in (by_hand - ours).elements()).values())


def test_repeats_give_some_sample_more_than_once(sources: list[Source]) -> None:
    copies = copies_of(wds.DataPipeline(*by_webdataset(*sources), equitar.stages.repeats(sources, repeat=0.5)))
    assert copies["a-0000"] > 1  # alone in its class


def test_repeats_of_the_workers_of_a_data_loader_add_up(sources: list[Source]) -> None:
    pipeline = wds.DataPipeline(*by_webdataset(*sources), equitar.stages.repeats(sources, repeat=0.5))
    assert copies_of(DataLoader(pipeline, batch_size=None, num_workers=2)) == copies_of(pipeline)


def test_repeats_serve_shards_that_come_through_a_pipe(sources: list[Source]) -> None:
    pipes = [f"pipe:cat {path}" for path in paths_of(*sources)]
    stage = equitar.stages.repeats(sources, repeat=0.5)
    piped = wds.DataPipeline(wds.SimpleShardList(pipes), wds.tarfile_to_samples(), stage)
    assert copies_of(piped) == copies_of(wds.DataPipeline(*by_webdataset(*sources), stage))


def test_copies_are_dicts_of_their_own_as_stages_edit_in_place(sources: list[Source]) -> None:
    def marks_in_place(samples: Iterable[Sample]) -> Iterator[Sample]:
        for sample in samples:
            assert "mark" not in sample
            sample["mark"] = True
            yield sample

    pipeline = wds.DataPipeline(*by_webdataset(*sources), equitar.stages.repeats(sources, repeat=0.5), marks_in_place)
    assert copies_of(pipeline)["a-0000"] > 1


def test_repeats_behind_a_stage_that_drops_the_url_say_which_order_to_use(sources: list[Source]) -> None:
    pipeline = wds.DataPipeline(*by_webdataset(*sources), wds.map(lambda sample: {"txt": sample["txt"]}))
    with pytest.raises(StageError, match=r"`repeats` needs '__url__' in every sample.*put `repeats` before"):
        list(equitar.stages.repeats(sources, repeat=0.5)(pipeline))


def test_repeats_name_a_shard_of_no_source(sources: list[Source]) -> None:
    pipeline = wds.DataPipeline(*by_webdataset(sources[1]), equitar.stages.repeats(sources[:1], repeat=0.5))
    with pytest.raises(StageError, match=r"knows the shards of a, but a sample comes from .*b/000\.tar"):
        list(pipeline)


def test_repeats_name_a_key_that_the_sidecar_does_not_have(sources: list[Source]) -> None:
    sample = {"__key__": "a-9999", "__url__": paths_of(sources[0])[0]}
    with pytest.raises(StageError, match=r"finds no key 'a-9999' in the sidecar of .*run `equitar index` again"):
        list(equitar.stages.repeats(sources, repeat=0.5)([sample]))


# ---- shuffled -----------------------------------------------------------------------------------------------------------


def test_shuffled_gives_every_sample_once_in_another_order(sources: list[Source]) -> None:
    keys = [sample["__key__"] for sample in wds.DataPipeline(*by_webdataset(*sources), equitar.stages.shuffled(100))]
    assert sorted(keys) == sorted(keys_of("a", 16) + keys_of("b", 25))
    assert keys != sorted(keys)


def test_shuffled_moves_a_sample_by_less_than_its_window() -> None:
    stream = list(equitar.stages.shuffled(10)(range(200)))
    assert max(abs(place - number) for place, number in enumerate(stream)) < 10


def test_shuffled_gives_another_order_in_another_epoch() -> None:
    stage = equitar.stages.shuffled(50)
    first = list(stage(range(50)))
    stage.set_epoch(1)
    assert list(stage(range(50))) != first


def test_shuffled_gives_another_order_with_another_seed() -> None:
    assert list(equitar.stages.shuffled(50, seed=1)(range(50))) != list(equitar.stages.shuffled(50)(range(50)))


def test_shuffled_needs_a_window() -> None:
    with pytest.raises(ValueError, match="`size` must be >= 1; got 0"):
        equitar.stages.shuffled(0)


# ---- batched_by_source --------------------------------------------------------------------------------------------------


def alternating(sources: list[Source]) -> list[Sample]:
    """Return samples of both sources in turn, as webdataset reads them."""
    first, second = (list(wds.DataPipeline(*by_webdataset(source))) for source in sources)
    return [sample for pair in zip(first, second, strict=False) for sample in pair]


def test_batches_by_source_hold_one_source_each(sources: list[Source]) -> None:
    batches = list(equitar.stages.batched_by_source(4, sources=sources)(alternating(sources)))
    assert all({source_of(key) for key in batch["__key__"]} == {batch["__source__"]} for batch in batches)


def test_batches_by_source_lose_nothing(sources: list[Source]) -> None:
    samples = alternating(sources)
    keys = flat(equitar.stages.batched_by_source(5, sources=sources)(samples))
    assert sorted(keys) == sorted(sample["__key__"] for sample in samples)


def test_batches_by_source_are_full_without_partial_ones(sources: list[Source]) -> None:
    stage = equitar.stages.batched_by_source(5, sources=sources, partial=False)
    assert {len(batch["__key__"]) for batch in stage(alternating(sources))} == {5}


def test_batches_by_source_are_collated_as_asked(sources: list[Source]) -> None:
    stage = equitar.stages.batched_by_source(4, sources=sources, collate_fn=list)
    assert {type(batch) for batch in stage(alternating(sources))} == {list}


def test_batches_by_source_behind_a_stage_that_drops_the_url_say_which_order_to_use(sources: list[Source]) -> None:
    with pytest.raises(StageError, match=r"`batched_by_source` needs '__url__'.*put `batched_by_source` before"):
        list(equitar.stages.batched_by_source(4, sources=sources)([{"__key__": "a-0000"}]))


def test_batches_by_source_hold_something() -> None:
    with pytest.raises(ValueError, match="`batch_size` must be >= 1; got 0"):
        equitar.stages.batched_by_source(0)
