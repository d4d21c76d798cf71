"""equitar: source-homogeneous batches and repeat factors for WebDataset tar shards.

Build batches with `debiased`, `mixed` or `exact` from a `Source` or several, and load them with `Loader`. Everything that is
emitted is decided before a tar is opened, from sidecars that ``equitar index`` writes.

The public names stand in ``__init__.pyi``, once: type checkers read it, and each name is loaded when it is first used, as
torch and webdataset take seconds that ``equitar index`` has no use for.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

try:
    __version__ = version("equitar")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+unknown"
