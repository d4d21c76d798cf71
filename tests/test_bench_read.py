"""The benchmarks of reading, at a tiny size: they run, every contender reads, and the figures are written down."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

import bench_loader
import bench_read

# webdataset leaves its files to the collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def written(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str) -> list[list[str]]:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--out", str(folder), "--samples", "256", "--rounds", "1"])
    {"bench_read": bench_read, "bench_loader": bench_loader}[name].main()
    with (folder / f"{name}.csv").open(newline="") as file:
        return list(csv.reader(file))[1:]


def test_reading_is_measured_beside_webdataset(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = written(monkeypatch, tmp_path, "bench_read")
    assert {row[1] for row in rows} >= {"wds", "raw", "equitar", "debiased", "mixed"}
    assert all(float(row[3]) > 0 for row in rows)
    assert "x wds" in capsys.readouterr().out


def test_loaders_are_measured_beside_webdatasets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = written(monkeypatch, tmp_path, "bench_loader")
    assert {row[1] for row in rows} == {"wds", "equitar pipe", "equitar", "equitar views"}
    assert all(float(row[3]) > 0 for row in rows)
    assert "x wds" in capsys.readouterr().out
