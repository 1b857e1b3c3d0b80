"""What sharing in private must beat: every task on its own, and one model for all."""

from __future__ import annotations

import math
import os
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from cloister.algorithms.bases import Independent
from cloister.app.fit import class_weights
from cloister.app.predict import Index
from cloister.app.result import EstimatorSettings, TableRun
from cloister.app.source import EncodedTable
from cloister.app.summary import Summary
from cloister.core.arrays import Array, Floats, States
from cloister.core.errors import InputError
from cloister.core.tasks import Tasks, row_weights
from cloister.engines.run import run
from cloister.estimators.base import MultiTaskEstimator
from cloister.estimators.class_weights import WeighsClasses
from cloister.learners.linear.classification import Classification
from cloister.learners.linear.regression import Regression
from cloister.plan.algorithm import Algorithm
from cloister.plan.plan import Plan
from cloister.privacy.accounting import Price, Prices
from cloister.privacy.guarantee import NoiseMade, guarantee_for
from cloister.tables.codebook import Codebook
from cloister.tables.coefficient_units import OwnScaling
from cloister.tables.columns import Columns, numeric_columns, refuse_missing, target_column

CLASSES_FROM_DATA = "the list of classes was read from the data of all tasks"


@dataclass(eq=False, repr=False)
class _SingleTask(MultiTaskEstimator):
    """`Independent`: rows are scaled by the codebook or, without one, by each task's own data."""

    task: str | int | None = None
    _: KW_ONLY
    bounds: Any = None

    def algorithm(self, codebook: Codebook) -> Algorithm:
        return Independent(self.learner(codebook))

    def fit(
        self,
        X: Any,
        y: Any,
        tasks: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        journal: str | os.PathLike[str] | None = None,
    ) -> Any:
        """Fit every task's model to its own rows.

        Parameters
        ----------
        X : DataFrame, mapping of columns, or array of shape (n_samples, n_features)
            Features, and the task column if `task` names one; numbers only without bounds.
        y : array-like of shape (n_samples,), or str
            Numbers or classes; or the name of the column of X that has them.
        tasks : array-like of shape (n_samples,), optional
            One task id a row, instead of a task column. Without either, all rows are one task's own.
        sample_weight : array-like of shape (n_samples,), optional
            Row weights.
        journal : path, optional
            A new folder where the run is left, as by `save`; needs bounds.

        Returns
        -------
        self
        """
        alone = self.task is None and tasks is None
        if (self.bounds is None or alone) and journal is not None:
            raise InputError("A journal holds a codebook and tasks. Pass bounds= and task= or tasks=.")
        if self.bounds is not None and not alone:
            return super().fit(X, y, tasks, sample_weight, journal=journal)
        X, y, target = target_column(X, y)
        if alone:
            return self._fit_alone(X, y, sample_weight)
        columns = self.reader.columns(X, y, tasks, target)
        refuse_missing(columns, {target: np.asarray(y)})
        return self._fit_each(columns, np.asarray(y), sample_weight)

    def _fit_alone(self, X: Any, y: Any, sample_weight: ArrayLike | None) -> Any:
        """Fit one's own single-task model: nothing leaves, so nothing need be public."""
        from sklearn.utils.multiclass import check_classification_targets
        from sklearn.utils.validation import _check_sample_weight, validate_data

        if self.bounds is not None:
            raise InputError(
                "bounds= are for several tasks. Name these with task= or tasks=, or leave bounds= out for a "
                "model of one's own."
            )
        if isinstance(sample_weight, str):
            row_weights(sample_weight)
        classify = self.reader.classify
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=not classify)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if classify:
            check_classification_targets(y)
            self.classes_, y = np.unique(y, return_inverse=True)
        scaling, target = self._scaled(X, y, weight)
        data = Tasks.from_arrays(scaling.encode(X), target, np.zeros(len(X), dtype=int), weight)
        finished = run(Plan(Independent(self._own_learner(scaling.width)), n_tasks=1), data)
        self._keep(TableRun.of(finished, scaling))
        return self

    def _fit_each(self, columns: Columns, goal: Array, sample_weight: ArrayLike | None) -> Any:
        """Scale every task by its own data, fit it, and express its model in the user's units."""
        values = numeric_columns(columns)
        data = Tasks.from_arrays(values, np.arange(len(goal)), columns.ids, sample_weight)
        if self.reader.classify:
            self.classes_, goal = np.unique(goal, return_inverse=True)
        parts = [self._own_rows(data, goal, i) for i in range(len(data))]
        stacked = Tasks(
            data.ids,
            np.concatenate([scaling.encode(rows) for scaling, rows, _ in parts]),
            np.concatenate([target for _, _, target in parts]),
            data.weight,
            data.offsets,
        )
        learner = self._own_learner(1 + values.shape[1])
        caveats = (CLASSES_FROM_DATA,) if self.reader.classify else ()
        finished = run(Plan(Independent(learner), n_tasks=len(data), caveats=caveats), stacked)
        models = _to_user_units(finished.private.models, [scaling for scaling, _, _ in parts])
        fitted = TableRun.of(finished, OwnScaling.none(values.shape[1]))
        return self.use_run(replace(fitted, models=models), columns)

    def _own_rows(self, data: Tasks, goal: Array, i: int) -> tuple[OwnScaling, Floats, Array]:
        at = slice(*data.offsets[i : i + 2])
        scaling, target = self._scaled(data.X[at], goal[data.y[at]], data.weight[at])
        return scaling, data.X[at], target

    def _scaled(self, X: Floats, y: Array, weight: Floats) -> tuple[OwnScaling, Array]:
        """Return a task's own scaling, and its scaled targets; classes stay as they are."""
        if self.reader.classify:
            return OwnScaling.of(X, None, weight), y
        numbers = np.asarray(y, dtype=np.float64)
        scaling = OwnScaling.of(X, numbers, weight)
        return scaling, scaling.encode_target(numbers)

    def _own_learner(self, width: int) -> Regression | Classification:
        if self.reader.classify:
            given, classes = self.get_params(deep=False)["class_weight"], self.classes_.tolist()
            weights = class_weights(classes, given) if len(classes) > 1 else None
            return Classification(width, max(2, len(classes)), class_weight=weights)
        return Regression(width)

    def _rows(self, X: Any, tasks: ArrayLike | None) -> tuple[Floats, States, Index]:
        check_is_fitted(self, "guarantee_")
        scaling, named = self.run_.units, self.task is not None or tasks is not None
        if named or len(self.task_ids_) > 1 or not isinstance(scaling, OwnScaling):
            return super()._rows(X, tasks)
        from sklearn.utils.validation import validate_data

        rows = scaling.encode(np.asarray(validate_data(self, X, reset=False, dtype=np.float64)))
        return rows, self.run_.models, np.zeros(len(rows), dtype=np.intp)


class SingleTaskRegressor(RegressorMixin, _SingleTask):  # type: ignore[misc]
    """Linear regression, every task on its own: Bayesian ridge averaged over its strength by evidence.

    Parameters
    ----------
    task : str or int, optional
        Name (or index) of the task column. None, and no `tasks` in `fit`, means one task.
    bounds : mapping, path or Codebook, optional
        Limits of the features and the target, as for `SharedPriorRegressor`. Without them every task scales
        numbers by its own data; nothing leaves it, so nothing need be public.

    Privacy
    -------
    Nothing is ever sent: epsilon is 0. There is no model for a task that was not in `fit`.

    Examples
    --------
    >>> x, y = np.arange(12.0)[:, None], np.r_[np.arange(6.0), 5 - np.arange(6.0)]
    >>> model = SingleTaskRegressor().fit(x, y, tasks=np.repeat(["up", "down"], 6))
    >>> model.coef_.round(1).ravel().tolist(), model.guarantee_.epsilon
    ([-1.0, 1.0], 0.0)
    """


@dataclass(eq=False, repr=False)
class SingleTaskClassifier(ClassifierMixin, WeighsClasses, _SingleTask):  # type: ignore[misc]
    """Logistic or multinomial regression, every task on its own.

    Parameters and attributes are those of `SingleTaskRegressor`.

    Privacy
    -------
    Nothing is ever sent: epsilon is 0. Without bounds the classes are those that any task has: what others
    have shows in them, and the guarantee says that it does not hold. List them in `bounds` to mend that.
    """


@dataclass(eq=False, repr=False)
class _Pooled(MultiTaskEstimator):
    """All rows are one task's: there is no plan, and nothing about the model is public."""

    task: str | int | None = None
    _: KW_ONLY
    bounds: Any = None

    def algorithm(self, codebook: Codebook) -> Algorithm:
        raise InputError("Pooling has no plan: all rows are put together, and nothing protects them.")

    def plan(self, n_tasks: int, codebook: Codebook | None = None) -> Plan:
        """Refuse: rows are put together, and no plan prices that."""
        raise InputError("Pooling has no plan: all rows are put together, and nothing protects them.")

    def save(self, folder: str | os.PathLike[str], *, models: bool = True, force: bool = False) -> Path:
        """Refuse: nothing about a pooled model is public."""
        raise InputError("A pooled model is not private, so it has no public part. Use export(task, path).")

    def report(self, *args: Any, **options: Any) -> Path:
        """Refuse: nothing about a pooled model is public."""
        raise InputError("A pooled model is not private, so there is no page about it. Use task_model(task).")

    def summary(self) -> Summary:
        """Refuse: nothing about a pooled model is public."""
        raise InputError(
            "A pooled model is not private, so it has no public summary. Use task_model(task).summary()."
        )

    def _run(self, table: EncodedTable, settings: EstimatorSettings, journal: Path | None) -> TableRun:
        if journal is not None:
            raise InputError("A pooled model is not private, so it has no journal. Leave journal= out.")
        data = table.tasks
        everyone = np.array([0, len(data.y)])
        together = Tasks(np.zeros(1, dtype=np.int64), data.X, data.y, data.weight, everyone)
        finished = run(Plan(Independent(self.learner(table.codebook)), n_tasks=1), together)
        models = {
            name: np.repeat(array, len(data), axis=0) for name, array in finished.private.models.items()
        }
        nothing = Price(math.inf, 1.0, "none")
        guarantee = guarantee_for(
            Prices(finished.plan.relation, nothing, nothing),
            NoiseMade.none(),
            finished.guarantee.doubts,
            n_tasks=len(data),
            participation="everyone, with all rows",
            trust="whoever pools the rows sees them all",
        )
        fitted = TableRun.of(finished, table.codebook, settings)
        return replace(fitted, guarantee=guarantee, ids=data.ids, models=models)

    def _keep(self, run: TableRun) -> None:
        super()._keep(run)
        del self.plan_, self.billboard_  # of the one task that all rows were taken for

    def _locate(self, columns: Columns) -> tuple[States, Index]:
        return self.run_.models, np.zeros(len(columns), dtype=np.intp)  # whatever the task


class PooledRegressor(RegressorMixin, _Pooled):  # type: ignore[misc]
    """Linear regression with one model for all tasks, fitted to all rows: a baseline that is NOT PRIVATE.

    Parameters
    ----------
    task : str or int, optional
        Name (or index) of the task column, unless `fit` is given `tasks`.
    bounds : mapping, path or Codebook
        Limits of the features and the target, as for `SharedPriorRegressor`.

    Privacy
    -------
    None: whoever holds the model, or any prediction of it, holds something about every row. The guarantee
    says so.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> model = PooledRegressor(bounds={0: (-1, 1), "y": (-1, 1)})
    >>> model = model.fit(x, 0.5 * x[:, 0], tasks=np.arange(40) % 4)
    >>> str(model.guarantee_).split(":")[0], model.predict([[1.0]], tasks=[999]).round(2).tolist()
    ('NOT PRIVATE', [0.5])
    """


@dataclass(eq=False, repr=False)
class PooledClassifier(ClassifierMixin, WeighsClasses, _Pooled):  # type: ignore[misc]
    """Logistic or multinomial regression with one model for all tasks: a baseline that is NOT PRIVATE.

    Parameters, attributes and the lack of privacy are those of `PooledRegressor`.
    """


def _to_user_units(models: States, scalings: list[OwnScaling]) -> States:
    """Express every task's model, fitted in its own scaling, in the user's units."""
    center, spread = np.stack([s.center for s in scalings]), np.stack([s.spread for s in scalings])
    scale, middle = np.array([(s.target_scale, s.target_center) for s in scalings]).T
    width, m = center.shape[1] + 1, len(scalings)
    turn = np.zeros((m, width, width))
    turn[:, np.arange(width), np.arange(width)] = np.column_stack([np.ones(m), 1 / spread])
    turn[:, 0, 1:] = -center / spread
    turn *= scale[:, None, None]
    weights = models["coef"].reshape(m, -1, width)
    coef = np.einsum("mij,mqj->mqi", turn, weights)
    coef[:, 0, 0] += math.sqrt(width) * middle
    spreads = models["covariance"].reshape(m, weights.shape[1], width, weights.shape[1], width)
    spreads = np.einsum("mij,mqjrk,mlk->mqirl", turn, spreads, turn)
    coef = coef.reshape(m, -1)
    out = models | {"coef": coef, "covariance": spreads.reshape(models["covariance"].shape)}
    out |= {"alone": coef} if "alone" in models else {}
    return out | ({"noise": models["noise"] * scale**2} if "noise" in models else {})
