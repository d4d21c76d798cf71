"""Feasibility: whether the promises can be kept, or an error before the first step that says what to change.

A plan is feasible exactly if no sample has more copies in an epoch than its source has steps: then, and only then, all copies
can go to different global batches. That depends neither on the number of workers nor on the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from equitar.errors import PlanError
from equitar.planning.line import most_of
from equitar.planning.plan import PlanSpec
from equitar.planning.quotas import WeightPhase
from equitar.planning.repeat_factors import ONE
from equitar.planning.supply import Supply
from equitar.planning.weights import Changes, Passes, Weights

LEAVE_OUT = '`small_sources="leave_out"` (`--small-sources leave_out`)'
MIXED = "`mixed` (`--mixed`)"
_ALL_TRIED = 64  # batch sizes that are all tried, where the largest that works is wanted


class _Problem(NamedTuple):
    text: str
    instead: str = ""  # what helps without a smaller batch


def checked_supplies(supplies: Sequence[Supply]) -> list[Supply]:
    """Return the supplies sorted by name.

    Raises:
        PlanError: If there are none, or names are not unique.
    """
    ordered = sorted(supplies, key=lambda supply: supply.name)
    for supply, following in pairwise(ordered):
        if supply.name == following.name:
            raise PlanError(f"names of sources must be unique; two are called {supply.name!r}")
    if not ordered:
        raise PlanError("a plan needs at least one source; got none")
    return ordered


def check_not_empty(supplies: Sequence[Supply], weights: Weights | Changes | None) -> None:
    """Raise PlanError if a source without samples has a weight, be it by its size."""
    phases = [changed for _, changed in weights] if isinstance(weights, Sequence) else [weights]
    by_name = [phase.passes if isinstance(phase, Passes) else phase for phase in phases]
    for supply in supplies:
        left_out = all(isinstance(numbers, Mapping) and numbers.get(supply.name) == 0 for numbers in by_name)
        if not supply.total and not left_out:
            num_rows = int(supply.num_rows.sum())
            seen = f"keeps none of its {num_rows} samples (see `keep` and `repeat`)" if num_rows else "has no samples"
            raise PlanError(f"source {supply.name!r} {seen}; leave it out or give it weight 0")


def check_debiased(
    spec: PlanSpec,
    phases_at: Callable[[int], tuple[Sequence[Supply], Sequence[WeightPhase]]],
    *,
    by_size: bool,
    accumulation_steps: int,
) -> None:
    """Raise PlanError if a debiased plan would break a promise.

    Args:
        spec: The numbers of the plan.
        phases_at: Gives the sources and the phases of the schedule at a size of the global batch.
        by_size: Whether every source must have a global batch: it gives just what it has, or is drawn by size.
        accumulation_steps: Steps in which a batch of the plan is handed out; the `batch_size` in errors is that of a step.
    """

    def problem_at(batch_size: int) -> _Problem | None:
        world = replace(spec, batch_size=batch_size * accumulation_steps)
        ranks = _ranks_in_words(world, accumulation_steps)
        supplies, phases = phases_at(world.global_batch)
        if not supplies:
            return _Problem(f"no source has the {world.global_batch} samples of one global batch{ranks}")
        if by_size and any(supply.copies < world.global_batch for supply in supplies):
            return _small_sources(supplies, world.global_batch, ranks)
        quotas = [sum(column) for column in zip(*(phase.quotas for phase in phases), strict=True)]
        wanted = [max(column) > 0 for column in zip(*(phase.wanted for phase in phases), strict=True)]
        in_pass = [supply.copies // world.global_batch * world.global_batch for supply in supplies]
        most = most_of(supplies, [quota * world.global_batch for quota in quotas], in_pass)
        for supply, quota, copies, is_wanted in zip(supplies, quotas, most, wanted, strict=True):
            problem = _problem(supply, quota, copies, ranks, is_wanted=is_wanted)
            if problem:
                return problem
        none = _Problem(f"the sources together give no global batch of {world.global_batch}{ranks}")
        return None if phases[-1].stop else none

    _raise_with_fix(problem_at, spec.batch_size // accumulation_steps)


def check_mixed(
    supplies: Sequence[Supply],
    spec: PlanSpec,
    quota_at: Callable[[int], Sequence[int]],
    *,
    is_drawn: bool,
) -> None:
    """Raise PlanError if a mixed plan would break a promise.

    Args:
        supplies: The sources, sorted.
        spec: The numbers of the plan.
        quota_at: Gives the copies of each source in an epoch at a size of the global batch.
        is_drawn: Whether quotas are drawn: then each source must be able to give whole epochs, or the next draw may not fit.
    """

    def problem_at(batch_size: int) -> _Problem | None:
        world = replace(spec, batch_size=batch_size)
        ranks = _ranks_in_words(world)
        quotas = quota_at(world.global_batch)
        steps = sum(quotas) // world.global_batch
        if not steps:
            return _Problem(f"the sources have fewer than the {world.global_batch} samples of one global batch{ranks}")
        in_pass = [supply.copies for supply in supplies]
        for supply, most in zip(supplies, most_of(supplies, quotas, in_pass), strict=True):
            if is_drawn and supply.copies < world.global_batch:
                needed = f"one global batch needs {world.global_batch}{ranks}"
                return _Problem(f"source {supply.name!r} has {supply.copies} samples but {needed}")
            if most > steps:
                batches = f"{steps} global batches{ranks}"
                return _Problem(f"source {supply.name!r} has up to {most} copies of a sample but {batches}")
        return None

    _raise_with_fix(problem_at, spec.batch_size)


def _small_sources(supplies: Sequence[Supply], needed: int, ranks: str) -> _Problem:
    """Return the problem of sources that have fewer copies than a global batch needs."""
    small = [supply for supply in supplies if supply.copies < needed]
    kind = "samples" if small[0].largest <= ONE else "copies"
    text = f"source {small[0].name!r} has {small[0].copies} {kind} but one global batch needs {needed}{ranks}"
    if len(small) > 1:
        text += f", and {len(small) - 1} more of {len(supplies)} sources have too few"
    can_be_mixed = sum(supply.copies for supply in supplies) >= needed
    instead = [LEAVE_OUT] * (len(small) < len(supplies)) + [MIXED] * can_be_mixed
    return _Problem(text, f"use {' or '.join(instead)}" if instead else "")


def _problem(supply: Supply, quota: int, most: int, ranks: str, *, is_wanted: bool) -> _Problem | None:
    """Return what is wrong with one source of a debiased plan."""
    if not quota and is_wanted:
        fix = "raise it or `steps`"
        return _Problem(f"source {supply.name!r} has a weight but its share of the steps rounds to none; {fix}")
    if most > quota:
        batches = f"{quota} global batches an epoch{ranks}"
        return _Problem(f"source {supply.name!r} has up to {most} copies of a sample but {batches}")
    return None


def _ranks_in_words(spec: PlanSpec, accumulation_steps: int = 1) -> str:
    held = f" x {accumulation_steps} accumulation steps" if accumulation_steps > 1 else ""
    return f" ({spec.world_size} ranks x {spec.batch_size // accumulation_steps}{held})"


def _raise_with_fix(problem_at: Callable[[int], _Problem | None], batch_size: int) -> None:
    """Raise what is wrong at the batch size of a plan, with a smaller one at which nothing is."""
    problem = problem_at(batch_size)
    if problem is None:
        return
    largest = largest_that_fits(lambda smaller: problem_at(smaller) is None, batch_size)
    if largest:
        instead = f"{problem.instead}, or " if problem.instead else ""
        raise PlanError(f"{problem.text}; {instead}lower `batch_size` to at most {largest}")
    instead = problem.instead or "repeat less (`cap`, a lower threshold) or leave the source out"
    raise PlanError(f"{problem.text}; no smaller `batch_size` helps: {instead}")


def largest_that_fits(fits: Callable[[int], bool], too_large: int) -> int:
    """Return the largest number below one that is too large that fits; 0 if none does.

    If smaller numbers of those that fit do too, this is exact. Quotas that are rounded, and sources that are left out, let it
    come and go; so numbers up to 64 are all tried, and of larger ones every 16th part of the way, and halves between these.

    >>> largest_that_fits(lambda size: size <= 1234, 100_000)
    1234
    """
    high = too_large  # does not fit
    while high > _ALL_TRIED + 1:
        low = max(_ALL_TRIED, high - high // 16)
        if fits(low):
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if fits(middle) else (low, middle)
            return low
        high = low
    return next((smaller for smaller in range(high - 1, 0, -1) if fits(smaller)), 0)
