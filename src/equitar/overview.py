"""Short texts and notebook tables of results: a title, and tables of at most a few rows."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TypeAlias

from equitar.text import table

Table: TypeAlias = Sequence[Sequence[str]]  # its first row is the head
_MOST_ROWS = 10
_MOST_LETTERS = 80  # of a cell, such as a name


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
        return f"<div><p>{escape(title)}</p>{''.join(map(_html, tables))}</div>"


def tables_of(result: Overview) -> list[Table]:
    """Return the tables of a result, for a result that holds it."""
    return result._overview()[1]  # noqa: SLF001  (not a name for users)


def _html(rows: Table) -> str:
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
    shown = [[_cut(cell) for cell in row] for row in [head, *body[:most]]]
    more = len(body) - most
    return [*shown, *([[f"and {more:,} more", *[""] * (len(head) - 1)]] if more > 0 else [])]


def _cut(cell: str) -> str:
    line = " ".join(cell.split())
    return line if len(line) <= _MOST_LETTERS else line[: _MOST_LETTERS - 1] + "…"
