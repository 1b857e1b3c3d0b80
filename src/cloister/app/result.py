"""A finished run over a table: what was run, in which columns, and the models of its tasks."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tomli_w
from numpy.typing import ArrayLike

from cloister.app.choice import Choice
from cloister.app.predict import Index, predicted_columns
from cloister.app.run_findings import RunFindings
from cloister.app.run_record import RunRecord
from cloister.app.source import one_task
from cloister.app.summary import Summary
from cloister.app.task_model import TaskModel
from cloister.core.arrays import Array, Floats, States
from cloister.core.document import check_format, type_id
from cloister.core.errors import InputError, check_one_owner
from cloister.core.roster import task_name
from cloister.core.tasks import Tasks
from cloister.engines.run import Run, adapt
from cloister.engines.run import replay as replay_tasks
from cloister.plan.plan import Plan
from cloister.privacy.guarantee import Guarantee
from cloister.store.billboard import Billboard
from cloister.store.files import write_file
from cloister.tables.codebook import Codebook
from cloister.tables.coefficient_units import OwnScaling
from cloister.tables.columns import (
    Columns,
    encode_rows,
    has_column,
    numeric_columns,
    refuse_missing,
    split_groups,
)

FORMAT = "cloister estimator 1"

#: Parameters of estimators that are not written down: the codebook has its own file, an account is not the
#: run's, whoever knows a seed can take the noise off the board, a network is handed over, and the plan says
#: what a run starts from, who takes part, what kind of noise it has, who adds it and whom it is for.
_LEFT_OUT = {
    *("bounds", "class_weight", "ledger", "random_state", "net"),
    *("start_from", "sampling", "mechanism", "trust", "unit"),
}


class _Estimator(Protocol):
    def get_params(self, deep: bool = ...) -> dict[str, Any]: ...


@dataclass(frozen=True)
class EstimatorSettings:
    """Which estimator made a run, by its id, if one did; its parameters; what task ids are. Public."""

    name: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    ids: str = "text"
    named: bool = True

    @classmethod
    def of(cls, estimator: _Estimator, ids: Array, named: bool) -> EstimatorSettings:
        given = estimator.get_params(deep=False).items()
        kept = {k: _plain(v) for k, v in given if k not in _LEFT_OUT and v is not None}
        numeric = ids.dtype.kind in "iuf"
        return cls(type_id(type(estimator)), kept, ids.dtype.name if numeric else "text", named)

    def save(self, path: Path) -> None:
        document = {
            "format": FORMAT,
            "estimator": self.name,
            "task_ids": self.ids,
            "named_columns": self.named,
            "parameters": dict(self.parameters),
        }
        write_file(path, tomli_w.dumps(document).encode())

    @classmethod
    def load(cls, path: Path) -> EstimatorSettings:
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
            check_format(found.get("format"), FORMAT, path)
            name, parameters, ids = found["estimator"], found["parameters"], found["task_ids"]
            if isinstance(parameters, dict) and (ids == "text" or np.dtype(ids).kind in "iuf"):
                return cls(str(name), parameters, ids, bool(found["named_columns"]))
        except InputError:
            raise
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass
        raise InputError(f"{path} does not say which estimator made the run. Restore it, or remove it.")

    @property
    def groups(self) -> str | int | None:
        """The column of the tasks' public groups, if the estimator named one."""
        return self.parameters.get("groups")

    def as_ids(self, names: list[str]) -> Array:
        """Return task ids as they were in the table, from how model files write them."""
        text = np.array(names, dtype=np.str_)
        try:
            return text if self.ids == "text" else text.astype(self.ids)
        except ValueError:
            raise InputError("Task ids were numbers in fit and are text here. Pass them as in fit.") from None


def _plain(value: Any) -> Any:
    return np.asarray(value).tolist() if isinstance(value, tuple | list | np.ndarray | np.generic) else value


@dataclass(frozen=True, eq=False, repr=False)
class TableRun:
    """A finished run over a table. Plan, board, guarantee and codebook are public; each model is its task's.

    `cloister.load` returns one for a folder that no estimator of this library made.

    Attributes
    ----------
    plan, board, guarantee : Plan, Billboard, Guarantee
        The public part.
    units : Codebook or OwnScaling
        How rows are encoded.
    ids : array
        The tasks whose models are here, sorted.
    models : dict of arrays
        One row a task.
    groups : mapping
        The public label of each task of the run, by its id as text, if tasks are in groups.
    choice : Choice, optional
        What the run was chosen among, if tasks chose it by vote; the guarantee is then that of all of it.
    record : RunRecord
        Who held the rows, who approved the run, which charge paid for it: as far as it is known.
    """

    plan: Plan
    board: Billboard
    guarantee: Guarantee
    units: Codebook | OwnScaling
    ids: Array
    models: States = field(repr=False)
    settings: EstimatorSettings = EstimatorSettings()
    groups: Mapping[str, str] = field(default_factory=dict)
    choice: Choice | None = None
    record: RunRecord = field(default_factory=RunRecord)

    @classmethod
    def of(
        cls,
        run: Run,
        units: Codebook | OwnScaling,
        settings: EstimatorSettings = EstimatorSettings(),  # noqa: B008
    ) -> TableRun:
        private = run.private
        roster, groups = run.roster, {}
        if run.plan.algorithm.groups is not None and roster.groups is not None:
            groups = dict(zip(map(str, roster), map(str, roster.groups), strict=True))
        found = cls(run.plan, run.board, run.guarantee, units, private.ids, private.models, settings, groups)
        return replace(found, record=RunRecord(rows_together=True))

    def __repr__(self) -> str:
        return f"TableRun({type(self.plan.algorithm).__name__}, models of {len(self.ids)} tasks, private)"

    def __getstate__(self) -> object:
        instead = "Its folder holds it, and export(task, path) writes one task's own model."
        check_one_owner(self.ids, "A run", instead)
        return super().__getstate__()

    @property
    def codebook(self) -> Codebook:
        if isinstance(self.units, Codebook):
            return self.units
        raise InputError(
            "A file of a model holds its codebook, and there is none: columns were scaled by the rows "
            "themselves. Fit with bounds=, or pickle a model of one's own."
        )

    def locate(self, ids: Array, labels: Array | None = None) -> tuple[States, Index]:
        """Return the models of the tasks that rows belong to, and which is whose.

        A task whose model is not here gets the one that the board has for tasks without rows: that of its
        group, where the run knows it or a label says it, or else the common one.
        """
        if (self.ids.dtype.kind == "U") != (ids.dtype.kind == "U"):
            kinds = ("numbers", "text") if ids.dtype.kind == "U" else ("text", "numbers")
            raise InputError(f"Task ids were {kinds[0]} in fit and are {kinds[1]} here. Pass them as in fit.")
        known = np.isin(ids, self.ids)
        used = np.unique(np.searchsorted(self.ids, ids[known]))
        models = {name: array[used] for name, array in self.models.items()}
        if not known.all():
            board = self.findings.new_tasks
            models = {name: np.concatenate([array, board[name]]) for name, array in models.items()}
        place = np.searchsorted(self.ids[used], ids)
        return models, np.where(known, place, len(used) + self._group_rows(ids, labels)).astype(np.intp)

    def _group_rows(self, ids: Array, labels: Array | None) -> Array:
        """Return which of the board's models without rows is for each row: 0, or 1 + its group's position."""
        known = self.plan.algorithm.groups
        if known is None:
            return np.zeros(len(ids), dtype=np.intp)
        said = [""] * len(ids) if labels is None else labels.tolist()
        found = (self.groups.get(str(task), label) for task, label in zip(ids.tolist(), said, strict=True))
        return np.array([1 + known.names.index(label) if label in known.names else 0 for label in found])

    @cached_property
    def findings(self) -> RunFindings:
        """What the board says of all tasks, public: computed once, and not while anything is written."""
        return RunFindings(self.plan, self.board, self.units if isinstance(self.units, Codebook) else None)

    @property
    def location(self) -> str | None:
        """Where the board says that targets are, in the user's units; None if nothing was asked. Public."""
        return self.findings.location

    def summary(self, library: str | None = None) -> Summary:
        """Say what the board has found: coefficients of the population, with standard errors. Public.

        Parameters
        ----------
        library : str, optional
            What `Summary.to_frame` makes.
        """
        return self.findings.summary(self.guarantee, library)

    def encode(self, columns: Columns) -> Floats:
        """Encode a table's features by the codebook, or as the rows of the fit were scaled."""
        if isinstance(self.units, Codebook):
            return encode_rows(self.units, columns)
        refuse_missing(columns)
        return self.units.encode(numeric_columns(columns))

    def predict(self, X: object, tasks: ArrayLike | None = None) -> Array:
        """Predict each row by its own task's model, or by the board's for a task without one."""
        columns = split_groups(X, self.codebook.task, tasks, self.settings.groups)
        found = self.encode(columns), *self.locate(columns.ids, columns.groups)
        return predicted_columns(self.codebook, *found)["prediction"]

    def replay(
        self,
        X: object,
        y: object,
        sample_weight: ArrayLike | None = None,
        *,
        task: object = "new",
        column: str | int | None = None,
        compute: Callable[[Plan, Billboard, Tasks], States] | None = None,
    ) -> TaskModel:
        """Return one task's model from its own rows and the board alone: nothing leaves, nothing is spent.

        It is called as `task` says or, by default, as the task column does (`column`, or the codebook's).
        """
        column = self.codebook.task if column is None else column
        own = self.own_rows(X, y, column, sample_weight, task)
        named = task == "new" and column is not None and has_column(X, column)
        return self.model_of(own, own.ids[0] if named else task, compute)

    def own_rows(
        self, X: object, y: object, column: str | int | None, sample_weight: ArrayLike | None, task: object
    ) -> Tasks:
        """Encode one task's rows, in its public group: by its label in the table, or by what the run knows.

        The run knows it by the task's name, as it is given or in the table's task column.
        """
        own = one_task(self.codebook, X, y, column, sample_weight, self.settings.groups)
        names = [str(task), *(str(name) for name in own.ids if has_column(X, column))]
        label = next((self.groups[name] for name in names if name in self.groups), None)
        return own if own.groups is not None or label is None else replace(own, groups=np.array([label]))

    def model_of(
        self, own: Tasks, task: object, compute: Callable[[Plan, Billboard, Tasks], States] | None = None
    ) -> TaskModel:
        """Return the model that one task computes at home from its encoded rows.

        By default it joins late if others are known to have been in the run, and it is not.
        """
        there = {*map(str, self.ids.tolist()), *self.codebook.naming.roster}
        late = bool(there) and str(task) not in there
        models = (compute or (adapt if late else replay_tasks))(self.plan, self.board, own)
        model = {name: array[0] for name, array in models.items()}
        group = None if own.groups is None else str(own.groups[0])
        return TaskModel.of(str(task), self.codebook, model, self.findings.priors.get(group))

    def task_model(self, task: object) -> TaskModel:
        found = np.flatnonzero(self.ids == task_name(task))
        if not len(found):
            raise InputError(f"There is no model of task {task!r} here. Use replay with the task's own rows.")
        return next(self.task_models(found))

    def task_models(self, which: Index | None = None) -> Iterator[TaskModel]:
        """Return the models of all tasks that are here, or of some by their positions in `ids`."""
        priors = self.findings.priors  # known before anything is written

        def model(i: int) -> TaskModel:
            own, task = {name: array[i] for name, array in self.models.items()}, str(self.ids[i])
            prior = priors.get(self.groups.get(task), priors.get(None))
            return TaskModel.of(task, self.codebook, own, prior)

        return map(model, range(len(self.ids)) if which is None else which.tolist())

    def export(self, task: object, path: str | os.PathLike[str]) -> Path:
        """Write one task's own model to a file, to be handed to that task alone."""
        return self.task_model(task).save(path)
