"""equitar: source-homogeneous batches and repeat factors for WebDataset tar shards.

Build batches with `debiased`, `mixed` or `exact` from a `Source` or several, and load them with `Loader`. Everything that is
emitted is decided before a tar is opened, from sidecars that ``equitar index`` writes.

The public names stand in ``__init__.pyi``, once: type checkers read it, and each name is loaded when it is first used, as
torch and webdataset take seconds that ``equitar index`` has no use for.
"""

from __future__ import annotations

import lazy_loader

_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    """Return a public name, or the version, which takes as long to look up as all else that is imported here."""
    if name != "__version__":
        return _public(name)
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  (slow to import)

    try:
        return version("equitar")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0+unknown"
