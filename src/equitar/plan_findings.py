"""What in the plan of an epoch should make a person stop? One rule, one function; each has its section in docs/report.md."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from equitar.epoch_report import Report
from equitar.finding import Finding, listed
from equitar.plan_preview import Preview

_MANY_PASSES, _TOO_MANY_PASSES = 5, 20
_PART_OF_A_PASS = 0.5
_MUCH_LEFT_OUT = 0.05  # of a pass
_FEW_BATCHES = 10  # of a source in an epoch
_UNEVEN = 1.5  # bytes of a worker, in those of the mean one


def plan_findings(report: Report) -> Iterator[Finding]:
    """Yield what is to be looked at in steps, sources and readers."""
    plan = report.plan
    if plan is None:
        yield Finding(
            "no-plan",
            "note",
            "no batch size was given, so there are no steps, schedule and readers here",
            "Give --batch-size, --world-size and --num-workers, or the training's own pipeline as package.module:name.",
        )
        return
    if plan.world_size == 1:
        yield Finding(
            "one-rank",
            "note",
            "this is the plan of a single rank",
            "If training runs on more, give --world-size: steps, remainders and readers depend on it.",
        )
    yield from _never_drawn(report, plan)
    yield from _passes(report)
    yield from _remainders(report, plan)
    yield from _few_batches(plan)
    yield from _readers(plan)
    yield from _shared_shards(report, plan)


def _never_drawn(report: Report, plan: Preview) -> Iterator[Finding]:
    drawn = {one.name for one in plan.sources if one.samples}
    needed = plan.batch_size * plan.world_size
    for one in report.rows:
        if one.name not in drawn:
            yield Finding(
                "never-drawn",
                "problem" if one.copies < needed else "look",  # enough, and yet no step: its weight is none
                f"source {one.name} is never drawn: a pass of it has {one.copies:,.0f} samples, one global batch {needed:,}",
                "Lower the batch size, give it a weight, join it with a source like it, or leave it out on purpose.",
            )


def _passes(report: Report) -> Iterator[Finding]:
    for one in report.stats.sources:
        if one.passes >= _MANY_PASSES:
            yield Finding(
                "many-passes",
                "problem" if one.passes >= _TOO_MANY_PASSES else "look",
                f"source {one.name} is seen {one.passes:,.1f} times in one epoch ({one.samples:,} samples)",
                "A model may learn it by heart. Lower its weight, take fewer steps, or set max_passes.",
            )
        elif 0 < one.passes < _PART_OF_A_PASS:
            yield Finding(
                "part-of-a-pass",
                "note",
                f"an epoch goes through {one.passes:.1%} of source {one.name}",
                "Nothing is lost: the next epoch goes on where this one stops. To see all of it in each, take more steps or "
                "raise its weight.",
            )


def _remainders(report: Report, plan: Preview) -> Iterator[Finding]:
    in_pass = {one.name: one.copies for one in report.rows}
    for one in plan.sources:
        share = one.remainder / max(1, in_pass[one.name])
        if share > _MUCH_LEFT_OUT:
            yield Finding(
                "large-remainder",
                "look",
                f"{share:.1%} of source {one.name} is left out of each pass: {one.remainder:,} samples that fill no global "
                "batch",
                "Each pass leaves out others, so over epochs all of them come. A smaller global batch leaves out fewer.",
            )


def _few_batches(plan: Preview) -> Iterator[Finding]:
    for one in plan.sources:
        if one.batches is not None and 0 < one.batches < _FEW_BATCHES and one.batches < plan.steps:
            yield Finding(
                "few-batches",
                "look",
                f"source {one.name} is drawn at {one.batches} of {plan.steps:,} steps",
                "Too few to say anything about its loss. Lower the batch size, raise its weight, or mix sources within "
                "batches.",
            )


def _readers(plan: Preview) -> Iterator[Finding]:
    idle = [one for one in plan.consumers if not one.samples]
    if idle:
        yield Finding(
            "idle-workers",
            "problem",
            f"{len(idle):,} of {len(plan.consumers):,} workers read nothing, such as worker {idle[0].worker} of rank "
            f"{idle[0].rank}: an epoch has {plan.steps:,} steps",
            f"Take at most {plan.steps:,} workers for each rank.",
        )
        return
    num_bytes = np.array([one.bytes for one in plan.consumers])
    times = num_bytes.max() / max(1, num_bytes.mean())
    if times > _UNEVEN:
        most = plan.consumers[int(num_bytes.argmax())]
        yield Finding(
            "uneven-readers",
            "look",
            f"worker {most.worker} of rank {most.rank} reads {times:.1f} times the bytes of the mean worker",
            "The slowest reader sets the pace. Look for samples far larger than others; where each worker has few steps, take "
            "fewer workers.",
        )


def _shared_shards(report: Report, plan: Preview) -> Iterator[Finding]:
    few = [one for one in report.stats.sources if one.passes and one.shards < plan.num_consumers]
    if few:
        fewest = min(few, key=lambda one: one.shards)
        yield Finding(
            "few-shards",
            "note",
            f"{plan.num_consumers:,} workers share the shards of {listed([one.name for one in few])} (source {fewest.name} "
            f"has {fewest.shards:,})",
            "Each reads its own part of a shard and nothing is read twice. On a store that is slow by request, write more "
            "and smaller shards.",
        )
