"""Text for people: tables, counts, lists of names, sizes and times."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, what: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "worker"), counted(2000, "round")
    ('1 worker', '2,000 rounds')
    """
    return f"{number:,} {what}" + "s" * (number != 1)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as aligned columns: the first one to the left, all others to the right.

    >>> print(table([("source", "samples"), ("sbu", "1,024")]))
    source  samples
    sbu       1,024
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        ).rstrip()
        for row in rows
    )


_FEW = 5


def _listed(items: Sequence[object]) -> str:
    more = f" and {len(items) - _FEW} more" * (len(items) > _FEW)
    return ", ".join(map(str, items[:_FEW])) + more


_LISTED = 10


def listed_some(paths: Sequence[str]) -> str:
    """Return the first of many paths, and how many more there are.

    >>> listed_some(["a.tar", "b.tar"]), listed_some(list("abcdefghijklm"))[-14:]
    ("'a.tar', 'b.tar'", "'j' and 3 more")
    """
    more = f" and {len(paths) - _LISTED} more" * (len(paths) > _LISTED)
    return ", ".join(map(repr, paths[:_LISTED])) + more


def _time(seconds: float) -> str:
    """Return a time as one would say it.

    >>> _time(0.05), _time(75), _time(7380)
    ('0.1 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


_NAMED = 3


def quoted(names: Sequence[str]) -> str:
    """Return some names in a row, in quotes, each once.

    >>> quoted(["a", "a", "b"])
    "'a', 'b'"
    """
    return listed([repr(name) for name in dict.fromkeys(names)])


def listed(names: Sequence[str]) -> str:
    """Return some names in a row.

    >>> listed(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def size_in_words(num_bytes: float) -> str:
    """Return a number of bytes in the unit that suits it.

    >>> size_in_words(950), size_in_words(1_234_567), size_in_words(98.76e9)
    ('950 B', '1.2 MB', '98.8 GB')
    """
    for unit, name in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:,.1f} {name}"
    return f"{num_bytes:,.0f} B"


def _short(number: float) -> str:
    """Return a number in three digits, for a headline.

    >>> _short(9_999), _short(17_446), _short(1_740_000)
    ('9,999', '17.4 k', '1.74 M')
    """
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= max(unit, 1e4):
            return f"{number / unit:.{max(0, 3 - len(str(int(number / unit))))}f} {letter}"
    return f"{number:,.0f}"
