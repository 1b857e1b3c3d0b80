"""SharedPriorRegressor and SharedPriorClassifier: private multi-task learning for a grouped table."""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from cloister.algorithms.independent import Independent
from cloister.algorithms.prior import SharedPrior
from cloister.algorithms.structures import Joint, Mean, Structure, Subspace, Support
from cloister.codebook import Classes, Codebook, Numeric
from cloister.engines.local import Run, run
from cloister.errors import InputError
from cloister.estimators.columns import check_columns, read_codebook, refuse_missing, split_table
from cloister.estimators.model import TaskModel
from cloister.estimators.own import OwnScaling
from cloister.learners.classification import Classification
from cloister.learners.regression import Regression
from cloister.learners.softmax import probabilities
from cloister.plan import Plan
from cloister.privacy.ledger import Ledger
from cloister.privacy.mechanisms import Gaussian, Silent
from cloister.tasks import Tasks

__all__ = ["SharedPriorClassifier", "SharedPriorRegressor"]

STRUCTURES: dict[str, type[Structure]] = {
    "joint": Joint,
    "mean": Mean,
    "lowrank": Subspace,
    "sparse": Support,
}
FROM_DATA = "feature or target bounds were read from the data, and no noise hides them"


class _SharedPrior(BaseEstimator):  # type: ignore[misc]
    """What both faces share: the table, the plan, the run, and who gets which model."""

    def __init__(
        self,
        task: str | int | None = None,
        *,
        epsilon: float = 1.0,
        delta: float | str = "auto",
        relation: str = "replace",
        structure: str = "auto",
        bounds: Any = None,
        ledger: Ledger | None = None,
        random_state: int | None = None,
    ) -> None:
        self.task = task
        self.epsilon = epsilon
        self.delta = delta
        self.relation = relation
        self.structure = structure
        self.bounds = bounds
        self.ledger = ledger
        self.random_state = random_state

    _units: Codebook | OwnScaling

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
        if self.task is None and tasks is None:
            return self._fit_alone(X, y, sample_weight)
        columns = split_table(X, self.task, tasks)
        if len(np.asarray(y)) != len(columns):
            raise InputError(
                f"X and y must have one entry a row: X has {len(columns)}, y {len(np.asarray(y))}."
            )
        target = str(getattr(y, "name", None) or "target")
        refuse_missing({**columns.features, target: np.asarray(y)}, columns.ids)
        codebook = read_codebook(self.bounds, columns, target, y, self._classify)
        self._check_target(codebook)
        rows = codebook.encode(check_columns(codebook, columns))
        data = Tasks.from_arrays(rows, codebook.encode_target(y), columns.ids, sample_weight)
        if len(data) < 2:
            raise InputError(
                "There is one task only, and nobody to learn from. Use task=None for a model of one's own."
            )
        plan = self._plan(codebook, len(data))
        finished = run(plan, data, ledger=self.ledger, random_state=self.random_state)
        self.codebook_, self._units = codebook, codebook
        self.n_features_in_ = len(columns.features)
        if columns.named:
            self.feature_names_in_ = np.array(list(codebook.names), dtype=object)
        elif hasattr(self, "feature_names_in_"):  # of an earlier fit
            del self.feature_names_in_
        self._keep(finished)
        if self.ledger is not None and len(self.ledger.history) > 1:
            warnings.warn(
                f"These tasks have now been charged {len(self.ledger.history)} times: together epsilon = "
                f"{self.ledger.spent:.3g} of {self.ledger.epsilon:g} at delta = {self.ledger.delta:g}.",
                stacklevel=2,
            )
        return self

    def plan(self, n_tasks: int, codebook: Codebook | None = None) -> Plan:
        """Return the plan that `fit` would run on so many tasks: read its guarantee before spending."""
        book = codebook if codebook is not None else self.bounds
        if isinstance(book, (str, os.PathLike)) and book != "data":
            book = Codebook.load(os.fspath(book))
        if not isinstance(book, Codebook):
            raise InputError("A plan needs the codebook: pass one, or a codebook file as bounds=.")
        return self._plan(book, n_tasks)

    def _plan(self, codebook: Codebook, n_tasks: int) -> Plan:
        algorithm = SharedPrior(self._learner(codebook), self._structure(codebook))
        plan = Plan(
            algorithm,
            Gaussian(),
            n_tasks=n_tasks,
            relation=self.relation,  # type: ignore[arg-type]
            delta=None if isinstance(self.delta, str) and self.delta == "auto" else float(self.delta),
            caveats=(FROM_DATA,) if codebook.from_private_data else (),
        )
        if math.isinf(self.epsilon) and self.epsilon > 0:
            return Plan(
                algorithm,
                Silent(),
                n_tasks=n_tasks,
                relation=plan.relation,
                delta=plan.delta,
                caveats=plan.caveats,
            )
        return plan.calibrate(self.epsilon)

    def _structure(self, codebook: Codebook) -> Structure:
        several = isinstance(codebook.target, Classes) and len(codebook.target.levels) > 2
        if self.structure == "auto":
            return Mean() if several else Joint()
        if self.structure not in STRUCTURES:
            known = "', '".join(["auto", *STRUCTURES])
            raise InputError(f"structure must be one of '{known}'. Got {self.structure!r}.")
        if several and self.structure != "mean":
            raise InputError(f"More than two classes share a mean only. Got structure={self.structure!r}.")
        return STRUCTURES[self.structure]()

    def _keep(self, finished: Run) -> None:
        self._run = finished
        self.plan_, self.billboard_, self.guarantee_ = finished.plan, finished.board, finished.guarantee
        self.task_ids_ = finished.private.ids
        weights = finished.private.models["coef"]
        by_class = weights.reshape(len(weights), -1, self._units.width)
        coef, intercept = self._units.to_user_units(by_class)
        squeeze = by_class.shape[1] == 1
        self.coef_ = coef[:, 0] if squeeze else coef
        self.intercept_ = intercept[:, 0] if squeeze else intercept

    def _models(self, X: Any, tasks: ArrayLike | None) -> tuple[NDArray[np.float64], dict[str, NDArray[Any]]]:
        """Return encoded rows, and each row's own task's model; the board's for a task not seen before."""
        check_is_fitted(self, "plan_")
        models = self._run.private.models
        if isinstance(self._units, OwnScaling):
            rows = self._units.encode(self._validated(X))
            return rows, {name: np.repeat(array, len(rows), axis=0) for name, array in models.items()}
        columns = split_table(X, self.task, tasks)
        rows = self.codebook_.encode(check_columns(self.codebook_, columns))
        if (self.task_ids_.dtype.kind == "U") != (columns.ids.dtype.kind == "U"):
            kinds = ("numbers", "text") if columns.ids.dtype.kind == "U" else ("text", "numbers")
            raise InputError(f"Task ids were {kinds[0]} in fit and are {kinds[1]} here. Pass them as in fit.")
        at = np.minimum(np.searchsorted(self.task_ids_, columns.ids), len(self.task_ids_) - 1)
        unseen = self.task_ids_[at] != columns.ids
        chosen = {name: array[at] for name, array in models.items()}
        if unseen.any():
            assert isinstance(self.plan_.algorithm, SharedPrior)
            prior = self.plan_.algorithm.newcomer(self.billboard_)
            for name, array in chosen.items():
                array[unseen] = prior[name][0]
        return rows, chosen

    def _validated(self, X: Any) -> NDArray[np.float64]:
        from sklearn.utils.validation import validate_data

        return np.asarray(validate_data(self, X, reset=False, dtype=np.float64))

    def _fit_alone(self, X: Any, y: Any, sample_weight: ArrayLike | None) -> Any:
        """Fit one's own single-task model: nothing leaves, so nothing need be public and epsilon is 0."""
        from sklearn.utils.validation import _check_sample_weight, validate_data

        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=not self._classify)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        scaling, target, learner = self._own_scaling(X, y, weight)
        self._units = scaling
        data = Tasks.from_arrays(scaling.encode(X), target, np.zeros(len(X), dtype=int), weight)
        self._keep(run(Plan(Independent(learner), n_tasks=1), data, random_state=self.random_state))
        return self

    def export(self, task: object, path: str | os.PathLike[str]) -> Path:
        """Write one task's own model to a file, to be handed to that task alone."""
        return self.task_model(task).save(path)

    def task_model(self, task: object) -> TaskModel:
        """Return one task's own model."""
        check_is_fitted(self, "plan_")
        if isinstance(self._units, OwnScaling):
            raise InputError("A model of one's own (task=None) is the estimator itself: pickle it.")
        model = self._run.model(task)
        noise = float(model["noise"]) if "noise" in model else None
        return TaskModel(str(task), self.codebook_, model["coef"], model["covariance"], noise)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the public part to a folder: plan, billboard, codebook and guarantee; no task's model."""
        check_is_fitted(self, "plan_")
        if isinstance(self._units, OwnScaling):
            raise InputError("A model of one's own (task=None) has no public part: pickle the estimator.")
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        self.plan_.save(target / "plan.toml")
        self.codebook_.save(target / "codebook.toml")
        self.billboard_.save(target / "board")
        (target / "guarantee.json").write_text(self.guarantee_.to_json() + "\n", encoding="utf-8")
        (target / "guarantee.txt").write_text(f"{self.guarantee_}\n", encoding="utf-8")
        return target

    def __getstate__(self) -> dict[str, Any]:
        if isinstance(getattr(self, "_units", None), Codebook):
            raise InputError(
                "A fitted estimator holds every task's model, so it is not pickled whole. Use save(folder) "
                "for the public part and export(task, path) for one task's own model."
            )
        state: dict[str, Any] = super().__getstate__()
        return state


class SharedPriorRegressor(RegressorMixin, _SharedPrior):  # type: ignore[misc]
    r"""Linear regression for many tasks, each with its own model, under task-level JDP.

    A few noisy releases say how the tasks' weights are alike (their mean and spread); each task then fits
    its own data at home with that as its prior and weighs it by its own evidence.

    Parameters
    ----------
    task : str or int, optional
        Name (or index) of the task column. None, and no `tasks` in `fit`, means one's own model: nothing
        leaves and epsilon is 0.
    epsilon : float
        Privacy budget of every task. ``float("inf")`` gives the non-private run, and says so.
    delta : float or "auto"
        By default min(m^-1.5, 1/(10 m)) for m tasks; more than 1/m is refused.
    relation : {"replace", "zero_out"}
        Neighbours differ in one task's data (default), or in one task's silence.
    structure : {"auto", "joint", "mean", "lowrank", "sparse"}
        What tasks tell each other. "auto" is "joint": mean and covariance of their weights.
    bounds : mapping, path or Codebook
        Public limits of every feature and of the target; required to share anything. "data" reads them
        from the data, and the guarantee then says that it does not hold.
    ledger : Ledger, optional
        The account these tasks spend from. Every fit is charged, a refit again, and says so.
    random_state : int, optional
        Makes noise reproducible and INSECURE: for tests and papers.

    Attributes
    ----------
    coef_, intercept_ : arrays of shape (tasks, columns) and (tasks,)
        Each task's model in the user's units. Row i belongs to task ``task_ids_[i]`` alone.
    guarantee_, plan_, billboard_ : Guarantee, Plan, Billboard
        The public part.

    Privacy
    -------
    Unit: a task with all its rows. What leaves a task is one clipped vector a round (see `SharedPrior`);
    the curator is trusted to sum and to add noise. `coef_`, predictions and scores are private to tasks.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> school = np.repeat(np.arange(200), 10)
    >>> age = rng.uniform(6, 18, 2000)
    >>> score = np.clip(2 * age + rng.normal(0, 3, 200)[school] + rng.normal(0, 3, 2000), 0, 50)
    >>> bounds = {"age": (5, 20), "target": (0, 50)}
    >>> model = SharedPriorRegressor("school", epsilon=1.0, bounds=bounds, random_state=0)
    >>> model = model.fit({"school": school, "age": age}, score)
    >>> model.guarantee_.epsilon <= 1.0
    True
    >>> model.predict({"school": [999], "age": [10.0]}).round() in range(15, 26)  # a school never seen
    True
    """

    _classify = False

    def _check_target(self, codebook: Codebook) -> None:
        if not isinstance(codebook.target, Numeric):
            raise InputError("The codebook's target has classes. Use SharedPriorClassifier.")

    def _learner(self, codebook: Codebook) -> Regression:
        return Regression(codebook.width)

    def _own_scaling(
        self, X: NDArray[np.float64], y: NDArray[Any], weight: NDArray[np.float64]
    ) -> tuple[OwnScaling, NDArray[np.float64], Regression]:
        scaling = OwnScaling.of(X, np.asarray(y, dtype=np.float64), weight)
        return scaling, scaling.encode_target(np.asarray(y, dtype=np.float64)), Regression(scaling.width)

    def predict(self, X: Any, tasks: ArrayLike | None = None, return_std: bool = False) -> Any:
        """Predict with each row's own task's model; a task not seen before is served from the board alone.

        Parameters
        ----------
        X : DataFrame, mapping of columns, or array
            As in `fit`.
        tasks : array-like, optional
            One task id a row, instead of a task column.
        return_std : bool
            Also return the standard deviation of the prediction, noise included.
        """
        rows, models = self._models(X, tasks)
        mean = self._units.decode_target(np.einsum("nd,nd->n", rows, models["coef"]))
        if not return_std:
            return mean
        spread = np.einsum("nd,nde,ne->n", rows, models["covariance"], rows) + models["noise"]
        return mean, np.sqrt(np.maximum(spread, 0.0)) * self._units.target_scale

    def score(self, X: Any, y: Any, sample_weight: Any = None, tasks: ArrayLike | None = None) -> float:
        """Return the coefficient of determination. Private: a score that leaves its tasks is a release."""
        from sklearn.metrics import r2_score

        return float(r2_score(y, self.predict(X, tasks), sample_weight=sample_weight))


class SharedPriorClassifier(ClassifierMixin, _SharedPrior):  # type: ignore[misc]
    """Logistic or multinomial regression for many tasks, under task-level joint differential privacy.

    Parameters, attributes and privacy are those of `SharedPriorRegressor`; the codebook lists the classes,
    which are public. With more than two classes tasks share a mean.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> person = np.repeat(np.arange(300), 8)
    >>> x = rng.uniform(-1, 1, 2400)
    >>> yes = rng.random(2400) < 1 / (1 + np.exp(-4 * x))
    >>> bounds = {"x": (-1, 1), "target": [False, True]}
    >>> model = SharedPriorClassifier("person", epsilon=2.0, bounds=bounds, random_state=0)
    >>> model = model.fit({"person": person, "x": x}, yes)
    >>> model.predict({"person": [0, 0], "x": [-0.9, 0.9]}).tolist()
    [False, True]
    """

    _classify = True

    def _check_target(self, codebook: Codebook) -> None:
        if isinstance(codebook.target, Numeric):
            raise InputError("The codebook's target is a number. Use SharedPriorRegressor, or list classes.")

    def _keep(self, finished: Run) -> None:
        if isinstance(self._units, Codebook):
            self.classes_ = np.asarray(self._units.target.levels)  # type: ignore[union-attr]
        super()._keep(finished)

    def _learner(self, codebook: Codebook) -> Classification:
        return Classification(codebook.width, len(codebook.target.levels))  # type: ignore[union-attr]

    def _own_scaling(
        self, X: NDArray[np.float64], y: NDArray[Any], weight: NDArray[np.float64]
    ) -> tuple[OwnScaling, NDArray[Any], Classification]:
        from sklearn.utils.multiclass import check_classification_targets

        check_classification_targets(y)
        self.classes_, index = np.unique(y, return_inverse=True)
        scaling = OwnScaling.of(X, None, weight)
        return scaling, index, Classification(scaling.width, max(2, len(self.classes_)))

    def predict_proba(self, X: Any, tasks: ArrayLike | None = None) -> NDArray[np.float64]:
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
