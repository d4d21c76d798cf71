"""Which kind of plan is wanted? One small value for each, so that everything after it asks for a plan in one way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from equitar.errors import PlanError
from equitar.held import HeldPlan
from equitar.line import Supply
from equitar.plan import Agree, Plan, Short, debiased_plan, mixed_plan
from equitar.shape import Shape, check_integer
from equitar.validation import ExactPlan
from equitar.weights import Changes, Weights


def _check_weights(weights: object) -> None:
    """Raise PlanError for a list that is none of changes: numbers without names are the usual mistake."""
    if isinstance(weights, Sequence) and not all(_is_change(one) for one in weights):
        raise PlanError(
            f"`weights` must map the name of each source to a number, or list pairs (from_step, weights); got {weights!r}"
        )


def _is_change(one: object) -> bool:
    return isinstance(one, Sequence) and len(one) == 2 and isinstance(one[0], int)


class Recipe(Protocol):
    """Makes the plan of an epoch."""

    def plan(self, supplies: Sequence[Supply], shape: Shape) -> Plan:
        """Return the plan of supplies in a shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Debiased:
    """Batches of one source each; see `debiased_plan`."""

    weights: Weights | Changes | None
    steps: int | None
    max_passes: float | None
    fresh: bool
    agree: Agree
    short: Short
    hold: int

    def __post_init__(self) -> None:
        check_integer("hold", self.hold, 1)
        if self.steps is not None:
            check_integer("steps", self.steps, 1)
        _check_weights(self.weights)

    def plan(self, supplies: Sequence[Supply], shape: Shape) -> Plan:
        """Return the plan of supplies in a shape.

        Raises:
            PlanError: If steps are not whole multiples of `hold`, or `debiased_plan` cannot keep the promises.
        """
        weights = self.weights
        if isinstance(weights, Sequence):
            weights = [(self._held(start, "a change of `weights`"), one) for start, one in weights]
        held = debiased_plan(
            supplies,
            replace(_walking(shape, fresh=self.fresh), batch_size=shape.batch_size * self.hold),
            weights=weights,
            steps=None if self.steps is None else self._held(self.steps, "`steps`"),
            max_passes=self.max_passes,
            agree=self.agree,
            short=self.short,
            hold=self.hold,
        )
        return held if self.hold == 1 else HeldPlan(held, shape, self.hold)

    def _held(self, steps: int, what: str) -> int:
        """Return a number of steps as a number of held batches."""
        if steps % self.hold:
            raise PlanError(f"{what} must be a multiple of `hold`, {self.hold}; got {steps}")
        return steps // self.hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """Batches of all sources by share; see `mixed_plan`."""

    weights: Weights | None
    steps: int | None
    max_passes: float | None
    fresh: bool

    def __post_init__(self) -> None:
        if self.steps is not None:
            check_integer("steps", self.steps, 1)
        if isinstance(self.weights, Sequence):
            raise PlanError(
                f"`weights` of `mixed` must map the name of each source to a number; got {self.weights!r}; only `debiased` "
                "changes them at steps"
            )

    def plan(self, supplies: Sequence[Supply], shape: Shape) -> Plan:
        """Return the plan of supplies in a shape."""
        shape = _walking(shape, fresh=self.fresh)
        return mixed_plan(supplies, shape, weights=self.weights, steps=self.steps, max_passes=self.max_passes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """Every sample once, in order; see `ExactPlan`."""

    pad: bool

    def plan(self, supplies: Sequence[Supply], shape: Shape) -> Plan:
        """Return the plan of supplies in a shape."""
        return ExactPlan(supplies, shape, pad=self.pad)


def _walking(shape: Shape, *, fresh: bool) -> Shape:
    """Return a shape whose epochs each start a pass if `fresh`."""
    return replace(shape, walk=replace(shape.walk, fresh=fresh))
