"""Making a batch of samples: `columns`, and `with_partners` for mosaic, mixup and copy-paste.

Partners are taken from the batch itself: nothing is read for them, they have the source of the batch if it has one, and no two of
them are copies of one sample (except for the padding of `exact`, which is for validation). They lie on a ring, in an order drawn
from the keys of the batch:

    ring     c  a  d  b           each sample is combined with the `count` that follow it,
    of two   a:d,b  b:c,a  ...    so each is a partner `count` times, and all appear equally often

The plan makes a batch a function of (seed, epoch, step), and so are partners: they are equal after resuming, and in any worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from equitar.arrays import Int64
from equitar.checks import check_integer
from equitar.errors import StageError
from equitar.rng import Purpose, fold, permutation, text_id
from equitar.sources import Sample


def columns(samples: Sequence[Any]) -> Any:
    """Return samples as one dict of lists; tuples as a tuple of lists, and anything else as a list.

    Raises:
        StageError: If the samples have different fields.

    >>> columns([{"__key__": "a", "cls": 1}, {"__key__": "b", "cls": 0}])
    {'__key__': ['a', 'b'], 'cls': [1, 0]}
    """
    if not samples:  # in validation, stages may drop all of a batch
        return {"__key__": []}
    if not isinstance(samples[0], dict):
        is_tuples = isinstance(samples[0], tuple)
        return tuple(list(column) for column in zip(*samples, strict=True)) if is_tuples else list(samples)
    first = samples[0]
    for sample in samples:
        if sample.keys() != first.keys():
            odd = min(sample.keys() ^ first.keys())
            raise StageError(
                f"samples of a batch must have the same fields but of {first.get('__key__')!r} and {sample.get('__key__')!r} only "
                f"one has {odd!r}; choose `fields`, or give `collate_fn` (`collate_fn=list` keeps samples as they are)"
            )
    return {field: [sample[field] for sample in samples] for field in first}


def partners(key: int, length: int, count: int) -> Int64:
    """Return the places of the partners of each place of a batch, (length, count).

    Args:
        key: A key from `fold`.
        length: Samples of the batch.
        count: Partners of each, in [0, length).

    >>> partners(1, 4, 2).shape, np.bincount(partners(1, 4, 2).ravel()).tolist()
    ((4, 2), [2, 2, 2, 2])
    """
    ring = permutation(key, length)
    places = np.empty((length, count), np.int64)
    places[ring] = np.stack([np.roll(ring, -after) for after in range(1, count + 1)], 1) if count else 0
    return places


@dataclass(frozen=True, slots=True)
class _WithPartners:
    count: int
    combine: Callable[[Sample, list[Sample], np.random.Generator], Any]
    collate_fn: Callable[[list[Any]], Any]
    seed: int

    def __call__(self, samples: list[Sample]) -> Any:
        if self.count >= max(1, len(samples)):
            raise StageError(
                f"a batch must have more samples than partners; got {len(samples)} for {self.count} partners"
            )
        key = fold(self.seed, Purpose.PARTNERS, *(_id_of(sample) for sample in samples))
        places = partners(key, len(samples), self.count).tolist()
        return self.collate_fn(
            [
                self.combine(sample, [samples[partner] for partner in row], np.random.default_rng(fold(key, place)))
                for place, (sample, row) in enumerate(zip(samples, places, strict=True))
            ]
        )


def with_partners(
    count: int,
    combine: Callable[[Sample, list[Sample], np.random.Generator], Any],
    *,
    collate_fn: Callable[[list[Any]], Any] = columns,
    seed: int = 0,
) -> Callable[[list[Sample]], Any]:
    """Return a `collate_fn` that combines each sample of a batch with others of the batch, as mosaic, mixup and copy-paste do.

    Each sample is a partner exactly `count` times, and never of itself. Partners, and what the generator draws, are the same after
    resuming with as many ranks, and for any number of workers; they change from epoch to epoch as batches do.

    Args:
        count: Partners of each sample, >= 0, and fewer than the samples of a batch. With 0, `combine` is an augmentation whose
            draws are the same after resuming.
        combine: Makes a sample of a sample, its partners and a generator for random draws. It must not change its arguments:
            they are partners of others, too.
        collate_fn: Makes a batch of the list of combined samples.
        seed: Seed of the draws, >= 0.

    Raises:
        PlanError: If `count` or `seed` is not an integer >= 0.
        StageError: For a batch that is too small, or samples without ``__key__``.

    >>> def named(sample, partners, rng):
    ...     return {"__key__": sample["__key__"], "with": [partner["__key__"] for partner in partners]}
    >>> with_partners(1, named)([{"__key__": "a"}, {"__key__": "b"}])
    {'__key__': ['a', 'b'], 'with': [['b'], ['a']]}
    """
    count, seed = check_integer("count", count, 0), check_integer("seed", seed, 0)
    return _WithPartners(count, combine, collate_fn, seed)


def _id_of(sample: Any) -> int:
    if not isinstance(sample, dict) or "__key__" not in sample:
        raise StageError(f"samples must have `__key__` to get partners; got {sample!r:.80}; keep it in `stages`")
    return fold(text_id(sample["__key__"]), sample.get("__copy__", 0))
