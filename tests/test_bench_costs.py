"""The map of costs adds up, at a tiny size."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

import bench_costs
from shards import let_webdataset_close


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves closing to the collector
def test_bench_costs_shares_out_the_time_of_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_costs, "SIZES", {"4 KB": 4096})
    monkeypatch.setattr(sys, "argv", ["bench_costs.py", "--out", str(tmp_path), "--samples", "4", "--rounds", "1"])
    bench_costs.main()
    let_webdataset_close()
    with (tmp_path / "bench_costs.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["reader"] for row in rows} == {"equitar", "webdataset"}
    printed = capsys.readouterr().out
    for reader in ("equitar", "webdataset"):
        parts = [float(row["microseconds_per_sample"]) for row in rows if row["reader"] == reader]
        assert len(parts) == {"equitar": 5, "webdataset": 4}[reader]
        assert f"{reader}: {sum(parts):.1f} microseconds" in printed
