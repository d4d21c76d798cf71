"""What a benchmark says in words follows from its numbers: each rule, and the numbers at which it does not hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from equitar.benchmarking.result import Bench, Group, PartTime, ShardTime, SourceTime, Speed
from equitar.benchmarking.text import bench_text, conclusions


def source(name: str = "a", *, samples: int = 100, first: float = 0.0, **ms: float) -> SourceTime:
    """Return a source whose samples cost so many milliseconds in each part; what is no other part is a stage."""
    known = ("open", "read", "collate", "rest")
    parts = [
        PartTime(
            kind=part if part in known else "stage",
            name="" if part in known else part,
            seconds=cost / 1e3,
            first=(first if part == "read" and first else cost) / 1e3,
        )
        for part, cost in ms.items()
    ]
    return SourceTime(name=name, samples=samples, bytes=1000 * samples, parts=tuple(parts), waited=None)


def speed(group: Group, name: str, rate: float, ratio: float | None) -> Speed:
    return Speed(
        group=group, name=name, is_plain=name == "webdataset", rounds=(rate,), first=None, bytes=1e3, ratio=ratio
    )


def shards(*ms: float) -> tuple[ShardTime, ...]:
    outcome = [
        ShardTime(source="a", path=f"{number}.tar", samples=10, bytes=10_000, seconds=cost / 100)
        for number, cost in enumerate(ms)
    ]
    return tuple(sorted(outcome, key=lambda shard: -shard.seconds))


def bench(
    *sources: SourceTime,
    busy: float | None = None,
    receiving: float | None = None,
    alone: float = 1000,
    through: float = 1900,
    cores: int = 8,
    of_shards: Sequence[ShardTime] = (),
) -> Bench:
    speeds = [speed("batches", "webdataset", alone / 2, 1.0), speed("batches", "equitar", alone, 2.0)]
    if busy is not None:
        speeds += [speed("workers", "webdataset", through / 3, 1.0), speed("workers", "equitar, slots", through, 3.0)]
    return Bench(
        samples=100,
        batch_size=10,
        num_workers=0 if busy is None else 2,
        cores=cores,
        speeds=tuple(speeds),
        sources=sources or (source(read=0.5, decode=0.5),),
        shards=tuple(of_shards),
        busy=busy,
        receiving=receiving,
        is_remote=False,
        in_blocks=False,
        missed=(),
        refused=None,
    )


def concluded(outcome: Bench) -> str:
    return "\n".join(conclusions(outcome))


def test_the_largest_part_is_named_with_its_share_and_reading_if_it_does_not_matter() -> None:
    outcome = concluded(bench(source(read=0.1, decode=9.1, rest=0.8)))
    assert "`decode` takes 91% of the time of a sample (9.1 ms of 10 ms); reading does not matter (1%)" in outcome


def test_the_second_part_is_named_where_reading_matters() -> None:
    assert "reading takes 60% of the time of a sample (6 ms of 10 ms), `decode` 40%" in concluded(
        bench(source(read=6, decode=4))
    )


def test_of_remote_shards_it_is_said_that_each_read_waits() -> None:
    outcome = replace(bench(source(read=9, decode=1)), is_remote=True)
    assert "reading takes 90% of the time of a sample (9 ms of 10 ms), as each read waits for its answer there" in (
        concluded(outcome)
    )


def test_parts_are_weighed_by_the_samples_of_their_sources() -> None:
    outcome = concluded(bench(source("a", samples=300, read=1, decode=1), source("b", samples=100, read=1, decode=5)))
    assert "`decode` takes 67% of the time of a sample (2 ms of 3 ms)" in outcome


def test_where_the_main_process_waits_workers_help_up_to_what_it_can_receive() -> None:
    outcome = bench(busy=0.1, receiving=0.0002)  # 1 ms to make, 0.2 ms to receive
    assert (
        "Workers set the limit: with 2 workers the main process waits 90% of the time; more help, up to about 5."
        in (concluded(outcome))
    )


def test_workers_are_bounded_by_cores() -> None:
    assert "more help, up to about 4." in concluded(bench(busy=0.1, receiving=0.0002, cores=4))
    assert "up to about 5, on a machine with more cores than the 2 here" in concluded(
        bench(busy=0.1, receiving=0.0002, cores=2)
    )


def test_where_the_main_process_is_busy_more_workers_do_not_help() -> None:
    outcome = concluded(bench(busy=0.8, receiving=0.0004))
    assert "Transfer from workers is the limit: the main process spends 80% of the time receiving" in outcome
    assert "more workers do not help" in outcome


def test_workers_that_are_slower_than_one_process_are_told_of() -> None:
    outcome = concluded(bench(busy=0.3, receiving=0.0004, alone=1000, through=500))
    assert "One process alone is 2.0 times as fast as 2 workers: the cost is passing batches on" in outcome
    starved = concluded(bench(busy=0.01, receiving=0.00001, alone=1000, through=500, cores=1))
    assert "they do not get the cores they need (this machine has 1)" in starved


def test_nothing_is_said_of_workers_where_there_are_none() -> None:
    assert "worker" not in concluded(bench())


@pytest.mark.parametrize(("first", "is_told"), [(4.0, True), (0.9, False), (0.0, False)])
def test_a_slow_first_reading_is_told(first: float, is_told: bool) -> None:
    outcome = concluded(bench(source(read=0.5, decode=0.5, first=first)))
    assert ("From disk, in the first round, reading takes 4 ms a sample, 8.0 times as long" in outcome) is is_told


def test_a_source_of_slow_samples_is_named() -> None:
    outcome = bench(source("a", read=1), source("b", read=1, decode=3))
    assert "A sample of b takes 4.0 times as long as one of a (4 ms)" in concluded(outcome)
    assert "A sample of" not in concluded(bench(source("a", read=1), source("b", read=1, decode=1)))


def test_a_slow_shard_is_named_and_noise_is_not() -> None:
    outcome = concluded(bench(of_shards=shards(1, 1, 20, 1, 8)))
    assert "Shard 2.tar of a (and 1 more) takes 20 ms to read a sample, half of the 5 shards at most 1 ms" in outcome
    assert "Shard" not in concluded(bench(of_shards=shards(0.01, 0.01, 0.2, 0.01)))  # 0.2 ms is no slow disk
    assert "Shard" not in concluded(bench(of_shards=shards(1, 20)))  # which of two is the odd one?


def test_the_gain_is_that_of_the_way_one_would_train() -> None:
    assert "2 times as many samples a second in one process" in concluded(bench())
    assert "3 times as many samples a second through 2 workers" in concluded(bench(busy=0.1, receiving=0.001))


def test_columns_come_in_the_order_in_which_a_sample_meets_the_parts() -> None:
    parts = {"open": 1, "read": 1, "mine": 1, "decode": 1, "collate": 1, "rest": 1}
    without = {name: cost for name, cost in parts.items() if name != "mine"}
    header = next(
        line
        for line in bench_text(bench(source("a", **without), source("b", **parts))).splitlines()
        if line.startswith("ms a sample")
    )
    assert header.split()[3:] == ["samples", "MB", *parts, "all"]


def test_what_webdataset_refused_and_what_was_missed_is_shown() -> None:
    outcome = replace(bench(), refused="ValueError: no", missed=("sbu",), in_blocks=True)
    text = bench_text(outcome)
    assert "webdataset cannot read these shards: ValueError: no" in text
    assert "not in these samples: sbu" in text
    assert "in blocks" in text
