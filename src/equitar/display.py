"""Short texts and tables of objects, for `repr` and notebooks. They show what is known already: nothing is read for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TypeAlias

from equitar.text import table

_MOST_ROWS = 10
_MOST_CHARACTERS = 80  # of a cell
Table: TypeAlias = Sequence[Sequence[str]]  # its first row is the head


class Overview:
    """An object that shows itself in a few lines, and as tables in notebooks."""

    __slots__ = ()

    def _overview(self) -> tuple[str, list[Table]]:
        """Return a title, which may have lines, and tables; of many rows only the first are shown."""
        raise NotImplementedError

    def __repr__(self) -> str:
        title, tables = self._overview()
        return "\n".join([title, *("  " + line for rows in tables for line in table(cut(rows)).splitlines())])

    def _repr_html_(self) -> str:
        """Return tables for notebooks."""
        title, tables = self._overview()
        lines = "<br>".join(map(escape, title.splitlines()))
        return f"<div><p>{lines}</p>{''.join(map(_table_html, tables))}</div>"


def overview_of(shown: Overview) -> tuple[str, list[Table]]:
    """Return the title and tables of an object, for one that holds it."""
    return shown._overview()  # noqa: SLF001  (not a name for users)


def tables_of(shown: Overview) -> list[Table]:
    """Return the tables of an object, for one that holds it."""
    return overview_of(shown)[1]


def samples_table(samples: Mapping[str, int | None]) -> Table:
    """Return a table of the samples of each source by name, None if not known yet."""
    return [("source", "samples"), *((name, "" if count is None else f"{count:,}") for name, count in samples.items())]


def clipped(text: str, most: int) -> str:
    """Return a text, or its beginning.

    >>> clipped("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= most else text[: most - 1] + "…"


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
    shown = [[clipped(" ".join(cell.split()), _MOST_CHARACTERS) for cell in row] for row in [head, *body[:most]]]
    more = len(body) - most
    return [*shown, *([[f"and {more:,} more", *[""] * (len(head) - 1)]] if more > 0 else [])]
