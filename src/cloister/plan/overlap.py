"""Tasks that share rows: how many a row, or a person, sits in, and what a guarantee for tasks is worth then.

A guarantee for each task protects what is in one task only. Where tasks were cut from a common pool, such as
the episodes of few-shot learning, all tasks that hold an image change with it, and what protects the image is
the guarantee of a group of tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloister.core.errors import InputError
from cloister.core.tasks import Tasks
from cloister.plan.plan import Plan
from cloister.privacy.accounting import group_epsilon
from cloister.privacy.statement import rounded_up


@dataclass(frozen=True)
class Overlap:
    """A public statement: how many tasks one unit may sit in.

    It must be known without a look at the data, from how tasks are cut or who may join, and it is not checked
    against them: whether an image is in a second task is what a guarantee is to hide.

    Parameters
    ----------
    largest : int
        Most tasks that one unit may sit in.
    name : str
        What a unit is, such as "row" or "drawer".
    """

    largest: int
    name: str = "row"

    def __post_init__(self) -> None:
        count: object = self.largest
        if isinstance(count, bool) or not isinstance(count, Integral) or count < 1:
            raise InputError(f"largest must be a whole number of tasks, at least 1. Got {self.largest!r}.")

    def epsilon(self, plan: Plan) -> float:
        """Return epsilon for all tasks of one unit, changed at once, at the plan's delta.

        Without sampling the group of g tasks has g times the Gaussian mu of one; under hidden Poisson
        sampling a round has as many of them as a binomial coin count, at worst with one and the same message.
        """
        assert plan.delta is not None
        return group_epsilon(plan.cost, plan.delta, self.largest)

    def describe(self, plan: Plan) -> str:
        """Say in a sentence or two what a plan promises to a task, and what to a unit."""
        task, unit = rounded_up(plan.guarantee.epsilon), rounded_up(self.epsilon(plan))
        if self.largest == 1:
            return f"No {self.name} sits in two tasks: epsilon = {task} for tasks and {self.name}s."
        return (
            f"Epsilon = {task} for each task. But one {self.name} sits in up to {self.largest} tasks, and "
            f"for each {self.name} epsilon = {unit}."
        )

    def mark(self, plan: Plan) -> Plan:
        """Return the plan with a caveat that its guarantee must be read with, where tasks overlap.

        The guarantee of a marked plan does not count as one that `holds`. For whole tasks it does, as if they
        shared nothing; but an epsilon that stood there alone would be taken for that of a row or a person.
        """
        if self.largest == 1:
            return plan
        caveat = (
            f"not for each {self.name}, because one sits in up to {self.largest} tasks and has epsilon "
            f"{rounded_up(self.epsilon(plan))}; for whole tasks, whatever they share, it does hold"
        )
        return replace(plan, caveats=(*plan.caveats, caveat))


@dataclass(frozen=True, repr=False)
class OverlapCount:
    """How many tasks units sit in, counted from the data: private, for the operator alone.

    Attributes
    ----------
    largest : int
        Tasks of the unit that sits in most.
    mean : float
        Over all units.
    units : int
        Number of different ones.
    name : str
        What a unit is.
    """

    largest: int
    mean: float
    units: int
    name: str

    def __repr__(self) -> str:
        return (
            f"OverlapCount(private: for the operator alone; one {self.name} sits in up to {self.largest} "
            f"tasks, {self.mean:.3g} on average, of {self.units})"
        )


def overlap(tasks: Tasks, unit: ArrayLike | None = None, name: str = "row") -> OverlapCount:
    """Count how many tasks each row sits in, or each person or thing that rows belong to.

    A tool for an operator who holds all rows, to look for a mistake in how tasks were cut. The counts are
    private: one that is told, or by which it is decided whether to run, answers a question about somebody's
    rows, without noise. To claim a guarantee for units, state an `Overlap` that is publicly known. Counts of
    a public pool of rows are public, too.

    Parameters
    ----------
    tasks : Tasks
        As they take part in a run.
    unit : array of shape (rows,), optional
        Whom each row belongs to, in the order of ``tasks.X``. By default equal features are the same row,
        whatever their targets.
    name : str, default="row"
        What to call a unit.

    Examples
    --------
    >>> tasks = Tasks.from_list([[[1.0], [2.0]], [[2.0], [3.0]], [[2.0]]], [[0, 1], [0, 1], [1]])
    >>> overlap(tasks)
    OverlapCount(private: for the operator alone; one row sits in up to 3 tasks, 1.67 on average, of 3)
    >>> overlap(tasks, unit=["Ann", "Ann", "Bob", "Bob", "Cem"]).largest
    1
    """
    owner = _rows(tasks) if unit is None else np.unique(np.asarray(unit), return_inverse=True)[1]
    if owner.shape != tasks.y.shape[:1]:
        raise InputError(
            f"unit must have one entry a row of the tasks, {len(tasks.y)} in all. Got shape {owner.shape}."
        )
    seats = np.unique(owner.astype(np.int64) * len(tasks) + np.repeat(np.arange(len(tasks)), tasks.sizes))
    counts = np.bincount(seats // len(tasks))
    return OverlapCount(int(counts.max()), float(counts.mean()), len(counts), name)


def _rows(tasks: Tasks) -> NDArray[np.int64]:
    """Give equal rows of features equal numbers, by their bytes."""
    flat = tasks.X.reshape(len(tasks.y), -1)
    flat = np.ascontiguousarray(flat + 0.0 if flat.dtype.kind == "f" else flat)  # minus zero is zero
    whole = flat.view(np.dtype((np.void, flat.dtype.itemsize * flat.shape[1])))[:, 0]
    return np.asarray(np.unique(whole, return_inverse=True)[1], dtype=np.int64)
