"""The benchmark of indexing, at a tiny size: it runs, and writes what it measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import bench_index
from shards import let_webdataset_close


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves closing to the collector
def test_bench_index_measures_every_contender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_index.py", "--out", str(tmp_path), "--samples", "12", "--rounds", "1"])
    bench_index.main()
    let_webdataset_close()
    lines = (tmp_path / "bench_index.csv").read_text().splitlines()
    contenders = {line.split(",")[1] for line in lines[1:]}
    assert {"wds", "index", "tar_samples"} < contenders
    assert len(lines) == 1 + 2 * len(contenders)
    assert "x wds" in capsys.readouterr().out
