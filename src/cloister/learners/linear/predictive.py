"""How heavy the tails of a regression's predictions are: degrees of freedom of Student's t."""

from __future__ import annotations

import numpy as np

from cloister.arrays import Floats

__all__ = ["degrees_of_freedom"]

#: Of a task without rows, and the least of one with rows that a shared prior explains.
WITHOUT_ROWS, LEAST_SHARED = 5.0, 3.0
#: Share of the degrees of freedom that is kept: choosing among priors and penalties takes the rest, and
#: targets are not quite normal. Measured on rows held out (``python -m benchmarks intervals``).
KEPT = 0.75


def degrees_of_freedom(count: Floats, fitted: Floats, shared: Floats) -> Floats:
    r"""Return the degrees of freedom of each task's predictive distribution.

    With a shared prior the noise variance has one more than there are rows; a task's own fit of :math:`p`
    effective parameters leaves :math:`n - 1 - p`. Three quarters of either are kept. Where both have a part,
    excesses over the normal, which go with :math:`1/\nu`, are averaged by their weights.

    Parameters
    ----------
    count : array of shape (tasks,)
        Rows n of each task.
    fitted : array of shape (tasks,)
        Effective parameters p of its fit to the own rows alone, without the intercept.
    shared : array of shape (tasks,)
        Weight of the shared priors.

    Examples
    --------
    >>> rows, weight = np.array([0.0, 8.0, 8.0, 8.0]), np.array([1.0, 1.0, 0.5, 0.0])
    >>> degrees_of_freedom(rows, np.full(4, 3.0), weight).round(2).tolist()
    [5.0, 6.75, 4.15, 3.0]
    """
    with_prior = np.where(count > 0, np.maximum(KEPT * (count + 1), LEAST_SHARED), WITHOUT_ROWS)
    alone = np.maximum(KEPT * (count - 1 - fitted), 1.0)
    return np.asarray(1 / (shared / with_prior + (1 - shared) / alone))
