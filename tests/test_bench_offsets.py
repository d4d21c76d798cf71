"""The benchmark of offsets, at a tiny size: it runs, and writes what it measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import bench_offsets


def test_bench_offsets_measures_disk_and_network_with_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_offsets, "SIZES", {"60 KB": 61_440})
    monkeypatch.setattr(sys, "argv", ["bench_offsets.py", "--out", str(tmp_path), "--megabytes", "0.5", "--waits", "0"])
    bench_offsets.main()
    lines = (tmp_path / "bench_offsets.csv").read_text("utf-8").splitlines()
    assert [line.split(",")[1] for line in lines[1:]] == ["disk", "disk + offsets", "http", "http + offsets"]
