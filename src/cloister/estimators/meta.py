"""MetaRegressor and MetaClassifier: a public start for linear models, learned from many tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Real
from typing import Any

from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from cloister.algorithms.finetuning import CrossValidatedTuning, FineTuning
from cloister.algorithms.meta import MetaSGD
from cloister.algorithms.mixture import ClusteredMetaSGD
from cloister.algorithms.server import ServerAverage
from cloister.app.task_model import TaskModel
from cloister.core.errors import InputError
from cloister.engines.run import adapt
from cloister.estimators.base import MultiTaskEstimator
from cloister.estimators.linear import loss_for, penalties, weighed_at_home
from cloister.estimators.parameters import check_count, number_or_auto
from cloister.learners.descent import ExactSolver
from cloister.learners.linear.convex import Convex
from cloister.learners.penalties import Quadratic
from cloister.ledger import Ledger
from cloister.plan.algorithm import Algorithm
from cloister.privacy.mechanisms import Mechanism
from cloister.privacy.sampling import Sampling
from cloister.privacy.trust import Trust
from cloister.tables.codebook import Codebook

#: Accelerated steps of a local solve: encoded rows have norm 1 at most, and these are enough for any of them.
SOLVER = ExactSolver(50)


@dataclass(eq=False, repr=False)
class _Meta(MultiTaskEstimator):
    """`MetaSGD`, or `ClusteredMetaSGD` with several models."""

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
    lam: float | Sequence[float] = 0.02
    clip: float | str = "auto"
    rounds: int = 20
    lr: float | str = "auto"
    guard: bool = True
    models: int = 1
    tail: float = 0.5

    def algorithm(self, codebook: Codebook) -> Algorithm:
        self._check_numbers()
        first, *others = penalties(self.lam)
        shared = self._shared(codebook, first)
        if others:
            variants = tuple(FineTuning(SOLVER, Quadratic(lam)) for lam in (first, *others))
            shared = replace(shared, finetune=CrossValidatedTuning(variants, checks=1))
        return weighed_at_home(shared, codebook, guard=self.guard, mechanism=self.mechanism)

    def _shared(self, codebook: Codebook, lam: float) -> MetaSGD | ClusteredMetaSGD:
        reach = 0.5 if codebook.classes is None else 1.5
        fields: dict[str, Any] = {
            "lam": lam,
            "clip": number_or_auto("clip", self.clip, reach * lam),
            "rounds": self.rounds,
            "tail": self.tail,
            "server": ServerAverage(number_or_auto("lr", self.lr, self.models / lam)),
        }
        if self.models == 1:
            return MetaSGD(Convex(loss_for(codebook)), SOLVER, **fields)
        return ClusteredMetaSGD(Convex(loss_for(codebook)), SOLVER, models=self.models, **fields)

    def _check_numbers(self) -> None:
        if not all(0 < lam < math.inf for lam in penalties(self.lam)):
            raise InputError(f"lam must be > 0 and finite, all of them. Got {self.lam!r}.")
        check_count("models", self.models)
        check_count("rounds", self.rounds)
        tail: object = self.tail
        if isinstance(tail, bool) or not isinstance(tail, Real):
            raise InputError(f"tail must be a number in [0, 1]. Got {self.tail!r}.")

    def adapt(
        self, X: object, y: object, sample_weight: ArrayLike | None = None, *, task: object = "new"
    ) -> TaskModel:
        """Return the model of one task that was not in `fit`, from its own rows and the board alone.

        Parameters
        ----------
        X : DataFrame, mapping of columns, or array
            The new task's rows, as in `fit`, with or without the task column.
        y : array-like of shape (n_samples,)
            Their targets.
        sample_weight : array-like of shape (n_samples,), optional
            Row weights.
        task : object
            What to call it; by default as the task column does, if X has it.

        Privacy
        -------
        Free: nothing leaves the new task, and nothing is spent.
        """
        check_is_fitted(self, "guarantee_")
        return self.run_.replay(X, y, sample_weight, task=task, column=self.task, compute=adapt)


class MetaRegressor(RegressorMixin, _Meta):  # type: ignore[misc]
    r"""Linear regression for many tasks from one or several public starts, under task-level JDP.

    Parameters
    ----------
    task, epsilon, delta, relation, bounds, ledger, random_state
        As for `SharedPriorRegressor`.
    models : int
        How many meta-models; each task, new ones included, uses the best for itself. More than one pays where
        tasks come in groups, and needs more of them.
    lam : float or several
        Penalty on a task's distance from its meta-model. Of several, ``lam=(0.02, 0.1)``, each task chooses
        at home, by its own cross-validation, among them and the meta-model itself, for the same guarantee;
        the first is the one that messages are made with.
    clip : float or "auto"
        Largest length of a gradient. "auto" is half of lam for numbers and 1.5 lam for classes: it is
        reached by a task whose model lies so far (0.5, or 1.5) from the meta-model, in encoded columns.
    rounds : int
        Releases.
    lr : float or "auto"
        Step of the meta-models. "auto" is models / lam.
    sampling, mechanism
        As for `LowRankRegressor`.
    tail : float
        Share of the rounds whose meta-models are averaged.
    guard : bool
        Let every task, new ones with rows of their own included, weigh its model at home, by its own
        cross-validation, against its single-task model, after all tasks of `fit` were asked how far they rely
        on it (see `ChooseAtHome`). The guarantee is the same. False is the algorithm of the paper.

    Attributes
    ----------
    coef_, intercept_, guarantee_, plan_, billboard_
        As for `SharedPriorRegressor`.

    Privacy
    -------
    That of `MetaSGD`, or `ClusteredMetaSGD`, after a search as for `LowRankRegressor`. A task that was not in
    `fit` is served with the meta-model (with several, the one that most tasks use), or, if it has rows of its
    own, by `adapt`: free.

    Notes
    -----
    The defaults were chosen at epsilon 1 on six real tables, and measured there without the guard: tasks that
    came later did better than alone on four, and within 1.5 % of `SharedPriorRegressor` on three. On the
    others that was better. What this is for are tasks in groups, and networks; see the page on meta-learning.

    Without the guard tasks rely on their meta-model whatever their own rows say: where the search hears
    nothing, noise in it is in units of the bounds. With it a newcomer relies on the meta-model as tasks of
    about as many rows said.

    References
    ----------
    Zhou and Bassily, "Task-level differentially private meta learning", NeurIPS 2022.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> school, x = np.repeat(np.arange(300), 5), rng.uniform(-1, 1, (1500, 2))
    >>> y = x[:, 0] + rng.normal(0, 0.1, 300)[school] + rng.normal(0, 0.2, 1500)
    >>> bounds = {0: (-1, 1), 1: (-1, 1), "y": (-2, 2)}
    >>> model = MetaRegressor(epsilon=2.0, bounds=bounds, random_state=0).fit(x, y, tasks=school)
    >>> newcomer = model.adapt([[0.0, 0.0], [0.1, 0.0]], [0.3, 0.4])  # two rows
    >>> bool(newcomer.predict([[1.0, 0.0]])[0] > 0.8)
    True
    """


class MetaClassifier(ClassifierMixin, _Meta):  # type: ignore[misc]
    """Logistic or multinomial regression for many tasks from one or several public starts.

    Parameters, attributes, privacy and `adapt` are those of `MetaRegressor`; the codebook lists two
    classes or more.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> person, x = np.repeat(np.arange(300), 8), rng.uniform(-1, 1, (2400, 1))
    >>> yes = rng.random(2400) < 1 / (1 + np.exp(-4 * x[:, 0]))
    >>> bounds = {0: (-1, 1), "y": [False, True]}
    >>> model = MetaClassifier(epsilon=2.0, bounds=bounds, random_state=0).fit(x, yes, tasks=person)
    >>> model.predict([[-0.9], [0.9]], tasks=[0, 0]).tolist()
    [False, True]
    """
