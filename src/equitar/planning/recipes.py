"""What is emitted when, and by whom? Start reading here.

A plan answers that before a single tar is opened, from a few integers for each shard:

    repeat factors ─> quotas ─> schedule ─> segments ─> lanes and runs ─> windows on lines
    (repeat)          (quota)   (schedule)  (passes)    (assign, laid)    (track, window, line)

    quota      how many batches each source gives in an epoch
    schedule   which source is drawn at each step: the same on every rank
    segment    the part of an epoch that lies in one pass of a source
    line       all copies of a source in one pass, on a circle
    run        what one rank reads in one lane: consecutive copies of the line
    window     the batches of a run that are shuffled together

`debiased_plan` gives batches of one source, `mixed_plan` batches of all sources by share, and `validation.ExactPlan` every sample
once and in order. A plan is a pure function of its arguments. It answers for any step alone: resuming, or reading with other
ranks and workers than it was made for, is a matter of asking for other steps and slots. A *slot* is a place in a global batch;
rank r of R reads slots ``[r * G / R, (r + 1) * G / R)`` of the G of each step.

Which kind of plan is wanted? One small value for each, so that everything after it asks for a plan in one way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import le
from typing import Protocol

from equitar.checks import check_integer
from equitar.errors import PlanError
from equitar.planning.exact_plan import ExactPlan
from equitar.planning.feasibility import check_debiased, check_mixed, check_not_empty, checked_supplies
from equitar.planning.plan import Agree, Plan, PlanSpec, Short
from equitar.planning.quotas import QuotaSpec, WeightPhase, copies_of_passes, largest_remainder, most_allowed, stretches
from equitar.planning.repeat_factors import ONE
from equitar.planning.step_plan import HeldPlan, Quotas, StepPlan
from equitar.planning.supply import Supply
from equitar.planning.weights import Changes, Passes, Weights, ZeroVL, canonical, canonical_changes
from equitar.rng import fold


def debiased_plan(
    supplies: Sequence[Supply],
    shape: PlanSpec,
    *,
    weights: Weights | Changes | None,
    steps: int | None,
    max_passes: float | None,
    same_source_across: Agree,
    small_sources: Short,
    accumulation_steps: int = 1,
) -> StepPlan:
    """Return the plan of batches that hold one source each.

    Args:
        supplies: The sources; their order does not matter.
        shape: The numbers that every plan needs.
        weights: Shares of the steps, or a list of (from_step, shares); None is by size.
        steps: Steps of an epoch; None is one pass in all.
        max_passes: How often an epoch may go through a source; None is without limit.
        same_source_across: Whether all ranks draw the same source at a step (`world`), or each rank its own (`rank`).
        small_sources: What to do with sources that cannot give one global batch a pass: `error`, or `leave_out`.
        accumulation_steps: Steps in which each batch is handed out; errors speak of the `batch_size` of such a step.

    Raises:
        PlanError: If the promises cannot be kept; it says with which `batch_size` they can.
    """
    supplies, weights = checked_supplies(supplies, steps), canonical_changes(weights)
    shape = shape_for(weights, supplies, shape)
    if small_sources == "error":
        check_not_empty(supplies, weights)

    def at(global_batch: int) -> tuple[list[Supply], list[WeightPhase]]:
        left_out = [one.name for one in supplies if one.copies < global_batch and small_sources == "leave_out"]
        kept = [one for one in supplies if one.name not in left_out]
        sharing = QuotaSpec(weights=weights, steps=steps, left_out=left_out, max_passes=max_passes)
        key = fold(shape.seed, shape.epoch)
        return kept, stretches(kept, sharing, global_batch=global_batch, key=key) if kept else []

    by_size = isinstance(weights, ZeroVL) or (weights is None and steps is None)
    check_debiased(shape, at, by_size=by_size, accumulation_steps=accumulation_steps)
    kept, parts = at(shape.global_batch)
    quotas = Quotas(
        parts=parts,
        copies=[sum(column) * shape.global_batch for column in zip(*(part.quotas for part in parts), strict=True)],
        in_pass=[supply.copies // shape.global_batch * shape.global_batch for supply in kept],
        num_worlds=shape.world_size if same_source_across == "rank" else 1,
    )
    return StepPlan(kept, shape, quotas, f"debiased {weights!r} {steps} {max_passes} {same_source_across}")


def shape_for(weights: Weights | Changes | None, supplies: Sequence[Supply], shape: PlanSpec) -> PlanSpec:
    """Return the shape for weights: quotas that are drawn differ from epoch to epoch, so each starts its passes."""
    if not isinstance(weights, ZeroVL):
        return shape
    repeated = [supply.name for supply in supplies if supply.largest > ONE]
    if repeated:
        raise PlanError(f"`weights=ZeroVL()` is without repeats; source {repeated[0]!r} has some")
    return replace(shape, walk=replace(shape.walk, restart_each_epoch=True))


def mixed_plan(
    supplies: Sequence[Supply],
    shape: PlanSpec,
    *,
    weights: Weights | None,
    steps: int | None,
    max_passes: float | None,
) -> StepPlan:
    """Return the plan of batches that hold all sources by share.

    Args:
        supplies: The sources; their order does not matter.
        shape: The numbers that every plan needs.
        weights: Shares of the samples; None is by size.
        steps: Steps of an epoch; None is one pass in all.
        max_passes: How often an epoch may go through a source; None is without limit.

    Raises:
        PlanError: If the promises cannot be kept; it says with which `batch_size` they can.
    """
    supplies, weights = checked_supplies(supplies, steps), canonical(weights)
    shape = shape_for(weights, supplies, shape)
    check_not_empty(supplies, weights)
    if weights is None and steps is None:  # an epoch is a pass, apart from less than a global batch in all
        shape = replace(shape, walk=replace(shape.walk, restart_each_epoch=True))
    in_pass = [supply.copies for supply in supplies]
    # Copies of an epoch without `steps`; whole ones, as no share may be more than its source has.
    asked = in_pass if not isinstance(weights, Passes) else copies_of_passes(supplies, weights)

    def quota_at(global_batch: int) -> list[int]:
        total = (sum(asked) // global_batch if steps is None else steps) * global_batch
        if not total or weights is None or (isinstance(weights, Passes) and steps is None):
            by_copies = [Fraction(one) for one in asked]
            quotas = largest_remainder(by_copies, total) if any(by_copies) else [0] * len(supplies)
            most = quotas if max_passes is None else most_allowed(supplies, max_passes, 1)
            if not total or weights is None or all(map(le, quotas, most)):
                return quotas
        sharing = QuotaSpec(weights=weights, steps=total, left_out=(), max_passes=max_passes)
        return list(stretches(supplies, sharing, global_batch=1, key=fold(shape.seed, shape.epoch))[0].quotas)

    is_drawn = isinstance(weights, ZeroVL)
    check_mixed(supplies, shape, quota_at, is_drawn=is_drawn)
    quotas = Quotas(parts=None, copies=quota_at(shape.global_batch), in_pass=in_pass, num_worlds=1)
    return StepPlan(supplies, shape, quotas, f"mixed {weights!r} {steps} {max_passes}")


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

    def plan(self, supplies: Sequence[Supply], shape: PlanSpec) -> Plan:
        """Return the plan of supplies in a shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Debiased:
    """Batches of one source each; see `debiased_plan`."""

    weights: Weights | Changes | None
    steps: int | None
    max_passes: float | None
    restart_each_epoch: bool
    same_source_across: Agree
    small_sources: Short
    accumulation_steps: int

    def __post_init__(self) -> None:
        check_integer("accumulation_steps", self.accumulation_steps, 1)
        if self.steps is not None:
            check_integer("steps", self.steps, 1)
        _check_weights(self.weights)

    def plan(self, supplies: Sequence[Supply], shape: PlanSpec) -> Plan:
        """Return the plan of supplies in a shape.

        Raises:
            PlanError: If steps are not whole multiples of `accumulation_steps`, or `debiased_plan` cannot keep the promises.
        """
        weights = self.weights
        if isinstance(weights, Sequence):
            weights = [(self._held(start, "a change of `weights`"), one) for start, one in weights]
        held = debiased_plan(
            supplies,
            replace(
                _walking(shape, restart_each_epoch=self.restart_each_epoch),
                batch_size=shape.batch_size * self.accumulation_steps,
            ),
            weights=weights,
            steps=None if self.steps is None else self._held(self.steps, "`steps`"),
            max_passes=self.max_passes,
            same_source_across=self.same_source_across,
            small_sources=self.small_sources,
            accumulation_steps=self.accumulation_steps,
        )
        return held if self.accumulation_steps == 1 else HeldPlan(held, shape, self.accumulation_steps)

    def _held(self, steps: int, what: str) -> int:
        """Return a number of steps as a number of held batches."""
        if steps % self.accumulation_steps:
            raise PlanError(
                f"{what} must be a multiple of `accumulation_steps`, {self.accumulation_steps}; got {steps}"
            )
        return steps // self.accumulation_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """Batches of all sources by share; see `mixed_plan`."""

    weights: Weights | None
    steps: int | None
    max_passes: float | None
    restart_each_epoch: bool

    def __post_init__(self) -> None:
        if self.steps is not None:
            check_integer("steps", self.steps, 1)
        if isinstance(self.weights, Sequence):
            raise PlanError(
                f"`weights` of `mixed` must map the name of each source to a number; got {self.weights!r}; only `debiased` "
                "changes them at steps"
            )

    def plan(self, supplies: Sequence[Supply], shape: PlanSpec) -> Plan:
        """Return the plan of supplies in a shape."""
        shape = _walking(shape, restart_each_epoch=self.restart_each_epoch)
        return mixed_plan(supplies, shape, weights=self.weights, steps=self.steps, max_passes=self.max_passes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """Every sample once, in order; see `ExactPlan`."""

    pad: bool

    def plan(self, supplies: Sequence[Supply], shape: PlanSpec) -> Plan:
        """Return the plan of supplies in a shape."""
        return ExactPlan(supplies, shape, pad=self.pad)


def _walking(shape: PlanSpec, *, restart_each_epoch: bool) -> PlanSpec:
    """Return a shape whose epochs each start a pass if `restart_each_epoch`."""
    return replace(shape, walk=replace(shape.walk, restart_each_epoch=restart_each_epoch))
