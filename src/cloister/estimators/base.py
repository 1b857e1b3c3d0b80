"""What all scikit-learn estimators share: a table goes in, a plan runs, and every task gets its own model.

An estimator adds an algorithm (`_algorithm`); what it predicts is that of `cloister.estimators.targets`.
Encoding, the run, its folder and prediction are those of `cloister.tables`.
"""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted

from cloister.algorithm import Algorithm
from cloister.algorithms.locate import EVEN_IN_HALF, Locate
from cloister.arrays import Array, Floats, States
from cloister.engines.run import run
from cloister.errors import InputError, PrivateDataError, check_one_owner
from cloister.estimators.notebook import ShownInNotebooks
from cloister.estimators.parameters import Budgeted
from cloister.estimators.reporting import WritesReports
from cloister.learners.linear.classification import Classification
from cloister.learners.linear.regression import Regression
from cloister.plan import Plan
from cloister.store.journal import journal_folder
from cloister.tables.codebook import Codebook
from cloister.tables.columns import (
    Columns,
    encode_rows,
    read_codebook,
    refuse_target,
    split_table,
    target_column,
)
from cloister.tables.fitting import fit_in_folder
from cloister.tables.folder import save_run
from cloister.tables.labelled import data_frame
from cloister.tables.model import TaskModel
from cloister.tables.prediction import Index
from cloister.tables.summary import Summary
from cloister.tables.table_run import EstimatorSettings, TableRun, called
from cloister.tasks import Tasks

__all__ = ["BaseMultiTask", "BasePrivate"]


@dataclass(eq=False, repr=False)
class BaseMultiTask(WritesReports, ShownInNotebooks, ABC):
    """The table, the plan, the run, and who gets which model."""

    task: str | int | None = None
    _: KW_ONLY
    bounds: Any = None

    _classify: ClassVar[bool]
    __metadata_request__fit: ClassVar = {"journal": UNUSED}  # a folder is one run's

    @property
    def _paid(self) -> dict[str, Any]:
        """Who pays for a run, and where its noise comes from: arguments of `run`."""
        return {}

    @abstractmethod
    def _algorithm(self, codebook: Codebook) -> Algorithm:
        """Return the algorithm for rows of this codebook."""

    @abstractmethod
    def _check_target(self, codebook: Codebook) -> None:
        """Refuse a target of the wrong kind."""

    @abstractmethod
    def _learner(self, codebook: Codebook) -> Regression | Classification:
        """Return what a task does on its own."""

    def fit(
        self,
        X: Any,
        y: Any,
        tasks: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        journal: str | os.PathLike[str] | None = None,
    ) -> Any:
        """Fit every task's model.

        Parameters
        ----------
        X : DataFrame, mapping of columns, or array of shape (n_samples, n_features)
            Features, and the task column if `task` names one.
        y : array-like of shape (n_samples,), or str
            Numbers or classes; or the name of the column of X that has them.
        tasks : array-like of shape (n_samples,), optional
            One task id a row, instead of a task column.
        sample_weight : array-like of shape (n_samples,), optional
            Row weights; they stay with the task.
        journal : path, optional
            A new folder where the run is left, as by `save`. Every release is on disk before it is used: if
            this call is killed, the same call goes on, with the same releases, and is charged once.

        Returns
        -------
        self
        """
        return self._fit(*self._encode(X, y, tasks, sample_weight), journal)

    def _fit(
        self, columns: Columns, codebook: Codebook, data: Tasks, journal: str | os.PathLike[str] | None
    ) -> Any:
        settings = EstimatorSettings.of(self, data.ids, columns.named)
        folder = None if journal is None else journal_folder(journal)
        self._adopt(columns, self._run(codebook, data, settings, folder))
        ledger = self._paid.get("ledger")
        if ledger is not None and len(ledger.history) > 1:
            warnings.warn(
                f"These tasks have now been charged {len(ledger.history)} times: together epsilon = "
                f"{ledger.spent:.3g} of {ledger.epsilon:g} at delta = {ledger.delta:g}.",
                stacklevel=3,
            )
        return self

    def _encode(
        self, X: Any, y: Any, tasks: ArrayLike | None, sample_weight: ArrayLike | None
    ) -> tuple[Columns, Codebook, Tasks]:
        """Turn a table into tasks by its codebook; refuse what does not fit."""
        X, y, target = target_column(X, y)
        columns = self._columns(X, y, tasks, target)
        codebook = read_codebook(self.bounds, columns, target, y, self._classify)
        refuse_target(columns, codebook.target.name)
        if codebook.task is None and isinstance(self.task, str):
            codebook = replace(codebook, task=self.task)
        self._check_target(codebook)
        rows = encode_rows(codebook, columns)
        data = Tasks.from_arrays(rows, codebook.encode_target(y, columns.at), columns.ids, sample_weight)
        if not data.weight.any():
            raise PrivateDataError("sample_weight is zero in every row. Leave it out, or mend it.")
        if len(data) < 2:
            raise InputError(
                "There is one task only, and nobody to learn from. For a model of one's own use "
                "SingleTaskRegressor or SingleTaskClassifier."
            )
        return columns, codebook, data

    def _columns(self, X: Any, y: Any, tasks: ArrayLike | None, target: str) -> Columns:
        columns, shape = self._split(X, tasks), np.shape(y)
        if len(shape) != 1:
            got = f"shape {shape}" if shape else f"a single {type(y).__name__}"
            raise InputError(
                f"y must be one column, with one target a row. Got {got}. Pass the column, y[:, 0] of an "
                "array, or its name, if X has it."
            )
        if shape[0] != len(columns):
            raise InputError(f"X and y must have one entry a row: X has {len(columns)}, y {shape[0]}.")
        if not len(columns):
            raise InputError("X must have rows to fit. Got none. Check how they were selected.")
        refuse_target(columns, target)
        return columns

    def _split(self, X: Any, tasks: ArrayLike | None) -> Columns:
        """Take a table apart."""
        return split_table(X, self.task, tasks)

    def _run(
        self, codebook: Codebook, data: Tasks, settings: EstimatorSettings, journal: Path | None
    ) -> TableRun:
        plan = self._plan_for(codebook, data)
        if journal is None:
            return TableRun.of(run(plan, data, **self._paid), codebook, settings)
        return fit_in_folder(journal, plan, lambda: data, codebook, settings, **self._paid)

    def plan(self, n_tasks: int, codebook: Codebook | None = None) -> Plan:
        """Return the plan that `fit` would run on so many tasks: read its guarantee before spending."""
        book = codebook if codebook is not None else self.bounds
        if isinstance(book, (str, os.PathLike)) and book != "data":
            book = Codebook.load(os.fspath(book))
        if not isinstance(book, Codebook):
            raise InputError("A plan needs the codebook: pass one, or a codebook file as bounds=.")
        return self._plan(book, n_tasks)

    def _plan_for(self, codebook: Codebook, data: Tasks) -> Plan:
        return self._plan(codebook, len(data))

    def _plan(self, codebook: Codebook, n_tasks: int) -> Plan:
        return Plan(self._algorithm(codebook), n_tasks=n_tasks, caveats=codebook.caveats)

    def _adopt(self, columns: Columns, fitted: TableRun) -> None:
        own_order = isinstance(fitted.units, Codebook)
        self._name_features(list(fitted.codebook.names if own_order else columns.features), columns.named)
        self._library = columns.library
        self._keep(fitted)

    def _name_features(self, names: list[str], named: bool) -> None:
        self.n_features_in_ = len(names)
        if named:
            self.feature_names_in_ = np.array(names, dtype=object)
        elif hasattr(self, "feature_names_in_"):  # of an earlier fit
            del self.feature_names_in_

    def _keep(self, fitted: TableRun) -> None:
        self._fitted = fitted
        if isinstance(fitted.units, Codebook):
            self.codebook_ = fitted.units
        self.plan_, self.billboard_, self.guarantee_ = fitted.plan, fitted.board, fitted.guarantee
        self.task_ids_ = fitted.ids
        weights = fitted.models["coef"]
        by_class = weights.reshape(len(weights), weights.shape[1] // fitted.units.width, fitted.units.width)
        coef, intercept = fitted.units.to_user_units(by_class)
        squeeze = by_class.shape[1] == 1
        self.coef_ = coef[:, 0] if squeeze else coef
        self.intercept_ = intercept[:, 0] if squeeze else intercept

    def _rows(self, X: Any, tasks: ArrayLike | None) -> tuple[Floats, States, Index]:
        """Return encoded rows, models, and which of these is each row's own task's."""
        check_is_fitted(self, "guarantee_")
        columns = self._split(X, tasks)
        return self._encode_rows(columns), *self._locate(columns)

    def _locate(self, columns: Columns) -> tuple[States, Index]:
        return self._fitted.locate(columns.ids, columns.groups)

    def _encode_rows(self, columns: Columns) -> Floats:
        return encode_rows(self.codebook_, columns)

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> Array:
        """Return the names of the columns that `coef_` has: of a category, one for each level but the first.

        Parameters
        ----------
        input_features : array-like of str, optional
            For scikit-learn's sake: the features of `fit`, if anything.
        """
        from sklearn.utils.validation import _check_feature_names_in

        check_is_fitted(self, "guarantee_")
        units = self._fitted.units
        goal = units.target.name if isinstance(units, Codebook) else None
        if input_features is not None:  # of a pipeline, whose table has more columns than features
            apart = (self.task, getattr(self, "groups", None), goal)
            input_features = [name for name in np.asarray(input_features).tolist() if name not in apart]
        names = _check_feature_names_in(self, input_features)
        return np.array(units.column_names if isinstance(units, Codebook) else names, dtype=object)

    def replay(
        self, X: Any, y: Any, sample_weight: ArrayLike | None = None, *, task: object = "new"
    ) -> TaskModel:
        """Return one task's own model, from its own rows and the board alone.

        For a task that was in `fit` it is its model again, for one that comes later it is how to join. The
        table may have the task column or not; `task` is what to call it, by default as that column does.

        Privacy
        -------
        Free: nothing leaves the task, and nothing is spent.
        """
        check_is_fitted(self, "guarantee_")
        own = self._fitted.own_rows(X, y, self.task, sample_weight, task)
        return self._fitted.model_of(own, called(X, self.task, own, task))

    def summary(self) -> Summary:
        """Say what all tasks have in common: coefficients, standard errors, spread. Public, hence free.

        Coefficients are in the user's units. Standard errors count the privacy noise and which tasks there
        are; what was not heard above the noise is said to be so.

        Returns
        -------
        Summary
            ``print(...)`` shows it; `to_frame` and `to_dict` have the numbers.
        """
        check_is_fitted(self, "guarantee_")
        return replace(self._fitted, guarantee=self.guarantee_).summary(getattr(self, "_library", None))

    def coefficients(self, library: str | None = None) -> Any:
        """Return `coef_` and `intercept_` as a data frame with names: one row a task.

        Parameters
        ----------
        library : {"pandas", "polars", "pyarrow"}, optional
            By default that of the table which was fitted, or the first of these that is installed.

        Returns
        -------
        data frame
            A column `task`, then the intercept and the columns, in the user's units; with several classes
            these for each of `classes_` but the first, against which they are.

        Privacy
        -------
        Each row belongs to its own task alone, as a row of `coef_` does.
        """
        check_is_fitted(self, "guarantee_")
        names = ["intercept", *self.get_feature_names_out()]
        if self.coef_.ndim == 3:
            names = [f"{level}: {name}" for level in self.classes_[1:] for name in names]
        values = np.concatenate([self.intercept_[..., None], self.coef_], axis=-1).reshape(-1, len(names))
        columns = {"task": self.task_ids_} | dict(zip(names, values.T, strict=True))
        return data_frame(columns, library or getattr(self, "_library", None))

    def export(self, task: object, path: str | os.PathLike[str]) -> Path:
        """Write one task's own model to a file that you alone can read, to be handed to that task alone."""
        return self.task_model(task).save(path)

    def task_model(self, task: object) -> TaskModel:
        """Return one task's own model."""
        check_is_fitted(self, "guarantee_")
        return self._fitted.task_model(task)

    def task_models(self) -> Iterator[TaskModel]:
        """Yield every task's own model, in the order of `task_ids_`. Private: each is its task's alone."""
        check_is_fitted(self, "guarantee_")
        return self._fitted.task_models()

    def save(self, folder: str | os.PathLike[str], *, models: bool = True, force: bool = False) -> Path:
        """Write the run to a folder, as `cloister fit` does; `cloister.load` gives the estimator back.

        Parameters
        ----------
        folder : path
            A new folder, for you alone (mode 0700). One that is there is left as it is, unless forced.
        models : bool, default=True
            Whether to write each task's model to a file of its own, under ``models``. Give each of these to
            its own task alone. Without them the folder holds the public part: plan, billboard, codebook,
            settings and guarantee.
        force : bool, default=False
            Replace the folder of an older run.
        """
        check_is_fitted(self, "guarantee_")
        save_run(Path(folder), self._fitted, models, force)
        return Path(folder)

    def __getstate__(self) -> dict[str, Any]:
        instead = "Use save(folder) for the run, and export(task, path) for one task's own model."
        check_one_owner(getattr(self, "task_ids_", ()), "A fitted estimator", instead)
        state: dict[str, Any] = super().__getstate__()
        return state


@dataclass(eq=False, repr=False, kw_only=True)
class BasePrivate(Budgeted, BaseMultiTask):
    """The part of an estimator that shares something, and pays for it."""

    #: How many typical distances from its center the unit of a column is that was found.
    _reach: ClassVar[float] = EVEN_IN_HALF

    @property
    def _paid(self) -> dict[str, Any]:
        return {"ledger": self.ledger, "random_state": self.random_state}

    def _plan(self, codebook: Codebook, n_tasks: int) -> Plan:
        return self._priced(self._algorithm(codebook), n_tasks, caveats=codebook.caveats)

    def _search(self, codebook: Codebook) -> Locate | None:
        """Return the search for targets and features that comes first, if targets are numbers."""
        if self._classify:
            return None
        return Locate(codebook.bounded_columns, 1 / codebook.row_scale, self._reach)
