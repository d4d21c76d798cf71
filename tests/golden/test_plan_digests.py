"""Plans may not change: what a few of them emit, as digests kept in plan_digests.json.

A change of any order breaks every run that is resumed, so it needs a new `PLAN_VERSION` and a line in the changelog. Then, and
only then, write the digests again: ``PYTHONPATH=src:tests python tests/golden/test_plan_digests.py > tests/golden/plan_digests.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from equitar.planning.repeat_factors import ONE
from equitar.planning.weights import Passes, Temperature
from helpers.strategies import Case, Stock, emitted

FILE = Path(__file__).with_name("plan_digests.json")


def stock(name: str, rows: int, shards: int, kind: str) -> Stock:
    """Return a source made by plain arithmetic, the same wherever it is made."""
    factors = {
        "once": [ONE] * rows,
        "repeats": [ONE + (row * 7919 % 97) ** 3 * ONE * 4 // 97**3 for row in range(rows)],
        "selection": [(0, ONE, ONE // 3, 2 * ONE)[row * 31 % 4] for row in range(rows)],
    }[kind]
    return Stock(name=name, shards=tuple(tuple(factors[shard::shards]) for shard in range(shards)))


CC, SBU = stock("cc", 211, 5, "once"), stock("sbu", 90, 2, "repeats")
LVIS, TINY = stock("lvis", 160, 7, "selection"), stock("tiny", 24, 1, "once")

PLAIN = Case(
    kind="debiased",
    stocks=(CC, SBU),
    batch_size=4,
    world_size=2,
    workers=2,
    seed=1,
    shuffle=40,
    weights=None,
    steps=None,
)
CASES = {
    "debiased": PLAIN,
    "debiased, one source": replace(PLAIN, stocks=(SBU,), workers=0, shuffle=0),
    "debiased, shares, less than a pass": replace(PLAIN, weights={"cc": 2, "sbu": 1}, steps=21, workers=3),
    "debiased, several passes": replace(PLAIN, stocks=(CC, TINY), weights={"cc": 1, "tiny": 1}, steps=60, batch_size=2),
    "debiased, weights change": replace(
        PLAIN, weights=[(0, Temperature(1.0)), (7, Temperature(5.0)), (15, {"cc": 0, "sbu": 1})], steps=30
    ),
    "debiased, passes": replace(PLAIN, weights=Passes({"cc": 0.5, "sbu": 2}), batch_size=2),
    "debiased, each rank alone": replace(PLAIN, same_source_across="rank", stocks=(CC, SBU, LVIS), batch_size=3),
    "debiased, short left out": replace(PLAIN, small_sources="leave_out", stocks=(CC, TINY), batch_size=16),
    "debiased, bernoulli": replace(PLAIN, stocks=(CC, replace(SBU, rounding="bernoulli")), batch_size=2),
    "mixed": replace(PLAIN, kind="mixed", stocks=(CC, SBU, LVIS)),
    "mixed, single samples": replace(PLAIN, kind="mixed", stocks=(SBU,), batch_size=1, world_size=1),
    "mixed, shares": replace(PLAIN, kind="mixed", stocks=(CC, TINY), weights={"cc": 1, "tiny": 1}, steps=30, workers=3),
    "mixed, less than a pass": replace(PLAIN, kind="mixed", stocks=(CC, LVIS), steps=13, workers=0),
    "mixed, independent": replace(PLAIN, kind="mixed", stocks=(CC, SBU, LVIS), composition="independent"),
    "mixed, less than a pass, independent": replace(
        PLAIN, kind="mixed", stocks=(CC, LVIS), steps=13, workers=0, composition="independent"
    ),
}


def digest_of(case: Case) -> dict[str, str]:
    """Return the digests of everything that a plan emits in its first epochs, of substitutes, and its own."""
    places, stand_ins = hashlib.sha256(), hashlib.sha256()
    for epoch in range(3):
        plan = case.plan(epoch)
        for step, batch in enumerate(emitted(plan, case)):
            places.update(repr((epoch, step, [tuple(item) for item in batch])).encode())
        for slot in range(case.global_batch):
            step = slot * 5 % plan.num_steps
            stand_ins.update(repr((epoch, step, slot, list(islice(plan.substitutes(step, slot), 3)))).encode())
    return {
        "plan": case.plan().digest,
        "places": places.hexdigest()[:32],
        "substitutes": stand_ins.hexdigest()[:32],
    }


@pytest.mark.parametrize("name", CASES)
def test_a_plan_emits_what_it_always_did(name: str) -> None:
    assert digest_of(CASES[name]) == json.loads(FILE.read_text(encoding="utf-8"))[name]


def test_another_process_with_other_hashes_of_text_makes_the_same_plans() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == json.loads(FILE.read_text(encoding="utf-8"))


def test_no_two_of_the_plans_are_the_same() -> None:
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    assert set(kept) == set(CASES)
    for column in ("plan", "places"):
        assert len({digests[column] for digests in kept.values()}) == len(kept)


if __name__ == "__main__":
    print(json.dumps({name: digest_of(case) for name, case in CASES.items()}, indent=1))
