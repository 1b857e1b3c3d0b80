"""What a finished run says of the population its tasks come from: a value that prints. Public, all of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Any

from cloister.privacy.guarantee import Guarantee
from cloister.privacy.rounding import rounded_up
from cloister.privacy.statement import percent
from cloister.tables.labelled import data_frame
from cloister.tables.printed import as_html, as_text, number, wrapped

__all__ = ["Coefficient", "Summary", "short_guarantee"]

UNHEARD = "not heard"


@dataclass(frozen=True)
class Coefficient:
    """One coefficient, in the user's units; None stands for what was not heard or cannot be told.

    Attributes
    ----------
    name : str
        Of the column; with several classes, of the class and the column.
    estimate, std_error : float, optional
        The mean over the population that tasks come from, and its standard error: privacy noise and which
        tasks there are.
    spread : float, optional
        Standard deviation between tasks: an order of magnitude.
    new_task : float, optional
        What a task without rows is predicted with: the estimate, shrunk.
    """

    name: str
    estimate: float | None = None
    std_error: float | None = None
    spread: float | None = None
    new_task: float | None = None


@dataclass(frozen=True, repr=False)
class Summary:
    """A run in a page: what tasks have in common, how surely, and what was promised. Public: from the board.

    ``print(summary)`` shows it, a notebook too; `to_dict` has plain values, `to_frame` the coefficients.

    Attributes
    ----------
    method : str
        The algorithm, with what is inside of it.
    tasks, rounds : int
        How many.
    groups : int, optional
        How many public groups tasks are in.
    guarantee : Guarantee
        What was promised.
    coefficients : tuple of Coefficient
        Intercept first; empty if the board has none.
    correlations : tuple of tuples, optional
        Between tasks, as the shared prior has them; None if none were heard.
    residual : float, optional
        Standard deviation of targets around a usual task's model.
    explained : float, optional
        The share of tasks whose rows the shared priors explain better than their own would.
    notes : tuple of str
        What was found, what was not heard, and why something is not said.
    library : str, optional
        What `to_frame` makes.
    """

    method: str
    tasks: int
    rounds: int
    guarantee: Guarantee
    groups: int | None = None
    coefficients: tuple[Coefficient, ...] = ()
    correlations: tuple[tuple[float, ...], ...] | None = None
    residual: float | None = None
    explained: float | None = None
    notes: tuple[str, ...] = ()
    library: str | None = None

    def __str__(self) -> str:
        parts = [wrapped(self._title), wrapped(short_guarantee(self.guarantee))]
        if self.coefficients:
            parts.append(as_text(*self._table))
        if self.correlations is not None and len(self.correlations) <= 8:
            parts.append("Correlations between tasks\n" + as_text(*self._correlated))
        facts = "\n".join(f"{name}: {text}" for name, text in self._facts)
        return "\n\n".join([*parts, *([facts] if facts else []), *map(wrapped, self.notes)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        paragraphs = [f"<b>{escape(self._title)}</b>", escape(short_guarantee(self.guarantee))]
        table = as_html(*self._table) if self.coefficients else ""
        facts = [f"{escape(name)}: {escape(text)}" for name, text in self._facts]
        below = "".join(f"<p>{text}</p>" for text in (*facts, *map(escape, self.notes)))
        return "".join(f"<p>{text}</p>" for text in paragraphs) + table + below

    @property
    def _title(self) -> str:
        grouped = "" if self.groups is None else f" in {self.groups} groups"
        comma = "," * ("," in self.method)
        return f"{self.method}{comma} over {self.tasks} tasks{grouped}, {self.rounds} rounds"

    @property
    def _facts(self) -> list[tuple[str, str]]:
        facts = []
        if self.residual is not None:
            facts.append(("Residual scale of a usual task, about", number(self.residual)))
        if self.explained is not None:
            facts.append(("Tasks that the shared priors explain", f"{self.explained:.0%}"))
        return facts

    @property
    def _columns(self) -> dict[str, list[float | None]]:
        """The columns that anything is known of."""
        found = {
            "estimate": [c.estimate for c in self.coefficients],
            "std. error": [c.std_error for c in self.coefficients],
            "sd between tasks": [c.spread for c in self.coefficients],
            "new task": [c.new_task for c in self.coefficients],
        }
        known = {name: column for name, column in found.items() if any(v is not None for v in column)}
        return known or {"estimate": found["estimate"]}

    @property
    def _table(self) -> tuple[list[str], list[list[str]]]:
        columns = self._columns
        rows = [
            [c.name, *(_cell(name, column[i]) for name, column in columns.items())]
            for i, c in enumerate(self.coefficients)
        ]
        return ["", *columns], rows

    @property
    def _correlated(self) -> tuple[list[str], list[list[str]]]:
        assert self.correlations is not None
        names = [c.name for c in self.coefficients]
        rows = [
            [name, *(f"{value:.2f}" for value in row[:i]), *[""] * (len(names) - 1 - i)]
            for i, (name, row) in enumerate(zip(names, self.correlations, strict=True))
        ]
        return ["", *(name[:12] for name in names[:-1])], rows[1:]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that strict JSON can hold; None for what is not known."""
        return {
            "method": self.method,
            "tasks": self.tasks,
            "rounds": self.rounds,
            "groups": self.groups,
            "coefficients": [vars(c) | {} for c in self.coefficients],
            "correlations": None if self.correlations is None else [list(row) for row in self.correlations],
            "residual": self.residual,
            "explained": self.explained,
            "notes": list(self.notes),
            "guarantee": self.guarantee.to_dict(),
        }

    def to_frame(self, library: str | None = None) -> Any:
        """Return the coefficients as a data frame, one row each; NaN for what is not known.

        Parameters
        ----------
        library : {"pandas", "polars", "pyarrow"}, optional
            By default that of the table which was fitted, or the first of these that is installed.
        """
        names = ("estimate", "std_error", "spread", "new_task")
        columns: dict[str, list[Any]] = {"name": [c.name for c in self.coefficients]}
        columns |= {
            name: [math.nan if (v := getattr(c, name)) is None else v for c in self.coefficients]
            for name in names
        }
        return data_frame(columns, library or self.library)


def _cell(column: str, value: float | None) -> str:
    return UNHEARD if value is None and column == "estimate" else number(value)


def short_guarantee(guarantee: Guarantee) -> str:
    """Say in a line what was promised.

    Examples
    --------
    >>> g = Guarantee(1.0, 1e-5, "replace", 139, "exact", "everyone", "system entropy")
    >>> print(short_guarantee(g).partition(";")[0])
    (1, 1e-05)-joint differential privacy for each task, relation replace
    """
    if math.isinf(guarantee.epsilon):
        return "NOT PRIVATE; the guarantee says why"
    price = f"({rounded_up(guarantee.epsilon)}, {rounded_up(guarantee.delta)})"
    rate = f"with 5 % false alarms it is detected in at most {percent(guarantee.detection())} of cases"
    said = f"{price}-joint differential privacy for each task, relation {guarantee.relation}; {rate}"
    if not guarantee.holds:
        return f"DOES NOT HOLD ({'; '.join(guarantee.reasons)}). It would be {said}"
    return f"{said}; the guarantee says more"
