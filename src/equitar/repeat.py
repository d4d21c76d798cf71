"""How often does a sample come? LVIS repeat factors (Gupta, Dollar and Girshick 2019, arXiv 1908.03195, appendix B.1).

1. For each label c, its frequency f(c): the fraction of samples that contain it.
2. For each label c, its repeat factor ``r(c) = max(1, (t / f(c)) ** p)``, where p = 1/2 gives the square root of LVIS.
3. For each sample I, ``r(I) = max of r(c) over its labels``, and 1 if it has none.

Factors are held as integers in units of 2**-20 copies (`ONE` is one copy), so that sums are exact and equal everywhere:
division and square root are exact under IEEE 754, and other powers go through `decimal`, which is software.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from equitar.errors import LabelError
from equitar.mix64 import Int64
from equitar.presence import Presence

Float64: TypeAlias = NDArray[np.float64]
Rounding: TypeAlias = Literal["systematic", "bernoulli", "ceil"]
Scope: TypeAlias = Literal["all", "source"]

ONE = 1 << 20


@dataclass(frozen=True, slots=True)
class RepeatFactor:
    """How labels become repeat factors.

    Attributes:
        threshold: The t above: labels rarer than this are repeated, in [0, 1]; 0 repeats nothing.
        power: The p above, >= 0; 0.5 is LVIS.
        cap: Largest factor, >= 1.
        ignore: Labels (names or ids) that repeat nothing.
        scope: Whether f(c) is taken over all sources that know the label, or in each source alone.
        rounding: How factors become whole copies: `systematic` gives floor or ceil with mean exactly r, `bernoulli` draws
            each sample alone (Detectron2), `ceil` rounds up (mmdetection).
    """

    threshold: float
    power: float = 0.5
    cap: float | None = None
    ignore: Sequence[int | str] = ()
    scope: Scope = "all"
    rounding: Rounding = "systematic"

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"`threshold` must be in [0, 1]; got {self.threshold!r}")
        if not 0 <= self.power < np.inf:
            raise ValueError(f"`power` must be a finite number >= 0; got {self.power!r}")
        if self.cap is not None and not 1 <= self.cap < np.inf:
            raise ValueError(f"`cap` must be a finite number >= 1; got {self.cap!r}")
        if self.scope not in ("all", "source"):
            raise ValueError(f"`scope` must be 'all' or 'source'; got {self.scope!r}")
        if self.rounding not in ("systematic", "bernoulli", "ceil"):
            raise ValueError(f"`rounding` must be 'systematic', 'bernoulli' or 'ceil'; got {self.rounding!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCounts:
    """How many samples of one source contain each label of its vocabulary.

    Attributes:
        ids: The vocabulary, increasing, (classes,).
        num_samples: Samples that contain the label, (classes,).
        total: Samples of the source.
        names: The labels' names, (classes,), or None: then the ids mean something within this source only.
    """

    ids: Int64
    num_samples: Int64
    total: int
    names: tuple[str, ...] | None = None


def power_of(value: float, power: float) -> float:
    """Return ``value ** power``, the same on every machine (`pow` of the C library is not).

    >>> power_of(2.0, 0.5) == 2.0**0.5, round(power_of(10.0, 1 / 3), 6)
    (True, 2.154435)
    """
    if power == 0.5:
        return float(np.sqrt(value))
    context = Context(prec=30)
    return float(context.power(Decimal(value), Decimal(power)))


def repeat_factors(frequency: Float64, *, threshold: float, power: float = 0.5, cap: float | None = None) -> Float64:
    """Return each label's repeat factor, ``max(1, (threshold / frequency) ** power)``.

    Labels that never occur get 1: there is nothing to repeat.

    Args:
        frequency: Fraction of samples with the label, (labels,), in [0, 1].
        threshold: Frequency below which a label is repeated, in [0, 1]; 0 repeats nothing.
        power: Exponent, >= 0.
        cap: Largest factor, >= 1.

    Returns:
        Factors >= 1, (labels,).

    >>> repeat_factors(np.array([0.5, 0.01, 0.0]), threshold=0.04).tolist()
    [1.0, 2.0, 1.0]
    """
    factors = np.ones(len(frequency))
    rare = (frequency > 0) & (frequency < threshold)
    ratio = threshold / frequency[rare]
    factors[rare] = np.sqrt(ratio) if power == 0.5 else [power_of(one, power) for one in ratio.tolist()]
    return np.minimum(np.maximum(factors, 1.0), np.inf if cap is None else cap)


def frequencies(counts: Sequence[ClassCounts], *, scope: Scope) -> list[Float64]:
    """Return f(c) for each source's vocabulary: samples with c over the samples of all sources that know c.

    Sources with names are joined by them. Ids without names are a space of their own in each source, so nothing is joined.

    >>> a = ClassCounts(ids=np.array([0, 1]), num_samples=np.array([1, 4]), total=10, names=("cat", "dog"))
    >>> b = ClassCounts(ids=np.array([7]), num_samples=np.array([5]), total=10, names=("cat",))
    >>> [f.tolist() for f in frequencies([a, b], scope="all")]
    [[0.3, 0.4], [0.3]]
    """
    with_label: dict[str, int] = {}
    of_sources: dict[str, int] = {}
    for one in counts:
        for name, number in zip(one.names or (), one.num_samples.tolist(), strict=False):
            with_label[name] = with_label.get(name, 0) + number
            of_sources[name] = of_sources.get(name, 0) + one.total
    result = []
    for one in counts:
        if one.names is None or scope == "source":
            result.append(one.num_samples / max(1, one.total))
        else:
            result.append(np.array([with_label[name] / max(1, of_sources[name]) for name in one.names], np.float64))
    return result


def class_factors(counts: Sequence[ClassCounts], how: RepeatFactor) -> list[Int64]:
    """Return r(c) in units of 2**-20 for each source's vocabulary, (classes,) each.

    Raises:
        LabelError: If `how.ignore` names a label that no source knows.
    """
    known = {one for source in counts for one in (*source.ids.tolist(), *(source.names or ()))}
    unknown = [one for one in how.ignore if one not in known]
    if unknown:
        raise LabelError(f"`ignore` must name labels that occur in a vocabulary; no source has {unknown[0]!r}")
    result = []
    for source, frequency in zip(counts, frequencies(counts, scope=how.scope), strict=True):
        factors = repeat_factors(frequency, threshold=how.threshold, power=how.power, cap=how.cap)
        names = source.names or ("",) * len(factors)
        ignored = [
            label in how.ignore or name in how.ignore for label, name in zip(source.ids.tolist(), names, strict=True)
        ]
        factors[np.array(ignored, bool)] = 1.0
        result.append(np.rint(factors * ONE).astype(np.int64))
    return result


def sample_factors(presence: Presence, ids: Int64, factors: Int64) -> Int64:
    """Return r(I) of each row, (rows,): the largest factor of its labels, `ONE` without labels.

    Args:
        presence: Labels of the rows.
        ids: The vocabulary, increasing, (classes,); it must hold every label of the rows.
        factors: r(c) in units of 2**-20, (classes,).

    >>> rows = Presence.of([[3, 9], [], [3]])
    >>> (sample_factors(rows, np.array([3, 9]), np.array([ONE, 5 * ONE])) // ONE).tolist()
    [5, 1, 1]
    """
    result = np.full(presence.num_rows, ONE, np.int64)
    filled = presence.indptr[1:] > presence.indptr[:-1]  # reduceat on an empty row would give the next row's label
    if filled.any():
        of_entries = factors[np.searchsorted(ids, presence.ids)]
        result[filled] = np.maximum.reduceat(of_entries, presence.indptr[:-1][filled])
    return result


def rarest_labels(presence: Presence, ids: Int64, frequency: Float64) -> Int64:
    """Return the index in `ids` of each row's rarest label, (rows,), -1 without labels.

    As r(c) falls with f(c), ``r(I) = r(rarest label of I)`` for every threshold and power: one integer a row in place of
    its labels, as long as no label is ignored.
    """
    by_frequency = np.argsort(frequency, kind="stable")
    rank_of = np.empty(len(ids), np.int64)
    rank_of[by_frequency] = np.arange(len(ids))
    result = np.full(presence.num_rows, -1, np.int64)
    filled = presence.indptr[1:] > presence.indptr[:-1]
    if filled.any():
        ranks = np.minimum.reduceat(rank_of[np.searchsorted(ids, presence.ids)], presence.indptr[:-1][filled])
        result[filled] = by_frequency[ranks]
    return result
