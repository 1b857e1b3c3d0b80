"""How good the models of a run are: at home without noise, or as one number that may leave, and has a price.

A score is data. Each task's own belongs to that task; a mean over tasks that is told to anybody is a release
like any other.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from cloister.arrays import Floats
from cloister.channel import Absolute, Channel, Relation
from cloister.doubts import Doubt, Grade, merged
from cloister.engines.curator import Bill, OneRelease, charge
from cloister.engines.run import Run
from cloister.errors import InputError, PlanError
from cloister.ledger import Ledger
from cloister.metrics import Metric, Spread, spread
from cloister.privacy import accounting
from cloister.privacy.events import Cost, GaussianEvent
from cloister.privacy.guarantee import Guarantee, NoiseMade, guarantee_for
from cloister.privacy.mechanisms import Gaussian
from cloister.privacy.randomness import Randomness, source_of
from cloister.privacy.sampling import Everyone
from cloister.tasks import Tasks, local_key

__all__ = ["SCORES", "PrivateScore", "accuracy", "evaluate", "release_sum", "scores_of"]


#: One score in [0, 1] a task: their sum moves by at most 1 under both relations.
SCORES = Channel(1, lift=Absolute())


@dataclass(frozen=True)
class PrivateScore:
    """A mean score that may leave, with its price; made by `evaluate`.

    Attributes
    ----------
    value : float
        The noisy mean. It is not clipped, hence without bias, and may lie outside of [0, 1].
    noise : float
        Standard deviation of the noise in it.
    guarantee : Guarantee
        What this release costs every task, on top of what the run cost.
    """

    value: float
    noise: float
    guarantee: Guarantee

    def __str__(self) -> str:
        return f"{self.value:.4g} (noise of standard deviation {self.noise:.2g})\n\n{self.guarantee}"


def accuracy(y: NDArray[Any], outputs: NDArray[Any]) -> float:
    """Return the share of rows whose class is found.

    Outputs are scores or probabilities of classes, (rows, classes), or probabilities of class 1, (rows,). A
    row with an output that is not finite is not found.

    Examples
    --------
    >>> accuracy(np.array([0, 1]), np.array([[2.0, 1.0], [3.0, 0.0]]))
    0.5
    >>> accuracy(np.array([0, 1]), np.array([0.2, 0.9]))
    1.0
    """
    if outputs.ndim > y.ndim and outputs.shape[-1] > 1:
        return float(((outputs.argmax(axis=-1) == y) & np.isfinite(outputs).all(axis=-1)).mean())
    if outputs.shape == y.shape:
        return float((((outputs > 0.5) == y) & np.isfinite(outputs)).mean())
    raise InputError(
        f"accuracy needs scores of classes, or the probability of class 1. Got outputs of shape "
        f"{outputs.shape} for targets of shape {y.shape}. Pass another score."
    )


def scores_of(finished: Run, test: Tasks, score: Metric = accuracy) -> Floats:
    """Return the score of each task of a run on its own test rows; NaN for a task that has none.

    Tasks are scored one at a time: a score depends on the task's own rows and model, and on nothing else.

    Privacy
    -------
    Private, all of it: each number belongs to its task.
    """
    predict, models = finished.plan.algorithm.predict, finished.private.held_models
    position = {name: i for i, name in enumerate(finished.private.ids.tolist())}
    scores = np.full(len(position), np.nan)
    for name, start, stop in zip(test.ids.tolist(), test.offsets[:-1], test.offsets[1:], strict=True):
        if name not in position:
            raise InputError(f"Task {name!r} of the test data was not in the run. Leave it out.")
        at = position[name]
        if stop > start:
            own = {key: array[at : at + 1] for key, array in models.items()}
            outputs = np.asarray(predict(own, test.X[None, start:stop]))[0]
            scores[at] = score(test.y[start:stop], outputs)
    return scores


@overload
def evaluate(finished: Run, test: Tasks, score: Metric = ...) -> Spread: ...


@overload
def evaluate(
    finished: Run,
    test: Tasks,
    score: Metric = ...,
    *,
    epsilon: float,
    delta: float | None = ...,
    relation: Relation = ...,
    ledger: Ledger | None = ...,
    random_state: int | None = ...,
) -> PrivateScore: ...


def evaluate(
    finished: Run,
    test: Tasks,
    score: Metric = accuracy,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    relation: Relation = Relation.REPLACE,
    ledger: Ledger | None = None,
    random_state: int | None = None,
) -> Spread | PrivateScore:
    r"""Score every task's own model on its own test rows.

    Without `epsilon` the answer is for those who hold all rows, and says so: mean, worst decile and quantiles
    over the tasks that have test rows. With `epsilon` it is one number that may leave: the noisy mean of
    scores clipped to [0, 1] over *all* tasks of the run.

    Parameters
    ----------
    finished : Run
        Of an algorithm that says how its models predict.
    test : Tasks
        Rows that no task trained on, under the tasks' own names.
    score : callable
        Takes targets and what the model puts out for one task's rows, returns a number; more is better.
    epsilon, delta : float, optional
        Price of the release. Delta is by default that of a plan for so many tasks.
    relation : {"replace", "zero_out"}
        Who counts as a neighbour: all of one task's rows change, for training and for the test.
    ledger : Ledger, optional
        Charged before the number is made; refuses what it cannot afford.
    random_state : int, optional
        Makes the noise reproducible and INSECURE.

    Privacy
    -------
    Given the board, a task's rows reach its own score and no other. The sum of scores moves by at most 1,
    whichever relation, and gets Gaussian noise of deviation :math:`1/\mu`: exactly :math:`\mu`-GDP, on top of
    the run; a ledger adds them up. What is wrong with the run's guarantee is wrong with this one. A task
    without test rows, or with a score that is not finite, says 0, because the number of those that have some
    is private: the denominator is the public number of tasks. Give every task a test row, or the mean is too
    low.

    Examples
    --------
    >>> from cloister import Plan, run
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import Logistic
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(3000, 2))
    >>> train, test = Tasks.from_arrays(X, X[:, 0] > 0, np.arange(3000) % 300).split(0.5)
    >>> done = run(Plan(MeanRegularized(Logistic(2), rounds=3), n_tasks=300).calibrate(1.0), train)
    >>> told = evaluate(done, test, epsilon=0.5)
    >>> 0.5 < told.value < 1.3, round(told.noise, 3), round(told.guarantee.epsilon, 3)
    (True, 0.018, 0.5)
    >>> print(str(evaluate(done, test)).split(chr(10))[0])
    private diagnostics: not private, keep at home
    """
    if epsilon is None:
        if ledger is not None:
            raise InputError("A ledger is charged for numbers that may leave. Pass an epsilon as well.")
        return spread(scores_of(finished, test, score))
    relation, n_tasks = Relation(relation), finished.plan.n_tasks
    delta = accounting.check_delta(accounting.default_delta(n_tasks) if delta is None else delta, n_tasks)
    mu = _budget(n_tasks, epsilon, delta)
    scores, source = scores_of(finished, test, score), _source(random_state)
    guarantee = _guarantee(finished, mu, delta, relation, source)
    if ledger is not None:
        made = hashlib.sha256(f"evaluation of {finished.plan.fingerprint}".encode()).hexdigest()
        charge(ledger, Bill(made, lambda r: _cost(mu, n_tasks, r), guarantee.doubts))
        guarantee = replace(guarantee, all_runs=ledger.balance.all_runs)
    value = release_sum(scores, mu, source)
    return PrivateScore(value / n_tasks, 1 / (mu * n_tasks), guarantee)


def release_sum(scores: Floats, mu: float, source: Randomness) -> float:
    """Return the noisy sum of scores, each clipped to [0, 1]; those that are not finite say 0.

    Privacy
    -------
    It is mu-GDP for every task, under both relations. Every release needs a source of its own.

    Examples
    --------
    >>> 1.99 < release_sum(np.array([7.0, 1.0, -3.0, np.nan]), 1e4, source_of(None)) < 2.01
    True
    """
    bounded = np.where(np.isfinite(scores), scores, 0.0).clip(0.0, 1.0)
    return float(_release(mu, len(scores)).make(bounded[:, None], source)[0])


def _release(mu: float, n_tasks: int) -> OneRelease:
    """Return the release: a score in [0, 1] moves by at most 1, as much as when it falls silent."""
    return OneRelease(SCORES, Gaussian(mu), n_tasks, Relation.ZERO_OUT)


def _cost(mu: float, n_tasks: int, relation: Relation) -> Cost:
    return Cost((GaussianEvent(mu),), Everyone(), n_tasks, relation.value)


def _budget(n_tasks: int, epsilon: float, delta: float) -> float:
    """Return the mu that a price buys; refuse noise that integers cannot hold before anything is charged."""
    if not 0 < epsilon < math.inf:
        raise PlanError(f"epsilon must be > 0 and finite. Got {epsilon}. Leave it out for private scores.")
    mu = accounting.calibrate(lambda mu: _cost(mu, n_tasks, Relation.REPLACE), epsilon, delta)
    _release(mu, n_tasks).check()
    return mu


def _guarantee(finished: Run, mu: float, delta: float, relation: Relation, source: Randomness) -> Guarantee:
    n_tasks = finished.plan.n_tasks
    return guarantee_for(
        accounting.Prices.of(lambda r: _cost(mu, n_tasks, r), relation, delta),
        NoiseMade.by(Gaussian(), source.origin),
        _doubts(finished.guarantee),
        n_tasks=n_tasks,
        participation=Everyone().describe(),
    )


def _doubts(run: Guarantee) -> tuple[Doubt, ...]:
    """Say why models may know more of other tasks' rows than the board may tell."""
    no_noise = (Doubt(Grade.VOID, "its releases have no noise"),) if math.isinf(run.epsilon) else ()
    return tuple(
        Doubt(doubt.grade, f"of the run that made the models: {doubt.reason}")
        for doubt in merged(no_noise, run.doubts)
    )


def _source(random_state: int | None) -> Randomness:
    """Return the source of the noise; from a seed it is another one than that of a run of the same seed."""
    return source_of(None if random_state is None else int(local_key(int(random_state), "evaluation")))
