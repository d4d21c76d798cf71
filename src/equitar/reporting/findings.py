"""What in classes and repeats should make a person stop? One rule, one function; each has its section in docs/report.md."""

from __future__ import annotations

from collections.abc import Iterator

from equitar.class_stats import ClassStats
from equitar.epoch_report import Report
from equitar.finding import Finding, listed
from equitar.repeat import Float64

_LARGE_FACTOR, _TOO_LARGE_FACTOR = 10, 30
_FEW_SAMPLES = 10  # of a class
_MUCH_LONGER = 1.5  # a pass with repeats, in one without
_MUCH_SHIFTED = 0.1  # share of a source
_LIFTED = 1.5  # copies of a class with factor 1, in its samples
_LONG_TAIL = 100  # samples of the commonest class, in those of the rarest
_MANY_BARE = 0.01  # of the samples of a source


def class_findings(report: Report) -> Iterator[Finding]:
    """Yield what is to be looked at in labels, classes and repeats."""
    yield from _labels(report)
    classes = report.stats.classes
    if classes is None or not classes.names:
        return
    yield from _few_samples(classes)
    yield from _empty_classes(classes)
    if report.stats.repeat is None:
        yield from _long_tail(classes)
        return
    yield from _longer(report)
    yield from _shifted(report)
    if classes.factors is not None:
        yield from _factors(classes, classes.factors)
        yield from _lifted(report, classes, classes.factors)


def _labels(report: Report) -> Iterator[Finding]:
    bare = [one.name for one in report.rows if one.unlabelled is None]
    if bare:
        yield Finding(
            "no-labels",
            "look" if len(bare) < len(report.rows) else "note",
            f"{len(bare)} of {len(report.rows)} sources were indexed without labels: {listed(bare)}",
            "Nothing of them is among the classes, and they cannot be repeated. If they have labels, run `equitar index` "
            "again with --labels or --labels-from.",
        )
    for one, source in zip(report.rows, report.stats.sources, strict=True):
        if one.unlabelled and one.unlabelled > _MANY_BARE * source.samples:
            yield Finding(
                "samples-without-labels",
                "look",
                f"{one.unlabelled:,} samples of {one.name} have no label ({one.unlabelled / source.samples:.1%})",
                "Are they meant to? They come once each. Index again with mended labels, or leave them out: "
                'RepeatFactor(empty="drop").',
            )


def _few_samples(classes: ClassStats) -> Iterator[Finding]:
    few = int((classes.samples < _FEW_SAMPLES).sum())
    if few:
        yield Finding(
            "few-samples",
            "look",
            f"{few:,} of {len(classes.names):,} classes have fewer than {_FEW_SAMPLES} samples: {listed(classes.names[:few])}",
            "Repeats show the same few images again. Are they labelled rightly? Add samples, join classes, or keep them from "
            "repeats: RepeatFactor(min_count=...).",
        )


def _empty_classes(classes: ClassStats) -> Iterator[Finding]:
    if classes.without_samples:
        yield Finding(
            "empty-classes",
            "look",
            f"{classes.without_samples:,} classes of the vocabulary have no sample",
            "They change no factor, and nothing will teach them. Is it the right vocabulary, and are all shards listed?",
        )


def _long_tail(classes: ClassStats) -> Iterator[Finding]:
    times = classes.samples[-1] / classes.samples[0]
    if times > _LONG_TAIL:
        yield Finding(
            "long-tail",
            "note",
            f"class {classes.names[-1]} has {times:,.0f} times the samples of {classes.names[0]}, and nothing is repeated",
            "If rare classes matter, see below what a threshold would do; LVIS takes 0.001.",
        )


def _longer(report: Report) -> Iterator[Finding]:
    after, before = report.copies, max(1, report.stats.samples)
    if after / before > _MUCH_LONGER:
        yield Finding(
            "much-longer",
            "look",
            f"repeats make a pass {after / before:.2f} times as long: {after:,.0f} samples in place of {before:,}",
            "Training takes as much longer. A lower threshold repeats less; a cap shortens only the rarest classes.",
        )


def _shifted(report: Report) -> Iterator[Finding]:
    for one, row in zip(report.stats.sources, report.rows, strict=True):
        share = row.copies / max(1.0, report.copies)
        if abs(share - one.share_before) > _MUCH_SHIFTED:
            yield Finding(
                "shifted-shares",
                "look",
                f"repeats change the share of source {one.name} from {one.share_before:.1%} to {share:.1%} of all samples",
                "To keep the shares as they were, give weights=BySamples().",
            )


def _factors(classes: ClassStats, factors: Float64) -> Iterator[Finding]:
    if factors.max() <= 1:
        yield Finding(
            "nothing-repeated",
            "problem",
            f"no class is below the threshold: the rarest, {classes.names[0]}, has a frequency of {classes.frequency[0]:.3g}",
            "Repeats do nothing. Take a larger threshold from the table, or leave it out.",
        )
    elif factors.max() >= _LARGE_FACTOR:
        most = int(factors.argmax())
        samples = f"{classes.samples[most]:,} sample{'' if classes.samples[most] == 1 else 's'}"
        yield Finding(
            "large-factors",
            "problem" if factors[most] >= _TOO_LARGE_FACTOR else "look",
            f"{int((factors >= _LARGE_FACTOR).sum()):,} classes are repeated {_LARGE_FACTOR} times or more; the most "
            f"is {factors[most]:.1f} times, class {classes.names[most]} with {samples}",
            "A model may learn these images by heart. A cap (--cap, RepeatFactor(cap=...)) or a lower threshold bounds it.",
        )


def _lifted(report: Report, classes: ClassStats, factors: Float64) -> Iterator[Finding]:
    passes = [one.passes for one in report.stats.sources]
    if max(passes) > 1.01 * min(passes):  # what lifts a class is the passes of its source
        return
    times = classes.copies / classes.samples / max(passes)
    lifted = ((factors <= 1) & (times > _LIFTED)).nonzero()[0]
    if len(lifted):
        most = int(lifted[times[lifted].argmax()])
        yield Finding(
            "lifted-by-company",
            "note",
            f"{classes.names[most]} comes {times[most]:.2f} times as often without being repeated itself, as rare classes "
            f"share its samples; so do {len(lifted) - 1:,} others (more than {_LIFTED} times)",
            "This is how repeat factors work: a sample is repeated for its rarest label. A lower threshold lifts them less.",
        )
