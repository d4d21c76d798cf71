"""Types of numpy arrays: integers, unsigned integers and floats of 64 bits."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Int64: TypeAlias = NDArray[np.int64]
UInt64: TypeAlias = NDArray[np.uint64]
Float64: TypeAlias = NDArray[np.float64]
