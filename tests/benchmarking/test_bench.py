"""The benchmark of a user's own shards: what it measures is what it says, and both sides do the same work."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import pytest
import webdataset as wds
from click.testing import CliRunner, Result

import equitar
from equitar.benchmarking.contenders import PlainBatches, first_steps, plain_sources
from equitar.benchmarking.profiler import Profile, Stopwatch, profile_into
from equitar.cli.app import main
from equitar.errors import PlanError
from equitar.loading.batches import Batches, execution_of
from equitar.loading.loader import Loader
from equitar.reading.reader import Reader
from equitar.sources import Sample, Source
from helpers.shards import flat, indexed, let_webdataset_close, write_source, write_sources

# webdataset leaves the shard open at which it is broken off.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

TRAINING = """
import equitar, webdataset as wds
def shout(sample):
    return {**sample, "txt": sample["txt"].upper()}
def first(batch):
    return batch
batches = equitar.debiased(SOURCES, batch_size=4, stages=[wds.decode(), wds.map(shout)]).map(first)
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    return write_sources(tmp_path_factory.mktemp("shards"), {"a": [12, 12, 12], "b": [24]})


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    let_webdataset_close()


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["bench", *words])


def words_of(sources: Iterable[Source]) -> list[str]:
    return [f"{source.name}={source.urls}" for source in sources]


class SharedPosition:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Takes:
    """A stage that takes some time before it gives a sample; it drops those whose key ends in a digit."""

    clock: SharedPosition
    seconds: float
    drops: str = "-"

    def __call__(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        for sample in samples:
            self.clock.now += self.seconds
            if not sample["__key__"].endswith(self.drops):
                yield sample


def profiled(batches: Batches, clock: SharedPosition, steps: int) -> Profile:
    profile = Profile(watch=Stopwatch(clock))
    profile_into(profile, batches, batches.plan(0, num_workers=0), 0, is_enough=lambda so_far: so_far.steps >= steps)
    return profile


def test_each_part_is_charged_with_what_it_takes_itself(sources: list[Source], monkeypatch: pytest.MonkeyPatch) -> None:
    clock, read = SharedPosition(), Reader.read

    def slow(reader: Reader, shard: int, row: int) -> Sample:
        clock.now += 5
        return read(reader, shard, row)

    def collate_fn(samples: list[Any]) -> list[Any]:
        clock.now += 7
        return samples

    def composed(batch: list[Any]) -> list[Any]:
        clock.now += 11
        return batch

    monkeypatch.setattr(Reader, "read", slow)
    stages = [Takes(clock, 2), Takes(clock, 3)]
    batches = equitar.debiased(sources, batch_size=4, stages=stages, collate_fn=collate_fn, rank=0, world_size=1).map(
        composed
    )
    profile = profiled(batches, clock, steps=15)
    assert profile.samples == {"a": 36, "b": 24}
    for name, count in profile.samples.items():
        charged = {(part.kind, part.name): took for part, took in profile.watch.seconds.items() if part.source == name}
        assert {part: took for part, took in charged.items() if took} == {
            ("read", ""): 5 * count,
            ("stage", "Takes"): 2 * count,
            ("stage", "Takes 2"): 3 * count,
            ("collate", ""): 7 * count / 4,
            ("composed", "map(composed)"): 11 * count / 4,
        }
    assert sum(profile.watch.seconds.values()) == clock.now


def test_dropped_samples_cost_time_and_are_no_samples(sources: list[Source]) -> None:
    clock = SharedPosition()
    batches = equitar.debiased(sources, batch_size=4, stages=[Takes(clock, 1, drops="3")], rank=0, world_size=1)
    profile = profiled(batches, clock, steps=15)
    assert profile.samples.total() == 60
    assert clock.now == sum(shard.samples for shard in profile.shards.values()) > 60


def test_a_profile_emits_what_training_does(sources: list[Source]) -> None:
    came: list[list[str]] = []

    def noted(samples: list[Any]) -> list[Any]:
        came.append([sample["__key__"] for sample in samples])
        return samples

    batches = equitar.mixed(sources, batch_size=6, collate_fn=noted, rank=0, world_size=1)
    profiled(batches, SharedPosition(), steps=4)
    in_profile = came.copy()
    came.clear()
    list(batches)
    assert in_profile == came[:4]


def test_a_stage_that_sleeps_is_found(sources: list[Source]) -> None:
    def slowly(samples: Iterable[Sample]) -> Iterator[Sample]:
        for sample in samples:
            time.sleep(0.002)
            yield sample

    batches = equitar.debiased(sources, batch_size=4, stages=[wds.decode(), slowly], rank=0, world_size=1)
    printed = equitar.bench(batches, samples=24, num_workers=0, seconds=100, progress=False)
    for source in printed.sources:
        of = {part.name or part.kind: part.seconds for part in source.parts}
        assert list(of) == ["open", "read", "decode", "slowly", "collate", "rest"]
        assert of["slowly"] >= 0.002
        assert max(of, key=lambda name: of[name]) == "slowly"
        assert source.waited is None
    assert printed.busy is None


def test_a_slow_shard_comes_first(sources: list[Source], monkeypatch: pytest.MonkeyPatch) -> None:
    clock, read = SharedPosition(), Reader.read

    def slow(reader: Reader, shard: int, row: int) -> Sample:
        sample = read(reader, shard, row)
        clock.now += 9 if sample["__url__"].endswith("a/001.tar") else 1
        return sample

    monkeypatch.setattr(Reader, "read", slow)
    batches = equitar.debiased(sources, batch_size=4, rank=0, world_size=1)
    outcome = profiled(batches, clock, steps=15).slowest()
    assert (outcome[0].source, outcome[0].path, outcome[0].samples, outcome[0].seconds) == ("a", "001.tar", 12, 108)
    assert [(shard.seconds / shard.samples) for shard in outcome[1:]] == [1, 1, 1]
    a_sample = len("text of a-0000") + len("0")  # the text and the class
    assert {shard.bytes / shard.samples for shard in outcome} == {a_sample}


def test_webdataset_and_ours_give_the_same_samples_through_the_same_stages(sources: list[Source]) -> None:
    own = [sources[0], Source(name="b", urls=sources[1].urls, root=sources[1].root, stages=[wds.rename(text="txt")])]
    stages = [wds.decode(), wds.map(dict)]
    batches = equitar.exact(own, batch_size=5, stages=stages, collate_fn=list, rank=0, world_size=1)
    request = execution_of(batches).request
    parts = plain_sources(request, [[2], []], [36, 24], num_workers=0)
    plain = list(PlainBatches(parts, request, [wds.map(tuple)]))
    assert all(isinstance(batch, tuple) and len(batch) == count for _, count, batch in plain)

    def fields(samples: Iterable[Any]) -> list[dict[str, Any]]:
        printed = [{name: value for name, value in sample.items() if name[:2] != "__"} for sample in samples]
        return sorted(printed, key=str)

    ours = [sample for batch in batches for sample in batch]
    assert fields(sample for _, _, batch in plain for sample in batch) == fields(ours)
    assert Counter(name for name, count, _ in plain for _ in range(count)) == {"a": 36, "b": 24}
    assert parts[0].urls[0].endswith("002.tar"), "shards that the plan reads come first"


def test_webdataset_reads_no_more_than_is_asked_for_and_selected(sources: list[Source]) -> None:
    kept = [
        Source(name=source.name, urls=source.urls, root=source.root, keep=equitar.split(0, 2)) for source in sources
    ]
    batches = equitar.mixed(kept, batch_size=4, fields=["cls"], rank=0, world_size=1)
    request = execution_of(batches).request
    for num_samples in ([100, 100], [3, 2]):
        parts = plain_sources(request, [[], []], num_samples, num_workers=0)
        samples = [sample for part in parts for sample in part.samples(0, 0, staged=True)]
        assert all("cls" in sample and "txt" not in sample for sample in samples)
        keys = {sample["__key__"] for sample in samples}
        everything = {sample["__key__"] for sample in batches_of_one(kept)}
        assert (keys == everything) if num_samples[0] == 100 else (len(samples) == 5 and keys < everything)


def batches_of_one(sources: list[Source]) -> Iterator[Any]:
    return iter(equitar.exact(sources, batch_size=1, collate_fn=lambda samples: samples[0], rank=0, world_size=1))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_first_steps_are_those_of_training(sources: list[Source], num_workers: int) -> None:
    batches = equitar.debiased(sources, batch_size=4, rank=0, world_size=1)
    loader, whole = Loader(first_steps(batches, 5), num_workers=num_workers), Loader(batches, num_workers=num_workers)
    first = iter(loader)
    assert flat(next(first) for _ in range(5)) == flat(list(whole)[:5])
    with pytest.raises(PlanError, match="ended at step 5"):  # nobody worked on behind our back
        next(first)


def test_damage_that_a_training_lives_with_does_not_end_a_benchmark(tmp_path: Path) -> None:
    source = write_source(tmp_path, "a", [20, 20])
    shard = tmp_path / "a" / "000.tar"
    shard.write_bytes(shard.read_bytes()[:9000])
    batches = equitar.debiased([source], batch_size=4, handler="skip_sample", rank=0, world_size=1)
    printed = equitar.bench(batches, samples=40, num_workers=0, seconds=100, progress=False)
    assert printed.samples == 40
    assert printed.refused is None
    assert not printed.in_blocks


def test_shards_that_webdataset_cannot_open_are_measured_without_it(tmp_path: Path) -> None:
    source = write_source(tmp_path, "a", [20])
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "a"), "/bench", recursive=True)
    far = indexed(Source("a", "memory://bench/000.tar"))
    printed = equitar.bench(
        equitar.debiased([far], batch_size=4, rank=0, world_size=1),
        samples=8,
        num_workers=0,
        seconds=100,
        progress=False,
    )
    memory.rm("/bench", recursive=True)
    assert printed.is_remote
    assert printed.refused is not None
    assert "memory" in printed.refused
    assert [(speed.name, speed.ratio) for speed in printed.speeds] == [("equitar", None), ("equitar", None)]
    assert source.name == "a"


def test_single_samples_are_measured_too(sources: list[Source]) -> None:
    batches = equitar.mixed(sources, rank=0, world_size=1)
    printed = equitar.bench(batches, samples=10, num_workers=0, seconds=100, progress=False)
    assert (printed.samples, printed.batch_size) == (10, 1)


def test_the_command_shows_tables_and_what_follows(sources: list[Source]) -> None:
    result = run(*words_of(sources), "--batch-size", "4", "--samples", "40", "--num-workers", "0", "--seconds", "100")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith("40 samples each, ")
    assert [line.split()[0] for line in lines if line.startswith("  ")][1:] == ["webdataset", "equitar"] * 2
    assert "batches of 4, one process" in result.output
    assert any(line.startswith("In one process") for line in lines)
    assert lines[-1].startswith("Beside plain webdataset")


def test_a_training_is_measured_with_its_stages_and_workers_and_json_says_so(
    sources: list[Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = ", ".join(f"equitar.Source({source.name!r}, {source.urls!r}, root={source.root!r})" for source in sources)
    (tmp_path / "bench_training.py").write_text(TRAINING.replace("SOURCES", f"[{listed}]"))
    monkeypatch.syspath_prepend(tmp_path)
    result = run("bench_training:batches", "--num-workers", "2", "--samples", "40", "--seconds", "100", "--json")
    sys.modules.pop("bench_training", None)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert [(speed["group"], speed["name"]) for speed in printed["speeds"]] == [
        *(("read", name) for name in ("webdataset", "equitar")),
        *(("batches", name) for name in ("webdataset", "equitar")),
        *(("workers", name) for name in ("webdataset", "equitar, pipe", "equitar, slots")),
    ]
    assert all(speed["median"] > 0 and speed["ratio"] > 0 for speed in printed["speeds"])
    assert [part["name"] for part in printed["sources"][0]["parts"] if part["name"]] == [
        *("decode", "map(shout)"),
        "map(first)",
    ]
    assert 0 < printed["busy"] <= 1
    assert 0 < printed["receiving"] < 1
    assert all(source["waited"] >= 0 for source in printed["sources"])
    assert printed["conclusions"]


def test_wrong_words_are_told_in_one_line(sources: list[Source], tmp_path: Path) -> None:
    assert run("--samples", "0", *words_of(sources)).exit_code == 2
    assert run().exit_code == 2
    failed = run(f"x={tmp_path}/none-*.tar")
    assert failed.exit_code == 1
    assert failed.output.startswith("Error: ")


@pytest.mark.parametrize(
    ("samples", "seconds", "message"), [(0, 1.0, "`samples` must be"), (1, 0.0, "`seconds` must be > 0; got 0")]
)
def test_wrong_numbers_are_told(sources: list[Source], samples: int, seconds: float, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        equitar.bench(equitar.debiased(sources, batch_size=4), samples=samples, seconds=seconds)
