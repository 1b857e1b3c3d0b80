"""What data an algorithm can take, known before any data is touched."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from cloister.core.arrays import Array
from cloister.core.errors import InputError, PrivateDataError
from cloister.core.tasks import Tasks

__all__ = ["DataSpec", "Sender", "Target"]

#: How many tasks, and rows of each, stand in for data that nobody has seen yet.
SYNTHETIC_TASKS, SYNTHETIC_ROWS = 2, 3


class Target(StrEnum):
    """What kind of thing a row's target is."""

    NUMBER = "number"
    CLASS = "class"
    COUNT = "count"
    ANY = "any"


class Sender(StrEnum):
    """Who sends messages: every task, or every record of every task."""

    TASK = "task"
    RECORD = "record"


@dataclass(frozen=True)
class DataSpec:
    """The rows that an algorithm, a learner or a loss is for.

    Parameters
    ----------
    features : tuple of int, optional
        Shape of one row's features, ``(columns,)`` for a table; None if it takes any shape.
    target : Target
        Numbers, class indexes 0, 1, ..., counts, or anything that NumPy can hold.
    classes : int, optional
        Number of classes; None where targets are not classes, or any number of them is taken.

    Examples
    --------
    >>> DataSpec((2,), Target.CLASS, 3).check(np.zeros((5, 2)), np.zeros(5, dtype=int))
    >>> DataSpec((2,)).check(np.zeros((5, 4)), np.zeros(5))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    cloister.errors.InputError: Rows must have 2 columns and one target each. Got features of shape (4,)...
    """

    features: tuple[int, ...] | None = None
    target: Target = Target.NUMBER
    classes: int | None = None

    def check(self, X: Array, y: Array) -> None:
        """Refuse rows by their shape and kind, which are public; no value is looked at."""
        if X.dtype.names is not None:
            raise InputError(
                f"Several inputs ({', '.join(X.dtype.names)}) are for networks, and this algorithm takes one "
                "array of features. Pass that, or give the algorithm a learners.Module."
            )
        check_kinds(Features=X, Targets=y)
        if self.features is None:
            return
        if X.shape[1:] != self.features or y.ndim != 1:
            due = f"{self.features[0]} columns" if len(self.features) == 1 else f"shape {self.features}"
            raise InputError(
                f"Rows must have {due} and one target each. Got features of shape {X.shape[1:]} and targets "
                f"of shape {y.shape[1:]}. Pass data that fit the plan, or plan for these."
            )

    def check_labels(self, X: Array, y: Array) -> None:
        """Refuse targets that are no class or count. Looks at values: for whoever holds all rows."""
        if self.target == Target.COUNT and not (np.isfinite(y) & (y >= 0)).all():
            raise PrivateDataError(
                "Targets must be counts, finite and not negative. Some are not. Mend them."
            )
        classes = self.classes
        if self.target != Target.CLASS or not len(y):
            return
        if not (np.isfinite(y) & (y == np.floor(y)) & (y >= 0)).all() or (classes and (y >= classes).any()):
            due = f"from 0 to {classes - 1}" if classes else "from 0 on"
            raise PrivateDataError(
                f"Targets must be class indexes {due}. Some are not. Recode them, or plan for more classes."
            )

    def synthetic(self, X: Array, y: Array) -> Tasks:
        """Return two small tasks of this kind, made up, to try an algorithm on before anything is spent.

        Of the data only shape and type count, where this does not fix them.
        """
        count = SYNTHETIC_TASKS * SYNTHETIC_ROWS
        shape = (count, *(X.shape[1:] if self.features is None else self.features))
        made = np.linspace(-0.5, 0.5, int(np.prod(shape))).reshape(shape)
        features = made.astype(X.dtype) if X.dtype.kind == "f" else np.zeros(shape, X.dtype)
        names = np.repeat(np.arange(SYNTHETIC_TASKS), SYNTHETIC_ROWS)
        return Tasks.from_arrays(features, np.zeros((count, *y.shape[1:]), y.dtype), names)


def check_kinds(**arrays: Array) -> None:
    """Refuse arrays of anything but real numbers."""
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise InputError(f"{name} must be real numbers. Got {array.dtype}. Encode them first.")
