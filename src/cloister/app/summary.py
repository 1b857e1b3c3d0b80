"""Summaries that print: of all tasks of a run, which is public, and of one task, which is its own."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from cloister.core.spelling import counted
from cloister.privacy.guarantee import Guarantee
from cloister.privacy.statement import percent, rounded_up
from cloister.tables.frames import data_frame

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
    ratio : float, optional
        Of logarithms, the estimate (or else that of a new task) as a factor.
    """

    name: str
    estimate: float | None = None
    std_error: float | None = None
    spread: float | None = None
    new_task: float | None = None
    ratio: float | None = None


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
    explained, explained_error : float, optional
        How far tasks' own rows speak for the shared priors rather than for their own, and the noise in that.
    notes : tuple of str
        What was found, what was not heard, and why something is not said.
    library : str, optional
        What `to_frame` makes.
    ratio : str, optional
        What a coefficient's exponential is: an odds ratio, a rate ratio; None if it is nothing.
    called : str, optional
        What tasks are, in the codebook's word.
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
    explained_error: float | None = None
    notes: tuple[str, ...] = ()
    library: str | None = None
    ratio: str | None = None
    called: str = "tasks"

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
        return (
            f"{self.method}{comma} over {self.tasks} {self.called}{grouped}, {counted(self.rounds, 'round')}"
        )

    @property
    def _facts(self) -> list[tuple[str, str]]:
        facts = []
        if self.residual is not None:
            facts.append(("Residual scale of a usual task, about", number(self.residual)))
        if self.explained is not None:
            noisy = "" if self.explained_error is None else f" ± {100 * self.explained_error:.0f}"
            share = f"{100 * self.explained:.0f}{noisy} % (no gain, but likeness)"
            facts.append(("Own rows speak for the shared priors", share))
        return facts

    @property
    def _columns(self) -> dict[str, list[float | None]]:
        """The columns that anything is known of."""
        found = {
            "estimate": [c.estimate for c in self.coefficients],
            "std. error": [c.std_error for c in self.coefficients],
            "sd between tasks": [c.spread for c in self.coefficients],
            "new task": [c.new_task for c in self.coefficients],
        } | ({self.ratio: [c.ratio for c in self.coefficients]} if self.ratio else {})
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
            "explained_error": self.explained_error,
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
        names = ("estimate", "std_error", "spread", "new_task", *(("ratio",) if self.ratio else ()))
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
    said = (
        f"{price}-joint differential privacy for each {guarantee.unit}, relation {guarantee.relation}; {rate}"
    )
    if guarantee.one_of is not None:
        said += f"; this is {guarantee.one_of}"
    if not guarantee.holds:
        return f"DOES NOT HOLD ({'; '.join(guarantee.reasons)}). It would be {said}"
    return f"{said}; the guarantee says more"


WIDTH = 79


def number(value: float | None) -> str:
    """Return a number in four digits; a dash for none.

    Examples
    --------
    >>> number(3.14159), number(-0.0001234), number(12345678.0), number(None)
    ('3.142', '-0.0001234', '1.235e+07', '-')
    """
    if value is None or math.isnan(value):
        return "-"
    return "0" if value == 0 else f"{value:.4g}"


def as_text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return columns of text, the first to the left, the others to the right; long names are cut.

    Examples
    --------
    >>> print(as_text(["", "estimate"], [["age", "0.25"], ["sex[M]", "-1"]]))
            estimate
    age         0.25
    sex[M]        -1
    """
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    room = WIDTH - sum(width + 2 for width in widths[1:])
    widths[0] = min(widths[0], max(room, 8))
    lines = []
    for name, *cells in (head, *rows):
        short = name if len(name) <= widths[0] else name[: widths[0] - 1] + "…"
        right = (f"  {cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        lines.append((f"{short:<{widths[0]}}" + "".join(right)).rstrip())
    return "\n".join(lines)


def as_html(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the same as an HTML table."""
    top = "".join(f"<th style='text-align: right'>{escape(cell)}</th>" for cell in head)
    lines = [
        f"<tr><th style='text-align: left'>{escape(name)}</th>"
        + "".join(f"<td style='text-align: right'>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for name, *cells in rows
    ]
    return f"<table><thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def wrapped(sentence: str) -> str:
    return textwrap.fill(sentence, WIDTH, break_on_hyphens=False)


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
        What the task's own rows would give without the others.
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
        Weight of the shared priors by the evidence of the task's rows; the rest is its own prior's.
    residual : float, optional
        Standard deviation of the noise.
    effects : str, optional
        What coefficients are, unless they are in the target's units: log-odds, say, and against which class.
    """

    task: str
    coefficients: tuple[OwnCoefficient, ...]
    rows: float | None = None
    shared_weight: float | None = None
    residual: float | None = None
    effects: str | None = None

    def __str__(self) -> str:
        return "\n\n".join([self._title, as_text(*self._table), *map(wrapped, self.sentences)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        below = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.sentences)
        return f"<p><b>{escape(self._title)}</b></p>{as_html(*self._table)}{below}"

    @property
    def _title(self) -> str:
        rows = "" if self.rows is None else f", {self.rows:g} row{'s' * (self.rows != 1)}"
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
        if self.effects is not None:
            found.append(f"Coefficients are {self.effects}.")
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
                "A coefficient was drawn from what the task's own rows would give alone towards the prior's "
                "mean: the more, the fewer rows say of it and the less tasks differ in it (prior sd)."
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
