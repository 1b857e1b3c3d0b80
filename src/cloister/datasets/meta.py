r"""Synthetic tasks for meta-learning: linear regressions around a few centres, and fresh tasks to judge by.

A task has 10 rows in 30 dimensions, too few to learn alone. Its weights lie near one of three centres,

.. math:: w_k = c_{j(k)} + s\,u_k, \qquad y = x^\top w_k + \sigma\varepsilon,

with :math:`u_k` Gaussian of expected squared length 1, rows x of unit length and :math:`\varepsilon` standard
normal.

References
----------
X. Zhou and R. Bassily, "Task-level differentially private meta learning", NeurIPS 2022. The sizes are its
linear regression's; its appendix prints neither the distance of centres nor the noise, which are our own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cloister.arrays import Floats, Integers
from cloister.errors import InputError
from cloister.tasks import Tasks

__all__ = ["Centres", "around_centres"]


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
