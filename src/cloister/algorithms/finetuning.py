"""Training at home after the last release, as it is told to or as each task's own held-out rows advise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.errors import PlanError
from cloister.learners.descent import Descent

if TYPE_CHECKING:
    from cloister.algorithms.federated import ClientLearner
    from cloister.learners.penalties import Penalty
    from cloister.tasks import Block

__all__ = ["Choice", "FineTuning"]

Array = Any  # of NumPy, or of torch on another device


@dataclass(frozen=True)
class FineTuning:
    """Training at home after the last release: free.

    Parameters
    ----------
    solver : Descent
        How long and how fast.
    penalty : Quadratic, SymmetrizedKL or EWC, optional
        What holds a model near the public one meanwhile.
    """

    solver: Descent
    penalty: Penalty | None = None

    def tune(self, learner: ClientLearner, weights: Array, block: Block, round: int, anchor: Array) -> Array:
        """Train each task on its own rows, from its own weights."""
        return learner.descend(weights, block, self.solver, round, anchor, self.penalty)


@dataclass(frozen=True)
class Choice:
    """Fine-tuning of each task's own choosing: which variant, how long, or none at all.

    A task holds out some of its rows, trains every variant on the rest, one run of its solver after another,
    and looks after each run how well the held-out rows are predicted. What did best there it does again with
    all its rows. At a tie it is the shorter training, and the variant named first; a task with a single row
    has nothing to compare by and is not tuned.

    Parameters
    ----------
    variants : tuple of FineTuning
        What to choose from, besides no fine-tuning.
    checks : int
        How often a variant's solver is run, at most. Each run counts as a round: the solver's `decay` goes
        on, its momentum starts anew.
    holdout : float
        Share of a task's rows that are held out, rounded up.

    Privacy
    -------
    Free, however many variants there are: the choice is made from the board and a task's own rows, and stays
    at home.

    Notes
    -----
    It computes about twice as much as all variants together. The models of `Ditto` and `Personalized` were
    trained on the held-out rows too in the rounds before, so there the choice leans towards no fine-tuning.
    Two engines agree unless two losses do, to rounding.

    Examples
    --------
    >>> from cloister import Quadratic
    >>> stretch = Descent(lr=0.1, batch=5, steps=20)  # 20, 40, 60 or 80 steps, or none
    >>> choice = Choice((FineTuning(stretch), FineTuning(stretch, Quadratic(1.0))), checks=4)
    """

    variants: tuple[FineTuning, ...]
    checks: int = 4
    holdout: float = 0.2

    def __post_init__(self) -> None:
        if not self.variants or self.checks < 1:
            raise PlanError(
                "Choice needs at least one variant and one check. "
                f"Got {len(self.variants)} and {self.checks}; leave finetune out for no fine-tuning."
            )
        if not 0 < self.holdout < 1:
            raise PlanError(f"holdout must be a share of rows between 0 and 1. Got {self.holdout}.")

    def tune(self, learner: ClientLearner, weights: Array, block: Block, round: int, anchor: Array) -> Array:
        """Train every variant on some rows and on all; keep what did best on the rows left out."""
        rest, held_out = learner.hold_out(block, self.holdout)
        best, smallest = weights, learner.losses(weights, held_out)
        for variant in self.variants:
            tried = tuned = weights
            for later in range(round, round + self.checks):
                tried = variant.tune(learner, tried, rest, later, anchor)
                tuned = variant.tune(learner, tuned, block, later, anchor)
                loss = learner.losses(tried, held_out)
                better = loss < smallest  # nowhere where a loss is not a number
                best = _where(better[:, None], tuned, best)
                smallest = _where(better, loss, smallest)
        return best


def _where(mask: Array, one: Array, other: Array) -> Array:
    """Take one array where the mask is true and another elsewhere, be they of NumPy or of torch."""
    return np.where(mask, one, other) if isinstance(mask, np.ndarray) else one.where(mask, other)
