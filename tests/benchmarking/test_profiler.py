"""A stopwatch loses no moment, and counts none twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from equitar.benchmarking.profiler import OWN, REST, Stopwatch, TimedPart

PARTS = [
    OWN,
    REST,
    TimedPart(None, "collate"),
    TimedPart("a", "read"),
    TimedPart("b", "read"),
    TimedPart("a", "stage", "decode"),
]


class SharedPosition:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.sampled_from(PARTS), st.integers(0, 9))))
def test_the_parts_add_up_to_all_the_time(switches: list[tuple[TimedPart, int]]) -> None:
    clock = SharedPosition()
    watch = Stopwatch(clock)
    expected: dict[TimedPart, float] = {}
    for part, seconds in switches:
        watch.switch(part)
        clock.now += seconds
        expected[part] = expected.get(part, 0.0) + seconds
    watch.switch(OWN)
    assert {part: seconds for part, seconds in watch.seconds.items() if seconds} == {
        part: seconds for part, seconds in expected.items() if seconds
    }
    assert sum(watch.seconds.values()) == clock.now


def test_what_no_source_was_charged_with_is_shared_out_by_samples() -> None:
    clock = SharedPosition()
    watch = Stopwatch(clock)
    watch.switch(REST)
    clock.now += 8
    watch.switch(TimedPart("a", "read"))
    clock.now += 5
    watch.switch(OWN)
    watch.settle({})  # an empty batch: the next one has it
    watch.settle({"a": 3, "b": 1})
    assert watch.seconds == {
        OWN: 0.0,
        TimedPart("a", "read"): 5.0,
        TimedPart("a", "rest"): 6.0,
        TimedPart("b", "rest"): 2.0,
    }
