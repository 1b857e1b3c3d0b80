"""One task's model as an estimator of scikit-learn's own classes, which predicts without this library.

A feature's encoded columns are made by stock transformers (`Feature.stock_block`), up to a linear map that
goes into the coefficients.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import block_diag
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import PolynomialFeatures

from cloister.core.arrays import Array, Floats
from cloister.core.errors import InputError, MissingExtraError
from cloister.tables.codebook import Codebook
from cloister.tables.column_types import Categorical, Numeric
from cloister.tables.feature import Feature
from cloister.tables.stock_blocks import StockBlock
from cloister.tables.targets import Count, Ordered, Positive

if TYPE_CHECKING:
    from cloister.app.task_model import TaskModel


_INSTEAD = "Use save(path), which holds any model, or leave such columns out of the fit."


def stock_estimator(model: TaskModel) -> Any:
    """Return a regressor or classifier of scikit-learn that predicts as a task's model does."""
    blocks = [_block(part) for part in model.codebook.features]
    rows = _made_up(model.codebook, blocks)
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


def _block(part: Feature) -> StockBlock:
    block = part.stock_block()
    if block is None:
        raise InputError(
            f"Column {part.name!r} is of type {type(part).__name__}, which no class of scikit-learn's own "
            f"reads. {_INSTEAD}"
        )
    return block


def _encoder(book: Codebook, blocks: list[StockBlock], rows: Any) -> Pipeline:
    named = hasattr(rows, "columns")
    parts = [
        (part.name, block.transformer, [part.name] if named else [i])
        for i, (part, block) in enumerate(zip(book.features, blocks, strict=True))
    ]
    steps: list[tuple[str, Any]] = [("columns", ColumnTransformer(parts, verbose_feature_names_out=False))]
    if book.interactions:
        steps.append(("products", PolynomialFeatures(2, interaction_only=True, include_bias=False)))
    return Pipeline(steps).fit(rows)


def _coefficients(model: TaskModel, blocks: list[StockBlock]) -> Floats:
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
    if isinstance(target, Count | Ordered | Positive):
        raise InputError(f"scikit-learn has no model that stands for one of this kind of target. {_INSTEAD}")
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


def _made_up(book: Codebook, blocks: list[StockBlock]) -> Any:
    """Return rows within the codebook's limits, with missing cells where it takes them."""
    columns: dict[str, Array] = {}
    for i, (part, block) in enumerate(zip(book.features, blocks, strict=True)):
        columns[part.name] = np.roll(block.cells, 7 * i)
        if part.fill is not None:
            columns[part.name][i % len(block.cells)] = np.nan
    if book.names == tuple(f"x{i}" for i in range(len(book.names))):  # it was fitted on an array
        plain = all(column.dtype.kind in "biuf" for column in columns.values())
        return np.column_stack([column.astype(float if plain else object) for column in columns.values()])
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise MissingExtraError("pandas", "tables", "TaskModel.to_sklearn") from error
    return pd.DataFrame(columns)


def _equal(model: TaskModel, found: Any, rows: Any) -> bool:
    target = model.codebook.target
    if isinstance(target, Numeric):
        return np.allclose(
            model.predict(rows), found.predict(rows), rtol=1e-9, atol=1e-9 * target.affine()[0][1]
        )
    mine = model.predict_proba(rows)[:, np.argsort(target.levels)]
    return np.allclose(mine, found.predict_proba(rows), rtol=1e-9, atol=1e-12)
