"""What every stage must do, whatever it is for. A stage is put to it as a `Case`."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """A stage and something to feed it.

    Attributes:
        stage: The stage.
        samples: Makes its input anew.
        ahead: How many samples it may take before it gives one.
        compared: What of its output says that two outputs are equal.
    """

    stage: Callable[[Iterable[Any]], Iterable[Any]]
    samples: Callable[[], list[Any]]
    ahead: int
    compared: Callable[[Any], Any]

    def output(self, stage: Any = None, samples: Iterable[Any] | None = None) -> list[Any]:
        """Return what comes out, marks of ends of shards apart."""
        given = (stage or self.stage)(self.samples() if samples is None else samples)
        return [self.compared(item) for item in given if item != {}]


class Noted:
    """An iterator that notes how much was taken from it."""

    def __init__(self, samples: Sequence[Any]) -> None:
        self.taken = 0
        self._samples = iter(samples)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        sample = next(self._samples)
        self.taken += 1
        return sample


def check_gives_something(case: Case) -> None:
    assert case.output()


def check_pickles_before_a_pass(case: Case) -> None:
    assert case.output(pickle.loads(pickle.dumps(case.stage))) == case.output()


def check_pickles_after_a_pass(case: Case) -> None:
    before = case.output()
    assert case.output(pickle.loads(pickle.dumps(case.stage))) == before


def check_pickles_in_the_middle_of_a_pass(case: Case) -> None:
    stream = iter(case.stage(case.samples()))
    next(stream)
    assert case.output(pickle.loads(pickle.dumps(case.stage))) == case.output()


def check_takes_nothing_before_it_is_asked(case: Case) -> None:
    samples = Noted(case.samples())
    case.stage(samples)
    assert samples.taken == 0


def check_takes_no_more_than_it_needs(case: Case) -> None:
    samples = Noted(case.samples())
    next(iter(case.stage(samples)))
    assert samples.taken <= case.ahead


def check_gives_the_same_when_called_again(case: Case) -> None:
    assert case.output() == case.output()


def check_does_not_touch_its_input(case: Case) -> None:
    samples = [sample for sample in case.samples() if isinstance(sample, dict)]
    before = copy.deepcopy(samples)
    given = samples or case.samples()
    list(case.stage(given))
    assert samples == before


def check_accepts_marks_of_ends_of_shards(case: Case) -> None:
    samples = case.samples()
    marked = [{}, *samples[:2], {}, {}, *samples[2:], {}]
    assert case.output(samples=marked) == case.output(samples=samples)


def check_ends_once(case: Case) -> None:
    stream = iter(case.stage(case.samples()))
    assert len(list(stream)) > 0
    assert list(stream) == []


def check_ends_at_once_on_nothing(case: Case) -> None:
    assert case.output(samples=[]) == []


CONTRACT = (
    check_gives_something,
    check_pickles_before_a_pass,
    check_pickles_after_a_pass,
    check_pickles_in_the_middle_of_a_pass,
    check_takes_nothing_before_it_is_asked,
    check_takes_no_more_than_it_needs,
    check_gives_the_same_when_called_again,
    check_does_not_touch_its_input,
    check_accepts_marks_of_ends_of_shards,
    check_ends_once,
    check_ends_at_once_on_nothing,
)
