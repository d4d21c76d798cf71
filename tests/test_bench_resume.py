"""Does the benchmark of resuming run? On a tiny size; its figures are looked at elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "bench_resume.py"


def test_the_benchmark_of_resuming_prints_a_table() -> None:
    command = [sys.executable, str(BENCHMARK), "--tiny"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    heading, *rows = (line.split("\t") for line in ran.stdout.splitlines())
    assert {len(row) for row in rows} == {len(heading)}
    assert [(row[1], row[3]) for row in rows] == [
        (repeats, where) for repeats in ("no", "yes") for where in ("start", "middle", "end")
    ]
    assert all(int(row[-1]) < 1000 for row in rows)
