"""What all scikit-learn faces share: a table goes in, a plan runs, and every task gets its own model.

A face adds an algorithm (`_algorithm`) and says what serves a task that was not there (`_stranger`); whether
it predicts numbers or classes comes from `RegressionFace` or `ClassificationFace`.
"""

from __future__ import annotations

import math
import os
import warnings
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from cloister.algorithm import Algorithm
from cloister.algorithms.independent import Independent
from cloister.arrays import Floats, States
from cloister.engines.run import Run, run
from cloister.errors import InputError, not_pickled
from cloister.estimators.parameters import check_parameters
from cloister.learners.classification import Classification
from cloister.learners.regression import Regression
from cloister.learners.softmax import probabilities
from cloister.ledger import Ledger
from cloister.plan import Plan
from cloister.privacy.mechanisms import Gaussian, Silent
from cloister.roster import task_name
from cloister.tables.codebook import Codebook, Numeric
from cloister.tables.columns import Columns, check_columns, read_codebook, refuse_missing, split_table
from cloister.tables.model import TaskModel
from cloister.tables.scaling import OwnScaling
from cloister.tasks import Tasks

__all__ = ["FROM_DATA", "ClassificationFace", "Face", "RegressionFace"]

FROM_DATA = "feature or target bounds were read from the data, and no noise hides them"


class Face(BaseEstimator, ABC):  # type: ignore[misc]
    """The table, the plan, the run, and who gets which model."""

    task: str | int | None
    epsilon: float
    delta: float | str
    relation: str
    bounds: Any
    ledger: Ledger | None
    random_state: int | None

    _classify: bool
    _units: Codebook | OwnScaling
    #: Whether this is one task's own model (task=None): all of it is that task's.
    _alone: bool

    @abstractmethod
    def _algorithm(self, codebook: Codebook) -> Algorithm:
        """Return the algorithm for rows of this codebook."""

    def _stranger(self) -> States:
        """Return the model of a task that was not in `fit`, from the board alone."""
        return self.plan_.algorithm.newcomer(self.billboard_)

    @abstractmethod
    def _check_target(self, codebook: Codebook) -> None:
        """Refuse a target of the wrong kind."""

    @abstractmethod
    def _learner(self, codebook: Codebook) -> Regression | Classification:
        """Return what a task does on its own."""

    @abstractmethod
    def _own_scaling(
        self, X: Floats, y: NDArray[Any], weight: Floats
    ) -> tuple[OwnScaling, NDArray[Any], Regression | Classification]:
        """Scale by one's own data; return the scaling, the target and the learner."""

    def fit(
        self, X: Any, y: Any, tasks: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Any:
        """Fit every task's model.

        Parameters
        ----------
        X : DataFrame, mapping of columns, or array of shape (n_samples, n_features)
            Features, and the task column if `task` names one.
        y : array-like of shape (n_samples,)
            Numbers or classes.
        tasks : array-like of shape (n_samples,), optional
            One task id a row, instead of a task column.
        sample_weight : array-like of shape (n_samples,), optional
            Row weights; they stay with the task.

        Returns
        -------
        self
        """
        self._check_parameters()
        if self.task is None and tasks is None:
            if getattr(self, "bounds", None) is not None or getattr(self, "ledger", None) is not None:
                raise InputError(
                    "No task was named, so all rows would count as one task's own. Pass task= or tasks= to "
                    "share; leave out bounds= and ledger= for a model of one's own."
                )
            return self._fit_alone(X, y, sample_weight)
        columns, codebook, data = self._encode(X, y, tasks, sample_weight)
        finished = self._run(codebook, data)
        self._adopt(columns, codebook, finished)
        ledger = getattr(self, "ledger", None)
        if ledger is not None and len(ledger.history) > 1:
            warnings.warn(
                f"These tasks have now been charged {len(ledger.history)} times: together epsilon = "
                f"{ledger.spent:.3g} of {ledger.epsilon:g} at delta = {ledger.delta:g}.",
                stacklevel=2,
            )
        return self

    def _check_parameters(self) -> None:
        check_parameters(self.get_params(deep=False))

    @property
    def _delta(self) -> float | None:
        return None if isinstance(self.delta, str) else float(self.delta)

    def _encode(
        self, X: Any, y: Any, tasks: ArrayLike | None, sample_weight: ArrayLike | None
    ) -> tuple[Columns, Codebook, Tasks]:
        """Turn a table into tasks by its codebook; refuse what does not fit."""
        columns, target = self._columns(X, y, tasks)
        codebook = read_codebook(self.bounds, columns, target, y, self._classify)
        if codebook.task is None and isinstance(self.task, str):
            codebook = replace(codebook, task=self.task)
        self._check_target(codebook)
        rows = codebook.encode(check_columns(codebook, columns))
        data = Tasks.from_arrays(rows, codebook.encode_target(y), columns.ids, sample_weight)
        if len(data) < 2:
            raise InputError(
                "There is one task only, and nobody to learn from. Use task=None for a model of one's own."
            )
        return columns, codebook, data

    def _columns(self, X: Any, y: Any, tasks: ArrayLike | None) -> tuple[Columns, str]:
        """Take the table apart; return it with the target's name."""
        columns = split_table(X, self.task, tasks)
        if len(np.asarray(y)) != len(columns):
            raise InputError(
                f"X and y must have one entry a row: X has {len(columns)}, y {len(np.asarray(y))}."
            )
        target = str(getattr(y, "name", None) or "target")
        refuse_missing({**columns.features, target: np.asarray(y)}, columns.ids)
        return columns, target

    def _run(self, codebook: Codebook, data: Tasks) -> Run:
        plan = self._plan(codebook, len(data))
        return run(plan, data, ledger=self.ledger, random_state=self.random_state)

    def plan(self, n_tasks: int, codebook: Codebook | None = None) -> Plan:
        """Return the plan that `fit` would run on so many tasks: read its guarantee before spending."""
        book = codebook if codebook is not None else self.bounds
        if isinstance(book, (str, os.PathLike)) and book != "data":
            book = Codebook.load(os.fspath(book))
        if not isinstance(book, Codebook):
            raise InputError("A plan needs the codebook: pass one, or a codebook file as bounds=.")
        return self._plan(book, n_tasks)

    def _plan(self, codebook: Codebook, n_tasks: int) -> Plan:
        self._check_parameters()
        if not self.epsilon > 0:
            raise InputError(f"epsilon must be > 0. Got {self.epsilon}. To share nothing, use SingleTask.")
        silent = math.isinf(self.epsilon) and self.epsilon > 0
        plan = Plan(
            self._algorithm(codebook),
            Silent() if silent else Gaussian(),
            n_tasks=n_tasks,
            relation=self.relation,  # type: ignore[arg-type]
            delta=self._delta,
            caveats=(FROM_DATA,) if codebook.from_private_data else (),
        )
        return plan if silent else plan.calibrate(self.epsilon)

    def _adopt(self, columns: Columns, codebook: Codebook, finished: Run) -> None:
        """Keep a finished run over these columns."""
        self.codebook_, self._units, self._alone = codebook, codebook, False
        self._name_features(columns, list(codebook.names))
        self._keep(finished)

    def _name_features(self, columns: Columns, names: list[str]) -> None:
        self.n_features_in_ = len(columns.features)
        if columns.named:
            self.feature_names_in_ = np.array(names, dtype=object)
        elif hasattr(self, "feature_names_in_"):  # of an earlier fit
            del self.feature_names_in_

    def _keep(self, finished: Run) -> None:
        self._finished = finished
        self.plan_, self.billboard_, self.guarantee_ = finished.plan, finished.board, finished.guarantee
        self.task_ids_ = finished.private.ids
        weights = finished.private.models["coef"]
        by_class = weights.reshape(len(weights), -1, self._units.width)
        coef, intercept = self._units.to_user_units(by_class)
        squeeze = by_class.shape[1] == 1
        self.coef_ = coef[:, 0] if squeeze else coef
        self.intercept_ = intercept[:, 0] if squeeze else intercept

    def _models(self, X: Any, tasks: ArrayLike | None) -> tuple[Floats, States]:
        """Return encoded rows, and each row's own task's model; `_stranger` for a task not seen before."""
        check_is_fitted(self, "guarantee_")
        models = self._finished.private.models
        if self._alone:
            rows = self._encode_alone(X)
            return rows, {name: np.repeat(array, len(rows), axis=0) for name, array in models.items()}
        columns = split_table(X, self.task, tasks)
        refuse_missing(columns.features, columns.ids)
        rows = self._encode_rows(columns)
        if (self.task_ids_.dtype.kind == "U") != (columns.ids.dtype.kind == "U"):
            kinds = ("numbers", "text") if columns.ids.dtype.kind == "U" else ("text", "numbers")
            raise InputError(f"Task ids were {kinds[0]} in fit and are {kinds[1]} here. Pass them as in fit.")
        at = np.minimum(np.searchsorted(self.task_ids_, columns.ids), len(self.task_ids_) - 1)
        unseen = self.task_ids_[at] != columns.ids
        chosen = {name: array[at] for name, array in models.items()}
        if unseen.any():
            stranger = self._stranger()
            for name, array in chosen.items():
                array[unseen] = stranger[name][0]
        return rows, chosen

    def _encode_rows(self, columns: Columns) -> Floats:
        return self.codebook_.encode(check_columns(self.codebook_, columns))

    def _encode_alone(self, X: Any) -> Floats:
        from sklearn.utils.validation import validate_data

        assert isinstance(self._units, OwnScaling)
        return self._units.encode(np.asarray(validate_data(self, X, reset=False, dtype=np.float64)))

    def _fit_alone(self, X: Any, y: Any, sample_weight: ArrayLike | None) -> Any:
        """Fit one's own single-task model: nothing leaves, so nothing need be public and epsilon is 0."""
        from sklearn.utils.validation import _check_sample_weight, validate_data

        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=not self._classify)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        scaling, target, learner = self._own_scaling(X, y, weight)
        self._units, self._alone = scaling, True
        data = Tasks.from_arrays(scaling.encode(X), target, np.zeros(len(X), dtype=int), weight)
        self._keep(run(Plan(Independent(learner), n_tasks=1), data))
        return self

    def export(self, task: object, path: str | os.PathLike[str]) -> Path:
        """Write one task's own model to a file, to be handed to that task alone."""
        return self.task_model(task).save(path)

    def task_model(self, task: object) -> TaskModel:
        """Return one task's own model."""
        check_is_fitted(self, "guarantee_")
        if self._alone:
            raise InputError("A model of one's own (task=None) is the estimator itself: pickle it.")
        if not isinstance(self._units, Codebook):
            raise InputError("A model's file holds its codebook, and there is none. Fit with bounds=.")
        return TaskModel.of(str(task_name(task)), self.codebook_, self._finished.model(task))

    def save(self, folder: str | os.PathLike[str], force: bool = False) -> Path:
        """Write the public part to a folder: plan, billboard, codebook and guarantee; no task's model.

        A folder that holds anything is left as it is, unless forced.
        """
        check_is_fitted(self, "guarantee_")
        if self._alone:
            raise InputError("A model of one's own (task=None) has no public part: pickle the estimator.")
        if not isinstance(self._units, Codebook):
            raise InputError("The public part holds a codebook, and there is none. Fit with bounds=.")
        if self.guarantee_.epsilon != self._finished.guarantee.epsilon:
            raise InputError(
                "This model was chosen among several, which cost more than its own plan says. Keep the "
                "guarantee of the choice, and export models with export(task, path)."
            )
        target = Path(folder)
        if not force and target.exists() and any(target.iterdir()):
            raise InputError(f"{target} is not empty and is left as it is. Choose another, or force=True.")
        target.mkdir(parents=True, exist_ok=True)
        self.plan_.save(target / "plan.toml")
        self.codebook_.save(target / "codebook.toml")
        self.billboard_.save(target / "board")
        (target / "guarantee.json").write_text(self.guarantee_.to_json() + "\n", encoding="utf-8")
        (target / "guarantee.txt").write_text(f"{self.guarantee_}\n", encoding="utf-8")
        return target

    def __getstate__(self) -> dict[str, Any]:
        if not getattr(self, "_alone", True):
            raise not_pickled(
                "A fitted estimator",
                "Use save(folder) for the run, and export(task, path) for one task's own model.",
            )
        state: dict[str, Any] = super().__getstate__()
        return state


class RegressionFace(RegressorMixin, Face):  # type: ignore[misc]
    """The part of a face that predicts numbers."""

    _classify = False

    def _check_target(self, codebook: Codebook) -> None:
        if not isinstance(codebook.target, Numeric):
            other = type(self).__name__.replace("Regressor", "Classifier")
            raise InputError(f"The codebook's target has classes. Use {other}.")

    def _learner(self, codebook: Codebook) -> Regression:
        return Regression(codebook.width)

    def _own_scaling(
        self, X: Floats, y: NDArray[Any], weight: Floats
    ) -> tuple[OwnScaling, Floats, Regression]:
        numbers = np.asarray(y, dtype=np.float64)
        scaling = OwnScaling.of(X, numbers, weight)
        return scaling, scaling.encode_target(numbers), Regression(scaling.width)

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
        """
        rows, models = self._models(X, tasks)
        mean = self._units.decode_target(np.einsum("nd,nd->n", rows, models["coef"]))
        if not return_std:
            return mean
        if "covariance" not in models:
            raise InputError(
                f"{type(self).__name__} has no posterior, hence no return_std. Use SharedPriorRegressor."
            )
        spread = np.einsum("nd,nde,ne->n", rows, models["covariance"], rows) + models["noise"]
        return mean, np.sqrt(np.maximum(spread, 0.0)) * self._units.target_scale

    def score(self, X: Any, y: Any, sample_weight: Any = None, tasks: ArrayLike | None = None) -> float:
        """Return the coefficient of determination. Private: a score that leaves its tasks is a release."""
        from sklearn.metrics import r2_score

        return float(r2_score(y, self.predict(X, tasks), sample_weight=sample_weight))


class ClassificationFace(ClassifierMixin, Face):  # type: ignore[misc]
    """The part of a face that predicts classes."""

    _classify = True

    def _check_target(self, codebook: Codebook) -> None:
        if isinstance(codebook.target, Numeric):
            other = type(self).__name__.replace("Classifier", "Regressor")
            raise InputError(f"The codebook's target is a number. Use {other}, or list classes.")

    def _keep(self, finished: Run) -> None:
        if isinstance(self._units, Codebook):
            self.classes_ = np.asarray(self._units.target.levels)  # type: ignore[union-attr]
        super()._keep(finished)

    def _learner(self, codebook: Codebook) -> Classification:
        return Classification(codebook.width, len(codebook.target.levels))  # type: ignore[union-attr]

    def _own_scaling(
        self, X: Floats, y: NDArray[Any], weight: Floats
    ) -> tuple[OwnScaling, NDArray[Any], Classification]:
        from sklearn.utils.multiclass import check_classification_targets

        check_classification_targets(y)
        self.classes_, index = np.unique(y, return_inverse=True)
        scaling = OwnScaling.of(X, None, weight)
        return scaling, index, Classification(scaling.width, max(2, len(self.classes_)))

    def predict_proba(self, X: Any, tasks: ArrayLike | None = None) -> Floats:
        """Return class probabilities by each row's own task's model, in the order of `classes_`."""
        rows, models = self._models(X, tasks)
        weights = models["coef"].reshape(len(rows), -1, rows.shape[1])
        chances = probabilities(np.einsum("nd,nqd->nq", rows, weights))[:, : len(self.classes_)]
        return np.asarray(chances / chances.sum(axis=1, keepdims=True))

    def predict(self, X: Any, tasks: ArrayLike | None = None) -> NDArray[Any]:
        """Return the most probable class by each row's own task's model."""
        likeliest = self.predict_proba(X, tasks).argmax(axis=1)
        return np.asarray(self.classes_[likeliest])

    def score(self, X: Any, y: Any, sample_weight: Any = None, tasks: ArrayLike | None = None) -> float:
        """Return the accuracy. Private: a score that leaves its tasks is a release."""
        from sklearn.metrics import accuracy_score

        return float(accuracy_score(y, self.predict(X, tasks), sample_weight=sample_weight))
