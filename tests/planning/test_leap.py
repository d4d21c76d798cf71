"""Does leaping over many epochs lead where walking them one by one does, and in no time?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from equitar.planning.passes import first_in, leap
from helpers.strategies import drawn


def walked(epochs: int, *, per_pass: int, per_epoch: int, most: int, at: int) -> tuple[int, int]:
    passes = 0
    for _ in range(epochs):
        left = per_pass - at
        if left >= per_epoch:
            at += per_epoch
        else:
            old = max((n for n in range(left + 1) if n == 0 or n >= most <= per_epoch - n), default=0)
            passes, at = passes + 1, per_epoch - old
    return (passes + 1, 0) if at == per_pass else (passes, at)


@drawn(400)
@given(st.data())
def test_a_leap_ends_where_walking_epoch_by_epoch_does(data: st.DataObject) -> None:
    per_epoch = data.draw(st.integers(1, 40))
    per_pass = per_epoch + data.draw(st.integers(0, 80))
    most, at = data.draw(st.integers(1, per_epoch)), data.draw(st.integers(0, per_pass))
    epochs = data.draw(st.integers(0, 300))
    expected = walked(epochs, per_pass=per_pass, per_epoch=per_epoch, most=most, at=at)
    assert leap(epochs, per_pass=per_pass, per_epoch=per_epoch, most=most, at=at) == expected


@drawn(50)
@given(st.integers(1, 10**9), st.integers(1, 10**9), st.integers(1, 50), st.integers(0, 10**15))
def test_leaps_add_up_however_long_they_are(per_epoch: int, more: int, most: int, epochs: int) -> None:
    per_pass, most = per_epoch + more, min(most, per_epoch)
    passes, at = leap(epochs, per_pass=per_pass, per_epoch=per_epoch, most=most, at=0)
    further, then = leap(epochs + 7, per_pass=per_pass, per_epoch=per_epoch, most=most, at=at)
    once = leap(2 * epochs + 7, per_pass=per_pass, per_epoch=per_epoch, most=most, at=0)
    assert once == (passes + further, then)


@drawn(300)
@given(st.integers(0, 90), st.integers(-60, 60), st.integers(1, 60), st.data())
def test_the_first_term_in_a_range_is_that_which_trying_finds(
    step: int, start: int, modulus: int, data: st.DataObject
) -> None:
    low = data.draw(st.integers(0, modulus - 1))
    high = data.draw(st.integers(low, modulus - 1))
    expected = next((n for n in range(modulus) if low <= (start + n * step) % modulus <= high), None)
    assert first_in(step, start, modulus, low, high) == expected
