"""What of a user's arguments can be refused at once, before a sidecar is read and a worker starts?"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from equitar.errors import PlanError, SourceError
from equitar.repeat import RepeatFactor
from equitar.sources import Source
from equitar.weights import Changes, Passes, Weights, check_names

Function = TypeVar("Function", bound=Callable[..., Any])


def listed_sources(sources: Source | Iterable[Source]) -> tuple[Source, ...]:
    """Return the sources of an argument that takes one or many, in its order.

    Raises:
        SourceError: If it holds anything else, or two of one name.
    """
    if isinstance(sources, str | Mapping) or not isinstance(sources, Source | Iterable):
        raise SourceError(f"`sources` must be a list of equitar.Source; got {sources!r:.80}")
    listed = (sources,) if isinstance(sources, Source) else tuple(sources)
    for one in listed:
        if not isinstance(one, Source):
            raise SourceError(f"`sources` must be a list of equitar.Source; got {one!r:.80} in it")
    names = [one.name for one in listed]
    twice = next((name for name in sorted(names) if names.count(name) > 1), None)
    if twice is not None:
        raise SourceError(
            f"names of sources must be unique; two are called {twice!r}; list all URLs of a source in one"
        )
    return listed


def check_number(name: str, value: object) -> None:
    """Raise PlanError if an argument is no finite number above zero."""
    if not isinstance(value, float | int) or not 0 < value < math.inf:
        raise PlanError(f"`{name}` must be a finite number > 0; got {value!r}")


def asked_factor(repeat: float | RepeatFactor | Function | None) -> RepeatFactor | Function | None:
    """Return how samples are repeated, a threshold being short for its `RepeatFactor`.

    Raises:
        PlanError: If it is none of these, or no threshold.
    """
    if repeat is None or isinstance(repeat, RepeatFactor) or callable(repeat):
        return repeat
    if not _is_threshold(repeat):
        wanted = "a threshold in [0, 1], a RepeatFactor or a function of a sidecar"
        mend = "; write equitar.RepeatFactor('median')" if str(repeat) == "median" else ""
        raise PlanError(f"`repeat` must be {wanted}; got {repeat!r:.80}{mend}")
    return RepeatFactor(repeat)


def _is_threshold(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and 0 <= value <= 1


def check_shares(weights: Weights | Changes | None, names: Collection[str], *, some: bool) -> None:
    """Raise PlanError if weights that go by name are not of these sources; `some` need not have any."""
    parts = [one for _, one in weights] if isinstance(weights, Sequence) else [weights]
    for part in parts:
        by_name = part.passes if isinstance(part, Passes) else part
        if isinstance(by_name, Mapping):
            check_names(by_name, names, "passes" if isinstance(part, Passes) else "weights", names if some else ())
