"""Repeat factors of samples from their labels, as in LVIS (Gupta, Dollar and Girshick 2019, arXiv 1908.03195, appendix B.1).

1. For each label c, its frequency f(c): the fraction of samples that contain it.
2. For each label c, its repeat factor ``r(c) = max(1, (t / f(c)) ** p)``, where p = 1/2 gives the square root of LVIS.
3. For each sample I, ``r(I) = max of r(c) over its labels``, and 1 if it has none.

The instance-aware variant (IRFS: Yaman, Mahmud and Liu 2023, arXiv 2305.08069) takes for f(c) the geometric mean of that
fraction of the samples and of the fraction of all instances (boxes, say) that are of c.

Factors are held as integers in units of 2**-20 copies (`ONE` is one copy), so that sums are exact and equal everywhere:
division and square root are exact under IEEE 754, and other powers go through `decimal`, which is software. How many samples
contain each label is counted over parts of a source, such as shards or blocks of rows, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np

from equitar.arrays import Float64, Int64
from equitar.checks import plain_number
from equitar.errors import LabelError, PlanError
from equitar.presence import Presence, positions_of
from equitar.text import listed

Rounding: TypeAlias = Literal["systematic", "bernoulli", "ceil"]
Scope: TypeAlias = Literal["all", "source"]
Heuristic: TypeAlias = Literal["lvis", "irfs"] | Callable[[Float64], Any]
Empty: TypeAlias = Literal["keep", "drop"]
Function = TypeVar("Function", bound=Callable[..., Any])
ONE = 1 << 20


@dataclass(frozen=True, slots=True)
class RepeatFactor:
    """How labels become repeat factors.

    Attributes:
        threshold: The t above: labels rarer than this are repeated, in [0, 1]; 0 repeats nothing. ``"median"`` is the median of
            f(c) over the labels that occur.
        power: The p above, >= 0; 0.5 is LVIS.
        cap: Largest factor, >= 1.
        ignore: Labels (names or ids) that repeat nothing.
        scope: Whether f(c) is taken over all sources that know the label, or in each source alone.
        rounding: How factors become whole copies: `systematic` gives floor or ceil with mean exactly r, `bernoulli` draws
            each sample alone (Detectron2), `ceil` rounds up (mmdetection).
        heuristic: ``"lvis"``, ``"irfs"`` (f(c) is the geometric mean of the fractions of samples and of instances), or a function
            that takes f(c), (labels,), and returns r(c) >= 0, (labels,), in place of the formula.
        min_count: Labels that fewer samples have than this repeat nothing, >= 0: they may be mistakes.
        empty: What becomes of samples without labels: ``"keep"`` (once, r = 1), or ``"drop"`` (as if they did not exist).
    """

    threshold: float | Literal["median"] = 0.0
    power: float = 0.5
    cap: float | None = None
    ignore: Sequence[int | str] = ()
    scope: Scope = "all"
    rounding: Rounding = "systematic"
    heuristic: Heuristic = "lvis"
    min_count: int = 0
    empty: Empty = "keep"

    def __post_init__(self) -> None:
        if not (self.threshold == "median" if isinstance(self.threshold, str) else 0 <= self.threshold <= 1):
            raise ValueError(f"`threshold` must be in [0, 1] or 'median'; got {self.threshold!r}")
        if not 0 <= self.power < np.inf:
            raise ValueError(f"`power` must be a finite number >= 0; got {self.power!r}")
        if self.cap is not None and not 1 <= self.cap < np.inf:
            raise ValueError(f"`cap` must be a finite number >= 1; got {self.cap!r}")
        if self.scope not in ("all", "source"):
            raise ValueError(f"`scope` must be 'all' or 'source'; got {self.scope!r}")
        if self.rounding not in ("systematic", "bernoulli", "ceil"):
            raise ValueError(f"`rounding` must be 'systematic', 'bernoulli' or 'ceil'; got {self.rounding!r}")
        if not callable(self.heuristic) and self.heuristic not in ("lvis", "irfs"):
            raise ValueError(f"`heuristic` must be 'lvis', 'irfs' or a function of f(c); got {self.heuristic!r}")
        if callable(self.heuristic) and self.threshold != 0:
            raise ValueError(f"`threshold` must be left out where `heuristic` is a function; got {self.threshold!r}")
        if self.min_count < 0:
            raise ValueError(f"`min_count` must be >= 0; got {self.min_count!r}")
        if self.empty not in ("keep", "drop"):
            raise ValueError(f"`empty` must be 'keep' or 'drop'; got {self.empty!r}")

    @staticmethod
    def of(repeat: float | str | RepeatFactor | Function | None) -> RepeatFactor | Function | None:
        """Return what an argument `repeat` means: a threshold (a number, or 'median') is short for its `RepeatFactor`.

        Raises:
            PlanError: If it is neither of these, a function or None.
        """
        if repeat is None or isinstance(repeat, RepeatFactor) or callable(repeat):
            return repeat
        if repeat == "median":
            return RepeatFactor("median")
        threshold = plain_number(repeat)
        if threshold is None or not 0 <= threshold <= 1:
            wanted = "a threshold in [0, 1], 'median', a RepeatFactor or a function"
            raise PlanError(f"`repeat` must be {wanted}; got {repeat!r:.80}")
        return RepeatFactor(threshold)

    @property
    def without_labels(self) -> int:
        """Factor of a sample without labels, in units of 2**-20 copies."""
        return ONE if self.empty == "keep" else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCounts:
    """How many samples of one source contain each label of its vocabulary.

    Attributes:
        ids: The vocabulary, increasing, (classes,).
        num_samples: Samples that contain the label, (classes,).
        total: Samples of the source.
        names: The labels' names, (classes,), or None: then the ids mean something within this source only.
        num_instances: How often each label occurs in all its samples together, (classes,), or None where it was not counted.
    """

    ids: Int64
    num_samples: Int64
    total: int
    names: tuple[str, ...] | None = None
    num_instances: Int64 | None = None

    def over(self, vocabulary: Int64, names: tuple[str, ...]) -> ClassCounts:
        """Return the same counts over a larger vocabulary, increasing, with names, (classes,) each."""

        def spread(numbers: Int64) -> Int64:
            result = np.zeros(len(vocabulary), np.int64)
            result[np.searchsorted(vocabulary, self.ids)] = numbers
            return result

        return ClassCounts(
            ids=vocabulary,
            num_samples=spread(self.num_samples),
            total=self.total,
            names=names,
            num_instances=None if self.num_instances is None else spread(self.num_instances),
        )


class IdOverlap(NamedTuple):
    """Ids without class names that occur in several sources, where they are different classes.

    Attributes:
        sources: These sources.
        ids: How many ids occur in two of them or more.
        example: The smallest of these.
    """

    sources: tuple[str, ...]
    ids: int
    example: int

    def __str__(self) -> str:
        ids = f"{self.ids:,} ids, such as {self.example}, are" if self.ids > 1 else f"id {self.example} is"
        return f"without class names, {ids} a different class in each of the sources {listed(self.sources)}"


def id_overlap(ids: Mapping[str, Int64]) -> IdOverlap | None:
    """Return which ids, (ids,) without repetition by the name of a source without class names, occur in several; None if none do.

    >>> id_overlap({"a": np.array([0, 1, 2]), "b": np.array([7]), "c": np.array([2, 3])})
    IdOverlap(sources=('a', 'c'), ids=1, example=2)
    """
    occurring, times = np.unique(np.concatenate([np.zeros(0, np.int64), *ids.values()]), return_counts=True)
    shared = occurring[times > 1]
    if not len(shared):
        return None
    sources = tuple(name for name, of_source in ids.items() if np.isin(of_source, shared).any())
    return IdOverlap(sources, len(shared), int(shared[0]))


def shared_vocabulary(
    vocabularies: Mapping[str, tuple[Int64, Mapping[int, str] | None]],
) -> tuple[Int64, tuple[str, ...]]:
    """Return the vocabulary of sources whose ids mean the same classes: all ids, increasing, and a name for each.

    Args:
        vocabularies: By the name of a source: its ids, and their names or None.

    Raises:
        LabelError: If two sources have different names for an id.

    >>> shared_vocabulary({"a": (np.array([3, 9]), None), "b": (np.array([1, 3]), {1: "cat", 3: "9"})})
    (array([1, 3, 9]), ('cat', '9', 'id 9'))
    """
    named: dict[int, tuple[str, str]] = {}  # by id: its name, and the source that gives it
    for source, (_, names) in vocabularies.items():
        for label, name in (names or {}).items():
            other, where = named.setdefault(label, (name, source))
            if other != name:
                raise LabelError(
                    f"`labels_shared` needs one class for each id, but {label} is {other!r} in source {where!r} and {name!r} in "
                    f"source {source!r}; index one of them with the class names of the other, or leave `labels_shared` out"
                )
    ids = np.unique(np.concatenate([np.zeros(0, np.int64), *(of_source for of_source, _ in vocabularies.values())]))
    taken, result = {name for name, _ in named.values()}, []
    for label in ids.tolist():
        name = named[label][0] if label in named else str(label)
        while label not in named and name in taken:  # a class of another id has this name
            name = f"id {name}"
        result.append(name)
    return ids, tuple(result)


@lru_cache(maxsize=1 << 12)
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
    factors[rare] = np.sqrt(ratio) if power == 0.5 else [power_of(number, power) for number in ratio.tolist()]
    return np.minimum(np.maximum(factors, 1.0), np.inf if cap is None else cap)


def frequencies(counts: Sequence[ClassCounts], *, scope: Scope) -> list[Float64]:
    """Return f(c) for each source's vocabulary: samples with c over the samples of all sources that know c.

    Sources with names are joined by them. Ids without names are a space of their own in each source, so nothing is joined.

    >>> a = ClassCounts(ids=np.array([0, 1]), num_samples=np.array([1, 4]), total=10, names=("cat", "dog"))
    >>> b = ClassCounts(ids=np.array([7]), num_samples=np.array([5]), total=10, names=("cat",))
    >>> [f.tolist() for f in frequencies([a, b], scope="all")]
    [[0.3, 0.4], [0.3]]
    """
    with_label = _pooled(counts, [source.num_samples for source in counts], scope=scope)
    of_sources = _pooled(counts, [np.full(len(source.ids), source.total) for source in counts], scope=scope)
    return [number / np.maximum(1, total) for number, total in zip(with_label, of_sources, strict=True)]


def _pooled(counts: Sequence[ClassCounts], numbers: Sequence[Int64], *, scope: Scope) -> list[Int64]:
    """Return one number for each label of each vocabulary, summed over the sources that know it."""
    sums: dict[str, int] = {}
    for source, values in zip(counts, numbers, strict=True):
        for name, number in zip(source.names or (), values.tolist(), strict=False):
            sums[name] = sums.get(name, 0) + number
    return [
        values
        if source.names is None or scope == "source"
        else np.array([sums[name] for name in source.names], np.int64)
        for source, values in zip(counts, numbers, strict=True)
    ]


def instance_frequencies(counts: Sequence[ClassCounts], *, scope: Scope) -> list[Float64]:
    """Return for each source's vocabulary the fraction of all instances, of the sources that know a label, that are of it.

    >>> source = ClassCounts(ids=np.array([0, 1]), num_samples=np.array([1, 4]), total=9, num_instances=np.array([2, 6]))
    >>> [f.tolist() for f in instance_frequencies([source], scope="all")]
    [[0.25, 0.75]]
    """
    numbers = [source.num_instances for source in counts]
    assert all(number is not None for number in numbers), "instances are counted where the heuristic asks for them"
    known = [number for number in numbers if number is not None]
    of_label = _pooled(counts, known, scope=scope)
    of_all = _pooled(counts, [np.full(len(number), number.sum()) for number in known], scope=scope)
    return [number / np.maximum(1, total) for number, total in zip(of_label, of_all, strict=True)]


def heuristic_frequencies(counts: Sequence[ClassCounts], repeat_factor: RepeatFactor) -> list[Float64]:
    """Return f(c) as the heuristic takes it, for each source's vocabulary, (classes,) each."""
    result = frequencies(counts, scope=repeat_factor.scope)
    if repeat_factor.heuristic == "irfs":
        pairs = zip(result, instance_frequencies(counts, scope=repeat_factor.scope), strict=True)
        result = [np.sqrt(of_samples * of_instances) for of_samples, of_instances in pairs]
    return result


def thresholds_of(
    counts: Sequence[ClassCounts], by_source: Sequence[Float64], repeat_factor: RepeatFactor
) -> list[float]:
    """Return the threshold for each source; a median counts every label once, and only those that occur.

    Args:
        counts: The labels of each source.
        by_source: f(c) of them, from `heuristic_frequencies`.
        repeat_factor: How labels become repeat factors.
    """
    if repeat_factor.threshold != "median":
        return [repeat_factor.threshold] * len(counts)
    labels: list[dict[object, float]] = []
    for index, (source, frequency) in enumerate(zip(counts, by_source, strict=True)):
        known = source.names or [(index, label) for label in source.ids.tolist()]
        labels.append({label: f for label, f in zip(known, frequency.tolist(), strict=True) if f > 0})
    if repeat_factor.scope == "all":
        labels = [{label: f for each in labels for label, f in each.items()}] * len(counts)
    return [float(np.median(list(each.values()))) if each else 0.0 for each in labels]


def _by_function(function: Callable[[Float64], Any], frequency: Float64, cap: float | None) -> Float64:
    """Return the factors that a user's function gives, (labels,)."""
    factors = np.array(function(frequency.copy()), np.float64)
    if factors.shape != frequency.shape or not ((factors >= 0) & (factors < np.inf)).all():
        shown = f"shape {factors.shape}" if factors.shape != frequency.shape else f"{factors.tolist()!r}"
        raise PlanError(f"`heuristic` must give a finite factor >= 0 for each of {len(frequency)} labels; got {shown}")
    factors[frequency == 0] = 1.0
    return np.minimum(factors, np.inf if cap is None else cap)


def class_factors(counts: Sequence[ClassCounts], repeat_factor: RepeatFactor) -> list[Int64]:
    """Return r(c) in units of 2**-20 for each source's vocabulary, (classes,) each.

    Raises:
        LabelError: If `repeat_factor.ignore` names a label that no source knows.
    """
    known = {label for source in counts for label in (*source.ids.tolist(), *(source.names or ()))}
    unknown = [label for label in repeat_factor.ignore if label not in known]
    if unknown:
        raise LabelError(f"`ignore` must name labels that occur in a vocabulary; no source has {unknown[0]!r}")
    by_source = heuristic_frequencies(counts, repeat_factor)
    enough = _pooled(counts, [source.num_samples for source in counts], scope=repeat_factor.scope)
    result = []
    for source, frequency, threshold, number in zip(
        counts, by_source, thresholds_of(counts, by_source, repeat_factor), enough, strict=True
    ):
        if callable(repeat_factor.heuristic):
            factors = _by_function(repeat_factor.heuristic, frequency, repeat_factor.cap)
        else:
            factors = repeat_factors(frequency, threshold=threshold, power=repeat_factor.power, cap=repeat_factor.cap)
        names = source.names or ("",) * len(factors)
        ignored = [
            label in repeat_factor.ignore or name in repeat_factor.ignore
            for label, name in zip(source.ids.tolist(), names, strict=True)
        ]
        factors[np.array(ignored, bool) | (number < repeat_factor.min_count)] = 1.0
        result.append(np.rint(factors * ONE).astype(np.int64))
    return result


def sample_factors(presence: Presence, ids: Int64, factors: Int64, *, empty: int = ONE) -> Int64:
    """Return r(I) of each row, (rows,): the largest factor of its labels, `empty` without labels.

    Args:
        presence: Labels of the rows.
        ids: The vocabulary, increasing, (classes,); it must hold every label of the rows.
        factors: r(c) in units of 2**-20, (classes,).
        empty: Factor of a row without labels, in these units.

    >>> rows = Presence.of([[3, 9], [], [3]])
    >>> (sample_factors(rows, np.array([3, 9]), np.array([ONE, 5 * ONE])) // ONE).tolist()
    [5, 1, 1]
    """
    result = np.full(presence.num_rows, empty, np.int64)
    filled = presence.indptr[1:] > presence.indptr[:-1]  # reduceat on an empty row would give the next row's label
    if filled.any():
        of_entries = factors[positions_of(ids, presence.ids)]
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
        ranks = np.minimum.reduceat(rank_of[positions_of(ids, presence.ids)], presence.indptr[:-1][filled])
        result[filled] = by_frequency[ranks]
    return result


def count_classes(parts: Iterable[Presence], *, names: Mapping[int, str] | None, empty: Empty) -> ClassCounts:
    """Return how many samples, and how many instances, have each label.

    Args:
        parts: The rows of a source, in any division.
        names: Names of all labels, or None: then the vocabulary is the labels that occur.
        empty: Whether rows without labels count as samples (``"keep"``) or not (``"drop"``).

    >>> counts = count_classes([Presence.of([[3, 3, 7], []]), Presence.of([[7]])], names=None, empty="keep")
    >>> counts.ids.tolist(), counts.num_samples.tolist(), counts.total
    ([3, 7], [1, 2], 3)
    """
    labels, samples, instances, total = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
    for part in parts:
        ids = _different(part.ids)
        positions = positions_of(ids, part.ids)
        labels.append(ids)
        samples.append(np.bincount(positions, minlength=len(ids)))
        instances.append(samples[-1] if (part.counts == 1).all() else _sums(positions, part.counts, len(ids)))
        total += part.num_rows if empty == "keep" else int((np.diff(part.indptr) > 0).sum())
    occurring = np.concatenate(labels)
    vocabulary = np.unique(occurring if names is None else np.array(list(names), np.int64))
    positions = np.searchsorted(vocabulary, occurring)
    return ClassCounts(
        ids=vocabulary,
        num_samples=_sums(positions, np.concatenate(samples), len(vocabulary)),
        total=total,
        names=None if names is None else tuple(names[label] for label in vocabulary.tolist()),
        num_instances=_sums(positions, np.concatenate(instances), len(vocabulary)),
    )


def _different(ids: Int64) -> Int64:
    """Return the different ids, increasing."""
    lowest = int(ids.min(initial=0))
    if int(ids.max(initial=0)) - lowest >= len(ids):
        return np.unique(ids)
    there: Int64 = np.flatnonzero(np.bincount(ids - lowest)) + lowest  # without sorting
    return there


def _sums(positions: Int64, numbers: Int64, length: int) -> Int64:
    """Return the sum of the numbers at each position, exactly: `bincount` with weights would count in floats."""
    sums = np.zeros(length, np.int64)
    np.add.at(sums, positions, numbers)
    return sums
