"""In which order is a run emitted? In windows: the shuffle buffer as a pure function.

A run of batches is cut into windows. In a window the copies of a sample, kept together, are shuffled with all others and
dealt like cards: the q-th card goes to batch ``q mod batches``. A sample has at most as many copies as the window has
batches, so no two of them meet in one. Then the batches are shuffled, by a key that is the same on all ranks: batch b of a
window is the same step everywhere. The first windows are short and double, so that the first batch does not wait for a full
buffer. Any window is computed alone.

A sample that lies on the cut between the runs of two ranks is dealt last by the one and first by the other. Both deal to
the same steps, and the first few batches of a window are not its last few, so its copies do not meet there either.
"""

from __future__ import annotations

import numpy as np

from equitar.mix64 import Int64, UInt64, draws, permutation


def window_of(batch: int, *, demand: int, smallest: int, largest: int) -> tuple[int, int]:
    """Return the window of a run that holds a batch, as its first batch and the one after its last.

    Windows have from `smallest` to `largest` batches (up to ``largest + smallest - 1`` where nothing else fits); only a
    run that is shorter than `smallest` has a shorter one.

    Args:
        batch: Which batch of the run, in [0, demand).
        demand: Batches of the run.
        smallest: Batches a window needs at least, >= 1.
        largest: Batches of a full window, >= smallest.

    >>> edges = [window_of(batch, demand=18, smallest=2, largest=6) for batch in range(18)]
    >>> sorted(set(edges))
    [(0, 2), (2, 6), (6, 12), (12, 18)]
    """
    start, size = _grown(batch, smallest, largest)
    if start > 0 and demand - start < smallest:  # a tail too short to deal in belongs to the window before it
        start, size = _grown(start - 1, smallest, largest)
    if demand - start - size >= smallest:
        return start, start + size
    last = demand - start
    if last > largest and last >= 2 * smallest:
        middle = start + (last + 1) // 2
        return (start, middle) if batch < middle else (middle, demand)
    return start, demand


def _grown(batch: int, smallest: int, largest: int) -> tuple[int, int]:
    """Return first batch and size of the window that holds a batch of an endless run."""
    start, size = 0, smallest
    while size < largest and start + size <= batch:
        start, size = start + size, min(2 * size, largest)
    if size == largest:
        start += (batch - start) // largest * largest
    return start, size


def deal(
    samples: Int64,
    *,
    shared_before: Int64,
    shared_after: Int64,
    num_batches: int,
    samples_key: int,
    batches_key: int,
) -> Int64:
    """Return which items of a window go to each batch, (num_batches, batch_size).

    Args:
        samples: Which sample each item is a copy of, (num_batches x batch_size,).
        shared_before: Samples that the rank before has copies of too: dealt first.
        shared_after: Samples that the rank after has copies of too: dealt last.
        num_batches: Batches of the window.
        samples_key: Key of the order of the samples.
        batches_key: Key of the order of the batches, the same on all ranks.
    """
    hashes: UInt64 = draws(samples_key, samples) >> np.uint64(1)
    if len(shared_after):
        hashes[np.isin(samples, shared_after)] = np.uint64(1 << 63)
    if len(shared_before):
        hashes[np.isin(samples, shared_before)] = 0
    order = np.lexsort((samples, hashes))
    dealt: Int64 = order.reshape(-1, num_batches)[:, permutation(batches_key, num_batches)].T
    return dealt


def round_by_round(positions: Int64, *, length: int, rounds: int) -> Int64:
    """Return where a run's positions lie on its line when it is gone through in rounds, (n,).

    Copies of a sample lie side by side on a line. Taking every `rounds`-th copy, then those after them, and so on, goes
    through all samples once before the first comes back.

    Args:
        positions: Positions in emission order, in [0, length), (n,).
        length: Copies of the run.
        rounds: Number of rounds, >= 1.

    >>> round_by_round(np.arange(7), length=7, rounds=3).tolist()
    [0, 3, 6, 1, 4, 2, 5]
    """
    if rounds == 1:
        return positions
    each, longer = divmod(length, rounds)
    in_longer = positions < longer * (each + 1)
    rest = positions - longer * (each + 1)
    which = np.where(in_longer, positions // (each + 1), longer + rest // max(1, each))
    within = np.where(in_longer, positions % (each + 1), rest % max(1, each))
    result: Int64 = which + within * rounds
    return result
