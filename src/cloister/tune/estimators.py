"""Choosing among scikit-learn estimators by vote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import ArrayLike

from cloister.app.choice import TuningResult, Vote
from cloister.app.fit import own_learner
from cloister.app.result import EstimatorSettings
from cloister.app.vote import chosen_run, vote
from cloister.core.errors import InputError
from cloister.core.lifts import Relation
from cloister.estimators.base import MultiTaskEstimator
from cloister.estimators.parameters import PrivacyBudget
from cloister.learners.linear.losses import Loss
from cloister.tables.codebook import Codebook


def fit_best(
    estimators: Sequence[MultiTaskEstimator], X: Any, y: Any, tasks: ArrayLike | None = None
) -> tuple[MultiTaskEstimator, TuningResult]:
    """Choose among scikit-learn estimators by `vote`; return the winner, fitted, and the choice.

    Codebook, epsilon, delta, relation, ledger and random state are those of the first that has them, for
    everything together; the others must not say otherwise. The winner has the guarantee of the whole, which
    is more than its own plan costs, and `save` writes all runs and the vote beside it.

    Examples
    --------
    >>> import numpy as np
    >>> from cloister.estimators import LowRankRegressor
    >>> rng = np.random.default_rng(0)
    >>> x, school = rng.uniform(-1, 1, (600, 2)), np.repeat(np.arange(60), 10)
    >>> bounds = {0: (-1, 1), 1: (-1, 1), "y": (-1, 1)}
    >>> grid = [LowRankRegressor(lam=lam, bounds=bounds, random_state=0) for lam in (0.01, 1.0)]
    >>> model, choice = fit_best(grid, x, x.mean(axis=1), tasks=school)
    >>> model.guarantee_ == choice.guarantee, model.guarantee_.epsilon <= 1.0
    (True, True)
    """
    from sklearn.base import clone

    first, budget = _first_private(estimators)
    table = first.reader.encode(X, y, tasks)
    election = election_of(estimators, table.codebook, len(table.tasks))
    choice = vote(election, table.tasks, ledger=budget.ledger, random_state=budget.random_state)
    best: MultiTaskEstimator = clone(estimators[choice.index])
    settings = EstimatorSettings.of(best, table.tasks.ids, table.columns.named)
    return best.use_run(chosen_run(choice, table.codebook, settings), table.columns), choice


def election_of(estimators: Sequence[MultiTaskEstimator], codebook: Codebook, n_tasks: int) -> Vote:
    """Return the vote among estimators on so many tasks; refuse some that do not agree on the budget."""
    _, budget = _first_private(estimators)
    for name in ("task", "bounds", "epsilon", "delta", "relation", "ledger", "random_state"):
        given = [estimator.get_params()[name] for estimator in estimators if name in estimator.get_params()]
        if any(value is not given[0] and value != given[0] for value in given):
            raise InputError(f"All estimators must have the same {name}: it is one choice, with one budget.")
    for name in ("sampling", "mechanism", "trust", "groups"):
        if any(estimator.get_params().get(name) is not None for estimator in estimators):
            raise InputError(
                "Estimators are compared with every task in every round, Gaussian noise, a trusted curator "
                f"and no groups. Leave {name} out."
            )
    for estimator in estimators:
        estimator.reader.check_target(codebook)
    return Vote(
        tuple(estimator.algorithm(codebook) for estimator in estimators),
        _loss(codebook),
        n_tasks=n_tasks,
        epsilon=budget.epsilon,
        delta=budget.chosen_delta,
        relation=Relation(budget.relation),
        caveats=codebook.caveats,
    )


def _first_private(estimators: Sequence[MultiTaskEstimator]) -> tuple[MultiTaskEstimator, PrivacyBudget]:
    """Return the first estimator that has a budget, and the budget."""
    for estimator in estimators:
        budget = PrivacyBudget.of(estimator)
        if budget is not None:
            return estimator, budget
    raise InputError("One of the estimators must have an epsilon. Got none that has one.")


def _loss(codebook: Codebook) -> Loss:
    return own_learner(codebook).loss
