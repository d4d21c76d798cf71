"""What does a training read? Its own pipeline, found by name, with other numbers where the command line gives some."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from equitar.catalog import Repeat
from equitar.errors import PlanError, SourceError
from equitar.pipeline import Batches
from equitar.recipe import Exact
from equitar.weights import Weights


def load_training(name: str) -> Batches:
    """Return the batches that ``package.module:name`` names: a pipeline, or a function without arguments that returns one.

    Raises:
        SourceError: If it cannot be imported, or is anything else.
    """
    module, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise SourceError(
            f"SOURCE must be name=urls or package.module:name; module {module!r} of {name!r} cannot be imported ({error})"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            there = ", ".join(sorted(one for one in vars(found) if not one.startswith("_"))[:8]) or "nothing"
            raise SourceError(f"module {module!r} must have {attribute!r} but has {there}")
        found = getattr(found, part)
    made = "" if isinstance(found, Batches) or not callable(found) else " from the call"
    if made and not _needs_nothing(found):
        raise SourceError(f"{attribute!r} of module {module!r} must be callable without arguments; got {found!r}")
    result = found() if made else found
    if not isinstance(result, Batches):
        raise SourceError(
            f"{attribute!r} of module {module!r} must be what `debiased`, `mixed` or `exact` returned, or a function that "
            f"returns it; got {type(result).__name__}{made}"
        )
    return result


def _needs_nothing(function: Callable[..., Any]) -> bool:
    """Return whether a function can be called without arguments."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    except ValueError:  # one written in C may have no signature
        return True
    return True


def adjusted(
    batches: Batches,
    *,
    batch_size: int | None = None,
    world_size: int | None = None,
    seed: int | None = None,
    shuffle: int | None = None,
    repeat: Repeat = None,
    steps: int | None = None,
    weights: Weights | None = None,
) -> Batches:
    """Return batches with other numbers; None keeps what they have. The ranks are those of rank 0 of `world_size`.

    Raises:
        PlanError: If steps or weights are given to `exact`, which has none.
    """
    given = {"batch_size": batch_size, "seed": seed, "shuffle": shuffle, "repeat": repeat, "world_size": world_size}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if world_size is not None:
        changes["rank"] = 0
    of_recipe = {name: value for name, value in (("steps", steps), ("weights", weights)) if value is not None}
    recipe: Any = batches.order.recipe
    if of_recipe and isinstance(recipe, Exact):
        raise PlanError(f"`exact` goes through every sample once and takes no `{next(iter(of_recipe))}`; leave it out")
    if of_recipe:
        changes["recipe"] = replace(recipe, **of_recipe)
    return Batches(replace(batches.order, **changes)) if changes else batches
