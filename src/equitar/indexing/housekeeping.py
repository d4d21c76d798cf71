"""What did writes leave that were killed? A file is written under a name of its own first; if its process dies, that stays.

It is removed by the next `index`, once it is so old that nobody writes it any more: other machines may be at work in the same
folder. Folders here are looked at, network mounts too; stores of objects show no file that is not whole.

Which shards seem to be missing? Numbers that jump, in names that are else counted through.
"""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from equitar.storage.listing import ShardList, sidecar_path
from equitar.urls import join, local_path

_NUMBER = re.compile(r"([0-9]+)")


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


_PARTIAL = re.compile(r"(?P<name>.+)\.[0-9a-f]{32}\.partial", re.DOTALL)
_RECIPE = r"\.equitar-[0-9a-f]{32}\.recipe"
_STALE = 86_400.0  # seconds; a write takes a few, and clocks of machines differ by less


def sweep(shards: ShardList) -> list[str]:
    """Remove what killed writes of the sidecars, summaries and recipes of a source left, and return the paths below the sidecars' folder.

    What other programs or sources wrote is not touched. Any number of processes may do it at once.
    """
    root = local_path(shards.sidecars)
    if root is None:
        return []
    names_in: dict[str, set[str]] = {"": set()}  # by folder below the root
    for path in shards.paths:
        below, _, name = sidecar_path(path).rpartition("/")
        names_in.setdefault(below, set()).add(name)
    stem = re.escape(shards.stem)
    of_all = re.compile(rf"{stem}\.summary\.json|{stem}\.[0-9a-f]{{16}}\.summary\.npz|{_RECIPE}")
    removed = []
    for below, names in names_in.items():
        for name in _partial_files(join(root, below)):
            of = _PARTIAL.fullmatch(name)
            if of and (of["name"] in names or (not below and of_all.fullmatch(of["name"]))):
                path = f"{below}/{name}" if below else name
                if _removed(Path(root) / path):
                    removed.append(path)
    return sorted(removed)


def _partial_files(folder: str) -> list[str]:
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.name.endswith(".partial")]
    return []


def _removed(path: Path) -> bool:
    """Remove a file if it is stale; false if it is not, is another's, or is gone already."""
    with suppress(FileNotFoundError, PermissionError):
        if time.time() - path.stat().st_mtime > _STALE:
            path.unlink()
            return True
    return False
