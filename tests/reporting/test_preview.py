"""Is what a preview tells what training emits? Against real loaders over real tars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import webdataset as wds

from equitar.errors import PlanError
from equitar.indexing.index import index
from equitar.loading.batches import Batches, execution_of
from equitar.loading.builders import debiased, exact, mixed
from equitar.loading.loader import Loader
from equitar.reporting import preview as plan_preview
from equitar.reporting.preview import Emission, emissions, plan
from equitar.sources import Source

Build = Callable[..., Batches]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    """Two sources of several shards with the same keys in each; a few samples have a rare label."""
    made = []
    for name, sizes in (("big", (17, 30, 21)), ("small", (9, 14))):
        folder = tmp_path_factory.mktemp("shards") / name
        folder.mkdir()
        for shard, size in enumerate(sizes):
            with wds.TarWriter(f"{folder}/{shard}.tar", mtime=0) as writer:
                for row in range(size):
                    writer.write({"__key__": f"{row:03d}", "txt": "x" * row, "cls": int(row == 3)})
        made.append(Source(name, f"{folder}/*.tar", root=str(folder)))
    index(made, labels="cls", jobs=1, progress=False)
    return made


def of_one_source(sources: Sequence[Source], **more: Any) -> Batches:
    return debiased(sources, batch_size=4, repeat=0.3, seed=5, shuffle=16, **more)


def of_shares(sources: Sequence[Source], **more: Any) -> Batches:
    return mixed(sources, batch_size=4, repeat=0.3, seed=5, shuffle=16, **more)


def of_ranks(sources: Sequence[Source], **more: Any) -> Batches:
    return debiased(sources, batch_size=4, same_source_across="rank", weights={"big": 1, "small": 1}, **more)


def weighted(sources: Sequence[Source], **more: Any) -> Batches:
    return debiased(sources, batch_size=3, steps=40, weights={"big": 0.2, "small": 0.8}, repeat=0.3, **more)


def held(sources: Sequence[Source], **more: Any) -> Batches:
    return debiased(sources, batch_size=2, accumulation_steps=3, repeat=0.3, **more)


def in_order(sources: Sequence[Source], **more: Any) -> Batches:
    return exact(sources, batch_size=5, pad=True, **more)


def emitted(batches: Batches, num_workers: int) -> list[tuple[int, str, str, str, int]]:
    """Return (step, source, shard, key, copy) of every sample that a real loader gives."""
    result = []
    loader = Loader(batches, num_workers=num_workers)
    for batch in loader:
        assert loader.last is not None
        url, key, copy = batch["__url__"], batch["__key__"], batch["__copy__"]
        for one_url, one_key, one_copy in zip(url, key, copy, strict=True):
            *_, name, shard = one_url.split("/")
            result.append((loader.last.step, name, shard, one_key, one_copy))
    return result


def printed(result: Sequence[Emission], rank: int) -> list[tuple[int, str, str, str, int]]:
    return [
        (emission.step, emission.source, emission.shard, emission.key, emission.copy)
        for emission in result
        if emission.rank == rank
    ]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("build", [of_one_source, of_shares, of_ranks, weighted, held, in_order])
def test_what_is_told_is_what_every_rank_emits(
    sources: list[Source], build: Build, world_size: int, num_workers: int
) -> None:
    result = list(emissions(build(sources, rank=0, world_size=world_size), num_workers=num_workers))
    for rank in range(world_size):
        real = emitted(build(sources, rank=rank, world_size=world_size), num_workers)
        assert printed(result, rank) == real
        assert len(real) >= 40


def test_single_samples_of_a_later_epoch_are_told_too(sources: list[Source]) -> None:
    batches = mixed(sources, repeat=0.3, rank=0, world_size=1)
    loader = Loader(batches)
    loader.set_epoch(3)
    real = [(sample["__source__"], sample["__key__"], sample["__copy__"]) for sample in loader]
    assert [(emission.source, emission.key, emission.copy) for emission in emissions(batches, epoch=3)] == real


def test_what_stages_will_drop_is_told_as_planned(sources: list[Source]) -> None:
    def none(_: Any) -> list[Any]:
        return []

    with_stage = of_one_source(sources, stages=[none], rank=0, world_size=1)
    assert list(emissions(with_stage)) == list(emissions(of_one_source(sources, rank=0, world_size=1)))


@pytest.mark.parametrize("build", [of_one_source, of_shares, of_ranks, in_order])
def test_consumers_read_what_is_emitted_for_them(sources: list[Source], build: Build) -> None:
    batches = build(sources, rank=0, world_size=2)
    result = plan(batches, num_workers=2)
    every = list(emissions(batches, num_workers=2))
    sizes = {
        sidecars_of_source.source.name: sidecars_of_source
        for sidecars_of_source in execution_of(batches).request.resolved.catalog.sidecars
    }
    for consumer in result.consumers:
        own = [each for each in every if (each.rank, each.worker) == (consumer.rank, consumer.worker)]
        of_rows = [sizes[each.source](int(each.shard[0])).sizes[each.row] for each in own]
        assert (consumer.samples, consumer.shards) == (len(own), len({(each.source, each.shard) for each in own}))
        assert (consumer.steps, consumer.bytes) == (len({each.step for each in own}), sum(of_rows))
    assert len(result.consumers) == result.num_consumers == 4
    assert result.counted_steps == result.steps


def test_sources_and_schedule_are_what_is_emitted(sources: list[Source]) -> None:
    batches = of_one_source(sources, rank=0, world_size=2)
    result, every = plan(batches), list(emissions(batches))
    names = [source.name for source in result.sources]
    assert result.schedule is not None
    assert [names[source] for source in result.schedule[0]] == batches.sources(0)
    assert {source.name: source.samples for source in result.sources} == Counter(emission.source for emission in every)
    assert [source.batches for source in result.sources] == [source.samples // 8 for source in result.sources]
    assert sum(source.share for source in result.sources) == pytest.approx(1)
    copies = Counter((emission.source, emission.shard, emission.row) for emission in every)
    for source in result.sources:
        assert 1 < max(count for where, count in copies.items() if where[0] == source.name) <= source.most


def test_every_rank_has_its_own_schedule_only_where_ranks_do_not_agree(sources: list[Source]) -> None:
    own = plan(of_ranks(sources, rank=0, world_size=3)).schedule
    assert own is not None
    assert len(own) == 3
    same = plan(of_one_source(sources, rank=0, world_size=3)).schedule
    assert same is not None
    assert len(same) == 1
    assert plan(of_shares(sources, rank=0, world_size=3)).schedule is None


def test_only_fields_that_are_read_have_bytes(sources: list[Source]) -> None:
    (labels,) = plan(debiased(sources, batch_size=4, fields=["CLS"], rank=0, world_size=1)).consumers
    assert labels.bytes == labels.samples  # one digit each


def test_of_many_consumers_the_first_are_counted(sources: list[Source], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_preview, "_MOST_CONSUMERS", 3)
    batches = debiased(sources, batch_size=1, rank=0, world_size=4)
    result = plan(batches, num_workers=2)
    assert [(consumer.rank, consumer.worker) for consumer in result.consumers] == [(0, 0), (0, 1), (1, 0)]
    assert (result.num_consumers, result.counted_steps) == (8, result.steps)


def test_of_a_long_epoch_the_first_steps_are_counted(sources: list[Source], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_preview, "_MOST_BATCHES", 4)
    result = plan(debiased(sources, batch_size=2, rank=0, world_size=1), num_workers=2)
    assert [(consumer.steps, consumer.samples) for consumer in result.consumers] == [(4, 8)]
    assert result.counted_steps == 8 < result.steps


def test_no_tar_is_opened(sources: list[Source], tmp_path: Path) -> None:
    for source in sources:
        for sidecar in Path(str(source.root)).glob("*.npz"):
            (tmp_path / source.name).mkdir(exist_ok=True)
            (tmp_path / source.name / sidecar.name).write_bytes(sidecar.read_bytes())
        for pointer in Path(str(source.root)).glob("*.json"):
            (tmp_path / source.name / pointer.name).write_bytes(pointer.read_bytes())
    away = [
        Source(name, f"/nowhere/{name}/{{0..{last}}}.tar", root=f"/nowhere/{name}", sidecars=f"{tmp_path}/{name}")
        for name, last in (("big", 2), ("small", 1))
    ]
    batches = of_one_source(away, rank=0, world_size=2)
    assert plan(batches).steps > 0
    here = emissions(of_one_source(sources, rank=0, world_size=2))
    assert list(emissions(batches)) == list(here)


def test_a_plan_that_cannot_be_is_the_error_of_training(sources: list[Source]) -> None:
    with pytest.raises(PlanError, match="lower `batch_size`"):
        plan(debiased(sources, batch_size=4000, rank=0, world_size=1))
