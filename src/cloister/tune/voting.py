"""Choosing by vote: every candidate is run and paid, and a noisy count of the tasks' votes decides."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cloister.algorithm import Algorithm, Budget
from cloister.arrays import Floats, States
from cloister.channel import Absolute, Channel, Relation, Round
from cloister.engines.curator import Bill, charge, check_price
from cloister.engines.local import Local
from cloister.engines.run import check_run, run
from cloister.errors import InputError
from cloister.estimators.base import BaseMultiTask, BasePrivate
from cloister.learners.linear.losses import LeastSquares, Loss, Softmax
from cloister.ledger import Ledger
from cloister.plan import Plan
from cloister.privacy import accounting
from cloister.privacy.events import Cost
from cloister.privacy.guarantee import Guarantee, NoiseMade
from cloister.privacy.mechanisms import Gaussian
from cloister.privacy.randomness import Origin, source_of
from cloister.store.billboard import BoardView, Release
from cloister.tables.choice import Choice, cost_together, guarantee_together
from cloister.tables.codebook import Codebook
from cloister.tables.table_run import EstimatorSettings, TableRun
from cloister.tasks import Block, Tasks
from cloister.tune.grid import (
    Grid,
    TuningResult,
    check_tasks,
    held_out_losses,
    on_all_rows,
    run_seed,
    split_seed,
)

__all__ = ["Ballot", "Vote", "chosen_run", "election_of", "fit_best", "vote"]


@dataclass(frozen=True)
class Ballot(Algorithm):
    r"""One vote a task, as an algorithm: its rows are the candidates' losses, its message is one-hot.

    Privacy
    -------
    A message is a unit vector with one entry that is 1, or zero for a task that cannot tell: sensitivity 1
    (zero-out) or :math:`\sqrt2` (replace) of the count. Noise of deviation 10 votes costs
    :math:`\mu = 0.1` or 0.141, whatever the number of candidates and tasks.
    """

    candidates: int

    @property
    def _channel(self) -> Channel:
        return Channel(self.candidates, 1.0, Absolute())

    def schedule(self, n_tasks: int, budget: Budget) -> tuple[Round, ...]:
        return (Round(1.0, (self._channel,)),)

    def start(self) -> dict[str, NDArray[Any]]:
        return {"votes": np.zeros(self.candidates)}

    def channel(self, board: BoardView) -> Channel:
        return self._channel

    def init(self, block: Block, board: BoardView) -> States:
        return {}

    def send(self, states: States, block: Block, board: BoardView) -> tuple[NDArray[Any], States]:
        """Vote for the smallest loss; the first of equals."""
        known = np.asarray(np.isfinite(block.X[:, 0]))
        best = np.where(known, block.X[:, 0], np.inf).argmin(axis=1)
        one_hot = best[:, None] == np.arange(self.candidates)
        return one_hot & known.any(axis=1, keepdims=True), states

    def update(self, release: Release, board: BoardView) -> dict[str, NDArray[Any]]:
        return {"votes": release.value}

    def finish(self, states: States, block: Block, board: BoardView) -> States:
        return {}


@dataclass(frozen=True)
class Vote(Grid):
    r"""A choice by vote: all of it public, and priced before data is touched.

    Parameters
    ----------
    candidates : tuple of Algorithm
        The grid. Those that release nothing, like `Independent`, cost nothing.
    loss : LeastSquares, Logistic or Softmax
        What held-out rows are judged by.
    n_tasks : int
        Public number of tasks.
    epsilon, delta : float
        Budget of every task for all candidates' runs and the vote together.
    relation : {"replace", "zero_out"}
        Who counts as a neighbour.
    share : float
        The vote's share of the squared Gaussian-DP budget; candidates with rounds share the rest equally.
    holdout : float
        Share of a task's rows that it keeps back from its messages, to vote by.
    caveats : tuple of str
        Reasons why the guarantee does not hold.

    Privacy
    -------
    The runs and the vote are Gaussian releases over the same tasks, hence exactly
    :math:`\sqrt{\mu_1^2 + \ldots + \mu_C^2 + \mu_v^2}`-GDP together. Everything on the boards may be public.

    Examples
    --------
    >>> from cloister.algorithms import Independent, MeanRegularized
    >>> from cloister.learners import LeastSquares, Regression
    >>> loss = LeastSquares(3)
    >>> election = Vote((MeanRegularized(loss), Independent(Regression(3))), loss, n_tasks=200, epsilon=1.0)
    >>> 0.999 < election.guarantee.epsilon <= 1.0
    True
    """

    @cached_property
    def plans(self) -> tuple[Plan, ...]:
        """One plan a candidate, and the ballot's; together they spend the budget and no more."""
        assert self.delta is not None
        mu = accounting.calibrate(
            lambda mu: cost_together(self._plans(mu), self.relation), self.epsilon, self.delta
        )
        return self._plans(mu)

    def _plans(self, mu: float) -> tuple[Plan, ...]:
        has_rounds = [bool(candidate.schedule(self.n_tasks, Budget(1.0))) for candidate in self.candidates]
        each = mu * math.sqrt((1 - self.share) / max(1, sum(has_rounds)))
        ballot = mu * (math.sqrt(self.share) if any(has_rounds) else 1.0)
        runs = tuple(self._plan(candidate, each) for candidate in self.candidates)
        return (*runs, self._plan(Ballot(len(self.candidates)), ballot))

    def cost_under(self, relation: Relation) -> Cost:
        """Return what one task is exposed to over all runs and the vote."""
        return cost_together(self.plans, Relation(relation))

    def guarantee_from(self, origin: Origin) -> Guarantee:
        return guarantee_together(self.plans, NoiseMade.by(Gaussian(), origin))

    @property
    def fingerprint(self) -> str:
        """A hash that stands for all plans."""
        return hashlib.sha256("".join(plan.fingerprint for plan in self.plans).encode()).hexdigest()


def vote(
    election: Vote,
    tasks: Tasks,
    *,
    ledger: Ledger | None = None,
    random_state: int | None = None,
) -> TuningResult:
    """Run all candidates, let tasks vote by their own held-out rows, and return the winner.

    The winner's models are replayed against its board on all of each task's rows, which is free.

    Parameters
    ----------
    election : Vote
        Candidates and budget.
    tasks : Tasks
        As many as it says.
    ledger : Ledger, optional
        Charged once, for everything, before anything leaves a task.
    random_state : int, optional
        Makes it reproducible and INSECURE.

    Examples
    --------
    >>> from cloister.algorithms import Independent, MeanRegularized
    >>> from cloister.learners import LeastSquares, Regression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-0.5, 0.5, (300, 8, 3))
    >>> y = X @ [0.9, -0.9, 0.5] + 0.2 * rng.normal(size=(300, 8))  # all alike, few rows: sharing pays
    >>> loss = LeastSquares(3)
    >>> grid = (Independent(Regression(3, intercept=False)), MeanRegularized(loss, lam=1.0, lr=1.0, clip=2.0))
    >>> election = Vote(grid, loss, n_tasks=300, epsilon=4.0)
    >>> choice = vote(election, Tasks.from_list(list(X), list(y)), random_state=0)
    >>> choice.index, type(choice.candidate).__name__
    (1, 'MeanRegularized')
    """
    check_tasks(tasks, election.n_tasks)
    plans = election.plans
    guarantee = election.guarantee_from(source_of(random_state).origin)
    check_vote(election, tasks)
    if ledger is not None:
        charge(ledger, Bill(election.fingerprint, election.cost_under, guarantee.doubts))
        guarantee = replace(guarantee, all_runs=ledger.balance.all_runs)
    train, test = tasks.split(election.holdout, split_seed(random_state))
    runs = [run(plan, train, random_state=run_seed(random_state, i)) for i, plan in enumerate(plans[:-1])]
    losses = np.column_stack([held_out_losses(done, test, election.loss) for done in runs])
    count = run(plans[-1], slips_of(train, losses), random_state=run_seed(random_state, len(runs)))
    record = Choice(plans, (*(done.board for done in runs), count.board))
    best = record.winner
    found = on_all_rows(runs[best], tasks, guarantee)
    return TuningResult(best, election.candidates[best], found, np.array(record.votes), guarantee, record)


def check_vote(election: Vote, tasks: Tasks) -> None:
    """Refuse what the runs of a vote refuse before their charge; they are all charged at once."""
    for plan in election.plans[:-1]:
        check_run(plan, tasks, Local())
    check_price(election.plans[-1])


def slips_of(tasks: Tasks, losses: Floats) -> Tasks:
    """Return what tasks vote by: one row each, the losses of all candidates."""
    count = len(tasks)
    return Tasks(tasks.ids, losses, np.zeros(count), np.ones(count), np.arange(count + 1, dtype=np.int64))


def fit_best(
    estimators: Sequence[BaseMultiTask], X: Any, y: Any, tasks: ArrayLike | None = None
) -> tuple[BaseMultiTask, TuningResult]:
    """Choose among scikit-learn estimators by `vote`; return the winner, fitted, and the choice.

    Codebook, epsilon, delta, relation, ledger and random state are those of the first that has them, for
    everything together; the others must not say otherwise. The winner has the guarantee of the whole, which
    is more than its own plan costs, and `save` writes all runs and the vote beside it.

    Examples
    --------
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

    first = _first_private(estimators)
    columns, codebook, data = first._encode(X, y, tasks, None)
    election = election_of(estimators, codebook, len(data))
    choice = vote(election, data, ledger=first.ledger, random_state=first.random_state)
    best: BaseMultiTask = clone(estimators[choice.index])
    best._adopt(columns, chosen_run(choice, codebook, EstimatorSettings.of(best, data.ids, columns.named)))
    return best, choice


def election_of(estimators: Sequence[BaseMultiTask], codebook: Codebook, n_tasks: int) -> Vote:
    """Return the vote among estimators on so many tasks; refuse some that do not agree on the budget."""
    first = _first_private(estimators)
    for name in ("task", "bounds", "epsilon", "delta", "relation", "ledger", "random_state"):
        given = [estimator.get_params()[name] for estimator in estimators if name in estimator.get_params()]
        if any(value is not given[0] and value != given[0] for value in given):
            raise InputError(f"All estimators must have the same {name}: it is one choice, with one budget.")
    for name in ("sampling", "mechanism", "groups"):
        if any(estimator.get_params().get(name) is not None for estimator in estimators):
            raise InputError(
                "Estimators are compared with every task in every round, Gaussian noise and no groups. Leave "
                f"{name} out."
            )
    first._check_parameters()
    return Vote(
        tuple(estimator._algorithm(codebook) for estimator in estimators),
        _loss(codebook),
        n_tasks=n_tasks,
        epsilon=first.epsilon,
        delta=first._delta,
        relation=Relation(first.relation),
        caveats=codebook.caveats,
    )


def chosen_run(choice: TuningResult, codebook: Codebook, settings: EstimatorSettings) -> TableRun:
    """Return the chosen run over a table, with the record and the guarantee of the whole choice."""
    return replace(TableRun.of(choice.run, codebook, settings), choice=choice.record)


def _first_private(estimators: Sequence[BaseMultiTask]) -> BasePrivate:
    first = next((estimator for estimator in estimators if isinstance(estimator, BasePrivate)), None)
    if first is None:
        raise InputError("One of the estimators must have an epsilon. Got none that has one.")
    return first


def _loss(codebook: Codebook) -> Loss:
    return (
        LeastSquares(codebook.width)
        if codebook.classes is None
        else Softmax(codebook.width, codebook.classes)
    )
