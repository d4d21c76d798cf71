"""How do statistics and plans look on a terminal, and in JSON?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from equitar.reporting.stats import ClassStats, Stats
from equitar.text import megabytes, table

if TYPE_CHECKING:
    from equitar.reporting.preview import Preview

_LISTED = 12  # classes, or half as many of the rarest and of the commonest
_STRIP = 72  # steps of the schedule


def stats_json(found: Stats) -> dict[str, Any]:
    """Return statistics as what JSON can hold."""
    classes = found.classes
    return {
        "repeat": found.repeat,
        "samples": found.samples,
        "copies": found.copies,
        "sources": [_fields(one) for one in found.sources],
        "classes_without_samples": classes.without_samples if classes else None,
        "classes": [
            {
                "name": name,
                "samples": int(classes.samples[one]),
                "frequency": float(classes.frequency[one]),
                "factor": None if classes.factors is None else float(classes.factors[one]),
                "copies": float(classes.copies[one]),
            }
            for one, name in enumerate(classes.names)
        ]
        if classes
        else None,
    }


def plan_json(found: Preview) -> dict[str, Any]:
    """Return a preview as what JSON can hold; a schedule has the name of every step's source."""
    names = [one.name for one in found.sources]
    schedules = [[names[one] for one in steps.tolist()] for steps in found.schedule or ()]
    return {
        **{name: value for name, value in _fields(found).items() if name not in ("schedule", "sources", "consumers")},
        "sources": [_fields(one) for one in found.sources],
        "consumers": [one._asdict() for one in found.consumers],
        "schedule": schedules[0] if len(schedules) == 1 else schedules or None,
    }


def _fields(value: Any) -> Mapping[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def stats_text(found: Stats, plot: str | None) -> str:
    """Return statistics as tables; `plot` is where they were drawn."""
    rows = [("source", "shards", "samples", "MB", "labels", "classes", "share", "passes", "copies", "share after")]
    rows += [
        (
            one.name,
            f"{one.shards:,}",
            f"{one.samples:,}",
            megabytes(one.bytes),
            "-" if one.labels is None else f"{one.labels:,}",
            "-" if one.classes is None else f"{one.classes:,}",
            f"{one.share_before:.1%}",
            f"{one.passes:.2f}",
            f"{one.copies:,.0f}",
            f"{one.share_after:.1%}",
        )
        for one in found.sources
    ]
    after = f"{found.copies:,.0f} with repeats ({found.repeat})" if found.repeat else "nothing is repeated"
    if not found.repeat and round(found.copies) != found.samples:
        after = f"{found.copies:,.0f} by the plan"
    parts = [table(rows), f"epoch    {found.samples:,} samples; {after}"]
    parts += [_classes_text(found.classes)] if found.classes else ["classes  none: indexed without labels"]
    return "\n\n".join([*parts, *([f"plot     {plot}"] if plot else [])])


def _classes_text(classes: ClassStats) -> str:
    names, samples, factors = classes.names, classes.samples, classes.factors
    lines = [f"classes  {len(names):,} with samples, {classes.without_samples:,} without"]
    if not names:
        return lines[0]
    lines.append(f"rarest   {samples[0]:,} samples ({names[0]}); commonest {samples[-1]:,} ({names[-1]})")
    if factors is not None and (factors > 1).any():
        largest = int(factors.argmax())
        lines.append(
            f"r(c) > 1 {(factors > 1).sum():,} classes; the largest is {factors[largest]:.2f} ({names[largest]})"
        )
    half = _LISTED // 2
    listed = range(len(names)) if len(names) <= _LISTED else [*range(half), *range(len(names) - half, len(names))]
    rows = [("class", "samples", "frequency", "r(c)", "copies", "copies / samples")]
    for one in listed:
        factor = "-" if factors is None else f"{factors[one]:.2f}"
        copies, times = classes.copies[one], classes.copies[one] / samples[one]
        rows.append(
            (names[one], f"{samples[one]:,}", f"{classes.frequency[one]:.3g}", factor, f"{copies:,.1f}", f"{times:.2f}")
        )
    if len(listed) < len(names):
        rows.insert(1 + half, ("...", "", "", "", "", ""))
    return "\n".join([*lines, "", table(rows)])


def plan_text(found: Preview) -> str:
    """Return a preview as tables."""
    ranks = f"{found.world_size} ranks x {found.num_workers} workers"
    head = (
        f"epoch {found.epoch}: {found.steps:,} steps of {found.batch_size} x {found.world_size} samples, {ranks}, "
        f"{found.lanes} lanes, seed {found.seed}, digest {found.digest[:16]}"
    )
    rows = [("source", "batches", "samples", "share", "passes", "remainder", "most copies")]
    rows += [
        (
            one.name,
            "mixed" if one.batches is None else f"{one.batches:,}",
            f"{one.samples:,}",
            f"{one.share:.1%}",
            f"{one.passes:.3f}",
            f"{one.remainder:,}",
            f"{one.most}",
        )
        for one in found.sources
    ]
    readers: list[tuple[str, ...]] = [("rank", "worker", "steps", "shards", "samples", "MB")]
    for *numbers, num_bytes in found.consumers:
        readers.append((*(f"{number:,}" for number in numbers), megabytes(num_bytes)))
    notes = []
    if len(found.consumers) < found.num_consumers:
        notes.append(f"the first {len(found.consumers)} of {found.num_consumers:,} consumers")
    if found.counted_steps < found.steps:
        notes.append(f"counted over the first {found.counted_steps:,} of {found.steps:,} steps")
    return "\n\n".join([head, table(rows), _strip(found), "\n".join([table(readers), *notes])])


def letters_of(names: Sequence[str]) -> list[str]:
    """Return a letter for each name: its first one, unless two names share it.

    >>> letters_of(["cc3m", "sbu"]), letters_of(["cc3m", "cc12m"])
    (['c', 's'], ['A', 'B'])
    """
    initials = [name[0] for name in names]
    return initials if len(set(initials)) == len(names) else [chr(ord("A") + one % 26) for one in range(len(names))]


def _strip(found: Preview) -> str:
    """Return the first steps of the schedule, a letter each."""
    if found.schedule is None:
        return "every batch holds all sources by share"
    names = [one.name for one in found.sources]
    letters = letters_of(names)
    legend = ", ".join(f"{letter} = {name}" for letter, name in zip(letters, names, strict=True))
    strips = [
        "".join(letters[one] for one in steps[:_STRIP].tolist()) + ("..." if len(steps) > _STRIP else "")
        for steps in found.schedule[:8]
    ]
    same = "the same on all ranks" if len(found.schedule) == 1 else f"on the first of {len(found.schedule)} ranks"
    return "\n".join([f"first steps, {same}: {legend}", *(f"  {strip}" for strip in strips)])
