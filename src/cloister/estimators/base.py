"""What all estimators of tables share: a table goes in, a plan runs, every task gets its own model.

An estimator is its parameters and the `algorithm` that these give for a codebook. Reading and encoding, the
run, its folder and its pages are functions of `cloister.app` and `cloister.report`, over one result.
"""

from __future__ import annotations

import os
import warnings
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from cloister.algorithms.histograms import LocateRecords
from cloister.algorithms.locate import EVEN_IN_HALF, Locate
from cloister.app import predict as predictions
from cloister.app.fit import fit_plan, own_learner
from cloister.app.folder import save_run
from cloister.app.predict import Index
from cloister.app.result import EstimatorSettings, TableRun
from cloister.app.source import EncodedTable, TableReader
from cloister.app.summary import Summary
from cloister.app.task_model import TaskModel
from cloister.core.arrays import Array, Floats, States
from cloister.core.errors import InputError, check_one_owner
from cloister.core.tasks import Tasks
from cloister.estimators import notebook
from cloister.estimators.parameters import PrivacyBudget, what_adds_up
from cloister.learners.learner import BayesianLearner
from cloister.plan.algorithm import Algorithm
from cloister.plan.plan import Plan
from cloister.store.journal import journal_folder
from cloister.tables.codebook import Codebook
from cloister.tables.coefficient_units import user_coefficients
from cloister.tables.columns import Columns, target_column
from cloister.tables.frames import data_frame
from cloister.tables.targets import Count, Ordered


def _is_classifier(estimator: object) -> bool:
    return isinstance(estimator, ClassifierMixin)


def _is_regressor(estimator: object) -> bool:
    return not _is_classifier(estimator)


class MultiTaskEstimator(BaseEstimator, metaclass=ABCMeta):  # type: ignore[misc]
    """Everything but parameters and the algorithm; scikit-learn's mixin says whether it predicts classes."""

    task: str | int | None
    bounds: Any
    #: A folder is one run's: no pipeline or search passes it on.
    __metadata_request__fit: ClassVar = {"journal": UNUSED}

    def __init_subclass__(cls, **options: Any) -> None:
        """Score with tasks: scikit-learn's mixins, which must stand first, know none."""
        cls.score = MultiTaskEstimator.score  # type: ignore[method-assign]
        super().__init_subclass__(**options)

    @abstractmethod
    def algorithm(self, codebook: Codebook) -> Algorithm:
        """Return what tasks do and send, for rows of this codebook."""

    def learner(self, codebook: Codebook) -> BayesianLearner:
        """Return what a task does at home, for rows of this codebook."""
        return own_learner(codebook)

    @property
    def reader(self) -> TableReader:
        """How tables are read for it."""
        groups = getattr(self, "groups", None)
        return TableReader(self.task, self.bounds, _is_classifier(self), type(self).__name__, groups)

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
        return self._fit(self.reader.encode(X, y, tasks, sample_weight), journal)

    def _fit(self, table: EncodedTable, journal: str | os.PathLike[str] | None) -> Self:
        settings = EstimatorSettings.of(self, table.tasks.ids, table.columns.named)
        run = self._run(table, settings, None if journal is None else journal_folder(journal))
        self.use_run(run, table.columns)
        if said := what_adds_up(getattr(self, "ledger", None), run.guarantee, table.tasks.ids):
            warnings.warn(said, stacklevel=3)
        return self

    def _run(self, table: EncodedTable, settings: EstimatorSettings, journal: Path | None) -> TableRun:
        labels = table.tasks.groups
        in_groups = {} if labels is None else {"groups": labels.tolist()}
        plan, budget = self.plan(len(table.tasks), table.codebook, **in_groups), PrivacyBudget.of(self)
        paid: dict[str, Any] = (
            {} if budget is None else {"ledger": budget.ledger, "random_state": budget.random_state}
        )
        return fit_plan(plan, lambda: table.tasks, table.codebook, settings, folder=journal, **paid)

    def plan(self, n_tasks: int, codebook: Codebook | None = None) -> Plan:
        """Return the plan that `fit` would run on so many tasks: read its guarantee before spending."""
        book = codebook if codebook is not None else self.bounds
        if isinstance(book, (str, os.PathLike)) and book != "data":
            book = Codebook.load(os.fspath(book))
        if not isinstance(book, Codebook):
            raise InputError("A plan needs the codebook: pass one, or a codebook file as bounds=.")
        self.reader.check_target(book)
        algorithm, budget = self.algorithm(book), PrivacyBudget.of(self)
        if budget is None:
            return Plan(algorithm, n_tasks=n_tasks, caveats=book.caveats)
        return budget.plan(algorithm, n_tasks, book.caveats)

    def use_run(self, run: TableRun, columns: Columns | None = None) -> Self:
        """Take a finished run for the fit: one of `fit`, of a vote, or of a folder.

        Parameters
        ----------
        run : TableRun
            A run of this estimator's plan.
        columns : Columns, optional
            The table that was fitted; without one, names are those of the codebook.
        """
        own_order = columns is None or isinstance(run.units, Codebook)
        names = list(run.codebook.names if own_order else columns.features)  # type: ignore[union-attr]
        self.n_features_in_ = len(names)
        if run.settings.named if columns is None else columns.named:
            self.feature_names_in_ = np.array(names, dtype=object)
        elif hasattr(self, "feature_names_in_"):  # of an earlier fit
            del self.feature_names_in_
        self._library = None if columns is None else columns.library
        self._keep(run)
        return self

    def _keep(self, run: TableRun) -> None:
        self.run_ = run
        if isinstance(run.units, Codebook):
            self.codebook_ = run.units
        self.plan_, self.billboard_, self.guarantee_ = run.plan, run.board, run.guarantee
        self.task_ids_ = run.ids
        self.coef_, self.intercept_ = user_coefficients(run.units, run.models["coef"])
        if _is_classifier(self) and isinstance(run.units, Codebook):
            self.classes_ = np.sort(run.units.target.levels)  # type: ignore[union-attr]
            if isinstance(run.units.target, Ordered):
                return
            squeeze = self.coef_.ndim == 2
            self.coef_ = _against_first(self.coef_, self._order, not squeeze)
            self.intercept_ = _against_first(self.intercept_, self._order, not squeeze)

    @property
    def _order(self) -> Index:
        """Where each of `classes_`, which are sorted, stands in the codebook, whose order models have."""
        units = self.run_.units
        listed = units.target.levels if isinstance(units, Codebook) else self.classes_  # type: ignore[union-attr]
        return np.argsort(listed)

    def _rows(self, X: Any, tasks: ArrayLike | None) -> tuple[Floats, States, Index]:
        """Return encoded rows, models, and which of these is each row's own task's."""
        check_is_fitted(self, "guarantee_")
        columns = self.reader.split(X, tasks)
        return self.run_.encode(columns), *self._locate(columns)

    def _locate(self, columns: Columns) -> tuple[States, Index]:
        return self.run_.locate(columns.ids, columns.groups)

    def predict(self, X: Any, tasks: ArrayLike | None = None, return_std: bool = False) -> Any:
        """Predict with each row's own task's model; a task not seen before is served from the board alone.

        Parameters
        ----------
        X : DataFrame, mapping of columns, or array
            As in `fit`.
        tasks : array-like, optional
            One task id a row, instead of a task column.
        return_std : bool
            Of numbers, also return the standard deviation of the prediction, noise included; for models that
            have one.

        Notes
        -----
        With a codebook, numbers are within the target's public bounds. Of classes that are as probable, the
        codebook's first is predicted.
        """
        if _is_classifier(self):
            if return_std:
                raise InputError("Classes have no standard deviation. Use predict_proba.")
            likeliest = self._probabilities(X, tasks).argmax(axis=1)
            return np.asarray(self.classes_[np.argsort(self._order)[likeliest]])
        found = self._rows(X, tasks)
        mean = predictions.numbers(self.run_.units, *found)
        return (mean, predictions.deviations(self.run_.units, *found)) if return_std else mean

    @available_if(_is_regressor)  # type: ignore[untyped-decorator]
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
        return predictions.intervals(self.run_.units, *found, coverage)

    @available_if(_is_classifier)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any, tasks: ArrayLike | None = None) -> Floats:
        """Return class probabilities by each row's own task's model, in the order of `classes_`."""
        return np.asarray(self._probabilities(X, tasks)[:, self._order])

    def _probabilities(self, X: Any, tasks: ArrayLike | None) -> Floats:
        """Return class probabilities in the order of the codebook."""
        rows = self._rows(X, tasks)
        found = predictions.class_probabilities(self.run_.units, *rows)[:, : len(self.classes_)]
        return np.asarray(found / found.sum(axis=1, keepdims=True))

    def score(self, X: Any, y: Any, sample_weight: Any = None, tasks: ArrayLike | None = None) -> float:
        """Return the coefficient of determination, or the accuracy of classes.

        Private: a score that leaves its tasks is a release.
        """
        from sklearn.metrics import accuracy_score, r2_score

        X, y, _ = target_column(X, y)
        measure: Callable[..., float] = accuracy_score if _is_classifier(self) else r2_score
        return float(measure(y, self.predict(X, tasks), sample_weight=sample_weight))

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> Array:
        """Return the names of the columns that `coef_` has: of a category, one for each level but the first.

        Parameters
        ----------
        input_features : array-like of str, optional
            For scikit-learn's sake: the features of `fit`, if anything.
        """
        from sklearn.utils.validation import _check_feature_names_in

        check_is_fitted(self, "guarantee_")
        units = self.run_.units
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
        return self.run_.replay(X, y, sample_weight, task=task, column=self.task)

    def summary(self) -> Summary:
        """Say what all tasks have in common: coefficients, standard errors, spread. Public, hence free.

        Coefficients are in the user's units. Standard errors count the privacy noise and which tasks there
        are; what does not stand out from the noise is said not to.

        Returns
        -------
        Summary
            ``print(...)`` shows it; `to_frame` and `to_dict` have the numbers.
        """
        check_is_fitted(self, "guarantee_")
        return self.run_.findings.summary(self.guarantee_, getattr(self, "_library", None))

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
        if self.intercept_.ndim == 2 and self.coef_.ndim == 2:
            cuts = [f"{level} or more" for level in self.run_.units.target.levels[1:]]  # type: ignore[union-attr]
            names, values = [*cuts, *names[1:]], np.concatenate([self.intercept_, self.coef_], axis=1)
            columns = {"task": self.task_ids_} | dict(zip(names, values.T, strict=True))
            return data_frame(columns, library or getattr(self, "_library", None))
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
        return self.run_.task_model(task)

    def task_models(self) -> Iterator[TaskModel]:
        """Yield every task's own model, in the order of `task_ids_`. Private: each is its task's alone."""
        check_is_fitted(self, "guarantee_")
        return self.run_.task_models()

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
        save_run(Path(folder), self.run_, models, force)
        return Path(folder)

    def report(
        self,
        path: str | os.PathLike[str],
        X: Any = None,
        y: Any = None,
        tasks: ArrayLike | None = None,
        *,
        public: bool = False,
        task: object = None,
        audit: str | os.PathLike[str] | None = None,
        force: bool = False,
    ) -> Path:
        """Write one self-contained page about this run: what was learned, promised, seen and spent.

        Parameters
        ----------
        path : path
            The HTML file. One that is there is left as it is, unless forced.
        X, y, tasks : optional
            Rows as in `fit`, of the fit or others, to measure who gains on parts of them held out. They stay
            here.
        public : bool, default=False
            The edition that may be published.
        task : optional
            One task's own edition, by its id.
        audit : path, optional
            What ``cloister audit RUN --json`` has printed.
        force : bool, default=False
            Replace a file that is there.

        Privacy
        -------
        By default the page has parts made of tasks' own models: it is private, for whoever holds all rows,
        and marked so. With `task` it is that task's alone. With `public` it is made of plan, billboard,
        guarantee and ledger alone, and refused where the guarantee does not hold.

        Examples
        --------
        >>> import numpy as np, tempfile
        >>> from cloister import SharedPriorRegressor
        >>> x, school = np.linspace(0, 1, 40), np.repeat(np.arange(10), 4)
        >>> model = SharedPriorRegressor("school", bounds={"x": (0, 1), "y": (0, 1)})
        >>> model = model.fit({"school": school, "x": x}, x)
        >>> with tempfile.TemporaryDirectory() as home:
        ...     page = model.report(f"{home}/run.html", public=True).read_text(encoding="utf-8")
        >>> "Public edition" in page, "<script" in page
        (True, False)
        """
        from cloister.report.run_page import write_page

        check_is_fitted(self, "guarantee_")
        if public and (task is not None or X is not None):
            raise InputError("public=True is made of public things alone. Leave task, X and y out.")
        if task is not None and X is not None:
            raise InputError("X and y are for the operator's edition. Leave them, or task, out.")
        ledger = getattr(self, "ledger", None)
        return write_page(
            self.run_,
            Path(path),
            public=public,
            task=task,
            rows=None if X is None else lambda: self._rows_to_compare(X, y, tasks),
            balance=None if ledger is None else ledger.balance,
            audit=audit,
            force=force,
        )

    def _rows_to_compare(self, X: Any, y: Any, tasks: ArrayLike | None) -> Tasks:
        if y is None:
            raise InputError("X must come with y, as in fit, to measure who gains. Pass both, or neither.")
        if not isinstance(self.run_.units, Codebook) or not self.run_.plan.rounds:
            raise InputError("Nothing was shared, so there is nothing to gain. Leave X and y out.")
        return self.reader.encode(X, y, tasks).tasks

    def __getstate__(self) -> dict[str, Any]:
        instead = "Use save(folder) for the run, and export(task, path) for one task's own model."
        check_one_owner(getattr(self, "task_ids_", ()), "A fitted estimator", instead)
        state: dict[str, Any] = super().__getstate__()
        return state

    def _html_repr(self) -> str:
        return notebook.diagram(self)

    def _get_params_html(self, deep: bool = True, doc_link: str = "") -> Any:
        return notebook.parameters(super()._get_params_html(deep, doc_link))

    def _get_fitted_attr_html(self, doc_link: str = "") -> Any:
        return notebook.public_attributes(super()._get_fitted_attr_html(doc_link))


def search_for(codebook: Codebook, reach: float = EVEN_IN_HALF) -> Locate | None:
    """Return the search for targets and features that comes first, if targets are numbers.

    `reach` is how many typical distances from its center the unit of a column is that was found.
    """
    if codebook.classes is not None or isinstance(codebook.target, Count):
        return None
    return Locate(codebook.bounded_columns, 1 / codebook.row_scale, reach)


def search_by_records(codebook: Codebook) -> LocateRecords:
    """Return the search for targets, if they are numbers, and all columns that comes first by record."""
    columns, targets = tuple(range(1, codebook.width)), codebook.classes is None
    indicators = tuple(column for column in columns if column not in codebook.bounded_columns)
    return LocateRecords(columns, 1 / codebook.row_scale, targets=targets, indicators=indicators)


def _against_first(weights: Floats, order: Index, several: bool) -> Floats:
    """Return weights of classes against the first in another order; those given are against the first."""
    if (order == np.arange(len(order))).all():
        return weights
    if not several:
        return -weights
    each = np.concatenate([np.zeros_like(weights[:, :1]), weights], axis=1)[:, order]
    return np.asarray(each[:, 1:] - each[:, :1])
