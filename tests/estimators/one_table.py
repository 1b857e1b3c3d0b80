"""scikit-learn's generic checks know of no tasks: a wrapper that supplies a task column."""

from __future__ import annotations

import math

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

#: What cannot be had of an estimator for several tasks, and why.
EXPECTED = {"check_estimators_pickle": "a file with the models of several tasks would be a leak by accident"}
#: Public bounds that the rows of all checks are within, but for those that try how far numbers may go.
LIMITS = (-100.0, 100.0)


class _OfTwoTasks(BaseEstimator):
    """Takes the rows of a check for one task's, and adds another task whose only row weighs nothing."""

    def __init__(self, estimator=None):
        self.estimator = estimator

    def fit(self, X, y, sample_weight=None):
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=not hasattr(self, "predict_proba"))
        if hasattr(self, "predict_proba"):
            check_classification_targets(y)
            if len(np.unique(y)) < 2:
                raise ValueError("Classifier can't train when only one class is present.")
        tasks = np.r_[np.zeros(len(X), dtype=int), 1]
        own = np.ones(len(X)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
        weight = np.r_[own, 0.0]
        goal = np.unique(y).tolist() if hasattr(self, "predict_proba") else LIMITS
        bounds = dict.fromkeys(range(X.shape[1]), LIMITS) | {"y": goal}
        model = clone(self.estimator).set_params(task=None, bounds=bounds, epsilon=math.inf)
        self.model_ = model.fit(np.r_[X, X[:1]], np.r_[y, y[:1]], tasks, weight)
        if hasattr(self, "predict_proba"):
            self.classes_ = self.model_.classes_
        return self

    def predict(self, X):
        return self._ask("predict", X)

    def _ask(self, method, X):
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return getattr(self.model_, method)(X, np.zeros(len(X), dtype=int))


class RegressorOfTwoTasks(RegressorMixin, _OfTwoTasks):
    pass


class ClassifierOfTwoTasks(ClassifierMixin, _OfTwoTasks):
    def predict_proba(self, X):
        return self._ask("predict_proba", X)
