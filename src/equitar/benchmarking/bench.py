"""Benchmark of a user's own shards beside plain webdataset: all contenders run in turn, several times.

First the batches are executed once with a stopwatch, for as many steps as there is time for: all contenders run these steps. In
the first round the page cache is emptied of the shards before each run, so it shows the disk; later they are in memory.
"""

from __future__ import annotations

import os
import statistics
import tarfile
import time
from collections.abc import Callable, Mapping
from typing import Any

from tqdm import tqdm

from equitar.benchmarking.contenders import Contender, Waiting, Workload
from equitar.benchmarking.profiler import Profile, profile_into
from equitar.benchmarking.result import Bench, Group, PartTime, SourceTime, Speed
from equitar.checks import check_integer
from equitar.errors import PlanError
from equitar.loading.batches import Batches, execution_of
from equitar.loading.collate import columns
from equitar.reading.reader import open_shards

_MOST_ROUNDS = 7  # after the first one
_RUNS = 24  # about how many runs share the time
_BAR = "{desc:26}|{bar}| {elapsed} of about {total:.0f} s"
_PLAIN_FAILS = (OSError, ValueError, RuntimeError, tarfile.TarError)  # what webdataset raises if it cannot read


def bench(
    batches: Batches,
    *,
    samples: int = 2000,
    num_workers: int = 2,
    epoch: int = 0,
    seconds: float = 20.0,
    progress: bool = True,
) -> Bench:
    """Return how fast batches are beside plain webdataset over the same shards, and where the time goes.

    Args:
        batches: From `debiased`, `mixed` or `exact`; their stages are applied in both.
        samples: Samples of each run, >= 1; fewer where they are slow.
        num_workers: DataLoader workers; 0 measures in this process only.
        epoch: Whose first steps to take.
        seconds: About how long it may take, > 0.
        progress: Whether to show a bar on a terminal.

    Raises:
        PlanError: If the promises of a plan cannot be kept.
        SourceError, SidecarError: If shards or sidecars are not as they must be.
        StageError: If a stage is not one for a single sample.
    """
    samples, epoch = check_integer("samples", samples, 1), check_integer("epoch", epoch, 0)
    num_workers = check_integer("num_workers", num_workers, 0)
    if not seconds > 0:
        raise PlanError(f"`seconds` must be > 0; got {seconds}")
    begin = time.perf_counter()
    with tqdm(total=seconds, bar_format=_BAR, leave=False, disable=None if progress else True) as bar:
        _show(bar, "first steps")
        plan = batches.plan(epoch, num_workers=0)
        steps = _steps(batches, samples, plan.num_steps)
        Workload(batches, plan, steps, epoch=epoch, num_workers=num_workers).forget_pages()
        first, least = Profile(), min(steps, max(2, num_workers))
        until = time.perf_counter() + seconds / _RUNS
        profile_into(
            first,
            batches,
            plan,
            epoch,
            is_enough=lambda profile: profile.steps >= (steps if time.perf_counter() < until else least),
        )
        race = _Race(Workload(batches, plan, first.steps, epoch=epoch, num_workers=num_workers), bar)
        race.round(cold=True)
        warm, rounds, each = Profile(), 0, 0.0
        while rounds < _MOST_ROUNDS and (not rounds or time.perf_counter() - begin + each <= seconds):
            started = time.perf_counter()
            race.round(cold=False)
            rounds += 1
            _show(bar, "parts")
            profile_into(warm, batches, plan, epoch, is_enough=_reached(rounds * first.steps))
            each = time.perf_counter() - started
    return _result(batches, num_workers, first, warm, race)


def _show(bar: tqdm[Any], what: str) -> None:
    bar.n = min(bar.total, bar.format_dict["elapsed"])
    bar.set_description_str(what)


def _steps(batches: Batches, samples: int, most: int) -> int:
    request = execution_of(batches).request
    each = request.batch_size if request.collate_fn is not None else 1
    return min(most, -(-samples // each))


def _reached(steps: int) -> Callable[[Profile], bool]:
    return lambda profile: profile.steps >= steps


class _Race:
    """All contenders, and the results of their runs."""

    def __init__(self, work: Workload, bar: tqdm[Any]) -> None:
        self.work, self._bar = work, bar
        self.contenders = work.contenders()
        self.runs: dict[tuple[Group, str], list[tuple[Mapping[str, int], float]]] = {}
        self.refused: str | None = None

    def round(self, *, cold: bool) -> None:
        """Run each contender once."""
        for contender in self.contenders:
            _show(self._bar, f"{contender.group}: {contender.name}")
            if cold:
                self.work.forget_pages()
            begin = time.perf_counter()
            counts = self._counts(contender)
            if counts is not None:
                self.runs.setdefault((contender.group, contender.name), []).append(
                    (counts, time.perf_counter() - begin)
                )
        if cold:
            self.work.waiting = Waiting()  # workers started in this round

    def _counts(self, contender: Contender) -> Mapping[str, int] | None:
        if not contender.is_plain:
            return contender.run()
        if self.refused is not None:
            return None
        try:
            return contender.run()
        except _PLAIN_FAILS as error:  # equitar has run already: only webdataset cannot read these shards
            self.refused = f"{type(error).__name__}: {error}".splitlines()[0]
            return None


def _result(batches: Batches, num_workers: int, first: Profile, warm: Profile, race: _Race) -> Bench:
    request = execution_of(batches).request
    catalog = request.resolved.catalog
    names = [source.name for source in catalog.sources]
    mean = {name: warm.bytes_of(name) / max(1, warm.samples[name]) for name in names}
    waiting = race.work.waiting
    staged = any((*source.stages, *request.stages) for source in catalog.sources)
    is_remote = any(reader.is_remote for reader in request.readers(open_shards()))
    return Bench(
        samples=first.samples.total(),
        batch_size=1 if request.collate_fn is None else request.batch_size,
        num_workers=num_workers,
        cores=os.cpu_count() or 1,
        speeds=_speeds(race, mean),
        sources=tuple(
            _source(name, first, warm, waiting if num_workers else None) for name in names if first.samples[name]
        ),
        shards=first.slowest(),
        busy=waiting.busy / waiting.seconds if num_workers else None,
        receiving=waiting.busy / waiting.counts.total() if num_workers else None,
        is_remote=is_remote,
        in_blocks=not (staged or is_remote) and request.handler is None and request.collate_fn is columns,
        missed=tuple(name for name in names if not first.samples[name]),
        refused=race.refused,
    )


def _speeds(race: _Race, mean: Mapping[str, float]) -> tuple[Speed, ...]:
    speeds: list[Speed] = []
    plain: dict[Group, float] = {}
    for contender in race.contenders:
        runs = race.runs.get((contender.group, contender.name), [])
        rounds = tuple(sum(counts.values()) / seconds for counts, seconds in runs[1:])
        if not rounds or not all(rounds):
            continue
        median = statistics.median(rounds)
        if contender.is_plain:
            plain[contender.group] = median
        counts, seconds = runs[0]
        total = sum(counts.values())
        speeds.append(
            Speed(
                group=contender.group,
                name=contender.name,
                is_plain=contender.is_plain,
                rounds=rounds,
                first=None if contender.group == "workers" else total / seconds,
                bytes=sum(mean[name] * count for name, count in counts.items()) / total,
                ratio=median / plain[contender.group] if contender.group in plain else None,
            )
        )
    return tuple(speeds)


def _source(name: str, first: Profile, warm: Profile, waiting: Waiting | None) -> SourceTime:
    parts = [part for part in warm.parts if part.source == name]
    return SourceTime(
        name=name,
        samples=first.samples[name],
        bytes=first.bytes_of(name),
        parts=tuple(
            PartTime(
                kind=part.kind,
                name=part.name,
                seconds=warm.watch.seconds.get(part, 0.0) / warm.samples[name],
                first=first.watch.seconds.get(part, 0.0) / first.samples[name],
            )
            for part in parts
        ),
        waited=None if waiting is None else waiting.waited.get(name, 0.0) / max(1, waiting.counts[name]),
    )
