"""Linear models for many tasks by the algorithms of the papers, as scikit-learn estimators."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from cloister.algorithm import Algorithm
from cloister.algorithms.covariance import GroupSparse, LowRank
from cloister.algorithms.locate import EVEN_IN_ALL, Locate
from cloister.algorithms.mean import MeanRegularized
from cloister.algorithms.stacking import ChooseAtHome
from cloister.algorithms.staged import Rescaled
from cloister.errors import InputError
from cloister.estimators.base import BasePrivate
from cloister.estimators.parameters import number_or_auto
from cloister.estimators.targets import BaseMultiTaskClassifier, BaseMultiTaskRegressor
from cloister.learners.linear.losses import LeastSquares, Logistic, Loss, Softmax
from cloister.plan import Plan
from cloister.privacy.mechanisms import Mechanism
from cloister.privacy.sampling import Sampling
from cloister.tables.codebook import Codebook

__all__ = [
    "BaseChoosing",
    "BaseLinear",
    "GroupSparseClassifier",
    "GroupSparseRegressor",
    "LowRankClassifier",
    "LowRankRegressor",
    "MeanRegularizedClassifier",
    "MeanRegularizedRegressor",
]

#: Most of the squared budget that asks tasks how far they rely on what they share.
ASKS = 0.1


@dataclass(eq=False, repr=False, kw_only=True)
class BaseLinear(BasePrivate):
    """What the estimators here share: many rounds, and a loss and a step that suit the codebook."""

    #: Few steps come furthest on columns that fill their bounds.
    _reach: ClassVar[float] = EVEN_IN_ALL

    lam: float | Sequence[float] = 0.1
    clip: float | str = "auto"
    rounds: int = 20
    lr: float | str = "auto"
    sampling: Sampling | None = None
    mechanism: Mechanism | None = None

    def _plan(self, codebook: Codebook, n_tasks: int) -> Plan:
        return self._priced(
            self._algorithm(codebook),
            n_tasks,
            caveats=codebook.caveats,
            sampling=self.sampling,
            mechanism=self.mechanism,
        )

    def _search(self, codebook: Codebook) -> Locate | None:
        """Return the search that comes first, unless the noise suits no other rounds."""
        return super()._search(codebook) if self._asks_more else None

    def _rescaled(self, algorithm: Algorithm, codebook: Codebook) -> Algorithm:
        """Return an algorithm that searches for targets and features first."""
        search = self._search(codebook)
        return algorithm if search is None else Rescaled(algorithm, search)

    @property
    def _asks_more(self) -> bool:
        """Whether the noise suits rounds of any kind, so that tasks can be asked for more than models."""
        return self.mechanism is None or self.mechanism.any_channel

    def _guarded(self, shared: Algorithm, codebook: Codebook, others: Sequence[Algorithm] = ()) -> Algorithm:
        """Return an algorithm whose tasks weigh it at home against their own models."""
        return ChooseAtHome(
            shared,
            self._learner(codebook),
            variants=tuple(others),
            asks=ASKS if self._asks_more else None,
            locate=self._search(codebook),
        )

    @abstractmethod
    def _shared(self, codebook: Codebook, loss: Loss, lam: float) -> Algorithm:
        """Return the shared algorithm for a loss and a penalty."""

    def _penalties(self) -> list[float]:
        """Return the penalties that tasks choose from; the first is the one they speak with."""
        several = isinstance(self.lam, (list, tuple, np.ndarray))
        given: list[Any] = list(self.lam) if several else [self.lam]  # type: ignore[arg-type]
        if not given or not all(isinstance(lam, Real) for lam in given):
            raise InputError(
                f"lam must be a number, or several for each task to choose from. Got {self.lam!r}."
            )
        return [float(lam) for lam in given]

    def _loss(self, codebook: Codebook) -> Loss:
        classes = codebook.classes
        if classes is None:
            return LeastSquares(codebook.width)
        return Logistic(codebook.width) if classes == 2 else Softmax(codebook.width, classes)

    def _step(self, codebook: Codebook) -> float:
        """Return the step: by default 1 over the largest curvature that rows of norm 1 can have."""
        return number_or_auto("lr", self.lr, {None: 1.0, 2: 4.0}.get(codebook.classes, 2.0))

    def _radius(self, codebook: Codebook) -> float:
        """Return the clip: by default what weights for rows of norm 1 seldom exceed.

        Rows with more columns have smaller numbers in each, and weights are larger by the root of that.
        """
        automatic = 3.0 if codebook.classes is not None else max(1.0, 0.5 * math.sqrt(codebook.width))
        return number_or_auto("clip", self.clip, automatic)


@dataclass(eq=False, repr=False, kw_only=True)
class BaseChoosing(BaseLinear):
    """What the estimators share whose tasks weigh at home, penalties against each other and against none."""

    guard: bool = True

    def _algorithm(self, codebook: Codebook) -> Algorithm:
        loss = self._loss(codebook)
        first, *others = [self._shared(codebook, loss, lam) for lam in self._penalties()]
        if self.guard:
            return self._guarded(first, codebook, others)
        if not others:
            return self._rescaled(first, codebook)
        return ChooseAtHome(
            first, self._learner(codebook), variants=tuple(others), alone=False, locate=self._search(codebook)
        )


@dataclass(eq=False, repr=False, kw_only=True)
class _Covariance(BaseChoosing):
    """What the estimators of `LowRank` and `GroupSparse` share."""

    _kind: ClassVar[type[LowRank] | type[GroupSparse]]

    accelerated: bool = True
    strong: float = 0.0
    warmup: int = 100
    averaged: bool = False

    def _shared(self, codebook: Codebook, loss: Loss, lam: float) -> LowRank | GroupSparse:
        return self._kind(
            loss,
            lam=lam,
            clip=self._radius(codebook),
            rounds=self.rounds,
            lr=self._step(codebook),
            accelerated=self.accelerated,
            strong=self.strong,
            warmup=self.warmup,
            averaged=self.averaged,
        )


class LowRankRegressor(BaseMultiTaskRegressor, _Covariance):
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
    accelerated, strong, warmup, averaged
        As for `LowRank`.
    guard : bool
        Let every task weigh this at home, by its own cross-validation, against its single-task model; with
        several `lam`, all of them. In one more round, with at most a tenth of the squared budget, all tasks
        are asked how far they rely on it (see `ChooseAtHome`). The guarantee is the same. False is the
        algorithm of the paper.

    Attributes
    ----------
    coef_, intercept_, guarantee_, plan_, billboard_
        As for `SharedPriorRegressor`.

    Privacy
    -------
    That of `LowRank`, after a private search for where the targets are (see `Located`), which has at most a
    tenth of the squared budget, and before the guard's question, which has as much. The board holds no model:
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


class LowRankClassifier(BaseMultiTaskClassifier, _Covariance):
    """Logistic or multinomial regression for many tasks with weights in a common subspace, under JDP.

    Parameters, attributes and privacy are those of `LowRankRegressor`; the codebook lists two classes or
    more, whose weight vectors share one subspace of features. A task that was not in `fit` is told that all
    are as likely.
    """

    _kind = LowRank


class GroupSparseRegressor(BaseMultiTaskRegressor, _Covariance):
    """Linear regression for many tasks that use the same few features, under task-level JDP.

    Parameters, attributes, privacy and what serves a task that was not in `fit` are those of
    `LowRankRegressor`, with the l2,1 norm in place of the trace norm (see `GroupSparse`).
    """

    _kind = GroupSparse


class GroupSparseClassifier(BaseMultiTaskClassifier, _Covariance):
    """Logistic or multinomial regression for many tasks that use the same few features, under JDP.

    Parameters, attributes and privacy are those of `GroupSparseRegressor`; the codebook lists two classes or
    more, which use the same features. A task that was not in `fit` is told that all are as likely.
    """

    _kind = GroupSparse


@dataclass(eq=False, repr=False, kw_only=True)
class _MeanRegularized(BaseChoosing):
    """What the estimators of `MeanRegularized` share."""

    lam: float | Sequence[float] = 0.05
    rounds: int = 10
    steps: int = 5
    finetune: int = 5

    def _shared(self, codebook: Codebook, loss: Loss, lam: float) -> MeanRegularized:
        return MeanRegularized(
            loss,
            lam=lam,
            clip=self._radius(codebook),
            rounds=self.rounds,
            steps=self.steps,
            lr=self._step(codebook),
            finetune=self.finetune,
        )


class MeanRegularizedRegressor(BaseMultiTaskRegressor, _MeanRegularized):
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


class MeanRegularizedClassifier(BaseMultiTaskClassifier, _MeanRegularized):
    """Logistic or multinomial regression for many tasks, each drawn towards the public mean of all.

    Parameters, attributes and privacy are those of `MeanRegularizedRegressor`; the codebook lists two classes
    or more.
    """
