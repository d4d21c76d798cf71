"""The request whose plans `bench_plan.py` and `bench_resume.py` measure: 64 samples per rank, shuffled over 5,000, of the last rank."""

from __future__ import annotations

from collections.abc import Sequence

import equitar
from equitar.loading.request import Request, ResolvedRequest
from equitar.planning.recipes import Debiased, Mixed, Recipe
from equitar.ranks import RankChoice

BATCH_SIZE, SHUFFLE = 64, 5_000


def request_of(
    kind: str,
    *,
    ranks: int,
    plan_workers: int | None = None,
    sources: Sequence[equitar.Source] = (),
    resolved: ResolvedRequest | None = None,
) -> Request:
    """Return the request of `debiased` or `mixed`, as the builder makes it but without webdataset, whose memory would count.

    Args:
        kind: Which of them.
        ranks: How many there are.
        plan_workers: As for the builder.
        sources: What it reads of, unless that is resolved.
        resolved: What is looked up once, if it is at hand.
    """
    recipe: Recipe = Mixed(
        weights=None, steps=None, max_passes=None, restart_each_epoch=False, composition="stratified"
    )
    if kind == "debiased":
        recipe = Debiased(
            weights=None, steps=None, max_passes=None, restart_each_epoch=False, same_source_across="world",
            small_sources="error", accumulation_steps=1,
        )  # fmt: skip
    request = Request(
        sources=sources, recipe=recipe, batch_size=BATCH_SIZE, seed=0, shuffle=SHUFFLE, repeat=None, stages=(), collate_fn=None,
        fields=None, copy=True, plan_workers=plan_workers, ranks=RankChoice.of(ranks - 1, ranks), max_substitutes=0, handler=None,
        read_ahead=0, one_source=kind == "debiased",
    )  # fmt: skip
    if resolved is not None:
        request.__dict__["resolved"] = resolved
    return request
