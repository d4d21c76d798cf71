"""Does the memory of a batch go back to the system, to be cleared again for the next one?"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import webdataset as wds

import equitar
from helpers.shards import indexed

BATCH_SIZE, BYTES = 16, 1_000_000
# In a process of its own, whose allocator has learned nothing yet.
SCRIPT = f"""
import resource, sys
import equitar
batches = iter(equitar.debiased([equitar.Source("a", sys.argv[1])], batch_size={BATCH_SIZE}, steps=40, shuffle=64))
for step, batch in enumerate(batches):
    if step == 20:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have rules of their own")
def test_batches_use_the_memory_of_those_before_them(tmp_path: Path) -> None:
    with wds.TarWriter(str(tmp_path / "a.tar")) as shard:
        for number in range(64):
            shard.write({"__key__": f"{number:03d}", "bin": bytes(BYTES)})
    indexed(equitar.Source("a", str(tmp_path / "a.tar")), labels=None)
    # Who sets the bound by hand, as dask does for what it starts, has it as it was set.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "a.tar")],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    pages_of_batches = 19 * BATCH_SIZE * BYTES / 4096
    assert int(ran.stdout) < pages_of_batches / 4
