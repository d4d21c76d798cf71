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
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from operator import le
from typing import Literal, Protocol, TypeAlias

from equitar.errors import PlanError
from equitar.laid import Places
from equitar.legal import check_debiased, check_mixed, check_not_empty, checked_supplies
from equitar.line import Supply
from equitar.mix64 import Int64, fold
from equitar.passes import Place
from equitar.quota import Sharing, Stretch, copies_of_passes, largest_remainder, most_allowed, stretches
from equitar.repeat import ONE
from equitar.shape import Shape, SourceAccount
from equitar.step_plan import Quotas, StepPlan
from equitar.weights import Changes, Passes, Weights, ZeroVL, canonical, canonical_changes

Agree: TypeAlias = Literal["world", "rank"]
Short: TypeAlias = Literal["error", "leave_out"]


class Plan(Protocol):
    """What executing asks of a plan.

    Attributes:
        num_steps: Steps of the epoch.
        global_batch: Samples of a global batch.
        digest: Names all that the plan depends on, apart from the epoch, in hexadecimal.
        names: Names of the sources, sorted.
        account: What the epoch takes of each source.
        is_whole: Whether every batch must be full, so that dropped samples need substitutes.
        shape: The numbers it was made with.
    """

    is_whole: bool
    shape: Shape
    num_steps: int
    global_batch: int
    digest: str
    names: tuple[str, ...]
    account: tuple[SourceAccount, ...]

    def share(self, step: int, rank: int, world_size: int) -> tuple[int, int]:
        """Return the slots [first, last) that a rank reads at a step."""

    def places(self, step: int, first: int, last: int) -> Places:
        """Return what lies in slots [first, last) of a step."""

    def substitutes(self, step: int, slot: int) -> Iterator[tuple[int, int]]:
        """Yield (shard, row) of samples of the same source that may stand in for a dropped one."""

    def sources(self, rank: int) -> Int64 | None:
        """Return the index of the source of every step on a rank, (steps,), or None where batches are mixed."""

    def places_at(self, step: int) -> tuple[Place, ...]:
        """Return where each source stands in its passes before a step."""


def debiased_plan(
    supplies: Sequence[Supply],
    shape: Shape,
    *,
    weights: Weights | Changes | None,
    steps: int | None,
    max_passes: float | None,
    agree: Agree,
    short: Short,
    hold: int = 1,
) -> StepPlan:
    """Return the plan of batches that hold one source each.

    Args:
        supplies: The sources; their order does not matter.
        shape: The numbers that every plan needs.
        weights: Shares of the steps, or a list of (from_step, shares); None is by size.
        steps: Steps of an epoch; None is one pass in all.
        max_passes: How often an epoch may go through a source; None is without limit.
        agree: Whether all ranks draw the same source at a step (`world`), or each rank its own (`rank`).
        short: What to do with sources that cannot give one global batch a pass: `error`, or `leave_out`.
        hold: Steps in which each batch is handed out; errors speak of the `batch_size` of such a step.

    Raises:
        PlanError: If the promises cannot be kept; it says with which `batch_size` they can.
    """
    supplies, weights = checked_supplies(supplies, steps), canonical_changes(weights)
    shape = shape_for(weights, supplies, shape)
    if short == "error":
        check_not_empty(supplies, weights)

    def at(global_batch: int) -> tuple[list[Supply], list[Stretch]]:
        left_out = [one.name for one in supplies if one.copies < global_batch and short == "leave_out"]
        kept = [one for one in supplies if one.name not in left_out]
        sharing = Sharing(weights=weights, steps=steps, left_out=left_out, max_passes=max_passes)
        key = fold(shape.seed, shape.epoch)
        return kept, stretches(kept, sharing, global_batch=global_batch, key=key) if kept else []

    by_size = isinstance(weights, ZeroVL) or (weights is None and steps is None)
    check_debiased(shape, at, by_size=by_size, hold=hold)
    kept, parts = at(shape.global_batch)
    quotas = Quotas(
        parts=parts,
        copies=[sum(column) * shape.global_batch for column in zip(*(part.quotas for part in parts), strict=True)],
        in_pass=[supply.copies // shape.global_batch * shape.global_batch for supply in kept],
        num_worlds=shape.world_size if agree == "rank" else 1,
    )
    return StepPlan(kept, shape, quotas, f"debiased {weights!r} {steps} {max_passes} {agree}")


def shape_for(weights: Weights | Changes | None, supplies: Sequence[Supply], shape: Shape) -> Shape:
    """Return the shape for weights: quotas that are drawn differ from epoch to epoch, so each starts its passes."""
    if not isinstance(weights, ZeroVL):
        return shape
    repeated = [supply.name for supply in supplies if supply.largest > ONE]
    if repeated:
        raise PlanError(f"`weights=ZeroVL()` is without repeats; source {repeated[0]!r} has some")
    return replace(shape, walk=replace(shape.walk, fresh=True))


def mixed_plan(
    supplies: Sequence[Supply],
    shape: Shape,
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
        shape = replace(shape, walk=replace(shape.walk, fresh=True))
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
        sharing = Sharing(weights=weights, steps=total, left_out=(), max_passes=max_passes)
        return list(stretches(supplies, sharing, global_batch=1, key=fold(shape.seed, shape.epoch))[0].quotas)

    is_drawn = isinstance(weights, ZeroVL)
    check_mixed(supplies, shape, quota_at, is_drawn=is_drawn)
    quotas = Quotas(parts=None, copies=quota_at(shape.global_batch), in_pass=in_pass, num_worlds=1)
    return StepPlan(supplies, shape, quotas, f"mixed {weights!r} {steps} {max_passes}")
