"""Errors of a user's code say where they happened, in the last line of the trace, also through workers."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import webdataset as wds
from torch.utils.data import DataLoader

import equitar
from equitar import errors
from equitar.errors import StageError, blame
from equitar.loading.batches import Batches
from equitar.sources import Sample, Source
from helpers.shards import write_sources

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


class OwnError(Exception):
    """An error of a user."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    return write_sources(tmp_path_factory.mktemp("notes"), {"a": [9, 7], "b": [12, 4]})


def parse(sample: Sample) -> Sample:
    if sample["__key__"] == "b-0013":
        raise OwnError("no such thing")
    return sample


def generator(samples: Iterable[Sample]) -> Iterator[Sample]:
    return map(parse, samples)


def refuse(key: str, data: bytes) -> Any:
    raise OwnError("not an image")


def collate(samples: list[Sample]) -> Any:
    raise OwnError("cannot stack")


def change(batch: Any) -> Any:
    raise OwnError("cannot change")


def last_line(make: Callable[[], Iterable[Any]], kind: type[Exception] = OwnError) -> str:
    with pytest.raises(kind) as caught:
        for _ in make():
            pass
    line = "".join(traceback.format_exception(caught.value)).rstrip().splitlines()[-1]
    # A DataLoader that only the garbage collector frees waits five seconds for each of its workers.
    traceback.clear_frames(caught.tb)
    return line


OF_A_STAGE = "equitar: error in stage {stage} of source 'b', shard '001.tar', key 'b-0013'"
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "map": ({"stages": [wds.map(parse)]}, OF_A_STAGE.format(stage="'map(parse)'")),
    "generator": ({"stages": [generator]}, OF_A_STAGE.format(stage="'generator'")),
    "behind another": ({"stages": [wds.map(dict), wds.map(parse)]}, OF_A_STAGE.format(stage="'map(parse)'")),
    "before another": ({"stages": [wds.map(parse), wds.map(dict)]}, OF_A_STAGE.format(stage="'map(parse)'")),
}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("arguments_and_note", CASES.values(), ids=CASES)
def test_an_error_in_a_stage_names_stage_source_shard_and_key(
    num_workers: int, arguments_and_note: tuple[dict[str, Any], str], sources: list[Source]
) -> None:
    arguments, note = arguments_and_note
    batches = equitar.debiased(sources, batch_size=4, **arguments)
    assert last_line(lambda: equitar.Loader(batches, num_workers=num_workers)) == note
    assert last_line(lambda: DataLoader(batches, batch_size=None, num_workers=num_workers)) == note


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_in_a_decoder_names_the_sample(num_workers: int, sources: list[Source]) -> None:
    batches = equitar.debiased(sources[:1], batch_size=4, stages=[wds.decode(refuse)], shuffle=0)
    line = last_line(lambda: equitar.Loader(batches, num_workers=num_workers), Exception)
    assert line.startswith("equitar: error in stage 'decode(refuse)' of source 'a', shard '00")
    assert ", key 'a-00" in line


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_in_a_collate_function_names_the_batch(num_workers: int, sources: list[Source]) -> None:
    batches = equitar.debiased(sources[1:], batch_size=4, collate_fn=collate)
    line = last_line(lambda: equitar.Loader(batches, num_workers=num_workers))
    assert line.startswith("equitar: error in collate_fn 'collate' at step 0 of epoch 0, source 'b', shard ")
    assert line.count("'b-00") == 3
    assert line.endswith(" and 1 more")


def test_an_error_in_a_collate_function_of_staged_samples_names_the_batch(sources: list[Source]) -> None:
    batches = equitar.mixed(sources, batch_size=8, collate_fn=collate, stages=[iter])
    assert " at step 0 of epoch 0, source 'a', 'b', shard '00" in last_line(lambda: batches)


def test_an_error_of_the_default_batch_names_the_source(tmp_path: Path, sources: list[Source]) -> None:
    def odd(sample: Sample) -> Sample:
        return {**sample, sample["__key__"]: 1}

    batches = equitar.debiased(sources, batch_size=4, stages=[wds.map(odd)])
    assert "equitar: error in collate_fn 'columns' at step 0 of epoch 0, source '" in last_line(
        lambda: batches, StageError
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_in_a_composed_stage_names_the_batch(num_workers: int, sources: list[Source]) -> None:
    batches: Batches = equitar.debiased(sources[1:], batch_size=4).map(dict).map(change)
    line = last_line(lambda: equitar.Loader(batches, num_workers=num_workers))
    assert line.startswith("equitar: error in stage 'map(change)' at step 0 of epoch 0, source 'b', keys 'b-00")


def test_an_error_keeps_its_type_and_arguments(sources: list[Source]) -> None:
    with pytest.raises(OwnError) as caught:
        list(equitar.debiased(sources, batch_size=4, stages=[wds.map(parse)]))
    assert caught.value.args == ("no such thing",) or sys.version_info < (3, 11)


def test_the_innermost_note_stays() -> None:
    error = OwnError("x")
    blame(error, "inner")
    blame(error, "outer")
    assert vars(error)["__notes__"] == ["equitar: error in inner"]


def test_before_python_3_11_the_note_is_in_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_HAS_NOTES", False)
    for error in (OwnError("x", 2), OwnError()):
        blame(error, "stage 'f'")
        assert "error in stage 'f'" in str(error)
    assert vars(error)["__notes__"] == ["equitar: error in stage 'f'"]
