"""Training by steps at home: how many, of which size, on which rows, and down which direction.

Step sizes change from round to round, or from step to step, by a public schedule that is known beforehand.
`Adam` and `AdamW` measure them by the gradients that came before.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from cloister.core.arrays import A, Floats, is_real, is_whole, namespace
from cloister.core.errors import InputError, PlanError


@runtime_checkable
class StepSchedule(Protocol):
    """What a step size is multiplied by, as a function of a number that everybody knows."""

    def factor(self, at: int) -> float:
        """Return the factor of round, or step, number `at`, from 0."""


@dataclass(frozen=True)
class WarmUp:
    """Rise linearly to the full step size, and stay there.

    Parameters
    ----------
    length : int
        How many rounds, or steps, it takes; the last of them has the full size.

    Examples
    --------
    >>> [WarmUp(4).factor(at) for at in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """

    length: int

    def __post_init__(self) -> None:
        _check_length(self.length)

    def factor(self, at: int) -> float:
        return min(1.0, (at + 1) / self.length)


@dataclass(frozen=True)
class Cosine:
    """Fall from the full step size along half a cosine, and stay where that ends.

    Parameters
    ----------
    length : int
        How many rounds, or steps, it takes, the rise included.
    warm_up : int
        So many of them rise linearly first.
    floor : float
        What is left at the end, as a share of the full size.

    Examples
    --------
    >>> [round(Cosine(4).factor(at), 3) for at in range(6)]
    [1.0, 0.854, 0.5, 0.146, 0.0, 0.0]
    >>> [round(Cosine(6, warm_up=2, floor=0.5).factor(at), 3) for at in range(8)]
    [0.5, 1.0, 1.0, 0.927, 0.75, 0.573, 0.5, 0.5]
    """

    length: int
    warm_up: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        _check_length(self.length)
        numbers = is_real(self.warm_up) and is_real(self.floor)
        if not (numbers and 0 <= self.warm_up < self.length and 0 <= self.floor <= 1):
            raise InputError(
                "warm_up must be less than length, and floor a share in [0, 1]. "
                f"Got {self.warm_up} of {self.length}, and {self.floor}."
            )

    def factor(self, at: int) -> float:
        if at < self.warm_up:
            return (at + 1) / self.warm_up
        gone = min(1.0, (at - self.warm_up) / (self.length - self.warm_up))
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * gone)) / 2


def _check_length(length: int) -> None:
    if not (is_real(length) and length >= 1):
        raise InputError(
            f"length must be a number, at least 1, the rounds or steps that it takes. Got {length!r}."
        )


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
    over_rounds: StepSchedule | None = field(default=None, kw_only=True)
    over_steps: StepSchedule | None = field(default=None, kw_only=True)

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
            if value is not None and not (isinstance(value, StepSchedule) and not isinstance(value, type)):
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


def _longer(name: str, schedule: StepSchedule | None, length: int) -> str:
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


@dataclass(frozen=True)
class _Adam(StepSolver):
    betas: tuple[float, ...] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    #: Running sums of gradients and of their squares.
    slots: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.betas, tuple) and len(self.betas) == 2):
            raise InputError(f"betas must be two numbers, such as betas=(0.9, 0.999). Got {self.betas}.")
        check_share(**{"betas[0]": self.betas[0], "betas[1]": self.betas[1]})
        check_least(above=0.0, eps=self.eps)
        check_least(weight_decay=self.weight_decay)

    def corrections(self, count: int) -> Floats:
        """Return what makes the ratio of means of that of sums: a factor of the root, and what is added."""
        at = np.arange(1, count + 1)
        first, second = (
            (1 - beta**at) / (1 - beta) for beta in self.betas
        )  # weights of all gradients so far
        return np.column_stack([first / np.sqrt(second), self.eps * first])

    def moments(
        self, gradient: A, kept: tuple[A, ...], corrections: Sequence[float | A]
    ) -> tuple[A, tuple[A, ...]]:
        """Return the mean of gradients over the root of that of squares, and the sums that both come from.

        One operation at a time, so that no bit depends on where in memory a number lies.
        """
        (first, second), (b1, b2), (factor, added) = kept, self.betas, corrections
        first = b1 * first + gradient
        second = b2 * second + gradient * gradient
        return first / (factor * second**0.5 + added), (first, second)


@dataclass(frozen=True)
class Adam(_Adam):
    r"""Local training by Adam: every coordinate moves by about `lr` a step, whatever its gradient's size.

    .. math::
        w \leftarrow w - \text{lr}\; \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \text{eps}}

    with running means m of gradients and v of their squares, which start anew in every round, as t does.

    Parameters
    ----------
    lr, batch, epochs, steps, max_norm, over_rounds, over_steps
        As for `Descent`.
    betas : tuple of two floats
        What is left of the running means after a step.
    eps : float
        Added to the root.
    weight_decay : float
        Added to the gradient, times the weights, as in `torch.optim.Adam`.

    References
    ----------
    Kingma and Ba, *Adam: a method for stochastic optimization*, arXiv:1412.6980, Algorithm 1.

    Examples
    --------
    >>> Adam(lr=0.001, batch=20, epochs=2).count(rows=60)
    6
    """

    def direction(
        self, weights: A, gradient: A, kept: tuple[A, ...], corrections: Sequence[float | A]
    ) -> tuple[A, tuple[A, ...]]:
        total = gradient + self.weight_decay * weights if self.weight_decay else gradient
        return self.moments(total, kept, corrections)


@dataclass(frozen=True)
class AdamW(_Adam):
    """Local training by Adam with decoupled weight decay.

    Parameters
    ----------
    lr, batch, epochs, steps, max_norm, over_rounds, over_steps
        As for `Descent`.
    betas, eps
        As for `Adam`.
    weight_decay : float
        A step also moves the weights towards 0, by ``lr * weight_decay`` of themselves.

    References
    ----------
    Loshchilov and Hutter, *Decoupled weight decay regularization*, arXiv:1711.05101, Algorithm 2.
    """

    weight_decay: float = 0.01

    def direction(
        self, weights: A, gradient: A, kept: tuple[A, ...], corrections: Sequence[float | A]
    ) -> tuple[A, tuple[A, ...]]:
        direction, kept = self.moments(gradient, kept, corrections)
        return direction + self.weight_decay * weights, kept
