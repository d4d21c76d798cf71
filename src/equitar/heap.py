"""What does the memory of a batch cost? More than reading it, where it goes back to the system in between.

glibc gives the end of its heap back when more than a bound is free there, and the system clears every page again for the next batch:
64 samples of 1 MB then take more than twice the time. The bound is not fixed. As `mallopt(3)` says under ``M_MMAP_THRESHOLD``, once a
block that had a mapping of its own is freed, twice its size may be kept. Programs come to that by themselves, with the first large
array they let go of; workers that only ever read samples do not.
"""

from __future__ import annotations

import numpy as np

_BLOCK = 31 << 20  # bytes; glibc learns from blocks of up to 32 MB


def keep_freed_memory() -> None:
    """Let the allocator keep up to 62 MB that are freed, for the next batch; without glibc, nothing changes."""
    np.empty(
        _BLOCK, np.uint8
    )  # freed at once, and never written to: a `bytes` would be cleared where it is not the first
