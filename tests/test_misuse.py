"""Misuse: loaders made again for every epoch, batches made in workers, and datasets around batches, each with its warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

import equitar
from equitar.samplers.distributed import DistributedSamplerWrapper
from equitar.samplers.samplers import DebiasedBatchSampler, RepeatFactorSampler
from equitar.sources import Source
from helpers.shards import write_sources

REPLACED = "begins epoch 0 of the same plan as one before it"
IN_WORKERS = "each worker of this DataLoader makes batches of its own samples"
AGAIN = "epoch 0 begins again; call `set_epoch` before each epoch"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    return write_sources(tmp_path_factory.mktemp("sources"), {"a": [30, 20], "b": [14]})


# ---- A new loader in each epoch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("makes_batches", [False, True])
def test_a_new_loader_in_each_epoch_warns_at_the_second(
    num_workers: int, makes_batches: bool, sources: list[Source]
) -> None:
    def batches() -> Any:
        return equitar.debiased(sources, batch_size=4, seed=10 + 2 * num_workers + makes_batches)

    once = batches()
    for epoch in range(3):
        loader = equitar.Loader(batches() if makes_batches else once, num_workers=num_workers)
        with pytest.warns(UserWarning, match=f"a new Loader {REPLACED}") if epoch else warnings.catch_warnings():
            for _ in loader:
                pass


def samplers(seed: int) -> list[Callable[[], Any]]:
    return [
        lambda: RepeatFactorSampler({"a": 40}, None, seed=seed),
        lambda: DebiasedBatchSampler({"a": 40}, batch_size=4, seed=seed),
        lambda: DistributedSamplerWrapper(RandomSampler(range(40)), seed=seed),
    ]


@pytest.mark.parametrize("kind", range(3))
def test_a_new_sampler_in_each_epoch_warns_at_the_second(kind: int) -> None:
    sampler = samplers(20)[kind]()
    list(sampler)
    sampler = samplers(20)[kind]()
    with pytest.warns(UserWarning, match=f"a new {type(sampler).__name__} {REPLACED}"):
        list(sampler)


@pytest.mark.parametrize("way", ["set_epoch", "state", "side by side", "validation", "another seed"])
def test_loaders_that_are_meant_do_not_warn(way: str, sources: list[Source]) -> None:
    seeds = {"set_epoch": 30, "state": 31, "side by side": 32, "validation": 33, "another seed": 34}

    def loader(seed: int) -> equitar.Loader:
        batches = equitar.debiased(sources, batch_size=4, seed=seed)
        return equitar.Loader(equitar.exact(sources, batch_size=4) if way == "validation" else batches)

    first = loader(seeds[way])
    list(first)
    state = first.state_dict()
    if way != "side by side":
        del first
    second = loader(seeds[way] + (way == "another seed"))
    if way == "set_epoch":
        second.set_epoch(0)
    if way == "state":
        second.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(second)


# ---- A DataLoader that makes batches of single samples ------------------------------------------------------------------


def shows(_: int) -> None:
    """Write warnings of a worker as they would be outside of pytest, which keeps them or makes them errors."""
    warnings.simplefilter("always")
    warnings.showwarning = lambda message, *_: print(message, file=sys.stderr, flush=True)


def run(loader: Any, capfd: pytest.CaptureFixture[str], epochs: int = 2) -> list[str]:
    """Return what is written during each of some epochs, in this process and its workers."""
    texts = []
    for _ in range(epochs):
        list(loader)
        texts.append(capfd.readouterr().err)
    return texts


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_data_loader_whose_workers_make_batches_warns_once(
    drop_last: bool, sources: list[Source], capfd: pytest.CaptureFixture[str]
) -> None:
    loader: DataLoader[Any] = DataLoader(
        equitar.mixed(sources), batch_size=48, num_workers=2, drop_last=drop_last, collate_fn=list, worker_init_fn=shows
    )
    assert (len(loader), len(list(loader))) == ((1, 0) if drop_last else (2, 2))
    first = capfd.readouterr().err
    assert IN_WORKERS in first
    assert f"the last batch of every worker is {'dropped' if drop_last else 'short'}" in first
    assert "let the builder make them: `batch_size=`" in first
    assert IN_WORKERS not in run(loader, capfd, 1)[0]


def test_what_makes_whole_batches_does_not_warn(sources: list[Source], capfd: pytest.CaptureFixture[str]) -> None:
    loaders = [
        DataLoader(equitar.mixed(sources), batch_size=4, collate_fn=list),
        DataLoader(equitar.mixed(sources, batch_size=4), batch_size=None, num_workers=2, worker_init_fn=shows),
        equitar.Loader(equitar.mixed(sources, batch_size=4), num_workers=2, worker_init_fn=shows),
    ]
    assert not any(IN_WORKERS in text for loader in loaders for text in run(loader, capfd, 1))


# ---- Datasets around batches --------------------------------------------------------------------------------------------


class Around(IterableDataset[Any]):
    """Hands on no epoch."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            yield batch["__key__"]


class MakesBatches(IterableDataset[Any]):
    """Calls the builder where it is gone through."""

    def __init__(self, sources: list[Source], epoch: int | None = None) -> None:
        self.sources, self.epoch = sources, epoch

    def __iter__(self) -> Iterator[Any]:
        batches = equitar.debiased(self.sources, batch_size=4)
        if self.epoch is not None:
            batches.set_epoch(self.epoch)
        for batch in batches:
            yield batch["__key__"]


@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning")  # torchdata 0.11 with torch 2.13
@pytest.mark.parametrize("is_persistent", [False, True])
@pytest.mark.parametrize("is_single", [False, True])
@pytest.mark.parametrize("kind", ["DataLoader", "StatefulDataLoader"])
def test_a_dataset_around_batches_warns_at_its_second_epoch(
    kind: str, is_single: bool, is_persistent: bool, sources: list[Source], capfd: pytest.CaptureFixture[str]
) -> None:
    make: Any = DataLoader
    if kind == "StatefulDataLoader":
        make = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    batches = equitar.mixed(sources) if is_single else equitar.debiased(sources, batch_size=4)
    loader = make(
        Around(batches), batch_size=None, num_workers=2, persistent_workers=is_persistent, worker_init_fn=shows
    )
    texts = run(loader, capfd, 3)
    assert [AGAIN in text for text in texts] == [False, True, False]


def test_batches_that_are_made_in_a_worker_warn(sources: list[Source], capfd: pytest.CaptureFixture[str]) -> None:
    def is_told(dataset: Any, num_workers: int) -> bool:
        loader = DataLoader(dataset, batch_size=None, num_workers=num_workers, worker_init_fn=shows)
        return "these batches were made within a DataLoader worker, where every" in run(loader, capfd, 1)[0]

    assert is_told(MakesBatches(sources), 2)
    assert not is_told(MakesBatches(sources, 3), 2)
    assert not is_told(MakesBatches(sources), 0)
