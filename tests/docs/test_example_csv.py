"""Does the CSV example do what it says? It asserts that CSVs and shards draw the same sources, on two ranks that it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "captions_csv.py"


@pytest.mark.distributed
@pytest.mark.slow
def test_csvs_and_shards_draw_the_same_sources_on_two_ranks() -> None:
    ran = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=False, timeout=240)
    assert ran.returncode == 0, ran.stderr
    epochs = [line.split(": ")[1].split() for line in ran.stdout.splitlines() if line.startswith("epoch")]
    assert [sorted(names) for names in epochs] == [["cc3m"] * 12 + ["sbu"] * 5] * 2
    assert epochs[0] != epochs[1]


def test_the_example_can_be_read_at_once() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 100
