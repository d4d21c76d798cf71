"""Text for people: tables, counts, lists of names, sizes and times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


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


def listed(items: Sequence[object], most: int = 3, *, quote: bool = False) -> str:
    """Return the first of some items, and the number of the others.

    >>> listed("abcde"), listed(["a.tar", "b.tar"], quote=True)
    ('a, b, c and 2 more', "'a.tar', 'b.tar'")
    """
    more = f" and {len(items) - most:,} more" if len(items) > most else ""
    return ", ".join(map(repr if quote else str, items[:most])) + more


def did_you_mean(word: str, known: Iterable[str], *, spelled: Mapping[str, str] | None = None) -> str:
    """Return the question whether the most similar of some words was meant, to follow a word; nothing if none is similar.

    Args:
        word: An unknown word.
        known: Known words.
        spelled: How they are written, where that is another way.

    >>> did_you_mean("idnex", ["index", "check"]), did_you_mean("x", ["index"])
    (" (did you mean 'index'?)", '')
    >>> did_you_mean("jsn", ["json"], spelled={"json": "json:objects"})
    " (did you mean 'json:objects'?)"
    """
    spelling = spelled or {}
    return "".join(f" (did you mean {spelling.get(name, name)!r}?)" for name in get_close_matches(word, [*known], n=1))


def duration(seconds: float) -> str:
    """Return a time in the units that suit it.

    >>> duration(0.05), duration(75), duration(7380)
    ('0.1 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def scaled(number: float) -> tuple[float, str]:
    """Return a number in its unit, and the letter of the unit: k, M, G and so on.

    >>> scaled(950), scaled(2_500_000)
    ((950, ''), (2.5, 'M'))
    """
    return next(((number / unit, letter) for unit, letter in _UNITS if number >= unit), (number, ""))


def size_in_words(num_bytes: float) -> str:
    """Return a number of bytes in the unit that suits it.

    >>> size_in_words(950), size_in_words(1_234_567), size_in_words(98.76e9)
    ('950 B', '1.2 MB', '98.8 GB')
    """
    number, letter = scaled(num_bytes)
    return f"{number:,.1f} {letter}B" if letter else f"{number:,.0f} B"


def megabytes(num_bytes: float) -> str:
    """Return a number of bytes in MB, for the column of a table.

    >>> megabytes(1_234_567_890)
    '1,234.6'
    """
    return f"{num_bytes / 1e6:,.1f}"


def three_digits(number: float) -> str:
    """Return a number in three digits, for a headline.

    >>> three_digits(9_999), three_digits(17_446), three_digits(1_740_000)
    ('9,999', '17.4 k', '1.74 M')
    """
    value, letter = scaled(number)
    return f"{value:.{max(0, 3 - len(str(int(value))))}f} {letter}" if number >= 1e4 else f"{number:,.0f}"
