"""Arrays of NumPy and tensors of torch: names for their kinds, and the few functions that serve both.

Arithmetic that must be the same everywhere (clipping, rounding to the grid, uniforms) is written once, with
functions that both libraries offer under one name: ``xp = namespace(x)``. Nothing here imports torch.
"""

from __future__ import annotations

import sys
from numbers import Integral, Real
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor as Tensor


#: What algorithms compute with: of NumPy, or on a device tensors of torch (see `as_array`).
Array: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
#: 64 fair coins each.
Words: TypeAlias = NDArray[np.uint64]
#: Private arrays of a block's tasks, each with a leading task axis.
States: TypeAlias = dict[str, Array]
#: Public arrays.
Public: TypeAlias = dict[str, Array]


#: Arrays of one of the two libraries: what comes in goes out.
A = TypeVar("A", NDArray[Any], "Tensor")


def namespace(array: object) -> ModuleType:
    """Return the library whose functions take this array: torch for its tensors, NumPy for all else."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(array, torch.Tensor) else np


#: Of Python's whole numbers, the largest that is a float too.
_LARGEST = int(np.finfo(np.float64).max)


def is_real(value: object) -> bool:
    """Say whether a setting is one number, of Python or NumPy, that can be compared with others.

    Whole numbers beyond the largest float are none: nothing could be computed with them.
    """
    fits = not isinstance(value, int) or abs(value) <= _LARGEST
    return fits and isinstance(value, Real)


def is_whole(value: object) -> bool:
    """Say whether a setting is a whole number; True and False are not meant as one."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def on_card(array: object) -> bool:
    """Say whether an array lies on a graphics card, where a look at a number waits for all before it."""
    return bool(getattr(array, "is_cuda", False))


def as_array(tensor: Tensor) -> Array:
    """Hand a tensor to an algorithm, which uses of arrays what both libraries have under one name."""
    return cast(Array, tensor)


def to_uniforms(words: A) -> A:
    """Return the middles of 2^52 equal cells: exact in floating point, hence never 0 or 1.

    Words are 64 fair coins each, as NumPy's unsigned numbers or as signed numbers with the same bits.

    Examples
    --------
    >>> to_uniforms(np.array([0, 2**63, 2**64 - 1], dtype=np.uint64)).tolist()
    [1.1102230246251565e-16, 0.5000000000000001, 0.9999999999999999]
    """
    xp = namespace(words)
    return (xp.asarray(shift_right(words, 12), dtype=xp.float64) + 0.5) * 2.0**-52


def shift_right(words: Any, bits: int) -> Any:
    """Shift words right and fill with zeros, whether they are signed or not."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)
