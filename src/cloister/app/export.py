"""One task's model as an estimator of scikit-learn's own classes, which predicts without this library.

A feature's encoded columns are made by stock transformers, up to a linear map that goes into the
coefficients: an indicator for every level, steps as indicators of intervals, each B-spline by itself. They
are fitted to made-up rows within the codebook's limits, and learn nothing from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.interpolate import BSpline
from scipy.linalg import block_diag
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, PolynomialFeatures, StandardScaler

from cloister.core.arrays import Array, Floats
from cloister.core.errors import InputError, MissingExtraError
from cloister.tables.codebook import Codebook
from cloister.tables.column_types import Categorical, Date, Feature, Numeric
from cloister.tables.transforms import Cuts, Monotone, Spline, Transform

if TYPE_CHECKING:
    from cloister.app.task_model import TaskModel


#: Made-up rows: some for every level, and numbers all over their bounds.
ROWS = 64
_INSTEAD = "Use save(path), which holds any model, or leave such columns out of the fit."
_FUNCTIONS: dict[Transform, Callable[[Array], Array]] = {
    Monotone(): np.positive,
    Monotone("log"): np.log,
    Monotone("log1p"): np.log1p,
    Monotone("sqrt"): np.sqrt,
}


@dataclass(frozen=True, eq=False)
class _Block:
    """A stock transformer of one feature, and the linear map from what it makes to the encoded columns."""

    transformer: Any
    turn: Floats


def stock_estimator(model: TaskModel) -> Any:
    """Return a regressor or classifier of scikit-learn that predicts as a task's model does."""
    blocks, rows = [_block(part) for part in model.codebook.features], _made_up(model.codebook)
    try:
        encoder = _encoder(model.codebook, blocks, rows)
        found = _predictor(model, encoder, _coefficients(model, blocks), rows)
        equal = _equal(model, found, rows)
    except (TypeError, ValueError) as error:  # what a stock transformer does not take
        raise InputError(
            f"scikit-learn's own classes cannot stand for this model: {error}. {_INSTEAD}"
        ) from error
    if not equal:
        raise InputError(f"scikit-learn's own classes do not predict as this model does. {_INSTEAD}")
    return found


def _block(part: Feature) -> _Block:
    if isinstance(part, Categorical):
        return _levels(part)
    if isinstance(part, Date):
        raise InputError(
            f"Column {part.name!r} is a date, which no class of scikit-learn's own reads. {_INSTEAD}"
        )
    shape, turn = _shape(part)
    if part.missing is None:
        return _Block(shape, turn)
    floats = StandardScaler(
        with_mean=False, with_std=False
    )  # an imputer takes the type it was fitted to alone
    both = FeatureUnion(
        [("value", _filled(part.missing, shape)), ("missing", MissingIndicator(features="all"))]
    )
    return _Block(make_pipeline(floats, both), block_diag(turn, [[1.0]]))


def _levels(part: Categorical) -> _Block:
    """Return an indicator for each level, sorted, because numbers must be."""
    own = part.missing is not None and part.missing not in part.levels
    levels = np.array([*part.levels, *([part.missing] if own else [])], dtype=_kind(part))
    order = np.argsort(levels)
    center, half = np.array(part.affine()).T
    encoder = OneHotEncoder(categories=[levels[order]], sparse_output=False)
    return _Block(_filled(part.missing, encoder), (part.columns(order.astype(np.float64)) - center) / half)


def _shape(part: Numeric) -> tuple[Any, Floats]:
    """Return a transformer of a number within its bounds, and the map from what it makes to its columns."""
    clip = FunctionTransformer(np.clip, validate=True, kw_args={"a_min": part.low, "a_max": part.high})
    if isinstance(part.transform, Cuts):
        steps = FunctionTransformer(np.digitize, kw_args={"bins": list(part.transform.points)})
        every = np.eye(len(part.transform.points) + 1)
        indicators = OneHotEncoder(categories=[np.arange(len(every))], sparse_output=False)
        others = np.delete(every, part.transform.reference, axis=1)
        return make_pipeline(clip, steps, indicators), others
    if isinstance(part.transform, Spline):
        knots = [part.low] * 2 + list(part.transform.knots) + [part.high] * 2
        peaks = np.delete(np.eye(len(knots) - 2), part.transform.reference, axis=0)
        curves = [BSpline(knots, peak, 1) for peak in peaks]
        union = FeatureUnion(
            [(f"spline {i}", FunctionTransformer(curve)) for i, curve in enumerate(curves, 1)]
        )
        return make_pipeline(clip, union), np.eye(len(curves))
    if part.transform not in _FUNCTIONS:
        raise InputError(f"No class of scikit-learn's own makes the transform of {part.name!r}. {_INSTEAD}")
    function = _FUNCTIONS[part.transform]
    ends = function(np.array([[part.low], [part.high]]))
    scale = FrozenEstimator(StandardScaler().fit(ends))  # their mean and half their distance
    return make_pipeline(clip, FunctionTransformer(function), scale), np.eye(1)


def _filled(value: Any, then: Any) -> Any:
    """Return a transformer that lets a public value stand for missing ones first."""
    if value is None:
        return then
    empty = (np.nan, None) if isinstance(value, str) else (np.nan,)
    imputers = [SimpleImputer(missing_values=kind, strategy="constant", fill_value=value) for kind in empty]
    return make_pipeline(*imputers, then)


def _encoder(book: Codebook, blocks: list[_Block], rows: Any) -> Pipeline:
    named = hasattr(rows, "columns")
    parts = [
        (part.name, block.transformer, [part.name] if named else [i])
        for i, (part, block) in enumerate(zip(book.features, blocks, strict=True))
    ]
    steps: list[tuple[str, Any]] = [("columns", ColumnTransformer(parts, verbose_feature_names_out=False))]
    if book.interactions:
        steps.append(("products", PolynomialFeatures(2, interaction_only=True, include_bias=False)))
    return Pipeline(steps).fit(rows)


def _coefficients(model: TaskModel, blocks: list[_Block]) -> Floats:
    """Return intercepts and coefficients on what the transformers make, one row a class but the first."""
    book = model.codebook
    turn = block_diag(*(block.turn for block in blocks))
    weights = model.weights.reshape(-1, book.width) / book.row_scale
    start, own, products = np.split(weights, [1, 1 + turn.shape[1]], axis=1)
    parts = [start, own @ turn.T]
    if book.interactions:
        left, right = book.products
        pairs = np.einsum("qp,ap,bp->qab", products, turn[:, left], turn[:, right])
        at = np.triu_indices(len(turn), 1)  # in the order of PolynomialFeatures
        parts.append((pairs + pairs.transpose(0, 2, 1))[:, *at])
    return np.hstack(parts)


def _predictor(model: TaskModel, encoder: Pipeline, weights: Floats, rows: Any) -> Any:
    target = model.codebook.target
    if not isinstance(target, Numeric):
        return Pipeline([*encoder.steps, ("model", _logistic(weights, target))])
    linear, (center, half) = LinearRegression(), target.affine()[0]
    linear.coef_, linear.n_features_in_ = half * weights[0, 1:], weights.shape[1] - 1
    linear.intercept_ = center + half * weights[0, 0]
    within = partial(np.clip, a_min=target.low, a_max=target.high)
    clipped = TransformedTargetRegressor(
        FrozenEstimator(Pipeline([*encoder.steps, ("model", linear)])),
        func=within,
        inverse_func=within,
        check_inverse=False,
    )
    return clipped.fit(rows, np.full(len(rows), target.low))


def _logistic(weights: Floats, target: Categorical) -> Any:
    """Return a classifier with sorted classes from weights against the first in the codebook."""
    order, logistic = np.argsort(target.levels), LogisticRegression()
    each = np.vstack([np.zeros_like(weights[:1]), weights])[order]
    if len(order) == 2:
        each = each[1:] - each[:1]
    logistic.classes_ = np.asarray(target.levels)[order]
    logistic.coef_, logistic.intercept_, logistic.n_features_in_ = each[:, 1:], each[:, 0], each.shape[1] - 1
    return logistic


def _kind(part: Categorical) -> Any:
    return object if isinstance(part.levels[0], str) else None


def _made_up(book: Codebook) -> Any:
    """Return rows within the codebook's limits, with missing cells where it takes them."""
    columns: dict[str, Array] = {}
    for i, part in enumerate(book.features):
        if isinstance(part, Numeric):
            columns[part.name] = np.roll(np.linspace(part.low, part.high, ROWS), 7 * i)
        elif isinstance(part, Categorical):
            cells = [part.levels[(row + i) % len(part.levels)] for row in range(ROWS)]
            columns[part.name] = np.array(cells, dtype=_kind(part) if part.missing is None else object)
        if part.fill is not None:
            columns[part.name][i % ROWS] = np.nan
    if book.names == tuple(f"x{i}" for i in range(len(book.names))):  # it was fitted on an array
        plain = all(column.dtype.kind in "biuf" for column in columns.values())
        return np.column_stack([column.astype(float if plain else object) for column in columns.values()])
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise MissingExtraError("pandas", "table", "TaskModel.to_sklearn") from error
    return pd.DataFrame(columns)


def _equal(model: TaskModel, found: Any, rows: Any) -> bool:
    target = model.codebook.target
    if isinstance(target, Numeric):
        return np.allclose(
            model.predict(rows), found.predict(rows), rtol=1e-9, atol=1e-9 * target.affine()[0][1]
        )
    mine = model.predict_proba(rows)[:, np.argsort(target.levels)]
    return np.allclose(mine, found.predict_proba(rows), rtol=1e-9, atol=1e-12)
