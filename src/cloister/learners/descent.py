"""Training by steps at home: how many, of which size, on which rows, and down which direction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from cloister.arrays import A, Floats, is_real, is_whole, namespace
from cloister.errors import InputError, PlanError
from cloister.learners.schedules import Cosine, Schedule

__all__ = ["Descent", "ExactSolver", "Nesterov", "Solver", "StepSolver", "require_rates", "require_solver"]

#: More passes over the data in one round than anyone makes; passes of different rounds never share a shuffle.
MOST_EPOCHS = 4096
#: The counter that folds are drawn with; rounds and passes never get so far.
FOLDS = 2**31 - 2
#: Keeps a gradient of length 0 as it is; torch adds as much.
NO_LENGTH = 1e-6
#: Options that torch's optimisers and ours have under one name.
_SHARED_OPTIONS = ("momentum", "betas", "eps", "weight_decay")


@dataclass(frozen=True)
class StepSolver(ABC):
    """What all solvers share that go by steps; each has a rule of its own for the direction of one.

    A direction is computed coordinate by coordinate, from arrays with one row a task, and from what the rule
    keeps from one step to the next: it starts at zero in every round, and no task's reaches another's.

    Parameters
    ----------
    lr, batch, epochs, steps, max_norm, over_rounds, over_steps
        As for `Descent`.
    """

    #: Whether it solves a problem to its end, rather than for so many steps.
    to_the_end: ClassVar[Literal[False]] = False

    lr: float
    batch: int | None = None
    epochs: int | None = None
    steps: int | None = None
    max_norm: float | None = field(default=None, kw_only=True)
    over_rounds: Schedule | None = field(default=None, kw_only=True)
    over_steps: Schedule | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise InputError("Give epochs or steps, not both: each says how long local work takes.")
        check_least(above=0.0, lr=self.lr)
        if self.max_norm is not None:
            check_least(above=0.0, max_norm=self.max_norm)
        for name in ("batch", "epochs", "steps"):
            value = getattr(self, name)
            if value is not None and not (is_whole(value) and 0 < value < MOST_EPOCHS * 1000):
                raise InputError(f"{name} must be a whole number, at least 1. Got {value!r}.")
        for name in ("over_rounds", "over_steps"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, Schedule) and not isinstance(value, type)):
                raise InputError(f"{name} must be a schedule, such as Cosine(100) or WarmUp(5). Got {value}.")
        if self.over_steps is not None and (self.batch is None or self.steps is not None):
            count = self.count(1)  # of every task, however many rows it has
            idle = [at for at in range(count) if self.over_steps.factor(at) == 0]
            if idle:
                raise InputError(
                    f"The step size must stay above 0. It is 0 in {len(idle)} of {count} steps of a round, "
                    f"from step {idle[0] + 1}. {_longer('over_steps', self.over_steps, count)}"
                )

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many arrays of a parameter's shape the rule keeps from step to step."""

    @abstractmethod
    def direction(
        self, weights: A, gradient: A, kept: tuple[A, ...], corrections: Sequence[float | A]
    ) -> tuple[A, tuple[A, ...]]:
        """Return what a step subtracts, times its size, and what is kept for the next one."""

    def corrections(self, count: int) -> Floats:
        """Return what the rule must know of each of so many steps, (count, numbers)."""
        return np.zeros((count, 0))

    def per_epoch(self, rows: int) -> int:
        """Return the steps of one pass over so many rows."""
        return 1 if self.batch is None else max(1, -(-rows // self.batch))

    def count(self, rows: int) -> int:
        """Return the steps that a task with so many rows takes in one round."""
        return self.steps if self.steps is not None else (self.epochs or 1) * self.per_epoch(rows)

    def rate(self, round: int) -> float:
        """Return the step size of a round, before `over_steps`."""
        return self.lr * (1.0 if self.over_rounds is None else self.over_rounds.factor(round))

    def timetable(self, round: int, count: int) -> Floats:
        """Return public numbers of each step of a round, a row each: its size, then `corrections`."""
        each = [1.0 if self.over_steps is None else self.over_steps.factor(at) for at in range(count)]
        return np.column_stack([self.rate(round) * np.array(each), self.corrections(count)])

    def shortened(self, gradients: tuple[A, ...]) -> tuple[A, ...]:
        """Return a task's gradients, of all its parameters together no longer than `max_norm`."""
        if self.max_norm is None:
            return gradients
        length = sum(_squares(g) for g in gradients) ** 0.5
        share = (self.max_norm / (length + NO_LENGTH)).clip(max=1.0)
        return tuple(share.reshape(-1, *[1] * (g.ndim - 1)) * g for g in gradients)


@dataclass(frozen=True)
class Descent(StepSolver):
    """Local training by stochastic gradient descent, on minibatches of each task's own choosing.

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
        The step size of round t is ``lr * decay**t``, times what `over_rounds` says.
    max_norm : float, optional
        The longest gradient of a step, of all parameters together; a longer one is shortened. It steadies
        training at home, and has nothing to do with the `clip` of a message.
    over_rounds, over_steps : WarmUp or Cosine, optional
        How the step size changes with the number of the round, and with that of the step within a round.

    Examples
    --------
    >>> Descent(lr=0.1, batch=10, epochs=2).count(rows=25), Descent(lr=0.1, steps=7).count(rows=25)
    (6, 7)
    """

    momentum: float = 0.0
    weight_decay: float = 0.0
    decay: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(momentum=self.momentum)
        check_least(weight_decay=self.weight_decay)
        check_least(above=0.0, decay=self.decay)

    @property
    def slots(self) -> int:
        return 1 if self.momentum else 0

    def direction(
        self, weights: A, gradient: A, kept: tuple[A, ...], corrections: Sequence[float | A]
    ) -> tuple[A, tuple[A, ...]]:
        total = gradient + self.weight_decay * weights if self.weight_decay else gradient
        if not self.momentum:
            return total, ()
        velocity = self.momentum * kept[0] + total
        return velocity, (velocity,)

    def rate(self, round: int) -> float:
        return super().rate(round) * self.decay**round


@dataclass(frozen=True)
class Nesterov(StepSolver):
    """Stochastic gradient descent with Nesterov's momentum, which looks a step ahead.

    Parameters
    ----------
    lr, batch, epochs, steps, weight_decay, max_norm, over_rounds, over_steps
        As for `Descent`.
    momentum : float
        What is left of a step in the next one; starts anew in every round.
    """

    momentum: float = 0.9
    weight_decay: float = 0.0

    #: One velocity a parameter.
    slots: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(momentum=self.momentum)
        check_least(weight_decay=self.weight_decay)

    def direction(
        self, weights: A, gradient: A, kept: tuple[A, ...], corrections: Sequence[float | A]
    ) -> tuple[A, tuple[A, ...]]:
        total = gradient + self.weight_decay * weights
        velocity = self.momentum * kept[0] + total
        return total + self.momentum * velocity, (velocity,)


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
Solver: TypeAlias = StepSolver | ExactSolver


def require_solver(given: object) -> None:
    """Refuse another library's optimiser, which knows nothing of tasks side by side; name its like."""
    if isinstance(given, StepSolver | ExactSolver):
        return
    kind = given if isinstance(given, type) else type(given)
    instead = "Descent(lr=0.1, epochs=1), with batch= and momentum= where you want them"
    if kind.__module__.startswith("torch.optim"):
        instead = _like(kind.__name__, getattr(given, "defaults", {})) or instead
    raise PlanError(
        f"solver must be a Descent, Nesterov, Adam, AdamW or ExactSolver of cloister.learners. "
        f"Got {kind.__module__}.{kind.__name__}. Write {instead}."
    )


def require_rates(solver: Solver, rounds: int) -> None:
    """Refuse steps of size 0 in rounds whose messages say how far a task moved: noise alone, and paid for."""
    if solver.to_the_end:
        return
    idle = [at for at in range(rounds) if solver.rate(at) == 0]
    if idle:
        raise PlanError(
            f"The step size must stay above 0. It is 0 from round {idle[0] + 1}, and {len(idle)} of {rounds} "
            f"rounds would release noise alone. {_longer('over_rounds', solver.over_rounds, rounds)}"
        )


def _longer(name: str, schedule: Schedule | None, length: int) -> str:
    """Say what to type for a schedule that stays above 0 for so long."""
    if not isinstance(schedule, Cosine) or schedule.factor(length - 1) > 0:
        return f"Let {name}= or decay= fall more slowly."
    rise = f", warm_up={schedule.warm_up}" if schedule.warm_up else ""
    return f"Write {name}=Cosine({length}{rise}), or give it a floor=."


def _like(name: str, options: dict[str, Any]) -> str | None:
    """Return what to type for an optimiser of torch, with the options that it was given, or None."""
    if name not in ("SGD", "Adam", "AdamW"):
        return None
    ours = name if name != "SGD" else "Nesterov" if options.get("nesterov") else "Descent"
    said = [f"lr={options.get('lr', 0.1 if name == 'SGD' else 0.001)}"]
    said += [f"{option}={options[option]}" for option in _SHARED_OPTIONS if options.get(option)]
    return f"{ours}({', '.join(said)}, batch=20, epochs=1)"


def _squares(gradient: A) -> A:
    """Return each task's sum of squares; a task alone is added up as beside another, not by all threads."""
    flat = gradient.reshape(len(gradient), -1) ** 2
    if len(flat) == 1:
        flat = namespace(flat).broadcast_to(flat, (2, flat.shape[1]))
    sums: A = flat.sum(1)[: len(gradient)]
    return sums


def check_share(**numbers: float) -> None:
    """Refuse what is not in [0, 1), the share that is kept of something."""
    for name, number in numbers.items():
        if not (is_real(number) and 0 <= number < 1):
            raise InputError(f"{name} must be a number in [0, 1), the share that is kept. Got {number!r}.")


def check_least(above: float | None = None, **numbers: float) -> None:
    """Refuse numbers below 0, or not above a limit, and those that are not finite."""
    for name, number in numbers.items():
        if not (is_real(number) and 0 <= number < np.inf and (above is None or number > above)):
            due = ">= 0" if above is None else f"> {above:g}"
            raise InputError(f"{name} must be a number {due} and finite. Got {number!r}.")
