"""Estimators of numbers and of classes: how each predicts, and what its score is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, RegressorMixin

from cloister.arrays import Array, Floats
from cloister.errors import InputError
from cloister.estimators.base import BaseMultiTask
from cloister.learners.linear.classification import Classification
from cloister.learners.linear.regression import Regression
from cloister.tables.codebook import Codebook
from cloister.tables.columns import target_column
from cloister.tables.prediction import Index, class_probabilities, deviations, intervals, numbers
from cloister.tables.table_run import TableRun

__all__ = ["BaseMultiTaskClassifier", "BaseMultiTaskRegressor"]


class BaseMultiTaskRegressor(RegressorMixin, BaseMultiTask):  # type: ignore[misc]
    """The part of an estimator that predicts numbers."""

    _classify = False

    def _check_target(self, codebook: Codebook) -> None:
        if codebook.classes is not None:
            other = type(self).__name__.replace("Regressor", "Classifier")
            raise InputError(f"The codebook's target has classes. Use {other}.")

    def _learner(self, codebook: Codebook) -> Regression:
        return Regression(codebook.width)

    def predict(self, X: Any, tasks: ArrayLike | None = None, return_std: bool = False) -> Any:
        """Predict with each row's own task's model; a task not seen before is served from the board alone.

        Parameters
        ----------
        X : DataFrame, mapping of columns, or array
            As in `fit`.
        tasks : array-like, optional
            One task id a row, instead of a task column.
        return_std : bool
            Also return the standard deviation of the prediction, noise included; for models that have one.

        Notes
        -----
        With a codebook, predictions are within the target's public bounds.
        """
        found = self._rows(X, tasks)
        mean = numbers(self._fitted.units, *found)
        return (mean, deviations(self._fitted.units, *found)) if return_std else mean

    def predict_interval(
        self, X: Any, tasks: ArrayLike | None = None, coverage: float = 0.95
    ) -> tuple[Floats, Floats]:
        """Return the interval that holds each row's number with this probability, by its own task's model.

        Parameters
        ----------
        X : DataFrame, mapping of columns, or array
            As in `fit`.
        tasks : array-like, optional
            One task id a row, instead of a task column.
        coverage : float
            How often the interval is to hold the number.

        Returns
        -------
        lower, upper : arrays of shape (n_samples,)
            In the target's units. Of a task with few rows they are far apart, with the tails of Student's t.
        """
        found = self._rows(X, tasks)
        return intervals(self._fitted.units, *found, coverage)

    def score(self, X: Any, y: Any, sample_weight: Any = None, tasks: ArrayLike | None = None) -> float:
        """Return the coefficient of determination. Private: a score that leaves its tasks is a release."""
        from sklearn.metrics import r2_score

        X, y, _ = target_column(X, y)
        return float(r2_score(y, self.predict(X, tasks), sample_weight=sample_weight))


class BaseMultiTaskClassifier(ClassifierMixin, BaseMultiTask):  # type: ignore[misc]
    """The part of an estimator that predicts classes."""

    _classify = True

    def _check_target(self, codebook: Codebook) -> None:
        if codebook.classes is None:
            other = type(self).__name__.replace("Classifier", "Regressor")
            raise InputError(f"The codebook's target is a number. Use {other}, or list classes.")

    def _keep(self, fitted: TableRun) -> None:
        super()._keep(fitted)
        if isinstance(fitted.units, Codebook):
            self.classes_ = np.sort(fitted.units.target.levels)  # type: ignore[union-attr]
            self.coef_ = _against_first(self.coef_, self._order, self.coef_.ndim == 3)
            self.intercept_ = _against_first(self.intercept_, self._order, self.intercept_.ndim == 2)

    @property
    def _order(self) -> Index:
        """Where each of `classes_`, which are sorted, stands in the codebook, whose order models have."""
        units = self._fitted.units
        listed = units.target.levels if isinstance(units, Codebook) else self.classes_  # type: ignore[union-attr]
        return np.argsort(listed)

    def _learner(self, codebook: Codebook) -> Classification:
        return Classification(codebook.width, codebook.classes or 2)

    def predict_proba(self, X: Any, tasks: ArrayLike | None = None) -> Floats:
        """Return class probabilities by each row's own task's model, in the order of `classes_`."""
        return np.asarray(self._chances(X, tasks)[:, self._order])

    def predict(self, X: Any, tasks: ArrayLike | None = None) -> Array:
        """Return the most probable class by each row's own task's model; of equals the codebook's first."""
        likeliest = self._chances(X, tasks).argmax(axis=1)
        return np.asarray(self.classes_[np.argsort(self._order)[likeliest]])

    def _chances(self, X: Any, tasks: ArrayLike | None) -> Floats:
        """Return class probabilities in the order of the codebook."""
        chances = class_probabilities(*self._rows(X, tasks))[:, : len(self.classes_)]
        return np.asarray(chances / chances.sum(axis=1, keepdims=True))

    def score(self, X: Any, y: Any, sample_weight: Any = None, tasks: ArrayLike | None = None) -> float:
        """Return the accuracy. Private: a score that leaves its tasks is a release."""
        from sklearn.metrics import accuracy_score

        X, y, _ = target_column(X, y)
        return float(accuracy_score(y, self.predict(X, tasks), sample_weight=sample_weight))


def _against_first(weights: Floats, order: Index, several: bool) -> Floats:
    """Return weights of classes against the first in another order; those given are against the first."""
    if (order == np.arange(len(order))).all():
        return weights
    if not several:
        return -weights
    each = np.concatenate([np.zeros_like(weights[:, :1]), weights], axis=1)[:, order]
    return np.asarray(each[:, 1:] - each[:, :1])
