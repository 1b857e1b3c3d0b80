"""How good the models of a run are: at home without noise, or as one number that may leave, and has a price.

A score is data. Each task's own belongs to that task; a mean over tasks that is told to anybody is a release
like any other.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Array, Floats
from cloister.core.channel import Channel
from cloister.core.errors import InputError, PlanError
from cloister.core.lifts import Absolute, Relation
from cloister.core.metrics import Metric, Share, Spread, spread
from cloister.core.spec import Target
from cloister.core.tasks import Tasks, local_key
from cloister.engines.curator import Bill, OneRelease, charge
from cloister.engines.run import Run
from cloister.engines.workers import check_tasks
from cloister.ledger import Ledger
from cloister.plan.algorithm import Algorithm
from cloister.plan.plan import Plan
from cloister.privacy import accounting
from cloister.privacy.caveats import Caveat, Grade, merged
from cloister.privacy.events import Cost, GaussianEvent
from cloister.privacy.guarantee import Guarantee, NoiseMade, domain_of, guarantee_for
from cloister.privacy.mechanisms import Gaussian
from cloister.privacy.randomness import Randomness, source_of
from cloister.privacy.sampling import Everyone
from cloister.tables.frames import data_frame

__all__ = [
    "SCORES",
    "NoisyMeans",
    "PrivateScore",
    "ScorePrice",
    "accuracy",
    "default_score",
    "evaluate",
    "release_means",
    "release_share",
    "release_sum",
    "scores_of",
    "task_scores",
]


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
    return _FOUND(y, outputs)


def _found(y: Array, outputs: Array) -> tuple[Array, Array]:
    if outputs.ndim > y.ndim and outputs.shape[-1] > 1:
        found = (outputs.argmax(axis=-1) == y) & np.isfinite(outputs).all(axis=-1)
    elif outputs.shape == y.shape:
        found = ((outputs > 0.5) == y) & np.isfinite(outputs)
    else:
        raise InputError(
            f"accuracy needs scores of classes, or the probability of class 1. Got outputs of shape "
            f"{outputs.shape} for targets of shape {y.shape}. Pass another score."
        )
    return found, np.ones(y.shape, dtype=bool)


_FOUND = Share(_found)


def default_score(algorithm: Algorithm, test: Tasks) -> Metric | None:
    """Return the share of targets found, where these are classes; None where they are numbers.

    A network's loss says so, or else the algorithm, or else the kind of the targets. Looks at shapes and
    kinds of rows alone.
    """
    if algorithm.network is not None:
        return algorithm.network.default_score(test.X, test.y)
    target = Target.ANY if algorithm.rows is None else algorithm.rows.target
    classes = target == Target.CLASS or (target == Target.ANY and test.y.dtype.kind in "biu")
    return _FOUND if classes else None


def scores_of(finished: Run, test: Tasks, score: Metric | None = None) -> Floats:
    """Return the score of each task of a run on its own test rows; NaN for a task that has none.

    Tasks are scored one at a time: a score depends on the task's own rows and model, and on nothing else.

    Privacy
    -------
    Private, all of it: each number belongs to its task.
    """
    check_scored(finished, test=test)
    algorithm, models = finished.plan.algorithm, finished.private.held_models
    chosen = default_score(algorithm, test) if score is None else score
    if chosen is None:
        raise InputError(
            "Targets are numbers, as far as algorithm and loss say, and no share of them is found or not. "
            "Pass a score, a function of targets and outputs, such as cloister.metrics.nmse."
        )
    scores = np.full(len(finished.private.ids), np.nan)
    for at, rows in rows_to_score(finished.private.ids, test):
        own = {key: array[at : at + 1] for key, array in models.items()}
        scores[at] = chosen(test.y[rows], np.asarray(algorithm.predict(own, test.X[None, rows]))[0])
    return scores


def check_scored(finished: object, **tasks: object) -> None:
    """Refuse what is no run, and rows that nobody has said the tasks of."""
    if not isinstance(finished, Run):
        raise InputError(
            f"The first argument must be a finished run, as run(plan, tasks) returns. Got a "
            f"{type(finished).__name__}."
        )
    for name, given in tasks.items():
        check_tasks(given, name)


def rows_to_score(ids: Array, test: Tasks) -> Iterator[tuple[int, slice]]:
    """Yield the place of each task with test rows, and where these are; refuse a task that is not there."""
    position = {name: i for i, name in enumerate(ids.tolist())}
    for name, start, stop in zip(test.ids.tolist(), test.offsets[:-1], test.offsets[1:], strict=True):
        if name not in position:
            raise InputError(f"Task {name!r} of the test data was not in the run. Leave it out.")
        if stop > start:
            yield position[name], slice(int(start), int(stop))


def task_scores(finished: Run, test: Tasks, score: Metric | None = None, library: str | None = None) -> Any:
    """Return a data frame with the score of each task of a run on its own test rows: task, rows, score.

    Parameters
    ----------
    finished, test, score
        As for `evaluate`.
    library : {"pandas", "polars", "pyarrow"}, optional
        By default the first of these that is installed.

    Privacy
    -------
    Private, all of it: each row belongs to its task, the number of its test rows too.

    Examples
    --------
    >>> from cloister import Plan, run
    >>> from cloister.algorithms import MeanRegularized
    >>> from cloister.learners import Logistic
    >>> tasks = Tasks.from_list([[[1.0], [-1.0]], [[2.0]]], [[1, 0], [1]], ["Elm", "Oak"])
    >>> done = run(Plan(MeanRegularized(Logistic(1), rounds=3), n_tasks=2).calibrate(1.0), tasks)
    >>> task_scores(done, tasks, lambda y, outputs: len(y), library="polars").rows()
    [('Elm', 2, 2.0), ('Oak', 1, 1.0)]
    """
    ids, rows = finished.private.ids, np.zeros(len(finished.private.ids), dtype=np.int64)
    for at, where in rows_to_score(ids, test):
        rows[at] = where.stop - where.start
    return data_frame({"task": ids, "rows": rows, "score": scores_of(finished, test, score)}, library)


@overload
def evaluate(finished: Run, test: Tasks, score: Metric | None = ...) -> Spread: ...


@overload
def evaluate(
    finished: Run,
    test: Tasks,
    score: Metric | None = ...,
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
    score: Metric | None = None,
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
    score : callable, optional
        Takes targets and what the model puts out for one task's rows, returns a number; more is better. By
        default the share of targets that are found, where these are classes: of a network by its loss, whose
        ignored positions are left out, and by the sign of the scores of `nn.BCEWithLogitsLoss`.
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
    price = ScorePrice(epsilon, delta, Relation(relation), ledger, random_state)
    mu = price.budget(finished.plan)
    told = release_means(finished, scores_of(finished, test, score)[None], mu, price)
    return PrivateScore(float(told.values[0]), told.noise, told.guarantee)


@dataclass(frozen=True)
class ScorePrice:
    """What a release of scores may cost: the same words as `evaluate`'s."""

    epsilon: float
    delta: float | None = None
    relation: Relation = Relation.REPLACE
    ledger: Ledger | None = None
    random_state: int | None = None

    def delta_for(self, plan: Plan) -> float:
        """Return the delta for a plan's units, by default the usual one; refuse one that is too large."""
        units = plan.unit.count(plan.n_tasks)
        delta = accounting.default_delta(units) if self.delta is None else self.delta
        return accounting.check_delta(delta, units)

    def budget(self, plan: Plan, count: int = 1) -> float:
        """Return the mu that it buys for each of `count` means; refuse noise that integers cannot hold."""
        if not 0 < self.epsilon < math.inf:
            raise PlanError(
                f"epsilon must be > 0 and finite. Got {self.epsilon}. Leave it out for private scores."
            )
        total = accounting.calibrate(
            lambda mu: _cost(mu / math.sqrt(count), plan, Relation.REPLACE, count),
            self.epsilon,
            self.delta_for(plan),
        )
        _release(total / math.sqrt(count), plan.n_tasks).check()
        return total / math.sqrt(count)


@dataclass(frozen=True, eq=False)
class NoisyMeans:
    """Means over all tasks that may leave, the noise in each, and what all of them cost together."""

    values: Floats
    noise: float
    guarantee: Guarantee


class Finished(Protocol):
    """What a release needs to know of a finished run."""

    @property
    def plan(self) -> Plan:
        """Its plan."""

    @property
    def guarantee(self) -> Guarantee:
        """What it promised."""


def release_share(finished: Finished, counted: NDArray[np.bool_], price: ScorePrice) -> PrivateScore:
    """Return the noisy share of all tasks of a run for which something is true; those not here do not count.

    Privacy
    -------
    As of `evaluate`: given the board, a task's rows decide over its own entry and no other.
    """
    n_tasks = finished.plan.n_tasks
    if len(counted) > n_tasks:
        raise InputError(f"There must be at most {n_tasks} entries, one for each task. Got {len(counted)}.")
    scores = np.zeros((1, n_tasks))
    scores[0, : len(counted)] = counted
    told = release_means(finished, scores, price.budget(finished.plan), price)
    return PrivateScore(float(told.values[0]), told.noise, told.guarantee)


def release_means(
    finished: Finished, scores: Floats, mu: float, price: ScorePrice, doubts: tuple[Caveat, ...] = ()
) -> NoisyMeans:
    """Return the noisy means of several scores of every task, (count, tasks), each clipped to [0, 1].

    Privacy
    -------
    Each is a `release_sum` of its own and mu-GDP; together they are as one Gaussian release of all of them,
    whose sensitivity is the root of their number. The ledger is charged before any noise is drawn.
    """
    (count, n_tasks), plan = scores.shape, finished.plan
    if plan.trust.at_home:
        raise PlanError(
            "Scores are released by a curator who sees them, and this run is priced against one: together "
            "they would promise neither. Keep them at home."
        )
    sources = [_source(price.random_state, number) for number in range(count)]
    guarantee = guarantee_for(
        accounting.Prices.of(lambda r: _cost(mu, plan, r, count), price.relation, price.delta_for(plan)),
        NoiseMade.by(Gaussian(), sources[0].origin),
        merged(_doubts(finished.guarantee), doubts),
        n_tasks=n_tasks,
        participation=Everyone().describe(),
        domain=domain_of(False, plan.unit.by_record),
    )
    if price.ledger is not None:
        made = hashlib.sha256(f"evaluation of {plan.fingerprint}".encode()).hexdigest()
        charge(price.ledger, Bill(made, lambda r: _cost(mu, plan, r, count), guarantee.doubts))
        guarantee = replace(guarantee, all_runs=price.ledger.balance.all_runs)
    sums = [release_sum(each, mu, source) for each, source in zip(scores, sources, strict=True)]
    return NoisyMeans(np.array(sums) / n_tasks, 1 / (mu * n_tasks), guarantee)


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


def _cost(mu: float, plan: Plan, relation: Relation, count: int = 1) -> Cost:
    """Return the price of scores for one of a run's units: each is in one task, whose score moves by 1."""
    return plan.unit.inside(Cost((GaussianEvent(mu),) * count, Everyone(), plan.n_tasks, relation.value))


def _doubts(run: Guarantee) -> tuple[Caveat, ...]:
    """Say why models may know more of other tasks' rows than the board may tell."""
    no_noise = (Caveat(Grade.VOID, "its releases have no noise"),) if math.isinf(run.epsilon) else ()
    return tuple(
        Caveat(doubt.grade, f"of the run that made the models: {doubt.reason}")
        for doubt in merged(no_noise, run.doubts)
    )


def _source(random_state: int | None, number: int = 0) -> Randomness:
    """Return the source of one release's noise; from a seed it is another than that of a run of that seed."""
    if random_state is None:
        return source_of(None)
    return source_of(int(local_key(int(random_state), f"evaluation {number}" if number else "evaluation")))
