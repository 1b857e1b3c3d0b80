"""One task's own model, as a file that can be handed to that task alone."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.arrays import Array, Floats, States
from cloister.document import check_format
from cloister.errors import InputError
from cloister.store.files import write_private
from cloister.tables.codebook import Codebook, Numeric
from cloister.tables.columns import encode_rows, has_column, row_count, split_table
from cloister.tables.prediction import Index, class_probabilities, deviations, intervals, numbers
from cloister.tables.units import in_user_units

if TYPE_CHECKING:
    from cloister.tables.task_summary import TaskSummary

__all__ = ["Prior", "TaskModel", "no_posterior"]

FORMAT = "cloister task model 1"

#: What a model may say of itself beside its posterior.
FACTS = ("rows", "shared_weight", "freedom")


@dataclass(frozen=True)
class Prior:
    """What the board says of a task without rows: means and deviations of coefficients, in user's units.

    Deviations are None where it was not heard how far tasks lie apart.
    """

    mean: tuple[float, ...]
    deviation: tuple[float | None, ...]

    @classmethod
    def of(cls, codebook: Codebook, model: Mapping[str, Array], heard: bool = True) -> Prior | None:
        """Take one row of the board's models; None if it says nothing.

        Parameters
        ----------
        codebook : Codebook
            The user's units.
        model : mapping
            One row of the board's models.
        heard : bool
            Whether it was heard how far tasks lie apart: if not, the covariance is a guess, and wide.
        """
        if "covariance" not in model or not float(model.get("shared_weight", 0.0)) > 0:
            return None
        mean, covariance = in_user_units(codebook, model["coef"], model["covariance"])
        deviation = np.sqrt(np.maximum(np.diag(covariance), 0.0))
        return cls(tuple(mean.tolist()), tuple(deviation.tolist() if heard else [None] * len(deviation)))


@dataclass(frozen=True, eq=False, repr=False)
class TaskModel:
    """A task's posterior: mean weights, their covariance and, for numbers, the noise variance.

    Weights are on encoded columns; `coef` and `intercept` are in the user's units. Where an algorithm gives
    no posterior, the covariance is NaN throughout. `facts` are what else the model says of itself: its number
    of rows, the weight of the shared priors and, for numbers, degrees of freedom. `alone` are the weights
    that its own rows would give without the others.
    """

    task: str
    codebook: Codebook
    weights: Floats
    covariance: Floats
    noise: float | None
    facts: Mapping[str, float] = field(default_factory=dict)
    prior: Prior | None = None
    alone: Floats | None = None

    @classmethod
    def of(
        cls, task: str, codebook: Codebook, model: Mapping[str, Array], prior: Prior | None = None
    ) -> TaskModel:
        """Take one task's row of a run's models."""
        noise = float(model["noise"]) if "noise" in model else None
        covariance = model.get("covariance", no_posterior(model["coef"]))
        facts = {name: float(model[name]) for name in FACTS if name in model}
        return cls(task, codebook, model["coef"], covariance, noise, facts, prior, model.get("alone"))

    def __repr__(self) -> str:
        return f"TaskModel({self.task!r}, {self.codebook.width} weights, private)"

    @property
    def coef(self) -> Floats:
        """Coefficients in the user's units; one row a class beyond the first where there are several."""
        return self.codebook.to_user_units(self._by_class())[0]

    @property
    def intercept(self) -> Floats:
        return self.codebook.to_user_units(self._by_class())[1]

    def _by_class(self) -> Floats:
        weights = self.weights.reshape(-1, self.codebook.width)
        return weights[0] if len(weights) == 1 else weights

    def predict(self, X: object) -> Array:
        """Predict numbers or classes for a table of this task's rows; other columns are ignored.

        Rows that the task column, if the table has it, says are another task's are refused.
        """
        rows, models, at = self._rows(X)
        if isinstance(self.codebook.target, Numeric):
            return numbers(self.codebook, rows, models, at)
        return self.codebook.decode_target(class_probabilities(rows, models, at).argmax(axis=1))

    def predict_proba(self, X: object) -> Floats:
        if isinstance(self.codebook.target, Numeric):
            raise InputError("This model predicts numbers; it has no class probabilities.")
        return class_probabilities(*self._rows(X))

    def predict_std(self, X: object) -> Floats:
        """Return the standard deviation of a numeric prediction, noise included."""
        if not isinstance(self.codebook.target, Numeric):
            raise InputError("This model predicts classes; ask for predict_proba.")
        return deviations(self.codebook, *self._rows(X))

    def predict_interval(self, X: object, coverage: float = 0.95) -> tuple[Floats, Floats]:
        """Return the lower and the upper end of the interval that holds a row's number so often."""
        if not isinstance(self.codebook.target, Numeric):
            raise InputError("This model predicts classes; ask for predict_proba.")
        return intervals(self.codebook, *self._rows(X), coverage)

    def summary(self) -> TaskSummary:
        """Return the task's own page: coefficients, their standard errors, and how far they were shrunk.

        Privacy
        -------
        Private: it is the task's alone, as the model is.
        """
        from cloister.tables.task_summary import summarize_task

        return summarize_task(self)

    @property
    def arrays(self) -> States:
        """The model as arrays of one task, without what an algorithm does not give."""
        found = {"coef": self.weights[None]} | {name: np.array([fact]) for name, fact in self.facts.items()}
        found |= {} if self.alone is None else {"alone": self.alone[None]}
        if np.isfinite(self.covariance).all():
            found["covariance"] = self.covariance[None]
        return found | ({} if self.noise is None else {"noise": np.array([self.noise])})

    def _rows(self, X: object) -> tuple[Floats, States, Index]:
        column = self.codebook.task
        named = column is not None and has_column(X, column)
        columns = split_table(X, column, None if named else np.zeros(row_count(X), dtype=int))
        if named and any(str(task) != self.task for task in np.unique(columns.ids)):
            raise InputError(
                f"This is the model of task {self.task!r}, but column {column!r} names other tasks. Keep "
                "this task's rows only, or leave the column out."
            )
        features = {k: v for k, v in columns.features.items() if k in self.codebook.names}
        rows = encode_rows(self.codebook, replace(columns, features=features))
        return rows, self.arrays, np.zeros(len(rows), dtype=np.intp)

    def to_sklearn(self) -> Any:
        """Return the model as an estimator of scikit-learn's own, for where cloister is not installed.

        It predicts numbers within the target's bounds, or classes and their probabilities (in the order of
        its `classes_`, sorted), as this model does, from a data frame with the same columns; without
        standard deviations. Cells must be written as the codebook lists them: it does not take "yes" for
        True. Dates are refused. Pickle it, or use skops; the file is this task's own.

        Examples
        --------
        >>> book = Codebook.from_mapping({0: (0, 100), "y": (0, 10)}, 1)
        >>> model = TaskModel.of("Elm", book, {"coef": np.array([0.0, 2**0.5])})
        >>> model.to_sklearn().predict([[10], [50], [900]]), model.predict([[10], [50], [900]])
        (array([ 1.,  5., 10.]), array([ 1.,  5., 10.]))
        """
        from cloister.tables.export import stock_estimator

        return stock_estimator(self)

    def save(self, path: str | os.PathLike[str], *, synced: bool = True) -> Path:
        """Write the model to a JSON file that its owner alone can read; one that is there is replaced."""
        document = {
            "format": FORMAT,
            "task": self.task,
            "columns": list(self.codebook.column_names),
            "coef": self.coef.tolist(),
            "intercept": np.asarray(self.intercept).tolist(),
            "weights": self.weights.tolist(),
            "covariance": self.covariance.tolist() if np.isfinite(self.covariance).all() else None,
            "noise": self.noise,
            "facts": dict(self.facts),
            "prior": None if self.prior is None else asdict(self.prior),
            "alone": None if self.alone is None else self.alone.tolist(),
            "codebook": self.codebook.to_dict(),
        }
        return write_private(Path(path), json.dumps(document).encode(), synced=synced)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TaskModel:
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            check_format(document.get("format"), FORMAT, path)
            weights, covariance = np.array(document["weights"]), document["covariance"]
            prior, alone = document.get("prior"), document.get("alone")  # not in files of earlier versions
            return cls(
                document["task"],
                Codebook.from_dict(document["codebook"], str(path)),
                weights,
                no_posterior(weights) if covariance is None else np.array(covariance),
                document["noise"],
                {name: float(fact) for name, fact in document.get("facts", {}).items()},
                None if prior is None else Prior(tuple(prior["mean"]), tuple(prior["deviation"])),
                None if alone is None else np.array(alone),
            )
        except InputError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(
                f"{path} is not the model of a task: {error}. Name a file such as exam-run/models/Elm.json."
            ) from None


def no_posterior(weights: Floats) -> Floats:
    """Return the covariance of weights that come without a posterior: not a number."""
    return np.full((weights.size, weights.size), np.nan)
