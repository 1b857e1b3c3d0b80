"""Adam and AdamW at home: steps that are measured by the gradients that came before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cloister.arrays import A, Floats
from cloister.errors import InputError
from cloister.learners.descent import StepSolver, check_least, check_share

__all__ = ["Adam", "AdamW"]


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
