"""What both ways of choosing share: a public grid, held-out losses, and what comes out."""

from __future__ import annotations

import math
import secrets
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from cloister.algorithm import Algorithm
from cloister.arrays import Floats
from cloister.channel import Relation
from cloister.engines.run import Run, replay
from cloister.errors import InputError, PlanError
from cloister.learners.linear.losses import Loss
from cloister.plan import Plan
from cloister.privacy import accounting
from cloister.privacy.guarantee import Guarantee
from cloister.privacy.mechanisms import Gaussian
from cloister.privacy.randomness import Origin
from cloister.tables.choice import Choice
from cloister.tasks import Tasks, local_key

__all__ = ["Grid", "TuningResult", "check_tasks", "held_out_losses", "on_all_rows", "run_seed", "split_seed"]


@dataclass(frozen=True, eq=False)
class TuningResult:
    """What was chosen, and what the choice and everything before it cost.

    Attributes
    ----------
    index, candidate : int, Algorithm
        The chosen one.
    run : Run
        Its plan, board and models. Its guarantee is that of everything together; the plan prices one run.
    scores : array
        The public numbers that decided: noisy votes, or the noisy score of the run that is shown.
    guarantee : Guarantee
        For everything together. This is the one to quote.
    record : Choice, optional
        Plans and boards of all runs and of the vote, where they are public.
    """

    index: int
    candidate: Algorithm
    run: Run
    scores: Floats
    guarantee: Guarantee
    record: Choice | None = None


@dataclass(frozen=True)
class Grid(ABC):
    """What both ways of choosing need to know, all of it public."""

    candidates: tuple[Algorithm, ...]
    loss: Loss
    n_tasks: int = field(kw_only=True)
    epsilon: float = field(kw_only=True)
    delta: float | None = field(default=None, kw_only=True)
    relation: Relation = field(default=Relation.REPLACE, kw_only=True)
    share: float = field(default=0.1, kw_only=True)
    holdout: float = field(default=0.3, kw_only=True)
    caveats: tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if len(self.candidates) < 2:
            raise PlanError(f"There must be two candidates or more. Got {len(self.candidates)}.")
        if any(candidate.network is not None for candidate in self.candidates):
            raise PlanError("A loss judges linear models, not networks. Compare those with evaluate.")
        if not (0 < self.share < 1 and 0 < self.holdout < 1):
            raise PlanError(f"share and holdout must be in (0, 1). Got {self.share} and {self.holdout}.")
        if not 0 < self.epsilon < math.inf:
            raise PlanError(f"epsilon must be > 0 and finite. Got {self.epsilon}.")
        if self.relation not in list(Relation):
            raise PlanError(f"relation must be 'replace' or 'zero_out'. Got {self.relation!r}.")
        delta = accounting.default_delta(self.n_tasks) if self.delta is None else float(self.delta)
        object.__setattr__(self, "delta", accounting.check_delta(delta, self.n_tasks))
        object.__setattr__(self, "relation", Relation(self.relation))
        object.__setattr__(self, "candidates", tuple(self.candidates))

    def _plan(self, algorithm: Algorithm, mu: float) -> Plan:
        return Plan(
            algorithm,
            Gaussian(mu),
            n_tasks=self.n_tasks,
            relation=self.relation,
            delta=self.delta,
            caveats=self.caveats,
        )

    @cached_property
    def guarantee(self) -> Guarantee:
        """What the whole will promise, known before data is touched."""
        return self.guarantee_from(Origin.SYSTEM)

    @abstractmethod
    def guarantee_from(self, origin: Origin) -> Guarantee:
        """Return what the whole promises if randomness comes from there."""


def held_out_losses(done: Run, test: Tasks, loss: Loss) -> Floats:
    """Return each task's mean loss on its own held-out rows; NaN for a task that has none."""
    losses = np.full(len(done.private.ids), np.nan)
    layout = test.layout()
    for index, block in zip(layout, test.blocks(layout), strict=True):
        at = np.searchsorted(done.private.ids, test.ids[index])
        coef = done.private.models["coef"][at]
        losses[at] = loss.value(coef, block.X, block.y, block.weight)
    return losses


def on_all_rows(done: Run, tasks: Tasks, guarantee: Guarantee) -> Run:
    """Replay the chosen run on all rows, which is free; its guarantee is that of the whole choice.

    `Tasks.split`, by which it was of a part of them, sorts tasks by name.
    """
    own = tasks.select(np.argsort(tasks.ids))
    models = replay(done.plan, done.board, own, seeds=done.private.seeds)
    private = replace(done.private, models=models)
    return replace(done, private=private, all_runs=guarantee.all_runs, of_choice=guarantee)


def check_tasks(tasks: Tasks, n_tasks: int) -> None:
    if len(tasks) != n_tasks:
        raise InputError(f"The choice is for {n_tasks} tasks. Got {len(tasks)}. Make one for these.")


def split_seed(random_state: int | None) -> int:
    """Return the seed that tasks split their rows by."""
    return secrets.randbits(63) if random_state is None else int(random_state)


def run_seed(random_state: int | None, number: int | str) -> int | None:
    """Return another seed for every run, so that no two have the same noise."""
    return None if random_state is None else int(local_key(int(random_state), f"run {number}"))
