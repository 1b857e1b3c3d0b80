"""Stochastic gradient descent at home: how many steps, of which size, on which rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from cloister.errors import InputError, PlanError

__all__ = ["Descent", "ExactSolver", "Solver", "require_solver"]

#: More passes over the data in one round than anyone makes; passes of different rounds never share a shuffle.
MOST_EPOCHS = 4096
#: The counter that folds are drawn with; rounds and passes never get so far.
FOLDS = 2**31 - 2


@dataclass(frozen=True)
class Descent:
    """Local training by minibatches of each task's own choosing.

    Parameters
    ----------
    lr : float
        Step size.
    batch : int, optional
        Rows in a step, drawn without replacement until all were used; left out, every step uses all rows.
    epochs, steps : int, optional
        How long a round's local work is: so many passes over a task's own rows, or so many steps. Give one;
        with neither it is one epoch.
    momentum : float
        Heavy-ball momentum; starts anew in every round.
    weight_decay : float
        Added to the gradient, times the weights.
    decay : float
        The step size of round t is ``lr * decay**t``.

    Examples
    --------
    >>> Descent(lr=0.1, batch=10, epochs=2).count(rows=25), Descent(lr=0.1, steps=7).count(rows=25)
    (6, 7)
    """

    #: Whether it solves a problem to its end, rather than for so many steps.
    to_the_end: ClassVar[Literal[False]] = False

    lr: float
    batch: int | None = None
    epochs: int | None = None
    steps: int | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay: float = 1.0

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise InputError("Give epochs or steps, not both: each says how long local work takes.")
        if not (self.lr > 0 and 0 <= self.momentum < 1 and self.weight_decay >= 0 and self.decay > 0):
            raise InputError(
                "lr and decay must be > 0, momentum in [0, 1), weight_decay >= 0. "
                f"Got {self.lr}, {self.decay}, {self.momentum}, {self.weight_decay}."
            )
        for name in ("batch", "epochs", "steps"):
            value = getattr(self, name)
            if value is not None and not 0 < value < MOST_EPOCHS * 1000:
                raise InputError(f"{name} must be a positive number. Got {value}.")

    def per_epoch(self, rows: int) -> int:
        """Return the steps of one pass over so many rows."""
        return 1 if self.batch is None else max(1, -(-rows // self.batch))

    def count(self, rows: int) -> int:
        """Return the steps that a task with so many rows takes in one round."""
        return self.steps if self.steps is not None else (self.epochs or 1) * self.per_epoch(rows)

    def rate(self, round: int) -> float:
        return self.lr * self.decay**round


@dataclass(frozen=True)
class ExactSolver:
    """Solve the local problem to the end: by a formula for `LeastSquares`, by accelerated steps otherwise.

    Parameters
    ----------
    steps : int
        Of Nesterov's method, at each task's own pace; least squares takes none.
    """

    to_the_end: ClassVar[Literal[True]] = True
    #: It takes all rows.
    batch: ClassVar[None] = None

    steps: int = 100

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InputError(f"steps must be at least 1. Got {self.steps}.")


#: How a task trains at home.
Solver: TypeAlias = Descent | ExactSolver


def require_solver(given: object) -> None:
    """Refuse another library's optimiser, which knows nothing of tasks side by side."""
    if not isinstance(given, Descent | ExactSolver):
        kind = given.__name__ if isinstance(given, type) else type(given).__name__
        raise PlanError(
            f"solver must be a Descent or an ExactSolver. Got {kind}. Write Descent(lr=0.1, epochs=1), with "
            "batch= and momentum= where you want them."
        )
