"""Recipes: the kinds of plans and their arguments, and how each makes the plan of an epoch. Start reading here.

A plan says what is emitted when, and by whom, before a single tar is opened, from a few integers for each shard:

    repeat factors ─> quotas ─> schedule ─> segments ─> lanes and runs ─> windows on lines
    (repeat_factors)  (quotas)  (schedule)  (passes)    (runs)            (shuffle, line)

    quota      how many batches each source gives in an epoch
    schedule   which source is drawn at each step: the same on every rank
    segment    the part of an epoch that lies in one pass of a source
    line       all copies of a source in one pass, on a circle
    run        what one rank reads in one lane: consecutive copies of the line
    window     the batches of a run that are shuffled together

`Debiased` gives batches of one source each, `Mixed` batches of all sources by share, and `Exact` every sample once and in order.
A plan is a pure function of its arguments. It answers for any step alone: resuming, or reading with other ranks and workers
than it was made for, is a matter of asking for other steps and slots. A *slot* is a place in a global batch; rank r of R reads
slots ``[r * G / R, (r + 1) * G / R)`` of the G of each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import le
from typing import Protocol

from equitar.checks import check_integer, check_number
from equitar.errors import PlanError
from equitar.planning.exact_plan import ExactPlan
from equitar.planning.feasibility import check_debiased, check_mixed, check_not_empty, checked_supplies
from equitar.planning.plan import Composition, Plan, PlanSpec, SameSourceAcross, SmallSources
from equitar.planning.quotas import (
    QuotaSpec,
    WeightPhase,
    copies_of_passes,
    largest_remainder,
    most_allowed,
    weight_phases,
)
from equitar.planning.repeat_factors import ONE
from equitar.planning.step_plan import AccumulationPlan, Quotas, StepPlan
from equitar.planning.supply import Supply
from equitar.planning.weights import Changes, Passes, Weights, ZeroVL, canonical, canonical_changes
from equitar.rng import fold


class Recipe(Protocol):
    """Makes the plan of an epoch."""

    def plan(self, supplies: Sequence[Supply], spec: PlanSpec) -> Plan:
        """Return the plan of sources; their order does not matter.

        Raises:
            PlanError: If the promises cannot be kept; it says with which `batch_size` they can.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Debiased:
    """Batches of one source each."""

    weights: Weights | Changes | None  # shares of the steps, or a list of (from_step, shares); None is by size
    steps: int | None  # steps of an epoch; None is one pass in all
    max_passes: float | None  # most passes of a source in an epoch; None is without limit
    restart_each_epoch: bool  # whether every epoch starts a pass of each source
    # Whether all ranks draw the same source at a step (`world`), or each rank its own (`rank`).
    same_source_across: SameSourceAcross
    small_sources: (
        SmallSources  # what to do with sources that cannot give one global batch a pass: `error`, or `leave_out`
    )
    accumulation_steps: int  # steps in which each batch is handed out

    def __post_init__(self) -> None:
        steps = None if self.steps is None else check_integer("steps", self.steps, 1)
        object.__setattr__(self, "steps", steps)
        max_passes = None if self.max_passes is None else check_number("max_passes", self.max_passes)
        object.__setattr__(self, "max_passes", max_passes)
        object.__setattr__(self, "weights", canonical_changes(self.weights))
        held = check_integer("accumulation_steps", self.accumulation_steps, 1)
        object.__setattr__(self, "accumulation_steps", held)

    def plan(self, supplies: Sequence[Supply], spec: PlanSpec) -> Plan:
        """Return the plan of sources; see `Recipe`."""
        held = self.accumulation_steps
        plan = self._step_plan(
            checked_supplies(supplies),
            replace(_restarting(spec, when=self.restart_each_epoch), batch_size=spec.batch_size * held),
        )
        return plan if held == 1 else AccumulationPlan(plan, spec, held)

    def _step_plan(self, supplies: list[Supply], spec: PlanSpec) -> StepPlan:
        """Return the plan whose batches are handed out in `accumulation_steps` steps each."""
        weights, steps = self.weights, None if self.steps is None else self._held(self.steps, "`steps`")
        if isinstance(weights, Sequence):
            weights = [(self._held(start, "a change of `weights`"), changed) for start, changed in weights]
        spec = _spec_for(weights, supplies, spec)
        if self.small_sources == "error":
            check_not_empty(supplies, weights)

        def phases_at(global_batch: int) -> tuple[list[Supply], list[WeightPhase]]:
            is_short = [self.small_sources == "leave_out" and supply.copies < global_batch for supply in supplies]
            kept = [supply for supply, short in zip(supplies, is_short, strict=True) if not short]
            left_out = [supply.name for supply, short in zip(supplies, is_short, strict=True) if short]
            shares = QuotaSpec(weights=weights, steps=steps, left_out=left_out, max_passes=self.max_passes)
            key = fold(spec.seed, spec.epoch)
            return kept, weight_phases(kept, shares, global_batch=global_batch, key=key) if kept else []

        by_size = isinstance(weights, ZeroVL) or (weights is None and steps is None)
        check_debiased(spec, phases_at, by_size=by_size, accumulation_steps=self.accumulation_steps)
        kept, phases = phases_at(spec.global_batch)
        quotas = Quotas(
            phases=phases,
            copies=[
                sum(column) * spec.global_batch for column in zip(*(phase.quotas for phase in phases), strict=True)
            ],
            in_pass=[supply.copies // spec.global_batch * spec.global_batch for supply in kept],
            num_worlds=spec.world_size if self.same_source_across == "rank" else 1,
        )
        detail = f"debiased {weights!r} {steps} {self.max_passes} {self.same_source_across}"
        return StepPlan(kept, spec, quotas, detail)

    def _held(self, steps: int, what: str) -> int:
        """Return a number of steps as a number of batches of the plan behind them."""
        if steps % self.accumulation_steps:
            raise PlanError(
                f"{what} must be a multiple of `accumulation_steps`, {self.accumulation_steps}; got {steps}"
            )
        return steps // self.accumulation_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """Batches of all sources by share."""

    weights: Weights | None  # shares of the samples; None is by size
    steps: int | None  # steps of an epoch; None is one pass in all
    max_passes: float | None  # most passes of a source in an epoch; None is without limit
    restart_each_epoch: bool  # whether every epoch starts a pass of each source
    # Whether every batch has the floor or ceiling of each share (`stratified`), or what a shuffle of all samples
    # gives (`independent`).
    composition: Composition

    def __post_init__(self) -> None:
        steps = None if self.steps is None else check_integer("steps", self.steps, 1)
        object.__setattr__(self, "steps", steps)
        max_passes = None if self.max_passes is None else check_number("max_passes", self.max_passes)
        object.__setattr__(self, "max_passes", max_passes)
        if self.composition not in ("stratified", "independent"):
            raise PlanError(f"`composition` must be 'stratified' or 'independent'; got {self.composition!r}")
        if isinstance(self.weights, Sequence):
            raise PlanError(
                f"`weights` of `mixed` must map the name of each source to a number; got {self.weights!r}; only `debiased` "
                "changes them at steps"
            )
        object.__setattr__(self, "weights", canonical(self.weights))

    def plan(self, supplies: Sequence[Supply], spec: PlanSpec) -> StepPlan:
        """Return the plan of sources; see `Recipe`."""
        weights, steps = self.weights, self.steps
        supplies = checked_supplies(supplies)
        spec = _spec_for(weights, supplies, _restarting(spec, when=self.restart_each_epoch))
        check_not_empty(supplies, weights)
        if weights is None and steps is None:  # an epoch is a pass, apart from less than a global batch in all
            spec = _restarting(spec, when=True)
        in_pass = [supply.copies for supply in supplies]
        # Copies of an epoch without `steps`; whole ones, as no share may be more than its source has.
        copies = in_pass if not isinstance(weights, Passes) else copies_of_passes(supplies, weights)

        def quota_at(global_batch: int) -> list[int]:
            total = (sum(copies) // global_batch if steps is None else steps) * global_batch
            if not total or weights is None or (isinstance(weights, Passes) and steps is None):
                quotas = largest_remainder([Fraction(count) for count in copies], total) if any(copies) else copies
                most = quotas if self.max_passes is None else most_allowed(supplies, self.max_passes, 1)
                if not total or weights is None or all(map(le, quotas, most)):
                    return quotas
            shares = QuotaSpec(weights=weights, steps=total, left_out=(), max_passes=self.max_passes)
            return list(weight_phases(supplies, shares, global_batch=1, key=fold(spec.seed, spec.epoch))[0].quotas)

        check_mixed(supplies, spec, quota_at, is_drawn=isinstance(weights, ZeroVL))
        quotas = Quotas(
            phases=None,
            copies=quota_at(spec.global_batch),
            in_pass=in_pass,
            num_worlds=1,
            is_stratified=self.composition == "stratified",
        )
        return StepPlan(supplies, spec, quotas, f"mixed {weights!r} {steps} {self.max_passes} {self.composition}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """Every sample once, in order; see `ExactPlan`."""

    pad: bool  # whether the batches of the last step are filled up

    def plan(self, supplies: Sequence[Supply], spec: PlanSpec) -> Plan:
        """Return the plan of sources; see `Recipe`."""
        return ExactPlan(supplies, spec, pad=self.pad)


def _restarting(spec: PlanSpec, *, when: bool) -> PlanSpec:
    """Return numbers with which each epoch starts a pass, if so."""
    return replace(spec, pass_start=replace(spec.pass_start, restart_each_epoch=when))


def _spec_for(weights: Weights | Changes | None, supplies: Sequence[Supply], spec: PlanSpec) -> PlanSpec:
    """Return the numbers for weights: quotas that are drawn differ from epoch to epoch, so each starts its passes."""
    if not isinstance(weights, ZeroVL):
        return spec
    repeated = [supply.name for supply in supplies if supply.largest > ONE]
    if repeated:
        raise PlanError(f"`weights=ZeroVL()` is without repeats; source {repeated[0]!r} has some")
    return _restarting(spec, when=True)
