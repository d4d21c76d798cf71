"""How do samples become a batch? As one dict of lists, unless the user has another way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from equitar.errors import StageError


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
                f"one has {odd!r}; choose `fields`, or give `collate` (`collate=list` keeps samples as they are)"
            )
    return {field: [sample[field] for sample in samples] for field in first}
