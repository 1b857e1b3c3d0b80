"""Names for kinds of arrays, defined once."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Floats", "Integers", "Public", "States", "Words"]

Array: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
#: 64 fair coins each.
Words: TypeAlias = NDArray[np.uint64]
#: Private arrays of a block's tasks, each with a leading task axis.
States: TypeAlias = dict[str, Array]
#: Public arrays.
Public: TypeAlias = dict[str, Array]
