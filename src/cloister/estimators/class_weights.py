"""Weights of classes: what classifiers take beside the parameters of their family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cloister.app.fit import own_learner
from cloister.estimators.base import MultiTaskEstimator
from cloister.learners.learner import BayesianLearner
from cloister.tables.codebook import Codebook


@dataclass(eq=False, repr=False)
class WeighsClasses(MultiTaskEstimator):
    """A classifier whose rows count as many as their class says; public, and a part of the plan."""

    class_weight: float | Sequence[float] = field(default=None, kw_only=True)  # type: ignore[assignment]

    def learner(self, codebook: Codebook) -> BayesianLearner:
        return own_learner(codebook, self.class_weight)  # type: ignore[arg-type]
