"""The benchmark of many shards, at a tiny size: it runs, and what is under way stays as it is."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

import bench_many


def test_bench_many_shows_that_what_is_under_way_does_not_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_many.py", "--tiny", "--out", str(tmp_path), "--at-once", "2"])
    bench_many.main()
    with (tmp_path / "bench_many.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["shards"] for row in rows] == ["20", "40"]
    assert [row["under_way"] for row in rows] == ["8", "8"]
    assert "under_way" in capsys.readouterr().out
