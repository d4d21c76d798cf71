"""Findings of a report: what a person should look at before training. One rule, one function; docs/report.md explains each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from equitar.arrays import Float64
from equitar.planning.feasibility import LEAVE_OUT, MIXED
from equitar.reporting.locality import Locality
from equitar.reporting.preview import Preview
from equitar.reporting.report import Report
from equitar.reporting.stats import ClassStats
from equitar.text import counted, listed

Level: TypeAlias = Literal["problem", "look", "note"]
LEVELS: tuple[Level, ...] = ("problem", "look", "note")


class Finding(NamedTuple):
    """One thing to look at.

    Attributes:
        kind: Which rule found it: the anchor of its section in the documentation.
        level: ``problem``: training will not do what was meant; ``look``: make sure that it was meant; ``note``: good to know.
        text: What was found, with its number.
        todo: What to do.
    """

    kind: str
    level: Level
    text: str
    todo: str


_LARGE_FACTOR, _TOO_LARGE_FACTOR = 10, 30
_FEW_SAMPLES = 10  # of a class
_MUCH_LONGER = 1.5  # a pass with repeats, in one without
_MUCH_SHIFTED = 0.1  # share of a source
_LIFTED = 1.5  # copies of a class with factor 1, in its samples
_LONG_TAIL = 100  # samples of the commonest class, in those of the rarest
_MANY_UNLABELLED = 0.01  # of the samples of a source
_MANY_PASSES, _TOO_MANY_PASSES = 5, 20
_PART_OF_A_PASS = 0.5
_MUCH_LEFT_OUT = 0.05  # of a pass
_FEW_BATCHES = 10  # of a source in an epoch
_UNEVEN = 1.5  # bytes of a worker, in those of the mean worker
_LOCAL = 0.5  # shards or classes of a batch, in those of a random draw


def findings_of(report: Report) -> list[Finding]:
    """Return what should be looked at, the worst first."""
    findings = [*_plan_findings(report), *_class_findings(report)]
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def _class_findings(report: Report) -> Iterator[Finding]:
    """Yield what to look at in labels, classes and repeats."""
    yield from _labels(report)
    classes = report.stats.classes
    if classes is None or not classes.names:
        return
    yield from _ids_overlap(report)
    yield from _few_samples(classes)
    yield from _empty_classes(classes)
    if report.stats.repeat is None:
        yield from _long_tail(classes)
        return
    yield from _longer(report)
    yield from _shifted(report)
    if classes.factors is not None:
        yield from _factors(classes, classes.factors)
        yield from _lifted(classes, classes.factors)


def _labels(report: Report) -> Iterator[Finding]:
    sources = report.stats.sources
    without = [source.name for source in sources if source.labels is None]
    if without:
        yield Finding(
            "no-labels",
            "look" if len(without) < len(sources) else "note",
            f"{len(without)} of {len(sources)} sources were indexed without labels: {listed(without)}",
            "They are not counted among the classes, and cannot be repeated. If they have labels, run `equitar index` again "
            "with --labels or --labels-from.",
        )
    for source in sources:
        if source.unlabelled and source.unlabelled > _MANY_UNLABELLED * source.samples:
            yield Finding(
                "samples-without-labels",
                "look",
                f"{source.unlabelled:,} samples of {source.name} have no label ({source.unlabelled / source.samples:.1%})",
                "Is that intended? Each of them is drawn once in a pass. Fix the labels and index again, or leave them out: "
                'RepeatFactor(empty="drop").',
            )


def _ids_overlap(report: Report) -> Iterator[Finding]:
    if report.stats.id_overlap is not None:
        yield Finding(
            "ids-overlap",
            "look",
            str(report.stats.id_overlap),
            "If an id is the same class in all sources, pass labels_shared=True (--shared-ids), or index them with --classes. "
            "Otherwise repeat factors are computed for each source alone.",
        )


def _few_samples(classes: ClassStats) -> Iterator[Finding]:
    few = int((classes.samples < _FEW_SAMPLES).sum())
    if few:
        yield Finding(
            "few-samples",
            "look",
            f"{few:,} of {len(classes.names):,} classes have fewer than {_FEW_SAMPLES} samples: {listed(classes.names[:few])}",
            "Repeats show the same few samples again. Are their labels right? Add samples, merge classes, or do not repeat "
            "them: RepeatFactor(min_count=...).",
        )


def _empty_classes(classes: ClassStats) -> Iterator[Finding]:
    if classes.without_samples:
        yield Finding(
            "empty-classes",
            "look",
            f"{classes.without_samples:,} classes of the vocabulary have no sample",
            "They change no factor, and a model cannot learn them. Is it the right vocabulary, and are all shards listed?",
        )


def _long_tail(classes: ClassStats) -> Iterator[Finding]:
    times = classes.samples[-1] / classes.samples[0]
    if times > _LONG_TAIL:
        yield Finding(
            "long-tail",
            "note",
            f"class {classes.names[-1]} has {times:,.0f} times the samples of {classes.names[0]}, and nothing is repeated",
            "If rare classes matter, see below what a threshold would do; LVIS uses 0.001.",
        )


def _longer(report: Report) -> Iterator[Finding]:
    after, before = report.copies, max(1, report.stats.samples)
    if after / before > _MUCH_LONGER:
        yield Finding(
            "much-longer",
            "look",
            f"repeats make a pass {after / before:.2f} times as long: {after:,.0f} samples instead of {before:,}",
            "An epoch takes that much longer. A lower threshold repeats less; a cap limits only the rarest classes.",
        )


def _shifted(report: Report) -> Iterator[Finding]:
    for source in report.stats.sources:
        share = source.pass_copies / max(1.0, report.copies)
        if abs(share - source.share_before) > _MUCH_SHIFTED:
            yield Finding(
                "shifted-shares",
                "look",
                f"repeats change the share of source {source.name} from {source.share_before:.1%} to {share:.1%} of all samples",
                "To keep the shares as they were, pass weights=BySamples().",
            )


def _factors(classes: ClassStats, factors: Float64) -> Iterator[Finding]:
    if factors.max() <= 1:
        yield Finding(
            "nothing-repeated",
            "problem",
            f"no class is below the threshold: the rarest, {classes.names[0]}, has a frequency of {classes.frequency[0]:.3g}",
            "Repeats do nothing. Use a larger threshold from the table, or leave it out.",
        )
    elif factors.max() >= _LARGE_FACTOR:
        most = int(factors.argmax())
        samples = counted(int(classes.samples[most]), "sample")
        yield Finding(
            "large-factors",
            "problem" if factors[most] >= _TOO_LARGE_FACTOR else "look",
            f"{int((factors >= _LARGE_FACTOR).sum()):,} classes are repeated {_LARGE_FACTOR} times or more; the most "
            f"is {factors[most]:.1f} times, class {classes.names[most]} with {samples}",
            "A model may memorize these samples. A cap (--cap, RepeatFactor(cap=...)) or a lower threshold limits this.",
        )


def _lifted(classes: ClassStats, factors: Float64) -> Iterator[Finding]:
    times = classes.pass_copies / classes.samples
    lifted = ((factors <= 1) & (times > _LIFTED)).nonzero()[0]
    if len(lifted):
        most = int(lifted[times[lifted].argmax()])
        yield Finding(
            "lifted-by-company",
            "note",
            f"{classes.names[most]} is drawn {times[most]:.2f} times as often without being repeated itself, as rare "
            f"classes share its samples; so are {len(lifted) - 1:,} others (more than {_LIFTED} times)",
            "This is how repeat factors work: a sample is repeated for its rarest label. A lower threshold lifts them less.",
        )


def _plan_findings(report: Report) -> Iterator[Finding]:
    """Yield what to look at in steps, sources and readers."""
    plan = report.plan
    if plan is None:
        yield Finding(
            "no-plan",
            "note",
            "no batch size was given, so there are no steps, schedule or readers",
            "Pass --batch-size, --world-size and --num-workers, or the training's own pipeline as package.module:name.",
        )
        return
    if plan.world_size == 1:
        yield Finding(
            "one-rank",
            "note",
            "this is the plan of a single rank",
            "If training runs on more, pass --world-size: steps, remainders and readers depend on it.",
        )
    yield from _never_drawn(report, plan)
    yield from _passes(report)
    yield from _remainders(report, plan)
    yield from _few_batches(plan)
    yield from _local_batches(plan)
    yield from _readers(plan)
    yield from _shared_shards(report, plan)


def _never_drawn(report: Report, plan: Preview) -> Iterator[Finding]:
    drawn = {source.name for source in plan.sources if source.samples}
    needed = plan.batch_size * plan.world_size
    without = [source for source in report.stats.sources if source.name not in drawn]
    small = [source for source in without if source.pass_copies < needed]
    if small:
        most = max(small, key=lambda source: source.pass_copies)
        names = f"{counted(len(small), 'source')} never drawn: {listed([source.name for source in small])}"
        yield Finding(
            "never-drawn",
            "problem",
            f"{names}; a global batch has {needed:,} samples, a pass of {most.name} has {most.pass_copies:,.0f} samples",
            f"Sources that are smaller than a global batch are left out by {LEAVE_OUT}. To draw them, use {MIXED}, lower the "
            "batch size, or merge similar sources.",
        )
    for source in without:
        if source not in small:
            yield Finding(
                "never-drawn",
                "look",
                f"source {source.name} is never drawn: its weight is 0, or its share of the steps rounds to none",
                "Give it a weight, take more steps, or leave it out on purpose.",
            )


def _passes(report: Report) -> Iterator[Finding]:
    for source in report.stats.sources:
        if source.passes >= _MANY_PASSES:
            yield Finding(
                "many-passes",
                "problem" if source.passes >= _TOO_MANY_PASSES else "look",
                f"source {source.name} is seen {source.passes:,.1f} times in one epoch ({source.samples:,} samples)",
                "A model may memorize it. Lower its weight, take fewer steps, or set max_passes.",
            )
        elif 0 < source.passes < _PART_OF_A_PASS:
            yield Finding(
                "part-of-a-pass",
                "note",
                f"an epoch goes through {source.passes:.1%} of source {source.name}",
                "Nothing is lost: the next epoch continues where this one stops. To see all of it in each epoch, take more "
                "steps or raise its weight.",
            )


def _remainders(report: Report, plan: Preview) -> Iterator[Finding]:
    in_pass = {source.name: source.pass_copies for source in report.stats.sources}
    for source in plan.sources:
        share = source.remainder / max(1, in_pass[source.name])
        if share > _MUCH_LEFT_OUT:
            yield Finding(
                "large-remainder",
                "look",
                f"{share:.1%} of source {source.name} is left out of each pass: {source.remainder:,} samples that fill no global "
                "batch",
                "Each pass leaves out others, so over epochs all of them are drawn. A smaller global batch leaves out fewer.",
            )


def _few_batches(plan: Preview) -> Iterator[Finding]:
    for source in plan.sources:
        if source.batches is not None and 0 < source.batches < _FEW_BATCHES and source.batches < plan.steps:
            yield Finding(
                "few-batches",
                "look",
                f"source {source.name} is drawn at {source.batches} of {plan.steps:,} steps",
                "Too few for a reliable loss of this source. Lower the batch size, raise its weight, or mix sources within "
                f"batches: {MIXED}.",
            )


def _local_batches(plan: Preview) -> Iterator[Finding]:
    local = [each for each in plan.locality if min(_mixing(each)) < _LOCAL]
    if not local:
        return
    # Few classes are known to matter; few shards may.
    worst = min(local, key=lambda each: (each.classes is None, _mixing(each)))
    held, drawn = f"{worst.shards:,.1f} shards", f"{worst.random_shards:,.1f}"
    if worst.classes is not None and worst.random_classes is not None:
        held += f" and {worst.classes:,.1f} classes"
        drawn += f" and {worst.random_classes:,.1f}"
    of_source = "" if worst.source is None else f" of source {worst.source}"
    others = f"; {counted(len(local) - 1, 'other source')} likewise" if len(local) > 1 else ""
    is_mixed = all(each.classes is not None and _mixing(each).classes >= _LOCAL for each in local)
    yield Finding(
        "local-batches",
        "note" if is_mixed else "look",
        f"a batch{of_source} holds {held}, a random draw {drawn}{others}",
        "Samples that lie near each other are drawn together. That does no harm if shards were written in a random order; "
        "otherwise raise shuffle (--shuffle), or write them again.",
    )


class _Mixing(NamedTuple):
    classes: float
    shards: float


def _mixing(locality: Locality) -> _Mixing:
    """Return the classes and shards of a batch in those of a random draw; classes that are not known count like shards."""
    shards = locality.shards / max(1.0, locality.random_shards)
    if locality.classes is None or locality.random_classes is None:
        return _Mixing(shards, shards)
    return _Mixing(locality.classes / max(1.0, locality.random_classes), shards)


def _readers(plan: Preview) -> Iterator[Finding]:
    idle = [consumer for consumer in plan.consumers if not consumer.samples]
    if idle:
        yield Finding(
            "idle-workers",
            "problem",
            f"{len(idle):,} of {len(plan.consumers):,} workers read nothing, such as worker {idle[0].worker} of rank "
            f"{idle[0].rank}: an epoch has {plan.steps:,} steps",
            f"Use at most {plan.steps:,} workers for each rank.",
        )
        return
    num_bytes = np.array([consumer.bytes for consumer in plan.consumers])
    times = num_bytes.max() / max(1, num_bytes.mean())
    if times > _UNEVEN:
        most = plan.consumers[int(num_bytes.argmax())]
        yield Finding(
            "uneven-readers",
            "look",
            f"worker {most.worker} of rank {most.rank} reads {times:.1f} times the bytes of the average worker",
            "The slowest reader sets the pace. Look for samples far larger than others; if each worker has few steps, use "
            "fewer workers.",
        )


def _shared_shards(report: Report, plan: Preview) -> Iterator[Finding]:
    few = [source for source in report.stats.sources if source.passes and source.shards < plan.num_consumers]
    if few:
        fewest = min(few, key=lambda source: source.shards)
        yield Finding(
            "few-shards",
            "note",
            f"{plan.num_consumers:,} workers share the shards of {listed([source.name for source in few])} (source {fewest.name} "
            f"has {fewest.shards:,})",
            "Each reads its own part of a shard and nothing is read twice. On a store with slow requests, write more and "
            "smaller shards.",
        )
