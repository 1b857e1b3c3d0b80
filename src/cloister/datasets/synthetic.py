r"""Synthetic data: tasks that share a subspace or a few features, regressions around centres, a table.

*Subspaces and supports* are those of the model-protection experiments [1]_. Rows are Gaussian, scaled to unit
length; targets are :math:`y_i = X_i w_i + \varepsilon_i` with standard normal noise. Each task has nine times
as many test rows as training rows.

*Meta-learning* [2]_ has fresh tasks to judge by. A task has 10 rows in 30 dimensions, too few to learn alone.
Its weights lie near one of three centres,

.. math:: w_k = c_{j(k)} + s\,u_k, \qquad y = x^\top w_k + \sigma\varepsilon,

with :math:`u_k` Gaussian of expected squared length 1, rows x of unit length and :math:`\varepsilon` standard
normal.

References
----------
.. [1] J. Liang, Z. Liu, J. Zhou, X. Jiang, C. Zhang and F. Wang, "Model-protected multi-task learning",
   arXiv:1809.06546, section 5.4.
.. [2] X. Zhou and R. Bassily, "Task-level differentially private meta learning", NeurIPS 2022. The sizes are
   its linear regression's; its appendix prints neither the distance of centres nor the noise, which are our
   own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloister.core.arrays import Array, Floats, Integers
from cloister.core.errors import InputError
from cloister.core.tasks import Tasks

_TEST_ROWS_PER_ROW = 9


@dataclass(frozen=True, eq=False, repr=False)
class Simulation:
    """Tasks of equal size, stacked along the first axis, with the weights that made them.

    Parameters
    ----------
    name, description : str
        What it is.
    X_train, X_test : arrays of shape (n_tasks, n_rows, dim)
        Rows of unit length; no intercept.
    y_train, y_test : arrays of shape (n_tasks, n_rows)
        Targets.
    weights : array of shape (n_tasks, dim)
        The truth.
    target_bound : float
        A fixed scale for the default sizes: ``y / target_bound`` leaves [-1, 1] in about one to two rows of
        100,000 (up to 14 in the worst of 30 seeds). Clip it.
    """

    name: str
    X_train: NDArray[np.float64]
    y_train: NDArray[np.float64]
    X_test: NDArray[np.float64]
    y_test: NDArray[np.float64]
    weights: NDArray[np.float64]
    description: str
    target_bound: float = 50.0

    def __len__(self) -> int:
        return self.y_train.size

    def __repr__(self) -> str:
        m, n, d = self.X_train.shape
        return f"Simulation({self.name!r}, {m} tasks, {n} training rows each, {d} features)"

    @property
    def n_tasks(self) -> int:
        return len(self.weights)


def low_rank(
    seed: int, tasks: int = 320, rows: int = 30, dim: int = 30, rank: int = 4, signal: float = 113.0
) -> Simulation:
    r"""Tasks whose weights lie in one subspace of dimension ``rank``.

    The weight matrix is matrix-variate normal, :math:`W \sim MVN(0, I_d, \Sigma)`, as in
    arXiv:1809.06546, section 5.4. The paper shows :math:`\Sigma` in a picture only; here
    :math:`\Sigma = s A A^\top`, with one random unit vector of length ``rank`` per task in the rows of
    :math:`A`.

    Parameters
    ----------
    seed : int
        Of the generator; the same seed gives the same data.
    tasks, rows, dim, rank : int
        Number of tasks, of training rows of each, of features, and rank of the weight matrix.
    signal : float, default=113
        :math:`s`, the variance of a target without noise. The default is that of `group_sparse`.

    Examples
    --------
    >>> data = low_rank(seed=0, tasks=20, rows=5, dim=10, rank=3)
    >>> data
    Simulation('low_rank', 20 tasks, 5 training rows each, 10 features)
    >>> int(np.linalg.matrix_rank(data.weights))
    3
    """
    _check(tasks=tasks, rows=rows, dim=dim, rank=rank)
    _check_most("rank", rank, min(dim, tasks))
    rng = np.random.default_rng(seed)
    mix = rng.standard_normal((tasks, rank))
    mix /= np.linalg.norm(mix, axis=1, keepdims=True)
    weights = np.sqrt(signal) * mix @ rng.standard_normal((rank, dim))
    return _simulate("low_rank", rng, rows, weights, f"Weights in one subspace of dimension {rank}.")


def group_sparse(seed: int, tasks: int = 320, rows: int = 30, dim: int = 30, active: int = 4) -> Simulation:
    r"""Tasks whose weights are zero but for the first ``active`` features (arXiv:1809.06546, section 5.4).

    Parameters
    ----------
    seed : int
        Of the generator; the same seed gives the same data.
    tasks, rows, dim, active : int
        Number of tasks, of training rows of each, of features, and of features that matter. Their weights are
        uniform on :math:`[-50, -1] \cup [1, 50]`.

    Examples
    --------
    >>> weights = group_sparse(seed=0, tasks=20, rows=5, dim=10).weights
    >>> np.flatnonzero(np.abs(weights).sum(axis=0))
    array([0, 1, 2, 3])
    """
    _check(tasks=tasks, rows=rows, dim=dim, active=active)
    _check_most("active", active, dim)
    rng = np.random.default_rng(seed)
    weights = np.zeros((tasks, dim))
    size = (tasks, active)
    weights[:, :active] = rng.uniform(1.0, 50.0, size) * rng.choice([-1.0, 1.0], size)
    return _simulate("group_sparse", rng, rows, weights, f"Weights on the first {active} features only.")


def _simulate(
    name: str, rng: np.random.Generator, rows: int, weights: NDArray[np.float64], description: str
) -> Simulation:
    tasks, dim = weights.shape
    X = rng.standard_normal((tasks, rows * (1 + _TEST_ROWS_PER_ROW), dim))
    X /= np.linalg.norm(X, axis=2, keepdims=True)
    y = np.einsum("tnd,td->tn", X, weights) + rng.standard_normal(X.shape[:2])
    return Simulation(name, X[:, :rows], y[:, :rows], X[:, rows:], y[:, rows:], weights, description)


def _check(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise InputError(f"{name} must be at least 1. Got {size}. Leave it out for the default.")


def _check_most(name: str, size: int, most: int) -> None:
    if size > most:
        raise InputError(
            f"{name} must be at most {most} here. Got {size}. Lower it or ask for a larger problem."
        )


@dataclass(frozen=True, eq=False, repr=False)
class Centres:
    """Tasks to learn from, and fresh ones to adapt to and be judged by.

    Parameters
    ----------
    centres : array of shape (centres, dim)
        The truth.
    train : Tasks
        Tasks that take part.
    fresh, fresh_test : Tasks
        Other tasks: the rows they adapt with, and rows to judge by.
    train_centre, fresh_centre : int arrays, one entry a task
        Which centre a task is near.
    noise : float
        Standard deviation of targets around the truth; its square is the least mean squared error there is.
    """

    centres: Floats
    train: Tasks
    fresh: Tasks
    fresh_test: Tasks
    train_centre: Integers
    fresh_centre: Integers
    noise: float

    def __repr__(self) -> str:
        count, dim = self.centres.shape
        return (
            f"Centres({count} centres in {dim} dimensions, {len(self.train)} tasks, {len(self.fresh)} fresh)"
        )


def around_centres(
    seed: int,
    tasks: int = 1000,
    *,
    fresh: int = 200,
    rows: int = 10,
    dim: int = 30,
    centres: int = 3,
    distance: float = 7.0,
    spread: float = 1.0,
    noise: float = 0.1,
) -> Centres:
    """Draw tasks around centres that are equally far from each other, each as likely as the others.

    Parameters
    ----------
    seed : int
        Of the generator; the same seed gives the same data.
    tasks, fresh : int
        Tasks that take part, and fresh ones; these have 50 more rows each to be judged by.
    rows, dim, centres : int
        Rows of a task, features, and centres, at most `dim`.
    distance : float
        Between any two centres; with one, its length times the root of 2.
    spread : float
        Root mean square distance of tasks from their centre.
    noise : float
        Standard deviation of targets.

    Examples
    --------
    >>> data = around_centres(seed=0, tasks=20, fresh=5)
    >>> data
    Centres(3 centres in 30 dimensions, 20 tasks, 5 fresh)
    >>> round(float(np.linalg.norm(data.centres[0] - data.centres[1])), 6)
    7.0
    """
    if min(tasks, fresh, rows, dim, centres) < 1 or centres > dim:
        raise InputError(
            "tasks, fresh, rows and centres must be at least 1, and centres at most dim. "
            f"Got {tasks}, {fresh}, {rows}, {centres} and dim={dim}."
        )
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.standard_normal((dim, centres)))[0].T
    truth = axes * distance / np.sqrt(2)
    draw = _Draw(rng, truth, spread, noise)
    train, _, train_centre = draw.tasks(tasks, rows)
    few, many, fresh_centre = draw.tasks(fresh, rows, 50)
    return Centres(truth, train, few, many, train_centre, fresh_centre, noise)


@dataclass(frozen=True, eq=False)
class _Draw:
    rng: np.random.Generator
    centres: Floats
    spread: float
    noise: float

    def tasks(self, count: int, rows: int, more: int = 1) -> tuple[Tasks, Tasks, Integers]:
        """Draw so many tasks, with rows to learn from and more rows to judge by."""
        q, dim = self.centres.shape
        near = self.rng.integers(q, size=count)
        away = self.rng.standard_normal((count, dim)) * self.spread / np.sqrt(dim)
        X = self.rng.standard_normal((count, rows + more, dim))
        X /= np.linalg.norm(X, axis=2, keepdims=True)
        y = np.einsum("tnd,td->tn", X, self.centres[near] + away)
        y += self.noise * self.rng.standard_normal(y.shape)
        parts = (slice(None, rows), slice(rows, None))
        few, many = (Tasks.from_list(list(X[:, part]), list(y[:, part])) for part in parts)
        return few, many, near


_STREETS = ("Church Hill", "Elm Street", "Mill Road", "Oak Lane", "Park Avenue", "River Walk")
_LANGUAGES = ("Deutsch", "Türkçe", "العربية", "other")


def pupils(seed: int = 0) -> dict[str, Array]:
    """Draw a school authority's table: days absent of the pupils of 150 schools, with gaps.

    Days are log-normal within a school, and fewer for those who did well before, at a school's own rate.

    Examples
    --------
    >>> table = pupils()
    >>> len(table["days_absent"]), len(np.unique(table["school name"]))
    (5172, 150)
    """
    rng = np.random.default_rng(seed)
    names = np.array([f"{street} {number}" for street in _STREETS for number in range(1, 26)])
    school = np.repeat(np.arange(len(names)), rng.integers(8, 60, len(names)))
    n = len(school)
    score = rng.normal(55, 15, n).clip(0, 100).round()
    meals = rng.random(n) < 0.25
    level, slope = rng.normal(0, 0.35, len(names))[school], rng.normal(0.5, 0.15, len(names))[school]
    days = np.exp(1 + level - slope * (score - 55) / 15 + 0.3 * meals + 0.4 * rng.normal(size=n))
    language = rng.choice(_LANGUAGES, n, p=[0.7, 0.15, 0.1, 0.05])
    return {
        "pupil_id": np.arange(1, n + 1),
        "school name": names[school],
        "age": rng.normal(15.5, 0.8, n).clip(13, 19).round(),
        "gender": rng.choice(["F", "M", "X"], n, p=[0.5, 0.48, 0.02]),
        "free_meals": np.where(meals, "yes", "no"),
        "enrolled_on": (np.datetime64("2018-08-01") + rng.integers(0, 2000, n)).astype(str),
        "prior score": np.where(rng.random(n) < 0.02, np.nan, score),
        "language": np.where(rng.random(n) < 0.01, "", language),
        "siblings": rng.poisson(1.2, n),
        "distance_km": np.where(rng.random(n) < 0.05, np.nan, rng.lognormal(1, 0.8, n).clip(0, 100).round(1)),
        "track": rng.choice(["A", "B", "C"], n),
        "days_absent": days.clip(0, 200).round(),
    }
