"""How often summaries are read, and how many small files are read ahead."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import equitar
from equitar.sidecars import summary as summary_module
from equitar.sidecars.summary import Summary, load_summary
from equitar.sources import Source
from equitar.storage.files import read_many
from helpers.shards import indexed, write_source, write_tars


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the names of the summaries that are read."""
    names: list[str] = []
    read = summary_module._read

    def noting(url: str, source: Source) -> Summary:
        names.append(url.rpartition("/")[2])
        return read(url, source)

    monkeypatch.setattr(summary_module, "_read", noting)
    return names


def loader_of(source: Source) -> equitar.Loader:
    return equitar.Loader(equitar.debiased([source], batch_size=2, rank=0, world_size=1))


@pytest.mark.parametrize("is_planned", [False, True])
@pytest.mark.parametrize("by_summary", [False, True])
def test_load_state_dict_reads_each_summary_once(
    tmp_path: Path, reads: list[str], is_planned: bool, by_summary: bool
) -> None:
    source = write_source(tmp_path, "a", [4, 4])
    if by_summary:
        source = Source("a", str(tmp_path / "a" / "a.summary.json"))
    first = loader_of(source)
    next(iter(first))
    state = first.state_dict()
    reads.clear()
    second = loader_of(source)
    if is_planned:
        second.state_dict()
    second.load_state_dict(state)
    assert len(list(second)) == 3
    assert len(reads) == 1


def test_a_source_that_has_grown_reads_the_old_and_the_new_summary_once(tmp_path: Path, reads: list[str]) -> None:
    first = loader_of(write_source(tmp_path, "a", [4, 4]))
    next(iter(first))
    state = first.state_dict()
    write_tars(tmp_path, "a", [4, 4, 4])
    source = indexed(Source("a", str(tmp_path / "a" / "*.tar"), root=str(tmp_path / "a")))
    assert load_summary(source).num_samples.tolist() == [4, 4, 4]
    reads.clear()
    second = loader_of(source)
    second.load_state_dict(state)
    assert len(list(second)) == 3
    assert len(reads) == len(set(reads)) == 2


def test_few_files_are_read_before_they_are_wanted() -> None:
    started, lock = [0], threading.Lock()

    def read(number: int) -> int:
        with lock:
            started[0] += 1
        return number

    for taken, number in enumerate(read_many(read, range(1000))):
        assert number == taken
        assert started[0] <= taken + 32


def test_an_error_comes_in_its_turn_and_ends_the_reading() -> None:
    def read(number: int) -> int:
        if number == 3:
            raise FileNotFoundError("3")
        return number

    results = read_many(read, range(1000))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(FileNotFoundError, match="3"):
        next(results)
