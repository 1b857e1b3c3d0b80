r"""A task's own units: its rows standardised by itself, at home, where nobody is told.

What a task does alone must not depend on how wide a codebook is. So it is done on features less their own
mean and over their own spread; weights v in own units are weights :math:`w = Tv` in public ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cloister.arrays import Array, Floats

__all__ = ["OwnUnits"]

#: Beyond this, numbers are no data.
_ABSURD = 1e100
#: Columns that vary by less than this part of their size are constant, but for rounding.
_CONSTANT = 1e-9


@dataclass(frozen=True, eq=False, repr=False)
class OwnUnits:
    """Each task's rows in its own units, and the way back.

    Attributes
    ----------
    rows : array of shape (tasks, rows, d - 1), or (tasks, rows, d) without an intercept
        Standardised features; a column that is constant is zero. Without an intercept nothing is centred.
    weight : array of shape (tasks, rows)
        Weights of the rows; zero throughout for a task whose numbers are not finite.
    total : array of shape (tasks,)
        The sum of weights.
    back : array of shape (tasks, d, d)
        T, from own units (with an intercept: the value at the task's own mean first) to public ones.
    """

    rows: Floats
    weight: Floats
    total: Floats
    back: Floats

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
        k, _, d = X.shape
        with np.errstate(all="ignore"):
            size = np.abs(X).max(axis=(1, 2), initial=0.0) + weight.sum(axis=1)
            sane = size < _ABSURD  # False for NaN too
        weight = np.where(sane[:, None], weight, 0.0)
        X = np.where((weight > 0)[..., None], X, 0.0)
        total = weight.sum(axis=1)
        share = (weight / np.where(total > 0, total, 1.0)[:, None])[:, None, :]
        features = X[..., 1:] if intercept else X
        center = (share @ features)[:, 0] if intercept else np.zeros((k, d))
        away = np.where((weight > 0)[..., None], features - center[:, None], 0.0)
        spread = np.sqrt((share @ np.square(away))[:, 0])
        varies = spread > _CONSTANT * np.abs(features).max(axis=1, initial=0.0)
        scale = np.where(varies, 1 / np.where(varies, spread, 1.0), 0.0)
        back = np.zeros((k, d, d))
        place = np.arange(d - scale.shape[1], d)
        back[:, place, place] = scale
        if intercept:
            constant = (share @ X[..., :1])[:, 0, 0]
            constant = np.where(constant == 0, 1 / math.sqrt(d), constant)
            back[:, 0, 0] = 1.0
            back[:, 0, 1:] = -center * scale
            back[:, 0] /= constant[:, None]
        return cls(away * scale[:, None], weight, total, back)
