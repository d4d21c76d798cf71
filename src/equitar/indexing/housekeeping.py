"""What did writes leave that were killed? A file is written under a name of its own first; if its process dies, that stays.

It is removed by the next `index`, once it is so old that nobody writes it any more: other machines may be at work in the same
folder. Folders here are looked at, network mounts too; stores of objects show no file that is not whole.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

from equitar.storage import ShardList, join, local_path, sidecar_path

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
