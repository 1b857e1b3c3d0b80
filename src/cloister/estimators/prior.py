"""SharedPriorRegressor and SharedPriorClassifier: private multi-task learning for a grouped table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin, RegressorMixin

from cloister.algorithms.prior.directions import Subspace, Support
from cloister.algorithms.prior.mean import Joint, Mean
from cloister.algorithms.prior.pooled_prior import PooledPrior
from cloister.algorithms.prior.relevance import FeatureRelevance
from cloister.algorithms.prior.shared_prior import SharedPrior
from cloister.algorithms.prior.structure import Structure
from cloister.app.fit import earlier_prior
from cloister.core.errors import InputError
from cloister.core.roster import Groups, group_labels
from cloister.estimators.base import MultiTaskEstimator, search_by_records, search_for
from cloister.estimators.class_weights import WeighsClasses
from cloister.estimators.parameters import PrivacyBudget, check_word
from cloister.ledger import Ledger
from cloister.plan.algorithm import Algorithm
from cloister.plan.plan import Plan
from cloister.privacy.trust import Trust
from cloister.privacy.unit import Unit
from cloister.tables.codebook import Codebook
from cloister.tables.columns import labels_by_task
from cloister.tables.targets import Count, Ordered

STRUCTURES: dict[str, type[Structure]] = {
    "joint": Joint,
    "mean": Mean,
    "relevance": FeatureRelevance,
    "lowrank": Subspace,
    "sparse": Support,
}


@dataclass(eq=False, repr=False)
class _SharedPrior(MultiTaskEstimator):
    """`SharedPrior`, with a structure by its word, and a column of public groups."""

    task: str | int | None = None
    _: KW_ONLY
    bounds: Any = None
    epsilon: float = 1.0
    delta: float | str = "auto"
    relation: str = "replace"
    ledger: Ledger | None = None
    random_state: int | None = None
    structure: str = "auto"
    start_from: Any = None
    groups: str | int | None = None
    varying: str | Sequence[str] | None = None
    trust: Trust | None = None
    unit: Unit | None = None

    def algorithm(self, codebook: Codebook) -> Algorithm:
        budget = PrivacyBudget.of(self)
        if budget is not None and budget.unit is not None and budget.unit.by_record:
            return self._by_records(codebook, budget.unit)
        return SharedPrior(self.learner(codebook), self._structure(codebook), search_for(codebook))

    def _by_records(self, codebook: Codebook, unit: Unit) -> Algorithm:
        """Return what records say and tasks do: where weights lie, and no more."""
        learner = self.learner(codebook)
        if learner.residuals is None:
            raise InputError(
                "Records say where weights lie if the target is a number, or two classes without "
                f"class_weight. Got {_in_words(codebook)}. Use unit=Unit.task() for this codebook."
            )
        told = (self.start_from, self.groups, self.varying)
        if self.structure != "auto" or any(one is not None for one in told):
            raise InputError(
                "Records say where weights lie, for all tasks alike and from the start. Leave structure, "
                "start_from, groups and varying out, or use unit=Unit.task()."
            )
        whole = unit.limit is None
        return PooledPrior(learner, search_by_records(codebook), leave_own=whole)

    def _structure(self, codebook: Codebook) -> Structure:
        ordered = isinstance(codebook.target, Ordered)
        several = codebook.classes is not None and codebook.classes > 2 and not ordered
        check_word("structure", self.structure, ["auto", *STRUCTURES])
        if several and self.structure not in ("auto", "mean", "relevance"):
            raise InputError(
                "More than two classes share a mean: use structure 'mean' or 'relevance'. "
                f"Got {self.structure!r}."
            )
        anew = {"auto": FeatureRelevance if several else Joint, **STRUCTURES}[self.structure]
        if self.varying is not None:
            if anew is not Joint or ordered or self.start_from is not None:
                raise InputError(
                    "What varies is named for numbers, counts or two classes, with structure 'auto' or "
                    f"'joint' and no start_from. Got varying={self.varying!r}. Leave it out."
                )
            return Joint(varying=_columns_of(self.varying, codebook))
        if self.start_from is None:
            return anew()
        kind = Mean if several and self.structure == "auto" else anew
        if kind not in (Joint, Mean):
            raise InputError(f"A run with structure={self.structure!r} starts anew. Leave start_from out.")
        earlier = earlier_prior(self.start_from, codebook)
        return anew() if earlier.heard_nothing else kind(start_from=earlier)

    def plan(
        self, n_tasks: int, codebook: Codebook | None = None, groups: Sequence[object] | None = None
    ) -> Plan:
        """Return the plan that `fit` would run on so many tasks: read its guarantee before spending.

        `groups` has the public label of each task; with them the price is the same.
        """
        plan = super().plan(n_tasks, codebook)
        if groups is None:
            return plan
        if self.structure not in ("auto", "joint", "mean"):
            raise InputError(
                f"Groups have means of their own, and structure={self.structure!r} has none. Use 'joint' or "
                "'mean', or leave groups out."
            )
        return replace(plan, algorithm=plan.algorithm.with_groups(Groups.of(groups)))

    def fit(
        self,
        X: Any,
        y: Any,
        tasks: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        person: ArrayLike | None = None,
        journal: str | os.PathLike[str] | None = None,
    ) -> Any:
        """Fit every task's model.

        Parameters
        ----------
        X : DataFrame, mapping of columns, or array of shape (n_samples, n_features)
            Features, the task column if `task` names one, and the groups' column if `groups` does.
        y : array-like of shape (n_samples,), or str
            Numbers or classes; or the name of the column of X that has them.
        tasks : array-like of shape (n_samples,), optional
            One task id a row, instead of a task column.
        sample_weight : array-like of shape (n_samples,), optional
            Row weights; they stay with the task.
        groups : array-like of shape (n_samples,), optional
            The public group of each row's task, instead of a column; the same in all rows of a task.
        person : array-like of shape (n_samples,), optional
            Whose each row is, where persons are protected (`Unit.person`); it stays with the task.
        journal : path, optional
            A new folder where the run is left, as by `save`. Every release is on disk before it is used: if
            this call is killed, the same call goes on, with the same releases, and is charged once.

        Returns
        -------
        self
        """
        if person is not None and (self.unit is None or self.unit.limit is None):
            raise InputError(
                "person says whose each row is where persons are protected, and they are not. Use "
                "unit=Unit.person(rows, most), or leave person out."
            )
        table = self.reader.encode(X, y, tasks, sample_weight, person)
        if groups is not None:
            labels = labels_by_task(table.columns.ids, group_labels(groups))
            table = replace(table, tasks=table.tasks.with_groups(labels))
        elif self.groups is not None and table.tasks.groups is None:
            raise InputError(
                f"X has no column {self.groups!r} with the tasks' groups. Add it, or pass one label a row "
                "with fit(groups=...)."
            )
        return self._fit(table, journal)


def _in_words(codebook: Codebook) -> str:
    """Say what kind of target a codebook has, of those that records say nothing about."""
    if isinstance(codebook.target, Count):
        return "counts"
    if isinstance(codebook.target, Ordered):
        return "ordered classes"
    return "class_weight" if codebook.classes == 2 else f"{codebook.classes} classes"


def _columns_of(varying: str | Sequence[str], codebook: Codebook) -> tuple[int, ...]:
    """Return the columns of the intercept and of features by name, or of encoded columns."""
    names = (varying,) if isinstance(varying, str) else varying
    columns = ("intercept", *codebook.column_names)
    found = [
        [at for at, one in enumerate(columns) if one == name or one.startswith(f"{name}[")] for name in names
    ]
    for name, places in zip(names, found, strict=True):
        if not places:
            raise InputError(
                f"varying must name 'intercept' or columns of the codebook. Got {name!r}. Use some of "
                f"{list(columns)}."
            )
    return tuple(sorted({at for places in found for at in places}))


class SharedPriorRegressor(RegressorMixin, _SharedPrior):  # type: ignore[misc]
    r"""Linear regression for many tasks, each with its own model, under task-level JDP.

    A few noisy releases say how the tasks' weights are alike (their mean and spread); each task then fits
    its own data at home with that as its prior and weighs it by its own evidence.

    Parameters
    ----------
    task : str or int, optional
        Name (or index) of the task column, unless `fit` is given `tasks`. A model of one's own, which shares
        nothing, is `SingleTaskRegressor`.
    epsilon : float
        Privacy budget of every task. ``float("inf")`` gives the non-private run, and says so.
        For a risk instead, ``model.plan(n_tasks).calibrate(detection=0.10).guarantee.epsilon``.
    delta : float or "auto"
        By default min(m^-1.5, 1/(10 m)) for m tasks; more than 1/m is refused.
    relation : {"replace", "zero_out"}
        Neighbours differ in one task's data (default), or in one task's silence.
    structure : {"auto", "joint", "mean", "relevance", "lowrank", "sparse"}
        What tasks tell each other. "auto" is "joint": mean and covariance of their weights; with more than
        two classes it is "relevance": their mean, and which features matter in it ("mean" with `groups` or
        `start_from`).
    groups : str or int, optional
        Name (or index) of a column with the public group of each row's task (its district, its country),
        unless `fit` is given `groups`. Tasks then share a prior with their group, which shares one with all;
        the price is the same. *Public*: that a task is in its group is hidden from nobody.
    varying : str or sequence of str, optional
        Names of what differs between tasks, as lme4's random effects: ``["intercept", "age"]``; all other
        slopes are common to all, but for what the data say against it. A public choice, from before the data.
    bounds : mapping, path or Codebook
        Public limits of every feature and of the target; required to share anything. "data" reads them
        from the data, and the guarantee then says that it does not hold.
    ledger : Ledger, optional
        The account these tasks spend from. Every fit is charged, a refit again, and says so.
    random_state : int, optional
        Makes noise reproducible and INSECURE: for tests and papers.
    unit : Unit, optional
        Who is protected: by default ``Unit.task()``, a task with all its rows. With
        ``Unit.record(rows=10_000)``, a public number of rows in all, it is each row, as between a few
        hospitals of many patients (see `PooledPrior`); for numbers, and for two classes without weights.
    start_from : fitted estimator, path or (Plan, Billboard), optional
        An earlier run with the same codebook, say last year's, whose public board this one starts from. It
        costs nothing, and a smaller epsilon will do. (`sklearn.base.clone` unfits an estimator that is passed
        here; a folder stays what it is.)
    trust : Trust, optional
        Whom tasks trust with their messages: by default a curator, who adds the noise; see `Plan`.

    Attributes
    ----------
    coef_, intercept_ : arrays of shape (tasks, columns) and (tasks,)
        Each task's model in the user's units. Row i belongs to task ``task_ids_[i]`` alone.
    guarantee_, plan_, billboard_ : Guarantee, Plan, Billboard
        The public part.
    run_ : TableRun
        All of it as one result, which `save` writes and `cloister.load` reads. Private: it has every model.

    Privacy
    -------
    Unit: a task with all its rows, unless `unit` says otherwise. What leaves a task is one clipped vector a
    round (see `SharedPrior`), or a sum of vectors that are clipped row by row (see `PooledPrior`); the
    curator is trusted to sum and to add noise, unless `trust` says otherwise. `coef_`, predictions and
    scores are private to tasks.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> school = np.repeat(np.arange(200), 10)
    >>> age = rng.uniform(6, 18, 2000)
    >>> score = np.clip(2 * age + rng.normal(0, 3, 200)[school] + rng.normal(0, 3, 2000), 0, 50)
    >>> bounds = {"age": (5, 20), "target": (0, 50)}
    >>> model = SharedPriorRegressor("school", epsilon=1.0, bounds=bounds, random_state=0)
    >>> model = model.fit({"school": school, "age": age}, score)
    >>> model.guarantee_.epsilon <= 1.0
    True
    >>> model.predict({"school": [999], "age": [10.0]}).round() in range(15, 26)  # a school never seen
    True
    """


@dataclass(eq=False, repr=False)
class SharedPriorClassifier(ClassifierMixin, WeighsClasses, _SharedPrior):  # type: ignore[misc]
    """Logistic or multinomial regression for many tasks, under task-level joint differential privacy.

    Parameters, attributes and privacy are those of `SharedPriorRegressor`; the codebook lists the classes,
    which are public. `class_weight` may say how many rows a row of each class counts as: a mapping from
    classes to numbers, or numbers in the codebook's order, as public as the list. `classes_` are sorted, as
    scikit-learn's scorers expect; `coef_` has the log-odds of each but the first against the first.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> person = np.repeat(np.arange(300), 8)
    >>> x = rng.uniform(-1, 1, 2400)
    >>> yes = rng.random(2400) < 1 / (1 + np.exp(-4 * x))
    >>> bounds = {"x": (-1, 1), "target": [False, True]}
    >>> model = SharedPriorClassifier("person", epsilon=2.0, bounds=bounds, random_state=0)
    >>> model = model.fit({"person": person, "x": x}, yes)
    >>> model.predict({"person": [0, 0], "x": [-0.9, 0.9]}).tolist()
    [False, True]
    """
