"""Does the benchmark of samplers run? On a tiny dataset; its figures are looked at elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "bench_samplers.py"


@pytest.mark.slow
def test_the_benchmark_prints_a_table() -> None:
    ran = subprocess.run([sys.executable, BENCHMARK, "--tiny"], capture_output=True, text=True, check=True)
    heading, row = (line.split("\t") for line in ran.stdout.splitlines())
    assert (len(heading), row[0]) == (len(row), "tiny")
    assert int(row[-1]) >= 2900
