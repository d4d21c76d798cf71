"""Scripts as ranks: torchrun starts them on this machine, and they meet through the loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def torchrun(script: Path, *words: object, ranks: int) -> subprocess.CompletedProcess[str]:
    """Run a script as so many ranks, with the helpers of tests at hand, and return how it ended."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={ranks}"]
    command = [sys.executable, "-W", "ignore", *launcher, str(script), *map(str, words)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *(path for path in sys.path if path)]),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=230, check=False)
