"""Short texts and tables of objects, for `repr` and notebooks. They show what is known already: nothing is read for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple, TypeAlias

from equitar.text import counted, table

_MOST_ROWS = 10
_MOST_CHARACTERS = 40  # of a name
_MOST_LETTERS = 80  # of a cell
Table: TypeAlias = Sequence[Sequence[str]]  # its first row is the head


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


class Overview:
    """A result that shows itself in a few lines, and as tables in notebooks."""

    __slots__ = ()

    def _overview(self) -> tuple[str, list[Table]]:
        """Return a title and tables; of many rows only the first are shown."""
        raise NotImplementedError

    def __repr__(self) -> str:
        title, tables = self._overview()
        return "\n".join([title, *("  " + line for rows in tables for line in table(cut(rows)).splitlines())])

    def _repr_html_(self) -> str:
        """Return tables for notebooks."""
        title, tables = self._overview()
        return f"<div><p>{escape(title)}</p>{''.join(map(_table_html, tables))}</div>"


def tables_of(result: Overview) -> list[Table]:
    """Return the tables of a result, for a result that holds it."""
    return result._overview()[1]  # noqa: SLF001  (not a name for users)


def _table_html(rows: Table) -> str:
    head, *body = cut(rows)
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in body)
    return f"<table><tr>{cells}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def cut(rows: Table, most: int = _MOST_ROWS) -> list[list[str]]:
    """Return the first rows of a table, with long cells cut, and a row for the others.

    >>> cut([["class", "samples"], ["a", "1"], ["b", "2"], ["c", "3"]], most=2)
    [['class', 'samples'], ['a', '1'], ['b', '2'], ['and 1 more', '']]
    """
    head, *body = rows
    shown = [[clipped(" ".join(cell.split()), _MOST_LETTERS) for cell in row] for row in [head, *body[:most]]]
    more = len(body) - most
    return [*shown, *([[f"and {more:,} more", *[""] * (len(head) - 1)]] if more > 0 else [])]
