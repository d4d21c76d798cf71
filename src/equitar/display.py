"""Short texts and tables of objects, for `repr` and notebooks. They show what is known already: nothing is read for them."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import NamedTuple

from equitar.text import counted, table

_MOST_ROWS = 10
_MOST_CHARACTERS = 40  # of a name


class Display(NamedTuple):
    """What is shown of an object."""

    titles: tuple[str, ...]  # of the object, and of objects in it
    samples: Mapping[str, int | None]  # of each source, by name; None if not known yet


class Displayed:
    """An object with a short text and a table."""

    def _display(self) -> Display:
        raise NotImplementedError

    def __repr__(self) -> str:
        titles, samples = self._display()
        rows = [
            (clipped(name), "" if count is None else counted(count, "sample"))
            for name, count in list(samples.items())[:_MOST_ROWS]
        ]
        lines = [*(table(rows).splitlines() if rows else ()), *_more(len(samples) - _MOST_ROWS)]
        return "\n".join(
            [
                *("  " * depth + title for depth, title in enumerate(titles)),
                *("  " * len(titles) + line for line in lines),
            ]
        )

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        titles, samples = self._display()
        rows = "".join(
            f"<tr><td>{escape(clipped(name))}</td><td>{'' if count is None else f'{count:,}'}</td></tr>"
            for name, count in list(samples.items())[:_MOST_ROWS]
        )
        return (
            f"<div>{'<br>'.join(map(escape, titles))}<table><tr><th>source</th><th>samples</th></tr>{rows}</table>"
            f"{''.join(_more(len(samples) - _MOST_ROWS))}</div>"
        )


def display_of(displayed: Displayed) -> Display:
    """Return what is shown of an object, for one that holds it."""
    return displayed._display()  # noqa: SLF001  (not a name for users)


def clipped(text: str, most: int = _MOST_CHARACTERS) -> str:
    """Return a text, or its beginning.

    >>> clipped("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def _more(count: int) -> list[str]:
    return [f"and {count:,} more"] if count > 0 else []
