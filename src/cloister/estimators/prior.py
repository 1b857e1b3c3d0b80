"""SharedPriorRegressor and SharedPriorClassifier: private multi-task learning for a grouped table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cloister.algorithm import Algorithm
from cloister.algorithms.located import Located
from cloister.algorithms.prior import SharedPrior
from cloister.algorithms.structures import Joint, Mean, Structure, Subspace, Support
from cloister.errors import InputError
from cloister.estimators.base import BaseMultiTaskClassifier, BaseMultiTaskRegressor, BasePrivate
from cloister.estimators.parameters import check_word
from cloister.estimators.starting import earlier_prior
from cloister.tables.codebook import Codebook

__all__ = ["SharedPriorClassifier", "SharedPriorRegressor"]

STRUCTURES: dict[str, type[Structure]] = {
    "joint": Joint,
    "mean": Mean,
    "lowrank": Subspace,
    "sparse": Support,
}


@dataclass(eq=False, repr=False, kw_only=True)
class _SharedPrior(BasePrivate):
    """What both estimators share: the structure, by its word."""

    structure: str = "auto"
    start_from: Any = None

    def _algorithm(self, codebook: Codebook) -> Algorithm:
        shared = SharedPrior(self._learner(codebook), self._structure(codebook))
        return shared if self._classify else Located(shared, intercept=1 / codebook.row_scale)

    def _structure(self, codebook: Codebook) -> Structure:
        several = codebook.classes is not None and codebook.classes > 2
        check_word("structure", self.structure, ["auto", *STRUCTURES])
        if several and self.structure not in ("auto", "mean"):
            raise InputError(f"More than two classes share a mean only. Got structure={self.structure!r}.")
        kind = {"auto": Mean if several else Joint, **STRUCTURES}[self.structure]
        if self.start_from is None:
            return kind()
        if kind not in (Joint, Mean):
            raise InputError(f"A run with structure={self.structure!r} starts anew. Leave start_from out.")
        earlier = earlier_prior(self.start_from, codebook)
        return kind() if earlier.heard_nothing else kind(start_from=earlier)


class SharedPriorRegressor(BaseMultiTaskRegressor, _SharedPrior):
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
    delta : float or "auto"
        By default min(m^-1.5, 1/(10 m)) for m tasks; more than 1/m is refused.
    relation : {"replace", "zero_out"}
        Neighbours differ in one task's data (default), or in one task's silence.
    structure : {"auto", "joint", "mean", "lowrank", "sparse"}
        What tasks tell each other. "auto" is "joint": mean and covariance of their weights.
    bounds : mapping, path or Codebook
        Public limits of every feature and of the target; required to share anything. "data" reads them
        from the data, and the guarantee then says that it does not hold.
    ledger : Ledger, optional
        The account these tasks spend from. Every fit is charged, a refit again, and says so.
    random_state : int, optional
        Makes noise reproducible and INSECURE: for tests and papers.
    start_from : fitted estimator, path or (Plan, Billboard), optional
        An earlier run with the same codebook, say last year's, whose public board this one starts from. It
        costs nothing, and a smaller epsilon will do. (`sklearn.base.clone` unfits an estimator that is passed
        here; a folder stays what it is.)

    Attributes
    ----------
    coef_, intercept_ : arrays of shape (tasks, columns) and (tasks,)
        Each task's model in the user's units. Row i belongs to task ``task_ids_[i]`` alone.
    guarantee_, plan_, billboard_ : Guarantee, Plan, Billboard
        The public part.

    Privacy
    -------
    Unit: a task with all its rows. What leaves a task is one clipped vector a round (see `SharedPrior`);
    the curator is trusted to sum and to add noise. `coef_`, predictions and scores are private to tasks.

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


class SharedPriorClassifier(BaseMultiTaskClassifier, _SharedPrior):
    """Logistic or multinomial regression for many tasks, under task-level joint differential privacy.

    Parameters, attributes and privacy are those of `SharedPriorRegressor`; the codebook lists the classes,
    which are public. With more than two classes tasks share a mean.

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
