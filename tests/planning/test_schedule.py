"""Who is drawn at each step, and how often it was before: against counting."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from equitar.planning import schedule
from equitar.planning.quotas import WeightPhase
from equitar.planning.schedule import ShuffledSchedule, SingleSchedule, Turn
from helpers.strategies import drawn


@st.composite
def parts(draw: DrawFn) -> list[WeightPhase]:
    """Draw one to three stretches of one to four sources."""
    sources, result, start = draw(st.integers(1, 4)), [], 0
    for _ in range(draw(st.integers(1, 3))):
        quotas = tuple(draw(st.lists(st.integers(0, 15), min_size=sources, max_size=sources).filter(any)))
        result.append(WeightPhase(start, quotas, (True,) * sources))
        start = result[-1].stop
    return result


@drawn(80)
@given(parts(), st.integers(0, 1 << 60), st.integers(1, 5), st.sampled_from([1, 2, 7, 16, 65_536]))
def test_turns_and_lanes_are_what_counting_gives(
    stretches: list[WeightPhase], key: int, lanes: int, block: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "STEPS_PER_BLOCK", block)
        shuffled = ShuffledSchedule(stretches, key=key, lanes=lanes)
        order = shuffled.sources().tolist()
        assert len(order) == shuffled.num_steps == stretches[-1].stop
        for part in stretches:
            counts = Counter(order[part.start : part.stop])
            assert tuple(counts[source] for source in range(len(part.quotas))) == part.quotas
        seen: Counter[int] = Counter()
        seen_in_lane: Counter[tuple[int, int]] = Counter()
        for step, source in enumerate(order):
            lane = step % lanes
            assert shuffled.turn(step) == Turn(source, seen[source], seen_in_lane[source, lane])
            counted = [seen_in_lane[source, any_lane] for any_lane in range(lanes)]
            assert shuffled.lane_counts(source, seen[source]).tolist() == counted
            seen[source] += 1
            seen_in_lane[source, lane] += 1
        for source in range(len(stretches[0].quotas)):
            total = [seen_in_lane[source, any_lane] for any_lane in range(lanes)]
            assert shuffled.lane_counts(source, seen[source]).tolist() == total


@given(st.integers(1, 60), st.integers(1, 5))
def test_a_single_source_is_drawn_at_every_step(num_steps: int, lanes: int) -> None:
    single, shuffled = (
        SingleSchedule(num_steps, lanes),
        ShuffledSchedule([WeightPhase(0, (num_steps,), (True,))], key=1, lanes=lanes),
    )
    assert single.num_steps == shuffled.num_steps
    for step in range(num_steps):
        assert single.turn(step) == shuffled.turn(step)
        assert single.lane_counts(0, step).tolist() == shuffled.lane_counts(0, step).tolist()


def test_lanes_do_not_change_the_order() -> None:
    part = WeightPhase(0, (20, 30), (True, True))
    first = ShuffledSchedule([part], key=5, lanes=1).sources()
    assert all(np.array_equal(first, ShuffledSchedule([part], key=5, lanes=lanes).sources()) for lanes in (2, 3, 7))
    assert not np.array_equal(first, ShuffledSchedule([part], key=6, lanes=1).sources())


def test_all_orders_of_a_small_epoch_come_about_equally_often() -> None:
    part = WeightPhase(0, (2, 2), (True, True))
    counts = Counter(tuple(ShuffledSchedule([part], key=key * 7919, lanes=1).sources().tolist()) for key in range(6000))
    assert len(counts) == 6
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 30


def test_a_step_of_a_long_epoch_needs_one_block() -> None:
    quotas = (3_000_000, 1_000_000)
    long = ShuffledSchedule([WeightPhase(0, quotas, (True, True))], key=1, lanes=2)
    turn = long.turn(3_999_999)
    assert turn.ordinal == quotas[turn.source] - 1
    assert long.lane_counts(0, quotas[0]).sum() == quotas[0]


def test_a_schedule_is_not_sent_to_other_processes() -> None:
    with pytest.raises(TypeError, match="cannot be pickled: make it from its arguments"):
        pickle.dumps(ShuffledSchedule([WeightPhase(0, (3,), (True,))], key=1, lanes=1))
