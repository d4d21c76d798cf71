"""Where does a source that goes on along its passes stand after very many epochs? Without walking there.

All is counted in steps of the source. An epoch that crosses into the next pass leaves steps of the old one behind only if its
cut would lie too near to its start or its end. Until then the source goes on without a gap, so it stands where its steps say;
and the next cut that lies too near is the first term of an arithmetic progression, modulo the steps of an epoch, that falls
into a range. After such a cut the source stands at one of two places, so before long all repeats itself.
"""

from __future__ import annotations


def leap(epochs: int, *, per_pass: int, per_epoch: int, most: int, at: int) -> tuple[int, int]:
    """Return passes gone by, and steps of the present one gone through, after so many epochs.

    Args:
        epochs: How many epochs, >= 0.
        per_pass: Steps that a pass gives, >= `per_epoch`.
        per_epoch: Steps of an epoch, >= `most`.
        most: Steps that the part of an epoch in one pass has at least, if it has any, >= 1.
        at: Steps of the first pass gone through before, in [0, per_pass].

    >>> [leap(epochs, per_pass=10, per_epoch=4, most=2, at=0) for epochs in range(6)]
    [(0, 0), (0, 4), (0, 8), (1, 2), (1, 6), (2, 0)]
    >>> leap(10**12, per_pass=1_000_003, per_epoch=1_000, most=3, at=0)
    (999997005, 996991)
    """
    passes = now = 0
    met: dict[int, tuple[int, int]] = {}  # by place after a cut that left steps behind: epoch, passes
    while True:
        ends = _ends_until_loss(per_pass, per_epoch, most, at)
        crossing, left = divmod((ends or 0) * per_pass - at, per_epoch)
        if ends is None or now + crossing >= epochs:
            further, at = divmod(at + (epochs - now) * per_epoch, per_pass)
            return passes + further, at
        left = min(left, per_epoch - most)
        at = per_epoch - (left if left >= most else 0)
        now, passes = now + crossing + 1, passes + ends
        if at in met:
            epochs_each, passes_each = now - met[at][0], passes - met[at][1]
            rounds = (epochs - now) // epochs_each
            now, passes = now + rounds * epochs_each, passes + rounds * passes_each
            met.clear()
        else:
            met[at] = now, passes


def _ends_until_loss(per_pass: int, per_epoch: int, most: int, at: int) -> int | None:
    """Return the how-manieth end of a pass from here is the first one that an epoch cannot cross without loss."""
    if most == 1:
        return None
    # Steps that the crossing epoch has before the end: none, or from `most` to `per_epoch - most`, are without loss.
    near_start, near_end = (1, most - 1), (per_epoch - most + 1, per_epoch - 1)
    ranges = (near_start, near_end) if 2 * most <= per_epoch else ((1, per_epoch - 1),)
    found = [first_in(per_pass, per_pass - at, per_epoch, *one) for one in ranges if one[0] <= one[1]]
    return min((one + 1 for one in found if one is not None), default=None)


def first_in(step: int, start: int, modulus: int, low: int, high: int) -> int | None:
    """Return the least n >= 0 for which ``(start + n * step) % modulus`` lies in [low, high], None if none does.

    Args:
        step: Difference of the progression, >= 0.
        start: Its first term.
        modulus: What it is taken by, > 0.
        low: Least value of the range, in [0, modulus).
        high: Largest, in [low, modulus).

    >>> first_in(7, 3, 10, 5, 6)  # 3, 0, 7, 4, 1, 8, 5
    6
    """
    if low <= start % modulus <= high:
        return 0
    first = (low - start) % modulus
    return _first_multiple_in(step, modulus, first, first + high - low)


def _first_multiple_in(step: int, modulus: int, low: int, high: int) -> int | None:
    """Return the least n for which ``n * step % modulus`` lies in [low, high], where 0 < low <= high < modulus.

    As in Euclid's algorithm: no multiple of the step lies there as it is, so one must after so many turns of the modulus, and
    how many is the same question about smaller numbers.
    """
    step %= modulus
    if step == 0:
        return None
    if -(-low // step) * step <= high:
        return -(-low // step)
    turns = _first_multiple_in(modulus, step, -high % step, -low % step)
    return None if turns is None else -(-(low + turns * modulus) // step)
