"""Which kind of plan is wanted? One small value for each, so that everything after it asks for a plan in one way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from equitar.line import Supply
from equitar.plan import Agree, Plan, Short, debiased_plan, mixed_plan
from equitar.quota import Changes, Weights
from equitar.shape import Shape
from equitar.validation import ExactPlan


class Recipe(Protocol):
    """Makes the plan of an epoch."""

    def plan(self, supplies: Sequence[Supply], shape: Shape) -> Plan:
        """Return the plan of supplies in a shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Debiased:
    """Batches of one source each; see `debiased_plan`."""

    weights: Weights | Changes | None
    steps: int | None
    agree: Agree
    short: Short

    def plan(self, supplies: Sequence[Supply], shape: Shape) -> Plan:
        """Return the plan of supplies in a shape."""
        return debiased_plan(
            supplies, shape, weights=self.weights, steps=self.steps, agree=self.agree, short=self.short
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """Batches of all sources by share; see `mixed_plan`."""

    weights: Weights | None
    steps: int | None

    def plan(self, supplies: Sequence[Supply], shape: Shape) -> Plan:
        """Return the plan of supplies in a shape."""
        return mixed_plan(supplies, shape, weights=self.weights, steps=self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """Every sample once, in order; see `ExactPlan`."""

    pad: bool

    def plan(self, supplies: Sequence[Supply], shape: Shape) -> Plan:
        """Return the plan of supplies in a shape."""
        return ExactPlan(supplies, shape, pad=self.pad)
