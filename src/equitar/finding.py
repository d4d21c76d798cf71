"""What is a finding? One thing in a report that a person should look at, with the number found and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

Level: TypeAlias = Literal["problem", "look", "note"]
LEVELS: tuple[Level, ...] = ("problem", "look", "note")

_NAMED = 3


class Finding(NamedTuple):
    """One thing to look at.

    Attributes:
        kind: Which rule found it: the anchor of its section in the documentation.
        level: ``problem``: training will not do what was meant; ``look``: make sure that it was meant; ``note``: good to know.
        found: What was found, with its number.
        todo: What to do.
    """

    kind: str
    level: Level
    found: str
    todo: str


def listed(names: Sequence[str]) -> str:
    """Return some names in a row.

    >>> listed(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
