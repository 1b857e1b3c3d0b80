"""Columns of a codebook by transformers of scikit-learn's own, up to a linear map.

Where these make other columns, such as an indicator for every level, the map goes into coefficients. They are
fitted to made-up cells within the codebook's limits, and learn nothing from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

import numpy as np
from scipy.interpolate import BSpline
from scipy.linalg import block_diag
from sklearn.frozen import FrozenEstimator
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from cloister.core.arrays import Array, Floats

#: Made-up cells: some for every level, and numbers all over their bounds.
CELLS = 64


@dataclass(frozen=True, eq=False)
class StockBlock:
    """A stock transformer, the linear map from what it makes to encoded columns, and cells to fit it to."""

    transformer: Any
    turn: Floats
    cells: Array

    def or_missing(self, value: float) -> StockBlock:
        """Let a public number stand for missing ones, beside an indicator of them."""
        floats = StandardScaler(with_mean=False, with_std=False)  # an imputer takes one type of numbers alone
        both = [("value", _filled(value, self.transformer)), ("missing", MissingIndicator(features="all"))]
        return replace(
            self,
            transformer=make_pipeline(floats, FeatureUnion(both)),
            turn=block_diag(self.turn, [[1.0]]),
        )


def levels_block(levels: Sequence[Any], coded: Floats, missing: Any, listed: Sequence[Any]) -> StockBlock:
    """Return an indicator for each level, sorted, because numbers must be.

    `coded` has the encoded columns of each level, and `listed` those that cells are made up of.
    """
    kind: Any = object if isinstance(listed[0], str) else None
    every = np.array(levels, dtype=kind)
    order = np.argsort(every)
    encoder = OneHotEncoder(categories=[every[order]], sparse_output=False)
    cells = np.array([*islice(cycle(listed), CELLS)], dtype=kind if missing is None else object)
    return StockBlock(encoder if missing is None else _filled(missing, encoder), coded[order], cells)


def function_block(function: Callable[[Array], Array], low: float, high: float) -> StockBlock:
    """Return an increasing function of a number within its bounds, from -1 to 1."""
    ends = function(np.array([[low], [high]]))
    scale = FrozenEstimator(StandardScaler().fit(ends))  # their mean and half their distance
    return _number_block(low, high, [FunctionTransformer(function), scale], np.eye(1))


def cuts_block(points: Sequence[float], reference: int, low: float, high: float) -> StockBlock:
    """Return an indicator for each interval between points, of which the reference has no column."""
    steps = FunctionTransformer(np.digitize, kw_args={"bins": list(points)})
    every = np.eye(len(points) + 1)
    indicators = OneHotEncoder(categories=[np.arange(len(every))], sparse_output=False)
    return _number_block(low, high, [steps, indicators], np.delete(every, reference, axis=1))


def spline_block(knots: Sequence[float], reference: int, low: float, high: float) -> StockBlock:
    """Return each linear B-spline by itself, but the reference."""
    at = [low] * 2 + list(knots) + [high] * 2
    peaks = np.delete(np.eye(len(at) - 2), reference, axis=0)
    curves = [FunctionTransformer(BSpline(at, peak, 1)) for peak in peaks]
    union = FeatureUnion([(f"spline {i}", curve) for i, curve in enumerate(curves, 1)])
    return _number_block(low, high, [union], np.eye(len(curves)))


def _number_block(low: float, high: float, steps: list[Any], turn: Floats) -> StockBlock:
    clip = FunctionTransformer(np.clip, validate=True, kw_args={"a_min": low, "a_max": high})
    return StockBlock(make_pipeline(clip, *steps), turn, np.linspace(low, high, CELLS))


def _filled(value: Any, then: Any) -> Any:
    """Return a transformer that lets a public value stand for missing ones first."""
    empty = (np.nan, None) if isinstance(value, str) else (np.nan,)
    imputers = [SimpleImputer(missing_values=kind, strategy="constant", fill_value=value) for kind in empty]
    return make_pipeline(*imputers, then)
