"""Housekeeping after indexing: leftovers of killed writes, and gaps in the numbers of shards.

A file is written under a temporary name first; if its process dies, that stays. The next `index` removes it, once it is so old
that nobody writes it any more: other machines may be at work in the same folder. This is done in local folders and network
mounts; object stores never show half a file.
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
    """Return the paths that are missing between two that exist, sorted.

    Names that differ in one number are a sequence if at least half of it exists: dates and every hundredth step are not. If
    several numbers vary, the last one counts.

    >>> holes(["a-000.tar", "a-001.tar", "a-003.tar"]), holes(["20240131.tar", "20240201.tar"])
    (['a-002.tar'], [])
    >>> holes(["0/x-0-of-2.tar", "0/x-2-of-2.tar", "1/x-0-of-2.tar", "1/x-1-of-2.tar"])
    ['0/x-1-of-2.tar']
    """
    families: defaultdict[tuple[str, ...], list[list[str]]] = defaultdict(list)
    for path in paths:
        words = _NUMBER.split(path)
        families[tuple(words[::2])].append(words)
    missing = []
    for members in families.values():
        varying = [index for index in range(1, len(members[0]), 2) if len({words[index] for words in members}) > 1]
        if not varying:
            continue
        index = varying[-1]
        runs: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for words in members:
            runs["".join(words[:index]), "".join(words[index + 1 :])].append(words[index])
        missing += [f"{before}{text}{after}" for (before, after), texts in runs.items() for text in _absent(texts)]
    return sorted(missing)


def _absent(texts: Sequence[str]) -> list[str]:
    """Return the numbers that a sequence leaves out, as wide as the others."""
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
    """Remove what killed writes of a source left, and return the paths below the folder of the sidecars.

    Files of other programs or sources are not touched. Any number of processes may do this at once.
    """
    root = local_path(shards.sidecars)
    if root is None:
        return []
    names_in: dict[str, set[str]] = {"": set()}  # by folder below the root
    for path in shards.paths:
        below, _, name = sidecar_path(path).rpartition("/")
        names_in.setdefault(below, set()).add(name)
    stem = re.escape(shards.stem)
    of_source = re.compile(rf"{stem}\.summary\.json|{stem}\.[0-9a-f]{{16}}\.summary\.npz|{_RECIPE}")
    removed = []
    for below, names in names_in.items():
        for name in _partial_files(join(root, below)):
            partial = _PARTIAL.fullmatch(name)
            if partial and (partial["name"] in names or (not below and of_source.fullmatch(partial["name"]))):
                path = f"{below}/{name}" if below else name
                if _removed(Path(root) / path):
                    removed.append(path)
    return sorted(removed)


def _partial_files(folder: str) -> list[str]:
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.name.endswith(".partial")]
    return []


def _removed(path: Path) -> bool:
    """Remove a file if it is stale; false if it is not, cannot be removed, or is gone already."""
    with suppress(OSError):
        if time.time() - path.stat().st_mtime > _STALE:
            path.unlink()
            return True
    return False
