"""Every public stage keeps the contract of `contract.py`."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import webdataset as wds

import equitar
from equitar.loading.stages import Slice
from equitar.sources import Source
from helpers.contract import CONTRACT, Case
from helpers.shards import indexed, let_webdataset_close, rare_first, write_source, write_tars

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
    return [write_source(folder, name, sizes, label=rare_first) for name, sizes in (("a", [9, 7]), ("b", [20]))]


def _planned(sources: list[Source]) -> list[Slice]:
    return list(equitar.stages.slices(equitar.debiased(sources, batch_size=4))())


def _samples(sources: list[Source]) -> list[Any]:
    urls = [source.urls for source in sources]
    paths = [str(path) for url in urls for path in sorted(Path(str(url)).parent.glob("*.tar"))]
    return list(wds.DataPipeline(wds.SimpleShardList(paths), wds.tarfile_to_samples()))


def _key(sample: Any) -> Any:
    return sample["__key__"]


def _key_and_copy(sample: Any) -> Any:
    return sample["__key__"], sample["__copy__"]


CASES: dict[str, Callable[[list[Source]], Case]] = {
    "read": lambda sources: Case(equitar.stages.read(), partial(_planned, sources), 1, _key),
    "repeats": lambda sources: Case(
        equitar.stages.repeats(sources, repeat=0.5), partial(_samples, sources), 1, _key_and_copy
    ),
    "shuffled": lambda sources: Case(equitar.stages.shuffled(8), partial(_samples, sources), 8, _key),
    "batched_by_source": lambda sources: Case(
        equitar.stages.batched_by_source(4, sources=sources), partial(_samples, sources), 4, _key
    ),
}


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", CASES)
def test_stage_keeps_the_contract(name: str, check: Callable[[Case], None], sources: list[Source]) -> None:
    check(CASES[name](sources))


def _keys_of_slices(stage: Callable[[], Any]) -> list[tuple[str, int, int, int]]:
    return [(sample.source, sample.shard, sample.row, sample.step) for sample in stage()]


@pytest.mark.parametrize("takes_first", [0, 1, 36])
def test_slices_pickle_before_in_and_after_a_pass(takes_first: int, sources: list[Source]) -> None:
    stage = equitar.stages.slices(equitar.debiased(sources, batch_size=4))
    stream = iter(stage())
    for _ in range(takes_first):
        next(stream)
    assert _keys_of_slices(pickle.loads(pickle.dumps(stage))) == _keys_of_slices(stage)


def test_slices_give_the_same_when_called_again(sources: list[Source]) -> None:
    stage = equitar.stages.slices(equitar.debiased(sources, batch_size=4))
    assert _keys_of_slices(stage) == _keys_of_slices(stage)


def test_slices_open_no_tar(tmp_path: Path) -> None:
    source = indexed(Source("a", write_tars(tmp_path, "a", [8])))
    (tmp_path / "a" / "000.tar").unlink()
    assert len(_keys_of_slices(equitar.stages.slices(equitar.debiased([source], batch_size=4)))) == 8


def test_a_stage_travels_by_pickle_whatever_it_has_opened(sources: list[Source]) -> None:
    planned = _planned(sources)
    list(equitar.stages.read()(planned))  # opens shards
    again = pickle.loads(pickle.dumps(planned))
    assert [_key(sample) for sample in equitar.stages.read()(again)] == [
        _key(sample) for sample in equitar.stages.read()(planned)
    ]
