"""A small share of `make fuzz`."""

from __future__ import annotations

from fuzz.fuzz_tars import fuzz


def test_mutated_tars_and_sidecars_give_right_samples_or_our_errors() -> None:
    figures = fuzz(seed=0, first=0, count=1_200)
    assert figures.failures == []
    assert figures.counts["tar read"] > 50
    assert figures.counts["sidecar refused"] > 50
