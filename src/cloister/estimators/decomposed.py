"""DecomposedRegressor and DecomposedClassifier: weights that tasks share, and weights of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cloister.algorithms.covariance import GroupSparse, LowRank
from cloister.algorithms.decomposed import Decomposed, EntrySparse, OwnPenalty, SquaredNorm, TaskSparse
from cloister.estimators.linear import BaseChoosing
from cloister.estimators.parameters import check_word
from cloister.estimators.targets import BaseMultiTaskClassifier, BaseMultiTaskRegressor
from cloister.learners.linear.losses import Loss
from cloister.tables.codebook import Codebook

__all__ = ["DecomposedClassifier", "DecomposedRegressor"]

SHARED = {"lowrank": LowRank, "sparse": GroupSparse}
OWN: dict[str, Callable[[float], OwnPenalty]] = {
    "entries": EntrySparse,
    "tasks": TaskSparse,
    "squared": SquaredNorm,
}


@dataclass(eq=False, repr=False, kw_only=True)
class _Decomposed(BaseChoosing):
    """What the estimators of `Decomposed` share."""

    shared: str = "lowrank"
    own: str = "entries"
    lam_own: float = 0.01
    warmup: int = 100

    def _shared(self, codebook: Codebook, loss: Loss, lam: float) -> Decomposed:
        check_word("shared", self.shared, SHARED)
        check_word("own", self.own, OWN)
        shared = SHARED[self.shared](
            loss,
            lam=lam,
            clip=self._radius(codebook),
            rounds=self.rounds,
            lr=self._step(codebook) / (2 if self.lr == "auto" else 1),  # both parts move at once
            warmup=self.warmup,
        )
        return Decomposed(shared, OWN[self.own](self.lam_own))


class DecomposedRegressor(BaseMultiTaskRegressor, _Decomposed):
    """Linear regression for many tasks with shared weights and weights of their own, under task-level JDP.

    Parameters
    ----------
    task, epsilon, delta, relation, bounds, ledger, random_state, lam, clip, rounds, lr, sampling, mechanism
        As for `LowRankRegressor`; the automatic step is half as long.
    warmup, guard
        As for `LowRankRegressor`.
    shared : {"lowrank", "sparse"}
        What tasks have in common: a subspace, or a few features.
    own : {"entries", "tasks", "squared"}
        What their own part is like: few entries, few tasks that have one, or small throughout.
    lam_own : float
        Strength of the penalty on the own part, which never leaves its task.

    Privacy
    -------
    That of `Decomposed`. A task that was not in `fit` is served as by `LowRankRegressor`.
    """


class DecomposedClassifier(BaseMultiTaskClassifier, _Decomposed):
    """Logistic or multinomial regression with shared weights and weights of a task's own, under JDP.

    Parameters, attributes and privacy are those of `DecomposedRegressor`; the codebook lists two classes or
    more.
    """
