"""SeveralOutcomes: shared priors for several targets of the same rows, under one budget."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from cloister.app.fit import fit_plan
from cloister.app.outcomes import Outcomes
from cloister.app.result import EstimatorSettings
from cloister.app.source import EncodedTable
from cloister.app.vote import run_seed
from cloister.core.errors import InputError
from cloister.estimators.parameters import PrivacyBudget
from cloister.estimators.prior import SharedPriorClassifier, SharedPriorRegressor
from cloister.ledger import Ledger
from cloister.tables.codebook import Codebook
from cloister.tables.codebook_file import target_from_spec
from cloister.tables.column_types import Categorical
from cloister.tables.columns import has_column, target_column
from cloister.tables.frames import named_columns

Model = SharedPriorRegressor | SharedPriorClassifier


class SeveralOutcomes(BaseEstimator):  # type: ignore[misc]
    """A shared prior for each of several outcomes, which are paid for together.

    Numbers, counts, positive numbers, ordered and other classes may stand side by side: each outcome has the
    model of its kind, `SharedPriorRegressor` or `SharedPriorClassifier`, and its share of the squared budget.

    Parameters
    ----------
    task : str or int, optional
        Name (or index) of the task column, unless `fit` is given `tasks`.
    bounds : mapping or path
        Public limits of every feature and of every outcome, each under its name; or a codebook file with
        a ``[[target]]`` table for each.
    epsilon : float
        Privacy budget of every task for all outcomes together.
    delta, relation, ledger, random_state, groups
        As in `SharedPriorRegressor`. A ledger is charged for each outcome, and refuses them all if they do
        not fit together.
    shares : mapping of str to float, optional
        How much of the squared budget each outcome gets, up to a common factor; by default the same.

    Attributes
    ----------
    outcomes_ : dict of str to estimator
        The fitted model of each outcome, which has everything else: `summary`, `report`, `predict_proba`.
    guarantee_ : Guarantee
        What all of it promises together. The `guarantee_` of one outcome is for its run alone.

    Privacy
    -------
    Unit: a task with all its rows and all its outcomes. The runs are plans that are fixed beforehand and
    composed as one (`cloister.app.outcomes`).

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> school = np.repeat(np.arange(200), 10)
    >>> age = rng.uniform(6, 18, 2000)
    >>> score = np.clip(2 * age + rng.normal(0, 3, 2000), 0, 50)
    >>> table = {"school": school, "age": age, "score": score, "passed": score > 20}
    >>> bounds = {"age": (5, 20), "score": (0, 50), "passed": [False, True]}
    >>> model = SeveralOutcomes("school", bounds=bounds, epsilon=1.0, random_state=0)
    >>> model = model.fit(table, ["score", "passed"])
    >>> 0.99 < model.guarantee_.epsilon <= 1.0, model.outcomes_["score"].guarantee_.epsilon < 0.8
    (True, True)
    >>> found = model.predict({"school": [7], "age": [17.0]})
    >>> sorted(found), bool(found["passed"][0])
    (['passed', 'score'], True)
    """

    def __init__(
        self,
        task: str | int | None = None,
        *,
        bounds: Any = None,
        epsilon: float = 1.0,
        delta: float | str = "auto",
        relation: str = "replace",
        shares: Mapping[str, float] | None = None,
        ledger: Ledger | None = None,
        random_state: int | None = None,
        groups: str | int | None = None,
    ) -> None:
        self.task = task
        self.bounds = bounds
        self.epsilon = epsilon
        self.delta = delta
        self.relation = relation
        self.shares = shares
        self.ledger = ledger
        self.random_state = random_state
        self.groups = groups

    def fit(
        self, X: Any, Y: Any, tasks: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Fit every task's models.

        Parameters
        ----------
        X : DataFrame, mapping of columns, or array
            Features, the task column if `task` names one, and the groups' column if `groups` does.
        Y : sequence of str, DataFrame or mapping of columns
            Names of columns of X, or a table with one column for each outcome.
        tasks : array-like of shape (n_samples,), optional
            One task id a row, instead of a task column.
        sample_weight : array-like of shape (n_samples,), optional
            Row weights; they stay with the task.

        Returns
        -------
        self
        """
        budget = PrivacyBudget.of(self)
        assert budget is not None
        X, targets = _split(X, Y)
        models = {name: self._model(name, [*targets]) for name in targets}
        tables = {
            name: model.reader.encode(X, targets[name], tasks, sample_weight)
            for name, model in models.items()
        }
        plans = {name: _plan(models[name], table) for name, table in tables.items()}
        together = Outcomes.sharing(plans, self.epsilon, self.shares)
        together.check_room(self.ledger, {})
        for number, (name, plan) in enumerate(together.plans.items()):
            model, table = models[name].set_params(epsilon=plan.guarantee.epsilon), tables[name]
            settings = EstimatorSettings.of(model, table.tasks.ids, table.columns.named)
            run = fit_plan(
                plan,
                lambda table=table: table.tasks,  # type: ignore[misc]
                table.codebook,
                settings,
                ledger=self.ledger,
                random_state=run_seed(self.random_state, number),
            )
            model.use_run(run, table.columns)
        return self._use(models)

    @classmethod
    def of(cls, outcomes: Mapping[str, Model]) -> SeveralOutcomes:
        """Return what `fit` has left, from the fitted models of all outcomes."""
        first, together = next(iter(outcomes.values())), Outcomes({n: m.plan_ for n, m in outcomes.items()})
        found = cls(
            first.task,
            epsilon=together.guarantee.epsilon,
            delta=together.guarantee.delta,
            relation=first.relation,
            groups=first.groups,
        )
        return found._use(outcomes)

    def _use(self, models: Mapping[str, Model]) -> Self:
        self.outcomes_ = dict(models)
        self.plan_ = Outcomes({name: model.plan_ for name, model in models.items()})
        made = {model.plan_.noise_on(model.billboard_) for model in models.values()}
        if len(made) != 1:
            raise InputError("All outcomes' runs must have the same kind of noise. Fit them together.")
        self.guarantee_ = self.plan_.guarantee_with(made.pop())
        one_of = self.guarantee_.shared_by(len(models))
        for model in models.values():
            model.guarantee_ = replace(model.guarantee_, one_of=one_of)
            model.run_ = replace(model.run_, guarantee=model.guarantee_)
        return self

    def _model(self, name: str, names: Sequence[str]) -> Model:
        """Return the estimator of one outcome, with its own bounds."""
        if isinstance(self.bounds, str | os.PathLike):
            books = {book.target.name: book for book in Codebook.load_all(os.fspath(self.bounds))}
            if name not in books:
                raise InputError(f"The codebook has no target {name!r}. It has: {', '.join(books)}.")
            bounds: Any = books[name]
            classes = bounds.classes is not None
        elif isinstance(self.bounds, Mapping) and name in self.bounds:
            bounds = {key: value for key, value in self.bounds.items() if key == name or key not in names}
            classes = isinstance(target_from_spec(name, bounds[name]), Categorical)
        else:
            raise InputError(
                f"bounds= must be a mapping with limits or classes of every outcome, or a codebook file with "
                f"a [[target]] for each. Got none of {name!r}."
            )
        kind = SharedPriorClassifier if classes else SharedPriorRegressor
        return kind(
            self.task,
            bounds=bounds,
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.relation,
            groups=self.groups,
        )

    def predict(self, X: Any, tasks: ArrayLike | None = None) -> dict[str, Any]:
        """Predict all outcomes of each row with its own task's models.

        Returns
        -------
        dict of str to array
            By the outcomes' names.
        """
        check_is_fitted(self, "guarantee_")
        X = _split(X, [name for name in self.outcomes_ if has_column(X, name)])[0]
        return {name: model.predict(X, tasks) for name, model in self.outcomes_.items()}

    def summary(self) -> dict[str, Any]:
        """Say what all tasks have in common, for each outcome. Public, hence free."""
        check_is_fitted(self, "guarantee_")
        return {name: model.summary() for name, model in self.outcomes_.items()}

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write a folder with the run of each outcome, as its `save` does, and what they promise together."""
        check_is_fitted(self, "guarantee_")
        place = Path(folder)
        if place.exists() and not force:
            raise InputError(f"{place} is already there and is left as it is. Choose another, or force=True.")
        place.mkdir(parents=True, exist_ok=True)
        naming = next(iter(self.outcomes_.values())).run_.codebook.naming
        self.plan_.save(place, self.guarantee_, naming)  # first, for each run's own page says what all cost
        for name, model in self.outcomes_.items():
            model.save(self.plan_.place(place, name), force=force)
        heads = {name: model.billboard_.head.hex() for name, model in self.outcomes_.items()}
        self.plan_.save(place, self.guarantee_, naming, heads)
        return place


def _split(X: Any, Y: Any) -> tuple[Any, dict[str, Any]]:
    """Return the table without its outcomes, and these by name."""
    if isinstance(Y, list | tuple) and all(isinstance(name, str) for name in Y):
        found: dict[str, Any] = {}
        for name in Y:
            X, found[name], _ = target_column(X, name)
        return X, found
    columns, named = named_columns(Y)
    if not named or not columns:
        raise InputError(
            "Y must be names of columns of X, or a table whose columns have names. Got neither. Pass a data "
            "frame, a mapping, or a list of names."
        )
    return X, {name: np.asarray(column) for name, column in columns.items()}


def _plan(model: Model, table: EncodedTable) -> Any:
    labels = table.tasks.groups
    groups = None if labels is None else labels.tolist()
    return model.plan(len(table.tasks), table.codebook, groups)
