r"""A task's own units: its rows standardised by itself, at home, where nobody is told.

What a task does alone must not depend on how wide a codebook is. So it is done on features less their own
mean and over their own spread; weights v in own units are weights :math:`w = Tv` in public ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Array, Floats

#: Beyond this, numbers are no data.
_ABSURD = 1e100
#: Columns that vary by less than this part of their size are constant, but for rounding.
_CONSTANT = 1e-9
#: A column varies in one row only if no more than this part of its sum of squares is left without that row:
#: a thousandth of the row's distance, so that the long tail of a skewed column is none.
_LONE = 1e-6


@dataclass(frozen=True, eq=False, repr=False)
class OwnUnits:
    """Each task's rows in its own units, and the way back.

    Attributes
    ----------
    rows : array of shape (tasks, rows, d - 1), or (tasks, rows, d) without an intercept
        Standardised features; a column that is constant, or would be without one of the rows, is zero: that
        row may differ in its target for any reason. Without an intercept nothing is centred.
    weight : array of shape (tasks, rows)
        Weights of the rows; zero throughout for a task whose numbers are not finite.
    total : array of shape (tasks,)
        The sum of weights.
    scale, shift : arrays of the shape of a row
        One over each feature's spread, and what the intercept takes back because features were centred.
    front : array of shape (tasks,), optional
        With an intercept, one over the constant in column 0.
    """

    rows: Floats
    weight: Floats
    total: Floats
    scale: Floats
    shift: Floats
    front: Floats | None

    @classmethod
    def of(cls, X: Array, weight: Array, intercept: bool) -> OwnUnits:
        """Standardise a block's features, task by task.

        Examples
        --------
        >>> X = np.array([[[1.0, 5.0], [1.0, 7.0]]])
        >>> units = OwnUnits.of(X, np.ones((1, 2)), intercept=True)
        >>> units.rows.ravel().tolist()
        [-1.0, 1.0]
        >>> (units.back @ np.array([10.0, 2.0])).tolist()  # 10 in the middle, 2 a spread: 2 x - 2
        [[-2.0, 2.0]]
        """
        with np.errstate(all="ignore"):
            size = np.abs(X).max(axis=(1, 2), initial=0.0) + weight.sum(axis=1)
            sane = size < _ABSURD  # False for NaN too
        weight = np.where(sane[:, None], weight, 0.0)
        there = (weight > 0)[..., None]
        X = np.where(there, X, 0.0)
        total = weight.sum(axis=1)
        share = (weight / np.where(total > 0, total, 1.0)[:, None])[:, None, :]
        away = features = X[..., 1:] if intercept else X
        if intercept:
            center = share @ features
            away = np.where(there, features - center, 0.0)
        spread = np.sqrt((share @ np.square(away))[:, 0])
        size = np.maximum(features.max(axis=1, initial=0.0), -features.min(axis=1, initial=0.0))
        varies = spread > _CONSTANT * size
        if intercept:
            varies &= _in_several_rows(away, weight)
        scale = np.where(varies, 1 / np.where(varies, spread, 1.0), 0.0)
        shift, front = np.zeros_like(scale), None
        if intercept:
            constant = (share @ X[..., :1])[:, 0, 0]
            front = 1 / np.where(constant == 0, 1 / math.sqrt(X.shape[2]), constant)
            shift = -center[:, 0] * scale * front[:, None]
        return cls(away * scale[:, None], weight, total, scale, shift, front)

    @property
    def design(self) -> Floats:
        """The rows with a column of ones in front, if there is an intercept."""
        if self.front is None:
            return self.rows
        return np.concatenate([np.where(self.weight > 0, 1.0, 0.0)[..., None], self.rows], axis=2)

    @property
    def back(self) -> Floats:
        """T, (tasks, d, d): from own units (with an intercept, the value at the own mean first) to public."""
        return turned(np.eye(self.scale.shape[1])[None], self.scale, self.shift, self.front)


def _in_several_rows(away: Floats, weight: Floats) -> NDArray[np.bool_]:
    """Say which columns, less their means, still vary if the row farthest from the mean is left out.

    A row that weighs more than 1 counts as several, of which one is left out. Of fewer than four rows every
    column is kept: they have no slopes, and say how wide it is as well as they can.
    """
    squares, total, one = np.square(away), weight.sum(axis=1)[:, None], np.minimum(weight, 1.0)
    few = total < 4
    less = np.where(few, 0.0, one * total / np.where(few, 1.0, total - one))
    left_out = (less[..., None] * squares).max(axis=1, initial=0.0)
    whole = (weight[:, None, :] @ squares)[:, 0]
    return np.asarray(few | (whole - left_out > _LONE * whole))


def turned(basis: Floats, scale: Floats, shift: Floats, front: Floats | None) -> Floats:
    """Return directions of slopes in public units; with an intercept, the value at the own mean first.

    Examples
    --------
    >>> turned(np.eye(1)[None], np.full((1, 1), 2.0), np.full((1, 1), -3.0), np.array([0.5])).tolist()
    [[[0.5, -3.0], [0.0, 2.0]]]
    """
    slopes = scale[:, :, None] * basis
    if front is None:
        return slopes
    found = np.zeros((len(scale), 1 + slopes.shape[1], 1 + slopes.shape[2]))
    found[:, 0, 0] = front
    found[:, :1, 1:] = shift[:, None, :] @ basis
    found[:, 1:, 1:] = slopes
    return found
