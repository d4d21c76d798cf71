"""A stopwatch loses no moment, and counts none twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from equitar.benchmarking.profiler import OWN, REST, Part, Stopwatch

PARTS = [OWN, REST, Part(None, "collate"), Part("a", "read"), Part("b", "read"), Part("a", "stage", "decode")]


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.sampled_from(PARTS), st.integers(0, 9))))
def test_the_parts_add_up_to_all_the_time(switches: list[tuple[Part, int]]) -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    expected: dict[Part, float] = {}
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
    clock = Clock()
    watch = Stopwatch(clock)
    watch.switch(REST)
    clock.now += 8
    watch.switch(Part("a", "read"))
    clock.now += 5
    watch.switch(OWN)
    watch.settle({})  # an empty batch: the next one has it
    watch.settle({"a": 3, "b": 1})
    assert watch.seconds == {OWN: 0.0, Part("a", "read"): 5.0, Part("a", "rest"): 6.0, Part("b", "rest"): 2.0}
