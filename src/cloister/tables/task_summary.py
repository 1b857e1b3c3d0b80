"""One task's own page: its coefficients, how surely, and how far they were drawn to the shared prior."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from cloister.tables.kinds import Categorical
from cloister.tables.labelled import data_frame
from cloister.tables.model import TaskModel
from cloister.tables.printed import as_html, as_text, number, wrapped
from cloister.tables.summary import UNHEARD
from cloister.tables.units import coefficient_names, in_user_units

__all__ = ["OwnCoefficient", "TaskSummary", "summarize_task"]


@dataclass(frozen=True)
class OwnCoefficient:
    """A coefficient of one task, in the user's units; None stands for what its model does not know.

    Attributes
    ----------
    name : str
        Of the column; with several classes, of the class and the column.
    estimate, std_error : float
        Posterior mean and standard deviation.
    alone : float, optional
        What the own rows would give without the others.
    prior, prior_sd : float, optional
        What the board says of a task without rows, and how far tasks may lie from it; a prior without the
        latter was heard, and how far tasks lie apart was not.
    """

    name: str
    estimate: float
    std_error: float | None = None
    alone: float | None = None
    prior: float | None = None
    prior_sd: float | None = None

    def told(self, name: str) -> str:
        """Return one of its numbers as pages print it."""
        if name == "prior_sd" and self.prior is not None and self.prior_sd is None:
            return UNHEARD
        return number(getattr(self, name))


@dataclass(frozen=True, repr=False)
class TaskSummary:
    """One task's model in a page. Private: it is that task's, as its model is.

    Attributes
    ----------
    task : str
        Whose it is.
    coefficients : tuple of OwnCoefficient
        Intercept first.
    rows : float, optional
        How many rows it was made of; the sum of their weights, if they have any.
    shared_weight : float, optional
        Weight of the shared priors by the evidence of the own rows; what is left is the own prior's.
    residual : float, optional
        Standard deviation of the noise.
    against : str, optional
        Of classes, the one that coefficients are log-odds against: the codebook's first.
    """

    task: str
    coefficients: tuple[OwnCoefficient, ...]
    rows: float | None = None
    shared_weight: float | None = None
    residual: float | None = None
    against: str | None = None

    def __str__(self) -> str:
        return "\n\n".join([self._title, as_text(*self._table), *map(wrapped, self.sentences)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        below = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.sentences)
        return f"<p><b>{escape(self._title)}</b></p>{as_html(*self._table)}{below}"

    @property
    def _title(self) -> str:
        rows = "" if self.rows is None else f", {self.rows:g} rows"
        return f"Task {self.task}{rows}. Private: for this task alone"

    @property
    def _table(self) -> tuple[list[str], list[list[str]]]:
        heads = {
            "estimate": "estimate",
            "std_error": "std. error",
            "alone": "alone",
            "prior": "prior",
            "prior_sd": "prior sd",
        }
        known = [name for name in heads if any(getattr(c, name) is not None for c in self.coefficients)]
        known += ["prior_sd"] * ("prior" in known and "prior_sd" not in known)
        rows = [[c.name, *(c.told(name) for name in known)] for c in self.coefficients]
        return ["", *(heads[name] for name in known)], rows

    @property
    def sentences(self) -> list[str]:
        """What is to be said beside the coefficients."""
        found = []
        if self.against is not None:
            found.append(f"Coefficients are log-odds against {self.against}.")
        if self.residual is not None:
            found.append(f"Residual scale: {number(self.residual)}")
        weight = self.shared_weight
        if weight is not None:
            found.append(
                f"By the evidence of its rows, the priors that tasks share have {weight:.0%} of the weight, "
                f"and its own, which knows nothing of others, {1 - weight:.0%}."
            )
        drawn = weight is None or weight >= 0.01
        if drawn and any(c.alone is not None and c.prior is not None for c in self.coefficients):
            found.append(
                "A coefficient was drawn from what the own rows would give alone towards the prior's mean: "
                "the more, the fewer rows say of it and the less tasks differ in it (prior sd)."
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that strict JSON can hold; None for what is not known."""
        return vars(self) | {"coefficients": [dict(vars(c)) for c in self.coefficients]}

    def to_frame(self, library: str | None = None) -> Any:
        """Return the coefficients as a data frame, one row each; NaN for what is not known."""
        columns: dict[str, list[Any]] = {"name": [c.name for c in self.coefficients]}
        for name in ("estimate", "std_error", "alone", "prior", "prior_sd"):
            values = [getattr(c, name) for c in self.coefficients]
            columns[name] = [math.nan if value is None else value for value in values]
        return data_frame(columns, library)


def summarize_task(model: TaskModel) -> TaskSummary:
    """Read a task's page off its own model."""
    known = bool(np.isfinite(model.covariance).all())
    values, covariance = in_user_units(model.codebook, model.weights, model.covariance if known else None)
    errors = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    missing: list[float | None] = [None] * len(values)
    alone = missing if model.alone is None else in_user_units(model.codebook, model.alone)[0].tolist()
    columns = (
        values.tolist(),
        errors.tolist() if known else missing,
        alone,
        missing if model.prior is None else model.prior.mean,
        missing if model.prior is None else model.prior.deviation,
    )
    names = coefficient_names(model.codebook)
    coefficients = [OwnCoefficient(*row) for row in zip(names, *columns, strict=True)]
    residual = None if model.noise is None else math.sqrt(model.noise) * model.codebook.target_scale
    rows, weight = (model.facts.get(name) for name in ("rows", "shared_weight"))
    goal = model.codebook.target
    against = f"{goal.name} = {goal.levels[0]}" if isinstance(goal, Categorical) else None
    return TaskSummary(model.task, tuple(coefficients), rows, weight, residual, against)
