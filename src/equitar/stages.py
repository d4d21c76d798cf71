"""Stages and readers for pipelines composed by hand: `slices`, `read`, `repeats`, `shuffled`, `batched_by_source`, and more.

Import them from here: ``from equitar.stages import slices, read``. They are defined in the packages that use them, and loaded when
they are first used; ``stages.pyi`` tells type checkers what they are.
"""

from __future__ import annotations

from importlib import import_module

_MODULE_OF = {
    "batched_by_source": "equitar.loading.stages",
    "catalog_of": "equitar.sidecars.catalog",
    "read": "equitar.loading.stages",
    "repeats": "equitar.loading.stages",
    "shuffled": "equitar.loading.stages",
    "slices": "equitar.loading.stages",
    "tar_samples": "equitar.tar.stream",
    "with_partners": "equitar.loading.collate",
}

__all__ = sorted(_MODULE_OF)  # noqa: PLE0605  (a list of names, computed once)


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'equitar.stages' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
