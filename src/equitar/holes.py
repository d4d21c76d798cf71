"""Which shards seem to be missing? Numbers that jump, in names that are else counted through."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

_NUMBER = re.compile(r"([0-9]+)")
_LISTED = 10


def holes(paths: Sequence[str]) -> list[str]:
    """Return the paths that are not there, between two that are, sorted.

    Names that differ in one number are taken for a count if at least half of it is there: dates and every hundredth step are no
    counts. Of several numbers that change, the last one counts.

    >>> holes(["a-000.tar", "a-001.tar", "a-003.tar"]), holes(["20240131.tar", "20240201.tar"])
    (['a-002.tar'], [])
    >>> holes(["0/x-0-of-2.tar", "0/x-2-of-2.tar", "1/x-0-of-2.tar", "1/x-1-of-2.tar"])
    ['0/x-1-of-2.tar']
    """
    families: defaultdict[tuple[str, ...], list[list[str]]] = defaultdict(list)
    for path in paths:
        words = _NUMBER.split(path)
        families[tuple(words[::2])].append(words)
    found = []
    for members in families.values():
        changing = [at for at in range(1, len(members[0]), 2) if len({words[at] for words in members}) > 1]
        if not changing:
            continue
        at = changing[-1]
        runs: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for words in members:
            runs["".join(words[:at]), "".join(words[at + 1 :])].append(words[at])
        found += [f"{before}{text}{after}" for (before, after), texts in runs.items() for text in _absent(texts)]
    return sorted(found)


def _absent(texts: Sequence[str]) -> list[str]:
    """Return the numbers that a count leaves out, as wide as the others."""
    numbers = {int(text) for text in texts}
    first, last = min(numbers), max(numbers)
    if last - first + 1 > 2 * len(numbers):
        return []
    width = min(map(len, texts))
    return [f"{number:0{width}}" for number in range(first, last) if number not in numbers]


def listed_some(paths: Sequence[str]) -> str:
    """Return the first of many paths, and how many more there are.

    >>> listed_some(["a.tar", "b.tar"]), listed_some(list("abcdefghijklm"))[-14:]
    ("'a.tar', 'b.tar'", "'j' and 3 more")
    """
    more = f" and {len(paths) - _LISTED} more" * (len(paths) > _LISTED)
    return ", ".join(map(repr, paths[:_LISTED])) + more
