"""Linear models for many tasks by the algorithms of the papers, as scikit-learn estimators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin

from cloister.algorithms.covariance import GroupSparse, LowRank
from cloister.algorithms.decomposed import Decomposed, EntrySparse, OwnPenalty, SquaredNorm, TaskSparse
from cloister.algorithms.locate import EVEN_IN_ALL
from cloister.algorithms.mean_regularized import MeanRegularized
from cloister.algorithms.stacking import ChooseAtHome
from cloister.algorithms.staged import Rescaled
from cloister.app.fit import own_learner
from cloister.core.errors import InputError
from cloister.estimators.base import MultiTaskEstimator, search_for
from cloister.estimators.parameters import check_word, number_or_auto
from cloister.learners.linear.losses import LeastSquares, Logistic, Loss, Softmax
from cloister.ledger import Ledger
from cloister.plan.algorithm import Algorithm
from cloister.privacy.mechanisms import Mechanism
from cloister.privacy.sampling import Sampling
from cloister.privacy.trust import Trust
from cloister.tables.codebook import Codebook
from cloister.tables.targets import Count, Ordered

#: Most of the squared budget that asks tasks how far they rely on what they share.
ASKS = 0.2
SHARED = {"lowrank": LowRank, "sparse": GroupSparse}
OWN: dict[str, Callable[[float], OwnPenalty]] = {
    "entries": EntrySparse,
    "tasks": TaskSparse,
    "squared": SquaredNorm,
}


def weighed_at_home(
    shared: Algorithm,
    codebook: Codebook,
    *,
    guard: bool,
    mechanism: Mechanism | None,
    others: Sequence[Algorithm] = (),
) -> Algorithm:
    """Return an algorithm whose tasks weigh it at home against others and, guarded, their own models.

    Targets are searched for first, and tasks asked how far they rely on it, if the noise suits any round.
    """
    any_round, learner = mechanism is None or mechanism.any_channel, own_learner(codebook)
    # Few steps come furthest on columns that fill their bounds.
    search = search_for(codebook, EVEN_IN_ALL) if any_round else None
    if not guard and not others:
        return shared if search is None else Rescaled(shared, search)
    asks, by_rows = (ASKS, True) if guard and any_round else (None, None)
    return ChooseAtHome(
        shared, learner, variants=tuple(others), alone=guard, asks=asks, locate=search, by_rows=by_rows
    )


def penalties(lam: object) -> list[float]:
    """Return the penalties that tasks choose from; the first is the one that messages are made with."""
    given: list[Any] = list(lam) if isinstance(lam, (list, tuple, np.ndarray)) else [lam]
    if not given or not all(isinstance(each, Real) for each in given):
        raise InputError(f"lam must be a number, or several for each task to choose from. Got {lam!r}.")
    return [float(each) for each in given]


def loss_for(codebook: Codebook) -> Loss:
    """Return the loss of an algorithm that follows gradients; refuse targets of other kinds."""
    classes = codebook.classes
    if isinstance(codebook.target, Count | Ordered):
        raise InputError(
            f"A target of kind {codebook.target.entry()['kind']!r} is for SharedPrior, SingleTask and Pooled "
            "estimators (--method shared-prior, single-task). Use one of these."
        )
    if classes is None:
        return LeastSquares(codebook.width)
    return Logistic(codebook.width) if classes == 2 else Softmax(codebook.width, classes)


def step(lr: float | str, codebook: Codebook) -> float:
    """Return the step: by default 1 over the largest curvature that rows of norm 1 can have."""
    return number_or_auto("lr", lr, {None: 1.0, 2: 4.0}.get(codebook.classes, 2.0))


def radius(clip: float | str, codebook: Codebook) -> float:
    """Return the clip: by default what weights for rows of norm 1 seldom exceed.

    Rows with more columns have smaller numbers in each, and weights are larger by the root of that.
    """
    automatic = 3.0 if codebook.classes is not None else max(1.0, 0.5 * math.sqrt(codebook.width))
    return number_or_auto("clip", clip, automatic)


@dataclass(eq=False, repr=False)
class _Covariance(MultiTaskEstimator):
    """`LowRank` and `GroupSparse`."""

    _kind: ClassVar[type[LowRank] | type[GroupSparse]]

    task: str | int | None = None
    _: KW_ONLY
    bounds: Any = None
    epsilon: float = 1.0
    delta: float | str = "auto"
    relation: str = "replace"
    ledger: Ledger | None = None
    random_state: int | None = None
    sampling: Sampling | None = None
    mechanism: Mechanism | None = None
    trust: Trust | None = None
    lam: float | Sequence[float] = 0.1
    clip: float | str = "auto"
    rounds: int = 20
    lr: float | str = "auto"
    guard: bool = True
    accelerated: bool = True
    strong: float = 0.0
    warmup: int = 100
    averaged: bool = False

    def algorithm(self, codebook: Codebook) -> Algorithm:
        first, *others = (
            self._kind(
                loss_for(codebook),
                lam=lam,
                clip=radius(self.clip, codebook),
                rounds=self.rounds,
                lr=step(self.lr, codebook),
                accelerated=self.accelerated,
                strong=self.strong,
                warmup=self.warmup,
                averaged=self.averaged,
            )
            for lam in penalties(self.lam)
        )
        return weighed_at_home(first, codebook, guard=self.guard, mechanism=self.mechanism, others=others)


class LowRankRegressor(RegressorMixin, _Covariance):  # type: ignore[misc]
    """Linear regression for many tasks whose weights lie in a common subspace, under task-level JDP.

    Parameters
    ----------
    task, epsilon, delta, relation, bounds, ledger, random_state
        As for `SharedPriorRegressor`.
    lam : float or several
        Strength of the trace norm over all tasks' weights together; what it shrinks grows like the square
        root of the number of tasks, so more tasks want more of it. Of several, ``lam=(0.1, 1, 10)``, each
        task weighs at home what they give, by its own cross-validation, for the same guarantee; the first is
        the one that messages are made with.
    clip : float or "auto"
        Radius that weights are clipped to, for encoded rows, which have norm 1 at most, and targets in the
        unit that was found. "auto" is half of the root of the number of encoded columns for numbers, at least
        1, and 3 for classes.
    rounds : int
        Releases.
    lr : float or "auto"
        Step size. "auto" is what is safe for any encoded rows: 1 for least squares, 4 for two classes and 2
        for more.
    sampling : Sampling, optional
        Who takes part in a round (see `cloister.sampling`); everyone by default.
    mechanism : Mechanism, optional
        What kind of noise the releases get (see `cloister.mechanisms`), as much as epsilon needs;
        `Gaussian()` by default. `Wishart` and noise that is correlated over rounds suit one kind of round
        only: with them nothing is searched, and targets stay in units of their bounds.
    trust : Trust, optional
        Whom tasks trust with their messages: by default a curator, who adds the noise; see `Plan`.
    accelerated, strong, warmup, averaged
        As for `LowRank`.
    guard : bool
        Let every task weigh this at home, by its own cross-validation, against its single-task model; with
        several `lam`, all of them. In one more round, with at most a fifth of the squared budget, all tasks
        are asked how far they rely on it (see `ChooseAtHome`). The guarantee is the same. False is the
        algorithm of the paper.

    Attributes
    ----------
    coef_, intercept_, guarantee_, plan_, billboard_
        As for `SharedPriorRegressor`.

    Privacy
    -------
    That of `LowRank`, after a private search for where the targets are (see `Locate`), which has at most a
    tenth of the squared budget, and before the guard's question, which has a fifth. The board holds no model:
    a task that was not in `fit` is served with the place where targets were found or, if nothing was heard,
    with the middle of their bounds.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> school, x = np.repeat(np.arange(200), 10), rng.uniform(-1, 1, (2000, 3))
    >>> y = np.clip(rng.normal(size=200)[school] * x[:, 0], -3, 3)  # one direction, any sign
    >>> bounds = {0: (-1, 1), 1: (-1, 1), 2: (-1, 1), "y": (-3, 3)}
    >>> model = LowRankRegressor(epsilon=4.0, bounds=bounds, random_state=0).fit(x, y, tasks=school)
    >>> model.score(x, y, tasks=school) > 0.8, bool(abs(model.predict(x[:1], tasks=[999])[0]) < 0.2)
    (True, True)
    """

    _kind = LowRank


class LowRankClassifier(ClassifierMixin, _Covariance):  # type: ignore[misc]
    """Logistic or multinomial regression for many tasks with weights in a common subspace, under JDP.

    Parameters, attributes and privacy are those of `LowRankRegressor`; the codebook lists two classes or
    more, whose weight vectors share one subspace of features. A task that was not in `fit` is told that all
    are as likely.
    """

    _kind = LowRank


class GroupSparseRegressor(RegressorMixin, _Covariance):  # type: ignore[misc]
    """Linear regression for many tasks that use the same few features, under task-level JDP.

    Parameters, attributes, privacy and what serves a task that was not in `fit` are those of
    `LowRankRegressor`, with the l2,1 norm in place of the trace norm (see `GroupSparse`).
    """

    _kind = GroupSparse


class GroupSparseClassifier(ClassifierMixin, _Covariance):  # type: ignore[misc]
    """Logistic or multinomial regression for many tasks that use the same few features, under JDP.

    Parameters, attributes and privacy are those of `GroupSparseRegressor`; the codebook lists two classes or
    more, which use the same features. A task that was not in `fit` is told that all are as likely.
    """

    _kind = GroupSparse


@dataclass(eq=False, repr=False)
class _MeanRegularized(MultiTaskEstimator):
    """`MeanRegularized`."""

    task: str | int | None = None
    _: KW_ONLY
    bounds: Any = None
    epsilon: float = 1.0
    delta: float | str = "auto"
    relation: str = "replace"
    ledger: Ledger | None = None
    random_state: int | None = None
    sampling: Sampling | None = None
    mechanism: Mechanism | None = None
    trust: Trust | None = None
    lam: float | Sequence[float] = 0.05
    clip: float | str = "auto"
    rounds: int = 10
    lr: float | str = "auto"
    guard: bool = True
    steps: int = 5
    finetune: int = 5

    def algorithm(self, codebook: Codebook) -> Algorithm:
        first, *others = (
            MeanRegularized(
                loss_for(codebook),
                lam=lam,
                clip=radius(self.clip, codebook),
                rounds=self.rounds,
                steps=self.steps,
                lr=step(self.lr, codebook),
                finetune=self.finetune,
            )
            for lam in penalties(self.lam)
        )
        return weighed_at_home(first, codebook, guard=self.guard, mechanism=self.mechanism, others=others)


class MeanRegularizedRegressor(RegressorMixin, _MeanRegularized):  # type: ignore[misc]
    """Linear regression for many tasks, each drawn towards the public mean of all, under task-level JDP.

    Parameters
    ----------
    task, epsilon, delta, relation, bounds, ledger, random_state, clip, sampling, mechanism, guard
        As for `LowRankRegressor`.
    lam : float or several
        Penalty on the distance from the mean, at most 1/lr. 0 is single-task learning. Of several, each task
        weighs what they give at home, as for `LowRankRegressor`.
    rounds, steps, finetune : int
        Releases, local gradient steps before each, and after the last.
    lr : float or "auto"
        Step size. "auto" is 1 for least squares, 4 for two classes and 2 for more.

    Privacy
    -------
    That of `MeanRegularized`, after a search as for `LowRankRegressor`. A task that was not in `fit` is
    served with the mean on the board.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> school, x = np.repeat(np.arange(200), 10), rng.uniform(-1, 1, (2000, 1))
    >>> y = 0.5 * x[:, 0] + rng.normal(0, 0.1, 200)[school]
    >>> model = MeanRegularizedRegressor(bounds={0: (-1, 1), "y": (-1, 1)}, random_state=0)
    >>> model = model.fit(x, y, tasks=school)
    >>> bool(model.predict([[1.0]], tasks=[999])[0] > 0.2)  # a school never seen
    True
    """


class MeanRegularizedClassifier(ClassifierMixin, _MeanRegularized):  # type: ignore[misc]
    """Logistic or multinomial regression for many tasks, each drawn towards the public mean of all.

    Parameters, attributes and privacy are those of `MeanRegularizedRegressor`; the codebook lists two classes
    or more.
    """


@dataclass(eq=False, repr=False)
class _Decomposed(MultiTaskEstimator):
    """`Decomposed`."""

    task: str | int | None = None
    _: KW_ONLY
    bounds: Any = None
    epsilon: float = 1.0
    delta: float | str = "auto"
    relation: str = "replace"
    ledger: Ledger | None = None
    random_state: int | None = None
    sampling: Sampling | None = None
    mechanism: Mechanism | None = None
    trust: Trust | None = None
    lam: float | Sequence[float] = 0.1
    clip: float | str = "auto"
    rounds: int = 20
    lr: float | str = "auto"
    guard: bool = True
    shared: str = "lowrank"
    own: str = "entries"
    lam_own: float = 0.01
    warmup: int = 100

    def algorithm(self, codebook: Codebook) -> Algorithm:
        check_word("shared", self.shared, SHARED)
        check_word("own", self.own, OWN)
        first, *others = (
            Decomposed(
                SHARED[self.shared](
                    loss_for(codebook),
                    lam=lam,
                    clip=radius(self.clip, codebook),
                    rounds=self.rounds,
                    lr=step(self.lr, codebook) / (2 if self.lr == "auto" else 1),  # both parts move at once
                    warmup=self.warmup,
                ),
                OWN[self.own](self.lam_own),
            )
            for lam in penalties(self.lam)
        )
        return weighed_at_home(first, codebook, guard=self.guard, mechanism=self.mechanism, others=others)


class DecomposedRegressor(RegressorMixin, _Decomposed):  # type: ignore[misc]
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


class DecomposedClassifier(ClassifierMixin, _Decomposed):  # type: ignore[misc]
    """Logistic or multinomial regression with shared weights and weights of a task's own, under JDP.

    Parameters, attributes and privacy are those of `DecomposedRegressor`; the codebook lists two classes or
    more.
    """
