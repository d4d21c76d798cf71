"""Text and JSON of statistics and plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from string import ascii_letters
from typing import TYPE_CHECKING, Any

from equitar.reporting.stats import ClassStats, Stats
from equitar.text import megabytes, table

if TYPE_CHECKING:
    from equitar.reporting.locality import Locality
    from equitar.reporting.preview import Preview

_LISTED = 12  # classes: half of them the rarest, half the commonest
_STRIP = 72  # steps of the schedule


def stats_json(stats: Stats) -> dict[str, Any]:
    """Return statistics as JSON types."""
    classes = stats.classes
    return {
        "repeat": stats.repeat,
        "ids": stats.ids,
        "id_overlap": None if stats.id_overlap is None else stats.id_overlap._asdict(),
        "samples": stats.samples,
        "copies": stats.copies,
        "sources": [_fields(source) for source in stats.sources],
        "classes_without_samples": classes.without_samples if classes else None,
        "classes": [
            {
                "name": name,
                "samples": int(classes.samples[row]),
                "frequency": float(classes.frequency[row]),
                "factor": None if classes.factors is None else float(classes.factors[row]),
                "copies": float(classes.copies[row]),
            }
            for row, name in enumerate(classes.names)
        ]
        if classes
        else None,
    }


def plan_json(preview: Preview) -> dict[str, Any]:
    """Return a plan as JSON types; a schedule has the name of every step's source."""
    names = [source.name for source in preview.sources]
    schedules = [[names[step] for step in steps.tolist()] for steps in preview.schedule or ()]
    return {
        **{
            name: value
            for name, value in _fields(preview).items()
            if name not in ("schedule", "sources", "consumers", "locality")
        },
        "sources": [_fields(source) for source in preview.sources],
        "consumers": [consumer._asdict() for consumer in preview.consumers],
        "locality": [locality._asdict() for locality in preview.locality],
        "schedule": schedules[0] if len(schedules) == 1 else schedules or None,
    }


def _fields(value: Any) -> Mapping[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def stats_text(stats: Stats, plot: str | None = None, *, all_classes: bool = False) -> str:
    """Return statistics as tables, of the rarest and commonest classes or of all; `plot` is the file that they were drawn into."""
    rows = [("source", "shards", "samples", "MB", "labels", "classes", "share", "passes", "copies", "share after")]
    rows += [
        (
            source.name,
            f"{source.shards:,}",
            f"{source.samples:,}",
            megabytes(source.bytes),
            "-" if source.labels is None else f"{source.labels:,}",
            "-" if source.classes is None else f"{source.classes:,}",
            f"{source.share_before:.1%}",
            f"{source.passes:.2f}",
            f"{source.copies:,.0f}",
            f"{source.share_after:.1%}",
        )
        for source in stats.sources
    ]
    after = f"{stats.copies:,.0f} with repeats ({stats.repeat})" if stats.repeat else "nothing is repeated"
    if not stats.repeat and round(stats.copies) != stats.samples:
        after = f"{stats.copies:,.0f} by the plan"
    lines = [f"epoch    {stats.samples:,} samples; {after}"]
    if stats.ids is not None:
        lines.append(f"ids      {stats.ids}")
    if stats.id_overlap is not None:
        lines.append(f"look     {stats.id_overlap}; pass --shared-ids if an id is the same class in all")
    classes = stats.classes
    of_classes = _classes_text(classes, all_classes=all_classes) if classes else "classes  none: indexed without labels"
    parts = [table(rows), "\n".join(lines), of_classes]
    return "\n\n".join([*parts, *([f"plot     {plot}"] if plot else [])])


def _classes_text(classes: ClassStats, *, all_classes: bool) -> str:
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
    is_short = all_classes or len(names) <= _LISTED
    shown = range(len(names)) if is_short else [*range(half), *range(len(names) - half, len(names))]
    rows = [("class", "samples", "frequency", "r(c)", "copies", "copies / samples")]
    for row in shown:
        factor = "-" if factors is None else f"{factors[row]:.2f}"
        copies, times = classes.copies[row], classes.copies[row] / samples[row]
        rows.append(
            (names[row], f"{samples[row]:,}", f"{classes.frequency[row]:.3g}", factor, f"{copies:,.1f}", f"{times:.2f}")
        )
    if len(shown) < len(names):
        rows.insert(1 + half, ("...", "", "", "", "", ""))
    return "\n".join([*lines, "", table(rows)])


def plan_text(preview: Preview) -> str:
    """Return a plan as tables."""
    ranks = f"{preview.world_size} ranks x {preview.num_workers} workers"
    head = (
        f"epoch {preview.epoch}: {preview.steps:,} steps of {preview.batch_size} x {preview.world_size} samples, {ranks}, "
        f"{preview.plan_workers} plan workers, seed {preview.seed}, digest {preview.digest[:16]}"
    )
    rows = [("source", "batches", "samples", "share", "passes", "remainder", "most copies")]
    rows += [
        (
            source.name,
            "mixed" if source.batches is None else f"{source.batches:,}",
            f"{source.samples:,}",
            f"{source.share:.1%}",
            f"{source.passes:.3f}",
            f"{source.remainder:,}",
            f"{source.most}",
        )
        for source in preview.sources
    ]
    readers: list[tuple[str, ...]] = [("rank", "worker", "steps", "shards", "samples", "MB")]
    for *numbers, num_bytes in preview.consumers:
        readers.append((*(f"{number:,}" for number in numbers), megabytes(num_bytes)))
    notes = []
    if len(preview.consumers) < preview.num_consumers:
        notes.append(f"the first {len(preview.consumers)} of {preview.num_consumers:,} workers")
    if preview.counted_steps < preview.steps:
        notes.append(f"counted over the first {preview.counted_steps:,} of {preview.steps:,} steps")
    parts = [head, table(rows), _strip(preview), *_locality_text(preview.locality), "\n".join([table(readers), *notes])]
    return "\n\n".join(parts)


def _locality_text(locality: Sequence[Locality]) -> Iterator[str]:
    """Yield a line about what batches hold, beside a random draw, as ranges over the sources; nothing if it is not known."""
    columns = (
        ("shards", [each.shards for each in locality], [each.random_shards for each in locality]),
        ("classes", [each.classes for each in locality], [each.random_classes for each in locality]),
    )
    held = [f"{_range(numbers)} {what}" for what, numbers, _ in columns if _range(numbers)]
    drawn = [f"{_range(numbers)} {what}" for what, _, numbers in columns if _range(numbers)]
    if held:
        yield f"a batch holds samples of {', '.join(held)}; a random draw of {', '.join(drawn)}"


def _range(numbers: Sequence[float | None]) -> str:
    known = [number for number in numbers if number is not None]
    texts = [f"{number:,.1f}" for number in (min(known), max(known))] if known else []
    return " to ".join(dict.fromkeys(texts))


def letters_of(names: Sequence[str]) -> list[str]:
    """Return a letter for each name: its first one, unless two names share it.

    >>> letters_of(["cc3m", "sbu"]), letters_of(["cc3m", "cc12m"])
    (['c', 's'], ['A', 'B'])
    """
    initials = [name[0] for name in names]
    if len(set(initials)) == len(names):
        return initials
    return [ascii_letters[(number + 26) % 52] for number in range(len(names))]  # capitals first


def _strip(preview: Preview) -> str:
    """Return the first steps of the schedule, a letter each."""
    if preview.schedule is None:
        return "mixed: each batch draws from all sources by share"
    names = [source.name for source in preview.sources]
    letters = letters_of(names)
    legend = ", ".join(f"{letter} = {name}" for letter, name in zip(letters, names, strict=True))
    strips = [
        "".join(letters[source] for source in steps[:_STRIP].tolist()) + ("..." if len(steps) > _STRIP else "")
        for steps in preview.schedule[:8]
    ]
    same = "the same on all ranks" if len(preview.schedule) == 1 else f"on the first of {len(preview.schedule)} ranks"
    return "\n".join([f"first steps, {same}: {legend}", *(f"  {strip}" for strip in strips)])
