"""Plots of fitted estimators and of runs, with matplotlib: as private as the tasks' own models they show.

A plot of all tasks is for whoever holds all of their rows. Publish none of them: what may be published is
`model.summary()`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from cloister.app.predict import check_coverage
from cloister.app.task_model import TaskModel
from cloister.core.arrays import Array, Floats, Integers
from cloister.core.errors import InputError, MissingExtraError
from cloister.tables.coefficient_units import coefficient_names, in_user_units
from cloister.tables.columns import target_column

__all__ = ["caterpillar", "gain_by_size", "over_rounds", "shrinkage"]

#: Most tasks that are written out by name.
NAMED = 40
PRIVATE = "private: each mark is one task's own"
PRIVATE_MEANS = "private: made of all tasks' test rows"


class _Fitted(Protocol):
    """What a plot needs of an estimator."""

    @property
    def task_ids_(self) -> Array: ...

    def task_models(self) -> Iterator[TaskModel]: ...

    def predict(self, X: Any, tasks: ArrayLike | None = None) -> Any: ...


class _Curve(Protocol):
    @property
    def rounds(self) -> Integers: ...

    @property
    def mean(self) -> Floats: ...

    def quantile(self, level: float) -> Floats: ...


class _Curves(Protocol):
    """What a plot needs of curves."""

    @property
    def public(self) -> Mapping[str, _Curve]: ...

    @property
    def personal(self) -> Mapping[str, _Curve]: ...


def caterpillar(model: _Fitted, column: str = "intercept", *, coverage: float = 0.95, ax: Any = None) -> Any:
    """Draw one coefficient of every task, in its order, with an interval; the prior's mean is a line.

    Parameters
    ----------
    model : fitted estimator
        One whose models have a posterior, such as `SharedPriorRegressor`.
    column : str
        A column by its name, ``"sex[M]"`` of a category; with several classes ``"class: column"``.
    coverage : float
        Probability of the intervals.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib Axes

    Privacy
    -------
    Private: it shows every task's coefficient. It is for whoever holds all rows.

    Examples
    --------
    >>> from cloister import SharedPriorRegressor, datasets
    >>> data = datasets.load("exam")
    >>> model = SharedPriorRegressor(epsilon=4.0, bounds=data.codebook, random_state=0)
    >>> axes = caterpillar(model.fit(data.X, data.y, tasks=data.task), "standLRT")
    >>> axes.get_xlabel()
    'coefficient of standLRT, with 95 % intervals'
    """
    check_coverage(coverage)
    ax = _axes(ax)
    models = list(model.task_models())
    values, errors = _coefficients(models, column)
    if not np.isfinite(errors).all():
        raise InputError(
            "These models have no posterior, hence no intervals. Use a SharedPrior or SingleTask estimator."
        )
    freedom = np.array([one.facts.get("freedom", np.inf) for one in models])
    reach = stdtrit(np.minimum(freedom, 1e9), (1 + coverage) / 2) * errors
    order = np.argsort(values)
    places = np.arange(len(order))
    ax.errorbar(values[order], places, xerr=reach[order], fmt="o", ms=3, lw=0.8, color="C0", ecolor="C7")
    prior = models[0].prior
    if prior is not None and all(one.prior == prior for one in models):
        middle = prior.mean[coefficient_names(models[0].codebook).index(column)]
        ax.axvline(middle, color="C1", lw=1, ls="--", label="a task without rows")
        ax.legend(loc="lower right", frameon=False)
    _name_tasks(ax, [models[i].task for i in order])
    ax.set_xlabel(f"coefficient of {column}, with {100 * coverage:g} % intervals")
    ax.set_title(f"Tasks' own coefficients\n({PRIVATE})", fontsize="medium")
    return ax


def shrinkage(model: _Fitted, alone: _Fitted, column: str = "intercept", *, ax: Any = None) -> Any:
    """Draw how far each task's coefficient moves from what it would be alone to what it is with the others.

    Parameters
    ----------
    model, alone : fitted estimators
        Of the same tasks, with the same codebook: say `SharedPriorRegressor` and `SingleTaskRegressor`.
    column : str
        A column by its name, as for `caterpillar`.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib Axes

    Privacy
    -------
    Private: it shows every task's coefficients. It is for whoever holds all rows.
    """
    if not np.array_equal(model.task_ids_, alone.task_ids_):
        raise InputError("Both estimators must be fitted to the same tasks. Fit them to the same table.")
    ax = _axes(ax)
    together, apart = list(model.task_models()), list(alone.task_models())
    after, before = (_coefficients(models, column)[0] for models in (together, apart))
    rows = np.array([one.facts.get("rows", np.nan) for one in together])
    from matplotlib.collections import LineCollection

    lines = [np.array([[0.0, one], [1.0, other]]) for one, other in zip(before, after, strict=True)]
    drawn = LineCollection(lines, cmap="viridis", array=rows, lw=0.8, alpha=0.7)
    ax.add_collection(drawn)
    ax.figure.colorbar(drawn, ax=ax, label="rows of the task")
    low, high = np.quantile(np.concatenate([before, after]), [0.005, 0.995])
    ax.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    ax.set_xlim(-0.1, 1.1)
    ax.set_xticks([0, 1], ["alone", "with the others"])
    ax.set_ylabel(f"coefficient of {column}")
    ax.set_title(f"How far tasks are drawn together\n({PRIVATE})", fontsize="medium")
    return ax


def gain_by_size(
    model: _Fitted,
    alone: _Fitted,
    X: Any,
    y: ArrayLike | str,
    tasks: ArrayLike | None = None,
    *,
    ax: Any = None,
) -> Any:
    """Draw what joining brings each task on held-out rows, against how many rows it has.

    Parameters
    ----------
    model, alone : fitted estimators
        Of numbers, of the same tasks: say `SharedPriorRegressor` and `SingleTaskRegressor`.
    X, y, tasks
        Rows that neither was fitted to, as for `score`: targets, or the name of their column, and one task id
        a row.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib Axes

    Privacy
    -------
    Private: it shows errors of every task. It is for whoever holds all rows.
    """
    ax = _axes(ax)
    X, y, _ = target_column(X, y)
    goal = np.asarray(y, dtype=np.float64)
    ids = np.asarray(tasks) if tasks is not None else np.asarray(X[model.task])  # type: ignore[attr-defined]
    names, place = np.unique(ids, return_inverse=True)
    known = np.isin(names, model.task_ids_)
    count = np.bincount(place)
    errors = []
    for one in (model, alone):
        square = np.square(np.asarray(one.predict(X, tasks), dtype=np.float64) - goal)
        errors.append(np.sqrt(np.bincount(place, square) / count)[known])
    rows = {one.task: one.facts.get("rows", np.nan) for one in model.task_models()}
    sizes = np.array([rows[str(name)] for name in names[known]])
    gain = errors[1] - errors[0]
    ax.axhline(0.0, color="C7", lw=0.8)
    ax.scatter(sizes, gain, s=9, alpha=0.5, color="C0", linewidths=0)
    middle, typical = _by_size(sizes, gain)
    ax.plot(middle, typical, color="C1", marker="o", ms=4, label="median of tasks of that size")
    low, high = np.quantile(gain, [0.01, 0.99])
    ax.set_ylim(min(low, 0) - 0.05 * (high - low), max(high, 0) + 0.05 * (high - low))
    ax.set_xscale("log")
    ax.legend(loc="upper right", frameon=False)
    ax.set_xlabel("rows of the task")
    ax.set_ylabel("error alone less error with the others")
    ax.set_title(f"What joining brings: above 0 it pays\n({PRIVATE})", fontsize="medium")
    return ax


def over_rounds(curves: _Curves, score: str | None = None, *, ax: Any = None) -> Any:
    """Draw how a score goes with the rounds: means over tasks, and where most tasks are.

    Parameters
    ----------
    curves : Curves
        Of `cloister.evaluation.curves.over_rounds`.
    score : str, optional
        The name of the score; by default the first.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib Axes

    Privacy
    -------
    Private, the public model's curve too: it is made of everybody's test rows.
    """
    name = next(iter(curves.personal)) if score is None else score
    if name not in curves.personal:
        raise InputError(f"There is no score {name!r}. It must be one of {', '.join(curves.personal)}.")
    ax = _axes(ax)
    kinds = {"tasks' own models": curves.personal, "the public model": curves.public}
    for number, (label, found) in enumerate(kinds.items()):
        if name in found:
            curve, color = found[name], f"C{number}"
            ax.fill_between(
                curve.rounds, curve.quantile(0.1), curve.quantile(0.9), color=color, alpha=0.15, linewidth=0
            )
            ax.plot(curve.rounds, curve.mean, color=color, marker="o", ms=3, lw=1.2, label=label)
    ax.legend(frameon=False)
    ax.set_xlabel("rounds")
    ax.set_ylabel(f"{name}, mean over tasks; shaded, 10 to 90 % of them")
    ax.set_title(f"After so many rounds\n({PRIVATE_MEANS})", fontsize="medium")
    return ax


def _by_size(sizes: Floats, gain: Floats) -> tuple[Floats, Floats]:
    """Return the median size and gain of up to eight equally large groups of tasks by size."""
    count = min(8, max(1, len(sizes) // 10))
    groups = np.array_split(np.argsort(sizes, kind="stable"), count)
    return (
        np.array([np.median(sizes[group]) for group in groups]),
        np.array([np.median(gain[group]) for group in groups]),
    )


def _coefficients(models: list[TaskModel], column: str) -> tuple[Floats, Floats]:
    """Return one coefficient of every task, and its posterior deviation."""
    names = coefficient_names(models[0].codebook)
    if column not in names:
        raise InputError(f"There is no coefficient {column!r}. It must be one of {', '.join(names)}.")
    at = names.index(column)
    found = [in_user_units(one.codebook, one.weights, one.covariance) for one in models]
    values = np.array([value[at] for value, _ in found])
    return values, np.sqrt(np.array([max(covariance[at, at], 0.0) for _, covariance in found]))


def _name_tasks(ax: Any, names: list[str]) -> None:
    if len(names) <= NAMED:
        ax.set_yticks(range(len(names)), names, fontsize="x-small")
    else:
        ax.set_yticks([])
        ax.set_ylabel(f"{len(names)} tasks")


def _axes(ax: Any) -> Any:
    try:
        import matplotlib.pyplot as plt
    except ModuleNotFoundError as error:
        raise MissingExtraError("matplotlib", "tables", "cloister.report.plots") from error
    return plt.subplots(layout="constrained")[1] if ax is None else ax
